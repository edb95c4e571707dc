"""Text embeddings of concepts: an alternative to WordNet's graph (paper, supplement D).

A concept's vector is the mean vector of its names plus the tf-idf-weighted mean word vector of its gloss; concepts are
compared by the cosine. A name of several words has the vector of its entity in Wikipedia2Vec where the file has one,
else the vectors of its words.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from cog.errors import CogError, UnsafeFileError
from cog.levels.wordnet.graph import NounGraph
from cog.runtime.safe_load import require_stored

_WORD = re.compile(r"[^\W_]+")
# First bytes of a compressed file -> command that decompresses the file.
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz"}
_MAX_LINE = 1 << 20
#: Prefix of the titles of articles in Wikipedia2Vec's text files, which have ``_`` for blanks.
_ENTITY = "ENTITY/"


@dataclass(frozen=True)
class ConceptVectors:
    """Vectors of concepts, and the words without a vector.

    Attributes:
        vectors: float64 ``(N, D)``; zero for concepts without any known word.
        coverage: counts for reports: words and distinct words of names and glosses, each also without a vector;
            concepts without a vector; entities.
    """

    vectors: np.ndarray
    coverage: dict[str, int]


def tokenize(text: str) -> list[str]:
    """Split a text into words: maximal runs of letters and digits, with their case kept."""
    return _WORD.findall(text)


def vocabulary(graph: NounGraph, nodes: Iterable[int]) -> set[str]:
    """Return the words, as written and in lower case, and the entities that vectors of ``nodes`` can use."""
    words: set[str] = set()
    entities: set[str] = set()
    for node in nodes:
        words.update(_name_words(graph, node), tokenize(graph.gloss(node)))
        entities.update(entity for lemma in graph.lemmas(node) for entity in _entities(lemma))
    return words | {word.lower() for word in words} | entities


def embed_concepts(
    graph: NounGraph, nodes: Iterable[int], documents: Iterable[int], vectors: Mapping[str, np.ndarray]
) -> ConceptVectors:
    """Return one vector per concept.

    Words are looked up in lower case, then as written. A name of several words that has an entity vector contributes
    this vector alone to the mean over names. Inverse document frequencies, ``ln((1 + n) / (1 + df)) + 1`` as
    scikit-learn's default, are learned from names and glosses in lower case; the paper does not give these details.
    Words without a vector are left out of the means and counted.

    Args:
        graph: the nouns.
        nodes: the N concepts to embed.
        documents: the concepts that tf-idf learns from, one document each.
        vectors: word -> ``(D,)``.
    """
    nodes, documents = list(nodes), list(documents)
    frequency: Counter[str] = Counter()
    for node in documents:
        frequency.update({word.lower() for word in (*_name_words(graph, node), *tokenize(graph.gloss(node)))})

    def weight(word: str) -> float:
        return math.log((1 + len(documents)) / (1 + frequency[word.lower()])) + 1

    def find(word: str) -> np.ndarray | None:
        vector = vectors.get(word.lower())
        return vectors.get(word) if vector is None else vector

    def weighted_mean(words: list[str], weights: list[float]) -> np.ndarray:
        known = [(find(word), w) for word, w in zip(words, weights, strict=True)]
        pairs = [(vector, w) for vector, w in known if vector is not None]
        if not pairs:
            return np.zeros(n_dims)
        stacked = np.array([vector for vector, _ in pairs], dtype=np.float64)
        scale = np.array([w for _, w in pairs])
        return scale @ stacked / scale.sum()

    n_dims = len(next(iter(vectors.values()))) if vectors else 0
    result = np.zeros((len(nodes), n_dims))
    seen_words: Counter[str] = Counter()
    n_entities = 0
    for row, node in enumerate(nodes):
        names, gloss = _name_parts(graph, node, vectors), tokenize(graph.gloss(node))
        n_entities += sum(name.startswith(_ENTITY) for name in names)
        seen_words.update(names + gloss)
        # A gloss word that occurs twice is listed twice: term frequency times inverse document frequency.
        result[row] = weighted_mean(names, [1.0] * len(names)) + weighted_mean(
            gloss, list(map(weight, gloss))
        )
    missing = Counter({word: n for word, n in seen_words.items() if find(word) is None})
    coverage = {
        "concepts": len(nodes),
        "concepts_without_vector": int((~result.any(axis=1)).sum()) if n_dims else len(nodes),
        "words": seen_words.total(),
        "words_without_vector": missing.total(),
        "distinct_words": len(seen_words),
        "distinct_words_without_vector": len(missing),
        "entities": n_entities,
        "dimensions": n_dims,
    }
    return ConceptVectors(result, coverage)


def cosine_similarities(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the cosine of every pair of vectors ``(N, D)`` and ``(M, D)``, float64 ``(N, M)``; 0 for a zero vector."""
    return _unit(rows) @ _unit(columns).T


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms == 0, 1.0, norms)


