"""Starting centers of k-means: greedy k-means++, on all rows or on the candidates of k-means||.

k-means++ draws centers one after the other with probability proportional to the squared distance to the earlier centers
(Arthur and Vassilvitskii 2007); the greedy form takes the best of ``2 + ln k`` draws each time, as scikit-learn does.
It needs k passes over the rows, which take hours at full size (1.1 M x 2048, k = 1000). For such sizes, k-means||
(Bahmani et al. 2012; also the start in cuML, the library of the paper's first version) draws about k candidates in each
of a few passes. Greedy k-means++ then chooses among the candidates, weighted by the number of rows nearest to each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from cog.analysis.rows import BLOCK, FeatureRows

#: Largest product of rows, centers and dimensions for which k-means++ uses all rows (seconds on a CPU core).
DIRECT_WORK = 1e10

#: Largest number of values for which k-means++ uses all rows, because it copies them: 256 MB.
_COPY_VALUES = 1 << 26

#: Number of passes of k-means||.
ROUNDS = 4

#: Number of iterations of Lloyd's algorithm on the weighted candidates.
_POLISHING = 10

#: Number of candidates that are compared with a block of rows at a time.
_COLUMNS = 2048


def initial_centers(
    rows: FeatureRows, k: int, rng: np.random.Generator, *, on_block: Callable[[], None] = lambda: None
) -> torch.Tensor:
    """Draw starting centers.

    Args:
        rows: rows to cluster, at least ``k``.
        k: number of centers.
        rng: random generator of all draws.
        on_block: called after every block of rows of a long pass; may raise to end the pass.

    Returns:
        Centers, float32 ``(k, d)`` on the device of the rows. With fewer than k different rows some are equal.
    """
    if _direct(rows, k):
        x = rows.slice(0, rows.n)
        weights = torch.ones(rows.n, dtype=torch.float64, device=rows.device)
        return x[_greedy(x, rows.squares, weights, k, rng)]
    candidates, weights = _oversample(rows, k, rng, on_block)
    x = rows.take(candidates)
    chosen = _greedy(x, x.square().sum(dim=1), weights, k, rng)
    return _polish(x, weights, x[chosen])


def n_blocks(rows: FeatureRows, k: int) -> int:
    """Return the largest number of calls of ``on_block`` in :func:`initial_centers`."""
    return 0 if _direct(rows, k) else (ROUNDS + 1) * -(-rows.n // BLOCK)


def _direct(rows: FeatureRows, k: int) -> bool:
    """Return whether greedy k-means++ uses all rows."""
    work = float(rows.n) * k * rows.dim
    few = rows.n <= 2 * ROUNDS * _per_round(k)
    return few or (work <= DIRECT_WORK and rows.n * rows.dim <= _COPY_VALUES)


def _per_round(k: int) -> int:
    """Return the expected number of candidates that a pass of k-means|| draws."""
    return max(k, 100)


def _greedy(
    x: torch.Tensor, squares: torch.Tensor, weights: torch.Tensor, k: int, rng: np.random.Generator
) -> torch.Tensor:
    """Return the row numbers of ``k`` centers, chosen by greedy k-means++ with weights (float64)."""
    trials = 2 + int(math.log(k))
    first = _draw(weights, rng.random(1))
    chosen = [int(first[0])]
    nearest = _distances(x, squares, first)[:, 0]
    for _ in range(1, k):
        drawn = _draw(nearest * weights, rng.random(trials))
        closer = torch.minimum(nearest[:, None], _distances(x, squares, drawn))
        best = int((weights @ closer.double()).argmin())
        nearest = closer[:, best]
        chosen.append(int(drawn[best]))
    return torch.tensor(chosen, device=x.device)


def _draw(odds: torch.Tensor, uniform: np.ndarray) -> torch.Tensor:
    """Draw indices with probabilities proportional to ``odds`` (float64)."""
    cumulative = odds.cpu().cumsum(0)  # on a GPU, the order of cumulative sums is not fixed
    points = torch.from_numpy(uniform) * cumulative[-1]
    drawn = torch.searchsorted(cumulative, points, right=True).clamp_(max=len(cumulative) - 1)
    return drawn.to(odds.device)


def _distances(x: torch.Tensor, squares: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return squared distances ``(n, m)`` of all rows to the rows ``columns``."""
    distances = torch.addmm(squares[columns], x, x[columns].T, alpha=-2.0)
    distances.add_(squares[:, None]).clamp_(min=0.0)
    # Exact, because with rounding errors a row could be drawn again.
    distances[columns, torch.arange(len(columns), device=x.device)] = 0.0
    return distances


