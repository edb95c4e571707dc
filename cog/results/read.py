"""Reading of results of all sources into one table: folders, shared files, the papers."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from cog import constants
from cog.data import datasets as data_sets
from cog.errors import CogError, did_you_mean, printable, some
from cog.models.paper_models import pretraining
from cog.models.spec import PRETRAINING
from cog.results import analysis_records, records, runs, share
from cog.results import published as papers
from cog.results.benchmark import data_of
from cog.results.fields import sha256, whole
from cog.results.frame import LOGREG, PLACE, RUNS, in_order, is_classifier, scores_of
from cog.results.runs import Found, Skipped, is_pattern, matches
from cog.runtime import output

logger = logging.getLogger(__name__)


@dataclass
class Results:
    """What was read: the table, and what the checks and the page tell of its runs."""

    scores: pd.DataFrame  # cog.results.frame
    found: Found = field(default_factory=Found)


def read_results(
    root: str | os.PathLike[str] | None = None,
    *,
    models: str | Iterable[str] | None = None,
    datasets: str | Iterable[str] | None = None,
    imports: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    published: str | None = None,
) -> pd.DataFrame:
    """Return results as one table, a row per number of one seed; columns as in :mod:`cog.results.frame`.

    Args:
        root: folder of all models; None: nothing is read from folders.
        models: one or several names, or patterns such as ``deit_*``; None: all.
        datasets: one or several names; None: all.
        imports: one or several files that ``print_results.py --export`` wrote.
        published: version of the paper whose numbers are read too, ``"v2"`` or ``"v1"``; None: none.

    Returns:
        The table in display order. Folders that cannot be counted are ``frame.attrs["skipped"]``, pairs of
        path and reason, and a warning.

    Raises:
        CogError: a folder or file that cannot be read, a name that is not valid, an unknown version.

    >>> frame = read_results(published="v2", models="dino_*", datasets="cog_l5")
    >>> frame.loc[frame.n_shot == 0, ["model", "value", "std"]].values.tolist()
    [['dino_resnet50', 57.6, 0.0]]
    """
    names, data = _several(models), _several(datasets)
    results = read(root, models=names, datasets=data, imports=_several(imports) or (), published=published)
    frame, skipped = results.scores, results.found.skipped
    warn_of_skipped(skipped)
    if frame.empty:
        logger.warning("%s", nothing_found(root, names, data, skipped))
    frame.attrs["skipped"] = [(str(folder.path), folder.reason) for folder in skipped]
    return frame


def _several(given: Any) -> list[Any] | None:
    """Return the given values; a single text or path is one of them, not its characters."""
    return None if given is None else [given] if isinstance(given, str | os.PathLike) else list(given)


def read(
    root: str | os.PathLike[str] | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    models: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    n_shots: Collection[int] | None = None,
    seeds: Collection[int] | None = None,
    evaluations: Collection[str] | None = None,
    imports: Iterable[str | os.PathLike[str]] = (),
    published: str | None = None,
    flag: str = "file",
) -> Results:
    """Return results of all sources, in display order; filters are those of :func:`cog.results.runs.find`.

    ``folder`` is one evaluation folder, all of whose runs are read; ``imports`` are files of ``--export``, given
    by ``flag``. With ``evaluations``, there are no analyses.

    Raises:
        CogError: a folder or file that cannot be read, a name that is not valid, an unknown version.
    """
    if published is not None and published not in papers.SOURCES:
        raise CogError(f"published {published!r} is not known, expected {' or '.join(papers.SOURCES)}")
    found = Found()
    if folder is not None:
        found = runs.read_folder(folder, seeds=seeds)
    elif root is not None:
        filters: dict[str, Any] = {
            "models": models,
            "datasets": datasets,
            "n_shots": n_shots,
            "evaluations": evaluations,
        }
        found = runs.find(root, **filters, seeds=seeds)
    frames = [_of_runs(found), _of_analyses(found)]
    stated = [share.load(path, flag=flag) for path in imports]
    if published is not None:
        stated.append(scores_of(papers.rows(published)))
    if stated:
        together = share.merge(stated, list(imports))
        keep = pd.Series(True, index=together.index)
        if models is not None:
            keep &= together["model"].map(lambda name: any(matches(name, one) for one in models))
        if n_shots is not None:
            keep &= together["n_shot"].isin(n_shots) | ~together["evaluation"].map(is_classifier)
        if seeds is not None:
            keep &= together["seed"].isin(seeds) | together["seed"].isna()
        for column, wanted in (("dataset", datasets), ("evaluation", evaluations)):
            keep &= True if wanted is None else together[column].isin(wanted)
        frames.append(together[keep])
    frames = [frame for frame in frames if len(frame)]
    return Results(in_order(pd.concat(frames, ignore_index=True)) if frames else scores_of([]), found)


def _of_runs(found: Found) -> pd.DataFrame:
    """Return two rows, top-1 and top-5, of each run."""
    seen, pairs = _pretraining(found), list(itertools.product(found.runs, records.METRICS))
    names = (*PLACE[1:-1], "seed", "data", "classes", "protocol", "features", "folder")
    columns: dict[str, Any] = {name: [getattr(run, name) for run, _ in pairs] for name in names}
    columns |= {
        "source": RUNS,
        "metric": [metric for _, metric in pairs],
        "value": [getattr(run, metric) for run, metric in pairs],
        "correct": [run.counts if metric == "top1" else None for run, metric in pairs],
        "images": [run.n_test for run, _ in pairs],
        "pretraining": [seen[run.model] for run, _ in pairs],
    }
    return scores_of(pd.DataFrame(columns))


def _of_analyses(found: Found) -> pd.DataFrame:
    """Return the numbers of analyses, with the pretraining and the data of the features they are of."""
    seen = _pretraining(found)
    made = []
    for record in found.analyses:
        beside = Path(record.folder or "").parent
        of = {split: records.read_features(beside / f"features_{split}") for split in constants.SPLITS}
        counts = {f"n_{split}": records.n_images(described) for split, described in of.items()}
        classes, n_classes = sha256(of["test"].get("class_list_sha256")), whole(of["test"].get("n_classes"))
        model, dataset = record.model or "", record.dataset or ""
        stated = of["test"].get("pretraining")
        more = {
            "pretraining": stated if stated in PRETRAINING else seen[model],
            "data": data_of(dataset, n_classes=n_classes, classes=classes, **counts),
            "classes": classes,
            "images": counts["n_test"],
        }
        made += [{**row, **more} for row in analysis_records.rows(record)]
    return scores_of(made)


def _pretraining(found: Found) -> dict[str, str]:
    """Return the pretraining of each model: as recorded for any of its features, else as its name has it."""
    stated = {
        model: made["pretraining"] for (model, *_), made in found.features.items() if "pretraining" in made
    }
    models = {run.model for run in found.runs} | {record.model or "" for record in found.analyses}
    return {
        model: stated[model] if stated.get(model) in PRETRAINING else pretraining(model) for model in models
    }


def warn_of_skipped(skipped: Sequence[Skipped]) -> None:
    """Log the folders that are not counted by reason; running and interrupted ones in one line each."""
    words = {output.RUNNING: "in progress", output.INTERRUPTED: "interrupted (the same command continues)"}
    by_reason: dict[str, list[Skipped]] = {}
    for one in skipped:
        by_reason.setdefault(one.state if one.state in words else one.reason, []).append(one)
    for reason, same in by_reason.items():
        names = [printable(str(one.path)) for one in same]
        if reason in words:
            logger.info("not counted yet: %d %s, such as %s", len(same), words[reason], names[0])
        else:
            logger.warning("not counted: %s: %s", some(names), printable(reason))


def warn_of_absent(means: pd.DataFrame, **wanted: Sequence[Any] | None) -> None:
    """Log the values of filters (``model=[...]``, ``dataset``, ``n_shot``) without a result."""
    for column, values in wanted.items():
        there = set(map(str, means[column]))
        absent = [str(one) for one in values or () if not any(matches(name, str(one)) for name in there)]
        if absent:
            hint = did_you_mean(absent[0], there)
            logger.warning("no result for --%s %s%s", column, " ".join(absent), hint)


def of_evaluation(results: Results, evaluation: str) -> Results:
    """Return the accuracies of one classifier, and the protocol's of other sources.

    Another classifier than the protocol's is shown in its place, and is not compared with published numbers.
    """
    scores = results.scores
    own = scores["source"] == RUNS
    wanted = scores["evaluation"].eq(evaluation) & own | scores["evaluation"].eq(LOGREG) & ~own
    scores = scores[wanted & scores["metric"].isin(records.METRICS)].reset_index(drop=True)
    if evaluation != LOGREG:
        own = scores["source"] == RUNS
        words = f"classifier {evaluation}" if is_classifier(evaluation) else ""
        protocol = (words + ", " + scores["protocol"]).str.strip(", ")
        scores = scores.assign(evaluation=LOGREG, protocol=scores["protocol"].mask(own, protocol))
    members = [run for run in results.found.runs if run.evaluation == evaluation]
    return Results(scores, dataclasses.replace(results.found, runs=members, analyses=[]))


def nothing_found(
    root: str | os.PathLike[str] | None,
    models: Sequence[str] | None,
    datasets: Sequence[str] | None,
    skipped: Sequence[Skipped],
    evaluation: str = "<name>",
    more: str = "",
) -> str:
    """Return a message about missing results: the selection (``more`` of it), and the nearest names."""
    there = runs.list_models(root) if root is not None else list(papers.MODELS)
    hints = [did_you_mean(name, there) for name in models or () if not is_pattern(name) and name not in there]
    known = {*data_sets.names(), *(name.name for name in Path(root or os.devnull).glob("*/*/*"))}
    hints += [did_you_mean(name, known) for name in datasets or () if name not in known]
    refused = f" ({len(skipped)} could not be counted)" if skipped else ""
    layout = f"<title>/<architecture>/<dataset>/eval_{evaluation}[_N<shots>]/seed-<seed>"
    place = f" under {root}{refused}; expected {layout} there" if root is not None else ""
    return (
        f"no result of {' '.join(models) if models else 'any model'} on "
        f"{' '.join(datasets) if datasets else 'any data set'}{more}{place}{next(filter(None, hints), '')}"
    )
