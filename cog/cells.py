"""What the toolkit knows about accuracies: one :class:`Run` per seed, one :class:`Cell` per set of seeds.

Tables, figures and reports are views of these records, wherever they come from: run folders
(:mod:`cog.results`), the papers (:mod:`cog.published`), or other people's files (:mod:`cog.exchange`).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cog import names
from cog.errors import CogError

#: ``Cell.source`` of runs found on disk.
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


#: ``Problem.state`` of output folders that nothing is wrong with but that have no result yet.
RUNNING, INTERRUPTED, FAILED = "running", "interrupted", "failed"


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
class Score:
    """Mean and population standard deviation over seeds, in percent.

    ``std`` is None where a publication does not give it (the paper's first version).
    """

    mean: float
    std: float | None


@dataclass(frozen=True)
class Cell:
    """All seeds of one model, data set and number of shots: of runs, of a publication, or of a file."""

    model: str
    dataset: str
    n_shot: int  # training images per class, 0 = all
    top1: Score
    top5: Score | None  # None: not published
    seeds: tuple[int, ...]  # ascending; empty for published cells
    missing_seeds: tuple[int, ...]
    epochs: tuple[int, ...]  # that each run was to be trained for, in the order of ``seeds``
    source: str = RUNS  # "runs", "paper v2", "paper v1", or the label of an imported file
    top1_by_seed: tuple[
        float, ...
    ] = ()  # percent, in the order of ``seeds``; empty where only the mean is known
    top5_by_seed: tuple[float, ...] = ()

    def score(self, metric: str) -> Score | None:
        """Return the score of ``"top1"`` or ``"top5"``; None when it is not known."""
        return {"top1": self.top1, "top5": self.top5}[metric]

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return the accuracies (percent) of ``"top1"`` or ``"top5"`` by seed; empty when they are not known."""
        values = {"top1": self.top1_by_seed, "top5": self.top5_by_seed}[metric]
        return dict(zip(self.seeds, values, strict=True)) if values else {}


def natural_key(name: str) -> tuple[Any, ...]:
    """Sort key that orders ``x2`` before ``x10``; ties are broken by the plain spelling."""
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if index % 2 else part.casefold() for index, part in enumerate(parts)), name


def dataset_key(dataset: str) -> tuple[Any, ...]:
    """Sort key: in1k, its blurred version, then cog_l1, cog_l2 ... by level, then a user's own data sets by name."""
    level = names.cog_level(dataset)
    if dataset in (names.IN1K, names.IN1K_BLURRED):
        return (0, int(dataset == names.IN1K_BLURRED), ())
    return (2, 0, natural_key(dataset)) if level is None else (1, level, ())


def default_seeds(runs: Iterable[Run]) -> tuple[int, ...]:
    """Return the seeds to expect: the protocol's five when all runs are among them, else those found."""
    found = {run.seed for run in runs}
    return names.SEEDS if found <= set(names.SEEDS) else tuple(sorted(found))


def summarise(runs: Iterable[Run], expected_seeds: Iterable[int] = ()) -> list[Cell]:
    """Average the runs of each model, data set and number of shots over their seeds.

    The standard deviation is that of the population (divided by n), as in the original toolkit.

    Args:
        runs: any runs; every one counts, also one whose seed is not expected.
        expected_seeds: seeds that each cell should have.

    Returns:
        One cell per combination that has at least one run, sorted as :func:`find_runs` sorts.

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
    return [_cell(key, groups[key], expected) for key in order]


def _cell(key: tuple[str, str, int], by_seed: Mapping[int, Run], expected: Sequence[int]) -> Cell:
    runs = [by_seed[seed] for seed in sorted(by_seed)]
    return Cell(
        model=key[0],
        dataset=key[1],
        n_shot=key[2],
        top1=_score([run.top1 for run in runs]),
        top5=_score([run.top5 for run in runs]),
        seeds=tuple(run.seed for run in runs),
        missing_seeds=tuple(seed for seed in expected if seed not in by_seed),
        epochs=tuple(run.planned_epochs for run in runs),
        top1_by_seed=tuple(run.top1 for run in runs),
        top5_by_seed=tuple(run.top5 for run in runs),
    )


def _score(values: Sequence[float]) -> Score:
    mean = statistics.fmean(values)
    # statistics.pstdev computes with fractions, a hundred times slower; fsum rounds once as well.
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return Score(mean=mean, std=0.0 if min(values) == max(values) else math.sqrt(variance))
