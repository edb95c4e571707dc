"""What the toolkit knows about results: one :class:`Run` per seed, one :class:`SeedAverage` per set of seeds.

Tables, figures and reports are views of these records, wherever they come from: run folders (:mod:`cog.results.find`),
the papers (:mod:`cog.results.published`), or other people's files (:mod:`cog.results.exchange`).
"""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cog import constants
from cog.data import datasets
from cog.errors import CogError
from cog.runtime.json_fields import whole

#: ``source`` of runs found on disk.
RUNS = "runs"


@dataclass(frozen=True)
class Details:
    """What ``results.json`` tells about a run beside its accuracy; all empty for the original toolkit's runs.

    Entries that are absent, or not of the type given here, are empty or None: this is for showing, and no number
    is computed from it.

    Attributes:
        settings: the protocol's settings (``Settings`` of :mod:`cog.logreg.settings`) as recorded: numbers,
            booleans, None, and lists of two numbers: ``seed``, ``n_shot``, ``n_trials``, ``n_epochs``,
            ``batch_size``, ``momentum``, ``val_frac``, ``lr_interval``, ``wd_interval``, ``normalize``, ``lr``,
            ``wd`` (the last two only without a search).
        train_features: recorded identity of the training features: ``bytes``, ``checkpoint_sha256``,
            ``image_list_sha256``.
        test_features: the same of the test features.
        train_features_file: path of the training features as the run saw it.
        test_features_file: the same of the test features.
        n_classes: number of classes.
        feature_dim: dimensions of the features.
        rows: numbers of samples: ``search_train``, ``search_val``, ``final_train``, ``test``.
        n_trials: trials of the search that were recorded.
        n_trials_diverged: how many of them diverged.
        best_trial: number of the trial whose pair was used; None without a search.
        best_val_top1: its accuracy on the held-out part, in percent.
        seconds: durations of ``search`` and ``final``.
        versions: of Python packages.
        device: ``cpu``, ``cuda:0``, ...
        finished: ISO 8601 time in UTC.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    train_features: Mapping[str, Any] = field(default_factory=dict)
    test_features: Mapping[str, Any] = field(default_factory=dict)
    train_features_file: str | None = None
    test_features_file: str | None = None
    n_classes: int | None = None
    feature_dim: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    n_trials: int = 0
    n_trials_diverged: int = 0
    best_trial: int | None = None
    best_val_top1: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    finished: str | None = None


@dataclass(frozen=True)
class Run:
    """One finished classifier run: one model, data set, number of shots and seed.

    ``details`` holds what a report shows beside the accuracy; it takes no part in comparisons.
    """

    model: str
    dataset: str
    n_shot: int  # training images per class, 0 = all
    seed: int
    top1: float  # percent, last epoch
    top5: float
    n_epochs: int  # in the log: fewer than planned when it diverged, or when L-BFGS had converged
    lr: float | None  # of the final training; None where the folder does not tell
    wd: float | None
    diverged: bool  # as the run recorded it; runs of the original toolkit do not
    path: Path  # the seed folder
    final_folder: str  # its subfolder with logs.pkl
    details: Details = field(default_factory=Details, compare=False, repr=False)
    evaluation: str = "logreg"  # EVAL.NAME with what tells variants apart: logreg, mlp, logreg_pca256, ...

    @property
    def planned_epochs(self) -> int:
        """Epochs it was to be trained for; of runs that do not tell, those in the log."""
        planned = self.details.settings.get("n_epochs")
        return planned if type(planned) is int and planned > 0 else self.n_epochs


@dataclass(frozen=True)
class Problem:
    """A folder that was not counted, and why.

    Attributes:
        path: the folder.
        reason: one line.
        state: ``RUNNING``, ``INTERRUPTED`` or ``FAILED`` when its run has not finished; "" when the folder is not as
            it should be.
    """

    path: Path
    reason: str
    state: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Counts:
    """Numbers of classes and images behind results; empty where nothing says, several where the results disagree."""

    classes: tuple[int, ...] = ()  # ascending, as the next two
    train_images: tuple[int, ...] = ()  # of the whole training set: few-shot runs do not tell
    test_images: tuple[int, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        """Return the numbers behind both."""
        return Counts(
            _distinct((*self.classes, *other.classes)),
            _distinct((*self.train_images, *other.train_images)),
            _distinct((*self.test_images, *other.test_images)),
        )


def _distinct(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(sorted({value for value in values if whole(value)}))


@dataclass(frozen=True)
class SeedAverage:
    """One number of one model on one data set, averaged over seeds: of runs, an analysis, a publication, or a file.

    Attributes:
        model: name.
        dataset: data set.
        evaluation: name of the evaluation (``logreg``, ``mlp``, ``logreg_pca256``) or of the analysis (``kmeans``).
        metric: which of its numbers (``top1``, ``ami``).
        n_shot: training images per class of a classifier, 0 = all.
        value: the number; accuracies in percent.
        std: population standard deviation over seeds; None where nothing is random, or it is not known.
        seeds: ascending; empty where nothing is random, or they are not known.
        missing_seeds: expected but absent.
        by_seed: values in the order of ``seeds``; empty where only ``value`` is known.
        source: ``"runs"``, ``"paper v2"``, ``"paper v1"``, or the label of an imported file.
        epochs: that each run was to be trained for, in the order of ``seeds``; or empty.
        counts: numbers of classes and images behind its runs.
    """

    model: str
    dataset: str
    evaluation: str
    metric: str
    n_shot: int
    value: float
    std: float | None = None
    seeds: tuple[int, ...] = ()
    missing_seeds: tuple[int, ...] = ()
    by_seed: tuple[float, ...] = ()
    source: str = RUNS
    epochs: tuple[int, ...] = ()
    counts: Counts = Counts()

    @property
    def key(self) -> tuple[str, str, int]:
        """Which number it is, whatever the model and the data set."""
        return self.evaluation, self.metric, self.n_shot

    @property
    def values(self) -> dict[int, float]:
        """The values by seed; empty when they are not known."""
        return dict(zip(self.seeds, self.by_seed, strict=True)) if self.by_seed else {}


@functools.lru_cache(4096)
def natural_key(name: str) -> tuple[Any, ...]:
    """Sort key that orders ``x2`` before ``x10``; ties are broken by the plain spelling."""
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if index % 2 else part.casefold() for index, part in enumerate(parts)), name


@functools.lru_cache(4096)
def dataset_key(dataset: str) -> tuple[Any, ...]:
    """Sort key: data sets in the order of :mod:`cog.data.datasets`, then a user's own by name."""
    position = datasets.position(dataset)
    return (1, (), natural_key(dataset)) if position is None else (0, position, ())


