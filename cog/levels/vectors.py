"""Vectors of concepts from word vectors of their names and glosses (paper, supplement D.1).

The vector of a concept is the mean vector of the words of its names plus the tf-idf-weighted mean of those of
its gloss. Words are looked up in lower case, then as written, and left out without a vector; the weight of a
word is ``ln((1 + n) / (1 + df)) + 1``, as in scikit-learn; a document is names and gloss of a concept.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from cog.errors import CogError, os_errors_explained
from cog.levels.wordnet import NounGraph
from cog.runtime import files

_WORD = re.compile(r"[^\W_]+")


def concept_vectors(
    graph: NounGraph, nodes: Iterable[int], documents: Iterable[int], path: Path
) -> tuple[np.ndarray, dict[str, int]]:
    """Return vectors of N concepts, float64 ``(N, D)``, zeros without any known word, and what has none.

    The weights of words are learned from ``documents``, node numbers, and the concepts.
    """
    nodes = list(nodes)
    texts = {
        node: (_WORD.findall(" ".join(graph.lemmas[node])), _WORD.findall(graph.definition(node)))
        for node in {*documents, *nodes}
    }
    frequency = Counter(
        word for text in texts.values() for word in {w.lower() for part in text for w in part}
    )
    weight = {word: math.log((1 + len(texts)) / (1 + n)) + 1 for word, n in frequency.items()}
    words = {word for node in nodes for part in texts[node] for word in part}
    vectors = read_vectors(path, words | {word.lower() for word in words})
    n_missing, x = 0, np.zeros((len(nodes), len(next(iter(vectors.values())))))
    for row, node in enumerate(nodes):
        for part, weights in zip(texts[node], ({}, weight), strict=True):
            found = [(weights.get(w.lower(), 1.0), vectors.get(w.lower(), vectors.get(w))) for w in part]
            known = [(w, vector.astype(float)) for w, vector in found if vector is not None]
            n_missing += len(found) - len(known)
            if known:
                x[row] += sum(w * vector for w, vector in known) / sum(w for w, _ in known)
    n_zero = int((~x.any(axis=1)).sum())
    return x, {"words_without_vector": n_missing, "concepts_without_vector": n_zero}


def read_vectors(path: Path, words: set[str]) -> dict[str, np.ndarray]:
    """Read the vectors of ``words``, float32 ``(D,)``, from a text file, which may be larger than memory.

    Rows are ``word v1 ... vD``, as in word2vec, GloVe, Wikipedia2Vec; a first row of two numbers is skipped.
    """
    wanted = {word.encode(): word for word in words}
    vectors: dict[str, np.ndarray] = {}
    with os_errors_explained(f"cannot read the word vectors {path}"), files.open_regular(path) as handle:
        first = handle.readline(1 << 20)
        if len(first.split()) == 2 and all(text.isdigit() for text in first.split()):
            first = handle.readline(1 << 20)
        n_dims = len(_numbers(first))
        if not n_dims:
            advice = "convert it with gensim's save_word2vec_format, or decompress it"
            raise CogError(f"{path} is no text file of word vectors, rows `word v1 ... vD`; {advice}")
        for line in itertools.chain([first], handle):
            word = wanted.get(line.split(b" ", 1)[0])
            if word is None or word in vectors or len(line.split()) > n_dims + 1:
                continue  # the last: a word of GloVe with blanks, which only begins like the wanted one
            numbers = _numbers(line)
            if len(numbers) < n_dims:
                raise CogError(f"{path}: the row of {word!r} has no {n_dims} finite numbers; is it complete?")
            vectors[word] = np.array(numbers, dtype=np.float32)
    if not vectors:
        raise CogError(f"{path} has vectors for none of the {len(words):,} words of the concepts")
    return vectors


def _numbers(line: bytes) -> list[float]:
    try:
        numbers = [float(text) for text in line.split()[1:]]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []
