"""Right answers per concept from saved predictions, for runs whose ``results.json`` does not have them.

Runs of earlier versions and of the original toolkit have ``preds.pkl``, the class predicted for each test image. The
features, whose labels it could be compared with, may be gone, take seconds to open, and are not needed: rows are sorted
by class, and test sets have as many images of every class (50), so that image i is of class ``i // 50``. The accuracy
that the run has logged tells whether this is so: were the labels other ones, it would be another.
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
from cog.results.run_records import Run, image_list_of_test
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


def with_counts(runs: Iterable[Run]) -> list[Run]:
    """Return runs, with right answers per concept where these can be told from saved predictions."""
    return [dataclasses.replace(run, concepts=_counts(run)) if run.concepts is None else run for run in runs]


def _counts(run: Run) -> ConceptCounts | None:
    """Return the right answers of a run; None without predictions that make its accuracy."""
    n_classes = run.details.n_classes
    if n_classes is None and run.dataset in constants.DATASETS:
        n_classes = official.N_CLASSES
    try:
        predicted = read(run.path / run.final_folder / PREDICTIONS_FILE)
    except CogError:
        return None
    if not n_classes or len(predicted) % n_classes:
        return None
    n_images = len(predicted) // n_classes
    right = (predicted.reshape(n_classes, n_images) == np.arange(n_classes)[:, None]).sum(axis=1)
    if abs(100 * right.sum() / len(predicted) - run.top1) > TOLERANCE_PERCENT:
        return None
    return ConceptCounts(array("I", right.tolist()), n_images, image_list_of_test(run.details))
