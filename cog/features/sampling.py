"""Labels and rows of classifiers: consecutive labels, validation split, few-shot draw, cap per class."""

import logging

import numpy as np
import torch

from cog.errors import CogError, some
from cog.runtime import seeds

logger = logging.getLogger(__name__)


def to_consecutive_labels(
    train_y: torch.Tensor, test_y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Map training labels ``(n,)`` and test labels ``(m,)`` to 0..C-1; also return the C labels."""
    labels, tested = torch.unique(train_y), torch.unique(test_y)
    untrained = [str(label) for label in tested[~torch.isin(tested, labels)].tolist()]
    if untrained:
        text = "have no training features; extract both splits of the same data set"
        raise CogError(f"test labels {some(untrained, 5)} {text}")
    if len(labels) < 2:
        raise CogError(f"all training features have label {int(labels[0])}; a classifier needs two classes")
    if n_untested := len(labels) - len(tested):
        logger.warning("%d of %d classes have no test features", n_untested, len(labels))
    if labels[0] != 0 or labels[-1] != len(labels) - 1:
        logger.warning("labels are not 0..%d; they are renumbered in ascending order", len(labels) - 1)
    train_y, test_y = (torch.searchsorted(labels, y.contiguous()) for y in (train_y, test_y))
    return train_y, test_y, labels.tolist()


def split_train_val(
    y: torch.Tensor, *, val_frac: float, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hold out ``int(n * val_frac)`` random rows of each class for hyper-parameters (paper Sec. 4.1).

    At least one of two or more: the original code lost classes of fewer than ``1 / val_frac`` images.
    """
    train, val = [], []
    for rows in _rows_by_class(y):
        n_val = max(int(len(rows) * val_frac), 1) if len(rows) > 1 else 0
        first, second = np.split(rng.permutation(rows), [len(rows) - n_val])
        train.append(first)
        val.append(second)
    if not any(map(len, val)):
        text = "set CLF.N_TRIALS 0 with one value in each of CLF.LR_INTV and CLF.WD_INTV"
        raise CogError(f"every class has a single training image: none can be held out to tune with; {text}")
    return torch.from_numpy(np.concatenate(train)), torch.from_numpy(np.concatenate(val))


def draw_few_shot(
    y: torch.Tensor, rows: torch.Tensor, *, n_shot: int, rng: np.random.Generator
) -> tuple[torch.Tensor, int]:
    """Draw ``n_shot`` of ``rows`` per class (paper Sec. 4.2.2); also return how many classes had fewer."""
    classes = _rows_by_class(y[rows])
    drawn = np.concatenate([rng.permutation(places)[:n_shot] for places in classes])
    return rows[torch.from_numpy(drawn)], sum(len(places) < n_shot for places in classes)


def cap_per_class(y: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
    """Choose at most ``n`` random rows of each class of the labels ``y``; seeds are alike (supplement B.1).

    Each class has an order of its own: a smaller cap is a subset, and a missing image changes its class only.
    Also returns the number of classes that have fewer.
    """
    classes = _rows_by_class(y)
    orders = [seeds.numpy_rng(number, "cap").permutation(rows) for number, rows in enumerate(classes)]
    chosen = np.sort(np.concatenate([order[:n] for order in orders]))
    return torch.from_numpy(chosen), sum(len(rows) < n for rows in classes)


def _rows_by_class(y: torch.Tensor) -> list[np.ndarray]:
    labels = y.numpy()
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
