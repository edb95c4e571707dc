"""The declaration of a model, from which folders, documentation and loading derive."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cog.constants import PROFILES
from cog.errors import CogError
from cog.paths import split_model_name

if TYPE_CHECKING:
    from yacs.config import CfgNode

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

#: Groups of the paper's result tables (Table 1), and groups of models that these tables do not have.
CATEGORIES = (
    "reference",
    "architecture",
    "self-supervision",
    "regularization",
    "web-data",
    "first-version",
    "later",
)


#: Kinds of pretraining data, from which it follows whether the concepts of the levels were unseen.
PRETRAINING = ("IN-1K", "IN-21K", "IN-1K + other", "web", "unknown")


def import_target(target: str) -> Any:
    """Import ``"module:attribute"``."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of an image into the network's input.

    Attributes:
        resize: length of the shortest side after resizing, in pixels.
        crop: side of the center crop, in pixels.
        mean: per-channel (RGB) mean of pixels in [0, 1].
        std: per-channel (RGB) standard deviation.
        interpolation: one of :data:`cog.constants.INTERPOLATIONS` (Pillow, antialiased).
        squash: whether both sides are resized to ``resize``, without regard to the image's shape.
    """

    resize: int = 224
    crop: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: str = "bicubic"
    squash: bool = False

    def protocol(self) -> Preprocess:
        """Return this preprocessing with the benchmark's geometry: shortest side resized to the crop, bicubic."""
        return dataclasses.replace(self, resize=self.crop, interpolation="bicubic", squash=False)

    def apply_to(self, cfg: CfgNode) -> None:
        """Write these values into the FT_EXTRACT keys of an unfrozen configuration."""
        cfg.FT_EXTRACT.IMAGE_RESIZE_SIZE = self.resize
        cfg.FT_EXTRACT.IMAGE_CROP_SIZE = self.crop
        cfg.FT_EXTRACT.IMAGE_NORM.MEAN = list(self.mean)
        cfg.FT_EXTRACT.IMAGE_NORM.STD = list(self.std)
        cfg.FT_EXTRACT.IMAGE_INTERPOLATION = self.interpolation
        cfg.FT_EXTRACT.IMAGE_SQUASH = self.squash


@dataclass(frozen=True)
class Unwrap:
    """One layout of a checkpoint: the place of the state dict in the file, and other entries.

    Attributes:
        key: entry of the outer dict that holds the state dict; None for a bare state dict.
        prefix: prefix of the parameters that are kept; it is stripped.
        ignored_prefixes: prefixes (as in the file) of the parameters outside the network, such as those of a
            momentum encoder; a key with neither ``prefix`` nor one of these is an error.
        drop: prefixes (after stripping) of the parameters that are not part of the backbone; the parameters of
            the network's ``head`` are always dropped.
        rename: ``"module:function"`` of a function from a state dict to one with the architecture's names.
        ema_alternative: keys of a second state dict (a moving average), of its validation error, and of the
            validation error of the first state dict; the state dict with the lower error is taken.
        allow: classes that the file may contain in addition to tensors, by their names in
            :mod:`cog.models.checkpoint`.
    """

    key: str | None = None
    prefix: str = ""
    ignored_prefixes: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    rename: str = ""
    ema_alternative: tuple[str, str, str] | None = None
    allow: tuple[str, ...] = ()


def abbreviated(sha256: str) -> str:
    """Return a SHA-256 for a message; known first digits end with an ellipsis."""
    return sha256 if len(sha256) == 64 else f"{sha256}..."


@dataclass(frozen=True)
class CheckpointSource:
    """A link to a checkpoint.

    Attributes:
        url: link to the file, or to a web page if ``manual``.
        sha256: all or the first of the 64 hexadecimal digits of the file's SHA-256; empty when unknown.
        parts: suffix of ``url`` and of ``model.ckpt`` for each file of the checkpoint.
        member: path of the checkpoint inside the downloaded zip archive.
        manual: whether the link needs a browser.
        note: remark for readers.
    """

    url: str
    sha256: str = ""
    parts: tuple[str, ...] = ("",)
    member: str = ""
    manual: bool = False
    note: str = ""


@dataclass(frozen=True)
class Variant:
    """Differences to a model's declaration, chosen with FT_EXTRACT.PROFILE or FT_EXTRACT.VARIANT.

    Attributes:
        note: change and its reason, for the documentation.
        preprocess: preprocessing in place of the model's; None: no change.
        network_args: arguments added to those of the constructor.
        feature_dim: D in place of the model's; None: no change.
        head: names of further modules that are removed.
    """

    note: str
    preprocess: Preprocess | None = None
    network_args: Mapping[str, Any] = field(default_factory=dict)
    feature_dim: int | None = None
    head: tuple[str, ...] = ()


@dataclass(frozen=True)
class Published:
    """The ImageNet-1K validation accuracy that the weights' authors report, and their image protocol.

    Attributes:
        top1: accuracy in percent.
        resize: length of the shortest side after resizing, in pixels.
        crop: side of the center crop, in pixels.
        interpolation: ``"bilinear"`` or ``"bicubic"`` (Pillow, antialiased).
    """

    top1: float
    resize: int = 256
    crop: int = 224
    interpolation: str = "bilinear"


