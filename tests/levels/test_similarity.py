"""Information content and similarity, against plain code on random graphs and against NLTK."""

import csv
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import n_examples
from naive_wordnet import Naive, open_with_nltk

from cog.levels.similarity import MEASURES, information_content
from cog.levels.wordnet import NounGraph


@st.composite
def graphs(draw):
    """Random DAGs: several roots, several parents, unconnected parts; ids and names in random order."""
    n = draw(st.integers(1, 14))
    shuffled = draw(st.permutations(range(n)))
    parents: list[tuple[int, ...]] = [()] * n
    for rank, node in enumerate(shuffled):
        above = draw(st.sets(st.sampled_from(shuffled[:rank]), max_size=3)) if rank else set()
        parents[node] = tuple(sorted(above))
    names = [f"s{k:02d}" for k in draw(st.permutations(range(n)))]
    nodes = st.lists(st.integers(0, n - 1), min_size=1, max_size=8)
    return parents, names, draw(nodes), draw(nodes)


@settings(max_examples=n_examples(15, 200), deadline=None)
@given(graphs())
def test_random_graphs_equal_plain_code(case):
    parents, names, rows, columns = case
    graph = NounGraph([f"n{node:08d}" for node in range(len(parents))], parents, names)
    naive = Naive(dict(enumerate(parents)), dict(enumerate(names)), concepts=rows + columns)
    information = information_content(graph, rows + columns)
    assert set(np.flatnonzero(~np.isnan(information))) == naive.taxonomy
    for measure in ("lin", "lin_max_ic", "jcn", "wup"):
        fast = MEASURES[measure](graph, information, np.array(rows), np.array(columns))
        slow = [[naive.similarity(measure, a, b) for b in columns] for a in rows]
        np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-12, err_msg=measure)


@pytest.mark.slow
def test_every_measure_equals_nltk_on_random_pairs(shared_dir, wordnet, tmp_path):
    graph, folder = wordnet, shared_dir / "imagenet21k"
    with (folder / "fall11_image_counts.csv").open() as handle:
        wnids = [row[0] for row in csv.reader(handle)][1:]
    seen = graph.nodes({*(folder / "in1k_wnids.txt").read_text().split()} & {*wnids})
    concepts = graph.nodes(wnids)
    nltk_reader = open_with_nltk(graph.source, tmp_path)
    information = information_content(graph, concepts.tolist())
    taxonomy = np.flatnonzero(~np.isnan(information)).tolist()
    assert len(taxonomy) == 23_546 and information[graph.node["n00001740"]] == 0
    counts = {int(graph.wnids[node][1:]): 23_546 * math.exp(-information[node]) for node in taxonomy}
    ic = {"n": {0: 23_546.0, **counts}}
    chooser = random.Random(0)
    rows = chooser.sample(taxonomy, 60)
    columns = chooser.sample(sorted(seen.tolist()), 40) + chooser.sample(taxonomy, 20)
    columns[:3] = rows[:3]
    offsets = {node: int(graph.wnids[node][1:]) for node in rows + columns}
    synset = {node: nltk_reader.synset_from_pos_and_offset("n", offset) for node, offset in offsets.items()}

    def content(s):
        return -math.log(ic["n"][s.offset()] / ic["n"][0])

    def deepest(a, b):
        return a.lowest_common_hypernyms(b)[0]

    functions = {
        "lin": lambda a, b: 2 * content(deepest(a, b)) / (content(a) + content(b)),
        "lin_max_ic": lambda a, b: a.lin_similarity(b, ic),
        "jcn": lambda a, b: a.jcn_similarity(b, ic),
        "wup": lambda a, b: 2 * (1 + deepest(a, b).max_depth()) / (2 + a.max_depth() + b.max_depth()),
    }
    for measure, function in functions.items():
        fast = MEASURES[measure](graph, information, np.array(rows), np.array(columns))
        slow = np.array([[function(synset[a], synset[b]) for b in columns] for a in rows])
        slow[slow >= 1e299] = np.inf  # NLTK uses 1e300 for infinity
        np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-12, err_msg=measure)
