"""Concept generalization levels: building them, and the files that hold them."""

from cog.levels.mapping import Levels, check_levels, read_levels, write_levels
from cog.levels.ranking import TIES, cut, level_starts, rank, shuffled

__all__ = [
    "TIES",
    "Levels",
    "check_levels",
    "cut",
    "level_starts",
    "rank",
    "read_levels",
    "shuffled",
    "write_levels",
]
