"""The report on results: one self-contained HTML page with the tables and figures of ``print_results.py`` in it.

The page loads no other file: style, script and figures are inside. Texts from folders and files are escaped.
"""

from __future__ import annotations

import html
import importlib.resources
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

import cog
from cog import constants, paths
from cog.errors import CogError, printable, some
from cog.reporting import render, views
from cog.reporting.figures import draw as figures
from cog.reporting.figures import search
from cog.results import notices, published
from cog.results.frame import LOGREG, RUNS, average, dataset_label, shots_label
from cog.results.read import Results
from cog.results.records import Run
from cog.runtime import files

#: The figure of the first screen, and the other figures of the page.
_LEAD, _PICTURES = (
    "levels",
    ("fewshot", "fig3", "drop", "v1_fig8", "v1_fig9", "v1_fig10", "mlp", "fig6", "knn"),
)

# With more own models than this, other figures than the first ones are crowded and large.
_MANY_MODELS = 8

# Greatest number of drawings of searches, about 50 kB each.
_MAX_SEARCHES = 24

# Greatest size of a page that is read before it is replaced.
_MAX_BYTES = 1 << 27


class Row(NamedTuple):
    """A row of a table on the page."""

    label: str
    cells: list[str]
    is_own: bool = False


@dataclass
class HtmlTable:
    """A table on the page; of words, or of numbers, which can be sorted."""

    title: str
    heads: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    words: bool = False


class Section(NamedTuple):
    """A section of tables with notes."""

    name: str
    title: str
    tables: list[HtmlTable]
    notes: list[str]


class Picture(NamedTuple):
    """A figure as the source of an ``<img>``, with its caption; a wide one has panels side by side."""

    source: str
    caption: str
    wide: bool


def write(
    path: str | os.PathLike[str],
    results: Results,
    *,
    root: str | os.PathLike[str] | None = None,
    baseline: str | None = None,
    seeds: Sequence[int] = (),
    created: str = "",
) -> Path:
    """Write the report, and return its path with symbolic links resolved; a file there is replaced.

    Args:
        path: path of the HTML file.
        results: runs, analyses, and numbers of shared files and of the papers.
        root: folder of the results, which the page names.
        baseline: model to which differences are shown; None: the paper's reference, if there are results of it.
        seeds: seeds that each mean should have, see :func:`cog.results.frame.average`.
        created: date and time to show.

    Raises:
        CogError: the file cannot be written, or there is no result of ``baseline``.
    """
    target = Path(os.path.realpath(path))
    means = average(results.scores, seeds)
    files.write_text(target, _render(results, means, root=root, baseline=baseline, created=created))
    return target


def not_shown(path: str | os.PathLike[str], results: Results) -> list[str]:
    """Return the results that a page has, and that a page of these results would not have, so as not to lose them."""
    try:
        text = files.contents(path, largest=_MAX_BYTES)[:1_000_000].decode("utf-8", "replace")
        match = re.search(r'<meta name="cog-results" content="([^"]*)">', text)
        before = json.loads(html.unescape(match[1])) if match else []
    except (CogError, ValueError):
        return []
    return sorted(set(map(str, before)) - set(_places(results.scores)))


def _places(scores: pd.DataFrame) -> list[str]:
    own = scores[~scores["source"].isin(published.SOURCES.values())]
    return sorted({f"{row.model} on {row.dataset}" for row in own[["model", "dataset"]].itertuples()})


def _render(results: Results, means: pd.DataFrame, *, root: Any, baseline: str | None, created: str) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cog.reporting", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["parts"] = _parts
    own = ~means["source"].isin(published.SOURCES.values())
    odd = own.any() and not (own & (means["unlike"] == "")).any()
    if odd:  # published numbers are on other data, or of other settings
        means = means[own]
    limit = paths.limit_of(root) if root is not None else 0
    lead, pictures, searches = _pictures(means, results.scores)
    return environment.get_template("report.html.j2").render(
        style=Markup(_resource("report.css")),
        script=Markup(_resource("sort.js")),
        title=("TRIAL, NOT RESULTS: " if limit else "") + _title(means, odd),
        limit=limit,
        places=json.dumps(_places(results.scores)),
        subject=_subject(results, root),
        created=created,
        version=cog.__version__,
        standing=_standing(means),
        lead=lead,
        sections=list(_sections(means, baseline)),
        pictures=pictures,
        notices=notices.check(means, results.found, root=str(root) if root is not None else ""),
        provenance=_provenance(results),
        searches=searches,
    )


