"""The graph of noun synsets: hypernyms and instance hypernyms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from cog.data.wnids import is_wnid
from cog.errors import CogError

_EXAMPLE = re.compile(r'".*?"')
_OTHER_PARTS = {"v": "a verb", "a": "an adjective", "s": "an adjective", "r": "an adverb"}


class NounGraph:
    """Noun synsets with their hypernym and instance-hypernym links.

    Nodes are numbered ``0 .. len(graph) - 1`` in ascending order of their ids. The graph is a
    directed acyclic graph: in WordNet 3.0 about 2 % of the synsets have more than one parent.

    Args:
        wnids: ids in strictly ascending order.
        parents: node numbers of the hypernyms, then of the instance hypernyms, of each node.
        names: NLTK name (``dog.n.01``) of each node; default: the ids.
        lemmas: words of each node, with ``_`` for blanks; default: the ids.
        glosses: definition and quoted examples of each node; default: empty.
        source: place that the graph was read from, for reports.
        files: files that the graph was read from.

    Raises:
        CogError: the ids are not ascending, or (raised by :attr:`topological_order`) the links form a cycle.
    """

    def __init__(
        self,
        *,
        wnids: Sequence[str],
        parents: Sequence[Sequence[int]],
        names: Sequence[str] | None = None,
        lemmas: Sequence[tuple[str, ...]] | None = None,
        glosses: Sequence[str] | None = None,
        source: str = "",
        files: tuple[Path, ...] = (),
    ) -> None:
        self.wnids = list(wnids)
        if any(a >= b for a, b in zip(self.wnids, self.wnids[1:], strict=False)):
            raise CogError("synset ids are not in ascending order without repetition")
        self._parents = [tuple(dict.fromkeys(row)) for row in parents]
        self._names = self.wnids if names is None else names
        self._lemmas = lemmas
        self._glosses = glosses
        self._index = {wnid: node for node, wnid in enumerate(self.wnids)}
        self._closures: dict[int, frozenset[int]] = {}
        self.source = source
        self.files = files

    def __len__(self) -> int:
        return len(self.wnids)

    def __contains__(self, wnid: object) -> bool:
        return wnid in self._index

    def index(self, wnid: str) -> int:
        """Return the node number of ``wnid``.

        Raises:
            CogError: the id is not that of a noun synset of WordNet 3.0.
        """
        try:
            return self._index[wnid]
        except (KeyError, TypeError):
            raise CogError(f"{wnid!r} {_why_unknown(wnid)}") from None

    def indices(self, wnids: Iterable[str], origin: str) -> np.ndarray:
        """Return the node numbers (int64) of ``wnids``.

        Args:
            wnids: ids.
            origin: origin of the ids, for the error.

        Raises:
            CogError: unknown ids; the message has the first of them and the number of the others.
        """
        wnids = list(wnids)
        unknown = [wnid for wnid in wnids if wnid not in self._index]
        if unknown:
            more = f" (and {len(unknown) - 1} more unknown ids)" if len(unknown) > 1 else ""
            raise CogError(f"{origin}: {unknown[0]!r}{more} {_why_unknown(unknown[0])}")
        return np.fromiter((self._index[wnid] for wnid in wnids), dtype=np.int64, count=len(wnids))

    def parents(self, node: int) -> tuple[int, ...]:
        """Return the node numbers of hypernyms, then of instance hypernyms, each in the order of the file."""
        return self._parents[node]

    def name(self, node: int) -> str:
        """Return NLTK's name of the synset: first word, part of speech, sense number."""
        return self._names[node]

    def lemmas(self, node: int) -> tuple[str, ...]:
        """Return the words of the synset, with ``_`` for blanks."""
        return self._lemmas[node] if self._lemmas is not None else (self.wnids[node],)

    def words(self, node: int) -> str:
        """Return the words of the synset with blanks, separated by commas: ``Siberian husky, husky``."""
        return ", ".join(self.lemmas(node)).replace("_", " ")

    def gloss(self, node: int) -> str:
        """Return the definition without its quoted examples, as NLTK's ``definition()`` does."""
        text = self._glosses[node] if self._glosses is not None else ""
        return _EXAMPLE.sub("", text).strip().strip("; ")

    @cached_property
    def children(self) -> list[list[int]]:
        """The children of each node, ascending."""
        children: list[list[int]] = [[] for _ in self.wnids]
        for node, above in enumerate(self._parents):
            for parent in above:
                children[parent].append(node)
        return children

    @cached_property
    def topological_order(self) -> list[int]:
        """All nodes, every parent before its children.

        Raises:
            CogError: the links form a cycle.
        """
        children = self.children
        waiting = [len(above) for above in self._parents]
        order = [node for node, count in enumerate(waiting) if count == 0]
        for node in order:  # the list grows during the loop: every node is appended after its last parent
            for child in children[node]:
                waiting[child] -= 1
                if waiting[child] == 0:
                    order.append(child)
        if len(order) < len(self):
            stuck = self.wnids[next(node for node, count in enumerate(waiting) if count > 0)]
            raise CogError(
                f"{self.source or 'the graph'} has a cycle of hypernyms near {stuck}; the files are corrupt"
            )
        return order

    def _depths(self, choose: Callable[[Iterable[int]], int]) -> np.ndarray:
        depths = [0] * len(self)
        for node in self.topological_order:
            if self._parents[node]:
                depths[node] = 1 + choose(depths[parent] for parent in self._parents[node])
        return np.array(depths, dtype=np.int64)

    @cached_property
    def max_depths(self) -> np.ndarray:
        """Length of the longest path from each node to a root (int64); NLTK's ``max_depth()``."""
        return self._depths(max)

    @cached_property
    def min_depths(self) -> np.ndarray:
        """Length of the shortest path from each node to a root (int64); NLTK's ``min_depth()``."""
        return self._depths(min)

    def subsumers(self, node: int) -> frozenset[int]:
        """Return ``node`` and its ancestors at any depth."""
        known = self._closures
        if node in known:
            return known[node]
        pending = [node]
        while pending:  # no recursion: a chain may be longer than Python's stack
            top = pending[-1]
            missing = [parent for parent in self._parents[top] if parent not in known]
            if missing:
                if len(pending) > len(self):
                    _ = self.topological_order  # raises for a cycle, on which this loop would never end
                pending += missing
                continue
            known[top] = frozenset((top,)).union(*(known[parent] for parent in self._parents[top]))
            pending.pop()
        return known[node]

    def descendants(self, node: int) -> frozenset[int]:
        """Return ``node`` and its descendants at any depth."""
        nodes = {node}
        pending = [node]
        while pending:
            for child in self.children[pending.pop()]:
                if child not in nodes:
                    nodes.add(child)
                    pending.append(child)
        return frozenset(nodes)


def _why_unknown(wnid: object) -> str:
    if not isinstance(wnid, str):
        return f"is a {type(wnid).__name__}, expected a noun id such as 'n02084071'"
    if re.fullmatch(r"[vasr][0-9]{8}", wnid):
        return f"names {_OTHER_PARTS[wnid[0]]}, expected a noun id: 'n' and 8 digits"
    if not is_wnid(wnid):
        return "is not a noun id, expected 'n' and 8 digits such as 'n02084071'"
    return "is not a noun synset of WordNet 3.0 (ids of other versions differ); check the id"
