"""k-nearest-neighbour classifiers on l2-normalised features, by cosine similarity.

Votes are counted in two ways: ``majority`` (one vote each) and ``weighted``, by exp(cosine / T) with T = 0.07 (Wu et
al. 2018; DINO). Everything is deterministic: of equally similar training images the one with the lower row number is
the nearer neighbour, of classes with equal votes the lower label is predicted (as scikit-learn does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cog.analysis.rows import Rows

#: Test and training rows compared at a time: 64 MB of similarities.
_TEST_BLOCK, _TRAIN_BLOCK = 1024, 16384

#: Test images whose votes are counted at a time (a table with all classes each).
_VOTE_BLOCK = 2048

_TOP = 5


@dataclass(frozen=True)
class Neighbours:
    """The nearest training rows of every test row.

    Attributes:
        index: int64 ``(m, k)``, on the CPU, nearest first.
        similarity: float32 ``(m, k)``: cosines.
    """

    index: torch.Tensor
    similarity: torch.Tensor


def find(
    train: Rows,
    test: Rows,
    k: int,
    *,
    done: Neighbours | None = None,
    on_block: Callable[[Sequence[Neighbours]], None] = lambda parts: None,
) -> Neighbours:
    """Find the ``k`` most similar training rows of every test row, exactly.

    Args:
        train: ``(n, d)``, l2-normalised; **not shifted**.
        test: ``(m, d)``, likewise.
        k: 1 to n.
        done: those of the first test rows, found by an earlier call with the same arguments: the others follow.
        on_block: called after every block with the parts found so far (see :func:`joined`); may raise to end the
            work.
    """
    width = min(k, train.n)
    found = done or Neighbours(torch.empty(0, width, dtype=torch.int64), torch.empty(0, width))
    parts = [found]
    for start in range(len(found.index), test.n, _TEST_BLOCK):
        x = test.slice(start, min(start + _TEST_BLOCK, test.n))
        best = torch.empty(len(x), 0, device=x.device)
        index = torch.empty(len(x), 0, dtype=torch.int64, device=x.device)
        for first, block in train.blocks(_TRAIN_BLOCK):
            near, where = _largest(x @ block.T, min(width, len(block)))
            # rows of earlier blocks come first, so that a stable sort prefers them
            merged, order = torch.cat([best, near], dim=1).sort(dim=1, descending=True, stable=True)
            best = merged[:, :width]
            index = torch.cat([index, where + first], dim=1).gather(1, order[:, :width])
        parts.append(Neighbours(index.cpu(), best.cpu()))
        on_block(parts)
    return joined(parts)


def joined(parts: Sequence[Neighbours]) -> Neighbours:
    """Return the neighbours of consecutive test rows as one."""
    return Neighbours(torch.cat([p.index for p in parts]), torch.cat([p.similarity for p in parts]))


def _largest(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``k`` largest values of every row with their columns; equal values in the order of the columns."""
    if k == values.shape[1]:
        near, where = values.sort(dim=1, descending=True, stable=True)
        return near, where
    near, where = values.topk(k + 1, dim=1)
    tied = (near[:, k - 1] == near[:, k]).nonzero().squeeze(1)  # topk takes any of them
    near, where = near[:, :k], where[:, :k]
    # topk's order among equals is its own, too
    where, order = where.sort(dim=1)
    near = near.gather(1, order)
    near, order = near.sort(dim=1, descending=True, stable=True)
    where = where.gather(1, order)
    if tied.numel():
        exact, columns = values[tied].sort(dim=1, descending=True, stable=True)
        near[tied], where[tied] = exact[:, :k], columns[:, :k]
    return near, where


def vote(
    neighbours: Neighbours,
    labels: torch.Tensor,
    ks: Sequence[int],
    *,
    temperature: float | None,
) -> dict[int, torch.Tensor]:
    """Let the nearest neighbours vote.

    Args:
        neighbours: of the test rows.
        labels: int64 ``(n,)``: classes of the training rows, 0 or more.
        ks: numbers of neighbours, each at most as many as were found.
        temperature: T of the weights exp(cosine / T); None for one vote each.

    Returns:
        For every k, the classes with most votes, int64 ``(m, 5)``, best first; -1 where fewer classes have votes.
    """
    n_classes = int(labels.max()) + 1
    width = min(_TOP, n_classes)
    found: dict[int, list[torch.Tensor]] = {k: [] for k in ks}
    classes = torch.arange(n_classes)
    for part in torch.arange(len(neighbours.index)).split(_VOTE_BLOCK):
        votes = labels[neighbours.index[part]]
        weights = torch.ones(votes.shape, dtype=torch.float64)
        if temperature is not None:
            # divided by the largest weight of the row: exp(1 / T) overflows for a small T
            similarity = neighbours.similarity[part].double()
            weights = ((similarity - similarity[:, :1]) / temperature).exp()
        table = torch.zeros(len(part), n_classes, dtype=torch.float64)
        counted = 0
        for k in sorted(ks):
            # of two numbers of neighbours the larger one continues the count of the smaller one
            table.scatter_add_(1, votes[:, counted:k], weights[:, counted:k])
            counted = k
            most, best = _largest(table, width)
            best = torch.where(most > 0, classes[best], -1)
            found[k].append(torch.nn.functional.pad(best, (0, _TOP - width), value=-1))
    return {k: torch.cat(parts) for k, parts in found.items()}


def accuracy(ranked: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent.

    Args:
        ranked: int64 ``(m, 5)``, classes best first, -1 for none.
        y: int64 ``(m,)``, true classes.
    """
    hits = ranked == y[:, None]
    return 100.0 * float(hits[:, 0].double().mean()), 100.0 * float(hits.any(dim=1).double().mean())