def _oversample(
    rows: FeatureRows, k: int, rng: np.random.Generator, on_block: Callable[[], None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the candidates of k-means|| (row numbers, ascending within a pass) and the number of rows nearest each."""
    new = torch.from_numpy(rng.integers(rows.n, size=1)).to(rows.device)
    candidates = new
    nearest = torch.full((rows.n,), torch.inf, device=rows.device)
    owner = torch.zeros(rows.n, dtype=torch.int64, device=rows.device)
    for round_ in range(ROUNDS + 1):
        _compare(rows, new, len(candidates) - len(new), nearest, owner, on_block)
        nearest[candidates] = 0.0
        if round_ == ROUNDS:
            break
        total = float(nearest.double().sum())
        odds = nearest.double().cpu() * (_per_round(k) / max(total, 1e-300))
        new = (torch.from_numpy(rng.random(rows.n)) < odds).nonzero().squeeze(1).to(rows.device)
        candidates = torch.cat([candidates, new])
        if not len(new):
            break
    weights = torch.bincount(owner.cpu(), minlength=len(candidates)).double()
    if len(candidates) < k:  # with fewer than k different rows, any other rows complete the number
        others = torch.ones(rows.n, dtype=torch.bool)
        others[candidates.cpu()] = False
        fill = others.nonzero().squeeze(1)[: k - len(candidates)]
        candidates = torch.cat([candidates, fill.to(rows.device)])
        weights = torch.cat([weights, torch.ones(len(fill), dtype=torch.float64)])
    return candidates, weights.to(rows.device)


def _compare(
    rows: FeatureRows,
    new: torch.Tensor,
    offset: int,
    nearest: torch.Tensor,
    owner: torch.Tensor,
    on_block: Callable[[], None],
) -> None:
    """Update the squared distance and the number of the nearest candidate of every row in place."""
    x_new = rows.take(new)
    squares = x_new.square().sum(dim=1)
    for start, x in rows.blocks():
        stop = start + len(x)
        for left in range(0, len(new), _COLUMNS):
            part = slice(left, left + _COLUMNS)
            distances, index = torch.addmm(squares[part], x, x_new[part].T, alpha=-2.0).min(dim=1)
            distances.add_(rows.squares[start:stop]).clamp_(min=0.0)
            closer = distances < nearest[start:stop]
            nearest[start:stop][closer] = distances[closer]
            owner[start:stop][closer] = index[closer] + (offset + left)
        on_block()


def _polish(x: torch.Tensor, weights: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
    """Improve centers by weighted Lloyd iterations on the candidates; a center without candidates does not move."""
    k = len(centers)
    onehot_rows = torch.arange(len(x), device=x.device)
    for _ in range(_POLISHING):
        scores = torch.addmm(centers.square().sum(dim=1), x, centers.T, alpha=-2.0)
        onehot = torch.zeros(len(x), k, device=x.device)
        onehot[onehot_rows, scores.argmin(dim=1)] = weights.float()
        mass = onehot.sum(dim=0)
        means = (onehot.T @ x) / mass.clamp(min=1.0)[:, None]
        centers = torch.where(mass[:, None] > 0, means, centers)
    return centers
