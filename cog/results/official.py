"""Which results may be compared with published ones: those on the official data, judged by the numbers in them.

Equal numbers of classes and images do not prove equal images; other numbers prove that the images differ. Every table,
statement, figure and page asks here before it sets results beside each other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from cog import constants
from cog.results import published
from cog.results.scores import RUNS, Counts, SeedAverage

if TYPE_CHECKING:
    from cog.results.search_history import FeatureDescription

_N_CLASSES = 1000

# Images (ILSVRC-2012; paper Sec. 3.2, 4.1, A.1): 50 test and 732 to 1300 training images per concept of a level.
_N_TEST = 50_000
_N_TRAIN_IN1K = (1_281_167, 1_281_167)
_N_TRAIN_LEVEL = (732_000, 1_300_000)

# A few unreadable images, or the paper's IN-1K-blurred (101 fewer), do not make another data set.
_NEARLY = 0.002

# Of many models, those that a message names.
_NAMED = 3


class Match(Enum):
    """How the data of a result compare with the official data."""

    OFFICIAL = "official counts"
    NEARLY = "nearly the official counts"
    DIFFERENT = "not the official data"
    UNKNOWN = "counts not recorded"
    NONE = "no published results on this data set"

    @property
    def comparable(self) -> bool:
        """Whether to compare with published numbers; counts that nobody recorded get the benefit of the doubt."""
        return self in (Match.OFFICIAL, Match.NEARLY, Match.UNKNOWN)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one model, source and data set.

    Attributes:
        match: the verdict.
        differences: one line per count that is not the official one.
    """

    match: Match
    differences: tuple[str, ...] = ()


def judge(dataset: str, counts: Iterable[Counts]) -> Verdict:
    """Compare the numbers behind results of one model on one data set with the official ones.

    Args:
        dataset: name.
        counts: behind any number of results.
    """
    if dataset not in constants.DATASETS:
        return Verdict(Match.NONE)
    train = _N_TRAIN_IN1K if dataset == constants.IN1K else _N_TRAIN_LEVEL
    together = sum(counts, Counts())
    differences: list[str] = []
    far = False
    for what, found, (low, high), slack in (
        ("classes", together.classes, (_N_CLASSES, _N_CLASSES), 0.0),
        ("training images", together.train_images, train, _NEARLY),
        ("test images", together.test_images, (_N_TEST, _N_TEST), _NEARLY),
    ):
        for count in found:
            if not low <= count <= high:
                wanted = f"{low:,}" if low == high else f"{low:,} to {high:,}"
                differences.append(f"{count:,} {what} where the benchmark has {wanted}")
                far = far or not low * (1 - slack) <= count <= high * (1 + slack)
    if differences:
        return Verdict(Match.DIFFERENT if far else Match.NEARLY, tuple(differences))
    return Verdict(Match.OFFICIAL if together.classes else Match.UNKNOWN)


_judge = functools.lru_cache(4096)(judge)


def with_features(
    cells: Iterable[SeedAverage], features: Mapping[tuple[str, str, str], FeatureDescription]
) -> list[SeedAverage]:
    """Add to cells of runs on disk what the descriptions of their features say about numbers of classes and images.

    Args:
        cells: any.
        features: descriptions by model, data set and split; may lack any.
    """
    found: dict[tuple[str, str], Counts] = {}
    for (model, dataset, split), made in features.items():
        images = () if made.n_images is None else (made.n_images - (made.n_failed or 0),)
        found[model, dataset] = found.get((model, dataset), Counts()) + Counts(
            () if made.n_classes is None else (made.n_classes,), **{f"{split}_images": images}
        )
    return [
        dataclasses.replace(cell, counts=cell.counts + found[cell.model, cell.dataset])
        if cell.source == RUNS and (cell.model, cell.dataset) in found
        else cell
        for cell in cells
    ]


