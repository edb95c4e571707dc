"""Similarity of concepts by word vectors of their names and glosses (paper, supplement D.1).

The vector of a concept is the mean vector of its names plus the tf-idf-weighted mean vector of the words of its gloss;
concepts are compared by the cosine. A name of several words has the vector of its entity in Wikipedia2Vec where the
file has one, else the vectors of its words. The paper does not give further details: words are looked up in lower case,
then as written; words without a vector are left out of the means; the weight of a gloss word is its inverse document
frequency ``ln((1 + n) / (1 + df)) + 1`` (scikit-learn's default), with one document of names and gloss per concept.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from cog.errors import CogError, os_errors_explained
from cog.levels.wordnet import NounGraph
from cog.runtime import files

_WORD = re.compile(r"[^\W_]+")
_MAX_LINE = 1 << 20


def cosines(
    graph: NounGraph, rows: np.ndarray, columns: np.ndarray, documents: Iterable[int], path: Path
) -> tuple[np.ndarray, dict[str, int]]:
    """Return the cosine of every pair of concepts, float64 ``(N, M)``, and the numbers of words without a vector.

    The weights of words are learned from ``documents`` and the rows; ``path`` is a file for :func:`read_vectors`.
    """
    both = [*rows.tolist(), *columns.tolist()]
    vectors = read_vectors(path, vocabulary(graph, both))
    x, missing = concept_vectors(graph, both, {*documents, *rows.tolist()}, vectors)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    x = x / np.where(norms == 0, 1.0, norms)
    return x[: len(rows)] @ x[len(rows) :].T, missing


def concept_vectors(
    graph: NounGraph, nodes: Iterable[int], documents: Iterable[int], vectors: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, int]]:
    """Return the vectors of N concepts, float64 ``(N, D)``, and the numbers of words and concepts without a vector.

    A concept without any known word has a vector of zeros. The weights of words are learned from ``documents``.
    """
    nodes, documents = list(nodes), list(documents)
    frequency = Counter(word for node in documents for word in {w.lower() for w in _words(graph, node)})
    weight = {word: math.log((1 + len(documents)) / (1 + n)) + 1 for word, n in frequency.items()}
    n_missing = 0
    result = np.zeros((len(nodes), len(next(iter(vectors.values())))))
    for row, node in enumerate(nodes):
        names: list[str] = []
        for lemma in graph.lemmas[node]:
            entity = next((title for title in _entities(lemma) if title in vectors), None)
            names += [entity] if entity else _WORD.findall(lemma)
        gloss = _WORD.findall(graph.definition(node))
        for words, weights in ((names, [1.0] * len(names)), (gloss, [weight[w.lower()] for w in gloss])):
            found = [vectors.get(word.lower(), vectors.get(word)) for word in words]
            known = [(w, v.astype(float)) for w, v in zip(weights, found, strict=True) if v is not None]
            n_missing += len(found) - len(known)
            if known:
                result[row] += sum(w * v for w, v in known) / sum(w for w, _ in known)
    n_zero = int((~result.any(axis=1)).sum())
    return result, {"words_without_vector": n_missing, "concepts_without_vector": n_zero}


def vocabulary(graph: NounGraph, nodes: Iterable[int]) -> set[str]:
    """Return the words, as written and in lower case, and the entities that vectors of ``nodes`` can use."""
    nodes = set(nodes)
    words = {word for node in nodes for word in _words(graph, node)}
    entities = {entity for node in nodes for lemma in graph.lemmas[node] for entity in _entities(lemma)}
    return words | {word.lower() for word in words} | entities


def _words(graph: NounGraph, node: int) -> list[str]:
    return _WORD.findall(" ".join([*graph.lemmas[node], graph.definition(node)]))


def _entities(lemma: str) -> tuple[str, ...]:
    """Return the titles that a name of several words may have in Wikipedia2Vec; none for a single word."""
    is_single = "_" not in lemma.strip("_")
    return () if is_single else (f"ENTITY/{lemma}", f"ENTITY/{lemma[:1].upper()}{lemma[1:]}")


def read_vectors(path: Path, words: set[str]) -> dict[str, np.ndarray]:
    """Read the vectors of ``words``, float32 ``(D,)``, from a text file, which may be much larger than memory.

    A row is ``word v1 ... vD``, as in the text files of word2vec, GloVe and Wikipedia2Vec (whose entities are words
    such as ``ENTITY/Hot_dog``); a first row of two whole numbers is skipped. Of a repeated word, the first row is used.

    Raises:
        CogError: the file cannot be read, is no such text, is cut off, or has none of the words.
    """
    wanted = {word.encode(): word for word in words}
    vectors: dict[str, np.ndarray] = {}
    with os_errors_explained(f"cannot read the word vectors {path}"), files.open_regular(path) as handle:
        first = handle.readline(_MAX_LINE)
        if len(first.split()) == 2 and all(text.isdigit() for text in first.split()):
            first = handle.readline(_MAX_LINE)
        n_dims = len(_numbers(first))
        if not n_dims:
            raise CogError(
                f"{path} is no text file of word vectors, expected rows `word v1 ... vD`; convert binary files with "
                "gensim's save_word2vec_format, and decompress compressed ones"
            )
        for line in itertools.chain([first], handle):
            word = wanted.get(line.split(b" ", 1)[0])
            if word is None or word in vectors or len(line.split()) > n_dims + 1:
                continue  # the last: a word of GloVe with blanks, which only begins like the wanted one
            numbers = _numbers(line)
            if len(numbers) < n_dims:
                raise CogError(
                    f"{path}: the row of {word!r} has no {n_dims} finite numbers; is the file complete?"
                )
            vectors[word] = np.array(numbers, dtype=np.float32)
    if not vectors:
        raise CogError(f"{path} has vectors for none of the {len(words):,} words of the concepts")
    return vectors


def _numbers(line: bytes) -> list[float]:
    """Return the numbers after the word of a row; none if one of them is no finite number."""
    try:
        numbers = [float(text) for text in line.split()[1:]]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []
