"""Reading WordNet's files, and refusing others."""

from __future__ import annotations

import pytest
from archive_forms import zip_bytes
from naive_wordnet import LICENCE, open_with_nltk, toy_files

from cog.errors import CogError
from cog.levels import wordnet as reader
from cog.levels.wordnet import NounGraph, load_wordnet

TOY = [
    (["entity"], [], [], "the root"),
    (["animal", "beast"], [0], [], 'a living thing; "animals | move"'),
    (["Pet"], [0], [], "kept at home"),
    (["dog", "domestic_dog"], [1, 2], [], 'man\'s best friend; "the dog barked"'),
    (["Lassie", "dog"], [], [3], "a famous dog"),
]
DATA, INDEX = toy_files(TOY)


@pytest.fixture
def put(monkeypatch, tmp_path):
    """A function that writes the toy files into a folder; they count as complete, and no other WordNet is found."""
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
    assert graph.words(graph.wnids[dog]) == "dog, domestic dog"
    assert graph.definition(dog) == "man's best friend" and graph.definition(1) == "a living thing"
    assert graph.above(4) == {0, 1, 2, 3, 4}
    assert [graph.depth(node) for node in range(5)] == [0, 1, 1, 2, 3]
    assert graph.nodes(graph.wnids[2:]).tolist() == [2, 3, 4]


def test_sense_numbers_count_in_the_order_of_the_index(put, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "N_SYNSETS", 6)
    data, index = toy_files([*TOY, (["dog"], [0], [], "a mean fellow")])
    lines = index.decode().splitlines(keepends=True)
    row = next(i for i, line in enumerate(lines) if line.startswith("dog "))
    fields = lines[row].split()
    lines[row] = " ".join([*fields[:-3], fields[-1], fields[-2], fields[-3]]) + "  \n"
    put(tmp_path / "debian", data, "".join(lines).encode())
    graph = load_wordnet()
    assert [graph.names[3], graph.names[5]] == ["dog.n.03", "dog.n.01"]


@pytest.mark.parametrize("wnid", ["n99999999", "v00001740", "dog"])
def test_unknown_ids_are_explained(wnid):
    graph = NounGraph(wnids=["n00001740"], parents=[()])
    with pytest.raises(CogError, match=f"'{wnid}' is not a noun synset of WordNet 3.0"):
        graph.nodes(["n00001740", wnid])
    assert graph.words(wnid) == wnid


#: Kind of damage -> contents of data.noun and index.noun, and what the message says.
DAMAGED = {
    "crlf": (DATA.replace(b"\n", b"\r\n"), INDEX, "another offset"),
    "cut": (DATA[: len(DATA) // 2], INDEX, "not the complete noun database"),
    "few": (DATA[: DATA.rindex(b"\n", 0, -1) + 1], INDEX, "4 noun synsets, expected 5"),
    "binary": (LICENCE + b"\xff\xfe\x00", INDEX, "ascii"),
    "page": (b"<html>404</html>", INDEX, "not the complete noun database"),
    "index of another": (DATA, INDEX.replace(b"animal n", b"animol n"), "animal"),
    "index cut": (DATA, INDEX + b"zebra n x\n", "not the complete noun database"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_and_foreign_files_are_refused_in_one_line(put, tmp_path, kind):
    data, index, says = DAMAGED[kind]
    put(tmp_path / "debian", data, index)
    with pytest.raises(CogError, match=says) as caught:
        load_wordnet()
    assert "\n" not in str(caught.value) and "byte offsets" in str(caught.value)


def test_search_order(put, tmp_path, monkeypatch):
    with pytest.raises(
        CogError, match=r"nltk\.downloader wordnet.*apt install wordnet-base.*COG_WORDNET_DIR"
    ):
        load_wordnet()
    assert reader.optional_wordnet().words("n00001740") == "n00001740"
    put(tmp_path / "debian")
    variable = put(tmp_path / "variable" / "dict")
    monkeypatch.setenv("COG_WORDNET_DIR", str(variable.parent))
    assert load_wordnet().source == str(variable)
    monkeypatch.setenv("COG_WORDNET_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(CogError, match=r"nowhere holds no data\.noun"):  # the usual places are not tried
        load_wordnet()


def test_nltks_archive_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "N_SYNSETS", len(TOY))
    monkeypatch.delenv("COG_WORDNET_DIR", raising=False)
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    (tmp_path / "corpora").mkdir()
    members = [("wordnet/data.noun", DATA), ("wordnet/index.noun", INDEX)]
    (tmp_path / "corpora/wordnet.zip").write_bytes(zip_bytes(members))
    assert "wordnet.zip" in load_wordnet().source


@pytest.mark.slow
def test_every_synset_is_parsed_as_by_nltk(wordnet, tmp_path):
    nltk_reader = open_with_nltk(wordnet.source, tmp_path)
    synsets = {f"n{synset.offset():08d}": synset for synset in nltk_reader.all_synsets("n")}
    assert len(synsets) == 82_115 and sorted(synsets) == wordnet.wnids
    for node, wnid in enumerate(wordnet.wnids):
        synset = synsets[wnid]
        assert wordnet.names[node] == synset.name()
        assert list(wordnet.lemmas[node]) == synset.lemma_names()
        assert wordnet.definition(node) == synset.definition()
        above = synset.hypernyms() + synset.instance_hypernyms()
        assert {wordnet.wnids[p] for p in wordnet.parents[node]} == {f"n{p.offset():08d}" for p in above}
        assert wordnet.depth(node) == synset.max_depth()


def test_real_names_and_glosses_are_those_of_imagenet(wordnet, shared_dir):
    def definition(wnid):
        return wordnet.definition(wordnet.node[wnid])

    for file, text_of in (("synset_lemma.txt", wordnet.words), ("synset_definition.txt", definition)):
        rows = (shared_dir / "imagenet21k" / file).read_text(encoding="utf-8").splitlines()
        pairs = [row.split("\t", 1) for row in rows]
        different = [wnid for wnid, text in pairs if text_of(wnid) != text.strip()]
        assert len(different) <= 0.001 * len(rows), different[:5]
