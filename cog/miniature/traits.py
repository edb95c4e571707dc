"""Traits of a concept, which determine its appearance: numbers inherited along the hypernym chain.

Each trait of a concept is a normal variable. From parent to child it takes one step of a stationary
autoregressive walk,

    z_child = sqrt(1 - CHANGE**2) * z_parent + CHANGE * noise(child),    0 < CHANGE < 1,

so concepts of every depth have standard normal traits (no branch of WordNet is more extreme or
more varied than another), and the traits of two concepts that are k hypernym links apart have correlation
(1 - CHANGE**2)**(k / 2): close concepts look alike, and distant concepts hardly do. The noise of a node depends
only on the seed and the node's id, not on the other concepts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cog.levels.wordnet import NounGraph

#: Trait names, in the order of the trait vector. The hue of a color is the angle of two traits, so that hues change
#: without a jump.
TRAITS = (
    # Outline.
    "elongation", "squareness", "taper", "bend", "lobe_number", "lobe_depth",
    "limb_number", "limb_length", "limb_width",
    # Weights of the pattern families, then the parameters of the pattern.
    "plain", "stripes", "checks", "spots", "rings", "mottle",
    "pattern_frequency", "pattern_ratio", "pattern_angle", "pattern_level", "pattern_contrast",
    # Parts and surface.
    "rim", "core_size", "core_place", "gloss",
    # Colors.
    "body_hue_a", "body_hue_b", "body_saturation", "body_value",
    "mark_hue_a", "mark_hue_b", "mark_saturation", "mark_value",
    "core_hue_a", "core_hue_b",
    # Number of bodies, and their layout.
    "copies", "spread", "arrangement",
    # Habitat.
    "sky_hue_a", "sky_hue_b", "ground_hue_a", "ground_hue_b", "horizon", "ground_frequency",
)  # fmt: skip

#: Weight of the noise in each step from a hypernym to a hyponym: the correlation of siblings is 0.84, that of concepts
#: 20 links apart 0.17. With a larger weight related concepts do not look alike; with a smaller one siblings look the
#: same.
CHANGE = 0.4


def concept_traits(graph: NounGraph, wnids: Sequence[str], *, seed: int) -> np.ndarray:
    """Return the traits of concepts, (len(wnids), len(TRAITS)) float64.

    Of several hypernyms in WordNet only the first is used, because the average of two traits would have a smaller
    variance.

    Args:
        graph: the nouns.
        wnids: ids of the concepts.
        seed: seed of the world.

    Raises:
        CogError: an id is unknown.
    """
    known: dict[int, np.ndarray] = {}

    def traits_of(node: int) -> np.ndarray:
        chain = [node]
        while chain[-1] not in known and graph.parents[chain[-1]]:
            chain.append(graph.parents[chain[-1]][0])
        for node in reversed(chain):
            if node in known:
                continue
            novelty = np.random.default_rng([seed, int(graph.wnids[node][1:])]).standard_normal(len(TRAITS))
            above = graph.parents[node]
            known[node] = np.sqrt(1 - CHANGE**2) * known[above[0]] + CHANGE * novelty if above else novelty
        return known[chain[0]]

    return np.stack([traits_of(graph.index(wnid)) for wnid in wnids])
