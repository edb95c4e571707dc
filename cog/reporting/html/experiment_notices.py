"""What to know of the numbers of other experiments: what is missing, and what does not compare."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from cog.results import scores
from cog.results.analysis_records import AnalysisRecord
from cog.results.diagnostics import Notice
from cog.results.labels import dataset_label
from cog.results.query import QueryResult
from cog.results.run_records import Run
from cog.results.scores import RUNS, dataset_key
from cog.results.search_history import plain

# The analyses of one command that need nothing but features.
_LABEL_FREE = ("kmeans", "alignment", "knn", "ncm")

# Settings of a run that make its accuracy another one, whatever the classifier.
_COMPARED = ("n_trials", "n_epochs", "batch_size", "val_frac", "momentum")

_MANY = 12

# What ends the name under which an analysis records the features it used.
_FEATURES = "_features"

_LONGEST_SETTING = 40


def collect(results: QueryResult, *, root: str) -> list[Notice]:
    """Return the notices.

    Args:
        results: as they were read.
        root: the folder of all models, for commands.
    """
    return [
        *_settings(results.analyses),
        *_features(results.analyses),
        *_diverged(results),
        *_variants(results),
        *_missing(results, root),
    ]


def _shorten(items: Iterable[str]) -> tuple[str, ...]:
    items = list(dict.fromkeys(items))
    return (
        tuple(items) if len(items) <= _MANY else (*items[: _MANY - 1], f"and {len(items) - _MANY + 1} more")
    )


def _settings(analyses: Sequence[AnalysisRecord]) -> Iterable[Notice]:
    """The same analysis of the same data set, told different things."""
    groups: dict[tuple[str, str], list[AnalysisRecord]] = {}
    for record in analyses:
        groups.setdefault((record.analysis, record.dataset or ""), []).append(record)
    items = []
    for (analysis, dataset), members in groups.items():
        told: dict[str, dict[str, list[str]]] = {}
        for record in members:
            for key, value in settings_of(record).items():
                told.setdefault(key, {}).setdefault(value, []).append(record.model or "")
        for key, by_value in told.items():
            if len(by_value) > 1:
                words = "; ".join(f"{value} ({', '.join(models[:3])})" for value, models in by_value.items())
                items.append(f"{analysis} on {dataset_label(dataset)}, {key}: {words}")
    if items:
        yield Notice(
            "warning",
            "",
            "analyses with different settings",
            "Analyses were made with different settings",
            "Their numbers stand in one column but do not compare.",
            "Repeat some of them with the settings of the others and --overwrite.",
            items=_shorten(items),
        )


def _features(analyses: Sequence[AnalysisRecord]) -> Iterable[Notice]:
    """Analyses of one model and data set that saw different features."""
    seen: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for record in analyses:
        for split, digest in features_of(record).items():
            place = (record.model or "", record.dataset or "", split)
            seen.setdefault(place, {}).setdefault(digest, []).append(record.analysis)
    by_model: dict[str, list[str]] = {}
    for (model, dataset, split), by_digest in seen.items():
        if len(by_digest) > 1:
            groups = " / ".join(", ".join(names) for names in by_digest.values())
            by_model.setdefault(model, []).append(f"{dataset_label(dataset)}, {split}: {groups}")
    for model, items in by_model.items():
        yield Notice(
            "warning",
            model,
            "analyses of different features",
            "Analyses saw different features",
            "The features were extracted again between two analyses of the same data set, so their numbers describe "
            "different things.",
            "Repeat the older analyses with --overwrite.",
            items=_shorten(items),
        )


def _diverged(results: QueryResult) -> Iterable[Notice]:
    """Variants whose final training diverged."""
    by_model: dict[str, list[str]] = {}
    for evaluation, group in results.variants.items():
        # Others are not shown.
        for run in group if scores.is_classifier(evaluation) else ():
            if run.diverged:
                few = f", N = {run.n_shot}" if run.n_shot else ""
                where = f"{evaluation} on {dataset_label(run.dataset)}{few}, seed {run.seed}"
                by_model.setdefault(run.model, []).append(where)
    for model, items in by_model.items():
        yield Notice(
            "problem",
            model,
            "variants that diverged",
            f"Final training of variants of the classifier diverged in {len(items)} run{'s' * (len(items) != 1)}",
            "The weights were no longer finite; these accuracies mean nothing but are counted in the averages.",
            "Run them again with lower learning rates (CLF.LR_INTV, of fine-tuning FINETUNE.LR) and --overwrite.",
            items=_shorten(items),
        )


def _variants(results: QueryResult) -> Iterable[Notice]:
    """Variants whose training or search differs in more than the classifier."""
    base: dict[tuple[str, str, int], dict[str, set[str]]] = {}
    for run in results.runs:
        place = base.setdefault((run.model, run.dataset, run.n_shot), {})
        for key, value in _told(run).items():
            place.setdefault(key, set()).add(value)
    by_model: dict[str, list[str]] = {}
    for evaluation, group in results.variants.items():
        if not scores.is_classifier(evaluation) or evaluation.startswith("finetune"):
            continue
        for run in group:
            known = base.get((run.model, run.dataset, run.n_shot), {})
            for key, value in _told(run).items():
                if key in known and value not in known[key]:
                    where = f"{evaluation} on {dataset_label(run.dataset)}"
                    by_model.setdefault(run.model, []).append(
                        f"{where}: {key} {value} instead of {' / '.join(sorted(known[key]))}"
                    )
    for model, items in by_model.items():
        yield Notice(
            "warning",
            model,
            "variants with another protocol",
            "Variants of the classifier were trained differently",
            "They are shown relative to logistic regression, but differ from it in more than the classifier.",
            "Run them, or logistic regression, again with the same settings.",
            items=_shorten(items),
        )


def _told(run: Run) -> dict[str, str]:
    settings = {**run.details.settings, "n_epochs": run.planned_epochs}
    return {key: f"{settings[key]}" for key in _COMPARED if key in settings}


def _missing(results: QueryResult, root: str) -> Iterable[Notice]:
    """Analyses that are there for some models and data sets, and not for others with features."""
    there = {(record.model or "", record.dataset or "", record.analysis) for record in results.analyses}
    names = [name for name in _LABEL_FREE if any(analysis == name for _, _, analysis in there)]
    own = [measure for measure in results.all_measures if measure.source == RUNS]
    places = sorted(
        {(measure.model, measure.dataset) for measure in own},
        key=lambda place: (place[0], dataset_key(place[1])),
    )
    by_model: dict[str, dict[str, list[str]]] = {}
    for model, dataset in places:
        for name in names:
            if (model, dataset, name) not in there:
                by_model.setdefault(model, {}).setdefault(name, []).append(dataset)
    for model, absent in by_model.items():
        datasets = list(dict.fromkeys(dataset for found_ in absent.values() for dataset in found_))
        words = {"models_root_dir": [root], "model": [model], "datasets": datasets, "analysis": list(absent)}
        flags = " ".join(f"--{flag} {' '.join(map(shlex.quote, values))}" for flag, values in words.items())
        yield Notice(
            "note",
            model,
            "missing analyses",
            f"{sum(map(len, absent.values()))} analyses not there yet",
            "Other models or data sets have them.",
            "Run them; what is there is skipped.",
            commands=(f"python analyze_features.py {flags}",),
            items=_shorten(
                f"{name}: {', '.join(map(dataset_label, where))}" for name, where in absent.items()
            ),
        )


def settings_of(record: AnalysisRecord) -> dict[str, str]:
    """Return what an analysis was told, without the features and files it was given."""
    settings = {}
    for key, value in record.identity.items():
        shown = plain(value)
        # Digests say that inputs differ, which is not a setting.
        if not key.endswith(_FEATURES) and shown is not None and len(shown) < _LONGEST_SETTING:
            settings[key] = shown
    return settings


def features_of(record: AnalysisRecord) -> dict[str, str]:
    """Return the digest of the features of each split that an analysis used."""
    digests = {}
    for key, value in record.identity.items():
        digest = value.get("sample_sha256") if isinstance(value, dict) else None
        if key.endswith(_FEATURES) and isinstance(digest, str):
            digests[key.removesuffix(_FEATURES)] = digest
    return digests


def describe_settings(record: AnalysisRecord) -> str:
    """Return the settings of an analysis in one line."""
    return ", ".join(f"{key} {value}" for key, value in settings_of(record).items())
