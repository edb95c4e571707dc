"""Checks of results for facts that limit the trust in them: each finding is a notice with advice.

A check is a function from results to notices; :data:`CHECKS` has all of them.
"""

from __future__ import annotations

import functools
import math
import operator
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from cog.results import official
from cog.results.labels import counted, dataset_label, shots_title
from cog.results.official import Match
from cog.results.run_records import Run
from cog.results.scores import LOGREG, RUNS, SeedAverage, grouped, of_metric
from cog.results.search_history import FeatureDescription, features_of, interval, plain
from cog.runtime.output_folder import INTERRUPTED, RUNNING

if TYPE_CHECKING:
    from cog.results.query import QueryResult

_Item = TypeVar("_Item")

#: Severities in descending order: wrong numbers, doubtful numbers.
PROBLEM, WARNING = "problem", "warning"

#: Settings of the paper's protocol (Sec. 4.1, supplement B.3; epochs and intervals: configuration of the original
#: toolkit): the name in the records of runs, the value, and the configuration key.
PROTOCOL: dict[str, tuple[Any, str]] = {
    "n_trials": (30, "CLF.N_TRIALS"),
    "n_epochs": (100, "CLF.N_EPOCHS"),
    "batch_size": (1024, "CLF.BATCH_SIZE"),
    "momentum": (0.9, "--mom"),
    "val_frac": (0.2, "CLF.VAL_PERC"),
    "lr_interval": ([0.1, 100.0], "CLF.LR_INTV"),
    "wd_interval": ([1e-12, 1e-4], "CLF.WD_INTV"),
    "normalize": (True, "CLF.NORM_FTS"),
}

# Names of the settings that all runs of a model and classifier should share, with their keys; epochs have a check of
# their own.
_SETTINGS = {name: key for name, (_, key) in PROTOCOL.items() if name != "n_epochs"} | {
    name: name for name in ("classifier", "mlp_hidden", "mlp_layers", "pca_dim", "max_per_class")
}

# A learning rate within this distance of the end, as a share of the logarithmic length of the interval, is at the edge.
_EDGE_SHARE = 0.02

# Maximal number of places, and of commands, in a notice.
_MANY = 12


@dataclass(frozen=True)
class Notice:
    """One finding: what it is, where, and what to do."""

    severity: str  # PROBLEM or WARNING
    title: str  # finding in a few words
    advice: str  # its meaning, and what to do
    places: tuple[str, ...] = ()  # one line each
    commands: tuple[str, ...] = ()  # shell commands that repair it


@dataclass(frozen=True)
class Subject:
    """What the checks look at: results, descriptions of their features, and the folder of all models for commands."""

    results: QueryResult
    features: Mapping[tuple[str, str, str], FeatureDescription]  # by model, data set and split
    root: str

    @property
    def groups(self) -> dict[tuple[str, str], list[Run]]:
        """Runs by model and evaluation, those of other classifiers included."""
        runs = (*self.results.runs, *self.results.other_runs)
        return grouped(runs, operator.attrgetter("model", "evaluation"))


def collect(
    results: QueryResult, features: Mapping[tuple[str, str, str], FeatureDescription], *, root: str
) -> list[Notice]:
    """Return all notices, problems first.

    Args:
        results: results of a query.
        features: descriptions of the features of their runs (:func:`cog.results.search_history.features_of`).
        root: folder of all models, for commands.
    """
    subject = Subject(results, features, root)
    notices = [notice for check in CHECKS for notice in check(subject)]
    return sorted(notices, key=lambda notice: notice.severity != PROBLEM)


def of_runs(results: QueryResult) -> list[Notice]:
    """Return the notices on the training of runs and on their features, which tables do not show."""
    subject = Subject(results, features_of(results.runs), "")
    checks = (_changed_features, _diverged, _differing_settings, _differing_epochs)
    return [notice for check in checks for notice in check(subject)]


def _notice(
    severity: str, title: str, advice: str, places: Sequence[str], *, commands: Sequence[str] = ()
) -> Iterator[Notice]:
    """Yield one notice with the first places and commands, or none without places."""
    if places:
        more = [f"and {len(places) - _MANY} more"] * (len(places) > _MANY)
        yield Notice(severity, title, advice, (*places[:_MANY], *more), tuple(commands[:_MANY]))


def _differing(
    label: str, value: Callable[[_Item], Any], items: Iterable[_Item], describe: Callable[[_Item], str]
) -> list[str]:
    """Return a line for each value of a property when there are several, the rarest first; unknown do not count."""
    known = [(text, item) for item in items if (text := plain(value(item))) is not None]
    by_text = sorted(grouped(known, operator.itemgetter(0)).items(), key=lambda item: len(item[1]))
    lines = []
    for text, having in by_text if len(by_text) > 1 else ():
        places = [describe(item) for _, item in having]
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        lines.append(f"{label} {text}: {'; '.join(places[:3])}{more}")
    return lines


