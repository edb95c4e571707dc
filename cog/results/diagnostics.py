"""Checks of results for facts that limit the trust in them: each fact is a notice with advice."""

from __future__ import annotations

import math
import operator
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cog import constants, paths
from cog.results import official, scores, search_history
from cog.results.analysis_records import AnalysisRecord
from cog.results.labels import counted, dataset_label, shots_title
from cog.results.notices import OTHER_SETTINGS, PROTOCOL, SEVERITIES, Notice, notices
from cog.results.official import Match, Verdict
from cog.results.run_records import Problem, Run
from cog.results.scores import RUNS, SeedAverage, dataset_key, grouped
from cog.results.search_history import FeatureDescription, plain
from cog.runtime.output_folder import INTERRUPTED, RUNNING

if TYPE_CHECKING:
    from cog.results.query import QueryResult

_Item = TypeVar("_Item")
_Subject = TypeVar("_Subject")
_Value = TypeVar("_Value")

# A value within this distance of an end, as a share of the logarithmic length of the interval, lies at the edge.
_EDGE_SHARE = 0.02

# Maximal number of commands for missing seeds that are shown.
_MOST_COMMANDS = 6

# Analyses that need features only; one command runs all of them.
_LABEL_FREE = ("kmeans", "alignment", "knn", "ncm")

# Settings of a run that affect its accuracy with any classifier.
_COMPARED = ("n_trials", "n_epochs", "batch_size", "val_frac", "momentum")

# Suffix of the names under which an analysis records its features.
_FEATURES = "_features"

_LONGEST_SETTING = 40


@dataclass(frozen=True, kw_only=True)
class ModelResults:
    """The results of one model."""

    name: str  # as everywhere in the toolkit
    cells: Sequence[SeedAverage]  # top-1 accuracies
    runs: Sequence[Run] = ()  # of the protocol's classifier; empty for imported and published results
    counts: Mapping[str, Verdict] = field(default_factory=dict)  # on its data, by data set
    features: Mapping[tuple[str, str], FeatureDescription] = field(
        default_factory=dict
    )  # by data set and split


def collect(results: QueryResult, models: Iterable[ModelResults], *, root: str) -> list[Notice]:
    """Return all notices, the most severe first.

    Args:
        results: results of a query.
        models: the models with runs, in display order.
        root: folder of all models, for commands.
    """
    known = official.compare(results.cells)
    collected = [
        *_problem_folders(results.problems),
        *notices("unverified", "", known.unverified_places),
        *notices("mixed", "", known.mixed_places),
    ]
    for model in models:
        collected += [
            *_counts(model),
            *_missing_seeds(model, root),
            *_missing_results(model, root),
            *_diverged(model),
            *_chance(model),
            *_edges(model),
            *_protocol(model),
            *_mixed(model),
            *_features(model),
            *notices("unrecorded", model.name, [run for run in model.runs if not run.details.settings], _run),
        ]
    collected += [*_precisions(results.runs), *of_experiments(results, root=root)]
    if limit := paths.limit_of(root):
        collected += notices("no results", "", [root], limit=str(limit))
    return sorted(collected, key=lambda notice: SEVERITIES.index(notice.severity))


def of_experiments(results: QueryResult, *, root: str) -> list[Notice]:
    """Return the notices on variants of the classifier and analyses; arguments: see :func:`collect`."""
    return [
        *_analyses_with_other_settings(results.analyses),
        *_analyses_of_other_features(results.analyses),
        *_diverged_variants(results),
        *_variants_with_another_protocol(results),
        *_missing_analyses(results, root),
    ]


def run_settings(run: Run) -> dict[str, Any]:
    """Return the recorded settings of a run, with its planned number of epochs."""
    return {**run.details.settings, "n_epochs": run.n_epochs}


def _apart(
    records: Iterable[tuple[_Subject, _Value, _Item]],
) -> Iterator[tuple[_Subject, dict[_Value, list[_Item]]]]:
    """Yield each subject that has several values, with the items that record each value."""
    for subject, group in grouped(records, operator.itemgetter(0)).items():
        by_value = grouped(group, operator.itemgetter(1))
        if len(by_value) > 1:
            yield subject, {value: [item for *_, item in some] for value, some in by_value.items()}


