"""Matplotlib behind one door: its import, its settings, and figures as bytes that depend on the input alone."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.reporting.figures.style import RC
from cog.runtime import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png", "svg")

DATA_FORMAT = "csv"

_PNG_DPI = 300

# Neither dates nor versions: the same input gives the same bytes.
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Set matplotlib up for the block: its defaults and :data:`cog.reporting.figures.style.RC`."""
    import matplotlib
    import matplotlib.style

    # Missing glyphs of unusual names are drawn as boxes; the CSV file has the names.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    with warnings.catch_warnings(), matplotlib.style.context(["default", RC]):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def render(figure: Figure, fmt: str) -> bytes:
    """Return ``figure`` as the bytes of a file; call inside :func:`drawing`.

    Args:
        figure: made without pyplot, so no window system is involved.
        fmt: one of ``FORMATS``.
    """
    stream = io.BytesIO()
    figure.savefig(stream, format=fmt, dpi=_PNG_DPI, metadata=_METADATA[fmt])
    return stream.getvalue()


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the formats once each.

    Raises:
        CogError: when one is not known, or there is none.
    """
    wanted = tuple(dict.fromkeys(formats))
    unknown = [fmt for fmt in wanted if fmt not in FORMATS]
    if unknown or not wanted:
        raise CogError(
            f"figure format {', '.join(unknown) or '(none)'} is not known, expected some of {', '.join(FORMATS)}"
        )
    return wanted


def check_folder(folder: str | os.PathLike[str], names: Sequence[str], *, overwrite: bool) -> Path:
    """Create ``folder`` unless it exists, and refuse to replace a file in it.

    Raises:
        CogError: when it cannot be written to, or has one of the files ``names`` and ``overwrite`` is False.
    """
    path = Path(folder)
    existing = [name for name in names if os.path.lexists(path / name)]
    blocked = [name for name in existing if not (path / name).is_file()]
    if blocked:
        raise CogError(f"{path / blocked[0]} is in the way: it is not a regular file")
    if existing and not overwrite:
        more = f" and {len(existing) - 3} more" if len(existing) > 3 else ""
        raise CogError(
            f"{path} holds figures already ({', '.join(existing[:3])}{more}); name another folder or add --overwrite"
        )
    return files.ensure_writable_dir(path, "figures folder")


def write_bytes(path: Path, content: bytes) -> Path:
    """Write one file whole or not at all."""
    with files.atomic_write(path) as handle:
        handle.write(content)
    return path


@dataclass(frozen=True)
class FigureFile:
    """One figure to be written.

    Attributes:
        stem: of its files.
        draw: returns the figure and its data, one text per suffix.
        suffixes: of the stem of its CSV files.
    """

    stem: str
    draw: Callable[[], tuple[Figure, dict[str, str]]]
    suffixes: tuple[str, ...] = ("",)


def write_all(
    folder: str | os.PathLike[str], pages: Sequence[FigureFile], *, formats: Sequence[str], overwrite: bool
) -> list[Path]:
    """Draw and write pages one at a time, so that memory does not grow with their number.

    Args:
        folder: where to; created unless it exists.
        pages: what to draw; their stems differ.
        formats: some of ``FORMATS``.
        overwrite: whether existing files may be replaced.

    Returns:
        The files, page by page, pictures before data.

    Raises:
        CogError: before anything is written, if formats or folder are not usable.
    """
    formats = check_formats(formats)
    planned = [
        name
        for page in pages
        for name in (
            *(f"{page.stem}.{fmt}" for fmt in formats),
            *(f"{page.stem}{suffix}.{DATA_FORMAT}" for suffix in page.suffixes),
        )
    ]
    with drawing():
        path = check_folder(folder, planned, overwrite=overwrite)
        written: list[Path] = []
        for page in pages:
            figure, data = page.draw()
            pictures = [(fmt, render(figure, fmt)) for fmt in formats]
            written += [write_bytes(path / f"{page.stem}.{fmt}", content) for fmt, content in pictures]
            for suffix in page.suffixes:
                content = data[suffix].encode("utf-8", "backslashreplace")
                written.append(write_bytes(path / f"{page.stem}{suffix}.{DATA_FORMAT}", content))
    return written
