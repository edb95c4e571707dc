"""Right answers per concept: what intervals over concepts are computed from, and their form in ``results.json``.

``final`` of a run has two entries beside its accuracies, by class index 0..C-1::

    "correct_per_class": "MC4w...",     test images of each class that are classified rightly (top-1)
    "images_per_class": 50              test images of each class; one number where all classes have as many

A list of numbers is written as Base64 (RFC 4648) of unsigned little-endian integers of 1, 2 or 4 bytes, the least
that the largest number needs: 1,000 classes take 1.3 kB on one line. Their width follows from their number,
``n_classes``.

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

# Typecodes by bytes of a number; array's sizes are the platform's, and the same on all that torch runs on.
_TYPECODES = {1: "B", 2: "H", 4: "I"}
_MOST_IMAGES = 1 << 31

#: Accuracies computed in float32 may be off by rounding.
TOLERANCE_PERCENT = 1e-3


@dataclass(frozen=True, eq=False, slots=True)
class ConceptCounts:
    """Test images of one run, concept by concept.

    Attributes:
        correct: classified rightly, by class index.
        images: of each class; one number where all classes have as many.
        image_list: SHA-256 of the list of test images; None where it is not known.
        right: whether each image is classified rightly, in the order of the classes, uint8 ``(ceil(N / 8),)`` of
            packed bits; None unless it was asked for (:func:`cog.results.saved_predictions.with_counts`).
    """

    correct: array[int]
    images: array[int] | int
    image_list: str | None = None
    right: np.ndarray | None = None

    @property
    def images_of_each(self) -> Sequence[int]:
        """Test images of each class."""
        return [self.images] * len(self.correct) if isinstance(self.images, int) else self.images

    @property
    def n_images(self) -> int:
        """Test images of all concepts."""
        return self.images * len(self.correct) if isinstance(self.images, int) else sum(self.images)


def write(correct: Sequence[int], images: Sequence[int]) -> dict[str, Any]:
    """Return the entries of ``final``.

    Args:
        correct: test images of each class that are classified rightly.
        images: test images of each class.
    """
    same = len(set(images)) == 1
    return {CORRECT: _encode(correct), IMAGES: int(images[0]) if same else _encode(images)}


def read(
    final: Mapping[str, Any], *, n_classes: int | None, top1: float, image_list: str | None = None
) -> ConceptCounts | None:
    """Return the counts of a run, or None where it has none (runs of earlier versions).

    Args:
        final: entry of ``results.json``.
        n_classes: number of classes.
        top1: accuracy of the run, in percent.
        image_list: SHA-256 of the list of test images, where it is known.

    Raises:
        ValueError: counts of another form, or that contradict themselves or the accuracy.
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
    # Of hundreds of thousands of runs: without comparing each number, where the largest will do.
    fits = answers.max() <= images if isinstance(images, int) else (answers <= np.asarray(images)).all()
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
