"""Text files of word vectors, and concept vectors from them."""

import math

import numpy as np
import pytest

from cog.errors import CogError
from cog.levels.vectors import concept_vectors, read_vectors
from cog.levels.wordnet import NounGraph

WORDS = ["dog", "Paris", "cafe\u0301", "of", "the"]
VECTORS = np.array([[1, 0, 0.5], [0, 1, -2], [0.25, 0.25, 3], [1e-3, 5, 6], [7, 8, -9]], dtype=np.float32)


def text_rows(words, vectors) -> bytes:
    pairs = zip(words, vectors, strict=True)
    return "".join(f"{word} {' '.join(repr(float(x)) for x in row)}\n" for word, row in pairs).encode()


ROWS, HEADER = text_rows(WORDS, VECTORS), f"{len(WORDS)} 3\n".encode()


@pytest.mark.parametrize(
    "content",
    [
        HEADER + b"ENTITY/dog 9 9 9\nENTITY/New_York_(city) 1 1 1\n" + ROWS,  # word2vec, Wikipedia2Vec
        b"x 0 0 0\ndog park 9 9 9\n. . . 1 2 3\n" + ROWS + b"dog 9 9 9\n",  # GloVe, words with blanks
    ],
)
def test_every_format_gives_the_same_vectors(tmp_path, content):
    (tmp_path / "x.txt").write_bytes(content)
    vectors = read_vectors(tmp_path / "x.txt", {"dog", "Paris", "cafe\u0301", "cat"})
    assert sorted(vectors) == sorted(WORDS[:3])
    for word, vector in vectors.items():
        assert vector.dtype == np.float32 and np.array_equal(vector, VECTORS[WORDS.index(word)])


def test_damaged_files(tmp_path):
    for content, says in {
        ROWS + b"cat 1 2\n": "the row of 'cat' has no 3 finite numbers",
        ROWS + b"cat nan 1 2\n": "the row of 'cat' has no 3 finite numbers",
        b"": "is no text file of word vectors",
        b"house 1 2\n": "none of the 2 words",
        HEADER + b"dog " + VECTORS.tobytes(): "is no text file of word vectors",
    }.items():
        (tmp_path / "x.txt").write_bytes(content)
        with pytest.raises(CogError, match=says):
            read_vectors(tmp_path / "x.txt", {"dog", "cat"})


def test_concept_vectors_by_hand(tmp_path):
    lemmas = [("dog", "Canis_familiaris"), ("cat",), ("zzyzx",), ("hot_dog",)]
    glosses = ['a dog of the house; "the dog barked"', "The house animal, of the house", "qqq", "the food"]
    graph = NounGraph([f"n{i:08d}" for i in range(4)], [()] * 4, lemmas=lemmas, glosses=glosses)
    words = ["a", "dog", "of", "the", "house", "cat", "animal", "hot", "food", "Canis"]
    table = np.random.default_rng(0).normal(size=(len(words), 6)).astype(np.float32)
    (tmp_path / "x.txt").write_bytes(text_rows(words, table))
    of = dict(zip(words, table.astype(float), strict=True))
    x, missing = concept_vectors(graph, range(3), range(4), tmp_path / "x.txt")
    # documents: words of names and gloss; "the" and "of" in 3 and 2 of 4 ...
    df = {"a": 1, "dog": 2, "of": 2, "the": 3, "house": 2, "animal": 1}
    idf = {word: math.log(5 / (1 + n)) + 1 for word, n in df.items()}

    def mean(gloss):
        return sum(idf[word] * of[word] for word in gloss) / sum(idf[word] for word in gloss)

    gloss = ["the", "house", "animal", "of", "the", "house"]
    np.testing.assert_allclose(x[1], of["cat"] + mean(gloss), atol=1e-12)
    # "Canis" has a vector only as written, "familiaris" has none.
    names = (of["dog"] + of["Canis"]) / 2
    np.testing.assert_allclose(x[0], names + mean(["a", "dog", "of", "the", "house"]), atol=1e-12)
    assert not x[2].any() and missing == {"words_without_vector": 3, "concepts_without_vector": 1}
