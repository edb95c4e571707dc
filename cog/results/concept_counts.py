"""Right answers per concept, the basis of intervals over concepts, and their form in ``results.json``.

``final`` of a run has two entries beside its accuracies, by class index 0..C-1::

    "correct_per_class": "MC4w...",     number of correctly classified test images of each class (top-1)
    "images_per_class": 50              number of test images of each class; one number if equal for all

A list of numbers is written as Base64 (RFC 4648) of unsigned little-endian integers of 1, 2 or 4 bytes, the
smallest width that fits the largest number: 1,000 classes take 1.3 kB on one line. A reader derives the width
from the length and the number of integers, ``n_classes``.

>>> write([48, 50, 0], [50, 50, 50])
{'correct_per_class': 'MDIA', 'images_per_class': 50}
>>> counts = read({"correct_per_class": "MDIA", "images_per_class": 50}, n_classes=3, top1=100 * 98 / 150)
>>> counts.correct.tolist(), counts.n_images
([48, 50, 0], 150)
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Entries of ``final`` in ``results.json``.
CORRECT, IMAGES = "correct_per_class", "images_per_class"

# Typecodes by bytes of a number; the sizes depend on the platform, but are the same on all platforms of
# PyTorch.
_TYPECODES = {1: "B", 2: "H", 4: "I"}
_MOST_IMAGES = 1 << 31

#: Accuracies computed in float32 may be off by rounding.
TOLERANCE_PERCENT = 1e-3


@dataclass(frozen=True, eq=False, slots=True)
class ConceptCounts:
    """Numbers of test images of one run, and of correctly classified ones, per concept."""

    correct: array[int]  # number of correctly classified test images by class index
    #: Number of test images of each class; a single number if equal for all classes.
    images: array[int] | int
    image_list: str | None = None  # SHA-256 of the list of test images; None when it is not known

    @property
    def images_of_each(self) -> Sequence[int]:
        """Number of test images of each class."""
        return [self.images] * len(self.correct) if isinstance(self.images, int) else self.images

    @property
    def n_images(self) -> int:
        """Number of test images of all concepts."""
        return self.images * len(self.correct) if isinstance(self.images, int) else sum(self.images)


def write(correct: Sequence[int], images: Sequence[int]) -> dict[str, Any]:
    """Return the entries of ``final``.

    Args:
        correct: number of correctly classified test images of each class.
        images: number of test images of each class.
    """
    same = len(set(images)) == 1
    return {CORRECT: _encode(correct), IMAGES: int(images[0]) if same else _encode(images)}


def read(
    final: Mapping[str, Any], *, n_classes: int | None, top1: float, image_list: str | None = None
) -> ConceptCounts | None:
    """Return the counts of a run, or None for a run without counts.

    Args:
        final: entry ``final`` of ``results.json``.
        n_classes: number of classes.
        top1: accuracy of the run, in percent.
        image_list: SHA-256 of the list of test images; None when it is not known.

    Raises:
        ValueError: when the counts have another form, or contradict each other or the accuracy.
    """
    if CORRECT not in final:
        return None
    if n_classes is None:
        raise ValueError(f"{CORRECT} without n_classes")
    correct = _decode(final[CORRECT], n_classes)
    stated: Any = final.get(IMAGES)
    images: array[int] | int = stated if type(stated) is int else _decode(stated, n_classes)
    if isinstance(images, int) and not 0 < images < _MOST_IMAGES:
        raise ValueError(f"{images} images per class")
    counts = ConceptCounts(correct, images, image_list)
    n, answers = counts.n_images, np.asarray(correct)
    fits = (answers <= np.asarray(images)).all()
    if not n or not fits:
        raise ValueError(f"{CORRECT} has more right answers than there are images")
    share = 100 * int(np.add.reduce(answers, dtype=np.int64)) / n
    if abs(share - top1) > TOLERANCE_PERCENT:
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
    values = array(_TYPECODES[width], content)
    if sys.byteorder == "big":
        values.byteswap()
    return values
