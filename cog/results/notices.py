"""Checks of results for facts that limit the trust in them: each finding is a notice with advice.

A check is a function from means (of runs), runs (rows with ``details``, top-1 alone) and
:class:`~cog.results.runs.Results` to places, a line each, for the terminal and the page.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd

from cog import constants
from cog.errors import some
from cog.results.benchmark import PROTOCOL
from cog.results.frame import BENCHMARK, LOGREG, RUNS, UNKNOWN, dataset_label, is_odd, shots_column
from cog.results.records import number, text, whole
from cog.results.runs import Results

#: Severities in descending order: wrong numbers, doubtful numbers.
PROBLEM, WARNING = "problem", "warning"

# A learning rate within this share of the logarithmic length of the interval from its end is at the edge.
_EDGE_SHARE = 0.02

Find = Callable[[pd.DataFrame, list[Any], Results], list[str]]

#: The checks, in the order of their notices: severity, title, advice, function.
CHECKS: list[tuple[str, str, str, Find]] = []


class Notice(NamedTuple):
    """One finding: what it is, what to do, where, and shell commands that repair it."""

    severity: str
    title: str
    advice: str
    places: list[str]
    commands: list[str]


def _check(severity: str, title: str, advice: str) -> Callable[[Find], Find]:
    def declared(find: Find) -> Find:
        CHECKS.append((severity, title, advice, find))
        return find

    return declared


def check(means: pd.DataFrame, results: Results, *, training: bool = False) -> list[Notice]:
    """Return the notices on runs, problems first; on ``training`` alone: of those that tables do not show."""
    runs, own = results.runs, means[means["source"] == RUNS]
    notices = []
    for severity, title, advice, find in CHECKS:
        if not training or severity == PROBLEM:
            commands = _commands(own, runs, results.root) if find is _missing_seeds else []
            notices.append(Notice(severity, title, advice, find(own, runs, results), commands))
    return sorted((one for one in notices if one.places), key=lambda notice: notice.severity != PROBLEM)


def _place(row: Any) -> str:
    kind = "" if row.evaluation == LOGREG else f"{row.evaluation}, "
    seed = f", seed {row.seed}" if hasattr(row, "seed") else ""
    place = f"{row.model or 'these runs'}, {dataset_label(row.dataset)}, {shots_column(row.n_shot)}"
    return kind + place + seed


@_check(
    WARNING,
    "Seeds are missing",
    "Means over fewer seeds are less certain. Run the missing seeds; complete runs are skipped.",
)
def _missing_seeds(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    top1 = means[(means["metric"] == "top1") & (means["missing"] != "")]
    return [f"{_place(row)}: missing {row.missing.replace(' ', ', ')}" for row in top1.itertuples()]


def _commands(means: pd.DataFrame, runs: list[Any], root: str) -> list[str]:
    """Return the commands for missing seeds of classifiers, with the settings that their runs share."""
    commands = []
    rows = means[(means["metric"] == "top1") & (means["missing"] != "") & (means["model"] != "")]
    rows = rows[~rows["evaluation"].str.startswith("finetune")].assign(few=rows["n_shot"] > 0)
    kind = ["model", "evaluation", "missing", "few"]
    for (model, evaluation, missing, few), part in rows.groupby(kind, sort=False):
        shots = " ".join(map(str, sorted(set(part["n_shot"])))) if few else ""
        datasets = " ".join(part["dataset"].unique())
        variables = {"models_root_dir": root, "model_name": model, "dataset": datasets}
        variables |= {"shots": shots, "seeds": missing}
        words = [f"{name}={shlex.quote(value)}" for name, value in variables.items() if value]
        name = re.sub("_max[0-9]+$", "", evaluation)
        words += [f"EVAL.NAME {name}"] * (name not in constants.CLASSIFIERS)
        settings = [r.details["settings"] for r in runs if (r.model, r.evaluation) == (model, evaluation)]
        for name, (usual, key) in PROTOCOL.items():
            values = {json.dumps(given.get(name)) for given in settings}
            if len(values) == 1 and key.startswith("CLF.") and values.isdisjoint(("null", json.dumps(usual))):
                value = json.loads(values.pop())
                words.append(f"{key} {shlex.quote(str(tuple(value) if isinstance(value, list) else value))}")
        commands.append(f"bash bash-scripts/{'fewshot.sh' if few else 'logreg.sh'} {' '.join(words)}")
    return commands


@_check(
    WARNING,
    "Folders not counted",
    "No score includes them. Repeat a damaged run with --overwrite, or move its folder away.",
)
def _not_counted(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    return [str(one) for one in results.skipped]


@_check(
    WARNING,
    "Not the benchmark's data, or other classes under one name",
    "They are only compared with their like. The paper's are the complete IN-1K and the authors' levels.",
)
def _other_data(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    named = means["dataset"].isin(constants.DATASETS) | is_odd(means)
    other = means[named & ~means["data"].isin([BENCHMARK, UNKNOWN])]
    return [
        f"{model or 'these runs'}, {', '.join(map(dataset_label, part['dataset'].unique()))}: {data}"
        for (model, data), part in other.groupby(["model", "data"], sort=False)
    ]


@_check(
    WARNING,
    "Settings differ from the paper's protocol",
    "To compare with the paper, run again with the defaults; else name the settings with the scores.",
)
def _other_protocol(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    odd = [run for run in runs if run.protocol and not run.details["diverged"]]
    by_setting = Counter((run.model, run.protocol) for run in odd)
    return [f"{model}: {setting} (runs: {n:,})" for (model, setting), n in by_setting.items()]


@_check(
    PROBLEM,
    "Final training diverged",
    "The weights were no longer finite: these accuracies mean nothing, and no mean has them. Lower the "
    'interval of learning rates, such as CLF.LR_INTV "(0.1, 10)", and run again with --overwrite.',
)
def _diverged(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    return [f"{_place(run)}: {run.folder}" for run in runs if run.details["diverged"]]


@_check(
    PROBLEM,
    "No mean",
    "Only seeds that are alike are averaged. Repeat the odd ones with --overwrite, or move them away.",
)
def _no_mean(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    mixed = means[(means["note"] != "") & (means["metric"] == "top1")]
    settings: dict[str, dict[str, str]] = {}
    for run in runs if len(mixed) else ():
        place, _, seed = _place(run).rpartition(", ")
        settings.setdefault(place, {}).setdefault(run.protocol or "the paper's settings", f"; {seed}")
    lines = []
    for row in mixed.itertuples():
        words = [f"{seed}: {setting}" for setting, seed in settings.get(_place(row), {}).items()]
        lines.append(f"{_place(row)}: {row.note}" + "".join(words) * (len(words) > 1))
    return lines


@_check(
    WARNING,
    "Learning rate at the upper end of its interval",
    "The best value may lie outside. Widen CLF.LR_INTV for a trial; name the interval with the scores.",
)
def _edges(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    lines = []
    for run in runs:
        lr, interval = run.details["lr"] or 0.0, run.details["settings"].get("lr_interval")
        ends = [number(end) or 0.0 for end in interval] if isinstance(interval, list) else []
        if len(ends) == 2 and 0 < ends[0] < ends[1] and lr >= ends[1] * (ends[0] / ends[1]) ** _EDGE_SHARE:
            lines.append(f"{_place(run)}: {lr:.3g}")
    return lines


@_check(
    PROBLEM,
    "Features of different checkpoints",
    "Extract all splits with one checkpoint (--overwrite), and run the classifiers again with --overwrite.",
)
def _checkpoints(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    found: dict[str, dict[str, list[str]]] = {}
    for (model, dataset, split), made in results.features.items():
        if checkpoint := text(made.get("checkpoint_sha256")):
            places = found.setdefault(model, {}).setdefault(checkpoint[:12], [])
            places.append(f"{dataset_label(dataset)} {split}")
    several = {model: of_each for model, of_each in found.items() if len(of_each) > 1}
    return [
        f"{m}, checkpoint {key}: {some(of)}" for m, of_each in several.items() for key, of in of_each.items()
    ]


@_check(
    PROBLEM,
    "Features changed after the runs",
    "The runs used other features. Run the classifiers again with --overwrite, or restore the features.",
)
def _changed_features(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    def is_other(run: Any, split: str, name: str) -> bool:
        now = results.features.get((run.model, run.dataset, split), {}).get(name)
        return bool(now) and run.details["used"][split].get(name) not in (None, now)

    entries = [(split, name) for split in constants.SPLITS for name in ("checkpoint_sha256", "rows_sha256")]
    return [_place(run) for run in runs if any(is_other(run, *entry) for entry in entries)]


@_check(
    WARNING,
    "Images could not be decoded",
    "Fix the files listed in failed_images.txt beside the features, then extract and run again.",
)
def _failed_images(means: pd.DataFrame, runs: list[Any], results: Results) -> list[str]:
    failed = {of: n for of, made in results.features.items() if (n := whole(made.get("n_failed")))}
    return [f"{model}, {dataset_label(of)} {split}: {n:,}" for (model, of, split), n in failed.items()]
