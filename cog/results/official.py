"""Comparability of results with published ones and with each other, by their numbers of classes and images.

Equal numbers of classes and images do not prove equal images; other numbers, or another list of classes, prove that the
images differ. All tables, statements, figures and pages use these checks before they compare results.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from cog import constants
from cog.data.wnids import IN1K_LIST, class_list_digest
from cog.results import published
from cog.results.scores import RUNS, Counts, Score, SeedAverage, grouped

if TYPE_CHECKING:
    from cog.results.search_history import FeatureDescription

N_CLASSES = 1000

# Images (ILSVRC-2012; paper Sec. 3.2, 4.1, A.1): 50 test and 732 to 1300 training images per concept of a level.
_N_TEST = 50_000
_N_TRAIN_IN1K = (1_281_167, 1_281_167)
_N_TRAIN_LEVEL = (732_000, 1_300_000)

# A few unreadable images, or the paper's IN-1K-blurred (101 fewer), do not make another data set.
_NEARLY = 0.002

# Maximal number of models that a message names.
_NAMED = 3

_Result = TypeVar("_Result", Score, SeedAverage)

# Model, source and data set of a result.
_Key = tuple[str, str, str]


class Match(Enum):
    """Result of a comparison of the data behind a result with the official data."""

    OFFICIAL = "official counts"
    DIFFERENT = "not the official data"
    UNKNOWN = "counts not recorded"
    NONE = "no published results on this data set"

    @property
    def comparable(self) -> bool:
        """Whether to compare with published numbers; results without recorded counts get the benefit of the doubt."""
        return self in (Match.OFFICIAL, Match.UNKNOWN)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one model, source and data set."""

    match: Match
    differences: tuple[str, ...] = ()  # one line per count that differs from the official one
    class_lists: tuple[str, ...] = ()  # digests of the lists of classes; empty when not recorded

    def on_same_classes(self, other: Verdict) -> bool:
        """Return whether two results of a data set may be on the same classes: False if their lists differ."""
        mine, theirs = set(self.class_lists), set(other.class_lists)
        return not mine or not theirs or not mine.isdisjoint(theirs)


@functools.cache
def in1k_class_list() -> str:
    """Return the digest of the 1000 classes of IN-1K (:func:`cog.data.wnids.class_list_digest`)."""
    return class_list_digest(IN1K_LIST.read_text(encoding="utf-8").split())


def judge(dataset: str, counts: Iterable[Counts]) -> Verdict:
    """Return the verdict on the counts behind results of one model on one data set.

    >>> judge("in1k", [Counts(classes=(17,))]).differences
    ('17 classes where the benchmark has 1,000',)
    """
    together = sum(counts, Counts())
    if dataset not in constants.DATASETS:
        return Verdict(Match.NONE, class_lists=together.class_lists)
    train = _N_TRAIN_IN1K if dataset == constants.IN1K else _N_TRAIN_LEVEL
    differences: list[str] = []
    for noun, numbers, (low, high), slack in (
        ("classes", together.classes, (N_CLASSES, N_CLASSES), 0.0),
        ("training images", together.train_images, train, _NEARLY),
        ("test images", together.test_images, (_N_TEST, _N_TEST), _NEARLY),
    ):
        for count in numbers:
            if not low * (1 - slack) <= count <= high * (1 + slack):
                wanted = f"{low:,}" if low == high else f"{low:,} to {high:,}"
                differences.append(f"{count:,} {noun} where the benchmark has {wanted}")
    if dataset == constants.IN1K and not differences and not {*together.class_lists} <= {in1k_class_list()}:
        differences.append("other classes than the benchmark's")
    match = Match.DIFFERENT if differences else Match.OFFICIAL if together.classes else Match.UNKNOWN
    return Verdict(match, tuple(differences), together.class_lists)


def with_features(
    averages: Iterable[_Result], features: Mapping[tuple[str, str, str], FeatureDescription]
) -> list[_Result]:
    """Return scores or averages; those of runs on disk also have the counts of classes and images of their features.

    Args:
        averages: scores or averages of any sources.
        features: descriptions of features by model, data set and split; not necessarily of all.
    """
    counts: dict[tuple[str, str], Counts] = {}
    for (model, dataset, split), made in features.items():
        n_images = None if made.n_images is None else made.n_images - (made.n_failed or 0)
        names = ("classes", f"{split}_images", "class_lists")
        stated = dict(zip(names, (made.n_classes, n_images, made.class_list_sha256), strict=True))
        more: Any = {name: () if value is None else (value,) for name, value in stated.items()}
        counts[model, dataset] = counts.get((model, dataset), Counts()) + Counts(**more)
    return [
        dataclasses.replace(a, counts=a.counts + counts[a.model, a.dataset])
        if a.source == RUNS and (a.model, a.dataset) in counts
        else a
        for a in averages
    ]


