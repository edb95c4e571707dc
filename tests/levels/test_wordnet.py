"""Reading WordNet's files, and refusing others."""

from __future__ import annotations

import pytest
from archive_forms import zip_bytes
from naive_wordnet import LICENCE, toy_files

from cog.errors import CogError
from cog.levels import wordnet
from cog.levels.wordnet import NounGraph, load_wordnet, reader

TOY = [
    (["entity"], [], [], "the root"),
    (["animal", "beast"], [0], [], 'a living thing; "animals | move"'),
    (["Pet"], [0], [], "kept at home"),
    (["dog", "domestic_dog"], [1, 2], [], 'man\'s best friend; "the dog barked"'),
    (["Lassie", "dog"], [], [3], "a famous dog"),
]


def toy_graph(**changes) -> NounGraph:
    data, index = toy_files(TOY)
    return reader.parse(changes.get("data", data), changes.get("index", index), source="toy", complete=False)


@pytest.fixture(scope="module")
def graph(wordnet):
    return wordnet


def test_toy_graph_has_what_its_files_say():
    graph = toy_graph()
    dog = 3
    assert len(graph) == 5
    assert graph.parents(dog) == (1, 2)
    assert graph.parents(4) == (3,)
    assert graph.name(dog) == "dog.n.01"
    assert graph.name(4) == "lassie.n.01"
    assert graph.lemmas(dog) == ("dog", "domestic_dog")
    assert graph.words(dog) == "dog, domestic dog"
    assert graph.gloss(dog) == "man's best friend"
    assert graph.gloss(1) == "a living thing"
    assert graph.subsumers(4) == {0, 1, 2, 3, 4}
    assert graph.descendants(1) == {1, 3, 4}
    assert graph.max_depths.tolist() == [0, 1, 1, 2, 3]
    assert graph.index(graph.wnids[2]) == 2


def test_sense_numbers_count_in_the_order_of_the_index():
    data, index = toy_files([*TOY, (["dog"], [0], [], "a mean fellow")])
    lines = index.decode().splitlines(keepends=True)
    row = next(i for i, line in enumerate(lines) if line.startswith("dog "))
    fields = lines[row].split()
    lines[row] = " ".join([*fields[:-3], fields[-1], fields[-2], fields[-3]]) + "  \n"
    graph = reader.parse(data, "".join(lines).encode(), source="toy", complete=False)
    assert [graph.name(3), graph.name(5)] == ["dog.n.03", "dog.n.01"]


@pytest.mark.parametrize(
    ("wnid", "says"),
    [
        ("n99999999", "not a noun synset of WordNet 3.0"),
        ("v00001740", "a verb"),
        ("a00001740", "an adjective"),
        ("dog", "not a noun id"),
        ("n1740", "not a noun id"),
        (7, "is a int"),
    ],
)
def test_unknown_ids_are_explained(wnid, says):
    with pytest.raises(CogError, match=says):
        toy_graph().index(wnid)


def test_many_unknown_ids_are_counted():
    with pytest.raises(CogError, match=r"my list: 'n00000007' \(and 1 more unknown ids\)"):
        toy_graph().indices(["n00000007", toy_graph().wnids[0], "n00000008"], "my list")


