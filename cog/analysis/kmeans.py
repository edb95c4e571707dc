"""k-means by Lloyd's algorithm on all rows, without the distances that cannot matter.

An iteration assigns every row to its nearest centre and moves every centre to the mean of its rows, as scikit-learn's
``KMeans`` does (same tolerance, same treatment of empty clusters). Clusters are those of float64: distances are
computed in float32, and the few rows for which rounding could decide are compared again in float64. What makes it fast:

* distances are matrix products of blocks of rows with the centres; n x k distances never exist at a time;
* bounds (Ding et al. 2015, "Yinyang k-means"): every row keeps an upper bound of the distance to its own centre and,
  for each group of about 50 centres, a lower bound of the distance to the others. They are loosened by how far the
  centres move. Where the lower bound stays above the upper one, no centre of the group can have become the nearest:
  its distances are not computed. The bounds allow for rounding, so clusters are those of the plain algorithm (where
  centres are equally near, a row keeps its cluster);
* the sums of the clusters change by the rows that moved, only.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from cog import interruption
from cog.analysis import seeding
from cog.analysis.rows import SMALL_BLOCK, Rows
from cog.errors import CogError
from cog.progress import Progress, duration

logger = logging.getLogger(__name__)

#: Rows assigned at a time: on a CPU, what is gathered of them for every group comes from its cache.
BLOCK, _GPU_BLOCK = 2048, 65536

#: Centres that share a lower bound: fewer make better bounds, more make better matrix products.
_GROUP = 50

#: Rounding of a squared distance in float32, relative to the squared norms it is computed from; of a sum of bounds.
_SQUARE_SLACK, _SUM_SLACK = 1e-6, 3e-7

#: The same of a squared distance in float64: centres whose distances differ by less are equally near, or rounding
#: would let rows go to and fro between them.
_TIE = 1e-12

#: Share of the centres from which on a row is compared with all of them at once.
_MOST = 0.5

#: Share of the centres that bounds leave from which on it does not pay to make the upper bounds tight.
_HOPELESS = 0.95

#: Seconds between two saved states, and between two lines of progress.
SAVE_SECONDS = 60.0
_LINE_SECONDS = 30.0


class Checkpoint(Protocol):
    """Where a state survives the end of the process."""

    def load(self) -> dict[str, Any] | None:
        """Return the state that was saved last, or None."""
        ...

    def save(self, state: dict[str, Any]) -> None:
        """Replace the saved state, atomically."""
        ...


@dataclass(frozen=True)
class Clustering:
    """A result of k-means.

    Attributes:
        centres: float32 ``(k, d)``, on the device of the rows.
        labels: int64 ``(n,)``, on the device of the rows.
        inertia: sum of squared distances to the own centre.
        iterations: of Lloyd's algorithm.
        ended_by: ``"convergence"`` (no row moved), ``"tolerance"`` or ``"limit"``.
        computed_frac: distances computed, relative to those of the plain algorithm.
        n_empty: clusters without rows (only with fewer than k different rows).
    """

    centres: torch.Tensor
    labels: torch.Tensor
    inertia: float
    iterations: int
    ended_by: str
    computed_frac: float
    n_empty: int


def fit(
    rows: Rows,
    k: int,
    *,
    seed: int,
    max_iterations: int = 300,
    tolerance: float = 1e-4,
    centres: torch.Tensor | None = None,
    checkpoint: Checkpoint | None = None,
    label: str = "k-means",
) -> Clustering:
    """Cluster rows.

    Args:
        rows: ``(n, d)``.
        k: clusters, 1 to n.
        seed: of the starting centres, which is all that is random.
        max_iterations: most iterations.
        tolerance: the algorithm ends when the squared movements of all centres sum up to less than this times the
            mean variance of the features (scikit-learn's ``tol``).
        centres: float32 ``(k, d)`` to start from, instead of :func:`cog.analysis.seeding.initial_centres`.
        checkpoint: to continue what was interrupted, with the same result bit by bit.
        label: for log lines.

    Raises:
        CogError: more clusters than rows.
        Interrupted: after a signal, see :mod:`cog.interruption`.
    """
    if k > rows.n:
        raise CogError(
            f"{k} clusters need at least as many training images, found {rows.n}; lower ANALYSIS.KMEANS_K"
        )
    began = time.monotonic()
    saved = checkpoint.load() if checkpoint is not None else None
    if saved is not None and saved.keys() == {*_Lloyd.TENSORS, *_Lloyd.NUMBERS}:  # not of another version
        lloyd = _Lloyd(rows, saved)
    else:
        if centres is None:
            total = seeding.n_blocks(rows, k)
            with Progress(
                total, f"{label}: starting centres", unit="blocks of rows", bar=total > 0
            ) as progress:

                def on_block() -> None:
                    progress.update()
                    interruption.check(f"nothing of {label} is saved yet")

                rng = np.random.default_rng(seed)
                centres = seeding.initial_centres(rows, k, rng, on_block=on_block)
        else:
            centres = centres.to(rows.device, torch.float64)
            centres = centres if rows.shift is None else centres - rows.shift
        lloyd = _Lloyd.start(rows, centres)
    # of centred rows, the squares are the variance
    threshold = tolerance * float(rows.squares.double().sum()) / (rows.n * rows.dim)
    return _run(lloyd, max_iterations, threshold, checkpoint, label, began)


def assign(rows: Rows, centres: torch.Tensor) -> torch.Tensor:
    """Return the nearest centre of every row, int64 ``(n,)`` (of equally near ones the first).

    Args:
        rows: best with the same shift as those that were clustered.
        centres: float32 ``(k, d)``, not shifted.
    """
    centres = centres if rows.shift is None else centres - rows.shift
    squares = centres.square().sum(dim=1)
    return rows.map(
        lambda start, x: torch.addmm(squares, x, centres.T, alpha=-2.0).argmin(dim=1), torch.int64
    )


def own_distances(rows: Rows, centres: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the squared distance of every row to the centre ``labels`` names, float32 ``(n,)``."""
    return rows.map(
        lambda start, x: (x - centres[labels[start : start + len(x)]]).square_().sum(dim=1),
        torch.float32,
        SMALL_BLOCK,
    )


def _run(
    lloyd: _Lloyd,
    max_iterations: int,
    threshold: float,
    checkpoint: Checkpoint | None,
    label: str,
    saved_at: float,
) -> Clustering:
    progress = _Lines(label, max_iterations)
    saved = lloyd.iterations

    def on_block() -> None:
        interruption.check(f"{saved} iterations of {label} are saved")

    ended_by = "limit"
    while lloyd.iterations < max_iterations:
        asked = interruption.requested() is not None
        if checkpoint is not None and (asked or time.monotonic() - saved_at >= SAVE_SECONDS):
            checkpoint.save(lloyd.state())
            saved_at, saved = time.monotonic(), lloyd.iterations
        n_moved, shift = lloyd.iterate(on_block)
        progress.show(lloyd.iterations, n_moved / lloyd.rows.n)
        if n_moved == 0 or shift <= threshold:
            ended_by = "convergence" if n_moved == 0 else "tolerance"
            break
    if ended_by != "convergence":
        lloyd.assign(on_block)  # to the centres as they are now, like scikit-learn
    return lloyd.result(ended_by)


class _Lloyd:
    """The state between two iterations. Inside, centres are ordered by group, and distances are those of centred rows.

    Attributes:
        rows: what is clustered, centred.
        order: int64 ``(k,)``: the caller's number of each centre.
        means: float64 ``(k, d)``: the centres.
        centres: float32 ``(k, d)``: the same, rounded.
        sums: float64 ``(k, d)``: of the rows of each cluster.
        counts: int64 ``(k,)``: rows of each cluster.
        labels: int64 ``(n,)``: cluster of each row, -1 at the start.
        upper: float32 ``(n,)``: at least the distance to the own centre, before :attr:`drift`.
        lower: float32 ``(n, groups)``: at most the distance to any other centre of the group, before :attr:`drift`.
        drift: float32 ``(k,)``: how far the centres moved since the bounds were made.
        iterations: finished ones.
        computed: distances computed so far.
        passes: assignments so far.
    """

    TENSORS = ("order", "sizes", "means", "sums", "counts", "labels", "upper", "lower", "drift")
    NUMBERS = ("iterations", "computed", "passes")

    def __init__(self, rows: Rows, state: dict[str, Any]) -> None:
        self.rows = rows
        device = rows.device
        self.order: torch.Tensor = state["order"].to(device)
        self.sizes: torch.Tensor = state["sizes"].to(device)
        self.means: torch.Tensor = state["means"].to(device)
        self.centres = self.means.float()
        self.sums: torch.Tensor = state["sums"].to(device)
        self.counts: torch.Tensor = state["counts"].to(device)
        self.labels: torch.Tensor = state["labels"].to(device)
        self.upper: torch.Tensor = state["upper"].to(device)
        self.lower: torch.Tensor = state["lower"].to(device)
        self.drift: torch.Tensor = state["drift"].to(device)
        self.iterations: int = state["iterations"]
        self.computed: int = state["computed"]
        self.passes: int = state["passes"]
        sizes = self.sizes.tolist()
        ends = np.cumsum(sizes).tolist()
        self._spans = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._group_of = torch.repeat_interleave(torch.arange(len(sizes), device=device), self.sizes)

    @classmethod
    def start(cls, rows: Rows, centres: torch.Tensor) -> _Lloyd:
        """Begin at ``centres`` ``(k, d)`` in the coordinates of the centred rows."""
        k, device = len(centres), rows.device
        groups = _group(centres.float(), max(1, min(k // _GROUP, rows.dim // 16)))
        order = torch.cat(groups)
        return cls(
            rows,
            {
                "order": order,
                "sizes": torch.tensor([len(group) for group in groups]),
                "means": centres[order].double(),
                "sums": torch.zeros(k, rows.dim, dtype=torch.float64, device=device),
                "counts": torch.zeros(k, dtype=torch.int64, device=device),
                "labels": torch.full((rows.n,), -1, dtype=torch.int64, device=device),
                "upper": torch.full((rows.n,), torch.inf, device=device),
                "lower": torch.zeros(rows.n, len(groups), device=device),
                "drift": torch.zeros(k, device=device),
                "iterations": 0,
                "computed": 0,
                "passes": 0,
            },
        )

    def state(self) -> dict[str, Any]:
        """Return everything that :meth:`__init__` needs to go on with the same bits."""
        tensors = {name: getattr(self, name).cpu() for name in self.TENSORS}
        return tensors | {name: getattr(self, name) for name in self.NUMBERS}

    def iterate(self, on_block: Callable[[], None]) -> tuple[int, float]:
        """Assign all rows and move the centres.

        Returns:
            How many rows changed their cluster, and the sum of the squared movements of the centres.
        """
        n_moved = self.assign(on_block)
        n_moved += self._fill_empty()
        means = self.sums / self.counts.clamp(min=1)[:, None]
        means = torch.where(self.counts[:, None] > 0, means, self.means)
        drift = (means - self.means).norm(dim=1)
        self.drift, self.means, self.centres = drift.float(), means, means.float()
        self.iterations += 1
        return n_moved, float(drift.square().sum())

    def assign(self, on_block: Callable[[], None]) -> int:
        """Assign every row to its nearest centre; returns how many changed their cluster."""
        centre_squares = self.centres.square().sum(dim=1)
        scale = float(self.rows.squares.max()) + float(centre_squares.max())
        slack = _SQUARE_SLACK * scale
        # moving bounds rounds them, too
        drift = torch.where(self.drift > 0, self.drift * (1 + 1e-6) + _SUM_SLACK * scale**0.5, 0.0)
        group_drift = torch.stack([drift[span].amax() for span in self._spans])
        n_moved = 0
        block = BLOCK if self.rows.device.type == "cpu" else _GPU_BLOCK
        for start in range(0, self.rows.n, block):
            stop = min(start + block, self.rows.n)
            n_moved += self._assign_block(start, stop, centre_squares, slack, drift, group_drift)
            on_block()
        self.drift = torch.zeros_like(self.drift)
        self.passes += 1
        return n_moved

    def _assign_block(
        self,
        start: int,
        stop: int,
        centre_squares: torch.Tensor,
        slack: float,
        drift: torch.Tensor,
        group_drift: torch.Tensor,
    ) -> int:
        labels, upper, lower = self.labels[start:stop], self.upper[start:stop], self.lower[start:stop]
        if self.passes == 0:
            x = self.rows.slice(start, stop)
            found = self._among_all(x, self.rows.squares[start:stop], centre_squares, slack)
            labels[:], upper[:], lower[:] = found
            index = torch.arange(start, stop, device=labels.device)
            self._decide_ties(index, labels, upper, lower, None, slack)
            self._add(labels, index, 1)
            return stop - start
        lower -= group_drift
        upper += drift[labels]
        alive = (upper > lower.amin(dim=1)).nonzero().squeeze(1)
        if len(alive) == 0:
            return 0
        whole = len(alive) == stop - start
        x = self.rows.slice(start, stop) if whole else self.rows.take(alive + start)
        squares = self.rows.squares[start:stop][alive]
        old = labels[alive]
        scores, wanted = upper[alive], lower[alive] < upper[alive, None]
        everything = torch.ones(len(x), dtype=torch.bool, device=x.device)
        if self._n_wanted(wanted).mean() < _HOPELESS * len(self.centres):
            scores = self._own_scores(x, old, centre_squares)
            wanted = lower[alive] < _distance(scores + squares + slack)[:, None]
            everything = self._n_wanted(wanted) >= _MOST * len(self.centres)
        new, new_upper, new_lower = old.clone(), upper[alive], lower[alive]
        if (rows := everything.nonzero().squeeze(1)).numel():
            part = x if len(rows) == len(x) else x.index_select(0, rows)
            new[rows], new_upper[rows], new_lower[rows] = self._among_all(
                part, squares[rows], centre_squares, slack
            )
        if (rows := (~everything).nonzero().squeeze(1)).numel():
            part = x if len(rows) == len(x) else x.index_select(0, rows)
            new[rows], new_upper[rows], new_lower[rows] = self._among_groups(
                part,
                squares[rows],
                old[rows],
                scores[rows],
                wanted[rows],
                lower[alive[rows]],
                centre_squares,
                slack,
            )
        self._decide_ties(alive + start, new, new_upper, new_lower, old, slack)
        labels[alive], upper[alive], lower[alive] = new, new_upper, new_lower
        moved = (new != old).nonzero().squeeze(1)
        if moved.numel():
            self._add(old[moved], alive[moved] + start, -1)
            self._add(new[moved], alive[moved] + start, 1)
        return len(moved)

    def _n_wanted(self, wanted: torch.Tensor) -> torch.Tensor:
        """Return how many centres the ``wanted`` groups of every row have."""
        return wanted.float() @ self.sizes.float()

    def _own_scores(
        self, x: torch.Tensor, labels: torch.Tensor, centre_squares: torch.Tensor
    ) -> torch.Tensor:
        """Return squared distances to the own centres without the rows' squared norms."""
        self.computed += len(x)
        dots = torch.empty(len(x), device=x.device)
        for i in range(0, len(x), SMALL_BLOCK):
            part = slice(i, i + SMALL_BLOCK)
            dots[part] = (x[part] * self.centres[labels[part]]).sum(dim=1)
        return centre_squares[labels] - 2.0 * dots

    def _among_all(
        self,
        x: torch.Tensor,
        squares: torch.Tensor,
        centre_squares: torch.Tensor,
        slack: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the nearest of all centres for every row, and new bounds."""
        scores = torch.addmm(centre_squares, x, self.centres.T, alpha=-2.0)
        self.computed += scores.numel()
        best, new = scores.min(dim=1)
        return new, _distance(best + squares + slack), self._others(scores, new, squares, slack)

    def _others(
        self, scores: torch.Tensor, own: torch.Tensor, squares: torch.Tensor, slack: float
    ) -> torch.Tensor:
        """Return lower bounds of the distances to all centres but the own one, by group; changes ``scores``."""
        scores.scatter_(1, own[:, None], torch.inf)
        others = torch.stack([scores[:, span].amin(dim=1) for span in self._spans], dim=1)
        others += squares[:, None] - slack
        return _distance(others).float()

    def _decide_ties(
        self,
        index: torch.Tensor,
        new: torch.Tensor,
        upper: torch.Tensor,
        lower: torch.Tensor,
        old: torch.Tensor | None,
        slack: float,
    ) -> None:
        """Find the nearest centre again, in float64, for those rows for which rounding could have chosen another.

        Args:
            index: number of each row.
            new: centre found for it; corrected in place, like the bounds.
            upper: its bounds: where they overlap, another centre can be the nearest.
            lower: likewise.
            old: centres that rows keep if none is nearer; None: the first of equally near ones is taken.
            slack: rounding of float32, for the bounds.
        """
        close = (lower.amin(dim=1) <= upper).nonzero().squeeze(1)
        if close.numel() == 0:
            return
        centre_squares = self.means.square().sum(dim=1)
        for rows in close.split(SMALL_BLOCK):
            x = self.rows.exact(index[rows])
            squares = x.square().sum(dim=1)
            scores = torch.addmm(centre_squares, x, self.means.T, alpha=-2.0)
            self.computed += scores.numel()
            best, found = scores.min(dim=1)
            # of the nearest centre, not of the farthest: one outlier shall not make all others equally near
            tie = _TIE * (squares + centre_squares[found])
            nearest = scores <= (best + tie)[:, None]
            found = torch.where(nearest, self.order, len(self.order)).argmin(dim=1)
            if old is not None:
                stays = nearest.gather(1, old[rows][:, None])[:, 0]
                found = torch.where(stays, old[rows], found)
            new[rows] = found
            upper[rows] = _distance(best + tie + squares + slack).float()
            lower[rows] = self._others(scores, found, squares, slack)

    def _among_groups(
        self,
        x: torch.Tensor,
        squares: torch.Tensor,
        old: torch.Tensor,
        scores: torch.Tensor,
        wanted: torch.Tensor,
        lower: torch.Tensor,
        centre_squares: torch.Tensor,
        slack: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the nearest of the own centre and those of the ``wanted`` groups for every row, and new bounds."""
        best, new = scores.clone(), old.clone()
        for group, span in enumerate(self._spans):
            rows = wanted[:, group].nonzero().squeeze(1)
            if rows.numel() == 0:
                continue
            found = torch.addmm(
                centre_squares[span], x.index_select(0, rows), self.centres[span].T, alpha=-2.0
            )
            self.computed += found.numel()
            own = (self._group_of[old[rows]] == group).nonzero().squeeze(1)
            found[own, old[rows[own]] - span.start] = torch.inf
            first, index = found.min(dim=1)
            found.scatter_(1, index[:, None], torch.inf)
            second = found.amin(dim=1)
            nearer = first < best[rows]
            lower[rows, group] = _distance(torch.where(nearer, second, first) + squares[rows] - slack)
            rows, first, index = rows[nearer], first[nearer], index[nearer]
            # the centre that was the nearest so far is one of the others now
            theirs = self._group_of[new[rows]]
            lower[rows, theirs] = torch.minimum(
                lower[rows, theirs], _distance(best[rows] + squares[rows] - slack)
            )
            best[rows], new[rows] = first, index + span.start
        return new, _distance(best + squares + slack), lower

    def _add(self, labels: torch.Tensor, index: torch.Tensor, sign: int) -> None:
        """Add the rows ``index`` to the sums of their clusters, or take them away."""
        with _deterministic(labels.device):
            for part, some in zip(index.split(SMALL_BLOCK), labels.split(SMALL_BLOCK), strict=True):
                self.sums.index_add_(0, some, self.rows.exact(part), alpha=sign)
        self.counts += sign * torch.bincount(labels, minlength=len(self.counts))

    def _fill_empty(self) -> int:
        """Give every empty cluster the row that is farthest from its centre, as scikit-learn does.

        Returns:
            How many rows that were; rows that coincide with their centre are left where they are.
        """
        empty = (self.counts == 0).nonzero().squeeze(1)
        if len(empty) == 0:
            return 0
        rows = self._exact_distances().sort(descending=True, stable=True).indices[: len(empty)]
        # in float64, means of equal rows differ from them by rounding
        rows = rows[own_distances(self.rows, self.centres, self.labels)[rows] > 0]
        empty = empty[: len(rows)]
        if len(rows):
            self._add(self.labels[rows], rows, -1)
            self._add(empty, rows, 1)
            self.labels[rows], self.upper[rows], self.lower[rows] = empty, torch.inf, 0.0
        return len(rows)

    def _exact_distances(self) -> torch.Tensor:
        """Return the squared distance of every row to its centre, float64 ``(n,)``."""
        found = torch.empty(self.rows.n, dtype=torch.float64, device=self.rows.device)
        for index in torch.arange(self.rows.n, device=self.rows.device).split(SMALL_BLOCK):
            difference = self.rows.exact(index) - self.means[self.labels[index]]
            found[index] = difference.square_().sum(dim=1)
        return found

    def result(self, ended_by: str) -> Clustering:
        """Return the clustering in the caller's order of centres and coordinates."""
        total = float(own_distances(self.rows, self.centres, self.labels).double().sum())
        centres = torch.empty_like(self.centres)
        shift = self.rows.shift
        centres[self.order] = self.centres if shift is None else self.centres + shift
        return Clustering(
            centres=centres,
            labels=self.order[self.labels],
            inertia=total,
            iterations=self.iterations,
            ended_by=ended_by,
            computed_frac=self.computed / (self.passes * self.rows.n * len(centres)),
            n_empty=int((self.counts == 0).sum()),
        )


def _distance(squared: torch.Tensor) -> torch.Tensor:
    return squared.clamp_(min=0.0).sqrt_()


def _group(centres: torch.Tensor, n_groups: int) -> list[torch.Tensor]:
    """Divide centres into groups of about equal size whose members are near each other; returns their numbers.

    Groups are halved across the line between two centres that are far from each other.
    """
    groups = [torch.arange(len(centres), device=centres.device)]
    while len(groups) < n_groups:
        groups.sort(key=len, reverse=True)
        members = groups.pop(0)
        x = centres[members]
        one = x[(x - x.mean(dim=0)).norm(dim=1).argmax()]
        other = x[(x - one).norm(dim=1).argmax()]
        members = members[(x @ (one - other)).sort(stable=True).indices]
        groups += [members[: len(members) // 2], members[len(members) // 2 :]]
    return groups


@contextlib.contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    """Let sums by index come in a fixed order on CUDA, where they otherwise depend on the scheduling."""
    if device.type != "cuda":
        yield
        return
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


class _Lines:
    """A line of progress now and then; how many iterations there will be is not known."""

    def __init__(self, label: str, limit: int) -> None:
        self._label, self._limit = label, limit
        self._start = self._last = time.monotonic()
        self._done = 0

    def show(self, iteration: int, moved_frac: float) -> None:
        """Report a finished iteration."""
        self._done += 1
        now = time.monotonic()
        if now - self._last < _LINE_SECONDS:
            return
        self._last = now
        each = (now - self._start) / self._done
        left = duration(each * (self._limit - iteration))
        logger.info(
            "%s: iteration %d of at most %d, %.2f %% of the rows moved, %s per iteration, at most %s left",
            self._label, iteration, self._limit, 100 * moved_frac, f"{each:.1f}s", left,
        )  # fmt: skip
