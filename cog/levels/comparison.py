"""How far two levels files agree, level by level and concept by concept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """Agreement of levels ``a`` and ``b``.

    Attributes:
        pairs: per level number (size in a, size in b, concepts in both); sizes 0 where one has fewer levels.
        moves: ascending wnids whose levels differ -> (levels in a, levels in b), as tuples of numbers from 1.
        n_concepts: number of different concepts in a or b.
        same_order: whether levels that agree also list their concepts in the same order.
    """

    pairs: list[tuple[int, int, int]]
    moves: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    n_concepts: int
    same_order: bool

    @property
    def identical(self) -> bool:
        """Whether every concept is in the same level of both, whatever the order."""
        return not self.moves and all(a == b for a, b, _ in self.pairs)


def compare(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> Comparison:
    """Compare two lists of levels."""
    n_levels = max(len(a), len(b))
    pad_a, pad_b = ([*levels, *[[]] * (n_levels - len(levels))] for levels in (a, b))
    pairs = [(len(x), len(y), len(set(x) & set(y))) for x, y in zip(pad_a, pad_b, strict=True)]
    in_a, in_b = _levels_by_concept(a), _levels_by_concept(b)
    concepts = sorted(in_a.keys() | in_b.keys())
    moves = {
        wnid: (in_a.get(wnid, ()), in_b.get(wnid, ()))
        for wnid in concepts
        if in_a.get(wnid) != in_b.get(wnid)
    }
    same_order = all(list(x) == list(y) for x, y in zip(pad_a, pad_b, strict=True))
    return Comparison(pairs, moves, len(concepts), same_order)


def _levels_by_concept(levels: Sequence[Sequence[str]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for number, level in enumerate(levels, start=1):
        for wnid in level:
            found[wnid] = (*found.get(wnid, ()), number)
    return found


def label(levels: tuple[int, ...]) -> str:
    """Return ``L1``, ``L1+L3`` or ``-``."""
    return "+".join(f"L{number}" for number in levels) or "-"


def describe(comparison: Comparison) -> str:
    """Return the table of levels and one line on the whole, as text."""
    lines = ["level       in A       in B    in both   agreement"]
    for number, (size_a, size_b, both) in enumerate(comparison.pairs, start=1):
        share = 100 * both / max(size_a, size_b, 1)
        lines.append(f"L{number:<4} {size_a:>10,} {size_b:>10,} {both:>10,} {share:>10.2f}%")
    same = comparison.n_concepts - len(comparison.moves)
    lines.append(f"{same:,} of {comparison.n_concepts:,} concepts are in the same level of both")
    if comparison.identical:
        lines[-1] += ", in the same order" if comparison.same_order else ", in another order"
    return "\n".join(lines)
