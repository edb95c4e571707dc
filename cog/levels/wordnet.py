"""The noun synsets of WordNet 3.0, read from ``data.noun`` and ``index.noun`` (manual page wndb(5WN)).

ImageNet's ids are byte offsets into ``data.noun``, so other versions cannot be used.
"""

import logging
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from cog.errors import CogError

logger = logging.getLogger(__name__)

#: Number of noun synsets in WordNet 3.0.
N_SYNSETS = 82_115

_HELP = (
    "get it by `python -m nltk.downloader wordnet` (package nltk) or `apt install wordnet-base` (Debian, "
    "Ubuntu), or set COG_WORDNET_DIR to the folder of data.noun"
)


@dataclass(frozen=True, eq=False)
class NounGraph:
    """Noun synsets and their hypernyms: a graph without cycles; nodes are numbered by ascending ids."""

    wnids: Sequence[str]
    parents: Sequence[Sequence[int]]  # hypernyms, then instance hypernyms, of each node
    names: Sequence[str] = ()  # as in NLTK, dog.n.01: first word, part of speech, sense number
    lemmas: Sequence[Sequence[str]] = ()  # words of each node, with _ for blanks
    glosses: Sequence[str] = ()  # definition and quoted examples of each node
    source: str = ""  # place that the graph was read from
    _above: dict[int, frozenset[int]] = field(default_factory=dict, init=False, repr=False)
    _depths: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def node(self) -> dict[str, int]:
        """Node number of each id."""
        return {wnid: node for node, wnid in enumerate(self.wnids)}

    def nodes(self, wnids: Iterable[str]) -> np.ndarray:
        """Return the node numbers of ids, int64 ``(n,)``; an unknown id is a CogError."""
        wnids = list(wnids)
        if unknown := [wnid for wnid in wnids if wnid not in self.node]:
            expected = "expected an id such as 'n02084071'; check it (ids of other versions differ)"
            raise CogError(f"{unknown[0]!r} is not a noun synset of WordNet 3.0, {expected}")
        return np.array([self.node[wnid] for wnid in wnids], dtype=np.int64)

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
        """Return the words of a synset, ``Siberian husky, husky``; an unknown id stands for itself."""
        return ", ".join(self.lemmas[self.node[wnid]]).replace("_", " ") if wnid in self.node else wnid

    def definition(self, node: int) -> str:
        """Return the gloss without its quoted examples, as NLTK's ``definition()`` does."""
        return re.sub(r'".*?"', "", self.glosses[node]).strip().strip("; ")


def load_wordnet() -> NounGraph:
    """Read the nouns from ``COG_WORDNET_DIR`` (or ``dict`` in it), else from NLTK's folders or Debian's.

    An absent WordNet 3.0, another version and damaged files are a CogError.
    """
    given = os.environ.get("COG_WORDNET_DIR")
    for place in (Path(given), Path(given) / "dict") if given else _usual_places():
        if not all((place / name).is_file() for name in ("data.noun", "index.noun")):
            continue
        try:
            data, index = (
                (place / f"{kind}.noun").read_bytes().decode("ascii") for kind in ("data", "index")
            )
            return _parse(data, index, str(place))
        except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
            found = f"{place} is not the complete noun database of WordNet 3.0"
            raise CogError(f"{found}, whose byte offsets are ImageNet's ids ({error}); {_HELP}") from error
    found = f"{given} holds no data.noun and index.noun" if given else "WordNet 3.0 was not found"
    raise CogError(f"{found}; {_HELP}")


def optional_wordnet() -> NounGraph:
    """Return WordNet, or an empty graph: then ids stand for words."""
    try:
        return load_wordnet()
    except CogError as error:
        logger.warning("concepts have ids alone, without names: %s", error)
        return NounGraph([], [])


def _usual_places() -> Iterator[Path | zipfile.Path]:
    """Yield NLTK's data folders (importing NLTK takes longer than reading) and Debian's."""
    roots = [entry for entry in os.environ.get("NLTK_DATA", "").split(os.pathsep) if entry]
    roots += [str(Path.home() / "nltk_data"), f"{sys.prefix}/nltk_data", f"{sys.prefix}/share/nltk_data"]
    roots += [f"{prefix}/{name}/nltk_data" for prefix in ("/usr", "/usr/local") for name in ("share", "lib")]
    for root in roots:
        place = Path(root) / "corpora" / "wordnet"
        yield place
        if zipfile.is_zipfile(f"{place}.zip"):
            yield zipfile.Path(f"{place}.zip", "wordnet/")
    yield Path("/usr/share/wordnet")


def _parse(data: str, index: str, source: str) -> NounGraph:
    """Parse both files; ValueError or LookupError: they are of another version, or damaged.

    Fields of ``data``: offset, file number, ``n``, number of words (hexadecimal), words with ids,
    number of pointers, pointers (symbol, offset, part of speech, ends), ``|``, gloss. Lines of ``index`` end
    with the offsets of the senses of a word, most frequent first.
    """
    lemmas, links, glosses = [], [], []
    node: dict[str, int] = {}
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
        node[fields[0]] = len(node)
    if len(node) != N_SYNSETS:
        raise ValueError(f"it has {len(node):,} noun synsets, expected {N_SYNSETS:,}")
    rows = (line.split() for line in index.splitlines() if line[0] != " ")
    senses = {fields[0]: fields[-int(fields[2]) :] for fields in rows}
    first = [words[0].lower() for words in lemmas]
    names = [f"{w}.n.{1 + senses[w].index(offset):02d}" for w, offset in zip(first, node, strict=True)]
    parents = [tuple(node[offset] for offset in above) for above in links]
    return NounGraph([f"n{offset}" for offset in node], parents, names, lemmas, glosses, source)