@dataclass(frozen=True)
class Comparable:
    """Comparability of a set of results."""

    #: By model, source and data set; published numbers are on the official data.
    verdicts: Mapping[_Key, Verdict]

    @functools.cached_property
    def _benchmark(self) -> frozenset[str]:
        """The data sets with some results on the official data."""
        return frozenset(dataset for (*_, dataset), v in self.verdicts.items() if v.match is Match.OFFICIAL)

    def _is_refused(self, key: _Key) -> bool:
        return self.verdicts[key].match is Match.DIFFERENT and key[2] in self._benchmark

    def verdict(self, average: SeedAverage) -> Verdict:
        """Return the verdict on the data of an average."""
        return self.verdicts[average.model, average.source, average.dataset]

    def is_foreign(self, average: SeedAverage) -> bool:
        """Return whether an average is on other data, and others of the same data set are on the official data."""
        return self._is_refused((average.model, average.source, average.dataset))

    def allows(self, average: SeedAverage, other: SeedAverage) -> bool:
        """Return whether two averages of a data set may be compared.

        An average on the official data may not be compared with one on other data, and averages on classes that are
        known to differ may not be compared.
        """
        mine, theirs = self.verdict(average), self.verdict(other)
        matches = {mine.match, theirs.match}
        if not mine.on_same_classes(theirs):
            return False
        return Match.DIFFERENT not in matches or matches <= {Match.DIFFERENT, Match.UNKNOWN}

    @property
    def refused(self) -> str:
        """One line on the results that are not compared, with reasons; "" if there are none."""
        by_reason = grouped(
            filter(self._is_refused, self.verdicts), lambda key: self.verdicts[key].differences[0]
        )
        if not by_reason:
            return ""
        paper = any(source in published.SOURCES.values() for _, source, _ in self.verdicts)
        reasons = [f"{reason} ({_first_models(_lines(keys))})" for reason, keys in by_reason.items()]
        other = "published numbers" if paper else "results on the benchmark's data"
        return f"not compared with {other}: {_first(reasons, 'such differences')}"

    @property
    def unverified_places(self) -> list[str]:
        """The imported results without counts of classes and images, one line for each model."""
        unknown = (key for key, verdict in self.verdicts.items() if verdict.match is Match.UNKNOWN)
        return _lines(key for key in unknown if key[1] != RUNS)

    @property
    def mixed_places(self) -> list[str]:
        """The results on different classes under one name, without the refused ones.

        Each line is for the data sets with the same division of models, with " / " between models on different classes.
        """
        lists: dict[str, dict[str, list[tuple[str, str]]]] = {}
        for (model, source, dataset), verdict in self.verdicts.items():
            if not self._is_refused((model, source, dataset)):
                for digest in verdict.class_lists:
                    lists.setdefault(dataset, {}).setdefault(digest, []).append((model, source))
        divided = (dataset for dataset, by_digest in lists.items() if len(by_digest) > 1)
        alike = grouped(divided, lambda dataset: tuple(map(tuple, lists[dataset].values())))
        return [
            " / ".join(
                _first_models(_lines((*model, dataset) for model in models for dataset in datasets))
                for models in apart
            )
            for apart, datasets in alike.items()
        ]

    @property
    def mixed(self) -> str:
        """One line on the results on different classes; "" if there are none."""
        if not (apart := self.mixed_places):
            return ""
        return f"on different classes, not compared with each other: {_first(apart, 'such sets of models')}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """All remarks on comparability as lines for a log; :func:`as_sentence` turns them into notes."""
        lines = self.unverified_places
        unverified = (
            f"unverified: {_first_models(lines)}; the file does not say how many classes and images these are on, so "
            "the benchmark's are assumed"
        )
        return tuple(filter(None, (self.refused, self.mixed, unverified if lines else "")))


def as_sentence(remark: str) -> str:
    """Return a line of a log as a note below a table or figure."""
    return f"{remark[:1].upper()}{remark[1:]}."


def compare(cells: Iterable[SeedAverage]) -> Comparable:
    """Return the verdicts on all models, sources and data sets; all numbers of shots share one verdict."""
    groups = grouped(cells, operator.attrgetter("model", "source", "dataset"))
    return Comparable(
        {
            key: Verdict(Match.OFFICIAL)
            if key[1] in published.SOURCES.values()
            else judge(key[2], dict.fromkeys(cell.counts for cell in group))
            for key, group in groups.items()
        }
    )


def split(
    results: Sequence[SeedAverage], paper: Sequence[SeedAverage]
) -> tuple[Callable[[str, str, str], bool], tuple[str, ...]]:
    """Return a filter for the results in a figure that shows published numbers as well, and remarks.

    The user's results on other data than the published ones are left out. When that applies to all results on the
    benchmark's data sets, the published ones are left out instead.

    Returns:
        Function that returns whether results of a model, source and data set are drawn; :attr:`Comparable.remarks`.
    """
    known = compare([*results, *paper])
    if not known.refused:
        return lambda model, source, dataset: True, known.remarks
    some = any(known.verdict(cell).match.comparable for cell in results)
    sources = published.SOURCES.values()

    def drawn(model: str, source: str, dataset: str) -> bool:
        if not some:
            return source not in sources
        verdict = known.verdicts.get((model, source, dataset))
        return verdict is None or verdict.match is not Match.DIFFERENT

    return drawn, known.remarks


def _lines(keys: Iterable[_Key]) -> list[str]:
    """Return a line for each model and source, with its data sets."""
    return [
        f"{model or 'these runs'}{'' if source == RUNS else f' [{source}]'} on {', '.join(d for *_, d in group)}"
        for (model, source), group in grouped(keys, lambda key: key[:2]).items()
    ]


def _first(texts: Sequence[str], noun: str) -> str:
    n_more = len(texts) - _NAMED
    return "; ".join([*texts[:_NAMED], *([f"and {n_more} more {noun}"] if n_more > 0 else [])])


def _first_models(lines: Sequence[str]) -> str:
    return _first(lines, "model" if len(lines) == _NAMED + 1 else "models")
