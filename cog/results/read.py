"""Reading of results of all sources into one table: folders, shared files, the papers."""

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from cog import constants
from cog.errors import did_you_mean, printable, some
from cog.results import published as papers
from cog.results import records, runs, share
from cog.results.frame import LOGREG, RUNS, in_order, is_classifier, scores_of
from cog.results.runs import Results, Skipped, is_among

logger = logging.getLogger(__name__)


def read_results(
    root: str | os.PathLike[str] | None = None,
    *,
    models: str | Iterable[str] | None = None,
    datasets: str | Iterable[str] | None = None,
    imports: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    published: str | None = None,
) -> pd.DataFrame:
    """Return results as one table, a row per number of one seed; columns as in :mod:`cog.results.frame`.

    ``root`` is the folder of all models, ``models`` and ``datasets`` are one or several names (of models also
    patterns such as ``deit_*``; None: all), ``imports`` files that ``print_results.py --export`` wrote, and
    ``published`` is the version of the paper whose numbers are read too, ``"v2"`` or ``"v1"``. Folders that
    cannot be counted are ``frame.attrs["skipped"]``, pairs of path and reason, and a warning. A root or file
    that cannot be read is a CogError.
    """
    names, data, paths = map(_several, (models, datasets, imports))
    results = read(root, models=names, datasets=data, imports=paths or (), published=published)
    warn_of_skipped(results.skipped)
    if results.scores.empty:
        logger.warning("%s", nothing_found(results, names or (), data or ()))
    frame = results.scores.drop(columns="details")
    frame.attrs["skipped"] = [(str(folder.path), folder.reason) for folder in results.skipped]
    return frame


def _several(given: Any) -> list[Any] | None:
    """Return the given values; a single text or path is one of them, not its characters."""
    return None if given is None else [given] if isinstance(given, str | os.PathLike) else list(given)


def read(
    root: str | os.PathLike[str] | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    models: Collection[str] | None = None,
    datasets: Collection[str] | None = None,
    n_shots: Collection[int] | None = None,
    seeds: Collection[int] | None = None,
    evaluations: Collection[str] | None = None,
    imports: Sequence[str | os.PathLike[str]] = (),
    published: str | None = None,
) -> Results:
    """Return results of all sources, in display order; filters are those of :func:`cog.results.runs.find`.

    ``folder`` is one evaluation folder, all of whose runs are read; ``imports`` are files of ``--export``.
    """
    results = Results(scores_of([], "details"))
    if folder is not None:
        results = runs.read_folder(folder, seeds=seeds)
    elif root is not None:
        among: dict[str, Any] = {"models": models, "datasets": datasets, "evaluations": evaluations}
        results = runs.find(root, **among, n_shots=n_shots, seeds=seeds)
    stated = [share.load(path) for path in imports]
    if published is not None:
        stated.append(scores_of(papers.rows(published)))
    frames = [results.scores]
    if stated:
        rows = pd.concat(stated, ignore_index=True).assign(details=None)
        rows = rows.drop_duplicates([name for name in rows if name not in ("correct", "details")])
        keep = rows["model"].map(lambda name: is_among(name, models))
        if n_shots is not None:
            keep &= rows["n_shot"].isin(n_shots) | ~rows["evaluation"].map(is_classifier)
        if seeds is not None:
            keep &= rows["seed"].isin(seeds) | rows["seed"].isna()
        for column, wanted in (("dataset", datasets), ("evaluation", evaluations)):
            keep &= True if wanted is None else rows[column].isin(wanted)
        frames.append(rows[keep])
    frames = [frame for frame in frames if len(frame)] or frames[:1]
    results.scores = in_order(pd.concat(frames, ignore_index=True))
    return results


def warn_of_skipped(skipped: Sequence[Skipped]) -> None:
    """Log the folders that are not counted, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for one in skipped:
        by_reason.setdefault(one.reason, []).append(printable(str(one.path)))
    for reason, names in by_reason.items():
        logger.warning("not counted: %s: %s", some(names), printable(reason))


def warn_of_absent(means: pd.DataFrame, **wanted: Sequence[Any] | None) -> None:
    """Log the values of filters (``model=[...]``, ``dataset``, ``n_shot``) without a result."""
    for column, values in wanted.items():
        there = set(map(str, means[column]))
        absent = [str(one) for one in values or () if not any(is_among(name, [str(one)]) for name in there)]
        if absent:
            nearest = did_you_mean(absent[0], there)
            logger.warning("no result for --%s %s%s", column, " ".join(absent), nearest)


def of_evaluation(results: Results, evaluation: str) -> Results:
    """Return the accuracies of one classifier, and the protocol's of other sources.

    Another classifier than the protocol's is shown in its place, and is not compared with published numbers.
    """
    scores = results.scores
    own = scores["source"] == RUNS
    wanted = scores["evaluation"].eq(evaluation) & own | scores["evaluation"].eq(LOGREG) & ~own
    scores = scores[wanted & scores["metric"].isin(records.METRICS)].reset_index(drop=True)
    if evaluation != LOGREG:
        words = f"classifier {evaluation}" if is_classifier(evaluation) else ""
        protocol = (words + ", " + scores["protocol"]).str.strip(", ")
        protocol = scores["protocol"].mask(scores["source"] == RUNS, protocol)
        scores = scores.assign(evaluation=LOGREG, protocol=protocol)
    return replace(results, scores=scores)


def nothing_found(results: Results, models: Sequence[str], datasets: Sequence[str], more: str = "") -> str:
    """Return a message about missing results: the selection (``more`` of it), and the nearest names."""
    known = {*constants.DATASETS, *papers.MODELS}
    if results.root:
        known |= {"_".join(path.parts[-2:]) for path in Path(results.root).glob("*/*")}
        known |= {path.name for path in Path(results.root).glob("*/*/*")}
    wanted = *models, *datasets
    hints = [did_you_mean(name, known.difference(wanted)) for name in wanted if name not in known]
    refused = f"; {len(results.skipped)} folders could not be counted" if results.skipped else ""
    layout = "<title>/<architecture>/<dataset>/eval_<name>[_N<shots>]/seed-<seed>"
    place = f" under {results.root}; expected {layout} there" if results.root else ""
    return (
        f"no result of {' '.join(models) or 'any model'} on {' '.join(datasets) or 'any data set'}{more}"
        f"{place}{refused}{next(filter(None, hints), '')}"
    )
