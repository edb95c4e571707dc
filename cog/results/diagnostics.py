"""What a reader of the numbers should know before trusting them, each with what to do about it."""

from __future__ import annotations

import math
import operator
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cog import constants
from cog.results import ties
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
OTHER_SETTINGS = {"search": "CLF.SEARCH"}

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
    notices = _problem_folders(evidence.problems)
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
        notices += [
            *_counts(model, counts_of.get(model, {})),
            *_missing(model, cells, evidence.root),
            *_diverged(model, runs),
            *_ties(model, runs),
            *_chance(model, cells, runs),
            *_edges(model, runs),
            *_protocol(model, runs),
            *_mixed(model, runs, made),
            *_features(model, runs, made, evidence.features),
            *_notices("unrecorded", model, map(_run, (run for run in runs if not run.details.settings))),
        ]
    notices += _notices("precision", "", _precisions(evidence.runs))
    return sorted(notices, key=lambda notice: SEVERITIES.index(notice.severity))


@dataclass(frozen=True)
class _Kind:
    """What a kind of notice says; ``{n}`` and the like are filled in where it is given.

    Attributes:
        severity: one of ``SEVERITIES``.
        name: :attr:`Notice.kind`.
        title: see :class:`Notice`, as the next two.
        text: meaning.
        action: what to do.
    """

    severity: str
    name: str
    title: str
    text: str
    action: str


_NOTHING = "Nothing needs to be done."
_EDGE = "The best value may lie outside, and the score below what the features allow."

