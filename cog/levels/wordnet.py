"""The noun synsets of WordNet 3.0, read from ``data.noun`` and ``index.noun``.

ImageNet's ids are byte offsets into ``data.noun`` of WordNet 3.0, so other versions cannot be used. The format of the
files is documented in WordNet's manual page wndb(5WN).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from cog.errors import CogError

logger = logging.getLogger(__name__)

ENVIRONMENT_VARIABLE = "COG_WORDNET_DIR"

#: Number of noun synsets in WordNet 3.0.
N_SYNSETS = 82_115

_HELP = (
    "get it by `python -m nltk.downloader wordnet` (package nltk) or `apt install wordnet-base` (Debian, Ubuntu), or "
    f"from wordnet.princeton.edu, with the folder of data.noun in the environment variable {ENVIRONMENT_VARIABLE}"
)

_EXAMPLE = re.compile(r'".*?"')


@dataclass(frozen=True, eq=False)
class NounGraph:
    """Noun synsets with their hypernym and instance-hypernym links: a graph without cycles; 2 % have several parents.

    Nodes are numbered from 0 in ascending order of their ids.

    Attributes:
        wnids: id of each node, ascending.
        parents: node numbers of the hypernyms, then of the instance hypernyms, of each node.
        names: NLTK's name of each node, ``dog.n.01``: first word, part of speech, sense number.
        lemmas: words of each node, with ``_`` for blanks.
        glosses: definition and quoted examples of each node.
        source: place that the graph was read from.
    """

    wnids: Sequence[str]
    parents: Sequence[Sequence[int]]
    names: Sequence[str] = ()
    lemmas: Sequence[Sequence[str]] = ()
    glosses: Sequence[str] = ()
    source: str = ""
    _above: dict[int, frozenset[int]] = field(default_factory=dict, init=False, repr=False)
    _depths: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def _node_of(self) -> dict[str, int]:
        return {wnid: node for node, wnid in enumerate(self.wnids)}

    def __len__(self) -> int:
        return len(self.wnids)

    def __contains__(self, wnid: object) -> bool:
        return wnid in self._node_of

    def index(self, wnid: str) -> int:
        """Return the node number of an id; a :class:`CogError` if it is not that of a noun synset of WordNet 3.0."""
        if wnid not in self._node_of:
            raise CogError(
                f"{wnid!r} is not a noun synset of WordNet 3.0, expected 'n' and 8 digits such as 'n02084071' (ids of "
                "other versions differ); check the id"
            )
        return self._node_of[wnid]

    def indices(self, wnids: Iterable[str], origin: str) -> np.ndarray:
        """Return the node numbers of ids, int64 ``(n,)``; the error about an unknown id names their origin."""
        try:
            return np.array([self.index(wnid) for wnid in wnids], dtype=np.int64)
        except CogError as error:
            raise CogError(f"{origin}: {error}") from None

    @cached_property
    def children(self) -> list[list[int]]:
        """The children of each node, ascending."""
        children: list[list[int]] = [[] for _ in self.wnids]
        for node, parents in enumerate(self.parents):
            for parent in parents:
                children[parent].append(node)
        return children

    def above(self, node: int) -> frozenset[int]:
        """Return ``node`` and its ancestors at any depth (the synsets that subsume it)."""
        if node not in self._above:
            self._above[node] = frozenset((node,)).union(*map(self.above, self.parents[node]))
        return self._above[node]

    def depth(self, node: int) -> int:
        """Return the length of the longest path to a root; NLTK's ``max_depth()``."""
        if node not in self._depths:
            self._depths[node] = 1 + max(map(self.depth, self.parents[node]), default=-1)
        return self._depths[node]

    def words(self, wnid: str) -> str:
        """Return the words of a synset with blanks, separated by commas: ``Siberian husky, husky``."""
        return ", ".join(self.lemmas[self.index(wnid)]).replace("_", " ")

    def definition(self, node: int) -> str:
        """Return the gloss without its quoted examples, as NLTK's ``definition()`` does."""
        return _EXAMPLE.sub("", self.glosses[node]).strip().strip("; ")


