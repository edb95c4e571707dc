"""The declaration of a model, from which folders, documentation and loading derive."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.paths import split_model_name

if TYPE_CHECKING:
    from yacs.config import CfgNode

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

#: Groups of the paper's result tables (Table 1), and a group of models that these tables do not have.
CATEGORIES = ("reference", "architecture", "self-supervision", "regularization", "web-data", "other")

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

    def preprocess_for(self, geometry: str) -> Preprocess:
        """Return the preprocessing for a value of ``FT_EXTRACT.PREPROCESS``."""
        return self if geometry == "model" else self.protocol()

    def apply_to(self, cfg: CfgNode) -> None:
        """Write these values into the FT_EXTRACT keys of an unfrozen configuration."""
        cfg.FT_EXTRACT.IMAGE_RESIZE_SIZE = self.resize
        cfg.FT_EXTRACT.IMAGE_CROP_SIZE = self.crop
        cfg.FT_EXTRACT.IMAGE_NORM.MEAN = list(self.mean)
        cfg.FT_EXTRACT.IMAGE_NORM.STD = list(self.std)
        cfg.FT_EXTRACT.IMAGE_INTERPOLATION = self.interpolation
        cfg.FT_EXTRACT.IMAGE_SQUASH = self.squash


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
class PaperModel:
    """One model of the benchmark.

    Attributes:
        name: ``<model_title>_<architecture_name>``, split at the first underscore.
        label: label in the paper's tables.
        category: group in the paper's tables, one of ``CATEGORIES``.
        paper: title of the publication that introduced the model.
        network: ``"module:constructor"``, imported on use.
        feature_dim: D of the (B, D) output.
        parameters: number of parameters of the backbone, without classifier.
        args: keyword arguments of the constructor.
        head: dotted names of the classifier's modules, replaced by ``nn.Identity``.
        class_token: whether the network gives tokens; the feature is the class token after the last normalization.
        key: entry of the file that holds the state dict, if none of :data:`cog.models.checkpoint.WRAPPERS` does.
        prefix: beginning of the names of the backbone's parameters in the file.
        drop: beginnings (without ``prefix``) of the names of parameters that are not part of the backbone.
        rename: ``"module:function"`` of a function from a state dict to one with the network's names.
        preprocess: preprocessing that the weights expect.
        published: accuracy of the released classifier; None for files without a classifier, and if no figure is known.
        url: link to the authors' file, or to a web page if ``browser``.
        sha256: all or the first of the 64 hexadecimal digits of the file's SHA-256; empty when unknown.
        parts: suffix of ``url`` and of ``model.ckpt`` for each file of the checkpoint.
        member: path of the checkpoint inside a zip archive at ``url``.
        browser: whether the link needs a browser.
        license: license of the weights or, failing that, of the repository that releases them; both licenses if they
            contradict each other; empty if neither is stated.
        comparable: whether the paper compares the model with ResNet-50 (similar size).
        paper_parameters: millions of parameters in the paper's table of models; None: not listed there.
        note: remark for readers of the table.
        pretraining: data that the weights were trained on, one of ``PRETRAINING``.

    Raises:
        CogError: an unusable name, category, pretraining or width.
    """

    name: str
    label: str
    category: str
    paper: str
    network: str
    feature_dim: int
    parameters: int
    args: Mapping[str, Any] = field(default_factory=dict)
    head: tuple[str, ...] = ("fc",)
    class_token: bool = False
    key: str = ""
    prefix: str = ""
    drop: tuple[str, ...] = ()
    rename: str = ""
    preprocess: Preprocess = Preprocess()
    published: Published | None = None
    url: str = ""
    sha256: str = ""
    parts: tuple[str, ...] = ("",)
    member: str = ""
    browser: bool = False
    license: str = ""
    comparable: bool = False
    paper_parameters: float | None = None
    note: str = ""
    pretraining: str = "IN-1K"

    def __post_init__(self) -> None:
        split_model_name(self.name)
        for field_, value, known in (
            ("pretraining", self.pretraining, PRETRAINING),
            ("category", self.category, CATEGORIES),
        ):
            if value not in known:
                raise CogError(f"model {self.name}: {field_} {value!r}, expected {', '.join(known)}")
        if self.feature_dim < 1:
            raise CogError(f"model {self.name}: feature_dim {self.feature_dim}, expected 1 or more")

    def is_published(self, digest: str) -> bool | None:
        """Return whether a checkpoint's SHA-256 is the declared one; None when none is declared."""
        return digest.startswith(self.sha256) if self.sha256 and not self.member else None

    def preprocess_for(self, geometry: str) -> Preprocess:
        """Return the preprocessing for a value of ``FT_EXTRACT.PREPROCESS``.

        Raises:
            CogError: "model", without a declared image protocol of the model's authors.
        """
        if geometry != "model":
            return self.preprocess
        authors = self.published
        if authors is None:
            raise CogError(
                f"FT_EXTRACT.PREPROCESS model: the image protocol of the authors of {self.name} is not declared; leave "
                "it out"
            )
        return dataclasses.replace(
            self.preprocess, resize=authors.resize, crop=authors.crop, interpolation=authors.interpolation
        )
