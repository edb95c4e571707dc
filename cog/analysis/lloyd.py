"""k-means by Lloyd's algorithm on all rows, with the clusters of float64 arithmetic and about the time of float32.

Iterations, tolerance and treatment of empty clusters are those of scikit-learn's ``KMeans``. Rows for which rounding
could decide are compared in float64. A row is not compared while the upper bound of the distance to its own center is
at most the lower bound of the distance to all others (Hamerly 2010); the movements of the centers loosen these bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from cog.analysis import seeding
from cog.analysis.rows import SMALL_BLOCK, FeatureRows
from cog.runtime import signals
from cog.runtime.progress import Progress
from cog.runtime.state_file import StateFile

#: Numbers of rows that are compared with all centers at a time, on a CPU and on a GPU.
BLOCK, _GPU_BLOCK = 4096, 65536

#: Relative rounding errors: of a float32 squared distance, in units of the squared norms behind it; of a sum of bounds.
_SQUARE_SLACK, _SUM_SLACK = 1e-6, 3e-7

#: In float64, relative to squared norms: centers whose distances from a row differ by less than the first are equally
#: near (otherwise rows could alternate between them); rows closer to their center than the second lie on the center
#: (starting centers are rows rounded to float32).
_TIE, _COINCIDENT = 1e-12, 1e-13


@dataclass(frozen=True)
class Clustering:
    """A result of k-means; tensors are on the device of the rows."""

    centers: torch.Tensor  # float32 (k, d)
    labels: torch.Tensor  # int64 (n,): cluster of each row
    inertia: float  # sum of the squared distances of the rows to their centers
    iterations: int
    ended_by: str  # "convergence" (no row moved), "tolerance" or "limit"
    computed_frac: float  # number of computed distances, relative to that of the algorithm without bounds
    n_empty: int  # number of clusters without rows (only with fewer than k different rows)


def fit(
    rows: FeatureRows,
    k: int,
    *,
    seed: int,
    max_iterations: int = 300,
    tolerance: float = 1e-4,
    centers: torch.Tensor | None = None,
    store: StateFile | None = None,
    label: str = "k-means",
) -> Clustering:
    """Cluster rows ``(n, d)``.

    Args:
        rows: features to cluster, at least ``k``.
        k: number of clusters.
        seed: seed of the starting centers, which alone are random.
        max_iterations: largest number of iterations.
        tolerance: threshold of the sum of the squared movements of the centers, as a share of the mean variance of the
            features; below it the iterations end (scikit-learn's ``tol``).
        centers: starting centers, float32 ``(k, d)``; default: :func:`cog.analysis.seeding.initial_centers`.
        store: storage of the state, from which interrupted work continues with the same result bit by bit.
        label: prefix of log lines.

    Raises:
        Interrupted: a signal was received.
    """
    lloyd = _Lloyd.continued(store.load() if store else None, rows.device)
    if lloyd is None:
        if centers is None:
            centers = _starting_centers(rows, k, seed, label)
        else:
            centers = rows.shifted(centers.to(rows.device, torch.float64))
        lloyd = _Lloyd.start(centers.double(), rows.n)
    # The rows are centered, so the mean of their squares is the variance.
    threshold = tolerance * float(rows.squares.double().sum()) / (rows.n * rows.dim)
    n_saved, ended_by = lloyd.iterations, "limit"
    progress = Progress(None, label, unit="iterations", bar=False)

    def on_block() -> None:
        signals.check(f"{n_saved} iterations of {label} are saved")

    while ended_by == "limit" and lloyd.iterations < max_iterations:
        if store and store.due():
            store.save(_to(vars(lloyd), torch.device("cpu")))
            n_saved = lloyd.iterations
        n_moved, movement = lloyd.iterate(rows, on_block)
        progress.update()
        if n_moved == 0 or movement <= threshold:
            ended_by = "convergence" if n_moved == 0 else "tolerance"
    if ended_by != "convergence":
        lloyd.assign(rows, on_block)  # assign the rows to the final centers, as scikit-learn does
    centers = lloyd.means.float()
    return Clustering(
        centers=centers if rows.shift is None else centers + rows.shift,
        labels=lloyd.labels,
        inertia=float(lloyd.own_distances(rows).sum()),
        iterations=lloyd.iterations,
        ended_by=ended_by,
        computed_frac=lloyd.computed / (lloyd.passes * rows.n * k),
        n_empty=int((lloyd.counts == 0).sum()),
    )


def _starting_centers(rows: FeatureRows, k: int, seed: int, label: str) -> torch.Tensor:
    total = seeding.n_blocks(rows, k)
    with Progress(total, f"{label}: starting centers", unit="blocks of rows", bar=total > 0) as progress:

        def on_block() -> None:
            progress.update()
            signals.check(f"nothing of {label} is saved yet")

        return seeding.initial_centers(rows, k, np.random.default_rng(seed), on_block=on_block)


@dataclass
class _Lloyd:
    """The state between two iterations, in the coordinates of centered rows."""

    means: torch.Tensor  # float64 (k, d): the centers
    sums: torch.Tensor  # float64 (k, d): sum of the rows of each cluster
    counts: torch.Tensor  # int64 (k,): rows of each cluster
    labels: torch.Tensor  # int64 (n,): cluster of each row, -1 at the start
    upper: torch.Tensor  # float32 (n,): upper bound of the distance to the own center, before drift
    lower: torch.Tensor  # float32 (n,): lower bound of the distance to any other center, before drift
    drift: torch.Tensor  # float32 (k,): distance that each center moved since the bounds were computed
    iterations: int = 0
    computed: int = 0  # number of computed distances
    passes: int = 0  # number of assignments of all rows

    @classmethod
    def start(cls, means: torch.Tensor, n: int) -> _Lloyd:
        """Return the state before the first iteration."""
        drift, lower = means.new_zeros(len(means)).float(), means.new_zeros(n).float()
        sums, labels = torch.zeros_like(means), lower.long() - 1
        return cls(means, sums, drift.long(), labels, lower + torch.inf, lower, drift)

    @classmethod
    def continued(cls, state: dict[str, Any] | None, device: torch.device) -> _Lloyd | None:
        """Return a saved state; None without a saved state of the expected form."""
        names = {field.name for field in fields(cls)}
        # Earlier versions saved the centers by group.
        if state is not None and state.keys() == names | {"order", "sizes"}:
            place = state.pop("order").argsort()
            state |= {name: state[name][place] for name in ("means", "sums", "counts", "drift")}
            state["labels"] = place.argsort()[state["labels"]]
            state["lower"] = state["lower"].amin(dim=1)
            del state["sizes"]
        return cls(**_to(state, device)) if state is not None and state.keys() == names else None

    def iterate(self, rows: FeatureRows, on_block: Callable[[], None]) -> tuple[int, float]:
        """Assign all rows, move the centers; return the number of moved rows and the sum of squared movements."""
        n_moved = self.assign(rows, on_block) + self._fill_empty(rows)
        means = self.sums / self.counts.clamp(min=1)[:, None]
        means = torch.where(self.counts[:, None] > 0, means, self.means)
        drift = (means - self.means).norm(dim=1)
        self.means, self.drift, self.iterations = means, drift.float(), self.iterations + 1
        return n_moved, float(drift.square().sum())

    def assign(self, rows: FeatureRows, on_block: Callable[[], None]) -> int:
        """Assign every row to its nearest center, and return the number of rows that changed their cluster."""
        scale = float(rows.squares.max()) + float(self.means.square().sum(dim=1).max())
        # The slack covers the rounding of the moved bounds.
        drift = torch.where(self.drift > 0, self.drift * (1 + 1e-6) + _SUM_SLACK * scale**0.5, 0.0)
        self.upper += drift[self.labels]
        self.lower -= drift.amax()
        self.drift = torch.zeros_like(self.drift)
        self.passes += 1
        n_moved, overlapping = 0, (self.upper > self.lower).nonzero().squeeze(1)
        for index in overlapping.split(BLOCK if rows.device.type == "cpu" else _GPU_BLOCK):
            n_moved += self._assign_rows(rows, index, _SQUARE_SLACK * scale)
            on_block()
        return n_moved

    def _assign_rows(self, rows: FeatureRows, index: torch.Tensor, slack: float) -> int:
        old = self.labels[index]
        new, best, second = self._compare(rows.take(index), self.means.float())
        close = (second - best <= 2 * slack).nonzero().squeeze(1)
        for part in close.split(SMALL_BLOCK):
            exact = self._compare(rows.exact(index[part]), self.means, stay=old[part])
            new[part], best[part], second[part] = exact[0], exact[1].float(), exact[2].float()
        self.labels[index] = new
        self.upper[index] = (best + slack).clamp_(min=0.0).sqrt_()
        self.lower[index] = (second - slack).clamp_(min=0.0).sqrt_()
        moved, left = new != old, (new != old) & (old >= 0)
        self._add(rows, old[left], index[left], -1)
        self._add(rows, new[moved], index[moved], 1)
        return int(moved.sum())

    def _compare(
        self, x: torch.Tensor, centers: torch.Tensor, stay: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the nearest center of every row, its squared distance, and that of the next nearest center.

        With ``stay``, rows keep these centers unless another center is nearer by more than the rounding of float64.
        """
        center_squares, squares = centers.square().sum(dim=1), x.square().sum(dim=1)
        scores = torch.addmm(center_squares, x, centers.T, alpha=-2.0)
        self.computed += scores.numel()
        best, new = scores.min(dim=1)
        if stay is not None:
            # The tie is relative to the nearest center, not the farthest: an outlier must not make all others equally
            # near.
            nearest = scores <= (best + _TIE * (squares + center_squares[new]))[:, None]
            stays = nearest.gather(1, stay.clamp(min=0)[:, None])[:, 0] & (stay >= 0)
            new = torch.where(stays, stay, nearest.byte().argmax(dim=1))
            best = scores.gather(1, new[:, None])[:, 0]
        second = scores.scatter_(1, new[:, None], torch.inf).amin(dim=1)
        return new, best + squares, second + squares

    def _add(self, rows: FeatureRows, labels: torch.Tensor, index: torch.Tensor, sign: int) -> None:
        """Add the rows ``index`` to the sums of their clusters (``sign`` 1), or subtract them (-1)."""
        # On CUDA, sums by index have no fixed order by default. (use_deterministic_algorithms imports the compiler.)
        before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("error")
        for part, clusters in zip(index.split(SMALL_BLOCK), labels.split(SMALL_BLOCK), strict=True):
            self.sums.index_add_(0, clusters, rows.exact(part), alpha=sign)
        torch.set_deterministic_debug_mode(before)
        self.counts += sign * torch.bincount(labels, minlength=len(self.counts))

    def _fill_empty(self, rows: FeatureRows) -> int:
        """Move the rows farthest from their centers (not rows on a center) to empty clusters; return their number."""
        empty = (self.counts == 0).nonzero().squeeze(1)
        if len(empty) == 0:
            return 0
        distances = self.own_distances(rows)
        far = distances.sort(descending=True, stable=True).indices[: len(empty)]
        far = far[distances[far] > _COINCIDENT * rows.squares[far]]
        self._add(rows, self.labels[far], far, -1)
        self._add(rows, empty[: len(far)], far, 1)
        self.labels[far], self.upper[far], self.lower[far] = empty[: len(far)], torch.inf, 0.0
        return len(far)

    def own_distances(self, rows: FeatureRows) -> torch.Tensor:
        """Return the squared distance of every row to its center, float64 ``(n,)``."""
        parts = torch.arange(rows.n, device=rows.device).split(SMALL_BLOCK)
        return torch.cat([(rows.exact(i) - self.means[self.labels[i]]).square_().sum(dim=1) for i in parts])


def _to(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in state.items()}
