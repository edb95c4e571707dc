"""Other name of :mod:`cog.data.level_files`, for modules that still use it."""

from cog.data.level_files import PARTS, Split, draw, read_split, write_split

__all__ = ["PARTS", "Split", "draw", "read_split", "write_split"]
