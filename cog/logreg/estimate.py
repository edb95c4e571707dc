"""The numbers of rows and of floating-point operations in a run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cog.logreg.settings import RowCounts, Settings


def rows_of(counts: Sequence[int], settings: Settings, n_test: int) -> RowCounts:
    """Return the numbers of rows in a run with ``counts`` training images of each class, by the protocol's rules."""
    most = settings.n_shot or max(counts)
    final = sum(min(n, most) for n in counts)
    if not settings.n_trials:
        return RowCounts(0, 0, final, n_test)
    held_out = [max(int(n * settings.val_frac), 1) if n > 1 else 0 for n in counts]
    search = sum(min(n - val, most) for n, val in zip(counts, held_out, strict=True))
    return RowCounts(search, sum(held_out), final, n_test)


def estimate_flops(rows: RowCounts, settings: Settings, *, dim: int, n_classes: int) -> float:
    """Return the floating-point operations of a run's matrix products."""
    forward, step = _flops_per_row(settings, dim, n_classes)
    trained = settings.n_epochs * (settings.n_trials * rows.search_train + rows.final_train)
    return step * trained + forward * _n_scored(rows, settings)


def _n_scored(rows: RowCounts, settings: Settings) -> int:
    return settings.n_trials * rows.search_val + settings.n_epochs * rows.test


def _flops_per_row(settings: Settings, dim: int, n_classes: int) -> tuple[float, float]:
    """Return the floating-point operations for a row: of the logits alone, and of a step of training.

    A step multiplies by every weight for the logits and for the gradient of the weight, and in all layers but the first
    once more for the gradient of the layer's input.
    """
    layers = [2.0 * a * b for a, b in itertools.pairwise(settings.layer_sizes(dim, n_classes))]
    return sum(layers), 3 * sum(layers) - layers[0]