_KINDS = {
    "folders": _Kind(
        "warning", "folders that are not counted", "{n} not counted",
        "These look like runs or their parents but could not be read as finished runs, so no score here includes "
        "them.",
        "Look at the reason of each; finish the run, or move the folder away.",
    ),
    "unfinished": _Kind(
        "note", "unfinished runs", "{n} not finished yet",
        "These are in progress, or were interrupted; no score here includes them.",
        "Wait for those in progress; the command that began an interrupted one continues it.",
    ),
    "different data": _Kind(
        "warning", Match.DIFFERENT.value, "Not the official data",
        "Numbers on other data cannot be compared with published ones, and this page does not.",
        "To compare with the paper, extract features of the complete IN-1K and of the levels in the authors' "
        "level files. To compare models with each other, use the same data for all: that remains valid.",
    ),
    "nearly the data": _Kind(
        "warning", Match.NEARLY.value, "Counts differ slightly from the official data",
        "A few images more or less move scores far less than a seed does; the comparison is kept.",
        "Find the missing images if the numbers are to be published (failed_images.txt beside the features), or "
        "say so there.",
    ),
    "unknown data": _Kind(
        "note", Match.UNKNOWN.value, "Counts are not recorded",
        "Nothing says how many classes and images these results come from (runs or features of the original "
        "toolkit). They are compared with the paper as if they came from the official data.",
        "Make sure that they do.",
    ),
    "missing seeds": _Kind(
        "warning", "missing seeds", "Seeds are missing in {n}",
        "Means over fewer seeds are less certain, and a deviation over two or three seeds says little.",
        "Run the missing seeds; what is there is skipped.",
    ),
    "missing results": _Kind(
        "note", "missing results", "{n} not there yet",
        "{text}",
        "Extract the features if needed, then train the classifiers; what is there is skipped.",
    ),
    "diverged runs": _Kind(
        "problem", "final training that diverged", "Final training diverged in {n}",
        "The weights were no longer finite; these accuracies mean nothing but are counted in the averages.",
        'Lower the interval of learning rates, such as CLF.LR_INTV "(0.1, 10)", and run again with --overwrite.',
    ),
    "diverged trials": _Kind(
        "note", "trials that diverged", "{n} of the searches diverged",
        "A search steers away from such values by itself; a few are normal at high learning rates.",
        _NOTHING,
    ),
    "many diverged trials": _Kind(
        "warning", "trials that diverged", "{n} of the searches diverged",
        "In some runs this was more than half, which leaves few trials to choose from.",
        "Lower the upper end of CLF.LR_INTV for these runs.",
    ),
    "ties": _Kind(
        "note", "searches that end in a tie", "At least half of the trials are equally good in {n}",
        "The held-out images do not tell these trials apart (within 0.1 points): which learning rate and weight decay "
        "is taken is arbitrary. Accuracies hardly depend on it; confidences and the scale of the weights do.",
        'Do not interpret the chosen values. For a choice that the held-out part does make: CLF.TIE_BREAK loss.',
    ),
    "chance": _Kind(
        "warning", "accuracy no better than guessing", "Accuracy no better than guessing",
        "Features without information, labels that do not belong to the features, or training that failed look "
        "like this.",
        "Check the checkpoint and the preprocessing of the extraction, and the curves of the final training below.",
    ),
    "edge": _Kind(
        "warning", "{name} at the edge of its interval", "Chosen {name} at the {end} end of its interval in {n}",
        _EDGE,
        "Widen {key} beyond this end for a trial and see whether the validation accuracy rises. Published results"
        " used the default interval: name another one when you report scores.",
    ),
    "protocol": _Kind(
        "warning", "settings other than the protocol's", "Settings differ from the paper's protocol",
        "Published results were made with the protocol's settings; others can move scores in either direction.",
        "To compare with the paper, run again with the defaults; otherwise name the settings with the scores.",
    ),
    "epochs": _Kind(
        "warning", "different numbers of epochs", "Different numbers of epochs",
        "Runs of one model were trained for different numbers of epochs: their scores should not be averaged or "
        "compared.",
        "Repeat the odd ones with the same CLF.N_EPOCHS and --overwrite.",
    ),
    "settings": _Kind(
        "warning", "different settings between results of one model",
        "Different settings between results of one model",
        "Scores made with different settings are not comparable with each other.",
        "Repeat the odd ones with the same settings and --overwrite.",
    ),
    "extraction": _Kind(
        "warning", "features made in different ways", "Features of one model were made in different ways",
        "Another checkpoint or preprocessing is another model: the data sets and splits do not belong together.",
        "Extract the odd ones again (extract_features.py --overwrite) and run their classifiers again.",
    ),
    "versions": _Kind(
        "note", "different versions, devices or modes", "Different versions, devices or modes",
        "Runs of one model were made with different software, hardware or modes of computing. That moves single "
        "scores by less than another seed does, but the exact numbers cannot all be reproduced in one place.",
        "For a publication, make all runs with one installation; otherwise nothing needs to be done.",
    ),
    "precision": _Kind(
        "note", "results of different precision", "Results of the same data were computed in different precision",
        "The products of these trainings were rounded differently (results.json records what was really used, whatever "
        "CLF.PRECISION asked for). Where that was measured, it moved accuracies by less than another seed does.",
        "Where differences of a tenth of a point matter, make these runs with the same CLF.PRECISION.",
    ),
    "failed images": _Kind(
        "warning", "images that could not be decoded", "{n} could not be decoded",
        "They are missing from the features, so scores come from slightly fewer images.",
        "Mend the files that failed_images.txt beside the features names, then extract and run again.",
    ),
    "checkpoints": _Kind(
        "problem", "training and test features of different checkpoints",
        "Training and test features come from different checkpoints",
        "A classifier of one network was tested on features of another: these scores mean nothing.",
        "Extract both splits with the same checkpoint and run again with --overwrite.",
    ),
    "stale": _Kind(
        "problem", "features changed after the runs", "Features changed after the runs",
        "The features on disk now are not those the runs used (another checkpoint or other images).",
        "Run the classifiers again with --overwrite, or restore the features.",
    ),
    "unpublished": _Kind(
        "warning", "checkpoint that is not the published file", "The checkpoint is not the published file",
        "The SHA-256 of the checkpoint is not the one known for {model}.",
        "Download it again (prepare_models/), or give a model of your own a name of its own.",
    ),
    "unrecorded": _Kind(
        "note", "settings that are not recorded", "Settings of {n} are not recorded",
        "Runs of the original toolkit keep their settings where they cannot be read safely, so nothing here was "
        "checked against the protocol.",
        "Nothing needs to be done if you know how they were made.",
    ),
}  # fmt: skip

_MATCHES = {
    Match.DIFFERENT: "different data",
    Match.NEARLY: "nearly the data",
    Match.UNKNOWN: "unknown data",
}