DATA, INDEX = toy_files(TOY)
LINES = DATA.split(b"\n")
NO_SUCH_HYPERNYM = [*LINES[:-2], LINES[-2].replace(b"@i ", b"@i 9", 1).replace(b" n 0000", b"n 0000", 1)]
#: Kind of damage -> changed file, and what the message says.
DAMAGED = {
    "crlf": ({"data": DATA.replace(b"\n", b"\r\n")}, "malformed"),
    "cut in a line": ({"data": DATA[:-30]}, "malformed"),
    "shifted": ({"data": LICENCE + b"  3 one more line\n" + DATA[len(LICENCE) :]}, "malformed"),
    "no such hypernym": ({"data": b"\n".join(NO_SUCH_HYPERNYM)}, "malformed|where no synset is"),
    "binary": ({"data": LICENCE + b"\xff\xfe\x00"}, "not ASCII"),
    "not WordNet": ({"data": b"<html>404</html>"}, "license"),
    "wordnet 3.1": (
        {"data": DATA.replace(b"WordNet 3.0", b"WordNet 3.1")},
        "is WordNet 3.1, expected WordNet 3.0.*byte offsets",
    ),
    "index of another": ({"index": INDEX.replace(b"animal n", b"animol n")}, "does not list 'animal'"),
    "index cut": ({"index": INDEX + b"zebra n x\n"}, "malformed line"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_and_foreign_files_are_refused_in_one_line(kind):
    changes, says = DAMAGED[kind]
    with pytest.raises(CogError, match=says) as caught:
        toy_graph(**changes)
    assert "\n" not in str(caught.value)


def test_a_cycle_is_refused():
    data, index = toy_files([(["entity"], [1], [], "x"), (["thing"], [0], [], "y"), (["far"], [1], [], "z")])
    with pytest.raises(CogError, match="cycle"):
        reader.parse(data, index, source="toy", complete=False)


def test_a_cycle_does_not_hang_subsumers():
    graph = NounGraph(wnids=["n00000001", "n00000002"], parents=[(1,), (0,)])
    with pytest.raises(CogError, match="cycle"):
        graph.subsumers(0)


@pytest.mark.slow
def test_a_long_chain_needs_no_recursion():
    n = 5000
    graph = NounGraph(wnids=[f"n{i:08d}" for i in range(n)], parents=[(), *((i,) for i in range(n - 1))])
    assert len(graph.subsumers(n - 1)) == n
    assert graph.max_depths[-1] == n - 1


def test_an_incomplete_wordnet_is_refused(tmp_path, monkeypatch):
    data, index = toy_files(TOY)
    (tmp_path / "data.noun").write_bytes(data)
    (tmp_path / "index.noun").write_bytes(index)
    with pytest.raises(CogError, match="5 noun synsets, expected 82,115"):
        load_wordnet(tmp_path)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Toy files count as complete; no WordNet of the machine is found."""
    data, index = toy_files(TOY)
    monkeypatch.setattr(reader, "N_SYNSETS", len(TOY))
    monkeypatch.setattr(reader, "_FIRST", (f"n{len(LICENCE):08d}", "entity"))
    monkeypatch.setattr(reader, "DEBIAN_DIR", tmp_path / "debian")
    monkeypatch.setattr(reader, "_nltk_places", lambda: [tmp_path / "nltk_data" / "corpora" / "wordnet.zip"])
    monkeypatch.delenv(reader.ENVIRONMENT_VARIABLE, raising=False)

    def put(folder):
        folder.mkdir(parents=True)
        (folder / "data.noun").write_bytes(data)
        (folder / "index.noun").write_bytes(index)
        return folder

    return put


def test_search_order(small, tmp_path, monkeypatch):
    with pytest.raises(CogError, match=r"nltk\.downloader wordnet.*apt install wordnet-base.*--wordnet_dir"):
        load_wordnet()
    debian = small(tmp_path / "debian")
    assert load_wordnet().source == str(debian)
    archive = tmp_path / "nltk_data" / "corpora" / "wordnet.zip"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(zip_bytes((f"wordnet/{path.name}", path.read_bytes()) for path in debian.iterdir()))
    assert load_wordnet().source == str(archive)
    variable = small(tmp_path / "variable" / "dict")
    monkeypatch.setenv(reader.ENVIRONMENT_VARIABLE, str(variable.parent))
    assert load_wordnet().source == str(variable)
    flag = small(tmp_path / "flag")
    assert load_wordnet(flag).source == str(flag)
    assert load_wordnet(tmp_path / "nltk_data").source == str(archive)


def test_a_folder_that_was_named_must_hold_wordnet(small, tmp_path, monkeypatch):
    small(tmp_path / "debian")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CogError, match=r"--wordnet_dir .*empty holds no data\.noun"):
        load_wordnet(tmp_path / "empty")
    monkeypatch.setenv(reader.ENVIRONMENT_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(CogError, match=r"COG_WORDNET_DIR .*nowhere holds no data\.noun"):
        load_wordnet()


def test_a_foreign_wordnet_is_passed_over_but_mentioned(small, tmp_path):
    debian = small(tmp_path / "debian")
    (debian / "data.noun").write_bytes(
        (debian / "data.noun").read_bytes().replace(b"WordNet 3.0", b"WordNet 3.1")
    )
    with pytest.raises(CogError, match=r"was not found \(.*is WordNet 3.1"):
        load_wordnet()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04 not really", "not a readable zip archive"),
        (b"", "not a readable zip archive"),
        (zip_bytes([("wordnet/data.verb", b"x")]), r"holds no data\.noun"),
    ],
)
def test_archives_without_wordnet_are_refused(tmp_path, content, says):
    (tmp_path / "wordnet.zip").write_bytes(content)
    with pytest.raises(CogError, match=says):
        load_wordnet(tmp_path / "wordnet.zip")


def test_real_wordnet(graph):
    assert len(graph) == 82_115
    dog = graph.index("n02084071")
    assert graph.name(dog) == "dog.n.01"
    assert [graph.name(p) for p in graph.parents(dog)] == ["canine.n.02", "domestic_animal.n.01"]
    assert graph.lemmas(dog) == ("dog", "domestic_dog", "Canis_familiaris")
    assert graph.gloss(dog).endswith("occurs in many breeds")
    assert graph.max_depths.max() == 19
    assert wordnet.__all__ == ["NounGraph", "load_wordnet"]


def test_real_names_and_glosses_are_those_of_imagenet(graph, shared_dir):
    for file, found in (("synset_lemma.txt", graph.words), ("synset_definition.txt", graph.gloss)):
        rows = (shared_dir / "imagenet21k" / file).read_text(encoding="utf-8").splitlines()
        different = [
            row
            for row in rows
            if (pair := row.split("\t", 1)) and found(graph.index(pair[0])) != pair[1].strip()
        ]
        assert len(different) <= 0.001 * len(rows), different[:5]
