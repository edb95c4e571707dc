"""Information content of synsets within a taxonomy (paper, Sec. 3.2 and supplement A.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np

from cog.errors import CogError
from cog.levels.wordnet.graph import NounGraph


@dataclass(frozen=True)
class Taxonomy:
    """The part of WordNet that some concepts span: the concepts and all their ancestors.

    Attributes:
        graph: all nouns; the arrays ``descendants`` and ``information`` have one entry per node of the graph.
        nodes: the nodes of the taxonomy, ascending (int64).
        descendants: distinct nodes of the taxonomy at or below each node (int64; 0 outside).
        information: IC(c) = -log p(c) in nats, p(c) = descendants / nodes (float64; NaN outside).
    """

    graph: NounGraph
    nodes: np.ndarray
    descendants: np.ndarray
    information: np.ndarray

    def require(self, nodes: np.ndarray) -> None:
        """Check that all ``nodes`` (int64) are in the taxonomy.

        Raises:
            CogError: a node is outside the taxonomy; the message names the first such node.
        """
        outside = nodes[self.descendants[nodes] == 0]
        if len(outside):
            raise CogError(
                f"the concept {self.graph.wnids[outside[0]]} is outside the taxonomy that the concepts span; "
                "add it to --concepts"
            )


def build_taxonomy(graph: NounGraph, concepts: Iterable[int]) -> Taxonomy:
    """Return the taxonomy of ``concepts`` up to the roots, along both kinds of hypernym links.

    A synset counts once as a descendant of each of its ancestors, for any number of paths between them
    (counting paths would give entity 32,101 descendants for ImageNet-21K instead of 23,546).

    Args:
        graph: the nouns.
        concepts: node numbers; repetitions have no effect.

    Raises:
        CogError: there are no concepts.
    """
    members = set().union(*(graph.subsumers(int(concept)) for concept in concepts))
    if not members:
        raise CogError("the taxonomy is empty: no concepts were given")
    nodes = np.array(sorted(members), dtype=np.int64)
    below = np.fromiter(chain.from_iterable(graph.subsumers(node) for node in nodes.tolist()), dtype=np.int64)
    descendants = np.bincount(below, minlength=len(graph))
    information = np.full(len(graph), np.nan)
    # The value of math.log, unlike that of np.log, does not depend on the CPU's vector units. "+ 0.0" turns -0.0
    # into 0.0.
    for count in np.unique(descendants[nodes]).tolist():
        information[descendants == count] = -math.log(count / len(nodes)) + 0.0
    return Taxonomy(graph=graph, nodes=nodes, descendants=descendants, information=information)