def _place(model: str, dataset: str, n_shot: int) -> str:
    return f"{model}, {dataset_label(dataset)}, {shots_title(n_shot)}"


def _run(run: Run) -> str:
    variant = "" if run.evaluation == LOGREG else f"{run.evaluation}, "
    return f"{variant}{_place(run.model, run.dataset, run.n_shot)}, seed {run.seed}"


def run_settings(run: Run) -> dict[str, Any]:
    """Return the recorded settings of a run, with its planned number of epochs."""
    return {**run.details.settings, "n_epochs": run.n_epochs}


def _setting(name: str, run: Run) -> Any:
    return run.details.settings.get(name)


def _same(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(value, list | tuple) and list(value) == expected
    return type(value) is type(expected) and value == expected


# --- the checks


def _missing_seeds(of: Subject) -> Iterator[Notice]:
    cells = [cell for cell in of_metric(of.results.cells, "top1") if cell.source == RUNS]
    incomplete = [cell for cell in cells if cell.missing_seeds]
    # No command repairs runs outside the layout, whose model is not known.
    alike = grouped(
        (cell for cell in incomplete if cell.model),
        lambda cell: (cell.model, cell.missing_seeds, bool(cell.n_shot)),
    )
    yield from _notice(
        WARNING,
        f"Seeds are missing in {len(incomplete):,} of {counted(len(cells), 'result')}",
        "Means over fewer seeds are less certain. Run the missing seeds; complete runs are skipped.",
        [
            f"{_place(cell.model, cell.dataset, cell.n_shot)}: {len(cell.seeds)} of {cell.n_expected}, "
            f"missing {', '.join(map(str, cell.missing_seeds))}"
            for cell in incomplete
        ],
        commands=[_command(of, group) for group in alike.values()],
    )


def _command(of: Subject, cells: Sequence[SeedAverage]) -> str:
    """Return the command for missing seeds of one model, with the settings that its runs share."""
    model, shots = cells[0].model, sorted({cell.n_shot for cell in cells} - {0})
    variables: dict[str, Iterable[Any]] = {
        "models_root_dir": [of.root],
        "model_name": [model],
        "dataset": dict.fromkeys(cell.dataset for cell in cells),
        "shots": shots,
        "seeds": cells[0].missing_seeds,
    }
    texts = {name: " ".join(map(str, values)) for name, values in variables.items()}
    words = [f"{name}={shlex.quote(text)}" for name, text in texts.items() if text]
    settings = [run_settings(run) for run in of.results.runs if run.model == model]
    for name, (expected, key) in PROTOCOL.items():
        values = [given.get(name) for given in settings]
        shared = values and values[0] is not None and all(_same(value, values[0]) for value in values)
        if shared and not _same(values[0], expected) and key.startswith("CLF."):
            text = str(tuple(values[0])) if isinstance(values[0], list | tuple) else str(values[0])
            words.append(f"{key} {shlex.quote(text)}")
    return f"bash bash-scripts/{'fewshot.sh' if shots else 'logreg.sh'} {' '.join(words)}"


def _folders(of: Subject) -> Iterator[Notice]:
    unfinished = [problem for problem in of.results.problems if problem.state in (RUNNING, INTERRUPTED)]
    failed = [problem for problem in of.results.problems if problem not in unfinished]
    yield from _notice(
        WARNING,
        f"{counted(len(failed), 'folder')} not counted",
        "These could not be read as finished runs, so no score includes them. Look at the reason of each; repeat a "
        "damaged run with --overwrite, or move the folder away.",
        list(map(str, failed)),
    )
    yield from _notice(
        WARNING,
        f"{counted(len(unfinished), 'run')} not finished",
        "No score includes them yet. The command that began an interrupted run continues it.",
        list(map(str, unfinished)),
    )


def _other_data(of: Subject) -> Iterator[Notice]:
    yield from _notice(
        WARNING,
        "Not the benchmark's data",
        "These are not compared with published numbers, which would mean nothing. To compare with the paper, extract "
        "features of the complete IN-1K and of the levels in the authors' level files.",
        [
            f"{model}, {dataset_label(dataset)}: {'; '.join(verdict.differences)}"
            for (model, _, dataset), verdict in official.compare(of.results.cells).verdicts.items()
            if verdict.match is Match.DIFFERENT
        ],
    )


def _other_classes(of: Subject) -> Iterator[Notice]:
    yield from _notice(
        WARNING,
        "Different classes under one name",
        "These results are not compared with each other. Extract features and train the classifiers on the same "
        "classes; for the levels, with the same level files.",
        official.compare(of.results.cells).mixed_places,
    )


def _differing_settings(of: Subject) -> Iterator[Notice]:
    yield from _notice(
        WARNING,
        "Different settings between results of one model",
        "They do not compare with each other. Repeat the odd ones with the same settings and --overwrite.",
        [
            line
            for runs in of.groups.values()
            for name, key in _SETTINGS.items()
            for line in _differing(key, functools.partial(_setting, name), runs, _run)
        ],
    )


def _differing_epochs(of: Subject) -> Iterator[Notice]:
    yield from _notice(
        WARNING,
        "Different numbers of epochs",
        "These should not be averaged or compared. Repeat the odd ones with the same CLF.N_EPOCHS and --overwrite.",
        [
            line
            for runs in of.groups.values()
            for line in _differing("epochs", lambda run: run.n_epochs, runs, _run)
        ],
    )


def _other_protocol(of: Subject) -> Iterator[Notice]:
    settings = [run_settings(run) for run in of.results.runs]
    lines = []
    for name, (expected, key) in PROTOCOL.items():
        other = [given[name] for given in settings if name in given and not _same(given[name], expected)]
        if other:
            shown = ", ".join(sorted({f"{plain(value)}" for value in other}))
            lines.append(f"{key}: {shown} instead of {plain(expected)} ({counted(len(other), 'run')})")
    yield from _notice(
        WARNING,
        "Settings differ from the paper's protocol",
        "Published results were made with the protocol's. To compare with the paper, run again with the defaults; "
        "otherwise name the settings with the scores.",
        lines,
    )


def _diverged(of: Subject) -> Iterator[Notice]:
    lost = [run for runs in of.groups.values() for run in runs if run.diverged]
    yield from _notice(
        PROBLEM,
        f"Final training diverged in {counted(len(lost), 'run')}",
        "The weights were no longer finite; these accuracies mean nothing but are counted in the averages. Lower the "
        'interval of learning rates, such as CLF.LR_INTV "(0.1, 10)", and run again with --overwrite.',
        [f"{_run(run)}: {run.path}" for run in lost],
    )


def _edges(of: Subject) -> Iterator[Notice]:
    at_edge = [
        run for run in of.results.runs if at_upper_edge(run.lr, run.details.settings.get("lr_interval"))
    ]
    yield from _notice(
        WARNING,
        f"Learning rate at the upper end of its interval in {counted(len(at_edge), 'run')}",
        "The best value may lie outside, and the score below what the features allow. Widen CLF.LR_INTV for a trial "
        "and see whether the validation accuracy rises; name the interval when you report scores.",
        [f"{_run(run)}: {run.lr:.3g}" for run in at_edge],
    )


def at_upper_edge(value: float | None, recorded: Any) -> bool:
    """Return whether ``value`` lies at the upper end of a recorded log-uniform interval."""
    ends = interval(recorded)
    if value is None or value <= 0 or ends is None:
        return False
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0]) >= 1 - _EDGE_SHARE


