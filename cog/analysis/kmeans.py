"""k-means on the training features, compared with the classes of the test images (v1, Sec. 4.3.1)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from cog.analysis.rows import FeatureRows, load_both_splits
from cog.analysis.task import AnalysisContext, AnalysisOutcome, feature_analysis
from cog.errors import CogError
from cog.results.analysis_records import Number
from cog.results.metric_info import NONE, UNIT, Metric, declare
from cog.runtime import files, signals
from cog.runtime.resume_dir import ResumeFolder

if TYPE_CHECKING:
    import torch

    from cog.analysis.lloyd import Clustering

logger = logging.getLogger(__name__)

#: File with the centers of the best repetition and the clusters of the test images, beside results.json.
CLUSTERS_FILE = "clusters.npz"


_NOTE = (
    "k-means: of several initializations the one with the lowest inertia; "
    "[ ]: the lowest and the highest value of all of them (±: their standard deviation)."
)

# Label of each metric, unit, and direction.
_METRICS = {
    "purity": ("purity, largest class of each cluster", UNIT, 1),
    "purity_v1": ("purity as in the paper's first version, largest cluster of each class", UNIT, 1),
    "ami": ("AMI", UNIT, 1),
    "nmi": ("NMI", UNIT, 1),
    "ari": ("ARI", UNIT, 1),
    "inertia": ("inertia", NONE, 0),
}

declare(
    "kmeans",
    {
        name: Metric(
            group="kmeans",
            label=f"k-means {label}",
            unit=unit,
            better=better,
            note=_NOTE,
            order=(3, place),
            shows_range=True,
        )
        for place, (name, (label, unit, better)) in enumerate(_METRICS.items())
    },
)


def agreement(classes: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """Compare a clustering with the classes of the same samples.

    Args:
        classes: class of each sample, int ``(m,)``.
        clusters: cluster of each sample, int ``(m,)``.

    Returns:
        ``purity_v1``: mean over classes of the share of a class in the cluster that has most of it (Eq. 3 of the
        paper's first version, divided by the size of the classes, as its table requires); ``purity``: share of the
        samples that belong to the most frequent class of their cluster (the usual definition); ``ami``, ``nmi``,
        ``ari``: scikit-learn's adjusted mutual information, normalized mutual information (both with arithmetic means)
        and adjusted Rand index. All are at most 1, which is best. For a single class in a single cluster all are 1.
    """
    from sklearn import metrics

    table = np.asarray(metrics.cluster.contingency_matrix(classes, clusters))
    return {
        "purity_v1": float((table.max(axis=1) / table.sum(axis=1)).mean()),
        "purity": float(table.max(axis=0).sum() / table.sum()),
        "ami": float(metrics.adjusted_mutual_info_score(classes, clusters)),
        "nmi": float(metrics.normalized_mutual_info_score(classes, clusters)),
        "ari": float(metrics.adjusted_rand_score(classes, clusters)),
    }


def nearest_centers(rows: FeatureRows, centers: torch.Tensor) -> torch.Tensor:
    """Return the index of the nearest center of every row, int64 ``(n,)``; the first of equally near centers.

    Args:
        rows: features ``(n, d)``; the shift of the clustered rows is best.
        centers: centers without shift, float32 ``(k, d)``.
    """
    import torch

    centers = rows.shifted(centers)
    squares = centers.square().sum(dim=1)
    return rows.map(
        lambda start, x: torch.addmm(squares, x, centers.T, alpha=-2.0).argmin(dim=1), torch.int64
    )


def _compute(settings: dict[str, Any], job: AnalysisContext) -> AnalysisOutcome:
    train, test = load_both_splits(job)
    k = settings["k"] or len(train.y.unique())
    if k > len(train):
        raise CogError(
            f"{job.label}{k} clusters need at least as many training images, found {len(train)}; lower "
            "ANALYSIS.KMEANS_K"
        )
    rows = FeatureRows(train, job.device, centered=True)
    test_rows = FeatureRows(test, job.device, shift=rows.shift)
    classes = test.y.numpy()
    per_seed: dict[int, dict[str, Number]] = {}
    runs: dict[str, Any] = {}
    best: tuple[float, int, np.ndarray, np.ndarray] | None = None
    seeds = settings["seeds"]
    for position, seed in enumerate(seeds):
        label = f"{job.label}k-means of seed {seed} ({position + 1} of {len(seeds)})"
        clustering = _repetition(rows, k, seed, settings, job.resume, label)
        clusters = nearest_centers(test_rows, clustering.centers).cpu().numpy()
        per_seed[seed] = {"inertia": clustering.inertia, **agreement(classes, clusters)}
        runs[str(seed)] = _numbers(clustering)
        if best is None or clustering.inertia < best[0]:
            best = clustering.inertia, seed, clustering.centers.cpu().numpy(), clusters
        signals.check(f"{position + 1} of {len(seeds)} repetitions of {job.label}k-means are saved")
    assert best is not None
    with files.atomic_write(job.stage / CLUSTERS_FILE) as handle:
        np.savez(handle, centres=best[2], test_clusters=best[3].astype(np.int32), test_labels=classes)
    values = dict(per_seed[best[1]])
    details = {
        "k": k,
        "best_seed": best[1],
        "runs": runs,
        "rows": {"train": len(train), "test": len(test)},
        "dim": rows.dim,
        "files": [CLUSTERS_FILE],
    }
    summary = "  ".join(f"{name} {values[name]:.4f}" for name in ("purity_v1", "purity", "ami", "nmi", "ari"))
    return AnalysisOutcome(values, per_seed, details, summary)


def _numbers(clustering: Clustering) -> dict[str, Any]:
    """Return the numbers of a repetition that are recorded with its inertia."""
    return {
        name: getattr(clustering, name) for name in ("iterations", "ended_by", "computed_frac", "n_empty")
    }


def _repetition(
    rows: FeatureRows, k: int, seed: int, settings: dict[str, Any], resume: ResumeFolder, label: str
) -> Clustering:
    """Return the clustering of a seed: the saved one, or else a new one, which is saved."""
    import torch

    from cog.analysis import lloyd

    finished, unfinished = resume.state(f"seed-{seed}.done.pt"), resume.state(f"seed-{seed}.pt")
    state = finished.load()
    if state is not None:
        centers = state.pop("centres").to(rows.device)
        return lloyd.Clustering(centers=centers, labels=torch.empty(0, dtype=torch.int64), **state)
    clustering = lloyd.fit(
        rows,
        k,
        seed=seed,
        max_iterations=settings["max_iterations"],
        tolerance=settings["tolerance"],
        store=unfinished,
        label=label,
    )
    finished.save(
        {"centres": clustering.centers.cpu(), "inertia": clustering.inertia, **_numbers(clustering)}
    )
    unfinished.forget()
    logger.info(
        "%s: inertia %.6g after %d iterations (%s), %.0f %% of the distances computed",
        label, clustering.inertia, clustering.iterations, clustering.ended_by, 100 * clustering.computed_frac,
    )  # fmt: skip
    if clustering.n_empty:
        logger.warning(
            "%s: %d of %d clusters are empty: there are fewer distinct features than clusters",
            label, clustering.n_empty, k,
        )  # fmt: skip
    return clustering


ANALYSIS = feature_analysis(
    "kmeans",
    "k-means clusters compared with the classes",
    _compute,
    settings=lambda options: {
        "k": options.KMEANS_K,
        "seeds": list(options.KMEANS_SEEDS),
        "max_iterations": options.KMEANS_ITERATIONS,
        "tolerance": options.KMEANS_TOLERANCE,
    },
    packages=("torch", "numpy", "scikit-learn", "scipy"),
)