def _notices(
    kind: str | _Kind,
    model: str,
    items: Iterable[str],
    *,
    commands: Sequence[str] = (),
    n: str = "",
    **words: str,
) -> list[Notice]:
    """Return a notice; none without anything that it is about.

    Args:
        kind: key of ``_KINDS``.
        model: whose results it is about.
        items: where; all but the first few are counted only.
        commands: shell commands.
        n: the amount that the title names; default: the number of items as runs.
        words: others that are filled in.
    """
    items = list(items)
    if not items:
        return []
    kind = _KINDS[kind] if isinstance(kind, str) else kind
    words |= {"n": n or _amount(len(items), "run"), "model": model}
    name, title, text, action = (
        part.format_map(words) for part in (kind.name, kind.title, kind.text, kind.action)
    )
    return [Notice(kind.severity, model, name, title, text, action, tuple(commands), _shorten(items))]


def _place(dataset: str, n_shot: int) -> str:
    return f"{dataset_label(dataset)}, {shots_title(n_shot)}"


def _run(run: Run) -> str:
    return f"{_place(run.dataset, run.n_shot)}, seed {run.seed}"


def _shorten(items: Iterable[str]) -> tuple[str, ...]:
    items = list(dict.fromkeys(items))
    if len(items) <= _MANY:
        return tuple(items)
    return (*items[: _MANY - 1], f"and {len(items) - _MANY + 1} more")


