"""Diagnostics of runs: the search for learning rate and weight decay, and the final training.

A page shows all seeds of one model, data set and number of shots: the trials over both hyper-parameters, colored by
validation accuracy, the best accuracy so far, and the curves of the final training. The sources are ``results.json``
(trials, intervals) and ``logs.pkl`` (curves). Runs of the original toolkit have only curves, because their trials are
in ``study.pkl``, a pickled Optuna object, which cannot be read safely.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cog.errors import CogError
from cog.reporting.figures import inline, saving, search_drawing
from cog.reporting.figures.curves import shorten
from cog.reporting.figures.points import dataset_label
from cog.reporting.tables.writers import printable
from cog.results import search_history
from cog.results.labels import shots_label
from cog.results.run_records import Run
from cog.results.scores import grouped
from cog.runtime.csv_text import csv_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRIAL_COLUMNS = (
    "seed", "trial", "lr", "wd", "val_top1", "best_so_far", "diverged", "pruned", "chosen", "seconds",
)  # fmt: skip

CURVES_SUFFIX = "_curves"


class SearchPage(NamedTuple):
    """The runs of one model, data set and number of shots (0 = all), sorted by seed, with the stem of its files."""

    stem: str
    title: str
    dataset: str
    n_shot: int
    runs: tuple[Run, ...]


def pages(runs: Iterable[Run]) -> list[SearchPage]:
    """Return the pages of runs, in the order of the runs.

    Raises:
        CogError: when there is no run.
    """
    groups = grouped(runs, lambda run: (run.model, run.dataset, run.n_shot))
    if not groups:
        raise CogError("there is no run whose search could be drawn")
    made: dict[str, SearchPage] = {}
    for (model, dataset, n_shot), group in groups.items():
        name = "_".join(part for part in ("search", model, dataset, f"N{n_shot}" if n_shot else "") if part)
        plain = stem = re.sub(r"[^A-Za-z0-9._+-]", "-", name)
        number = 1
        while stem.casefold() in made:  # names that differ only in case or in replaced characters
            number += 1
            stem = f"{plain}_{number}"
        model_name = shorten(printable(model), 60) or "unnamed model"
        title = f"{model_name}, {dataset_label(dataset)}, {shots_label(n_shot)}"
        by_seed = tuple(sorted(group, key=lambda run: run.seed))
        made[stem.casefold()] = SearchPage(stem, title, dataset, n_shot, by_seed)
    return list(made.values())


def write(
    runs: Iterable[Run],
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = saving.FORMATS,
    overwrite: bool = False,
) -> list[Path]:
    """Draw one page per model, data set and shots into ``folder``, with ``<stem>.csv`` and ``<stem>_curves.csv``.

    Args:
        runs: runs as :func:`cog.results.find.find_runs` returns them.
        folder: output folder, created unless it exists.
        formats: some of :data:`cog.reporting.figures.FORMATS`.
        overwrite: whether existing files may be replaced.

    Returns:
        The files; ``search_<model>_<dataset>[_N<shots>]`` is their stem.

    Raises:
        CogError: no runs, files that exist, a run that is gone.
    """
    made = {page.stem: functools.partial(_draw, page) for page in pages(runs)}
    return saving.save_all(folder, made, data=("", CURVES_SUFFIX), formats=formats, overwrite=overwrite)


def _draw(page: SearchPage) -> tuple[Figure, dict[str, str]]:
    searches = read(page)
    data = {"": trials_csv(searches), CURVES_SUFFIX: curves_csv(searches)}
    return search_drawing.draw(page.title, searches), data


def strips(pages: Iterable[SearchPage], most: int) -> list[str]:
    """Return trials and test accuracy of each page as an ``<svg>`` element, see :func:`cog.reporting.figures.svg`.

    Files that cannot be read are left out. A page without any trial or curve has "". The list ends after ``most``
    elements that are not "".
    """
    drawn: list[str] = []
    with saving.drawing():
        for page in pages:
            if sum(map(bool, drawn)) == most:
                break
            searches = [search_history.outline(run) for run in page.runs]
            if not any(search.trials or search.curves for search in searches):
                drawn.append("")
                continue
            figure = search_drawing.draw_strip(searches)
            chosen = ", ".join(f"seed {s.seed}: lr {s.lr:.3g}, wd {s.wd:.3g}" for s in searches)
            text = f"Hyper-parameter search and final training of {page.title}. Chosen: {chosen}."
            drawn.append(
                inline.from_figure(figure, prefix=f"search-{len(drawn)}", description=text, tooltips={})
            )
    return drawn


def read(page: SearchPage) -> list[search_history.SearchRecord]:
    """Return the searches and trainings of the runs of a page.

    Raises:
        CogError: when files of a run cannot be read any more.
    """
    return [search_history.read_search(run) for run in page.runs]


def trials_csv(searches: Sequence[search_history.SearchRecord]) -> str:
    """Return the trials as CSV, one row each."""
    rows = (
        (
            search.seed, trial.number, *map(_text, (trial.lr, trial.wd, trial.val_top1, best)),
            *map(int, (trial.diverged, trial.pruned, trial is search.chosen)), _text(trial.seconds),
        )
        for search in searches
        for trial, best in zip(search.trials, search.best_so_far(), strict=True)
    )  # fmt: skip
    return csv_text(TRIAL_COLUMNS, rows)


def curves_csv(searches: Sequence[search_history.SearchRecord]) -> str:
    """Return the curves as CSV, one row per seed and epoch (from 1)."""
    rows: list[tuple[Any, ...]] = []
    for search in searches:
        curves = [search.curves.get(key, ()) for key in search_history.CURVES]
        for epoch, values in enumerate(itertools.zip_longest(*curves, fillvalue=math.nan), 1):
            rows.append((search.seed, epoch, *map(_text, values)))
    return csv_text(("seed", "epoch", *search_history.CURVES), rows)


def _text(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
