"""Interface to matplotlib: its import, its settings, and files of figures whose bytes depend on the input alone."""

from __future__ import annotations

import base64
import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.reporting.figures.style import RC
from cog.runtime import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png", "svg")

# Metadata without dates and versions, so that the same input gives the same bytes.
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Apply the settings of matplotlib in the block: its defaults and :data:`cog.reporting.figures.style.RC`."""
    import matplotlib
    import matplotlib.style

    # Missing glyphs of unusual names are drawn as boxes; the CSV file has the names.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    with warnings.catch_warnings(), matplotlib.style.context(["default", RC]):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _render(figure: Figure, fmt: str) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=fmt, metadata=_METADATA[fmt])
    return stream.getvalue()


def embed(draw: Callable[[], Figure]) -> str:
    """Return a figure as SVG in a ``data:`` URL for an ``<img>``, which keeps its ids and styles to itself."""
    with drawing():
        return "data:image/svg+xml;base64," + base64.b64encode(_render(draw(), "svg")).decode()


def save_all(
    folder: str | os.PathLike[str],
    figures: Mapping[str, Callable[[], tuple[Figure, Mapping[str, str]]]],
    *,
    data: Sequence[str] = ("",),
) -> list[Path]:
    """Draw and write figures one at a time, so that memory does not grow with their number.

    Args:
        folder: output folder, created unless it exists.
        figures: functions by the stem of their files; each draws a figure and returns it with its CSV data by suffix.
        data: suffixes of the stems of CSV files.

    Returns:
        The files, figure by figure, pictures before data.

    Raises:
        CogError: before anything is written, if the folder is not usable.
    """
    ends = [*(f".{fmt}" for fmt in FORMATS), *(f"{suffix}.csv" for suffix in data)]
    path = Path(folder)
    names = [stem + end for stem in figures for end in ends]
    blocked = [name for name in names if os.path.lexists(path / name) and not (path / name).is_file()]
    if blocked:
        raise CogError(f"{path / blocked[0]} is in the way: it is not a regular file")
    files.ensure_writable_dir(path, "figures folder")
    written = []
    with drawing():
        for stem, draw in figures.items():
            figure, tables = draw()
            contents = [_render(figure, fmt) for fmt in FORMATS]
            contents += [tables[suffix].encode("utf-8", "backslashreplace") for suffix in data]
            for end, content in zip(ends, contents, strict=True):
                with files.atomic_write(path / (stem + end)) as handle:
                    handle.write(content)
                written.append(path / (stem + end))
    return written
