"""The analyses that need nothing but the features of a data set: what ``analyze_features.py --analysis all`` does.

Features are l2-normalised in all of them. A feature vector of zeros stays zero: its cosine to everything is 0.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cog import interruption
from cog.analysis.clusters import require_scikit_learn
from cog.analysis.job import Job, Outcome, Request, Task
from cog.analysis.records import Number
from cog.errors import CogError
from cog.progress import Progress

if TYPE_CHECKING:
    import torch

    from cog.analysis.kmeans import Clustering
    from cog.analysis.neighbours import Neighbours
    from cog.analysis.rows import Rows
    from cog.features import FeatureSet
    from cog.resume_folder import SavedStates

logger = logging.getLogger(__name__)

_BOTH = ("train", "test")

#: Result files beside results.json.
CLUSTERS_FILE = "clusters.npz"
CLASSES_FILE = "alignment_per_class.csv"


# ------------------------------------------------------------------------------------------------------------
# k-means


def plan_kmeans(request: Request) -> list[Task]:
    """k-means on the training features, compared with the classes of the test images (v1, Sec. 4.3.1).

    Raises:
        CogError: missing features, or scikit-learn is not installed.
    """
    require_scikit_learn()
    cfg = request.cfg.ANALYSIS
    settings = {
        "k": cfg.KMEANS_K,
        "seeds": list(cfg.KMEANS_SEEDS),
        "max_iterations": cfg.KMEANS_ITERATIONS,
        "tolerance": cfg.KMEANS_TOLERANCE,
    }
    return [
        Task(
            "kmeans", _BOTH, settings, partial(_kmeans, settings), ("torch", "numpy", "scikit-learn", "scipy")
        )
    ]


def _kmeans(settings: dict[str, Any], job: Job) -> Outcome:
    import numpy as np

    from cog import files
    from cog.analysis import kmeans
    from cog.analysis.clusters import agreement
    from cog.analysis.rows import Rows

    train, test = job.load("train"), job.load("test")
    _check_dimensions(job, train, test)
    k = settings["k"] or len(train.y.unique())
    if k > len(train):
        raise CogError(
            f"{job.label}{k} clusters need at least as many training images, found {len(train)}; lower "
            "ANALYSIS.KMEANS_K"
        )
    rows = Rows(train, job.device, centred=True)
    test_rows = Rows(test, job.device, shift=rows.shift)
    classes = test.y.numpy()
    per_seed: dict[int, dict[str, Number]] = {}
    runs: dict[str, Any] = {}
    best: tuple[float, int, np.ndarray, np.ndarray] | None = None
    seeds = settings["seeds"]
    for position, seed in enumerate(seeds):
        label = f"{job.label}k-means of seed {seed} ({position + 1} of {len(seeds)})"
        clustering = _finished(job.resume, seed, rows) or kmeans.fit(
            rows,
            k,
            seed=seed,
            max_iterations=settings["max_iterations"],
            tolerance=settings["tolerance"],
            checkpoint=_State(job.resume, f"seed-{seed}.pt"),
            label=label,
        )
        _keep(job.resume, seed, clustering)
        clusters = kmeans.assign(test_rows, clustering.centres).cpu().numpy()
        per_seed[seed] = {"inertia": clustering.inertia, **agreement(classes, clusters)}
        runs[str(seed)] = {
            field.name: getattr(clustering, field.name)
            for field in dataclasses.fields(clustering)
            if field.name not in ("centres", "labels", "inertia")
        }
        logger.info(
            "%s: inertia %.6g after %d iterations (%s), %.0f %% of the distances computed",
            label, clustering.inertia, clustering.iterations, clustering.ended_by, 100 * clustering.computed_frac,
        )  # fmt: skip
        if clustering.n_empty:
            logger.warning(
                "%s: %d of %d clusters are empty: there are not more different features",
                label, clustering.n_empty, k,
            )  # fmt: skip
        if best is None or clustering.inertia < best[0]:
            best = clustering.inertia, seed, clustering.centres.cpu().numpy(), clusters
        interruption.check(f"{position + 1} of {len(seeds)} repetitions of {job.label}k-means are saved")
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
    return Outcome(values, seeds, per_seed, details, summary)


class _State:
    """A state in a resume folder, see :class:`cog.analysis.kmeans.Checkpoint`."""

    def __init__(self, resume: SavedStates, name: str) -> None:
        self._resume, self._name = resume, name

    def load(self) -> dict[str, Any] | None:
        from cog.safe_load import load_torch

        path = self._resume.existing(self._name)
        if path is None:
            return None
        try:
            state = load_torch(path)
        except CogError as error:
            logger.warning("%s; it is started over", error)
            return None
        return state if isinstance(state, dict) else None

    def save(self, state: dict[str, Any]) -> None:
        import torch

        from cog import files

        with files.atomic_write(self._resume.file(self._name)) as handle:
            torch.save(state, handle)


def _keep(resume: SavedStates, seed: int, clustering: Clustering) -> None:
    """Save a finished repetition in the place of its last state."""
    state = {field.name: getattr(clustering, field.name) for field in dataclasses.fields(clustering)}
    del state["labels"]
    _State(resume, f"seed-{seed}.done.pt").save(state | {"centres": clustering.centres.cpu()})
    resume.forget(f"seed-{seed}.pt")


def _finished(resume: SavedStates, seed: int, rows: Rows) -> Clustering | None:
    import torch

    from cog.analysis.kmeans import Clustering

    state = _State(resume, f"seed-{seed}.done.pt").load()
    if state is None:
        return None
    centres = state.pop("centres").to(rows.device)
    return Clustering(centres=centres, labels=torch.empty(0, dtype=torch.int64), **state)


# ------------------------------------------------------------------------------------------------------------
# Alignment and uniformity


def plan_alignment(request: Request) -> list[Task]:
    """Alignment and uniformity of the test features (v1, Sec. 4.3.2)."""
    cfg = request.cfg.ANALYSIS
    settings = {"alpha": cfg.ALIGN_ALPHA, "t": cfg.UNIFORM_T}
    return [Task("alignment", ("test",), settings, partial(_alignment, settings))]


def _alignment(settings: dict[str, Any], job: Job) -> Outcome:
    from cog import files
    from cog.analysis import pairs
    from cog.analysis.rows import Rows

    test = job.load("test")
    rows = Rows(test, job.device, centred=True)

    def on_block() -> None:
        interruption.check(f"nothing of {job.label}alignment is saved; it is started over")

    aligned = pairs.alignment(rows, test.y, alpha=settings["alpha"], on_block=on_block)
    with Progress(pairs.n_blocks(rows.n), f"{job.label}uniformity", unit="blocks of pairs") as progress:

        def on_pairs() -> None:
            progress.update()
            on_block()

        uniform = pairs.uniformity(rows, t=settings["t"], on_block=on_pairs)
    if aligned.value is None:
        logger.warning("%severy class has a single test image: there is no alignment", job.label)
    ratio = None
    if aligned.value is not None and uniform:
        ratio = aligned.value / -uniform
    lines = ["label,alignment\n"]
    lines += [
        f"{label},{'' if value is None else repr(value)}\n" for label, value in aligned.per_class.items()
    ]
    files.write_text(job.stage / CLASSES_FILE, "".join(lines))
    return Outcome(
        {
            "alignment": aligned.value,
            "uniformity": uniform,
            "uniformity_v1": None if uniform is None else -uniform,
            "alignment_by_uniformity": ratio,
        },
        details={
            "positive_pairs": aligned.n_pairs,
            "classes_of_one_image": aligned.n_single,
            "classes": len(aligned.per_class),
            "rows": {"test": len(test)},
            "dim": rows.dim,
            "zero_vectors": _zero_vectors(test),
            "files": [CLASSES_FILE],
        },
    )


# ------------------------------------------------------------------------------------------------------------
# Neighbours and class means


def plan_knn(request: Request) -> list[Task]:
    """k-nearest-neighbour classifiers."""
    cfg = request.cfg.ANALYSIS
    settings = {"k": sorted(cfg.KNN_K), "temperature": cfg.KNN_TEMPERATURE}
    return [Task("knn", _BOTH, settings, partial(_knn, settings))]


def _knn(settings: dict[str, Any], job: Job) -> Outcome:
    from cog.analysis import neighbours
    from cog.analysis.rows import Rows

    train, test = job.load("train"), job.load("test")
    _check_dimensions(job, train, test)
    labels, index, unseen = _train_classes(job, train, test)
    wanted = settings["k"]
    possible = [k for k in wanted if k <= len(train)]
    if len(possible) < len(wanted):
        logger.warning(
            "%sthere are %d training images: k = %s is undefined",
            job.label, len(train), ", ".join(str(k) for k in wanted if k not in possible),
        )  # fmt: skip
    values: dict[str, Number] = {}
    ranked: dict[tuple[str, int], torch.Tensor] = {}
    if possible:
        found = _neighbours(job, Rows(train, job.device), Rows(test, job.device), max(possible))
        for way, temperature in (("weighted", settings["temperature"]), ("majority", None)):
            for k, classes in neighbours.vote(found, index, possible, temperature=temperature).items():
                ranked[way, k] = classes
    for way in ("weighted", "majority"):
        for k in wanted:
            top1 = top5 = None
            if (way, k) in ranked:
                classes = ranked[way, k]
                classes = classes.where(classes < 0, labels[classes.clamp(min=0)])
                top1, top5 = neighbours.accuracy(classes, _marked(test, unseen))
            values[f"top1_k{k}_{way}"], values[f"top5_k{k}_{way}"] = top1, top5
    shown = {key: value for key, value in values.items() if key.startswith("top1") and "weighted" in key}
    summary = "  ".join(f"{key} {'undefined' if v is None else f'{v:.2f}'}" for key, v in shown.items())
    return Outcome(values, details=_classifier_details(train, test, labels, unseen), summary=summary)


def _neighbours(job: Job, train: Rows, test: Rows, k: int) -> Neighbours:
    """Find neighbours; what is found is saved now and then."""
    from cog.analysis import neighbours
    from cog.analysis.kmeans import SAVE_SECONDS

    kept = _State(job.resume, "neighbours.pt")
    state = kept.load()
    done = None if state is None else neighbours.Neighbours(state["index"], state["similarity"])
    saved_at = time.monotonic()
    with Progress(test.n, f"{job.label}neighbours", unit="images") as progress:
        progress.skip(0 if done is None else len(done.index))

        def on_block(parts: Sequence[Neighbours]) -> None:
            nonlocal saved_at
            progress.update(len(parts[-1].index))
            if interruption.requested() or time.monotonic() - saved_at >= SAVE_SECONDS:
                so_far = neighbours.joined(parts)
                kept.save({"index": so_far.index, "similarity": so_far.similarity})
                saved_at = time.monotonic()
            interruption.check(f"the neighbours of {progress.done} of {test.n} test images are saved")

        return neighbours.find(train, test, k, done=done, on_block=on_block)


def plan_ncm(request: Request) -> list[Task]:
    """Nearest-class-mean classifiers."""
    return [Task("ncm", _BOTH, {}, _ncm)]


def _ncm(job: Job) -> Outcome:
    from cog.analysis import class_means
    from cog.analysis.neighbours import accuracy
    from cog.analysis.rows import Rows

    train, test = job.load("train"), job.load("test")
    _check_dimensions(job, train, test)
    labels, _, unseen = _train_classes(job, train, test)
    means = class_means.fit(Rows(train, job.device), train.y)
    test_rows = Rows(test, job.device)
    values: dict[str, Number] = {}
    for metric in ("cosine", "euclidean"):
        ranked = class_means.predict(means, test_rows, metric=metric)
        values[f"top1_{metric}"], values[f"top5_{metric}"] = accuracy(ranked, _marked(test, unseen))
    return Outcome(values, details=_classifier_details(train, test, labels, unseen))


def _train_classes(
    job: Job, train: FeatureSet, test: FeatureSet
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Return the labels in training, ascending, the position among them of every row's, and test labels without any."""
    import torch

    labels, index = torch.unique(train.y, return_inverse=True)
    unseen = [int(label) for label in torch.unique(test.y) if not (labels == label).any()]
    if unseen:
        logger.warning(
            "%s%d classes of the test features have no training features (%s%s): their images count as errors",
            job.label, len(unseen), ", ".join(map(str, unseen[:5])), ", ..." if len(unseen) > 5 else "",
        )  # fmt: skip
    return labels, index, unseen


