"""Right answers from saved predictions: per concept, for runs that do not record them; image by image for all.

Every run has ``preds.pkl``, the class predicted for each test image; those of earlier versions and of the original
toolkit have no counts beside. The features, whose labels it could be compared with, may be gone, take seconds to open,
and are not needed: rows are sorted by class, and test sets have as many images of every class (50), or recorded counts
say how many. The counts or the accuracy that the run has logged tell whether this is so: were the labels other ones,
they would be others.
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
    """Return the classes predicted for the test images after the last epoch, int64 ``(n,)``; -1: none.

    Raises:
        CogError: no such file, one that cannot be read safely, or of another form.
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
    """Return runs, with right answers per concept where these can be told from saved predictions.

    Args:
        runs: any; recorded answers stay as they are.
        by_image: whether the answers image by image are read as well, of all runs.
    """
    return [
        dataclasses.replace(run, concepts=_counts(run, by_image=by_image))
        if by_image or run.concepts is None
        else run
        for run in runs
    ]


def _counts(run: Run, *, by_image: bool) -> ConceptCounts | None:
    """Return the right answers of a run; those recorded, if any, without predictions that make them."""
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
