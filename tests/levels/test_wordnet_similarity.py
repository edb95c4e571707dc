"""Information content and similarity: by hand, against plain code on random graphs, against NLTK."""

from __future__ import annotations

import csv
import math
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from marks import n_examples
from naive_wordnet import Naive, open_with_nltk

from cog.errors import CogError
from cog.levels.wordnet import NounGraph
from cog.levels.wordnet.ic import build_taxonomy
from cog.levels.wordnet.similarity import MEASURES, similarities


def wnid(node: int) -> str:
    return f"n{node:08d}"


def make(parents, names=None) -> NounGraph:
    return NounGraph(wnids=[wnid(i) for i in range(len(parents))], parents=parents, names=names)


# entity(0) -> animal(1), pet(2); dog(3) is both; cat(4) animal and pet; stone(5) under entity
TOY = [(), (0,), (0,), (1, 2), (1, 2), (0,)]
TOY_NAMES = ["entity", "pet_animal", "companion", "dog", "cat", "stone"]


def test_hand_computed_values():
    graph = make(TOY, TOY_NAMES)
    taxonomy = build_taxonomy(graph, [3, 4, 5])
    assert taxonomy.descendants.tolist() == [6, 3, 3, 1, 1, 1]
    assert taxonomy.information.tolist() == [0.0, -math.log(3 / 6), -math.log(3 / 6), *[-math.log(1 / 6)] * 3]
    lin = similarities(taxonomy, [3, 5], [4, 5])
    shared = 2 * math.log(2) / (2 * math.log(6))
    assert np.allclose(lin, [[shared, 0.0], [0.0, 1.0]], rtol=0, atol=1e-15)


def test_a_synset_with_several_parents_counts_once():
    diamond = make([(), (0,), (0,), (1, 2)])
    assert build_taxonomy(diamond, [3]).descendants.tolist() == [4, 2, 2, 1]


def test_ancestors_outside_the_concepts_belong_to_the_taxonomy_but_siblings_do_not():
    taxonomy = build_taxonomy(make(TOY), [3])
    assert taxonomy.nodes.tolist() == [0, 1, 2, 3]
    with pytest.raises(CogError, match=f"{wnid(5)} is outside the taxonomy"):
        similarities(taxonomy, [5], [3])
    assert similarities(taxonomy, [5], [3], measure="path").tolist() == [[1 / 4]]


def test_of_equally_deep_subsumers_the_first_by_name_counts():
    # 3 and 4 share two parents of depth 1; one of them has another child, hence less information.
    graph_parents = [(), (0,), (0,), (1, 2), (1, 2), (2,)]
    values = {}
    for first, second in (("aaa", "zzz"), ("zzz", "aaa")):
        graph = make(graph_parents, ["entity", first, second, "x", "y", "w"])
        values[first] = similarities(build_taxonomy(graph, [3, 4, 5]), [3], [4])[0, 0]
    assert values["aaa"] == pytest.approx(math.log(6 / 3) / math.log(6))
    assert values["zzz"] == pytest.approx(math.log(6 / 4) / math.log(6))


def test_single_node_graph():
    taxonomy = build_taxonomy(make([()]), [0])
    expected = dict(lin=1.0, lin_max_ic=1.0, resnik=0.0, jcn=math.inf, wup=1.0, path=1.0, lch=0.0)
    for measure, value in expected.items():
        assert similarities(taxonomy, [0], [0], measure=measure).tolist() == [[value]], measure


def test_nothing_to_compare():
    taxonomy = build_taxonomy(make(TOY), [3])
    assert similarities(taxonomy, [], [3]).shape == (0, 1)
    assert similarities(taxonomy, [3], []).shape == (1, 0)


def test_empty_taxonomy():
    with pytest.raises(CogError, match="no concepts"):
        build_taxonomy(make(TOY), [])


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
@example(
    # More parents wait for their own ones, again and again, than there are nodes.
    case=([(), (0,), (), (0, 1), (), (0, 1, 3), (0, 1, 5)], [f"s{k}" for k in range(7)], [6], [0])
)
@given(graphs())
def test_random_graphs_equal_plain_code(case):
    parents, names, rows, columns = case
    graph = make(parents, names)
    taxonomy = build_taxonomy(graph, rows + columns)
    naive = Naive(dict(enumerate(parents)), dict(enumerate(names)), concepts=rows + columns)
    assert set(taxonomy.nodes.tolist()) == naive.taxonomy
    for measure in MEASURES:
        fast = similarities(taxonomy, rows, columns, measure=measure)
        slow = [[getattr(naive, measure)(a, b) for b in columns] for a in rows]
        np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-12, err_msg=measure)


@settings(max_examples=n_examples(8, 60), deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_order_and_repetition_change_nothing(case, shuffler):
    parents, names, rows, columns = case
    graph = make(parents, names)
    concepts = [*rows, *columns, *rows]
    shuffler.shuffle(concepts)
    taxonomy = build_taxonomy(graph, concepts)
    other = build_taxonomy(graph, sorted(set(concepts)))
    assert np.array_equal(taxonomy.descendants, other.descendants)
    row_order = sorted(range(len(rows)), key=lambda _: shuffler.random())
    for measure in MEASURES:
        plain = similarities(other, rows, columns, measure=measure)
        mixed = similarities(taxonomy, [rows[i] for i in row_order], columns + columns, measure=measure)
        assert np.array_equal(mixed, np.hstack([plain, plain])[row_order]), measure


# ---- the real thing


@pytest.fixture(scope="module")
def real(shared_dir, wordnet):
    """Graph, nodes of IN-21K, counts, nodes of IN-1K in IN-21K."""
    graph = wordnet
    folder = shared_dir / "imagenet21k"
    with (folder / "fall11_image_counts.csv").open() as handle:
        concepts = [row[0] for row in csv.reader(handle)][1:]
    seen = set((folder / "in1k_wnids.txt").read_text().split()) & set(concepts)
    return graph, graph.indices(concepts, "IN-21K"), graph.indices(sorted(seen), "IN-1K")


@pytest.mark.slow
def test_real_taxonomy_has_the_published_size(real):
    graph, concepts, _ = real
    taxonomy = build_taxonomy(graph, concepts)
    assert len(taxonomy.nodes) == 23_546
    assert taxonomy.descendants[graph.index("n00001740")] == 23_546
    assert sum(len(graph.parents(node)) > 1 for node in taxonomy.nodes.tolist()) == 498


@pytest.fixture(scope="module")
def nltk_reader(real, tmp_path_factory):
    graph, _, _ = real
    return open_with_nltk(graph.files[0].parent, tmp_path_factory.mktemp("nltk_data"))


@pytest.mark.slow
def test_every_synset_is_parsed_as_by_nltk(real, nltk_reader):
    graph, _, _ = real
    synsets = {f"n{synset.offset():08d}": synset for synset in nltk_reader.all_synsets("n")}
    assert sorted(synsets) == graph.wnids
    for node, found in enumerate(graph.wnids):
        synset = synsets[found]
        assert graph.name(node) == synset.name()
        assert list(graph.lemmas(node)) == synset.lemma_names()
        assert graph.gloss(node) == synset.definition()
        above = synset.hypernyms() + synset.instance_hypernyms()
        assert sorted(graph.parents(node)) == sorted(graph.index(f"n{p.offset():08d}") for p in above)
        assert graph.max_depths[node] == synset.max_depth()
        assert graph.min_depths[node] == synset.min_depth()


@pytest.mark.slow
def test_every_measure_equals_nltk_on_random_pairs(real, nltk_reader):
    graph, concepts, seen = real
    taxonomy = build_taxonomy(graph, concepts)
    counts = {
        int(graph.wnids[node][1:]): float(taxonomy.descendants[node]) for node in taxonomy.nodes.tolist()
    }
    ic = {"n": {0: float(len(taxonomy.nodes)), **counts}}
    chooser = random.Random(0)
    rows = chooser.sample(sorted(taxonomy.nodes.tolist()), 100)
    columns = chooser.sample(seen.tolist(), 40) + chooser.sample(taxonomy.nodes.tolist(), 20)
    columns[:3] = rows[:3]
    synset = {
        node: nltk_reader.synset_from_pos_and_offset("n", int(graph.wnids[node][1:]))
        for node in rows + columns
    }

    def published_lin(a, b):
        def content(s):
            return -math.log(ic["n"][s.offset()] / ic["n"][0])

        return 2 * content(a.lowest_common_hypernyms(b)[0]) / (content(a) + content(b))

    functions = {
        "lin": published_lin,
        "lin_max_ic": lambda a, b: a.lin_similarity(b, ic),
        "resnik": lambda a, b: a.res_similarity(b, ic),
        "jcn": lambda a, b: a.jcn_similarity(b, ic),
        "wup": lambda a, b: a.wup_similarity(b),
        "path": lambda a, b: a.path_similarity(b),
        "lch": lambda a, b: a.lch_similarity(b),
    }
    assert functions.keys() == MEASURES.keys()
    for measure, function in functions.items():
        fast = similarities(taxonomy, rows, columns, measure=measure)
        slow = np.array([[function(synset[a], synset[b]) for b in columns] for a in rows])
        assert slow.size == 6_000
        # NLTK uses 1e300 for infinity.
        slow[slow >= 1e299] = np.inf
        np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-12, err_msg=measure)