def _marked(test: FeatureSet, unseen: list[int]) -> torch.Tensor:
    """Return the test labels, with those of classes without training images out of the range of any prediction."""
    import torch

    if not unseen:
        return test.y
    never = torch.full_like(test.y, torch.iinfo(torch.int64).min)
    return torch.where(torch.isin(test.y, torch.tensor(unseen)), never, test.y)


def _classifier_details(
    train: FeatureSet, test: FeatureSet, labels: torch.Tensor, unseen: list[int]
) -> dict[str, Any]:
    return {
        "rows": {"train": len(train), "test": len(test)},
        "dim": train.x.shape[1],
        "classes": len(labels),
        "test_classes_without_training": unseen,
        "zero_vectors": _zero_vectors(test),
    }


def _zero_vectors(features: FeatureSet) -> int:
    """Count rows of zeros, which l2 normalisation leaves as they are."""
    return sum(int((~part.any(dim=1)).sum()) for part in features.x.split(1024))


def _check_dimensions(job: Job, train: FeatureSet, test: FeatureSet) -> None:
    if train.x.shape[1] != test.x.shape[1]:
        raise CogError(
            f"{job.label}training features have {train.x.shape[1]} dimensions and test features "
            f"{test.x.shape[1]}; extract both splits with the same model"
        )
