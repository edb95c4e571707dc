"""Views as text: tables as plain text, Markdown or LaTeX, the long frame as CSV or JSON."""

import json
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd
import tabulate

from cog.errors import CogError, printable
from cog.reporting import views
from cog.results import compare, metrics, published
from cog.results.frame import LOGREG, dataset_label
from cog.results.runs import is_among

tabulate.MIN_PADDING = 0  # else headers are wider than their columns

#: Formats of tables, with their names in tabulate; ``csv`` and ``json`` have the long frame.
GRIDS = {"text": "plain", "markdown": "pipe", "latex": "latex_booktabs"}
FORMATS = (*GRIDS, "csv", "json")

#: Width of text tables in columns of a terminal, unless a single column of numbers is wider.
WIDTH = 100

#: Columns of a frame that are not in CSV and JSON: objects, and what only tables need.
_INNER = {*views.TEXTS, "counts", "values", "features", "classes"}

_JOINT = "\N{NO-BREAK SPACE}"  # between a name and its mark, at which lines are not broken

_LATEX = {
    ord("±"): r"$\pm$",
    ord("†"): r"$^\dagger$",
    ord("‡"): r"$^\ddagger$",
    ord("−"): "$-$",
}


def table(
    means: pd.DataFrame,
    show: str = "accuracy",
    *,
    relative_to: str | None = None,
    analysis: Sequence[str] = (),
    beside: str | None = None,
    models: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    format: str = "text",
    width: int = WIDTH,
) -> str:
    """Return a view of means as text.

    Args:
        means: frame of :func:`cog.results.frame.average`; of several classifiers, the protocol's is shown.
        show: ``accuracy``, ``fewshot``, ``rank`` or ``drop``.
        relative_to: model to which differences are shown, instead of ``show``.
        analysis: names of analyses that are shown instead, or ``all``.
        beside: version of the paper whose numbers stand beside accuracies of its models; None: none.
        models: names or patterns of the models that are shown, and not only referred to; None: all.
        datasets: names of the data sets that are shown; None: all.
        format: one of :data:`FORMATS`; the tables of ``text``, ``markdown`` and ``latex`` have no top-5
            accuracies.
        width: columns of the terminal, for text.

    Raises:
        CogError: an unknown name, or nothing to show.
    """
    if format not in FORMATS or show not in views.VIEWS:
        known = f"one of {', '.join(views.VIEWS)}, and of {', '.join(FORMATS)}"
        raise CogError(f"{show}, {format}: expected {known}")
    if format in GRIDS:
        means = means[means["metric"] != "top5"]
    if analysis:
        view = views.analysis(means, analysis)
    else:
        means = means[means["metric"].isin(metrics.METRIC_LABELS)]
        if means["evaluation"].nunique() > 1:
            means = means[means["evaluation"] == LOGREG]
        view = views.relative_to(means, relative_to) if relative_to else views.VIEWS[show](means)
    is_model = view["model"].map(lambda name: is_among(name, models))
    view = view[is_model & view["dataset"].isin(datasets or view["dataset"])]
    if view.empty:
        raise CogError("nothing to show: no number of this view is among the results read")
    if beside is None or analysis or relative_to or show != "accuracy":
        return render(view, format, width=width)
    if format not in GRIDS:
        return flat(compare.beside_published(view, beside), format)
    return render(view, format, views.beside_published(view.drop(columns=views.TEXTS), beside), width=width)


def render(view: pd.DataFrame, form: str, *more: pd.DataFrame, width: int = WIDTH) -> str:
    """Return a view of :mod:`cog.reporting.views` in a format, ending with one newline.

    The tables of ``more``, views of the same means, follow. Text tables wider than ``width`` are split into
    blocks of columns.
    """
    if form not in GRIDS:
        return flat(view, form)
    lines, lead = [], "% " if form == "latex" else ""
    for title, wide in [grid for one in (view, *more) for grid in grids(one, paper_names=form == "latex")]:
        titles = textwrap.wrap(title, width) if form == "text" else [_markdown(title)]
        if form == "latex":
            titles = [lead + title.replace("±", "+-") + "; needs \\usepackage{booktabs}"]
        lines += [*titles, "", *in_blocks(wide, form, width if form == "text" else sys.maxsize), ""]
    look: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    wrapper = textwrap.TextWrapper(max(width, 40), initial_indent=lead, subsequent_indent=lead, **look)
    for note in [*views.footnotes(view), *(note for one in more for note in one.attrs["notes"])]:
        joined = re.sub(f" (?=[{views.SEEN}{views.UNLIKE}])", _JOINT, printable(note))
        lines += [_markdown(note), ""] if form == "markdown" else wrapper.wrap(joined)
    return "\n".join(lines).rstrip("\n").replace(_JOINT, " ") + "\n"


