"""Text files of word vectors, and concept vectors from them."""

from __future__ import annotations

import gzip
import math

import numpy as np
import pytest

from cog.errors import CogError
from cog.levels.vectors import concept_vectors, read_vectors, vocabulary
from cog.levels.wordnet import NounGraph

WORDS = ["dog", "Paris", "cafe\u0301", "of", "the"]
VECTORS = np.array([[1, 0, 0.5], [0, 1, -2], [0.25, 0.25, 3], [1e-3, 5, 6], [7, 8, -9]], dtype=np.float32)


def text_rows(words=WORDS, vectors=VECTORS) -> bytes:
    pairs = zip(words, vectors, strict=True)
    return "".join(f"{word} {' '.join(repr(float(x)) for x in row)}\n" for word, row in pairs).encode()


HEADER = f"{len(WORDS)} 3\n".encode()


@pytest.mark.parametrize(
    "content",
    [
        HEADER + text_rows(),
        text_rows(),
        b"x 0 0 0\ndog park 9 9 9\n. . . 1 2 3\n" + text_rows(),
        HEADER + b"ENTITY/dog 9 9 9\nENTITY/New_York_(city) 1 1 1\n" + text_rows(),
        text_rows() + b"dog 9 9 9\n",
    ],
    ids=["word2vec", "glove", "glove with blanks", "wikipedia2vec", "repeated"],
)
def test_every_format_gives_the_same_vectors(tmp_path, content):
    (tmp_path / "x.txt").write_bytes(content)
    vectors = read_vectors(tmp_path / "x.txt", {"dog", "Paris", "cafe\u0301", "cat"})
    assert sorted(vectors) == sorted(WORDS[:3])
    for word, vector in vectors.items():
        assert vector.dtype == np.float32 and np.array_equal(vector, VECTORS[WORDS.index(word)])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (text_rows() + b"cat 1 2\n", "the row of 'cat' has no 3 finite numbers"),
        (text_rows() + b"cat 1 2 x\n", "the row of 'cat' has no 3 finite numbers"),
        (text_rows() + b"cat nan 1 2\n", "the row of 'cat' has no 3 finite numbers"),
        (b"<html><body>404 not found</body></html>", "is no text file of word vectors"),
        (b"", "is no text file of word vectors"),
        (b"house 1 2\n", "none of the 2 words"),
        (HEADER + b"dog " + VECTORS.tobytes(), "is no text file of word vectors"),
        (gzip.compress(text_rows(), mtime=0), "is no text file of word vectors"),
    ],
)
def test_damaged_files(tmp_path, content, says):
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(CogError, match=says):
        read_vectors(tmp_path / "x.txt", {"dog", "cat"})


def make(lemmas, glosses) -> NounGraph:
    wnids = [f"n{i:08d}" for i in range(len(lemmas))]
    return NounGraph(wnids=wnids, parents=[()] * len(lemmas), lemmas=lemmas, glosses=glosses)


LEMMAS = [("dog", "Canis_familiaris"), ("cat",), ("zzyzx",), ("hot_dog",)]
GLOSSES = ['a dog of the house; "the dog barked"', "The house animal, of the house", "qqq", "the food"]


def test_concept_vectors_by_hand():
    graph = make(LEMMAS, GLOSSES)
    words = ["a", "dog", "of", "the", "house", "cat", "animal", "hot", "food", "Canis"]
    vectors = {w: np.random.default_rng(i).normal(size=6).astype(np.float32) for i, w in enumerate(words)}
    x, missing = concept_vectors(graph, range(4), range(4), vectors)
    # documents: words of names and gloss; "the" and "of" in 3 and 2 of 4 ...
    df = {"a": 1, "dog": 2, "of": 2, "the": 3, "house": 2, "animal": 1}
    idf = {word: math.log(5 / (1 + n)) + 1 for word, n in df.items()}

    def mean(gloss):
        total = sum(idf[word] * vectors[word].astype(float) for word in gloss)
        return total / sum(idf[word] for word in gloss)

    gloss = ["the", "house", "animal", "of", "the", "house"]
    np.testing.assert_allclose(x[1], vectors["cat"].astype(float) + mean(gloss), atol=1e-12)
    # "Canis" has a vector only as written, "familiaris" has none.
    names = (vectors["dog"].astype(float) + vectors["Canis"]) / 2
    np.testing.assert_allclose(x[0], names + mean(["a", "dog", "of", "the", "house"]), atol=1e-12)
    assert not x[2].any() and missing == {"words_without_vector": 3, "concepts_without_vector": 1}
    assert {"Canis", "canis", "familiaris", "dog", "house"} <= vocabulary(graph, [0])
    assert "barked" not in vocabulary(graph, [0])


def test_names_of_several_words_are_entities(tmp_path):
    """By hand, from a Wikipedia2Vec file: an entity counts as one name, a name without one as its words."""
    graph = make([("hot_dog", "dog", "red_hot"), ("Hot_Dog_stand",), ("dog",)], ["food"] * 3)
    words = [
        "dog",
        "hot",
        "red",
        "food",
        "ENTITY/Hot_dog",
        "ENTITY/Dog",
        "ENTITY/Hot_Dog_stand",
        "ENTITY/Food",
    ]
    table = np.random.default_rng(0).normal(size=(len(words), 4)).astype(np.float32)
    file = tmp_path / "wiki.txt"
    file.write_bytes(f"{len(words)} 4\n".encode() + text_rows(words, table))
    wanted = vocabulary(graph, range(3))
    assert {"ENTITY/Hot_dog", "ENTITY/hot_dog", "ENTITY/Hot_Dog_stand", "ENTITY/Red_hot"} <= wanted
    assert not {"ENTITY/Dog", "ENTITY/dog", "ENTITY/Food"} & wanted  # names of one word are words
    vectors = read_vectors(file, wanted)
    of = dict(zip(words, table.astype(float), strict=True))
    x, missing = concept_vectors(graph, range(3), range(3), vectors)
    names = [
        (of["ENTITY/Hot_dog"] + of["dog"] + of["red"] + of["hot"]) / 4,
        of["ENTITY/Hot_Dog_stand"],
        of["dog"],
    ]
    np.testing.assert_allclose(x, np.array(names) + of["food"], atol=1e-12)
    assert missing == {"words_without_vector": 0, "concepts_without_vector": 0}
    without = {word: vector for word, vector in vectors.items() if not word.startswith("ENTITY/")}
    plain, _ = concept_vectors(graph, [0], range(3), without)
    words_alone = (2 * of["hot"] + 2 * of["dog"] + of["red"]) / 5
    np.testing.assert_allclose(plain[0], words_alone + of["food"], atol=1e-12)
