"""The analyses that need nothing but the features of a data set: what ``analyze_features.py --analysis all`` does."""

from __future__ import annotations

from cog.analysis.job import Request, Task
from cog.errors import CogError


_BOTH = ("train", "test")


def plan_kmeans(request: Request) -> list[Task]:
    """k-means on the training features, compared with the classes of the test images.

    Raises:
        CogError: missing features, or scikit-learn is not installed.
    """
    raise CogError("kmeans is not there yet")


def plan_alignment(request: Request) -> list[Task]:
    """Alignment and uniformity of the test features."""
    raise CogError("alignment is not there yet")


def plan_knn(request: Request) -> list[Task]:
    """k-nearest-neighbour classifiers."""
    raise CogError("knn is not there yet")


def plan_ncm(request: Request) -> list[Task]:
    """Nearest-class-mean classifiers."""
    raise CogError("ncm is not there yet")
