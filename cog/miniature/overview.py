"""A picture of the whole miniature: a row of concepts per data set, related concepts side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from cog import constants
from cog.data.pixels import load_rgb
from cog.levels.wordnet import NounGraph
from cog.miniature.render import SIZE
from cog.miniature.world import IN1K_DIR, IN21K_DIR
from cog.runtime import files

_EXAMPLES = 2  # images per concept, one below the other
_TITLE, _CAPTION = 18, 14  # heights of lines of text, in pixels


def write_overview(world: Path, nouns: NounGraph, levels: Sequence[Sequence[str]], path: Path) -> None:
    """Write a PNG with examples of every concept of a world.

    Args:
        world: folder of the world.
        nouns: the nouns, for captions and order.
        levels: wnids per level.
        path: output file.
    """
    seen = (world / "seen_wnids.txt").read_text(encoding="utf-8").split()
    rows: list[tuple[str, Path, Sequence[str]]] = [
        ("seen concepts", world / IN1K_DIR / constants.IN1K_FOLDERS["train"], seen)
    ]
    rows += [(f"L{number}", world / IN21K_DIR, level) for number, level in enumerate(levels, start=1)]
    height = _TITLE + _CAPTION + _EXAMPLES * SIZE
    sheet = Image.new("RGB", (SIZE * max(len(wnids) for _, _, wnids in rows), height * len(rows)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for number, (title, folder, wnids) in enumerate(rows):
        top = number * height
        pen.text((3, top + 3), title, fill="black", font=font)
        for column, wnid in enumerate(sorted(wnids, key=lambda wnid: _lineage(nouns, wnid))):
            # Each caption is drawn on a strip of its own, so that a long one is cut at the column's edge.
            strip = Image.new("RGB", (SIZE - 2, _CAPTION), "white")
            ImageDraw.Draw(strip).text((1, 1), nouns.words(wnid).split(",")[0], fill="black", font=font)
            sheet.paste(strip, (column * SIZE, top + _TITLE))
            for example in range(_EXAMPLES):
                picture = load_rgb(folder / wnid / f"{wnid}_{example}.JPEG")
                sheet.paste(picture, (column * SIZE, top + _TITLE + _CAPTION + example * SIZE))
    with files.atomic_write(path) as handle:
        sheet.save(handle, format="PNG")


def _lineage(nouns: NounGraph, wnid: str) -> list[int]:
    chain = [nouns.index(wnid)]
    while nouns.parents[chain[-1]]:
        chain.append(nouns.parents[chain[-1]][0])
    return chain[::-1]
