"""A picture of the whole miniature: one row of concepts per data set, with related concepts side by side."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from cog import constants
from cog.data.level_files import Levels
from cog.data.pixels import load_rgb
from cog.errors import CogError
from cog.levels.wordnet import NounGraph
from cog.miniature.render import SIZE
from cog.miniature.world import IN1K_DIR, IN21K_DIR, SEEN_FILE
from cog.runtime import files

_EXAMPLES = 2  # number of images per concept, one below the other
_TITLE, _CAPTION = 18, 14  # heights of text lines, in pixels


def write_overview(world_dir: Path, graph: NounGraph, levels: Levels, path: Path) -> None:
    """Write a PNG with examples of every concept of every data set.

    Args:
        world_dir: folder of a world.
        graph: the nouns, for the captions.
        levels: wnids per level.
        path: output file.

    Raises:
        CogError: an image is missing.
    """
    seen_file = files.require_file(world_dir / SEEN_FILE, "the list of seen concepts")
    seen = seen_file.read_text(encoding="utf-8").split()
    rows = [
        (f"{constants.IN1K}: seen concepts", world_dir / IN1K_DIR / constants.IN1K_FOLDERS["train"], seen)
    ]
    for number, level in enumerate(levels, start=1):
        rows.append((f"cog_l{number}: unseen concepts, level {number}", world_dir / IN21K_DIR, level))

    def lineage(wnid: str) -> list[int]:
        chain = [graph.index(wnid)]
        while graph.parents(chain[-1]):
            chain.append(graph.parents(chain[-1])[0])
        return chain[::-1]

    row_height = _TITLE + _CAPTION + _EXAMPLES * SIZE
    sheet = Image.new(
        "RGB", (SIZE * max(len(wnids) for _, _, wnids in rows), row_height * len(rows)), "white"
    )
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default()
    for r, (title, folder, wnids) in enumerate(rows):
        pen.text((3, r * row_height + 3), title, fill="black", font=font)
        for column, wnid in enumerate(sorted(wnids, key=lineage)):
            # Each caption is drawn on its own strip, so that a long one is cut at the column's edge.
            strip = Image.new("RGB", (SIZE - 2, _CAPTION), "white")
            caption = graph.lemmas(graph.index(wnid))[0].replace("_", " ")
            ImageDraw.Draw(strip).text((1, 1), caption, fill="black", font=font)
            sheet.paste(strip, (column * SIZE, r * row_height + _TITLE))
            for example in range(_EXAMPLES):
                source = folder / wnid / f"{wnid}_{example}.JPEG"
                try:
                    picture = load_rgb(source)
                except OSError as error:
                    raise CogError(f"cannot read {source} ({error}); make the miniature again") from error
                sheet.paste(picture, (column * SIZE, r * row_height + _TITLE + _CAPTION + example * SIZE))
    with files.atomic_write(path) as handle:
        sheet.save(handle, format="PNG")
