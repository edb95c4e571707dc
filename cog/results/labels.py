"""Names of data sets, metrics and numbers of training images in tables, figures, messages and pages."""

from __future__ import annotations

from cog.data import datasets

METRIC_LABELS = {"top1": "top-1", "top5": "top-5"}


def dataset_label(dataset: str) -> str:
    """Return the paper's name of a data set: ``IN-1K``, ``L3``; the name of another data set is unchanged."""
    return "all levels" if dataset == "cog_levels" else datasets.label(dataset) or dataset


def shots_label(n_shot: int) -> str:
    """Return ``all training images`` or ``8 training images per class``."""
    if n_shot == 0:
        return "all training images"
    return f"{n_shot} training image{'s' if n_shot != 1 else ''} per class"


def shots_title(n_shot: int) -> str:
    """Return ``all images`` or ``N = 8``."""
    return f"N = {n_shot}" if n_shot else "all images"


def shots_column(n_shot: int) -> str:
    """Return ``all`` or ``N=8``."""
    return f"N={n_shot}" if n_shot else "all"


def counted(number: int, noun: str) -> str:
    """Return ``1 model`` or ``2 models``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
