"""Selection of the concepts that are eligible for the levels (paper, Sec. 3.2 and supplement A.1).

The paper's words allow several readings; these give its numbers of concepts on the Fall-2011 release.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cog.levels.wordnet import NounGraph

#: The 70 concepts that the authors discarded by hand (supplement, Table 2).
DISCARDED_LIST = Path(__file__).parent / "lists" / "discarded_wnids.txt"


@dataclass
class Selection:
    """The eligible concepts (ids ascending), the steps, and (step, reason) of each removed concept."""

    eligible: list[str]
    steps: list[dict[str, Any]] = field(default_factory=list)
    removed: dict[str, tuple[str, str]] = field(default_factory=dict)

    def remove(self, key: str, description: str, reasons: Mapping[str, str]) -> None:
        """Remove the concepts that have a reason, by wnid."""
        gone = {wnid: (key, reasons[wnid]) for wnid in self.eligible if wnid in reasons}
        self.removed |= gone
        self.eligible = [wnid for wnid in self.eligible if wnid not in gone]
        n = {"n_removed": len(gone), "n_left": len(self.eligible)}
        self.steps.append({"key": key, "description": description, **n})


def select(
    graph: NounGraph,
    counts: Mapping[str, int],
    seen: Collection[str],
    *,
    protocol: str,
    min_images: int,
    excluded_roots: Iterable[str],
    discarded: Iterable[str],
) -> Selection:
    """Select concepts by the numbers of images of all concepts, by wnid; an unknown id is a CogError.

    Protocol "v2" (ICCV 2021) removes: ``seen`` concepts; those with too few images; subtrees of
    ``excluded_roots``; all ancestors of other concepts, eligible or not, seen or not; ``discarded`` ones.
    "v1" (January 2021): seen concepts; their ancestors; few images; subtrees; ancestors of those that remain.
    """
    roots = list(excluded_roots)
    graph.nodes([*counts, *seen, *roots])  # all are known
    selection = Selection(sorted(counts))

    def above(wnids: Iterable[str], relation: str) -> dict[str, str]:
        reasons: dict[str, str] = {}
        for wnid in sorted(wnids):
            node, reason = graph.node[wnid], f"ancestor of {relation} {label(wnid)}"
            for ancestor in graph.above(node) - {node}:
                reasons.setdefault(graph.wnids[ancestor], reason)
        return reasons

    def label(wnid: str) -> str:
        return f"{wnid} ({graph.names[graph.node[wnid]]})"

    selection.remove("seen", "seen concepts", dict.fromkeys(seen, "seen concept"))
    if protocol == "v1":
        selection.remove("seen_ancestor", "ancestors of seen concepts", above(seen, "the seen concept"))
    few = {wnid: f"{n:,} images" for wnid, n in counts.items() if n < min_images}
    selection.remove("few_images", f"with fewer than {min_images:,} images", few)
    for root in roots:
        top, reason = graph.node[root], f"below {label(root)}"
        inside = [wnid for wnid in selection.eligible if top in graph.above(graph.node[wnid])]
        selection.remove("excluded_subtree", reason, dict.fromkeys(inside, reason))
    kind, below = (
        ("concepts left", selection.eligible) if protocol == "v1" else ("any concept", {*counts, *seen})
    )
    selection.remove("ancestor", f"ancestors of {kind}", above(below, "the concept"))
    if protocol == "v2":
        by_hand = dict.fromkeys(discarded, "in the list of discarded concepts")
        selection.remove("discarded", "discarded by hand", by_hand)
    return selection
