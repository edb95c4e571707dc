"""The row of a model of the paper."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cog.errors import CogError
from cog.paths import split_model_name

if TYPE_CHECKING:
    from cog.data.pixels import Preprocess

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

#: Groups of the paper's result tables (Table 1) by the first letters of labels, and a group that these tables
#: lack.
CATEGORIES = {
    "ResNet50": "reference",
    "a-": "architecture",
    "s-": "self-supervision",
    "r-": "regularization",
    "d-": "web-data",
    "": "other",
}

#: Kinds of pretraining data, from which it follows whether the concepts of the levels were unseen.
PRETRAINING = ("IN-1K", "IN-21K", "IN-1K + other", "web", "unknown")


@dataclass(frozen=True)
class PaperModel:
    """A model of the benchmark: its network, the place of its weights in the authors' file, its input.

    Attributes:
        name: ``<model_title>_<architecture_name>``, split at the first underscore.
        label: label in the paper's tables.
        paper: title of the publication that introduced the model.
        url: link to the authors' file, or to a web page if ``browser``.
        network: ``torchvision:NAME``, ``timm:NAME`` or ``cog:FUNCTION`` (of :mod:`cog.models.networks`); the
            default is torchvision's ResNet-50 (stride in the 3x3 convolutions), whose feature is the global
            average pool.
        dim: D of the (B, D) output.
        head: dotted names of the classifier's modules, replaced by ``nn.Identity``.
        class_token: whether the network gives tokens; the feature is the class token after the last
            normalization.
        key: entry of the file that holds the state dict, if none of :data:`cog.models.checkpoint.WRAPPERS`
            does.
        prefix: beginning of the names of the backbone's parameters in the file.
        drop: beginnings (without ``prefix``) of the names of parameters that are not part of the backbone.
        rename: name of a function of :mod:`cog.models.renames`.
        size: side of the images, in pixels.
        mean: per-channel (RGB) mean of pixels in [0, 1] that the weights expect.
        std: per-channel (RGB) standard deviation.
        top1: ImageNet-1K validation accuracy that the authors report, in percent; None for files without a
            classifier, and if no figure is known.
        authors: the authors' image protocol for that accuracy: shortest side, crop, interpolation.
        parts: suffix of ``url`` and of ``model.ckpt`` for each file of the checkpoint.
        member: file name of the checkpoint inside a zip archive at ``url``.
        browser: whether the link needs a browser.
        license: license of the weights or, failing that, of the repository that releases them; both licenses
            if they contradict each other; empty if neither is stated.
        comparable: whether the paper compares the model with ResNet-50 (similar size).
        note: remark for readers of the table.
        pretraining: data that the weights were trained on, one of ``PRETRAINING``.
    """

    name: str
    label: str
    paper: str
    url: str
    network: str = "torchvision:resnet50"
    dim: int = 2048
    head: tuple[str, ...] = ("fc",)
    class_token: bool = False
    key: str = ""
    prefix: str = ""
    drop: tuple[str, ...] = ()
    rename: str = ""
    size: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    top1: float | None = None
    authors: tuple[int, int, str] = (256, 224, "bilinear")
    parts: tuple[str, ...] = ("",)
    member: str = ""
    browser: bool = False
    license: str = ""
    comparable: bool = True
    note: str = ""
    pretraining: str = "IN-1K"

    def __post_init__(self) -> None:
        split_model_name(self.name)
        if self.pretraining not in PRETRAINING:
            raise CogError(
                f"model {self.name}: pretraining {self.pretraining!r}, expected {', '.join(PRETRAINING)}"
            )

    @property
    def sha256(self) -> str:
        """All or the first digits of the file's SHA-256; empty when the link does not have them."""
        digits = re.search(r"-([0-9a-f]{8})\.pth$|/([0-9a-f]{64})/", self.url)
        return "" if digits is None else digits[1] or digits[2]

    @property
    def category(self) -> str:
        """Group in the paper's tables."""
        return next(group for start, group in CATEGORIES.items() if self.label.startswith(start))

    @property
    def declared(self) -> dict[str, Preprocess]:
        """Preprocessing by value of ``FT_EXTRACT.PREPROCESS``; "model" where the authors' is known."""
        from cog.data.pixels import Preprocess  # imports Pillow, which tables of results do without

        values = {"protocol": Preprocess(self.size, self.size, self.mean, self.std)}
        if self.top1 is not None:
            resize, size, interpolation = self.authors
            values["model"] = Preprocess(size, resize, self.mean, self.std, interpolation)
        return values

    def is_published(self, digest: str) -> bool | None:
        """Return whether a checkpoint's SHA-256 is the declared one; None when none is declared."""
        return digest.startswith(self.sha256) if self.sha256 else None
