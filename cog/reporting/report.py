"""The report on results: one HTML page with the tables and figures of ``print_results.py`` in it.

The page loads no other file: style, script and figures are inside. Texts from folders and files are escaped.
"""

import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import cog
from cog import constants, paths
from cog.errors import CogError, printable, some
from cog.reporting import render, views
from cog.reporting.figures import draw as figures
from cog.reporting.figures import search
from cog.results import compare, notices, published
from cog.results.frame import LOGREG, RUNS, average, dataset_label, is_published, shots_label
from cog.results.read import Results
from cog.results.records import mapping
from cog.runtime import files

#: The first figure, its substitute without own models, and the figures that the page leaves out.
_LEAD, _LEAD_OF_PUBLISHED = "levels", "fig3"
_LEFT_OUT = ("fig4", "fig10", "fig11", "v1_fig5")

# With more own models than this, other figures than the first one are crowded and large.
_MANY_MODELS = 8

# Greatest number of drawings of searches; each takes 0.4 s and 80 kB.
_MAX_SEARCHES = 6


@dataclass
class Table:
    """A table on the page: texts, rows x columns, and the rows of the user."""

    title: str
    cells: pd.DataFrame
    own: Sequence[str] = ()
    notes: Sequence[str] = ()
    words: bool = False  # of words, which are not sorted

    @property
    def rows(self) -> Iterator[tuple[str, bool, list[str]]]:
        """Label, whether it is the user's, and cells of each row."""
        for label, cells in zip(self.cells.index, self.cells.to_numpy(), strict=True):
            yield str(label), label in self.own, list(cells)