def load_wordnet(folder: str | os.PathLike[str] | None = None) -> NounGraph:
    """Read the noun synsets of WordNet 3.0 from a folder with ``data.noun`` and ``index.noun``, or with ``dict``.

    The default is that of the environment variable ``COG_WORDNET_DIR``, else the first of NLTK's data folders and
    ``/usr/share/wordnet``. An absent WordNet 3.0, another version and damaged files are a CogError.
    """
    given = folder or os.environ.get(ENVIRONMENT_VARIABLE)
    for place in (Path(given), Path(given) / "dict") if given else _usual_places():
        if (place / "data.noun").is_file() and (place / "index.noun").is_file():
            return _read(place)
    missing = (
        f"{given} holds no data.noun and index.noun of WordNet 3.0" if given else "WordNet 3.0 was not found"
    )
    raise CogError(f"{missing}; {_HELP}")


def word_finder() -> Callable[[str], str]:
    """Return a function from an id to the words of its synset; without WordNet, or for other ids, to the id itself."""
    try:
        graph = load_wordnet()
    except CogError as error:
        logger.info("concepts are shown by their ids alone: %s", error)
        return str
    return lambda wnid: graph.words(wnid) if wnid in graph else wnid


def _usual_places() -> Iterator[Path | zipfile.Path]:
    """Yield NLTK's data folders, without importing NLTK, which takes longer than the reading, and Debian's."""
    roots = [entry for entry in os.environ.get("NLTK_DATA", "").split(os.pathsep) if entry]
    roots += [str(Path.home() / "nltk_data"), f"{sys.prefix}/nltk_data", f"{sys.prefix}/share/nltk_data"]
    roots += [f"{prefix}/{name}/nltk_data" for prefix in ("/usr", "/usr/local") for name in ("share", "lib")]
    for root in roots:
        place = Path(root) / "corpora" / "wordnet"
        yield place
        if zipfile.is_zipfile(f"{place}.zip"):
            yield zipfile.Path(f"{place}.zip", "wordnet/")
    yield Path("/usr/share/wordnet")


def _read(folder: Path | zipfile.Path) -> NounGraph:
    try:
        data, index = ((folder / name).read_bytes().decode("ascii") for name in ("data.noun", "index.noun"))
        return _parse(data, index, str(folder))
    except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
        raise CogError(
            f"{folder} is not the complete noun database of WordNet 3.0, whose byte offsets are ImageNet's ids "
            f"({error}); {_HELP}"
        ) from error


def _parse(data: str, index: str, source: str) -> NounGraph:
    """Parse the contents of the two files; ValueError or LookupError: they are of another version, or damaged.

    A line of ``data`` has the fields: offset, file number, ``n``, number of words (hexadecimal), words with their
    lexical ids, number of pointers, pointers (symbol, offset, part of speech, source/target), and after ``|`` the
    gloss. A line of ``index`` ends with the offsets of the senses of a word, most frequent first.
    """
    lemmas, links, glosses = [], [], []
    node_of: dict[str, int] = {}
    position = 0
    for line in data.splitlines(keepends=True):
        here, position = position, position + len(line)
        if line[0] == " ":  # the license
            continue
        head, _, gloss = line.partition("|")
        fields = head.split()
        if int(fields[0]) != here:
            raise ValueError(f"the synset at byte {here} of data.noun gives another offset")
        at = 4 + 2 * int(fields[3], 16)
        pointers = list(zip(fields[at + 1 :: 4], fields[at + 2 :: 4], strict=False)) if "@" in head else ()
        links.append([offset for kind in ("@", "@i") for symbol, offset in pointers if symbol == kind])
        lemmas.append(tuple(fields[4:at:2]))
        glosses.append(gloss)
        node_of[fields[0]] = len(node_of)
    if len(node_of) != N_SYNSETS:
        raise ValueError(f"it has {len(node_of):,} noun synsets, expected {N_SYNSETS:,}")
    rows = (line.split() for line in index.splitlines() if line[0] != " ")
    senses = {fields[0]: fields[-int(fields[2]) :] for fields in rows}
    first = [words[0].lower() for words in lemmas]
    names = [f"{w}.n.{1 + senses[w].index(offset):02d}" for w, offset in zip(first, node_of, strict=True)]
    parents = [tuple(node_of[offset] for offset in above) for above in links]
    return NounGraph([f"n{offset}" for offset in node_of], parents, names, lemmas, glosses, source)
