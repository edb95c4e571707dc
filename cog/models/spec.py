"""What is declared about a model; everything else (folders, documentation, loading) derives from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from yacs.config import CfgNode

from cog.errors import CogError
from cog.paths import split_model_name

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

#: Groups of the paper's result tables (Table 1).
CATEGORIES = ("reference", "architecture", "self-supervision", "regularization", "web-data", "custom")


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes the network's input.

    Attributes:
        resize: length of the shortest side after bicubic resizing, in pixels.
        crop: side of the centre crop, in pixels.
        mean: per-channel (RGB) mean of pixels in [0, 1].
        std: per-channel (RGB) standard deviation.
    """

    resize: int = 224
    crop: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def apply_to(self, cfg: CfgNode) -> None:
        """Write these values into the FT_EXTRACT keys of an unfrozen configuration."""
        cfg.FT_EXTRACT.IMAGE_RESIZE_SIZE = self.resize
        cfg.FT_EXTRACT.IMAGE_CROP_SIZE = self.crop
        cfg.FT_EXTRACT.IMAGE_NORM.MEAN = list(self.mean)
        cfg.FT_EXTRACT.IMAGE_NORM.STD = list(self.std)


@dataclass(frozen=True)
class Unwrap:
    """How the state dict lies in the checkpoint file.

    Attributes:
        key: entry of the outer dict that holds the state dict; None for a bare state dict.
        prefix: kept and stripped: parameters without it belong to something else.
        drop: prefixes (after stripping) of the parameters that are not part of the backbone.
        allow: names of the classes the file may contain beside tensors, resolved by
            :mod:`cog.models.checkpoint`.
    """

    key: str | None = None
    prefix: str = ""
    drop: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    """One model of the benchmark, or of a user.

    Attributes:
        name: ``<model_title>_<architecture_name>``, split at the first underscore.
        label: label in the paper's tables.
        category: group in the paper's tables, one of ``CATEGORIES``.
        feature_dim: D of the (B, D) output.
        arch: ``"module:constructor"`` of the architecture, imported on use.
        arch_args: keyword arguments of the constructor.
        head: dotted name of the classifier, replaced by ``nn.Identity``.
        unwrap: layout of the checkpoint file.
        preprocess: input the weights expect.
        paper: title of the publication.
        prepare: script in ``prepare_models/`` that fetches the checkpoint.
        url: file of the published weights.
        sha256_prefix: first digits of that file's SHA-256.
        loader: ``"module:function"`` that builds the model when the row cannot say how; called
            like a user's ``load_my_model(init_args)``.
        note: what a reader of the table should know.

    Raises:
        CogError: when the name, category or width is not usable.
    """

    name: str
    label: str
    category: str
    feature_dim: int
    arch: str = ""
    arch_args: dict[str, Any] = field(default_factory=dict)
    head: str = "fc"
    unwrap: Unwrap = Unwrap()
    preprocess: Preprocess = Preprocess()
    paper: str = ""
    prepare: str = ""
    url: str = ""
    sha256_prefix: str = ""
    loader: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        split_model_name(self.name)
        if self.category not in CATEGORIES:
            raise CogError(f"model {self.name}: category {self.category!r}, expected {', '.join(CATEGORIES)}")
        if self.feature_dim < 1:
            raise CogError(f"model {self.name}: feature_dim {self.feature_dim}, expected 1 or more")
        if bool(self.arch) == bool(self.loader):
            raise CogError(f"model {self.name}: declare either arch or loader")
