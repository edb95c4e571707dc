"""Is a result on the benchmark's data? Decided by numbers of classes and images, and for IN-1K by the list of classes.

Equal numbers do not prove equal images; other numbers, or another list of classes, prove that the images differ.
"""

from __future__ import annotations

import functools

from cog import constants
from cog.data.wnids import IN1K_LIST, class_list_digest
from cog.results.frame import BENCHMARK, UNKNOWN

# Classes, training and test images (ILSVRC-2012; paper Sec. 3.2, 4.1, A.1): 50 test and 732 to 1300 training images per
# concept of a level.
_N_CLASSES, _N_TEST = 1000, 50_000
_N_TRAIN_IN1K = (1_281_167, 1_281_167)
_N_TRAIN_LEVEL = (732_000, 1_300_000)

# A few unreadable images do not make another data set.
_NEARLY = 0.002


@functools.cache
def in1k_class_list() -> str:
    """Return the digest of the 1000 classes of IN-1K (:func:`cog.data.wnids.class_list_digest`)."""
    return class_list_digest(IN1K_LIST.read_text(encoding="utf-8").split())


def data_of(
    dataset: str,
    *,
    n_classes: int | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
    classes: str | None = None,
) -> str:
    """Return the column ``data`` of a result (:mod:`cog.results.frame`).

    Args:
        dataset: name of the data set; one without published numbers has its counts in the column.
        n_classes: number of classes; None: not recorded, as the others.
        n_train: number of training images of all classes together.
        n_test: number of test images.
        classes: digest of the list of classes.

    >>> data_of("in1k", n_classes=1000, n_train=1281167, n_test=50000)
    'benchmark'
    >>> data_of("cog_l1", n_classes=24, n_test=1200)
    '24 classes, 1,200 test images'
    """
    is_named = dataset in constants.DATASETS
    low, high = _N_TRAIN_IN1K if dataset == constants.IN1K else _N_TRAIN_LEVEL
    expected = {
        "classes": (n_classes, _N_CLASSES, _N_CLASSES),
        "training images": (n_train, low * (1 - _NEARLY), high * (1 + _NEARLY)),
        "test images": (n_test, _N_TEST * (1 - _NEARLY), _N_TEST * (1 + _NEARLY)),
    }
    other = [
        f"{count:,} {noun}"
        for noun, (count, least, most) in expected.items()
        if count is not None and not (is_named and least <= count <= most)
    ]
    if not other and dataset == constants.IN1K and classes not in (None, in1k_class_list()):
        other = [f"list of classes {str(classes)[:8]}"]
    return ", ".join(other) or (UNKNOWN if n_classes is None else BENCHMARK)
