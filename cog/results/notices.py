"""Checks of results for facts that limit the trust in them: each finding is a notice with advice.

A check is a function from results to notices; :data:`CHECKS` has all of them, for the terminal and the page.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cog import constants
from cog.errors import some
from cog.results.benchmark import PROTOCOL, plain
from cog.results.fields import text, whole
from cog.results.frame import LOGREG, RUNS, dataset_label, is_odd, shots_column
from cog.results.records import Run
from cog.results.runs import Found
from cog.runtime.output import INTERRUPTED, RUNNING

#: Severities in descending order: wrong numbers, doubtful numbers.
PROBLEM, WARNING = "problem", "warning"

# Maximal number of places, and of commands, in a notice.
_MANY = 12


@dataclass(frozen=True)
class Notice:
    """One finding: what it is, where, and what to do."""

    severity: str  # PROBLEM or WARNING
    title: str  # finding in a few words
    advice: str  # its meaning, and what to do
    places: tuple[str, ...]  # one line each
    commands: tuple[str, ...] = ()  # shell commands that repair it


@dataclass(frozen=True)
class Subject:
    """What the checks look at."""

    means: pd.DataFrame  # shown means of runs
    found: Found  # the runs behind them, and what was skipped
    root: str  # folder of all models, for commands; "" outside the layout


def check(means: pd.DataFrame, found: Found, *, root: str = "") -> list[Notice]:
    """Return all notices on the runs that were found below a root, problems first."""
    return _check(CHECKS, Subject(means[means["source"] == RUNS], found, root))


def of_training(means: pd.DataFrame, found: Found) -> list[Notice]:
    """Return the notices on the training of runs and on their features, which tables do not show."""
    return _check(
        (_diverged, _changed_features, _checkpoints, _differing_settings), Subject(means, found, "")
    )


def _check(checks: Sequence[Callable[[Subject], Iterator[Notice]]], subject: Subject) -> list[Notice]:
    notices = [notice for each in checks for notice in each(subject)]
    return sorted(notices, key=lambda notice: notice.severity != PROBLEM)


def _notice(
    severity: str, title: str, advice: str, places: Sequence[str], commands: Sequence[str] = ()
) -> Iterator[Notice]:
    """Yield one notice with the first places and commands, or none without places."""
    if places:
        more = [f"and {len(places) - _MANY:,} more"] * (len(places) > _MANY)
        yield Notice(severity, title, advice, (*places[:_MANY], *more), tuple(commands[:_MANY]))


def place_of(row: Any) -> str:
    """Return ``sup_resnet50, L1, N=8`` for a run, or for a row of a frame."""
    kind = "" if row.evaluation == LOGREG else f"{row.evaluation}, "
    return f"{kind}{row.model or 'these runs'}, {dataset_label(row.dataset)}, {shots_column(row.n_shot)}"


def _run(run: Run) -> str:
    return f"{place_of(run)}, seed {run.seed}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _missing_seeds(of: Subject) -> Iterator[Notice]:
    top1 = of.means[of.means["metric"] == "top1"]
    incomplete = top1[top1["missing"] != ""]
    groups = incomplete.assign(few=incomplete["n_shot"] > 0).groupby(["model", "missing", "few"], sort=False)
    yield from _notice(
        WARNING,
        f"Seeds are missing in {len(incomplete):,} of {_counted(len(top1), 'result')}",
        "Means over fewer seeds are less certain. Run the missing seeds; complete runs are skipped.",
        [f"{place_of(row)}: missing {row.missing.replace(' ', ', ')}" for row in incomplete.itertuples()],
        [_command(of, part) for (model, *_), part in groups if model],
    )


def _command(of: Subject, part: pd.DataFrame) -> str:
    """Return the command for missing seeds of one model, with the settings that its runs share."""
    model, shots = part["model"].iloc[0], sorted(set(part["n_shot"]) - {0})
    variables = {
        "models_root_dir": [of.root],
        "model_name": [model],
        "dataset": part["dataset"].unique(),
        "shots": shots,
        "seeds": part["missing"].iloc[0].split(),
    }
    texts = {name: " ".join(map(str, values)) for name, values in variables.items()}
    words = [f"{name}={shlex.quote(value)}" for name, value in texts.items() if value]
    settings = [run.settings for run in of.found.runs if run.model == model]
    for name, (usual, key) in PROTOCOL.items():
        values = {json.dumps(given.get(name)) for given in settings}
        if len(values) == 1 and key.startswith("CLF.") and "null" not in values:
            value = json.loads(values.pop())
            if value != usual:
                shown = str(tuple(value)) if isinstance(value, list) else str(value)
                words.append(f"{key} {shlex.quote(shown)}")
    return f"bash bash-scripts/{'fewshot.sh' if shots else 'logreg.sh'} {' '.join(words)}"


def _folders(of: Subject) -> Iterator[Notice]:
    unfinished = [one for one in of.found.skipped if one.state in (RUNNING, INTERRUPTED)]
    yield from _notice(
        WARNING,
        f"{_counted(len(of.found.skipped) - len(unfinished), 'folder')} not counted",
        "No score includes them. Repeat a damaged run with --overwrite, or move its folder away.",
        [str(one) for one in of.found.skipped if one not in unfinished],
    )
    yield from _notice(
        WARNING,
        f"{_counted(len(unfinished), 'run')} not finished",
        "No score includes them yet. The command that began an interrupted run continues it.",
        list(map(str, unfinished)),
    )


def _other_data(of: Subject) -> Iterator[Notice]:
    named = of.means[of.means["dataset"].isin(constants.DATASETS)]
    other = named[~named["data"].isin(["benchmark", "unknown"])].drop_duplicates(["model", "dataset", "data"])
    yield from _notice(
        WARNING,
        "Not the benchmark's data",
        "These are not compared with published numbers. To compare with the paper, extract features of the "
        "complete IN-1K and of the levels in the authors' level files.",
        [
            f"{model or 'these runs'}, {', '.join(map(dataset_label, part['dataset']))}: {data}"
            for (model, data), part in other.groupby(["model", "data"], sort=False)
        ],
    )


def _not_alike(of: Subject) -> Iterator[Notice]:
    odd = of.means[is_odd(of.means)].drop_duplicates(["model", "dataset", "evaluation", "unlike"])
    yield from _notice(
        WARNING,
        "Different data or settings under one name",
        "These are only compared with their like. Extract features of the same classes (of levels with the "
        "same level files), and train the classifiers with the same settings.",
        [
            f"{model or 'these runs'} on {', '.join(map(dataset_label, part['dataset'].unique()))}: {unlike}"
            for (model, unlike), part in odd.groupby(["model", "unlike"], sort=False)
        ],
    )


def _no_mean(of: Subject) -> Iterator[Notice]:
    mixed = of.means[(of.means["note"] != "") & (of.means["metric"] == "top1")]
    yield from _notice(
        PROBLEM,
        f"No mean for {_counted(len(mixed), 'result')}",
        "Only seeds that are alike are averaged. Repeat the odd ones with --overwrite, or move them away.",
        [f"{place_of(row)}: {row.note}" for row in mixed.itertuples()],
    )


def _differing_settings(of: Subject) -> Iterator[Notice]:
    lines = []
    kinds: dict[tuple[str, str], list[Run]] = {}
    for run in of.found.runs:
        kinds.setdefault((run.model, run.evaluation), []).append(run)
    for runs in kinds.values():
        for name, (_, key) in PROTOCOL.items():
            by_value: dict[str, list[str]] = {}
            for run in runs:
                if name in run.settings:
                    by_value.setdefault(json.dumps(plain(run.settings[name])), []).append(_run(run))
            rarest_first = sorted(by_value.items(), key=lambda item: len(item[1]))
            lines += [f"{key} {value}: {some(places)}" for value, places in rarest_first if len(by_value) > 1]
    yield from _notice(
        WARNING,
        "Different settings between results of one model",
        "They do not compare with each other. Repeat the odd ones with the same settings and --overwrite.",
        lines,
    )


def _other_protocol(of: Subject) -> Iterator[Notice]:
    by_setting = Counter(run.protocol for run in of.found.runs if run.protocol)
    yield from _notice(
        WARNING,
        "Settings differ from the paper's protocol",
        "To compare with the paper, run again with the defaults; else name the settings with the scores.",
        [f"{setting} ({_counted(n, 'run')})" for setting, n in by_setting.items()],
    )


def _diverged(of: Subject) -> Iterator[Notice]:
    lost = [run for run in of.found.runs if run.diverged]
    yield from _notice(
        PROBLEM,
        f"Final training diverged in {_counted(len(lost), 'run')}",
        "The weights were no longer finite; these accuracies mean nothing but are in the averages. Lower the "
        'interval of learning rates, such as CLF.LR_INTV "(0.1, 10)", and run again with --overwrite.',
        [f"{_run(run)}: {run.folder}" for run in lost],
    )


def _edges(of: Subject) -> Iterator[Notice]:
    at_edge = [run for run in of.found.runs if run.at_edge]
    yield from _notice(
        WARNING,
        f"Learning rate at the upper end of its interval in {_counted(len(at_edge), 'run')}",
        "The best value may lie outside, and the score be too low. Widen CLF.LR_INTV for a trial, and see "
        "whether the validation accuracy rises; name the interval when you report scores.",
        [f"{_run(run)}: {run.lr:.3g}" for run in at_edge],
    )


def _checkpoints(of: Subject) -> Iterator[Notice]:
    by_model: dict[str, dict[str, list[str]]] = {}

    def n_used(run: Run) -> int:
        return len({text(identity.get("checkpoint_sha256")) for identity in run.used.values()} - {None})

    apart = [_run(run) for run in of.found.runs if n_used(run) > 1]
    for (model, dataset, split), made in of.found.features.items():
        if checkpoint := text(made.get("checkpoint_sha256")):
            by_model.setdefault(model, {}).setdefault(checkpoint, []).append(
                f"{dataset_label(dataset)} {split}"
            )
    for model, by_checkpoint in by_model.items():
        if len(by_checkpoint) > 1:
            apart += [
                f"{model}, checkpoint {sha[:12]}: {some(of_it)}" for sha, of_it in by_checkpoint.items()
            ]
    yield from _notice(
        PROBLEM,
        "Features of different checkpoints",
        "Another checkpoint is another model. Extract all splits with the same checkpoint (--overwrite), and "
        "run the classifiers again with --overwrite.",
        apart,
    )


def _changed_features(of: Subject) -> Iterator[Notice]:
    def is_changed(run: Run, split: str) -> bool:
        used, now = run.used[split], of.found.features.get((run.model, run.dataset, split), {})
        entries = ("checkpoint_sha256", "sample_sha256", "rows_sha256")
        return any(used.get(name) and now.get(name) and used[name] != now[name] for name in entries)

    yield from _notice(
        PROBLEM,
        "Features changed after the runs",
        "The runs used other features. Run the classifiers again with --overwrite, or restore the features.",
        [_run(run) for run in of.found.runs if any(is_changed(run, split) for split in run.used)],
    )


def _failed_images(of: Subject) -> Iterator[Notice]:
    failed = {place: n for place, made in of.found.features.items() if (n := whole(made.get("n_failed")))}
    yield from _notice(
        WARNING,
        f"{_counted(sum(failed.values()), 'image')} could not be decoded",
        "Fix the files listed in failed_images.txt beside the features, then extract and run again.",
        [
            f"{model}, {dataset_label(dataset)} {split}: {_counted(n, 'image')}"
            for (model, dataset, split), n in failed.items()
        ],
    )


#: The checks, in the order of their notices.
CHECKS: tuple[Callable[[Subject], Iterator[Notice]], ...] = (
    _missing_seeds,
    _folders,
    _other_data,
    _not_alike,
    _no_mean,
    _differing_settings,
    _other_protocol,
    _diverged,
    _edges,
    _checkpoints,
    _changed_features,
    _failed_images,
)