def spelled(text: str, encoding: str | None) -> str:
    """Return text with signs that an encoding lacks in ASCII, as wide."""
    for sign, word in (("± ", "+-"), ("±", "+-"), (views.SEEN, "^"), (views.UNLIKE, "#")):
        if not sign.strip().encode(encoding or "utf-8", "ignore"):
            text = text.replace(sign, word)
    return text


def grids(view: pd.DataFrame, *, paper_names: bool = False) -> list[tuple[str, pd.DataFrame]]:
    """Return title and cells of each table of a view: rows x headers, as text, ``-`` without a number.

    With ``paper_names``, data sets and the paper's models have the names of the paper.
    """
    made = []
    for _, part in view.groupby("table", sort=True, observed=True):
        wide = part.pivot(index="row", columns="head", values="cell").fillna("-")
        wide = wide.loc[[row for row in view["row"].cat.categories if row in wide.index]]
        wide = wide.rename_axis(None).rename_axis(None, axis=1)
        wide.index, wide.columns = wide.index.astype(str), wide.columns.astype(str)
        if paper_names:
            wide = wide.rename(index=_paper_name, columns=dataset_label)
        made.append((part["title"].iloc[0], wide))
    return made


def _paper_name(label: str) -> str:
    model, space, rest = label.partition(" ")
    known = published.MODELS.get(model)
    return label if known is None else known.table_label + space + rest


def in_blocks(wide: pd.DataFrame, form: str, width: int) -> list[str]:
    """Return the lines of a table: as few blocks of columns as the width allows, of even sizes."""
    if form == "text":
        wide = wide.apply(_aligned)
    elif form == "latex":
        wide = wide.map(lambda cell: re.sub(r"(?<![\w.])-(?=[\d])", "−", cell))
    else:
        wide = wide.rename(index=_markdown, columns=_markdown).map(_markdown)
    look: dict[str, Any] = {"tablefmt": GRIDS[form], "disable_numparse": True, "preserve_whitespace": True}
    rest = ["left" if form == "text" else "right"]
    lines: list[str] = []
    for n_blocks in range(1, wide.shape[1] + 1):
        size = -(-wide.shape[1] // n_blocks)
        parts = [wide.iloc[:, first : first + size] for first in range(0, wide.shape[1], size)]
        aligned = [(part, ["left", *rest * part.shape[1]]) for part in parts]
        texts = [tabulate.tabulate(part, headers="keys", colalign=how, **look) for part, how in aligned]
        lines = [line.rstrip() for line in "\n\n".join(texts).splitlines()]
        if max(map(len, lines)) <= width:
            break
    return [line.translate(_LATEX) for line in lines] if form == "latex" else lines


def _aligned(column: pd.Series) -> pd.Series:
    """Return the cells of a column with their points below each other, and what follows the deviation."""
    heads, spreads, rests = column.str.extract(r"(\S+)((?: ± \S+)?)(.*)").T.to_numpy()
    size = max(map(len, heads))
    numbers = [head if head == "-" else head.rjust(size) for head in heads]
    numbers = [number + spread for number, spread in zip(numbers, spreads, strict=True)]
    width = max(map(len, numbers))
    texts = [(number.ljust(width) + rest).rstrip() for number, rest in zip(numbers, rests, strict=True)]
    return pd.Series(texts, column.index)


def _markdown(text: str) -> str:
    """Return text with the characters escaped that Markdown takes for table bars, HTML, links or images."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    text = re.sub(r"\\|\||\](?=[(\[:])", lambda found: "\\" + found[0], text)
    return text.replace("://", ":\\/\\/").replace("www.", "www\\.")  # GitHub makes links of bare addresses


def flat(view: pd.DataFrame, form: str) -> str:
    """Return the numbers of a view as CSV or JSON with all digits; what is missing is empty, or null."""
    frame = view.drop(columns=[name for name in view if name in _INNER])
    if form == "csv":
        return frame.to_csv(index=False)
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return "[\n" + ",\n".join(f"  {json.dumps(record)}" for record in records) + "\n]\n"