@dataclass(frozen=True)
class Paper:
    """Entry of a model in the benchmark's paper.

    Attributes:
        label: label in the paper's tables.
        category: group in the paper's tables, one of ``CATEGORIES``.
        title: title of the publication that introduced the model.
        comparable: whether the paper compares the model with ResNet-50 (similar size).
        parameters: millions of parameters in the paper's table of models; None: not listed there.
    """

    label: str
    category: str
    title: str = ""
    comparable: bool = False
    parameters: float | None = None


@dataclass(frozen=True)
class Network:
    """An architecture, without its classifier.

    Attributes:
        constructor: ``"module:constructor"``, imported on use.
        feature_dim: D of the (B, D) output.
        parameters: number of parameters of the backbone.
        args: keyword arguments of the constructor.
        head: dotted names of the classifier's modules, replaced by ``nn.Identity``.
    """

    constructor: str
    feature_dim: int
    parameters: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    head: tuple[str, ...] = ("fc",)


@dataclass(frozen=True)
class Release:
    """Release of the weights by their authors.

    Attributes:
        script: file in ``prepare_models/`` that fetches the checkpoint.
        sources: links to the checkpoint, best first.
        license: license of the weights or, failing that, of the repository that releases them; both licenses if they
            contradict each other; empty if neither is stated.
        accuracy: accuracy of the released classifier on ImageNet-1K; None for files without a classifier, and if no
            figure is known.
    """

    script: str = ""
    sources: tuple[CheckpointSource, ...] = ()
    license: str = ""
    accuracy: Published | None = None


@dataclass(frozen=True)
class ModelSpec:
    """One model of the benchmark.

    Attributes:
        name: ``<model_title>_<architecture_name>``, split at the first underscore.
        paper: entry of the model in the benchmark's paper.
        network: architecture of the model.
        layouts: layouts of checkpoint files: first the authors', then re-releases and conversions of the same weights;
            the names in a file determine its layout.
        preprocess: preprocessing that the weights expect.
        profiles: differences under a profile other than "authors".
        variants: further outputs or inputs of the same network.
        release: release of the weights.
        note: remark for readers of the table.
        pretraining: data that the weights were trained on, one of ``PRETRAINING``.

    Raises:
        CogError: an unusable name, category, pretraining or width.
    """

    name: str
    paper: Paper
    network: Network
    layouts: tuple[Unwrap, ...] = (Unwrap(),)
    preprocess: Preprocess = Preprocess()
    profiles: Mapping[str, Variant] = field(default_factory=dict)
    variants: Mapping[str, Variant] = field(default_factory=dict)
    release: Release = Release()
    note: str = ""
    pretraining: str = "IN-1K"

    def __post_init__(self) -> None:
        split_model_name(self.name)
        if self.pretraining not in PRETRAINING:
            raise CogError(
                f"model {self.name}: pretraining {self.pretraining!r}, expected {', '.join(PRETRAINING)}"
            )
        if self.paper.category not in CATEGORIES:
            raise CogError(
                f"model {self.name}: category {self.paper.category!r}, expected {', '.join(CATEGORIES)}"
            )
        if self.feature_dim < 1:
            raise CogError(f"model {self.name}: feature_dim {self.feature_dim}, expected 1 or more")

    @property
    def feature_dim(self) -> int:
        """D of the (B, D) output."""
        return self.network.feature_dim

    @property
    def sha256_prefixes(self) -> tuple[str, ...]:
        """SHA-256 digests, or their known first digits, of the files that hold these weights; may be empty."""
        return tuple(source.sha256 for source in self.release.sources if source.sha256 and not source.member)

    @property
    def published_sha256(self) -> str:
        """The digests of :attr:`sha256_prefixes` as text; known first digits end with an ellipsis."""
        return " or ".join(map(abbreviated, self.sha256_prefixes))

    def is_published(self, digest: str) -> bool | None:
        """Return whether a checkpoint's SHA-256 is a declared one; None when no SHA-256 is declared."""
        known = self.sha256_prefixes
        return digest.startswith(known) if known else None

    def preprocess_for(self, geometry: str) -> Preprocess:
        """Return the preprocessing for a value of ``FT_EXTRACT.PREPROCESS``.

        Raises:
            CogError: "model", without a declared image protocol of the model's authors.
        """
        if geometry != "model":
            return self.preprocess
        authors = self.release.accuracy
        if authors is None:
            raise CogError(
                f"FT_EXTRACT.PREPROCESS model: the image protocol of the authors of {self.name} is not declared; leave "
                "it out"
            )
        return dataclasses.replace(
            self.preprocess, resize=authors.resize, crop=authors.crop, interpolation=authors.interpolation
        )

    def resolve(self, profile: str = "authors", variant: str = "") -> ModelSpec:
        """Return the declaration with a profile's and a variant's differences applied.

        Raises:
            CogError: an unknown profile, or a variant that the model does not have.
        """
        if profile not in PROFILES:
            raise CogError(f"profile {profile!r} is not known, expected {' or '.join(PROFILES)}")
        if variant and variant not in self.variants:
            has = f"it has {', '.join(self.variants)}" if self.variants else "it has none"
            raise CogError(f"model {self.name} has no variant {variant!r}; {has}")
        spec = self
        changes = [self.profiles.get(profile), self.variants.get(variant)]
        for change in (change for change in changes if change is not None):
            network = dataclasses.replace(
                spec.network,
                args={**spec.network.args, **change.network_args},
                feature_dim=change.feature_dim or spec.feature_dim,
                head=(*spec.network.head, *change.head),
            )
            spec = dataclasses.replace(spec, network=network, preprocess=change.preprocess or spec.preprocess)
        return spec
