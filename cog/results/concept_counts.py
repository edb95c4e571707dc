"""Right answers per concept, the basis of intervals over concepts, and their form in ``results.json``.

``final`` of a run has two entries beside its accuracies, by class index 0..C-1::

    "correct_per_class": "MC4w...",     number of correctly classified test images of each class (top-1)
    "images_per_class": 50              number of test images of each class; one number if equal for all

A list of numbers is written as Base64 (RFC 4648) of unsigned little-endian integers of 1, 2 or 4 bytes, the
smallest width that fits the largest number; it follows from the length and ``n_classes``.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Entries of ``final`` in ``results.json``.
CORRECT, IMAGES = "correct_per_class", "images_per_class"

_TYPECODES = {1: "B", 2: "H", 4: "I"}  # by bytes of a number, on all platforms of PyTorch

#: Accuracies computed in float32 may be off by rounding.
TOLERANCE_PERCENT = 1e-3


@dataclass(frozen=True, eq=False, slots=True)
class ConceptCounts:
    """Numbers of test images of one run, and of correctly classified ones, per concept."""

    correct: array[int]  # number of correctly classified test images by class index
    images: array[int] | int  # number of test images of each class; a single number if equal for all
    image_list: str | None = None  # SHA-256 for the test images; None when they are not known

    @property
    def images_of_each(self) -> Sequence[int]:
        """Number of test images of each class."""
        return [self.images] * len(self.correct) if isinstance(self.images, int) else self.images

    @property
    def n_images(self) -> int:
        """Number of test images of all concepts."""
        return sum(self.images_of_each)


def write(correct: Sequence[int], images: Sequence[int]) -> dict[str, Any]:
    """Return the entries of ``final`` for numbers of right answers and of test images of each class."""
    same = len(set(images)) == 1
    return {CORRECT: _encode(correct), IMAGES: int(images[0]) if same else _encode(images)}


def read(
    final: Mapping[str, Any], *, n_classes: int | None, top1: float, image_list: str | None = None
) -> ConceptCounts | None:
    """Return the counts of a run with accuracy ``top1`` (percent), or None for a run without counts.

    Raises:
        ValueError: when the counts have another form, or contradict each other or the accuracy.
    """
    if CORRECT not in final:
        return None
    correct = _decode(final[CORRECT], n_classes or 0)
    stated: Any = final.get(IMAGES)
    images: array[int] | int = stated if type(stated) is int else _decode(stated, n_classes or 0)
    if isinstance(images, int) and not 0 < images < 1 << 31:
        raise ValueError(f"{images} images per class")
    counts = ConceptCounts(correct, images, image_list)
    if not counts.n_images or not (np.asarray(correct) <= np.asarray(images)).all():
        raise ValueError(f"{CORRECT} has more right answers than there are images")
    share = 100 * int(np.asarray(correct).sum(dtype=np.int64)) / counts.n_images
    if not abs(share - top1) <= TOLERANCE_PERCENT:
        raise ValueError(f"{CORRECT} has {share:g} % right answers, the accuracy is {top1:g}")
    return counts


def _encode(values: Sequence[int]) -> str:
    width = next(width for width in _TYPECODES if max(values) < 1 << 8 * width)
    return base64.b64encode(b"".join(int(value).to_bytes(width, "little") for value in values)).decode()


def _decode(text: Any, n: int) -> array[int]:
    if not isinstance(text, str) or not 0 < n <= len(text):
        raise ValueError(f"no text with {n} numbers")
    content = base64.b64decode(text, validate=True)  # its error is a ValueError
    width, rest = divmod(len(content), n)
    if rest or width not in _TYPECODES:
        raise ValueError(f"{len(content)} bytes for {n} numbers")
    return array(_TYPECODES[width], content)
