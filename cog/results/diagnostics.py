"""What a reader of the numbers should know before trusting them, each with what to do about it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cog import constants
from cog.results.labels import dataset_label, shots_title
from cog.results.official import Match, Verdict
from cog.results.run_records import Problem, Run
from cog.results.scores import SeedAverage
from cog.results.search_history import FeatureDescription, plain
from cog.runtime.output_folder import INTERRUPTED, RUNNING

#: From what makes numbers wrong to what is good to know.
SEVERITIES = ("problem", "warning", "note")

#: The paper's protocol (Sec. 4.1, supplement B.3; epochs and intervals: the original toolkit's configuration),
#: by the name under which a run records it, with the key that sets it.
PROTOCOL: dict[str, tuple[Any, str]] = {
    "n_trials": (30, "CLF.N_TRIALS"),
    "n_epochs": (100, "CLF.N_EPOCHS"),
    "batch_size": (1024, "CLF.BATCH_SIZE"),
    "momentum": (0.9, "--mom"),
    "val_frac": (0.2, "CLF.VAL_PERC"),
    "lr_interval": ([0.1, 100.0], "CLF.LR_INTV"),
    "wd_interval": ([1e-12, 1e-4], "CLF.WD_INTV"),
    "normalize": (True, "CLF.NORM_FTS"),
    "solver": ("sgd", "CLF.SOLVER"),
    "pruner": ("none", "CLF.PRUNER"),
}

#: Settings that do not change the protocol, but are worth knowing: by the name under which a run records them.
OTHER_SETTINGS = {"search": "CLF.SEARCH", "precision": "CLF.PRECISION"}

# A value this close to an end, as a share of the interval's length on the logarithmic axis, lies at the edge.
_EDGE_SHARE = 0.02

_MANY = 12


@dataclass(frozen=True)
class Notice:
    """One thing to know.

    Attributes:
        severity: one of ``SEVERITIES``.
        model: whose results it is about; "" for all.
        kind: the same for the same finding in any model.
        title: what was found, in a few words.
        text: the same with its meaning, in a sentence or two.
        action: what to do.
        commands: shell commands that do it.
        items: where, one line each.
    """

    severity: str
    model: str
    kind: str
    title: str
    text: str
    action: str
    commands: tuple[str, ...] = ()
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What the notices are derived from.

    Attributes:
        runs: every run that is counted.
        cells: their average top-1 accuracies over seeds.
        problems: folders that are not counted.
        counts: verdict on the data, by model and data set.
        features: by model, data set and split.
        root: the folder of all models, for commands.
    """

    runs: Sequence[Run]
    cells: Sequence[SeedAverage]
    problems: Sequence[Problem] = ()
    counts: Mapping[tuple[str, str], Verdict] = field(default_factory=dict)
    features: Mapping[tuple[str, str, str], FeatureDescription] = field(default_factory=dict)
    root: str = "<models_root_dir>"


def collect(evidence: Evidence) -> list[Notice]:
    """Return all notices, the most severe first."""
    found = list(_problem_folders(evidence.problems))
    by_model: dict[str, list[Run]] = {}
    cells_of: dict[str, list[SeedAverage]] = {}
    counts_of: dict[str, dict[str, Verdict]] = {}
    made_of: dict[str, list[FeatureDescription]] = {}
    for run in evidence.runs:
        by_model.setdefault(run.model, []).append(run)
    for cell in evidence.cells:
        cells_of.setdefault(cell.model, []).append(cell)
    for (model, dataset), verdict in evidence.counts.items():
        counts_of.setdefault(model, {})[dataset] = verdict
    for (model, _, _), features in evidence.features.items():
        made_of.setdefault(model, []).append(features)
    for model, runs in by_model.items():
        made, cells = made_of.get(model, []), cells_of.get(model, [])
        for notices in (
            _counts(model, counts_of.get(model, {})),
            _missing(model, cells, evidence.root),
            _diverged(model, runs),
            _chance(model, cells, runs),
            _edges(model, runs),
            _protocol(model, runs),
            _mixed(model, runs, made),
            _features(model, runs, made, evidence.features),
            _unrecorded(model, runs),
        ):
            found += notices
    return sorted(found, key=lambda notice: SEVERITIES.index(notice.severity))


def _where(dataset: str, n_shot: int) -> str:
    return f"{dataset_label(dataset)}, {shots_title(n_shot)}"


def _run(run: Run) -> str:
    return f"{_where(run.dataset, run.n_shot)}, seed {run.seed}"


