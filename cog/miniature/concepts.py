"""The WordNet concepts that the miniature draws.

Every data set must be equally hard by itself, because otherwise its accuracy would not measure generalization. So the
seen concepts and the five levels are trees of the same shape: two groups of three families (hyponyms of the
group), four siblings from each family (hyponyms of the family that have no hyponyms and no other hypernym).
``build_levels.py`` selects the unseen concepts of each level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cog.errors import CogError
from cog.levels.wordnet import NounGraph

#: Number of concepts from each family among the seen concepts, and among the unseen concepts.
N_SIBLINGS = 4

#: Families with seen and with unseen members.
SEEN_FAMILIES = (
    "n02858304", "n04128837", "n04194289",  # water craft: boat, sailing vessel, ship
    "n04143897", "n04230808", "n04489008",  # garments: scarf, skirt, trouser
)  # fmt: skip

#: Families with unseen members only, from relatives of the seen families to other kingdoms.
UNSEEN_FAMILIES = (
    "n02834778", "n02959942", "n04543158",  # wheeled vehicles: bicycle, railway car, wagon
    "n02954340", "n03497657", "n03513137",  # headdresses: cap, hat, helmet
    "n02764044", "n03020692", "n03623556",  # edge tools: ax, chisel, knife
    "n02828884", "n03001627", "n04326896",  # seats: bench, chair, stool
    "n03542333", "n04081281", "n04233124",  # buildings: hotel, restaurant, skyscraper
    "n03625355", "n03631177", "n03819595",  # fabrics: knit, lace, net
    "n01727646", "n01745125", "n01752165",  # snakes: colubrid, elapid, viper
    "n11608250", "n11624531", "n11630017",  # conifers: pine, spruce, cedar
)  # fmt: skip


@dataclass(frozen=True)
class Concepts:
    """The wnids of the miniature's concepts, ascending."""

    seen: tuple[str, ...]
    unseen: tuple[str, ...]

    @property
    def every(self) -> tuple[str, ...]:
        """All concepts: the seen, then the unseen."""
        return tuple(sorted(self.seen + self.unseen))


def choose_concepts(graph: NounGraph, *, seed: int) -> Concepts:
    """Choose 24 seen and 120 unseen concepts.

    Args:
        graph: the nouns.
        seed: seed of the choice of siblings.

    Raises:
        CogError: the graph is too small for one of the families.
    """
    seen: list[str] = []
    unseen: list[str] = []
    for family in (*SEEN_FAMILIES, *UNSEEN_FAMILIES):
        siblings = _siblings(graph, family)
        n_wanted = 2 * N_SIBLINGS if family in SEEN_FAMILIES else N_SIBLINGS
        if len(siblings) < n_wanted:
            raise CogError(
                f"{family} has {len(siblings)} simple hyponyms in {graph.source or 'this graph'}, expected "
                f"{n_wanted} or more: the miniature needs WordNet 3.0"
            )
        order = np.random.default_rng([seed, int(family[1:])]).permutation(len(siblings))
        taken = [siblings[k] for k in order[:n_wanted]]
        if family in SEEN_FAMILIES:
            seen += taken[:N_SIBLINGS]
            taken = taken[N_SIBLINGS:]
        unseen += taken
    return Concepts(seen=tuple(sorted(seen)), unseen=tuple(sorted(unseen)))


def _siblings(graph: NounGraph, family: str) -> list[str]:
    return [
        graph.wnids[child]
        for child in graph.children[graph.index(family)]
        if not graph.children[child] and len(graph.parents[child]) == 1
    ]
