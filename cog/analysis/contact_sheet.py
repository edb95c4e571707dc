"""Contact sheets of images with captions: one PNG, and one HTML page that needs no other file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cog.runtime import files

if TYPE_CHECKING:
    from PIL import Image

    from cog.data.image_stores import ImageStore

_SIDE = 144  # side of a thumbnail, in pixels
_COLUMNS = 6
_MARGIN, _LINE = 8, 13
_CAPTION_LINES = 3


@dataclass(frozen=True)
class Tile:
    """One image of a sheet.

    Attributes:
        name: name of the image in its store.
        caption: up to three short lines.
    """

    name: str
    caption: tuple[str, ...]


def write(folder: Path, tiles: Sequence[Tile], store: ImageStore, *, title: str) -> int:
    """Write ``sheet.png`` and ``sheet.html``.

    Args:
        folder: output folder.
        tiles: images in order, row by row.
        store: the images.
        title: heading above the images.

    Returns:
        The number of images that could not be read; gray fields take their places.

    Raises:
        CogError: a file cannot be written.
    """
    from PIL import Image, ImageDraw, ImageFont

    pictures = [_thumbnail(store, tile.name) for tile in tiles]
    width, height = _SIDE + _MARGIN, _SIDE + _MARGIN + _CAPTION_LINES * _LINE
    n_rows = max(1, -(-len(tiles) // _COLUMNS))
    top = 2 * _MARGIN + _LINE
    sheet = Image.new("RGB", (_COLUMNS * width + _MARGIN, n_rows * height + top), "white")
    font = ImageFont.load_default()
    ImageDraw.Draw(sheet).text((_MARGIN, _MARGIN), _plain(title), fill="black", font=font)
    for number, (tile, picture) in enumerate(zip(tiles, pictures, strict=True)):
        left = _MARGIN + number % _COLUMNS * width
        upper = top + number // _COLUMNS * height
        if picture is not None:
            corner = (left + (_SIDE - picture.width) // 2, upper + (_SIDE - picture.height) // 2)
            sheet.paste(picture, corner)
        else:
            sheet.paste(Image.new("RGB", (_SIDE, _SIDE), "lightgray"), (left, upper))
        # The caption is drawn on a separate strip, which cuts a long line at the column's edge.
        strip = Image.new("RGB", (_SIDE, _CAPTION_LINES * _LINE), "white")
        pen = ImageDraw.Draw(strip)
        for line, text in enumerate(tile.caption[:_CAPTION_LINES]):
            pen.text((0, line * _LINE), _plain(text), fill="black", font=font)
        sheet.paste(strip, (left, upper + _SIDE + 2))
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    with files.atomic_write(folder / "sheet.png") as handle:
        handle.write(buffer.getvalue())
    files.write_text(folder / "sheet.html", _page(tiles, pictures, title))
    return sum(picture is None for picture in pictures)


def _thumbnail(store: ImageStore, name: str) -> Image.Image | None:
    from PIL import ImageOps

    from cog.data.pixels import load_rgb

    try:
        picture = load_rgb(store.read(name), load_truncated=False)
    except Exception:  # Pillow raises many kinds of errors on a damaged file
        return None
    return ImageOps.contain(picture, (_SIDE, _SIDE))


def _plain(text: str) -> str:
    """Return a text reduced to the characters that Pillow's built-in font has in every version."""
    return text.encode("latin-1", "replace").decode("latin-1")


def _page(tiles: Sequence[Tile], pictures: Sequence[Image.Image | None], title: str) -> str:
    figures = []
    for tile, picture in zip(tiles, pictures, strict=True):
        if picture is None:
            shown = '<div class="none">cannot be read</div>'
        else:
            buffer = io.BytesIO()
            picture.save(buffer, format="JPEG", quality=85)
            data = base64.b64encode(buffer.getvalue()).decode("ascii")
            shown = f'<img src="data:image/jpeg;base64,{data}" alt="{html.escape(tile.caption[0])}">'
        lines = "<br>".join(html.escape(line) for line in tile.caption)
        figures.append(f"<figure>{shown}<figcaption>{lines}</figcaption></figure>")
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<style>body{font:14px sans-serif;margin:1em;color-scheme:light dark}"
        "main{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:1em}"
        "figure{margin:0}img{max-width:100%}.none{width:144px;height:144px;background:#8884}"
        "figcaption{font-size:12px;overflow-wrap:anywhere}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n<main>\n" + "\n".join(figures) + "\n</main></body></html>\n"
    )