def _differing(
    label: str, value: Callable[[_Item], Any], items: Iterable[_Item], describe: Callable[[_Item], str]
) -> list[str]:
    """Return a line for each value of a property when there are several; unknown values do not count."""
    known = ((label, text, item) for item in items if (text := plain(value(item))) is not None)
    return [
        f"{label} {text}: {_some(having, describe)}"
        for _, by_text in _apart(known)
        for text, having in by_text.items()
    ]


def _some(items: Sequence[_Item], describe: Callable[[_Item], str]) -> str:
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return "; ".join(map(describe, items[:3])) + more


def _place(dataset: str, n_shot: int) -> str:
    return f"{dataset_label(dataset)}, {shots_title(n_shot)}"


def _run(run: Run) -> str:
    return f"{_place(run.dataset, run.n_shot)}, seed {run.seed}"


def _split(made: FeatureDescription) -> str:
    return f"{dataset_label(made.dataset)} {made.split}"


def _driver(model: ModelResults, places: Sequence[tuple[str, int]], seeds: Sequence[int], root: str) -> str:
    """Return the command that makes runs like the existing ones on data sets with numbers of shots."""
    datasets, shots = dict.fromkeys(d for d, _ in places), sorted({n for _, n in places} - {0})
    script = "fewshot.sh" if shots else "logreg.sh"
    variables: dict[str, Iterable[Any]] = {
        "models_root_dir": [root], "model_name": [model.name], "dataset": datasets, "shots": shots, "seeds": seeds
    }  # fmt: skip
    texts = {name: " ".join(map(str, values)) for name, values in variables.items()}
    words = [f"{name}={shlex.quote(text)}" for name, text in texts.items() if text]
    return f"bash bash-scripts/{script} {' '.join([*words, *_other_settings(model.runs)])}"


def _other_settings(runs: Sequence[Run]) -> list[str]:
    """Return ``KEY VALUE`` for the settings other than the protocol's that all runs share, as words of a command."""
    words = []
    for name, (expected, key) in PROTOCOL.items():
        values = [run_settings(run).get(name) for run in runs]
        shared = values and values[0] is not None and all(_same(value, values[0]) for value in values)
        if shared and not _same(values[0], expected) and key.startswith("CLF."):
            text = str(tuple(values[0])) if isinstance(values[0], list | tuple) else str(values[0])
            words.append(f"{key} {shlex.quote(text)}")
    return words


def _of_models(
    kind: str, places: Iterable[tuple[str, _Item]], describe: Callable[[_Item], str] = str
) -> list[Notice]:
    """Return a notice of one kind for each model, given pairs of a model and a place."""
    by_model = grouped(places, operator.itemgetter(0))
    return [
        notice
        for model, group in by_model.items()
        for notice in notices(kind, model, [place for _, place in group], describe)
    ]


def _problem_folders(problems: Sequence[Problem]) -> list[Notice]:
    by_state = grouped(problems, lambda problem: problem.state in (RUNNING, INTERRUPTED))
    unfinished, others = by_state.get(True, []), by_state.get(False, [])
    return [
        *notices("folders", "", others, n=counted(len(others), "folder")),
        *notices("unfinished", "", unfinished),
    ]


# --- notices on single models


def _counts(model: ModelResults) -> list[Notice]:
    def describe(place: tuple[str, Verdict]) -> str:
        dataset, verdict = place
        return ": ".join(filter(None, (dataset_label(dataset), "; ".join(verdict.differences))))

    matching = grouped(model.counts.items(), lambda place: place[1].match)
    return [
        notice
        for match in (Match.DIFFERENT, Match.NEARLY, Match.UNKNOWN)
        for notice in notices(match.value, model.name, matching.get(match, ()), describe)
    ]


def _missing_seeds(model: ModelResults, root: str) -> list[Notice]:
    incomplete = [cell for cell in model.cells if cell.missing_seeds]
    groups = grouped(incomplete, lambda cell: (cell.missing_seeds, bool(cell.n_shot)))
    commands = [
        _driver(model, [(cell.dataset, cell.n_shot) for cell in group], seeds, root)
        for (seeds, _), group in groups.items()
    ]
    return notices(
        "missing seeds",
        model.name,
        incomplete,
        lambda cell: (
            f"{_place(cell.dataset, cell.n_shot)}: {len(cell.seeds)} of {cell.n_expected}, "
            f"missing {', '.join(map(str, cell.missing_seeds))}"
        ),
        commands=commands[:_MOST_COMMANDS] if model.name else (),  # no model name outside the layout
        n=f"{len(incomplete)} of {counted(len(model.cells), 'result')}",
    )


