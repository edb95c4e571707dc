"""Figures of results, as files and for the page: functions from means to a sheet.

Files of a figure come with what was drawn, as CSV. The same numbers give the same bytes, with the same
version of matplotlib, which is imported only for drawing.
"""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from cog.errors import CogError, os_errors_explained, printable
from cog.reporting.figures import search, style
from cog.reporting.figures.lines import Sheet
from cog.reporting.figures.sheets import FIGURES
from cog.results.frame import LOGREG, dataset_label, shots_label
from cog.runtime import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

#: Greatest number of drawings of searches: 40 models have thousands.
MAX_SEARCHES = 60

# Formats of files, and their metadata without dates and versions: the same input gives the same bytes.
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Apply the settings of matplotlib in the block: its defaults and those of the figures."""
    import matplotlib.style

    # Missing glyphs of unusual names are drawn as boxes; the CSV file has the names.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    with warnings.catch_warnings(), matplotlib.style.context(["default", style.RC]):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def draw(means: pd.DataFrame, names: Iterable[str] = ()) -> Iterator[tuple[str, str, Sheet]]:
    """Yield name, caption and sheet of the figures for which there are numbers; call inside :func:`drawing`.

    ``names`` are some of :data:`FIGURES`; empty: all.
    """
    for name in names or FIGURES:
        function, caption = FIGURES[name]
        if (sheet := function(means)) is not None:
            yield name, caption, sheet


def searches(
    scores: pd.DataFrame, most: int = MAX_SEARCHES
) -> Iterator[tuple[str, str, pd.DataFrame, pd.DataFrame]]:
    """Yield stem, title, trials and curves of the runs of each model, data set, classifier and shots.

    With more than ``most``, the others are left out, with a message.
    """
    runs = scores[scores["folder"].notna() & (scores["metric"] == "top1") & scores["seed"].notna()]
    groups = runs.groupby(["model", "dataset", "evaluation", "n_shot"], sort=False)
    if len(groups) > most:
        logger.info("%d of %d searches are drawn; choose a model or data set for others", most, len(groups))
    for (model, dataset, evaluation, n_shot), group in itertools.islice(groups, most):
        trials, curves = search.read_search(dict(zip(group["seed"], map(Path, group["folder"]), strict=True)))
        if len(trials) or len(curves):
            other = "" if evaluation == LOGREG else evaluation
            parts = ("search", model, dataset, other, f"N{n_shot}" if n_shot else "")
            words = (printable(model), dataset_label(dataset), other, shots_label(n_shot))
            stem = re.sub(r"[^A-Za-z0-9._+-]", "-", "_".join(filter(None, parts)))
            yield stem, ", ".join(filter(None, words)), trials, curves


def write(means: pd.DataFrame, scores: pd.DataFrame, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the figures of means, and the searches of scores, into a folder, which is made unless it exists.

    Files are ``<name>.pdf``, ``.png``, ``.svg`` and ``.csv``, and ``search_<model>_<dataset>[_N<shots>]``.

    Raises:
        CogError: nothing to draw, a folder that cannot be written.
    """
    with os_errors_explained(f"cannot write into --figures {folder}"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with drawing():
        for name, _, sheet in draw(means):
            written += _save(Path(folder) / name, sheet.figure, {"": sheet.data})
        for stem, title, trials, curves in searches(scores):
            figure = search.draw(title, trials, curves).figure
            written += _save(Path(folder) / stem, figure, {"": trials, "_curves": curves})
    if not written:
        raise CogError("there is no result to draw")
    return written


def _save(stem: Path, figure: Figure, tables: dict[str, pd.DataFrame]) -> list[Path]:
    contents: dict[str, bytes] = {f".{fmt}": _rendered(figure, fmt) for fmt in _METADATA}
    contents |= {f"{suffix}.csv": table.to_csv(index=False).encode() for suffix, table in tables.items()}
    for end, content in contents.items():
        with files.atomic_write(f"{stem}{end}") as handle:
            handle.write(content)
    return [Path(f"{stem}{end}") for end in contents]


def _rendered(figure: Figure, fmt: str) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=fmt, dpi=200, metadata=_METADATA[fmt])
    return stream.getvalue()


def embed(figure: Figure) -> str:
    """Return a figure as SVG in a ``data:`` URL for an ``<img>``."""
    return "data:image/svg+xml;base64," + base64.b64encode(_rendered(figure, "svg")).decode()