def check_target(name: str | os.PathLike[str], flag: str, *, overwrite: bool) -> Path:
    """Return the path of a file to write, links resolved, or of a folder (``--figures``) that may be missing.

    Raises:
        CogError: it is of another kind, or exists (a folder: with something in it) without ``overwrite``.
    """
    path, kind = Path(os.path.realpath(name)), "folder" if flag == "--figures" else "file"
    if path.exists() and not (path.is_dir() if kind == "folder" else path.is_file()):
        found = "a folder" if path.is_dir() else "a file" if path.is_file() else "not a regular file"
        raise CogError(f"{flag} {name} is {found}, expected a {kind}")
    if path.exists() and not overwrite and (kind == "file" or any(path.iterdir())):
        raise CogError(f"{flag} {name} exists; name another {kind}, or add --overwrite to replace files")
    if kind == "file" and not path.parent.is_dir():
        raise CogError(f"the folder of {flag} {name} does not exist; create it first")
    return path


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

    ``root`` is the folder of the results, which the page names, ``baseline`` the model to which differences
    are shown (None: the paper's reference, if there is any result), ``created`` a date and time to show.
    ``seeds`` are those that each mean should have, see :func:`cog.results.frame.average`.

    Raises:
        CogError: the file cannot be written, or there is no result of ``baseline``.
    """
    target = Path(os.path.realpath(path))
    means = average(results.scores, seeds)
    files.write_text(target, _render(results, means, root=root, baseline=baseline, created=created))
    return target


def not_shown(path: str | os.PathLike[str], results: Results) -> list[str]:
    """Return the results of a page that a page of these results would not have, so as not to lose them."""
    try:
        text = files.contents(path, largest=1 << 27)[:1_000_000].decode("utf-8", "replace")
        match = re.search(r'<meta name="cog-results" content="([^"]*)">', text)
        before = json.loads(html.unescape(match[1])) if match else []
    except (CogError, ValueError):
        return []
    return sorted(set(map(str, before)) - set(_places(results.scores)))


def _places(scores: pd.DataFrame) -> list[str]:
    own = scores[~is_published(scores)]
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
    # A number of a cell, its deviation and what follows, an interval for example.
    environment.filters["parts"] = re.compile(r" (?=[±\[(*?])").split
    own = ~is_published(means)
    odd = own.any() and not (own & (means["unlike"] == "")).any()
    means = means[own] if odd else means  # published numbers are on other data, or of other settings
    lead, pictures, searches = _pictures(means, results.scores)
    return environment.get_template("report.html.j2").render(
        limit=paths.limit_of(root) if root is not None else 0,
        own=list(means.loc[~is_published(means), "model"].unique()),
        odd=odd,
        is_empty=means.empty,
        places=json.dumps(_places(results.scores)),
        counts=_counts(results),
        root=None if root is None else str(root),
        created=created,
        version=cog.__version__,
        standing=_standing(means),
        lead=lead,
        sections=list(_sections(means, baseline)),
        pictures=pictures,
        notices=notices.check(means, results),
        provenance=_provenance(results),
        searches=searches,
    )


def _counts(results: Results) -> str:
    found = results.scores[results.scores["source"] == RUNS]
    n_runs = (found["details"].notna() & (found["metric"] == "top1")).sum()
    n_analyses = found.loc[found["details"].isna(), "folder"].nunique()
    counts = [f"{n:,} {noun}" for n, noun in ((n_runs, "runs"), (n_analyses, "analyses")) if n]
    return " and ".join(counts) or "no runs"


# --- tables


def _standing(means: pd.DataFrame) -> Table | None:
    """Return the table of the first screen: mean over the levels, its rank, change since IN-1K, accuracies.

    Own models come first, then the published ones, each with the highest mean first.
    """
    shown = means[(means["evaluation"] == LOGREG) & (means["metric"] == "top1")]
    if shown.empty:
        return None
    view = views.accuracy(views.most_images(shown))
    ((title, wide),) = _grids(view)
    shown = view.astype({"row": str})
    values = shown.pivot_table(index="row", columns="dataset", values="value", dropna=False, sort=False)
    rows = shown.groupby("row").agg({"source": "first", "unlike": "max"}).reindex(values.index)
    is_own, unlike = ~is_published(rows), rows["unlike"]
    averaged = [name for name in constants.COG_LEVELS if name in values] or list(values)
    mean = values[averaged].mean(axis=1, skipna=False)
    text = mean.map("{:.1f}".format)
    rank = text.astype(float).where(unlike == unlike.mode()[0]).rank(ascending=False, method="min")
    n_ranked = int(rank.notna().sum())
    named = some([dataset_label(name) for name in averaged], 5)
    of = "L1 to L5" if tuple(averaged) == constants.COG_LEVELS else named
    more = {f"mean {of}": text}
    more |= {"rank": rank.map("{:.0f}".format)} if n_ranked > 1 else {}
    if {constants.IN1K, constants.COG_LEVELS[-1]} <= set(values):
        changes = compare.drop(shown).query("dataset == @constants.COG_LEVELS[-1]").set_index("row")["value"]
        more["IN-1K to L5"] = changes.reindex(values.index).map("{:+.1f} %".format)
    for position, (name, texts) in enumerate(more.items()):
        wide.insert(position, name, texts.where(~texts.str.contains("nan"), "-").reindex(wide.index))
    order = sorted(wide.index, key=lambda row: (not is_own[row], np.nan_to_num(-mean[row], nan=np.inf)))
    ranked = f"rank: of the mean, among the {n_ranked} models here on like data and settings."
    notes = [ranked] * (n_ranked > 1) + _footnotes(view)
    return Table(title, wide.loc[order], list(is_own.index[is_own]), notes)


def _grids(view: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the tables of a view with the paper's names of data sets, in their titles, too."""
    return [(_named(title), wide.rename(columns=dataset_label)) for title, wide in render.grids(view)]


def _footnotes(view: pd.DataFrame) -> list[str]:
    return [_named(note) for note in views.footnotes(view)]


def _named(text: str) -> str:
    return re.sub(r"\b(in1k|cog_l[1-5])\b", lambda name: dataset_label(name[0]), text)


def _sections(means: pd.DataFrame, baseline: str | None) -> Iterator[tuple[str, str, list[Table], list[str]]]:
    """Yield id, title, tables and notes of the sections that have numbers."""
    own = set(means.loc[~is_published(means), "model"])
    protocol = means[(means["metric"] == "top1") & (means["evaluation"] == LOGREG)]
    if baseline is not None and baseline not in set(means["model"]):
        raise CogError(f"there is no result of {baseline} on the page to compare with")
    base = baseline or published.REFERENCE
    shown = protocol[(protocol["n_shot"] == 0) & protocol["model"].isin({*own, base})]
    if base in set(shown["model"]) and own - {base} and len(compared := views.relative_to(shown, base)):
        yield "relative", "Differences", *_tables(compared)
    fewshot = protocol[protocol["n_shot"] > 0]
    if len(fewshot) and (protocol["n_shot"] == 0).any():
        yield "fewshot", "Few training images", *_tables(views.fewshot(fewshot))
    try:
        view = views.analysis(means[means["metric"] != "top5"], ["all"])
    except CogError:  # no result of another experiment
        return
    yield "experiments", "Other experiments", *_tables(view)


def _tables(view: pd.DataFrame) -> tuple[list[Table], list[str]]:
    own = set(view.loc[~is_published(view), "row"].astype(str))
    grids = [
        (title, wide.loc[sorted(wide.index, key=lambda row: row not in own)]) for title, wide in _grids(view)
    ]
    return [Table(title, wide, list(own)) for title, wide in grids], _footnotes(view)


# --- figures


def _pictures(means: pd.DataFrame, scores: pd.DataFrame) -> tuple[Any, list[Any], list[Any]]:
    """Return the first figure, the others, and the searches: source, caption, whether it is wide."""
    own = means.loc[~is_published(means), "model"].nunique()
    lead = _LEAD if own else _LEAD_OF_PUBLISHED
    names = [name for name in figures.FIGURES if name not in _LEFT_OUT]
    wanted = dict.fromkeys([lead, *(names if own <= _MANY_MODELS else names[:3])])
    with figures.drawing():
        pictures = {
            name: (figures.embed(sheet.figure), caption, sheet.figure.get_figwidth() > 6)
            for name, caption, sheet in figures.draw(means, wanted)
        }
        searches = [
            (figures.embed(search.draw(title, trials, curves).figure), title, True)
            for _, title, trials, curves in figures.searches(scores, _MAX_SEARCHES)
        ]
    return pictures.pop(lead, None), list(pictures.values()), searches


# --- provenance


def _provenance(results: Results) -> Table | None:
    """Return the table of how the runs of each model were made; what holds for all is a note."""
    scores = results.scores[results.scores["details"].notna()]
    if scores.empty:
        return None
    described = {
        model: _made(runs, [made for (name, *_), made in results.features.items() if name == model])
        for model, runs in scores.groupby("model", sort=False)
    }
    frame = pd.DataFrame(described).T
    same = [name for name in frame if len(frame) > 1 and frame[name].nunique() == 1]
    notes = [f"For all: {'; '.join(f'{name} {frame[name].iloc[0]}' for name in same)}."] if same else []
    return Table("Models with runs here", frame.drop(columns=same), notes=notes, words=True)


def _made(runs: pd.DataFrame, features: list[dict[str, Any]]) -> dict[str, str]:
    details = list(runs["details"])
    days = sorted(run["finished"][:10] for run in details if run["finished"])
    entries: dict[str, Iterable[Any]] = {
        "checkpoint": [str(made.get("checkpoint_sha256") or "")[:12] for made in features],
        "features": [made.get("precision") for made in features],
        "image size": [mapping(made.get("preprocessing")).get("size") for made in features],
        "pretraining": [made.get("pretraining") for made in features],
        "classifier precision": [run["precision"] for run in details],
        "device": [run["device"] for run in details],
        "torch": [run["versions"].get("torch") for run in details],
        "trials": [run["settings"].get("n_trials") for run in details],
        "epochs": [run["settings"].get("n_epochs") for run in details],
        "seeds": sorted(set(runs["seed"])),
        "shots": map(shots_label, runs["n_shot"]),
        "finished": [" to ".join(dict.fromkeys((days[0], days[-1])))] if days else [],
    }
    known = {
        name: list(dict.fromkeys(str(value)[:80] for value in values if value not in (None, "")))
        for name, values in entries.items()
    }
    return {name: some(values, 5) or "not recorded" for name, values in known.items()}
