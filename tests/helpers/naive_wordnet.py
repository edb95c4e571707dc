"""Slow and independent implementations for comparison with those of the toolkit, and toy WordNet files."""

import itertools
import math
import shutil
import warnings
from pathlib import Path

LICENCE = b"  1 This is a toy.\n  2 WordNet 3.0 Copyright 2006 by Princeton University.\n"


def toy_files(synsets) -> tuple[bytes, bytes]:
    """Return data.noun and index.noun of ``(words, hypernym rows, instance rows, gloss)`` rows."""

    def line(offset: int, row, offset_of) -> str:
        words, above, instances, gloss = row
        pointers = [f"@ {offset_of(i):08d} n 0000" for i in above]
        pointers += [f"@i {offset_of(i):08d} n 0000" for i in instances]
        fields = [f"{offset:08d}", "03", "n", f"{len(words):02x}", *(f"{word} 0" for word in words)]
        return " ".join([*fields, f"{len(pointers):03d}", *pointers]) + f" | {gloss}  \n"

    lengths = [len(line(0, row, lambda i: 0)) for row in synsets]
    offsets = list(itertools.accumulate(lengths[:-1], initial=len(LICENCE)))
    data = index = LICENCE.decode()
    senses: dict[str, list[int]] = {}
    for offset, row in zip(offsets, synsets, strict=True):
        data += line(offset, row, offsets.__getitem__)
        for word in row[0]:
            senses.setdefault(word.lower(), []).append(offset)
    for word, places in sorted(senses.items()):
        index += f"{word} n {len(places)} 1 @ {len(places)} 0 {' '.join(f'{o:08d}' for o in places)}  \n"
    return data.encode(), index.encode()


class Naive:
    """Similarities by their definitions in the papers and in NLTK's documentation, one pair at a time."""

    def __init__(self, parents: dict, names: dict, concepts):
        self.parents, self.names = parents, names
        self.taxonomy = set().union(*map(self.above, concepts))

    def above(self, x) -> set:
        return {x}.union(*map(self.above, self.parents[x]))

    def depth(self, x) -> int:
        return max((1 + self.depth(parent) for parent in self.parents[x]), default=0)

    def ic(self, x) -> float:
        return -math.log(sum(x in self.above(node) for node in self.taxonomy) / len(self.taxonomy))

    def similarity(self, measure: str, a, b) -> float:
        common = self.above(a) & self.above(b)
        if a == b or not common:
            return (math.inf if measure == "jcn" else 1.0) if a == b else 0.0
        deepest = min(common, key=lambda s: (-self.depth(s), self.names[s]))
        best, ic_a, ic_b = max(map(self.ic, common)), self.ic(a), self.ic(b)
        if measure == "wup":
            return 2 * (self.depth(deepest) + 1) / (self.depth(a) + self.depth(b) + 2)
        if measure == "jcn":
            return 0.0 if ic_a == 0 or ic_b == 0 else 1 / (ic_a + ic_b - 2 * best)
        return 2 * (self.ic(deepest) if measure == "lin" else best) / (ic_a + ic_b)


def open_with_nltk(wordnet_dir: str, work_dir: Path):
    """Return NLTK's reader of the files in ``wordnet_dir``, copied to ``work_dir``; others are empty."""
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    class Reader(WordNetCorpusReader):
        def map_wn(self, version="wordnet"):  # maps between versions with a file that Debian lacks
            return None

    root = work_dir / "corpora/wordnet"
    shutil.copytree(wordnet_dir, root)
    if not (root / "lexnames").exists():  # of 45 files of senses; their names are not used here
        (root / "lexnames").write_text("".join(f"{i:02d}\tnoun.{i}\t1\n" for i in range(45)))
    for part_of_speech in ("adj", "adv", "noun", "verb"):
        for name in (f"data.{part_of_speech}", f"index.{part_of_speech}", f"{part_of_speech}.exc"):
            (root / name).touch()
    nltk.data.path.append(str(work_dir))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Reader(nltk.data.FileSystemPathPointer(str(root)), None)
