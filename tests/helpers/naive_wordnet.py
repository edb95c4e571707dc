"""Slow and independent implementations for comparison with those of the toolkit, and toy WordNet files."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from pathlib import Path

LICENCE = (
    b"  1 This is a toy.\n  2 WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved.\n"
)


def toy_files(synsets, *, licence: bytes = LICENCE) -> tuple[bytes, bytes]:
    """Return data.noun and index.noun of ``(words, hypernym rows, instance rows, gloss)`` rows.

    The length of a line does not depend on the offsets, so offsets can be computed first.
    """

    def line(offset: int, row, offset_of) -> str:
        words, above, instances, gloss = row
        pointers = [f"@ {offset_of(i):08d} n 0000" for i in above]
        pointers += [f"@i {offset_of(i):08d} n 0000" for i in instances]
        fields = [f"{offset:08d}", "03", "n", f"{len(words):02x}", *(f"{word} 0" for word in words)]
        return " ".join([*fields, f"{len(pointers):03d}", *pointers]) + f" | {gloss}  \n"

    offsets, position = [], len(licence)
    for row in synsets:
        offsets.append(position)
        position += len(line(0, row, lambda i: 0))
    data = licence.decode() + "".join(
        line(offset, row, offsets.__getitem__) for offset, row in zip(offsets, synsets, strict=True)
    )
    senses: dict[str, list[int]] = {}
    for offset, (words, *_) in zip(offsets, synsets, strict=True):
        for word in words:
            senses.setdefault(word.lower(), []).append(offset)
    index = licence.decode()
    for word, places in sorted(senses.items()):
        index += f"{word} n {len(places)} 1 @ {len(places)} 0 {' '.join(f'{o:08d}' for o in places)}  \n"
    return data.encode(), index.encode()


class Naive:
    """Similarities by their definitions in the papers and in NLTK's documentation, one pair at a time."""

    def __init__(self, parents: dict, names: dict, concepts=None):
        self.parents, self.names = parents, names
        self.ancestors = lru_cache(None)(self._ancestors)
        self.max_depth = lru_cache(None)(
            lambda x: max((1 + self.max_depth(p) for p in parents[x]), default=0)
        )
        if concepts is not None:
            self.taxonomy = set().union(*(self.ancestors(c) for c in concepts))
            self.below = dict.fromkeys(self.taxonomy, 0)
            for node in self.taxonomy:
                for ancestor in self.ancestors(node):
                    self.below[ancestor] += 1

    def _ancestors(self, x) -> frozenset:
        ancestors = {x}
        for parent in self.parents[x]:
            ancestors |= self.ancestors(parent)
        return frozenset(ancestors)

    def ic(self, x) -> float:
        return -math.log(self.below[x] / len(self.taxonomy))

    def _deepest(self, a, b):
        common = self.ancestors(a) & self.ancestors(b)
        deepest = max((self.max_depth(s) for s in common), default=None)
        return sorted((s for s in common if self.max_depth(s) == deepest), key=self.names.__getitem__)

    def _ratio(self, a, b, shared: float) -> float:
        total = self.ic(a) + self.ic(b)
        return 1.0 if total == 0 else 2 * shared / total

    def lin(self, a, b) -> float:
        deepest = self._deepest(a, b)
        return self._ratio(a, b, self.ic(deepest[0])) if deepest else 0.0

    def _best_ic(self, a, b) -> float:
        return max((self.ic(s) for s in self.ancestors(a) & self.ancestors(b)), default=0.0)

    def lin_max_ic(self, a, b) -> float:
        return self._ratio(a, b, self._best_ic(a, b)) if self.ancestors(a) & self.ancestors(b) else 0.0

    def jcn(self, a, b) -> float:
        if a == b:
            return math.inf
        if not self.ancestors(a) & self.ancestors(b) or self.ic(a) == 0 or self.ic(b) == 0:
            return 0.0
        distance = self.ic(a) + self.ic(b) - 2 * self._best_ic(a, b)
        return math.inf if distance == 0 else 1 / distance

    def wup(self, a, b) -> float:
        deepest = self._deepest(a, b)
        depths = self.max_depth(a) + self.max_depth(b) + 2
        return 2 * (self.max_depth(deepest[0]) + 1) / depths if deepest else 0.0


def open_with_nltk(wordnet_dir: str, work_dir: Path):
    """Return NLTK's reader of the files in ``wordnet_dir``, copied to ``work_dir``, a new data folder of NLTK.

    Files that NLTK expects and ``wordnet_dir`` lacks (the folder may have nouns alone) are empty.
    """
    import shutil

    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    class Reader(WordNetCorpusReader):
        def map_wn(self, version="wordnet"):  # maps between versions with a file that Debian lacks
            return None

    root = work_dir / "corpora" / "wordnet"
    root.mkdir(parents=True)
    for path in Path(wordnet_dir).iterdir():
        if path.is_file():
            shutil.copy(path, root / path.name)
    if not (root / "lexnames").exists():  # of 45 files of senses; their names are not used here
        (root / "lexnames").write_text("".join(f"{i:02d}\tnoun.{i}\t1\n" for i in range(45)))
    for part_of_speech in ("adj", "adv", "noun", "verb"):
        for name in (f"data.{part_of_speech}", f"index.{part_of_speech}", f"{part_of_speech}.exc"):
            (root / name).touch()
    nltk.data.path.append(str(work_dir))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Reader(nltk.data.FileSystemPathPointer(str(root)), None)