def default_seeds(runs: Iterable[Run]) -> tuple[int, ...]:
    """Return the seeds to expect: the protocol's five when all runs are among them, else those found."""
    found = {run.seed for run in runs}
    return constants.SEEDS if found <= set(constants.SEEDS) else tuple(sorted(found))


def summarise(runs: Iterable[Run], expected_seeds: Iterable[int] = ()) -> list[SeedAverage]:
    """Average the accuracies of each model, data set and number of shots over their seeds.

    The standard deviation is that of the population (divided by n), as in the original toolkit.

    Args:
        runs: of one evaluation; every one counts, also one whose seed is not expected.
        expected_seeds: seeds that each average should have.

    Returns:
        Two averages, top-1 and top-5, of each combination that has a run, sorted as :func:`find_runs` sorts.

    Raises:
        CogError: when two runs have the same model, data set, shots and seed.
    """
    expected = sorted(set(expected_seeds))
    groups: dict[tuple[str, str, int], dict[int, Run]] = {}
    for run in runs:
        group = groups.setdefault((run.model, run.dataset, run.n_shot), {})
        if run.seed in group:
            raise CogError(f"{run.path} and {group[run.seed].path} are the same run; keep one of them")
        group[run.seed] = run
    order = sorted(groups, key=lambda key: (natural_key(key[0]), dataset_key(key[1]), key[2]))
    return [average for key in order for average in _averages(groups[key], expected)]


def _averages(by_seed: Mapping[int, Run], expected: Sequence[int]) -> Iterator[SeedAverage]:
    runs = [by_seed[seed] for seed in sorted(by_seed)]
    counts = Counts(
        _distinct(run.details.n_classes for run in runs),
        _distinct(run.details.rows.get("final_train") for run in runs if run.n_shot == 0),
        _distinct(run.details.rows.get("test") for run in runs),
    )
    for metric in ("top1", "top5"):
        values = tuple(getattr(run, metric) for run in runs)
        mean, std = mean_std(values)
        yield SeedAverage(
            model=runs[0].model,
            dataset=runs[0].dataset,
            evaluation=runs[0].evaluation,
            metric=metric,
            n_shot=runs[0].n_shot,
            value=mean,
            std=std,
            seeds=tuple(run.seed for run in runs),
            missing_seeds=tuple(seed for seed in expected if seed not in by_seed),
            by_seed=values,
            epochs=tuple(run.planned_epochs for run in runs),
            counts=counts,
        )


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the population standard deviation of numbers, at least one."""
    mean = statistics.fmean(values)
    # statistics.pstdev computes with fractions, a hundred times slower; fsum rounds once as well.
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return mean, 0.0 if min(values) == max(values) else math.sqrt(variance)


def of_metric(averages: Iterable[SeedAverage], metric: str) -> list[SeedAverage]:
    """Return the averages of one metric."""
    return [average for average in averages if average.metric == metric]
