"""Selection of the concepts that are eligible for the levels (paper, Sec. 3.2 and supplement A.1).

The paper describes the steps twice, in different orders, and in words that allow several readings. The readings below
give the published numbers of concepts on the Fall-2011 release. A literal reading of Sec. 3.2 (leaves of the graph of
the concepts that pass the other filters) gives 5,692 or, with the image filter last, 5,149 concepts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cog.levels.wordnet import NounGraph

#: The 70 concepts that the authors discarded by hand (supplement, Table 2).
DISCARDED_LIST = Path(__file__).parent / "lists" / "discarded_wnids.txt"


class Step(NamedTuple):
    """One step of the selection, which removed ``n_removed`` concepts and left ``n_left``."""

    key: str
    description: str
    n_removed: int
    n_left: int


@dataclass(frozen=True)
class Selection:
    """The eligible concepts (ids ascending), the steps in order, and (step, reason) of each removed concept."""

    eligible: list[str]
    steps: list[Step]
    removed: dict[str, tuple[str, str]]


def select(
    graph: NounGraph,
    counts: Mapping[str, int],
    seen: Collection[str],
    *,
    protocol: str,
    min_images: int,
    excluded_roots: Iterable[str],
    discarded: Collection[str],
) -> Selection:
    """Select the eligible concepts.

    Protocol v2 removes, one after the other: the seen concepts; concepts with fewer than ``min_images`` images; the
    subtrees of ``excluded_roots`` (persons); every concept that is an ancestor, at any depth, of any other concept,
    eligible or not, seen or not; the ``discarded`` concepts. Protocol v1 removes: the seen concepts; their ancestors;
    concepts with too few images; excluded subtrees; every concept that is an ancestor of another remaining concept.

    ``counts`` are the numbers of images of all concepts by wnid, the other collections wnids; ``discarded`` ids that
    are not among the concepts have no effect. ``protocol`` is "v2" (ICCV 2021, 5,146 eligible concepts) or "v1" (first
    version, January 2021, 5,754). An unknown id is a CogError.
    """
    ids = sorted(counts)
    nodes = dict(zip(ids, graph.indices(ids, "the concepts").tolist(), strict=True))
    seen_nodes = graph.indices(seen, "the seen concepts").tolist()
    left = dict(nodes)
    steps: list[Step] = []
    removed: dict[str, tuple[str, str]] = {}

    def remove(key: str, description: str, reasons: Mapping[int, str]) -> None:
        """Remove the concepts with a reason, by node."""
        here = {wnid: (key, reasons[node]) for wnid, node in left.items() if node in reasons}
        removed.update(here)
        for wnid in here:
            del left[wnid]
        steps.append(Step(key, description, len(here), len(left)))

    def ancestors(below: Iterable[int], relation: str) -> dict[int, str]:
        reasons: dict[int, str] = {}
        for node in sorted(below):
            reason = f"ancestor of {relation} {label(node)}"
            for ancestor in graph.above(node) - {node}:
                reasons.setdefault(ancestor, reason)
        return reasons

    def label(node: int) -> str:
        return f"{graph.wnids[node]} ({graph.names[node]})"

    remove("seen", "seen concepts", dict.fromkeys(seen_nodes, "seen concept"))
    if protocol == "v1":
        remove("seen_ancestor", "ancestors of seen concepts", ancestors(seen_nodes, "the seen concept"))
    few = {nodes[wnid]: f"{n:,} images" for wnid, n in counts.items() if n < min_images}
    remove("few_images", f"with fewer than {min_images:,} images", few)
    for root in graph.indices(excluded_roots, "LEVELS.EXCLUDED_ROOTS").tolist():
        reason = f"below {label(root)}"
        inside = [node for node in left.values() if root in graph.above(node)]
        remove("excluded_subtree", reason, dict.fromkeys(inside, reason))
    if protocol == "v2":
        every = {*nodes.values(), *seen_nodes}
        remove("ancestor", "ancestors of any concept", ancestors(every, "the concept"))
        by_hand = [nodes[wnid] for wnid in discarded if wnid in nodes]
        remove("discarded", "discarded by hand", dict.fromkeys(by_hand, "in the list of discarded concepts"))
    else:
        remove("ancestor", "ancestors of concepts left", ancestors(left.values(), "the concept"))
    return Selection(list(left), steps, removed)
