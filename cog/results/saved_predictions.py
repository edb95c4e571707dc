"""Right answers from saved predictions: per concept for runs that do not record them, and image by image for all runs.

Every run has ``preds.pkl``, the predicted class of each test image; runs of earlier versions and of the original
toolkit have no counts per concept. The labels are derived without the features, which may be deleted and take seconds
to open: test images are sorted by class, and each class has the recorded number of images, or the same number as all
others (50). The recorded counts, or the logged accuracy, confirm the labels: wrong labels would lead to other values.
"""

from __future__ import annotations

import dataclasses
import os
from array import array
from collections.abc import Iterable

import numpy as np

from cog import constants
from cog.errors import CogError
from cog.results import official
from cog.results.concept_counts import TOLERANCE_PERCENT, ConceptCounts
from cog.results.run_details import image_list_of_test
from cog.results.run_records import Run
from cog.runtime import safe_load

PREDICTIONS_FILE = "preds.pkl"


def read(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the predicted classes of the test images after the last epoch, int64 ``(n,)``; -1 for no prediction.

    Raises:
        CogError: when the file is missing, cannot be read safely, or has another form.
    """
    content = safe_load.load_pickle(path)
    last = content[-1] if isinstance(content, list | tuple) and len(content) else content
    try:
        classes = np.asarray(last)
    except (TypeError, ValueError):
        classes = np.empty(0)
    if classes.ndim != 1 or not len(classes) or classes.dtype.kind not in "iu":
        raise CogError(f"{path} holds no list of predicted classes; run logreg.py again (--overwrite)")
    return classes.astype(np.int64)


def with_counts(runs: Iterable[Run], *, by_image: bool = False) -> list[Run]:
    """Return runs, with right answers per concept if these can be computed from saved predictions.

    Args:
        runs: runs; recorded answers per concept stay unchanged.
        by_image: whether to add the answers image by image to all runs.
    """
    return [
        dataclasses.replace(run, concepts=_counts(run, by_image=by_image))
        if by_image or run.concepts is None
        else run
        for run in runs
    ]


def _counts(run: Run, *, by_image: bool) -> ConceptCounts | None:
    """Return the right answers of a run; the recorded ones, if any, when its predictions are missing or disagree."""
    known = run.concepts
    n_classes = run.details.n_classes
    if n_classes is None and run.dataset in constants.DATASETS:
        n_classes = official.N_CLASSES
    try:
        predicted = read(run.path / run.final_folder / PREDICTIONS_FILE)
    except CogError:
        return known
    n_images = len(predicted) if known is None else known.n_images
    if not n_classes or n_images != len(predicted) or (known is None and n_images % n_classes):
        return known
    of_each = n_images // n_classes if known is None else known.images
    labels = np.repeat(np.arange(n_classes), of_each)
    right = predicted == labels
    correct = np.bincount(labels[right], minlength=n_classes)
    if known is None:
        if abs(100 * correct.sum() / len(predicted) - run.top1) > TOLERANCE_PERCENT:
            return None
        known = ConceptCounts(array("I", correct.tolist()), of_each, image_list_of_test(run.details))
    elif not np.array_equal(correct, known.correct):
        return known
    return dataclasses.replace(known, right=np.packbits(right)) if by_image else known
