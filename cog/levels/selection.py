"""Selection of the concepts that are eligible for the levels (paper, Sec. 3.2 and supplement A.1).

The paper describes the steps twice, in different orders, and in words that allow several readings. The readings below
give the published numbers of concepts on the Fall-2011 release. A literal reading of Sec. 3.2 (leaves of the graph of
the concepts that pass the other filters) gives 5,692 or, with the image filter last, 5,149 concepts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cog.data.wnids import is_wnid
from cog.errors import CogError
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
    """The eligible concepts, and why the others are not.

    Attributes:
        eligible: wnids, ascending.
        steps: steps in order.
        removed: key of the step and reason in words, by the wnid of each removed concept.
    """

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

    Args:
        graph: the nouns.
        counts: number of images of all concepts, by wnid; seen concepts need no minimum.
        seen: wnids of the concepts that the networks were trained on.
        protocol: "v2" (ICCV 2021, 5,146 eligible concepts) or "v1" (first version, January 2021, 5,754).
        min_images: smallest number of images; in the paper 732 training + 50 test images.
        excluded_roots: wnids; each is removed with all its descendants.
        discarded: wnids; ids that are not among the concepts have no effect. Not used by v1.

    Raises:
        CogError: unknown ids.
    """
    ids = sorted(counts)
    nodes = dict(zip(ids, graph.indices(ids, "the concepts").tolist(), strict=True))
    seen_nodes = graph.indices(seen, "the seen concepts").tolist()
    left = dict(nodes)
    steps: list[Step] = []
    removed: dict[str, tuple[str, str]] = {}

    def remove(key: str, description: str, reason_of: Callable[[str, int], str | None]) -> None:
        """Remove the concepts with a reason, a function of the id and the node."""
        reasons = {wnid: reason for wnid, node in left.items() if (reason := reason_of(wnid, node))}
        for wnid, reason in reasons.items():
            removed[wnid] = (key, reason)
            del left[wnid]
        steps.append(Step(key, description, len(reasons), len(left)))

    def label(node: int) -> str:
        return f"{graph.wnids[node]} ({graph.names[node]})"

    def remove_below(root: int) -> None:
        reason = f"below {label(root)}"
        remove("excluded_subtree", reason, lambda _, node: reason if root in graph.above(node) else None)

    def remove_ancestors(key: str, description: str, of: Iterable[int], relation: str) -> None:
        descendant: dict[int, int] = {}
        for node in sorted(of):
            for ancestor in graph.above(node) - {node}:
                descendant.setdefault(ancestor, node)
        reasons = {node: f"ancestor of {relation} {label(below)}" for node, below in descendant.items()}
        remove(key, description, lambda _, node: reasons.get(node))

    is_seen = set(seen)
    remove("seen", "seen concepts", lambda wnid, _: "seen concept" if wnid in is_seen else None)
    if protocol == "v1":
        remove_ancestors("seen_ancestor", "ancestors of seen concepts", seen_nodes, "the seen concept")
    remove(
        "few_images",
        f"with fewer than {min_images:,} images",
        lambda wnid, _: f"{counts[wnid]:,} images" if counts[wnid] < min_images else None,
    )
    for root in graph.indices(excluded_roots, "LEVELS.EXCLUDED_ROOTS").tolist():
        remove_below(root)
    if protocol == "v2":
        every = {*nodes.values(), *seen_nodes}
        remove_ancestors("ancestor", "ancestors of any concept", every, "the concept")
        by_hand = set(discarded)
        reason = "in the list of discarded concepts"
        remove("discarded", "discarded by hand", lambda wnid, _: reason if wnid in by_hand else None)
    else:
        remove_ancestors("ancestor", "ancestors of concepts left", list(left.values()), "the concept")
    return Selection(list(left), steps, removed)


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
        fields = line.replace(",", " ").split()
        if not fields or fields[0].startswith("#"):
            continue
        if not is_wnid(fields[0]):
            raise CogError(
                f"{path}, line {number}: {fields[0][:60]!r} is no noun id, expected one such as n02084071"
            )
        wnids[fields[0]] = None
    return list(wnids)