def _name_words(graph: NounGraph, node: int) -> list[str]:
    return [word for lemma in graph.lemmas(node) for word in tokenize(lemma.replace("_", " "))]


def _entities(lemma: str) -> tuple[str, ...]:
    """Return the entities that a name of several words may be in Wikipedia2Vec; an empty tuple for a single word."""
    if "_" not in lemma.strip("_"):
        return ()
    return tuple(dict.fromkeys(_ENTITY + title for title in (lemma, lemma[:1].upper() + lemma[1:])))


def _name_parts(graph: NounGraph, node: int, vectors: Mapping[str, np.ndarray]) -> list[str]:
    """Return the parts of a concept's names to look up: the entity of a name, if it has a vector, else its words."""
    parts: list[str] = []
    for lemma in graph.lemmas(node):
        entity = next((title for title in _entities(lemma) if title in vectors), None)
        parts += [entity] if entity else tokenize(lemma.replace("_", " "))
    return parts


def read_vectors(path: Path, words: set[str]) -> dict[str, np.ndarray]:
    """Read the vectors of ``words`` from a file of word vectors; the file may be much larger than memory.

    Formats, recognized by content: word2vec text and binary, GloVe text, Wikipedia2Vec text (its entities are words
    such as ``ENTITY/Hot_dog``), ``.npz`` with the arrays ``words`` (n,) and ``vectors`` (n, D). The first row of a
    repeated word is used.

    Args:
        path: file of word vectors.
        words: wanted words.

    Returns:
        word -> float32 ``(D,)``.

    Raises:
        CogError: the file cannot be read, is damaged or compressed, or has none of the words.
    """
    try:
        if path.suffix == ".npz":
            vectors = _read_npz(path, words)
        else:
            with open(path, "rb") as handle:
                vectors = _read_rows(handle, path, words)
    except OSError as error:
        raise CogError(f"cannot read --embeddings {path}: {error}") from error
    if not vectors:
        raise CogError(
            f"--embeddings {path} has vectors for none of the {len(words):,} words of the concepts"
        )
    if any(not np.isfinite(vector).all() for vector in vectors.values()):
        raise CogError(f"--embeddings {path} has vectors with NaN or infinite entries")
    return vectors


def _read_npz(path: Path, words: set[str]) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as handle, np.load(require_stored(handle), allow_pickle=False) as archive:
            names, vectors = archive["words"], archive["vectors"]
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read --embeddings {path}: it contains {error}; save it with np.savez, not savez_compressed"
        ) from None
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise CogError(
            f"--embeddings {path} is not a .npz of arrays 'words' and 'vectors' ({str(error)[:120]}); "
            f"save it with "
            "np.savez(path, words=np.array(list_of_str), vectors=array)"
        ) from error
    if vectors.ndim != 2 or names.shape != vectors.shape[:1] or names.dtype.kind != "U":
        raise CogError(
            f"--embeddings {path}: words {names.shape} {names.dtype} and vectors {vectors.shape} do not "
            f"fit, expected "
            "(n,) strings and (n, D) numbers"
        )
    wanted: dict[str, np.ndarray] = {}
    for word, vector in zip(names.tolist(), vectors, strict=True):
        if word in words:
            wanted.setdefault(word, np.asarray(vector, dtype=np.float32))
    return wanted