def _missing_results(model: ModelResults, root: str) -> list[Notice]:
    missing = []
    present = {(cell.dataset, cell.n_shot) for cell in model.cells if cell.dataset in constants.DATASETS}
    for few in (False, True):
        shots = sorted({n for _, n in present if bool(n) == few})
        gaps = [(d, n) for d in constants.DATASETS for n in shots if (d, n) not in present]
        absent = [dataset_label(d) for d in constants.DATASETS if all((d, n) in gaps for n in shots)]
        verb = "is" if len(absent) == 1 else "are"
        text = f"The paper's study has six data sets; {', '.join(absent)} {verb} missing entirely."
        missing += notices(
            "missing results",
            model.name,
            gaps,
            lambda gap: _place(*gap),
            commands=[_driver(model, gaps, constants.SEEDS, root)],
            n=f"{len(gaps)} {'few-shot results' if few else 'results with all images'}",
            text=text if absent else "Some combinations of data set and number of images have no run.",
        )
    return missing


def _diverged(model: ModelResults) -> list[Notice]:
    lossy = [run for run in model.runs if run.details.n_trials_diverged]
    most = [run for run in lossy if 2 * run.details.n_trials_diverged > run.details.n_trials > 0]
    lost, tried = (
        sum(getattr(run.details, name) for run in model.runs) for name in ("n_trials_diverged", "n_trials")
    )
    return [
        *notices("diverged runs", model.name, (run for run in model.runs if run.diverged), _run),
        *notices(
            "many diverged trials" if most else "diverged trials",
            model.name,
            most or lossy,
            lambda run: f"{_run(run)}: {run.details.n_trials_diverged} of {run.details.n_trials}",
            n=f"{lost:,} of {tried:,} trials",
        ),
    ]


def _chance(model: ModelResults) -> list[Notice]:
    classes = {
        (run.dataset, run.n_shot): run.details.n_classes for run in model.runs if run.details.n_classes
    }
    known = [(cell, classes.get((cell.dataset, cell.n_shot)) or 1) for cell in model.cells]
    return notices(
        "chance",
        model.name,
        [(cell, n) for cell, n in known if n > 1 and cell.value <= 1.5 * 100 / n],
        lambda place: (
            f"{_place(place[0].dataset, place[0].n_shot)}: {place[0].value:.2f} % of {place[1]} classes"
        ),
    )


def at_edge(value: float | None, interval: Any) -> str | None:
    """Return ``"lower"`` or ``"upper"`` when ``value`` lies at an end of a log-uniform interval, else None."""
    ends = search_history.interval(interval)
    if value is None or value <= 0 or ends is None:
        return None
    share = math.log(value / ends[0]) / math.log(ends[1] / ends[0])
    return "lower" if share <= _EDGE_SHARE else "upper" if share >= 1 - _EDGE_SHARE else None


def _edges(model: ModelResults) -> list[Notice]:
    searched = [run for run in model.runs if run.details.n_trials]
    ends = grouped(
        (
            (attribute, end, run)
            for run in searched
            for attribute in ("lr", "wd")
            if (end := at_edge(getattr(run, attribute), run.details.settings.get(f"{attribute}_interval")))
        ),
        lambda place: place[:2],
    )
    at_edges = []
    for (attribute, end), places in sorted(ends.items()):
        rare = len(places) * 10 < len(searched)
        at_edges += notices(
            "harmless edge" if (attribute, end) == ("wd", "lower") else "rare edge" if rare else "edge",
            model.name,
            places,
            lambda place: f"{_run(place[2])}: {getattr(place[2], place[0]):.3g}",
            n=f"{len(places)} of {counted(len(searched), 'run')}",
            name={"lr": "learning rate", "wd": "weight decay"}[attribute],
            end=end,
            key={"lr": "CLF.LR_INTV", "wd": "CLF.WD_INTV"}[attribute],
        )
    return at_edges


def _protocol(model: ModelResults) -> list[Notice]:
    settings = [run_settings(run) for run in model.runs]
    items = []
    for name, (expected, key) in PROTOCOL.items():
        other = [given[name] for given in settings if name in given and not _same(given[name], expected)]
        if other:
            shown = ", ".join(sorted({f"{plain(value)}" for value in other}))
            items.append(f"{key}: {shown} instead of {plain(expected)} ({counted(len(other), 'run')})")
    return notices("protocol", model.name, items)


