"""k-nearest-neighbor classifiers on l2-normalized features, by cosine similarity.

Votes are counted in two ways: ``majority`` (one vote each) and ``weighted`` by exp(cosine / T) with T = 0.07 (Wu et
al. 2018; DINO). Results are deterministic: among equally similar training images the lower row number is the nearer
neighbor, and among classes with equal votes the lower label is predicted (as by scikit-learn).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cog.analysis.ranked_classes import TOP, accuracy, describe_classes, largest, train_classes
from cog.analysis.rows import FeatureRows, load_both_splits
from cog.analysis.task import AnalysisContext, AnalysisOutcome, feature_analysis
from cog.results.analysis_records import Number
from cog.results.labels import METRIC_LABELS
from cog.results.metric_info import PERCENT, Metric, declare
from cog.runtime import signals
from cog.runtime.progress import Progress

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

#: T of the weights.
TEMPERATURE = 0.07

#: Numbers of test and training rows that are compared at a time: 64 MB of similarities.
_TEST_BLOCK, _TRAIN_BLOCK = 1024, 16384

#: Number of test images whose votes are counted at a time; each has a row with all classes.
_VOTE_BLOCK = 2048


_METRIC = re.compile(r"(?P<metric>top1|top5)_k(?P<k>\d{1,9})_(?P<vote>[a-z]+)")


class NeighborMetric(NamedTuple):
    """The parts of the name of a number of the k-nearest-neighbor analysis."""

    k: int
    vote: str
    metric: str


def neighbor_metric(quantity: str) -> NeighborMetric | None:
    """Return the parts of the name of a number of the k-nearest-neighbor analysis; None for other names."""
    match = _METRIC.fullmatch(quantity)
    return None if match is None else NeighborMetric(int(match["k"]), match["vote"], match["metric"])


def _metric(_: str, quantity: str) -> Metric | None:
    name = neighbor_metric(quantity)
    if name is None:
        return None
    return Metric(
        group="knn",
        label=f"kNN, k={name.k}, {name.vote}, {METRIC_LABELS[name.metric]}",
        unit=PERCENT,
        decimals=1,
        order=(1, name.metric, name.vote != "weighted", name.vote, name.k),
    )


declare("knn", _metric)


def _compute(settings: dict[str, Any], job: AnalysisContext) -> AnalysisOutcome:
    train, test = load_both_splits(job)
    labels, index, targets, unseen = train_classes(train, test, job.label)
    ks = settings["k"]
    possible = [k for k in ks if k <= len(train)]
    if len(possible) < len(ks):
        logger.warning(
            "%sthere are %d training images: k = %s is undefined",
            job.label, len(train), ", ".join(str(k) for k in ks if k not in possible),
        )  # fmt: skip
    values: dict[str, Number] = {}
    neighbors = None
    if possible:
        neighbors = _find_or_continue(
            job, FeatureRows(train, job.device), FeatureRows(test, job.device), max(possible)
        )
    for way, temperature in (("weighted", settings["temperature"]), ("majority", None)):
        ranked = {} if neighbors is None else vote(neighbors, index, possible, temperature=temperature)
        for k in ks:
            top1 = top5 = None
            if k in ranked:
                classes = ranked[k]
                top1, top5 = accuracy(classes.where(classes < 0, labels[classes.clamp(min=0)]), targets)
            values[f"top1_k{k}_{way}"], values[f"top5_k{k}_{way}"] = top1, top5
    shown = {key: value for key, value in values.items() if key.startswith("top1") and "weighted" in key}
    summary = "  ".join(f"{key} {'undefined' if v is None else f'{v:.2f}'}" for key, v in shown.items())
    return AnalysisOutcome(values, details=describe_classes(train, test, labels, unseen), summary=summary)


def _find_or_continue(job: AnalysisContext, train: FeatureRows, test: FeatureRows, k: int) -> NearestRows:
    """Return the neighbors of all test rows; finished blocks are saved from time to time, and not computed again."""
    store = job.resume.state("neighbours.pt")
    state = store.load()
    done = None if state is None else NearestRows(state["index"], state["similarity"])
    with Progress(test.n, f"{job.label}neighbors", unit="images") as progress:
        progress.skip(0 if done is None else len(done.index))

        def on_block(parts: Sequence[NearestRows]) -> None:
            progress.update(len(parts[-1].index))
            if store.due():
                so_far = joined(parts)
                store.save({"index": so_far.index, "similarity": so_far.similarity})
            signals.check(f"the neighbors of {progress.done} of {test.n} test images are saved")

        return find(train, test, k, done=done, on_block=on_block)


@dataclass(frozen=True)
class NearestRows:
    """The nearest training rows of every test row.

    Attributes:
        index: row numbers of the neighbors, nearest first, int64 ``(m, k)`` on the CPU.
        similarity: cosines, float32 ``(m, k)``.
    """

    index: torch.Tensor
    similarity: torch.Tensor


def find(
    train: FeatureRows,
    test: FeatureRows,
    k: int,
    *,
    done: NearestRows | None = None,
    on_block: Callable[[Sequence[NearestRows]], None] = lambda parts: None,
) -> NearestRows:
    """Find the ``k`` most similar training rows of every test row, exactly.

    Args:
        train: training features, l2-normalized, **not shifted**, ``(n, d)``.
        test: test features, l2-normalized, not shifted, ``(m, d)``.
        k: number of neighbors, 1 to n.
        done: neighbors of the first test rows from an earlier call with the same arguments; they are not computed
            again.
        on_block: called after every block with all parts so far (see :func:`joined`); may raise to end the work.
    """
    import torch

    width = min(k, train.n)
    first = done or NearestRows(torch.empty(0, width, dtype=torch.int64), torch.empty(0, width))
    parts = [first]
    for start in range(len(first.index), test.n, _TEST_BLOCK):
        x = test.slice(start, min(start + _TEST_BLOCK, test.n))
        best = torch.empty(len(x), 0, device=x.device)
        index = torch.empty(len(x), 0, dtype=torch.int64, device=x.device)
        for block_start, block in train.blocks(_TRAIN_BLOCK):
            near, columns = largest(x @ block.T, min(width, len(block)))
            # Rows of earlier blocks come first, so that a stable sort prefers them.
            merged, order = torch.cat([best, near], dim=1).sort(dim=1, descending=True, stable=True)
            best = merged[:, :width]
            index = torch.cat([index, columns + block_start], dim=1).gather(1, order[:, :width])
        parts.append(NearestRows(index.cpu(), best.cpu()))
        on_block(parts)
    return joined(parts)


def joined(parts: Sequence[NearestRows]) -> NearestRows:
    """Return the neighbors of consecutive parts of the test rows as one object."""
    import torch

    return NearestRows(torch.cat([p.index for p in parts]), torch.cat([p.similarity for p in parts]))


def vote(
    neighbors: NearestRows,
    labels: torch.Tensor,
    ks: Sequence[int],
    *,
    temperature: float | None,
) -> dict[int, torch.Tensor]:
    """Return the classes with most votes of the nearest neighbors.

    Args:
        neighbors: neighbors of the test rows.
        labels: classes of the training rows, 0 or more, int64 ``(n,)``.
        ks: numbers of neighbors, each at most the number of columns of ``neighbors``.
        temperature: T of the weights exp(cosine / T); None for one vote each.

    Returns:
        The classes with most votes for every k, int64 ``(m, 5)``, best first; -1 where fewer classes have votes.
    """
    import torch

    n_classes = int(labels.max()) + 1
    width = min(TOP, n_classes)
    ranked: dict[int, list[torch.Tensor]] = {k: [] for k in ks}
    classes = torch.arange(n_classes)
    for part in torch.arange(len(neighbors.index)).split(_VOTE_BLOCK):
        votes = labels[neighbors.index[part]]
        weights = torch.ones(votes.shape, dtype=torch.float64)
        if temperature is not None:
            # Weights are divided by the largest weight of the row, because exp(1 / T) overflows for a small T.
            similarity = neighbors.similarity[part].double()
            weights = ((similarity - similarity[:, :1]) / temperature).exp()
        table = torch.zeros(len(part), n_classes, dtype=torch.float64)
        counted = 0
        for k in sorted(ks):
            # The votes of a larger number of neighbors are added to the count of the smaller one.
            table.scatter_add_(1, votes[:, counted:k], weights[:, counted:k])
            counted = k
            most, best = largest(table, width)
            best = torch.where(most > 0, classes[best], -1)
            ranked[k].append(torch.nn.functional.pad(best, (0, TOP - width), value=-1))
    return {k: torch.cat(parts) for k, parts in ranked.items()}


ANALYSIS = feature_analysis(
    "knn",
    "k-nearest-neighbor classifiers",
    _compute,
    settings=lambda options: {"k": sorted(options.KNN_K), "temperature": TEMPERATURE},
)