def _checkpoints(of: Subject) -> Iterator[Notice]:
    apart = []
    for run in of.results.runs:
        used = (run.details.train_features, run.details.test_features)
        if len({identity.get("checkpoint_sha256") or None for identity in used} - {None}) > 1:
            apart.append(_run(run))
    for model, group in grouped(of.features.items(), lambda item: item[0][0]).items():
        apart += _differing(
            f"{model}, checkpoint",
            lambda made: made.checkpoint_sha256 and made.checkpoint_sha256[:12],
            [made for _, made in group],
            lambda made: f"{dataset_label(made.dataset)} {made.split}",
        )
    yield from _notice(
        PROBLEM,
        "Features of different checkpoints",
        "Another checkpoint is another model: these scores mean nothing together. Extract all splits with the same "
        "checkpoint (extract_features.py --overwrite) and run the classifiers again with --overwrite.",
        apart,
    )


def _changed_features(of: Subject) -> Iterator[Notice]:
    def changed(run: Run) -> bool:
        used = {"train": run.details.train_features, "test": run.details.test_features}
        return any(
            before and after and before != after
            for split, identity in used.items()
            for entry in ("checkpoint_sha256", "sample_sha256")
            for before in [identity.get(entry)]
            for after in [getattr(of.features.get((run.model, run.dataset, split)), entry, None)]
        )

    yield from _notice(
        PROBLEM,
        "Features changed after the runs",
        "The features on disk now are not those the runs used. Run the classifiers again with --overwrite, or restore "
        "the features.",
        list(map(_run, filter(changed, of.results.runs))),
    )


def _failed_images(of: Subject) -> Iterator[Notice]:
    failed = [(model, made) for (model, *_), made in of.features.items() if made.n_failed]
    yield from _notice(
        WARNING,
        f"{counted(sum(made.n_failed or 0 for _, made in failed), 'image')} could not be decoded",
        "They are missing from the features. Fix the files listed in failed_images.txt beside the features, then "
        "extract and run again.",
        [
            f"{model}, {dataset_label(made.dataset)} {made.split}: {counted(made.n_failed or 0, 'image')}"
            for model, made in failed
        ],
    )


#: The checks, in the order of their notices.
CHECKS: tuple[Callable[[Subject], Iterator[Notice]], ...] = (
    _missing_seeds,
    _folders,
    _other_data,
    _other_classes,
    _differing_settings,
    _differing_epochs,
    _other_protocol,
    _diverged,
    _edges,
    _checkpoints,
    _changed_features,
    _failed_images,
)
