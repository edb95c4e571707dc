"""The row of a model of the paper."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cog.errors import CogError
from cog.paths import split_model_name

if TYPE_CHECKING:
    from cog.data.pixels import RGB, Preprocess

#: Groups of the paper's result tables (Table 1) by the first letters of labels, and a group that they lack.
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
        name: ``<model_title>_<architecture_name>``.
        label: label in the paper's tables.
        url: link to the authors' file, or to a web page if ``browser``.
        network: ``torchvision:NAME``, ``timm:NAME`` or ``cog:FUNCTION`` (of :mod:`cog.models.networks`); the
            default has its stride in the 3x3 convolutions, and its feature is the global average pool.
        dim: D of the (B, D) output.
        head: names of the classifier's modules, replaced by ``nn.Identity``.
        class_token: whether the network gives tokens, and the feature is the class token.
        prefix: beginning of the names of the backbone's parameters in the file, with entries that hold them
            and are not among :data:`cog.models.checkpoint._HOLDERS`.
        drop: beginnings (after ``prefix``) of the names of parameters beside the backbone.
        rename: name of a function of :mod:`cog.models.renames`.
        size: side of the images, in pixels.
        norm: mean and standard deviation (RGB) of pixels in [0, 1]; empty: ImageNet's.
        top1: ImageNet-1K accuracy that the authors report, in percent; None without a released classifier.
        authors: the authors' image protocol for that accuracy: shortest side, crop, interpolation.
        parts: suffix of ``url`` and of ``model.ckpt`` for each file of the checkpoint.
        member: name of the checkpoint inside a zip archive at ``url``.
        browser: whether the link needs a browser.
        pretraining: data that the weights were trained on, one of ``PRETRAINING``.
    """

    name: str
    label: str
    url: str
    network: str = "torchvision:resnet50"
    dim: int = 2048
    head: tuple[str, ...] = ("fc",)
    class_token: bool = False
    prefix: str = ""
    drop: tuple[str, ...] = ()
    rename: str = ""
    size: int = 224
    norm: tuple[RGB, RGB] | tuple[()] = ()
    top1: float | None = None
    authors: tuple[int, int, str] = (256, 224, "bilinear")
    parts: tuple[str, ...] = ("",)
    member: str = ""
    browser: bool = False
    pretraining: str = "IN-1K"

    def __post_init__(self) -> None:
        split_model_name(self.name)
        if self.pretraining not in PRETRAINING:
            raise CogError(
                f"{self.name}: pretraining {self.pretraining!r}, expected {', '.join(PRETRAINING)}"
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

        values = {"protocol": Preprocess(self.size, self.size, *self.norm)}
        if self.top1 is not None:
            resize, size, interpolation = self.authors
            values["model"] = Preprocess(size, resize, *self.norm, interpolation=interpolation)
        return values

    def is_published(self, digest: str) -> bool | None:
        """Return whether a checkpoint's SHA-256 is the declared one; None when none is declared."""
        return digest.startswith(self.sha256) if self.sha256 else None