def _resource(name: str) -> str:
    return importlib.resources.files("cog.reporting").joinpath("page", name).read_text(encoding="utf-8")


def _parts(cell: str) -> list[str]:
    """Return the number of a cell, its deviation and what follows, an interval for example."""
    return re.split(r" (?=[±\[(*?])", cell)


def _own_models(means: pd.DataFrame) -> list[str]:
    return list(means.loc[~means["source"].isin(published.SOURCES.values()), "model"].unique())


def _title(means: pd.DataFrame, odd: bool) -> str:
    own = _own_models(means)
    if not own:
        return "The published results" if len(means) else "No results"
    names = own[0] if len(own) == 1 else f"{len(own)} models"
    if odd:
        return f"Results of {names}"
    return f"How well {'does' if len(own) == 1 else 'do'} {names} generalize?"


def _subject(results: Results, root: Any) -> str:
    runs, analyses = len(results.found.runs), len(results.found.analyses)
    counts = [f"{n:,} {noun}" for n, noun in ((runs, "runs"), (analyses, "analyses")) if n]
    read = " and ".join(counts) or "shared files and published numbers"
    return f"{read} in {root}" if root is not None else read


# --- tables


def _standing(means: pd.DataFrame) -> HtmlTable | None:
    """Return the table of the first screen: mean over the levels, its rank, change from IN-1K to L5, accuracies.

    Own models come first, then the published ones, each with the highest mean first.
    """
    shown = means[(means["evaluation"] == LOGREG) & (means["metric"] == "top1")]
    if shown.empty:
        return None
    shown = shown[shown["n_shot"] == (0 if (shown["n_shot"] == 0).any() else shown["n_shot"].max())]
    view = views.accuracy(shown)
    ((title, wide),) = _grids(view)
    shown = shown.assign(row=view["row"].astype(str).to_numpy(), unlike=view["unlike"].to_numpy())
    values = shown.pivot_table(index="row", columns="dataset", values="value", dropna=False, sort=False)
    firsts = shown.groupby("row")[["source", "unlike"]].first().reindex(values.index)
    is_own = firsts["source"] == RUNS
    levels = [name for name in constants.COG_LEVELS if name in values]
    mean = values[levels].mean(axis=1, skipna=False) if levels else values.mean(axis=1, skipna=False)
    rank = mean.round(1).groupby(firsts["unlike"]).rank(ascending=False, method="min")
    wide.insert(0, "rank", [_number(rank[row], "{:.0f}") for row in wide.index])
    wide.insert(
        0, "mean L1 to L5" if levels else "mean", [_number(mean[row], "{:.1f}") for row in wide.index]
    )
    if {constants.IN1K, constants.COG_LEVELS[-1]} <= set(values):
        change = 100 * (values[constants.COG_LEVELS[-1]] / values[constants.IN1K] - 1)
        wide.insert(2, "IN-1K to L5", [_number(change[row], "{:+.1f} %") for row in wide.index])
    order = sorted(wide.index, key=lambda row: (not is_own[row], np.nan_to_num(-mean[row], nan=np.inf)))
    rows = [Row(row, list(wide.loc[row]), bool(is_own[row])) for row in order]
    ranked = f"rank: of the mean, among the {int(rank.notna().sum())} models here on like data and settings."
    return HtmlTable(title, list(wide.columns), rows, [ranked, *_footnotes(view)])