def _read_rows(handle: IO[bytes], path: Path, words: set[str]) -> dict[str, np.ndarray]:
    first = handle.readline(_MAX_LINE)
    for magic, command in _COMPRESSED.items():
        if first.startswith(magic):
            raise CogError(f"--embeddings {path} is compressed; decompress it first: {command} {path}")
    header = first.split()
    if len(header) == 2 and all(field.isdigit() for field in header):
        n_rows, n_dims = int(header[0]), int(header[1])
        second = handle.readline(_MAX_LINE)
        if n_rows and n_dims and not _is_text_row(second, n_dims):
            return _read_binary(handle, second, path, words, n_rows=n_rows, n_dims=n_dims)
        return _read_text(handle, second, path, words, first_number=2, n_dims=n_dims)
    n_dims = len(header) - 1
    if n_dims < 1 or not _is_text_row(first, n_dims):
        raise CogError(
            f"--embeddings {path} is not a file of word vectors, expected word2vec text or binary, "
            f"GloVe text, "
            "Wikipedia2Vec text or .npz"
        )
    return _read_text(handle, first, path, words, first_number=1, n_dims=n_dims)


def _is_text_row(line: bytes, n_dims: int) -> bool:
    fields = line.split()
    if len(fields) < n_dims + 1:
        return False
    try:
        line.decode("utf-8")
        return all(isinstance(float(field), float) for field in fields[-n_dims:])
    except ValueError:
        return False


def _read_text(
    handle: IO[bytes], line: bytes, path: Path, words: set[str], *, first_number: int, n_dims: int
) -> dict[str, np.ndarray]:
    wanted = {word.encode("utf-8"): word for word in words}
    vectors: dict[str, np.ndarray] = {}
    number = first_number
    while line:
        # The number of fields is checked in rows of wanted words: this is cheap, and shows a truncated file.
        if line.strip():
            start = line.split(None, 1)[0]
            if start in wanted and wanted[start] not in vectors:
                fields = line.split()
                # Some words of GloVe contain blanks; such a word differs from the wanted word at its beginning.
                if len(fields) == n_dims + 1:
                    try:
                        vectors[wanted[start]] = np.array(
                            [float(field) for field in fields[1:]], dtype=np.float32
                        )
                    except ValueError:
                        raise CogError(
                            f"--embeddings {path}, line {number}: expected {n_dims} numbers"
                        ) from None
                elif len(fields) <= n_dims:
                    raise CogError(
                        f"--embeddings {path}, line {number}: {len(fields) - 1} numbers, expected "
                        f"{n_dims}; is the "
                        "file complete?"
                    )
        line = handle.readline(_MAX_LINE)
        number += 1
    return vectors


def _read_binary(
    handle: IO[bytes], read_ahead: bytes, path: Path, words: set[str], *, n_rows: int, n_dims: int
) -> dict[str, np.ndarray]:
    wanted = {word.encode("utf-8"): word for word in words}
    size = 4 * n_dims
    vectors: dict[str, np.ndarray] = {}
    buffer, position = read_ahead, 0
    for row in range(n_rows):
        blank = buffer.find(b" ", position)
        while blank < 0 or len(buffer) < blank + 1 + size:
            more = handle.read(max(1 << 22, size))
            if not more:
                raise CogError(
                    f"--embeddings {path} ends in row {row + 1:,} of {n_rows:,}; is the file complete?"
                )
            buffer, position = buffer[position:] + more, 0
            blank = buffer.find(b" ", position)
            if blank < 0 and len(buffer) > _MAX_LINE + size:
                raise CogError(f"--embeddings {path}, row {row + 1:,}: no word found; the file is damaged")
        # word2vec.c writes a line feed after every vector; other programs do not.
        word = wanted.get(buffer[position:blank].lstrip(b"\n"))
        if word is not None and word not in vectors:
            vectors[word] = np.frombuffer(buffer, dtype="<f4", count=n_dims, offset=blank + 1).copy()
        position = blank + 1 + size
    return vectors
