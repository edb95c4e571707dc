"""Reading WordNet's files, and refusing others."""

import pytest
from archive_forms import zip_bytes
from naive_wordnet import LICENCE, open_with_nltk, toy_files

from cog.errors import CogError
from cog.levels import wordnet as reader
from cog.levels.wordnet import load_wordnet

TOY = [
    (["entity"], [], [], "the root"),
    (["animal", "beast"], [0], [], 'a living thing; "animals | move"'),
    (["Pet"], [0], [], "kept at home"),
    (["dog", "domestic_dog"], [1, 2], [], 'man\'s best friend; "the dog barked"'),
    (["Lassie", "dog"], [], [3], "a famous dog"),
]
DATA, INDEX = toy_files(TOY)
USUAL_PLACES = reader._usual_places


@pytest.fixture
def put(monkeypatch, tmp_path):
    """Write the toy files, which count as complete, into a folder; no other WordNet is found."""
    monkeypatch.setattr(reader, "N_SYNSETS", len(TOY))
    monkeypatch.setattr(reader, "_usual_places", lambda: [tmp_path / "nltk", tmp_path / "debian"])
    monkeypatch.delenv("COG_WORDNET_DIR", raising=False)

    def write(folder, data=DATA, index=INDEX):
        folder.mkdir(parents=True)
        (folder / "data.noun").write_bytes(data)
        (folder / "index.noun").write_bytes(index)
        return folder

    return write


def test_toy_graph_has_what_its_files_say(put, tmp_path):
    put(tmp_path / "debian")
    graph, dog = load_wordnet(), 3
    assert len(graph.wnids) == 5 and graph.source == str(tmp_path / "debian")
    assert graph.parents[dog] == (1, 2) and graph.parents[4] == (3,)
    assert (graph.names[dog], graph.names[4]) == ("dog.n.01", "lassie.n.01")
    assert graph.lemmas[dog] == ("dog", "domestic_dog")
    assert (graph.words(graph.wnids[dog]), graph.words("n1")) == ("dog, domestic dog", "n1")
    assert graph.definition(dog) == "man's best friend" and graph.definition(1) == "a living thing"
    assert graph.above(4) == {0, 1, 2, 3, 4}
    assert [graph.depth(node) for node in range(5)] == [0, 1, 1, 2, 3]
    assert graph.nodes(graph.wnids[2:]).tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("data", "index", "says"),
    [
        (DATA.replace(b"\n", b"\r\n"), INDEX, "another offset"),
        (DATA[: DATA.rindex(b"\n", 0, -1) + 1], INDEX, "4 noun synsets, expected 5"),
        (LICENCE + b"\xff\xfe\x00", INDEX, "ascii"),
        (DATA, INDEX.replace(b"animal n", b"animol n"), "animal"),
        (DATA, INDEX + b"zebra n x\n", "not the complete noun database"),
    ],
)
def test_damaged_and_foreign_files_are_refused_in_one_line(put, tmp_path, data, index, says):
    put(tmp_path / "debian", data, index)
    with pytest.raises(CogError, match=says) as caught:
        load_wordnet()
    assert "\n" not in str(caught.value) and "byte offsets" in str(caught.value)


def test_search_order(put, tmp_path, monkeypatch):
    with pytest.raises(CogError, match=r"nltk\.downloader wordnet.*COG_WORDNET_DIR"):
        load_wordnet()
    assert reader.optional_wordnet().words("n00001740") == "n00001740"
    put(tmp_path / "debian")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    monkeypatch.setattr(reader, "_usual_places", USUAL_PLACES)
    (tmp_path / "corpora").mkdir()
    members = zip_bytes([("wordnet/data.noun", DATA), ("wordnet/index.noun", INDEX)])
    (tmp_path / "corpora/wordnet.zip").write_bytes(members)
    assert "wordnet.zip" in load_wordnet().source
    variable = put(tmp_path / "variable" / "dict")
    monkeypatch.setenv("COG_WORDNET_DIR", str(variable.parent))
    assert load_wordnet().source == str(variable)
    monkeypatch.setenv("COG_WORDNET_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(CogError, match=r"nowhere holds no data\.noun"):  # the usual places are not tried
        load_wordnet()


@pytest.mark.slow
def test_synsets_are_parsed_as_by_nltk(wordnet, tmp_path):
    """All have their places; every tenth, and the depths of all above it, are compared."""
    nltk_reader = open_with_nltk(wordnet.source, tmp_path)
    lines = (tmp_path / "corpora/wordnet/data.noun").read_text().splitlines()
    assert wordnet.wnids == [f"n{line[:8]}" for line in lines if line[0] != " "]
    for node in range(0, 82_115, 10):
        synset = nltk_reader.synset_from_pos_and_offset("n", int(wordnet.wnids[node][1:]))
        assert wordnet.names[node] == synset.name()
        assert list(wordnet.lemmas[node]) == synset.lemma_names()
        assert wordnet.definition(node) == synset.definition()
        above = synset.hypernyms() + synset.instance_hypernyms()
        assert {wordnet.wnids[p] for p in wordnet.parents[node]} == {f"n{p.offset():08d}" for p in above}
        assert wordnet.depth(node) == synset.max_depth()