def _same(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(value, list | tuple) and list(value) == expected
    return type(value) is type(expected) and value == expected


def _mixed(model: ModelResults) -> list[Notice]:
    epochs = sorted(grouped(model.runs, operator.attrgetter("n_epochs")).items())
    many = [f"{n} epochs: {_some(group, _run)}" for n, group in epochs if len(epochs) > 1]

    def of_runs(label: str, value: Callable[[Run], Any]) -> list[str]:
        return _differing(label, value, model.runs, _run)

    def of_features(label: str, value: Callable[[FeatureDescription], Any]) -> list[str]:
        return _differing(label, value, model.features.values(), _split)

    def of_setting(name: str, key: str) -> list[str]:
        return of_runs(key, lambda run: run.details.settings.get(name))

    def of_version(package: str) -> list[str]:
        return of_runs(package, lambda run: run.details.versions.get(package))

    checkpoints = of_features("checkpoint", lambda f: f.checkpoint_sha256 and f.checkpoint_sha256[:12])
    extraction = list(checkpoints)
    for name in ("preprocessing", "precision"):
        extraction += of_features(name, operator.attrgetter(name))
    versions = []
    for package in ("imagenet-cog", "torch", "optuna"):
        versions += of_version(package)
    for name, key in OTHER_SETTINGS.items():
        versions += of_setting(name, key)
    versions += of_runs("device", lambda run: run.details.device and run.details.device.split(":")[0])
    settings = []
    for name, (_, key) in PROTOCOL.items():
        settings += of_setting(name, key) if name != "n_epochs" else []
    return [
        *notices("epochs", model.name, many),
        *notices("settings", model.name, settings),
        *notices("other checkpoints" if checkpoints else "extraction", model.name, extraction),
        *notices("versions", model.name, versions),
    ]


def _features(model: ModelResults) -> list[Notice]:
    made = model.features.values()
    failed = [f for f in made if f.n_failed]
    apart, stale = [], []
    for run in model.runs:
        used = {"train": run.details.train_features, "test": run.details.test_features}
        if len({identity.get("checkpoint_sha256") or None for identity in used.values()} - {None}) > 1:
            apart.append(run)
        changes = (
            (identity.get(entry), getattr(model.features.get((run.dataset, split)), entry, None))
            for split, identity in used.items()
            for entry in ("checkpoint_sha256", "image_list_sha256")
        )
        if any(before and after and before != after for before, after in changes):
            stale.append(run)
    return [
        *notices(
            "failed images",
            model.name,
            failed,
            lambda f: (
                f"{_split(f)}: {counted(f.n_failed or 0, 'image')}"
                + (f" of {f.n_images:,}" if f.n_images else "")
            ),
            n=counted(sum(f.n_failed or 0 for f in failed), "image"),
        ),
        *notices("checkpoints", model.name, apart, _run),
        *notices("stale", model.name, stale, _run),
        *notices("unpublished", model.name, (f for f in made if f.checkpoint_is_published is False), _split),
    ]


# --- notices on several models


def _precisions(runs: Sequence[Run]) -> list[Notice]:
    """Name data sets and numbers of shots whose runs (any seeds, any models) differ in precision."""
    recorded = (
        ((run.dataset, run.n_shot), run.details.precision, run) for run in runs if run.details.precision
    )
    items = []
    for place, by_precision in _apart(recorded):
        texts = (
            f"{precision}: {_some(members, lambda run: f'{run.model}, seed {run.seed}')}"
            for precision, members in by_precision.items()
        )
        items.append(f"{_place(*place)}: {'; '.join(texts)}")
    return notices("precision", "", items)


def _analyses_with_other_settings(analyses: Sequence[AnalysisRecord]) -> list[Notice]:
    """Name settings that differ between results of the same analysis of the same data set."""
    recorded = (
        ((record.analysis, record.dataset or "", key), value, record.model or "")
        for record in analyses
        for key, value in analysis_settings(record).items()
    )
    items = []
    for (analysis, dataset, key), by_value in _apart(recorded):
        words = (f"{value} ({', '.join(models[:3])})" for value, models in by_value.items())
        items.append(f"{analysis} on {dataset_label(dataset)}, {key}: {'; '.join(words)}")
    return notices("analyses' settings", "", items)


def _analyses_of_other_features(analyses: Sequence[AnalysisRecord]) -> list[Notice]:
    """Name splits for which analyses of one model used different features."""
    used = (
        ((record.model or "", record.dataset or "", split), digest, record.analysis)
        for record in analyses
        for split, digest in _digests(record).items()
    )
    items = []
    for (model, dataset, split), by_digest in _apart(used):
        groups = " / ".join(map(", ".join, by_digest.values()))
        items.append((model, f"{dataset_label(dataset)}, {split}: {groups}"))
    return _of_models("analyses' features", items)


def _shown_variants(results: QueryResult) -> list[tuple[str, Run]]:
    """Return pairs of evaluation and run of the variants of the classifier, without evaluations of unknown kind."""
    return [
        (evaluation, run)
        for evaluation, group in results.variants.items()
        if scores.is_classifier(evaluation)
        for run in group
    ]


def _diverged_variants(results: QueryResult) -> list[Notice]:
    def describe(place: tuple[str, Run]) -> str:
        evaluation, run = place
        few = f", N = {run.n_shot}" if run.n_shot else ""
        return f"{evaluation} on {dataset_label(run.dataset)}{few}, seed {run.seed}"

    lost = [(run.model, (evaluation, run)) for evaluation, run in _shown_variants(results) if run.diverged]
    return _of_models("diverged variants", lost, describe)


def _variants_with_another_protocol(results: QueryResult) -> list[Notice]:
    """Name variants whose training or search differs in more than the classifier."""

    def compared(run: Run) -> dict[str, str]:
        settings = run_settings(run)
        return {key: f"{settings[key]}" for key in _COMPARED if key in settings}

    base: dict[tuple[str, str, int, str], set[str]] = {}
    for run in results.runs:
        for key, value in compared(run).items():
            base.setdefault((run.model, run.dataset, run.n_shot, key), set()).add(value)
    items: dict[tuple[str, str], None] = {}
    for evaluation, run in _shown_variants(results):
        if evaluation.startswith("finetune"):
            continue
        for key, value in compared(run).items():
            known = base.get((run.model, run.dataset, run.n_shot, key), {value})
            if value not in known:
                place = f"{evaluation} on {dataset_label(run.dataset)}"
                text = f"{place}: {key} {value} instead of {' / '.join(sorted(known))}"
                items[run.model, text] = None
    return _of_models("variants' protocol", items)


def _missing_analyses(results: QueryResult, root: str) -> list[Notice]:
    """Name analyses that exist for some models and data sets with features, but not for all of them."""
    present = {(record.model or "", record.dataset or "", record.analysis) for record in results.analyses}
    names = [name for name in _LABEL_FREE if any(analysis == name for *_, analysis in present)]
    with_runs = {
        (average.model, average.dataset) for average in results.all_measures if average.source == RUNS
    }
    gaps: dict[str, dict[str, list[str]]] = {}  # data sets by model and analysis
    for model, dataset in sorted(with_runs, key=lambda place: (place[0], dataset_key(place[1]))):
        for name in names:
            if (model, dataset, name) not in present:
                gaps.setdefault(model, {}).setdefault(name, []).append(dataset)
    missing = []
    for model, absent in gaps.items():
        datasets = dict.fromkeys(dataset for group in absent.values() for dataset in group)
        words = {"models_root_dir": [root], "model": [model], "datasets": datasets, "analysis": absent}
        flags = " ".join(f"--{flag} {' '.join(map(shlex.quote, values))}" for flag, values in words.items())
        items = [f"{name}: {', '.join(map(dataset_label, group))}" for name, group in absent.items()]
        n_absent = sum(map(len, absent.values()))
        command = f"python analyze_features.py {flags}"
        missing += notices("missing analyses", model, items, commands=[command], n=str(n_absent))
    return missing


def analysis_settings(record: AnalysisRecord) -> dict[str, str]:
    """Return the settings of an analysis as text, without its input features and files."""
    settings = {}
    for key, value in record.identity.items():
        shown = plain(value)
        # Digests of inputs are long texts, and not settings.
        if not key.endswith(_FEATURES) and shown is not None and len(shown) < _LONGEST_SETTING:
            settings[key] = shown
    return settings


def _digests(record: AnalysisRecord) -> dict[str, str]:
    """Return the digest of the features that an analysis used, by split."""
    digests = {}
    for key, value in record.identity.items():
        digest = value.get("sample_sha256") if isinstance(value, dict) else None
        if key.endswith(_FEATURES) and isinstance(digest, str):
            digests[key.removesuffix(_FEATURES)] = digest
    return digests
