"""The row of a model of the paper."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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


@dataclass(frozen=True)
class PaperModel:
    """A model of the benchmark: its network, the place of its weights in the authors' file, its input."""

    name: str  # <model_title>_<architecture_name>
    label: str  # in the paper's tables
    url: str  # of the authors' file, or of a web page if ``browser``
    network: str = "torchvision:resnet50"  # or of timm, or of cog: cog.models.networks
    dim: int = 2048  # D of the (B, D) output
    head: tuple[str, ...] = ("fc",)  # modules of the classifier, replaced by nn.Identity
    class_token: bool = False  # whether the network gives tokens, and the feature is the class token
    prefix: str = ""  # beginning of the names of the backbone's parameters, with entries that hold them
    drop: tuple[str, ...] = ()  # beginnings (after ``prefix``) of names of parameters beside the backbone
    rename: str = ""  # function of cog.models.renames
    size: int = 224  # side of the images, in pixels
    norm: tuple[RGB, RGB] | tuple[()] = ()  # mean and standard deviation of pixels in [0, 1]; ImageNet's
    top1: float | None = None  # IN-1K accuracy by the authors, in percent; None without a released classifier
    authors: tuple[int, int, str] = (256, 224, "bilinear")  # shortest side, crop, interpolation for ``top1``
    parts: tuple[str, ...] = ("",)  # suffixes of ``url`` and of model.ckpt for each file of the checkpoint
    member: str = ""  # name of the checkpoint inside a zip archive at ``url``
    browser: bool = False  # whether the link needs a browser
    pretraining: str = "IN-1K"  # data of the training, one of cog.constants.PRETRAINING

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
            resize, size, filter_ = self.authors
            values["model"] = replace(values["protocol"], size=size, resize=resize, interpolation=filter_)
        return values

    def is_published(self, digest: str) -> bool | None:
        """Return whether a checkpoint's SHA-256 is the declared one; None when none is declared."""
        return digest.startswith(self.sha256) if self.sha256 else None