def _amount(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _driver(model: str, places: Sequence[tuple[str, int]], seeds: Sequence[int], root: str) -> str:
    """Return the command that makes runs on data sets with numbers of shots; what is there is skipped."""
    datasets, shots = dict.fromkeys(d for d, _ in places), sorted({n for _, n in places})
    script = "fewshot.sh" if any(shots) else "logreg.sh"
    variables = {"models_root_dir": root, "model_name": model, "dataset": " ".join(datasets)}
    variables |= {"shots": " ".join(map(str, shots))} if any(shots) else {}
    variables["seeds"] = " ".join(map(str, seeds))
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return f"bash bash-scripts/{script} {' '.join(words)}"


def _problem_folders(problems: Sequence[Problem]) -> list[Notice]:
    unfinished = [problem for problem in problems if problem.state in (RUNNING, INTERRUPTED)]
    others = [problem for problem in problems if problem not in unfinished]
    return [
        *_notices("folders", "", map(str, others), n=_amount(len(others), "folder")),
        *_notices("unfinished", "", map(str, unfinished)),
    ]


def _counts(model: str, verdicts: Mapping[str, Verdict]) -> list[Notice]:
    notices = []
    for match, kind in _MATCHES.items():
        matching = {dataset: verdict for dataset, verdict in verdicts.items() if verdict.match is match}
        items = [
            f"{dataset_label(dataset)}: {'; '.join(verdict.differences)}"
            for dataset, verdict in matching.items()
            if verdict.differences
        ]
        notices += _notices(kind, model, items or map(dataset_label, matching))
    return notices


def _missing(model: str, cells: Sequence[SeedAverage], root: str) -> list[Notice]:
    incomplete = [cell for cell in cells if cell.missing_seeds]
    groups: dict[tuple[tuple[int, ...], bool], list[SeedAverage]] = {}
    for cell in incomplete:
        groups.setdefault((cell.missing_seeds, bool(cell.n_shot)), []).append(cell)
    commands = [
        _driver(model, [(cell.dataset, cell.n_shot) for cell in group], seeds, root)
        for (seeds, _), group in groups.items()
    ]
    notices = _notices(
        "missing seeds",
        model,
        (
            f"{_place(c.dataset, c.n_shot)}: {len(c.seeds)} of {len(c.seeds) + len(c.missing_seeds)}, missing "
            f"{', '.join(map(str, c.missing_seeds))}"
            for c in incomplete
        ),
        commands=commands[:6] if model else (),  # a folder outside the layout has no names
        n=f"{len(incomplete)} of {_amount(len(cells), 'result')}",
    )
    present = {(cell.dataset, cell.n_shot) for cell in cells}
    for few in (False, True):
        official = [(d, n) for d, n in present if bool(n) == few and d in constants.DATASETS]
        datasets, shots = {d for d, _ in official}, sorted({n for _, n in official})
        absent = [dataset_label(d) for d in constants.DATASETS if d not in datasets]
        gaps = [(d, n) for d in constants.DATASETS for n in shots if (d, n) not in present]
        if not gaps:
            continue
        verb = "is" if len(absent) == 1 else "are"
        text = f"The paper's study has six data sets; {', '.join(absent)} {verb} missing entirely."
        notices += _notices(
            "missing results",
            model,
            (_place(d, n) for d, n in gaps),
            commands=[_driver(model, gaps, constants.SEEDS, root)],
            n=f"{len(gaps)} {'few-shot results' if few else 'results with all images'}",
            text=text if absent else "Some combinations of data set and number of images have no run.",
        )
    return notices


def _diverged(model: str, runs: Sequence[Run]) -> list[Notice]:
    lossy = [run for run in runs if run.details.n_trials_diverged]
    most = [run for run in lossy if 2 * run.details.n_trials_diverged > run.details.n_trials > 0]
    lost = sum(run.details.n_trials_diverged for run in runs)
    return [
        *_notices("diverged runs", model, (_run(run) for run in runs if run.diverged)),
        *_notices(
            "many diverged trials" if most else "diverged trials",
            model,
            (f"{_run(r)}: {r.details.n_trials_diverged} of {r.details.n_trials}" for r in most or lossy),
            n=f"{lost:,} of {sum(run.details.n_trials for run in runs):,} trials",
        ),
    ]


def _ties(model: str, runs: Sequence[Run]) -> list[Notice]:
    searched = [run for run in runs if run.details.n_trials > 1]
    items = [
        f"{_run(run)}: {ties.say(run.details.n_trials_tied, run.details.n_trials)}"
        for run in searched
        if 2 * run.details.n_trials_tied >= run.details.n_trials
    ]
    return _notices("ties", model, items, n=f"{len(items)} of {_amount(len(searched), 'run')}")


def _chance(model: str, cells: Sequence[SeedAverage], runs: Sequence[Run]) -> list[Notice]:
    classes = {(run.dataset, run.n_shot): run.details.n_classes for run in runs if run.details.n_classes}
    known = [(cell, classes.get((cell.dataset, cell.n_shot)) or 1) for cell in cells]
    return _notices(
        "chance",
        model,
        (
            f"{_place(cell.dataset, cell.n_shot)}: {cell.value:.2f} % of {n_classes} classes"
            for cell, n_classes in known
            if n_classes > 1 and cell.value <= 1.5 * 100 / n_classes
        ),
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


def _edges(model: str, runs: Sequence[Run]) -> list[Notice]:
    notices = []
    searched = [run for run in runs if run.details.n_trials]
    for name, key, attribute in (
        ("learning rate", "CLF.LR_INTV", "lr"),
        ("weight decay", "CLF.WD_INTV", "wd"),
    ):
        interval = f"{attribute}_interval"
        for end in ("lower", "upper"):
            at_end = [
                run
                for run in searched
                if at_edge(getattr(run, attribute), run.details.settings.get(interval)) == end
            ]
            kind = _KINDS["edge"]
            if attribute == "wd" and end == "lower":
                harmless = (
                    "Weight decay this small acts like none; a wider interval would not change the scores."
                )
                kind = replace(kind, severity="note", text=harmless, action=_NOTHING)
            elif len(at_end) * 10 < len(searched):
                rare = f"{_EDGE} Single runs can end up there by chance."
                kind = replace(kind, severity="note", text=rare)
            items = (f"{_run(run)}: {getattr(run, attribute):.3g}" for run in at_end)
            n = f"{len(at_end)} of {_amount(len(searched), 'run')}"
            notices += _notices(kind, model, items, n=n, name=name, end=end, key=key)
    return notices


def _protocol(model: str, runs: Sequence[Run]) -> list[Notice]:
    items = []
    for name, (expected, key) in PROTOCOL.items():
        if name == "n_epochs":
            values = [run.planned_epochs for run in runs]
        else:
            values = [run.details.settings[name] for run in runs if name in run.details.settings]
        other = [plain(value) for value in values if not _same(value, expected)]
        if other:
            shown = ", ".join(sorted(map(str, set(other))))
            items.append(f"{key}: {shown} instead of {plain(expected)} ({_amount(len(other), 'run')})")
    return _notices("protocol", model, items)


def _same(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(value, list | tuple) and list(value) == expected
    return type(value) is type(expected) and value == expected


def _mixed(model: str, runs: Sequence[Run], made: Sequence[FeatureDescription]) -> list[Notice]:
    epochs: dict[int, list[Run]] = {}
    for run in runs:
        epochs.setdefault(run.planned_epochs, []).append(run)

    def of_features(label: str, get: Callable[[FeatureDescription], Any]) -> list[str]:
        return _groups(label, ((get(f), f"{dataset_label(f.dataset)} {f.split}") for f in made))

    def of_settings(keys: Mapping[str, str]) -> list[str]:
        return [
            line
            for name, key in keys.items()
            for line in _groups(key, ((run.details.settings.get(name), _run(run)) for run in runs))
        ]

    extraction = of_features("checkpoint", lambda f: f.checkpoint_sha256 and f.checkpoint_sha256[:12])
    kind = replace(_KINDS["extraction"], severity="problem") if extraction else _KINDS["extraction"]
    for name in ("preprocessing", "profile", "variant", "precision"):
        extraction += of_features(name, operator.attrgetter(name))
    versions = []
    for package in ("imagenet-cog", "torch", "optuna"):
        versions += _groups(package, ((run.details.versions.get(package), _run(run)) for run in runs))
    versions += of_settings(OTHER_SETTINGS)
    devices = ((run.details.device and run.details.device.split(":")[0], _run(run)) for run in runs)
    versions += _groups("device", devices)
    return [
        *_notices(
            "epochs",
            model,
            (f"{n} epochs: {_some(map(_run, odd))}" for n, odd in sorted(epochs.items()) if len(epochs) > 1),
        ),
        *_notices(
            "settings",
            model,
            of_settings({name: key for name, (_, key) in PROTOCOL.items() if name != "n_epochs"}),
        ),
        *_notices(kind, model, extraction),
        *_notices("versions", model, versions),
    ]


def _precisions(runs: Sequence[Run]) -> list[str]:
    """Return one line for each data set and number of shots whose runs (any seeds, any models) differ in precision."""
    places: dict[tuple[str, int], dict[str, list[str]]] = {}
    for run in runs:
        if run.details.precision is not None:
            by_precision = places.setdefault((run.dataset, run.n_shot), {})
            by_precision.setdefault(run.details.precision, []).append(f"{run.model}, seed {run.seed}")
    return [
        f"{_place(*place)}: {'; '.join(f'{precision}: {_some(of)}' for precision, of in by_precision.items())}"
        for place, by_precision in places.items()
        if len(by_precision) > 1
    ]


def _groups(label: str, entries: Iterable[tuple[Any, str]]) -> list[str]:
    """Return one line per value when there are several; unknown values do not count."""
    groups: dict[str, list[str]] = {}
    for value, place in entries:
        shown = plain(value)
        if shown is not None:
            groups.setdefault(shown, []).append(place)
    if len(groups) < 2:
        return []
    return [f"{label} {value}: {_some(places)}" for value, places in groups.items()]


def _some(places: Iterable[str]) -> str:
    places = list(dict.fromkeys(places))
    return "; ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _features(
    model: str,
    runs: Sequence[Run],
    made: Sequence[FeatureDescription],
    features: Mapping[tuple[str, str, str], FeatureDescription],
) -> list[Notice]:
    failed = [(f, f.n_failed) for f in made if f.n_failed]
    apart, stale = [], []
    for run in runs:
        used = {"train": run.details.train_features, "test": run.details.test_features}
        checkpoints = {identity.get("checkpoint_sha256") or None for identity in used.values()}
        if len(checkpoints - {None}) > 1:
            apart.append(_run(run))
        for split, identity in used.items():
            now = features.get((model, run.dataset, split))
            for entry in ("checkpoint_sha256", "image_list_sha256"):
                before, after = identity.get(entry), getattr(now, entry, None)
                if before and after and before != after:
                    stale.append(_run(run))
    return [
        *_notices(
            "failed images",
            model,
            (
                f"{dataset_label(f.dataset)} {f.split}: {_amount(n, 'image')}"
                + (f" of {f.n_images:,}" if f.n_images else "")
                for f, n in failed
            ),
            n=_amount(sum(n for _, n in failed), "image"),
        ),
        *_notices("checkpoints", model, apart),
        *_notices("stale", model, stale),
        *_notices(
            "unpublished",
            model,
            (f"{dataset_label(f.dataset)} {f.split}" for f in made if f.checkpoint_is_published is False),
        ),
    ]
