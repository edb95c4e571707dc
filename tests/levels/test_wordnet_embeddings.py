"""Word vector files of every format, and concept vectors from them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math

import numpy as np
import pytest

from cog.errors import CogError
from cog.levels.wordnet import NounGraph
from cog.levels.wordnet.embeddings import (
    cosine_similarities,
    embed_concepts,
    read_vectors,
    tokenize,
    vocabulary,
)

WORDS = ["dog", "Paris", "cafe\u0301", "of", "the"]
VECTORS = np.array([[1, 0, 0.5], [0, 1, -2], [0.25, 0.25, 3], [1e-3, 5, 6], [7, 8, -9]], dtype=np.float32)


def text_rows(words=WORDS, vectors=VECTORS) -> bytes:
    lines = (
        f"{word} {' '.join(repr(float(x)) for x in row)}\n" for word, row in zip(words, vectors, strict=True)
    )
    return "".join(lines).encode()


def binary(words=WORDS, vectors=VECTORS, *, newline=b"\n") -> bytes:
    rows = (
        word.encode() + b" " + row.astype("<f4").tobytes() + newline
        for word, row in zip(words, vectors, strict=True)
    )
    return f"{len(words)} {vectors.shape[1]}\n".encode() + b"".join(rows)


def files(folder):
    header = f"{len(WORDS)} 3\n".encode()
    made = {
        "word2vec.txt": header + text_rows(),
        "word2vec.bin": binary(),
        "gensim.bin": binary(newline=b""),
        "glove.txt": text_rows(),
        "glove_blanks.txt": b"x 0 0 0\ndog park 9 9 9\n. . . 1 2 3\n" + text_rows(),
        "wikipedia2vec.txt": header + b"ENTITY/dog 9 9 9\nENTITY/New_York_(city) 1 1 1\n" + text_rows(),
        "repeated.txt": text_rows() + b"dog 9 9 9\n",
    }
    for name, content in made.items():
        (folder / name).write_bytes(content)
    np.savez(folder / "words.npz", words=np.array(WORDS), vectors=VECTORS)
    return [*made, "words.npz"]


def test_every_format_gives_the_same_vectors(tmp_path):
    for name in files(tmp_path):
        found = read_vectors(tmp_path / name, {"dog", "Paris", "cafe\u0301", "cat"})
        assert sorted(found) == sorted(WORDS[:3]), name
        for word, vector in found.items():
            assert vector.dtype == np.float32
            assert np.array_equal(vector, VECTORS[WORDS.index(word)]), (name, word)


def test_binary_vectors_that_look_like_text_or_line_ends(tmp_path):
    vectors = np.frombuffer(b"\n \n1" * 6, dtype="<f4").reshape(2, 3).copy()
    (tmp_path / "x.bin").write_bytes(binary(["a", "dog"], vectors))
    assert np.array_equal(read_vectors(tmp_path / "x.bin", {"dog"})["dog"], vectors[1])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("cut.bin", binary()[:-10], "ends in row 5 of 5"),
        ("cut.txt", text_rows() + b"cat 1 2\n", "line 6: 2 numbers, expected 3"),
        ("words.txt", text_rows() + b"cat 1 2 x\n", "line 6: expected 3 numbers"),
        ("nan.txt", b"dog nan 1\n", "NaN or infinite"),
        ("page.html", b"<html><body>404 not found</body></html>", "is not a file of word vectors"),
        ("empty.txt", b"", "is not a file of word vectors"),
        ("others.txt", b"house 1 2\n", "none of the 2 words"),
        ("x.npz", b"PK no", "is not a .npz"),
        ("x.txt.gz", gzip.compress(text_rows(), mtime=0), r"decompress it first: gunzip .*x\.txt\.gz"),
        ("x.bin", bz2.compress(binary()), "decompress it first: bunzip2 "),
        ("x.xz", lzma.compress(text_rows()), "decompress it first: unxz "),
    ],
)
def test_damaged_files(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CogError, match=says):
        read_vectors(tmp_path / name, {"dog", "cat"})


def test_npz_of_other_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", words=np.array(["dog"]), vectors=np.ones((2, 3)))
    with pytest.raises(CogError, match="do not fit"):
        read_vectors(tmp_path / "a.npz", {"dog"})
    np.savez(tmp_path / "b.npz", x=np.ones(3))
    with pytest.raises(CogError, match=r"is not a \.npz of arrays 'words' and 'vectors'"):
        read_vectors(tmp_path / "b.npz", {"dog"})


def test_a_missing_file(tmp_path):
    with pytest.raises(CogError, match="cannot read --embeddings"):
        read_vectors(tmp_path / "none.txt", {"dog"})


LEMMAS = [("dog", "Canis_familiaris"), ("cat",), ("zzyzx",), ("hot_dog",)]
GLOSSES = ['a dog of the house; "the dog barked"', "The house animal, of the house", "qqq", "the food"]


@pytest.fixture
def graph():
    return NounGraph(wnids=[f"n{i:08d}" for i in range(4)], parents=[()] * 4, lemmas=LEMMAS, glosses=GLOSSES)


@pytest.fixture
def vectors():
    words = ["a", "dog", "of", "the", "house", "cat", "animal", "hot", "food", "Canis"]
    return {word: np.random.default_rng(i).normal(size=6).astype(np.float32) for i, word in enumerate(words)}


def test_tokenize():
    assert tokenize("St. John's-wort, 2 x café_au") == ["St", "John", "s", "wort", "2", "x", "café", "au"]


def test_concept_vectors_by_hand(graph, vectors):
    found = embed_concepts(graph, range(4), range(4), vectors)
    # documents: words of names and gloss; "the" and "of" in 3 and 2 of 4 ...
    idf = {
        word: math.log(5 / (1 + df)) + 1
        for word, df in dict(a=1, dog=2, of=2, the=3, house=2, animal=1).items()
    }
    gloss = ["the", "house", "animal", "of", "the", "house"]
    weighted = sum(idf[word] * vectors[word].astype(float) for word in gloss) / sum(
        idf[word] for word in gloss
    )
    np.testing.assert_allclose(found.vectors[1], vectors["cat"].astype(float) + weighted, atol=1e-12)
    # "Canis" has a vector only as written, "familiaris" has none.
    names = (vectors["dog"].astype(float) + vectors["Canis"]) / 2
    gloss = ["a", "dog", "of", "the", "house"]
    weighted = sum(idf[word] * vectors[word].astype(float) for word in gloss) / sum(
        idf[word] for word in gloss
    )
    np.testing.assert_allclose(found.vectors[0], names + weighted, atol=1e-12)
    assert not found.vectors[2].any()
    assert found.coverage == {
        "concepts": 4,
        "concepts_without_vector": 1,
        "words": 21,
        "words_without_vector": 3,
        "distinct_words": 14,  # "The" and "the"
        "distinct_words_without_vector": 3,
        "entities": 0,
        "dimensions": 6,
    }


def test_names_of_several_words_are_entities(tmp_path):
    """By hand, from a Wikipedia2Vec file: an entity counts as one name, a name without one as its words."""
    lemmas = [("hot_dog", "dog", "red_hot"), ("Hot_Dog_stand",), ("dog",)]
    graph = NounGraph(
        wnids=[f"n{i:08d}" for i in range(3)], parents=[()] * 3, lemmas=lemmas, glosses=["food"] * 3
    )
    words = [
        "dog", "hot", "red", "food", "ENTITY/Hot_dog", "ENTITY/Dog", "ENTITY/Hot_Dog_stand", "ENTITY/Food",
    ]  # fmt: skip
    table = np.random.default_rng(0).normal(size=(len(words), 4)).astype(np.float32)
    file = tmp_path / "wiki.txt"
    file.write_bytes(f"{len(words)} 4\n".encode() + text_rows(words, table))
    wanted = vocabulary(graph, range(3))
    assert {"ENTITY/Hot_dog", "ENTITY/hot_dog", "ENTITY/Hot_Dog_stand", "ENTITY/Red_hot"} <= wanted
    assert not {"ENTITY/Dog", "ENTITY/dog", "ENTITY/Food"} & wanted  # names of one word are words
    vectors = read_vectors(file, wanted)
    of = dict(zip(words, table.astype(float), strict=True))
    found = embed_concepts(graph, range(3), range(3), vectors)
    names = [
        (of["ENTITY/Hot_dog"] + of["dog"] + of["red"] + of["hot"]) / 4,
        of["ENTITY/Hot_Dog_stand"],
        of["dog"],
    ]
    np.testing.assert_allclose(found.vectors, np.array(names) + of["food"], atol=1e-12)
    assert found.coverage["entities"] == 2 and found.coverage["words_without_vector"] == 0
    without = {word: vector for word, vector in vectors.items() if not word.startswith("ENTITY/")}
    plain = embed_concepts(graph, range(3), range(3), without)
    np.testing.assert_allclose(
        plain.vectors[0], (2 * of["hot"] + 2 * of["dog"] + of["red"]) / 5 + of["food"], atol=1e-12
    )
    assert plain.coverage["entities"] == 0


def test_vocabulary_has_both_cases(graph):
    assert {"Canis", "canis", "familiaris", "dog", "house"} <= vocabulary(graph, [0])
    assert "barked" not in vocabulary(graph, [0])


def test_cosines():
    rows = np.array([[1.0, 0], [0, 0], [1, 1]])
    found = cosine_similarities(rows, np.array([[2.0, 0], [-1, 0]]))
    np.testing.assert_allclose(found, [[1, -1], [0, 0], [math.sqrt(0.5), -math.sqrt(0.5)]], atol=1e-15)