@dataclass(frozen=True)
class Comparable:
    """Which of a set of results may be set beside each other.

    Attributes:
        verdicts: by model, source and data set; published numbers are on the official data.
    """

    verdicts: Mapping[tuple[str, str, str], Verdict]
    _benchmark: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        on_it = (Match.OFFICIAL, Match.NEARLY)
        found = (dataset for (_, _, dataset), verdict in self.verdicts.items() if verdict.match in on_it)
        object.__setattr__(self, "_benchmark", frozenset(found))

    def verdict(self, cell: SeedAverage) -> Verdict:
        """Return the verdict on the data of a cell."""
        return self.verdicts[cell.model, cell.source, cell.dataset]

    def is_foreign(self, cell: SeedAverage) -> bool:
        """Whether a cell is on other data than results on the same data set that are on the official data."""
        return self.verdict(cell).match is Match.DIFFERENT and cell.dataset in self._benchmark

    def allows(self, cell: SeedAverage, other: SeedAverage) -> bool:
        """Whether two cells of a data set may be compared: not one on the official data with one on other data."""
        matches = {self.verdict(cell).match, self.verdict(other).match}
        return Match.DIFFERENT not in matches or matches <= {Match.DIFFERENT, Match.UNKNOWN}

    @property
    def refused(self) -> str:
        """Say in one line what is not compared and why; "" when everything is."""
        found: dict[str, dict[tuple[str, str], list[str]]] = {}
        for (model, source, dataset), verdict in self.verdicts.items():
            if verdict.match is Match.DIFFERENT and dataset in self._benchmark:
                found.setdefault(verdict.differences[0], {}).setdefault((model, source), []).append(dataset)
        if not found:
            return ""
        paper = any(source in published.SOURCES.values() for _, source, _ in self.verdicts)
        reasons = [f"{reason} ({_listing(places)})" for reason, places in found.items()]
        more = f"; and {len(reasons) - _NAMED} more such differences" if len(reasons) > _NAMED else ""
        with_what = "published numbers" if paper else "results on the benchmark's data"
        return f"not compared with {with_what}: {'; '.join(reasons[:_NAMED])}{more}"

    @property
    def unverified(self) -> str:
        """Name the imported results that do not say on how many classes and images they are; "" when there are none."""
        found: dict[tuple[str, str], list[str]] = {}
        for (model, source, dataset), verdict in self.verdicts.items():
            if verdict.match is Match.UNKNOWN and source != RUNS:
                found.setdefault((model, source), []).append(dataset)
        if not found or len({source for _, source, _ in self.verdicts}) < 2:
            return ""
        return (
            f"unverified: {_listing(found)}; the file does not say how many classes and images these are on, so the "
            "benchmark's are assumed"
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know, as sentences."""
        return tuple(f"{text[:1].upper()}{text[1:]}." for text in (self.refused, self.unverified) if text)


def compare(cells: Iterable[SeedAverage]) -> Comparable:
    """Judge every model, source and data set; all numbers of shots of one are on the same data."""
    groups: dict[tuple[str, str, str], list[Counts]] = {}
    for cell in cells:
        groups.setdefault((cell.model, cell.source, cell.dataset), []).append(cell.counts)
    return Comparable(
        {
            (model, source, dataset): Verdict(Match.OFFICIAL)
            if source in published.SOURCES.values()
            else _judge(dataset, tuple(dict.fromkeys(counts)))
            for (model, source, dataset), counts in groups.items()
        }
    )


def split(
    own: Sequence[SeedAverage], paper: Sequence[SeedAverage]
) -> tuple[Callable[[str, str, str], bool], str]:
    """Decide what is drawn together in one figure.

    Own results on other data than the published ones are left out; or, when all of those on the benchmark's data sets
    are, the published ones.

    Args:
        own: any results that are not published ones.
        paper: published ones.

    Returns:
        Whether results of a model, source and data set are drawn; and why some are not, or "".
    """
    known = compare([*own, *paper])
    if not known.refused:
        return lambda model, source, dataset: True, ""
    some = any(known.verdict(cell).match.comparable for cell in own)
    sources = published.SOURCES.values()

    def drawn(model: str, source: str, dataset: str) -> bool:
        if not some:
            return source not in sources
        verdict = known.verdicts.get((model, source, dataset))
        return verdict is None or verdict.match is not Match.DIFFERENT

    return drawn, known.refused


def _listing(places: Mapping[tuple[str, str], Sequence[str]]) -> str:
    shown = [
        f"{model or 'these runs'}{'' if source == RUNS else f' [{source}]'} on {', '.join(datasets)}"
        for (model, source), datasets in list(places.items())[:_NAMED]
    ]
    more = f"; and {len(places) - _NAMED} more models" if len(places) > _NAMED else ""
    return "; ".join(shown) + more
