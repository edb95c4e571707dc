"""Selection of the concepts that are eligible for the levels (paper, Sec. 3.2 and supplement A.1).

The paper describes the steps twice, in different orders, and in words that allow several readings. The
readings below give the published numbers of concepts on the Fall-2011 release. A literal reading of Sec. 3.2
(leaves of the graph of the concepts that pass the other filters) gives 5,692 or, with the image filter last,
5,149 concepts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cog.data.wnids import is_wnid
from cog.errors import CogError
from cog.levels.wordnet.graph import NounGraph

#: v2: ICCV 2021, 5,146 eligible concepts; v1: first version (January 2021), 5,754.
PROTOCOLS = ("v2", "v1")

_LISTS = Path(__file__).parent / "lists"
#: The 70 concepts that the authors discarded by hand (supplement, Table 2).
DISCARDED_LIST = _LISTS / "discarded_wnids.txt"


@dataclass(frozen=True)
class Step:
    """One step of the selection, which removed ``n_removed`` concepts and left ``n_left``."""

    key: str
    description: str
    n_removed: int
    n_left: int


@dataclass(frozen=True)
class ConceptSelection:
    """The eligible concepts, and the reasons for the removal of all others.

    Attributes:
        eligible: wnids, ascending.
        n_concepts: number of concepts before the first step.
        steps: steps in order.
        removed: wnid -> (key of the step, reason as text).
    """

    eligible: list[str]
    n_concepts: int
    steps: tuple[Step, ...]
    removed: dict[str, tuple[str, str]]


def select(
    graph: NounGraph,
    *,
    counts: Mapping[str, int],
    seen: Collection[str],
    protocol: str,
    min_images: int,
    excluded_roots: Iterable[str],
    discarded: Collection[str],
) -> ConceptSelection:
    """Select the eligible concepts.

    Protocol v2 removes, one after the other: the seen concepts; concepts with fewer than ``min_images``
    images; the sub-trees of ``excluded_roots`` (persons); every concept that is an ancestor, at any depth,
    of any other concept, eligible or not, seen or not; the ``discarded`` concepts. Protocol v1 removes: the seen
    concepts; their ancestors; concepts with too few images; excluded sub-trees; every concept that is an ancestor
    of another remaining concept.

    Args:
        graph: the nouns.
        counts: wnid -> number of images, for all concepts (seen concepts need no minimum).
        seen: wnids of the concepts that the networks were trained on.
        protocol: one of ``PROTOCOLS``.
        min_images: smallest number of images; in the paper 732 training + 50 test images.
        excluded_roots: wnids; each is removed with all its descendants.
        discarded: wnids; ids that are not among the concepts have no effect. Not used by v1.

    Raises:
        CogError: unknown ids.
    """
    nodes = dict(zip(counts, graph.indices(counts, "the concepts").tolist(), strict=True))
    seen_nodes = set(graph.indices(seen, "the seen concepts").tolist())
    left = {wnid: nodes[wnid] for wnid in sorted(nodes)}
    removed: dict[str, tuple[str, str]] = {}
    steps: list[Step] = []

    def remove(key: str, description: str, reasons: dict[str, str]) -> None:
        for wnid, reason in reasons.items():
            removed[wnid] = (key, reason)
            del left[wnid]
        steps.append(Step(key, description, len(reasons), len(left)))

    def ancestors(below: Iterable[int], relation: str) -> dict[str, str]:
        """Return the remaining concepts that are ancestors of a node of ``below``, with the reason as text."""
        descendant_of: dict[int, int] = {}
        for node in sorted(below):
            for subsumer in graph.subsumers(node):
                if subsumer != node:
                    descendant_of.setdefault(subsumer, node)
        return {
            wnid: f"ancestor of {relation} {_label(graph, descendant_of[node])}"
            for wnid, node in left.items()
            if node in descendant_of
        }

    def few_images() -> None:
        remove(
            "few_images",
            f"with fewer than {min_images:,} images",
            {wnid: f"{counts[wnid]:,} images" for wnid in left if counts[wnid] < min_images},
        )

    def sub_trees() -> None:
        for root in excluded_roots:
            top = graph.index(root)
            label = _label(graph, top)
            below = graph.descendants(top)
            remove(
                "excluded_subtree",
                f"below {label}",
                {wnid: f"below {label}" for wnid, node in left.items() if node in below},
            )

    remove(
        "seen", "seen concepts", {wnid: "seen concept" for wnid, node in left.items() if node in seen_nodes}
    )
    if protocol == "v1":
        remove("seen_ancestor", "ancestors of seen concepts", ancestors(seen_nodes, "the seen concept"))
    few_images()
    sub_trees()
    if protocol == "v2":
        remove(
            "ancestor", "ancestors of any concept", ancestors({*nodes.values(), *seen_nodes}, "the concept")
        )
        remove(
            "discarded",
            "discarded by hand",
            dict.fromkeys(sorted(set(discarded) & left.keys()), "in the list of discarded concepts"),
        )
    else:
        remove("ancestor", "ancestors of concepts left", ancestors(left.values(), "the concept"))
    return ConceptSelection(eligible=list(left), n_concepts=len(counts), steps=tuple(steps), removed=removed)


def _label(graph: NounGraph, node: int) -> str:
    return f"{graph.wnids[node]} ({graph.name(node)})"


def read_wnids(path: Path) -> list[str]:
    """Read a list of noun ids, one per line in the first column; repetitions are dropped.

    Blank lines and lines that start with ``#`` are skipped; columns are separated by commas or blanks.

    Raises:
        CogError: the file cannot be read, or a line does not start with a noun id.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CogError(f"cannot read the list of ids {path}: {error}") from error
    wnids: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        wnid = line.replace(",", " ").split()[0].strip("\"'") if line.replace(",", " ").split() else ""
        if not is_wnid(wnid):
            raise CogError(
                f"{path}, line {number}: {line.strip()[:60]!r} does not start with a noun id such as "
                f"n02084071"
            )
        wnids[wnid] = None
    return list(wnids)