def _grids(view: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the tables of a view with the paper's names of data sets, in their titles, too."""
    return [(_named(title), wide.rename(columns=dataset_label)) for title, wide in render.grids(view)]


def _footnotes(view: pd.DataFrame) -> list[str]:
    return [_named(note) for note in views.footnotes(view)]


def _named(text: str) -> str:
    return re.sub(r"\b(in1k|cog_l[1-5])\b", lambda name: dataset_label(name[0]), text)


def _number(value: float, form: str) -> str:
    return "-" if np.isnan(value) else form.format(value)


def _sections(means: pd.DataFrame, baseline: str | None) -> Iterable[Section]:
    """Yield the sections of tables that have numbers."""
    top1 = means[means["metric"] == "top1"]
    own = set(_own_models(means))
    protocol = top1[top1["evaluation"] == LOGREG]
    base = baseline or published.REFERENCE
    if baseline is not None and baseline not in set(means["model"]):
        raise CogError(f"there is no result of {baseline} on the page to compare with")
    if base in set(protocol["model"]) and own - {base}:
        shown = protocol[(protocol["n_shot"] == 0) & protocol["model"].isin({*own, base})]
        if base in set(shown["model"]) and len(compared := views.relative_to(shown, base)):
            yield _section("relative", "Differences", compared)
    fewshot = protocol[protocol["n_shot"] > 0]
    if len(fewshot) and (protocol["n_shot"] == 0).any():
        yield _section("fewshot", "Few training images", views.fewshot(fewshot))
    try:
        view = views.analysis(means[means["metric"] != "top5"], ["all"])
    except CogError:  # no result of another experiment
        return
    yield _section("experiments", "Other experiments", view)


def _section(name: str, title: str, view: pd.DataFrame) -> Section:
    paper = set(view.loc[view["source"].isin(published.SOURCES.values()), "row"].astype(str))
    tables = []
    for heading, wide in _grids(view):
        order = sorted(wide.index, key=lambda row: row in paper)  # the user's first
        rows = [Row(row, list(wide.loc[row]), row not in paper) for row in order]
        tables.append(HtmlTable(heading, list(wide.columns), rows))
    return Section(name, title, tables, _footnotes(view))


# --- figures


def _pictures(
    means: pd.DataFrame, scores: pd.DataFrame
) -> tuple[Picture | None, list[Picture], list[Picture]]:
    """Return the figure of the first screen, the others that have results, and drawings of searches."""
    few = len(_own_models(means)) <= _MANY_MODELS
    wanted = [_LEAD, *(_PICTURES if few else _PICTURES[:2])]
    if not _own_models(means):
        wanted[0] = "fig3"
    pictures = {}
    with figures.drawing():
        for name, caption, sheet in figures.draw(means, dict.fromkeys(wanted)):
            wide = sheet.figure.get_figwidth() > 6
            pictures[name] = Picture(figures.embed(sheet.figure), caption, wide)
        searches = [
            Picture(figures.embed(search.draw(title, trials, curves).figure), title, True)
            for _, title, trials, curves in figures.searches(scores, _MAX_SEARCHES)
        ]
    lead = pictures.pop(wanted[0], None)
    return lead, list(pictures.values()), searches


# --- provenance


def _provenance(results: Results) -> HtmlTable | None:
    """Return the table of how the runs of each model were made; what holds for all is a note."""
    by_model: dict[str, list[Run]] = {}
    for run in results.found.runs:
        by_model.setdefault(run.model, []).append(run)
    if not by_model:
        return None
    described = {
        model: _made(runs, [made for (name, *_), made in results.found.features.items() if name == model])
        for model, runs in by_model.items()
    }
    frame = pd.DataFrame(described).T.fillna("not recorded")
    same = [name for name in frame if len(frame) > 1 and frame[name].nunique() == 1]
    notes = [f"For all: {'; '.join(f'{name} {frame[name].iloc[0]}' for name in same)}."] if same else []
    frame = frame.drop(columns=same)
    rows = [Row(str(model), list(row)) for model, row in zip(frame.index, frame.to_numpy(), strict=True)]
    return HtmlTable("Models with runs here", list(frame.columns), rows, notes, words=True)


def _made(runs: list[Run], features: list[dict[str, Any]]) -> dict[str, str]:
    days = sorted(run.finished[:10] for run in runs if run.finished)
    entries: dict[str, list[Any]] = {
        "checkpoint": [str(made.get("checkpoint_sha256") or "")[:12] for made in features],
        "features": [made.get("precision") for made in features],
        "pretraining": [made.get("pretraining") for made in features],
        "classifier precision": [run.precision for run in runs],
        "device": [run.device for run in runs],
        "torch": [run.versions.get("torch") for run in runs],
        "trials": [run.settings.get("n_trials") for run in runs],
        "epochs": [run.settings.get("n_epochs") for run in runs],
        "seeds": sorted({run.seed for run in runs}),
        "shots": [shots_label(run.n_shot) for run in runs],
        "finished": [" to ".join(dict.fromkeys((days[0], days[-1])))] if days else [],
    }
    return {name: _several(values) for name, values in entries.items()}


def _several(values: Iterable[Any]) -> str:
    known = list(dict.fromkeys(str(value)[:80] for value in values if value not in (None, "")))
    return some(known, 5) if known else "not recorded"