def _shorten(items: Iterable[str]) -> tuple[str, ...]:
    items = list(dict.fromkeys(items))
    if len(items) <= _MANY:
        return tuple(items)
    return (*items[: _MANY - 1], f"and {len(items) - _MANY + 1} more")


def _amount(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _driver(model: str, dataset: Sequence[str], shots: Sequence[int], seeds: Sequence[int], root: str) -> str:
    """The command that makes runs: only what is missing is run."""
    script = "fewshot.sh" if any(shots) else "logreg.sh"
    variables = {"models_root_dir": root, "model_name": model, "dataset": " ".join(dataset)}
    variables |= {"shots": " ".join(map(str, shots))} if any(shots) else {}
    variables["seeds"] = " ".join(map(str, seeds))
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return f"bash bash-scripts/{script} {' '.join(words)}"


def _problem_folders(problems: Sequence[Problem]) -> Iterable[Notice]:
    unfinished = [problem for problem in problems if problem.state in (RUNNING, INTERRUPTED)]
    problems = [problem for problem in problems if problem not in unfinished]
    if problems:
        yield Notice(
            "warning",
            "",
            "folders that are not counted",
            f"{_amount(len(problems), 'folder')} not counted",
            "These look like runs or their parents but could not be read as finished runs, so no score here includes "
            "them.",
            "Look at the reason of each; finish the run, or move the folder away.",
            items=_shorten(f"{problem.path}: {problem.reason}" for problem in problems),
        )
    if unfinished:
        yield Notice(
            "note",
            "",
            "unfinished runs",
            f"{_amount(len(unfinished), 'run')} not finished yet",
            "These are in progress, or were interrupted; no score here includes them.",
            "Wait for those in progress; the command that began an interrupted one continues it.",
            items=_shorten(f"{problem.path}: {problem.reason}" for problem in unfinished),
        )


def _counts(model: str, verdicts: Mapping[str, Verdict]) -> Iterable[Notice]:
    for match, severity, meaning, action in (
        (
            Match.DIFFERENT,
            "warning",
            "Numbers on other data cannot be compared with published ones, and this page does not.",
            "To compare with the paper, extract features of the complete IN-1K and of the levels in the "
            "authors' level files. To compare models with each other, use the same data for all: that remains valid.",
        ),
        (
            Match.NEARLY,
            "warning",
            "A few images more or less move scores far less than a seed does; the comparison is kept.",
            "Find the missing images if the numbers are to be published (failed_images.txt beside the "
            "features), or say so there.",
        ),
        (
            Match.UNKNOWN,
            "note",
            "Nothing says how many classes and images these results come from (runs or features of the original "
            "toolkit). They are compared with the paper as if they came from the official data.",
            "Make sure that they do.",
        ),
    ):
        found = {dataset: verdict for dataset, verdict in verdicts.items() if verdict.match is match}
        if found:
            title = {
                Match.DIFFERENT: "Not the official data",
                Match.NEARLY: "Counts differ slightly from the official data",
                Match.UNKNOWN: "Counts are not recorded",
            }[match]
            items = [
                f"{dataset_label(dataset)}: {'; '.join(verdict.differences)}"
                for dataset, verdict in found.items()
                if verdict.differences
            ] or [dataset_label(dataset) for dataset in found]
            yield Notice(severity, model, match.value, title, meaning, action, items=_shorten(items))


def _missing(model: str, cells: Sequence[SeedAverage], root: str) -> Iterable[Notice]:
    incomplete = [cell for cell in cells if cell.missing_seeds]
    if incomplete:
        groups: dict[tuple[tuple[int, ...], bool], list[SeedAverage]] = {}
        for cell in incomplete:
            groups.setdefault((cell.missing_seeds, bool(cell.n_shot)), []).append(cell)
        commands = [
            _driver(
                model,
                list(dict.fromkeys(cell.dataset for cell in group)),
                sorted({cell.n_shot for cell in group}),
                seeds,
                root,
            )
            for (seeds, _), group in groups.items()
        ]
        yield Notice(
            "warning",
            model,
            "missing seeds",
            f"Seeds are missing in {len(incomplete)} of {_amount(len(cells), 'result')}",
            "Means over fewer seeds are less certain, and a deviation over two or three seeds says little.",
            "Run the missing seeds; what is there is skipped.",
            commands=tuple(commands[:6]) if model else (),  # a folder outside the layout has no names
            items=_shorten(
                f"{_where(c.dataset, c.n_shot)}: {len(c.seeds)} of {len(c.seeds) + len(c.missing_seeds)}, missing "
                f"{', '.join(map(str, c.missing_seeds))}"
                for c in incomplete
            ),
        )
    present = {(cell.dataset, cell.n_shot) for cell in cells}
    for few in (False, True):
        datasets = {
            dataset for dataset, n_shot in present if bool(n_shot) == few and dataset in constants.DATASETS
        }
        shots = sorted(
            {n_shot for dataset, n_shot in present if bool(n_shot) == few and dataset in constants.DATASETS}
        )
        wanted = [d for d in constants.DATASETS if d not in datasets]
        gaps = [(d, n) for d in constants.DATASETS for n in shots if (d, n) not in present]
        if not datasets or not gaps:
            continue
        kind = "few-shot results" if few else "results with all images"
        yield Notice(
            "note",
            model,
            "missing results",
            f"{len(gaps)} {kind} not there yet",
            f"The paper's study has six data sets; {', '.join(map(dataset_label, wanted))} "
            f"{'is' if len(wanted) == 1 else 'are'} missing entirely."
            if wanted
            else "Some combinations of data set and number of images have no run.",
            "Extract the features if needed, then train the classifiers; what is there is skipped.",
            commands=(
                _driver(
                    model,
                    list(dict.fromkeys(d for d, _ in gaps)),
                    sorted({n for _, n in gaps}),
                    constants.SEEDS,
                    root,
                ),
            ),
            items=_shorten(_where(d, n) for d, n in gaps),
        )


def _diverged(model: str, runs: Sequence[Run]) -> Iterable[Notice]:
    final = [run for run in runs if run.diverged]
    if final:
        yield Notice(
            "problem",
            model,
            "final training that diverged",
            f"Final training diverged in {_amount(len(final), 'run')}",
            "The weights were no longer finite; these accuracies mean nothing but are counted in the averages.",
            'Lower the interval of learning rates, such as CLF.LR_INTV "(0.1, 10)", and run again with --overwrite.',
            items=_shorten(_run(run) for run in final),
        )
    trials = sum(run.details.n_trials for run in runs)
    lost = sum(run.details.n_trials_diverged for run in runs)
    if lost:
        most = [run for run in runs if 2 * run.details.n_trials_diverged > run.details.n_trials > 0]
        yield Notice(
            "warning" if most else "note",
            model,
            "trials that diverged",
            f"{lost:,} of {trials:,} trials of the searches diverged",
            "In some runs this was more than half, which leaves few trials to choose from."
            if most
            else "A search steers away from such values by itself; a few are normal at high learning rates.",
            "Lower the upper end of CLF.LR_INTV for these runs." if most else "Nothing needs to be done.",
            items=_shorten(
                f"{_run(run)}: {run.details.n_trials_diverged} of {run.details.n_trials}"
                for run in (most or [run for run in runs if run.details.n_trials_diverged])
            ),
        )


def _chance(model: str, cells: Sequence[SeedAverage], runs: Sequence[Run]) -> Iterable[Notice]:
    classes = {(run.dataset, run.n_shot): run.details.n_classes for run in runs if run.details.n_classes}
    low = []
    for cell in cells:
        n_classes = classes.get((cell.dataset, cell.n_shot))
        if n_classes is not None and n_classes > 1 and cell.value <= 1.5 * 100 / n_classes:
            low.append(f"{_where(cell.dataset, cell.n_shot)}: {cell.value:.2f} % of {n_classes} classes")
    if low:
        yield Notice(
            "warning",
            model,
            "accuracy no better than guessing",
            "Accuracy no better than guessing",
            "Features without information, labels that do not belong to the features, or training that "
            "failed look like this.",
            "Check the checkpoint and the preprocessing of the extraction, and the curves of the final "
            "training below.",
            items=_shorten(low),
        )


def at_edge(value: float | None, interval: Any) -> str | None:
    """Return ``"lower"`` or ``"upper"`` when ``value`` lies at an end of a log-uniform interval, else None."""
    if value is None or not isinstance(interval, list | tuple) or len(interval) != 2:
        return None
    low, high = interval
    if not all(isinstance(end, int | float) for end in interval) or not 0 < low < high or value <= 0:
        return None
    share = math.log(value / low) / math.log(high / low)
    return "lower" if share <= _EDGE_SHARE else "upper" if share >= 1 - _EDGE_SHARE else None


def _edges(model: str, runs: Sequence[Run]) -> Iterable[Notice]:
    searched = [run for run in runs if run.details.n_trials]
    for name, key, attribute in (
        ("learning rate", "CLF.LR_INTV", "lr"),
        ("weight decay", "CLF.WD_INTV", "wd"),
    ):
        for end in ("lower", "upper"):
            found = [
                run
                for run in searched
                if at_edge(getattr(run, attribute), run.details.settings.get(f"{attribute}_interval")) == end
            ]
            if not found:
                continue
            # So little weight decay acts like none: a wider interval would change nothing.
            harmless = attribute == "wd" and end == "lower"
            rare = len(found) * 10 < len(searched)
            yield Notice(
                "note" if harmless or rare else "warning",
                model,
                f"{name} at the edge of its interval",
                f"Chosen {name} at the {end} end of its interval in {len(found)} of {_amount(len(searched), 'run')}",
                "Weight decay this small acts like none; a wider interval would not change the scores."
                if harmless
                else "The best value may lie outside, and the score below what the features allow. Single "
                "runs can end up there by chance."
                if rare
                else "The best value may lie outside, and the score below what the features allow.",
                "Nothing needs to be done."
                if harmless
                else f"Widen {key} beyond this end for a trial and see whether the validation accuracy "
                "rises. Published results used the default interval: name another one when you report scores.",
                items=_shorten(f"{_run(run)}: {getattr(run, attribute):.3g}" for run in found),
            )


def _protocol(model: str, runs: Sequence[Run]) -> Iterable[Notice]:
    items = []
    for name, (expected, key) in PROTOCOL.items():
        if name == "n_epochs":
            values = [run.planned_epochs for run in runs]
        else:
            values = [run.details.settings[name] for run in runs if name in run.details.settings]
        other = {plain(value) for value in values if not _same(value, expected)}
        if other:
            count = sum(not _same(value, expected) for value in values)
            items.append(
                f"{key}: {', '.join(sorted(map(str, other)))} instead of {plain(expected)} ({_amount(count, 'run')})"
            )
    if items:
        yield Notice(
            "warning",
            model,
            "settings other than the protocol's",
            "Settings differ from the paper's protocol",
            "Published results were made with the protocol's settings; others can move scores in either direction.",
            "To compare with the paper, run again with the defaults; otherwise name the settings with the scores.",
            items=_shorten(items),
        )


def _same(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(value, list | tuple) and list(value) == expected
    return type(value) is type(expected) and value == expected


def _mixed(model: str, runs: Sequence[Run], made: Sequence[FeatureDescription]) -> Iterable[Notice]:
    epochs: dict[Any, list[Run]] = {}
    for run in runs:
        epochs.setdefault(run.planned_epochs, []).append(run)
    if len(epochs) > 1:
        yield Notice(
            "warning",
            model,
            "different numbers of epochs",
            "Different numbers of epochs",
            "Runs of one model were trained for different numbers of epochs: their scores should not be averaged or "
            "compared.",
            "Repeat the odd ones with the same CLF.N_EPOCHS and --overwrite.",
            items=_shorten(f"{n} epochs: {_some(map(_run, odd))}" for n, odd in sorted(epochs.items())),
        )
    settings = []
    for name, (_, key) in PROTOCOL.items():
        if name != "n_epochs":
            settings += _groups(
                key,
                ((run.details.settings.get(name), run) for run in runs if name in run.details.settings),
            )
    if settings:
        yield Notice(
            "warning",
            model,
            "different settings between results of one model",
            "Different settings between results of one model",
            "Scores made with different settings are not comparable with each other.",
            "Repeat the odd ones with the same settings and --overwrite.",
            items=_shorten(settings),
        )
    extraction: list[str] = []
    severity = "warning"
    checkpoints = _groups(
        "checkpoint", _entries(made, lambda f: f.checkpoint_sha256 and f.checkpoint_sha256[:12])
    )
    if checkpoints:
        severity = "problem"
    extraction += checkpoints
    for what, get in (
        ("preprocessing", lambda f: f.preprocessing),
        ("profile", lambda f: f.profile),
        ("variant", lambda f: f.variant),
        ("precision", lambda f: f.precision),
    ):
        extraction += _groups(what, _entries(made, get))
    if extraction:
        yield Notice(
            severity,
            model,
            "features made in different ways",
            "Features of one model were made in different ways",
            "Another checkpoint or preprocessing is another model: the data sets and splits do not belong together.",
            "Extract the odd ones again (extract_features.py --overwrite) and run their classifiers again.",
            items=_shorten(extraction),
        )
    versions = []
    for package in ("imagenet-cog", "torch", "optuna"):
        versions += _groups(package, ((run.details.versions.get(package), run) for run in runs))
    for name, key in OTHER_SETTINGS.items():
        versions += _groups(key, ((run.details.settings.get(name), run) for run in runs))
    versions += _groups(
        "device", ((run.details.device and run.details.device.split(":")[0], run) for run in runs)
    )
    if versions:
        yield Notice(
            "note",
            model,
            "different versions, devices or modes",
            "Different versions, devices or modes",
            "Runs of one model were made with different software, hardware or modes of computing. That moves single "
            "scores by less than another seed does, but the exact numbers cannot all be reproduced in one place.",
            "For a publication, make all runs with one installation; otherwise nothing needs to be done.",
            items=_shorten(versions),
        )


def _entries(
    made: Sequence[FeatureDescription], get: Callable[[FeatureDescription], Any]
) -> Iterable[tuple[Any, str]]:
    return ((get(features), f"{dataset_label(features.dataset)} {features.split}") for features in made)


def _groups(what: str, entries: Iterable[tuple[Any, Run | str]]) -> list[str]:
    """One line per value when there are several; unknown values do not count."""
    groups: dict[str, list[Run | str]] = {}
    for value, place in entries:
        shown = plain(value)
        if shown is not None:
            groups.setdefault(shown, []).append(place)
    if len(groups) < 2:
        return []
    return [
        f"{what} {value}: {_some(_run(place) if isinstance(place, Run) else place for place in places)}"
        for value, places in groups.items()
    ]


def _some(where: Iterable[str]) -> str:
    where = list(dict.fromkeys(where))
    return "; ".join(where[:3]) + (f" and {len(where) - 3} more" if len(where) > 3 else "")


def _features(
    model: str,
    runs: Sequence[Run],
    made: Sequence[FeatureDescription],
    features: Mapping[tuple[str, str, str], FeatureDescription],
) -> Iterable[Notice]:
    failed = [f for f in made if f.n_failed]
    if failed:
        yield Notice(
            "warning",
            model,
            "images that could not be decoded",
            f"{_amount(sum(f.n_failed or 0 for f in failed), 'image')} could not be decoded",
            "They are missing from the features, so scores come from slightly fewer images.",
            "Mend the files that failed_images.txt beside the features names, then extract and run again.",
            items=_shorten(
                f"{dataset_label(f.dataset)} {f.split}: {_amount(f.n_failed or 0, 'image')}"
                + (f" of {f.n_images:,}" if f.n_images else "")
                for f in failed
            ),
        )
    apart, stale = [], []
    for run in runs:
        used = {
            "train": run.details.train_features.get("checkpoint_sha256"),
            "test": run.details.test_features.get("checkpoint_sha256"),
        }
        if used["train"] and used["test"] and used["train"] != used["test"]:
            apart.append(_run(run))
        for split in constants.SPLITS:
            now = features.get((model, run.dataset, split))
            identity = run.details.train_features if split == "train" else run.details.test_features
            for entry in ("checkpoint_sha256", "image_list_sha256"):
                before, after = identity.get(entry), getattr(now, entry, None)
                if before and after and before != after:
                    stale.append(_run(run))
    if apart:
        yield Notice(
            "problem",
            model,
            "training and test features of different checkpoints",
            "Training and test features come from different checkpoints",
            "A classifier of one network was tested on features of another: these scores mean nothing.",
            "Extract both splits with the same checkpoint and run again with --overwrite.",
            items=_shorten(apart),
        )
    if stale:
        yield Notice(
            "problem",
            model,
            "features changed after the runs",
            "Features changed after the runs",
            "The features on disk now are not those the runs used (another checkpoint or other images).",
            "Run the classifiers again with --overwrite, or restore the features.",
            items=_shorten(stale),
        )
    foreign = [f for f in made if f.checkpoint_is_published is False]
    if foreign:
        yield Notice(
            "warning",
            model,
            "checkpoint that is not the published file",
            "The checkpoint is not the published file",
            f"The SHA-256 of the checkpoint is not the one known for {model}.",
            "Download it again (prepare_models/), or give a model of your own a name of its own.",
            items=_shorten(f"{dataset_label(f.dataset)} {f.split}" for f in foreign),
        )


def _unrecorded(model: str, runs: Sequence[Run]) -> Iterable[Notice]:
    bare = [run for run in runs if not run.details.settings]
    if bare:
        yield Notice(
            "note",
            model,
            "settings that are not recorded",
            f"Settings of {_amount(len(bare), 'run')} are not recorded",
            "Runs of the original toolkit keep their settings where they cannot be read safely, so nothing "
            "here was checked against the protocol.",
            "Nothing needs to be done if you know how they were made.",
            items=_shorten(_run(run) for run in bare),
        )
