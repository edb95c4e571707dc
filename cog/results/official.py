"""Which results may be compared with published ones: those on the official data, judged by the numbers in them.

Equal numbers of classes and images do not prove equal images; other numbers, or another list of classes, prove that the
images differ. Every table, statement, figure and page asks here before it sets results beside each other.
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

# Of many models, those that a message names.
_NAMED = 3

_Result = TypeVar("_Result", Score, SeedAverage)
_Places = dict[str, dict[tuple[str, str], list[str]]]


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
        class_lists: digests of the lists of classes; empty where nothing says.
    """

    match: Match
    differences: tuple[str, ...] = ()
    class_lists: tuple[str, ...] = ()

    def on_same_classes(self, other: Verdict) -> bool:
        """Whether two results of a data set may be on the same classes: False where their lists say otherwise."""
        return (
            not self.class_lists
            or not other.class_lists
            or not set(self.class_lists).isdisjoint(other.class_lists)
        )


@functools.cache
def in1k_class_list() -> str:
    """Return the digest of the 1000 classes of IN-1K (:func:`cog.data.wnids.class_list_digest`)."""
    return class_list_digest(IN1K_LIST.read_text(encoding="utf-8").split())


def judge(dataset: str, counts: Iterable[Counts]) -> Verdict:
    """Compare the numbers behind results of one model on one data set with the official ones.

    Args:
        dataset: name.
        counts: behind any number of results.

    >>> judge("in1k", [Counts(classes=(17,))]).differences
    ('17 classes where the benchmark has 1,000',)
    """
    together = sum(counts, Counts())
    if dataset not in constants.DATASETS:
        return Verdict(Match.NONE, class_lists=together.class_lists)
    train = _N_TRAIN_IN1K if dataset == constants.IN1K else _N_TRAIN_LEVEL
    differences: list[str] = []
    far = False
    for noun, numbers, (low, high), slack in (
        ("classes", together.classes, (N_CLASSES, N_CLASSES), 0.0),
        ("training images", together.train_images, train, _NEARLY),
        ("test images", together.test_images, (_N_TEST, _N_TEST), _NEARLY),
    ):
        for count in numbers:
            if not low <= count <= high:
                wanted = f"{low:,}" if low == high else f"{low:,} to {high:,}"
                differences.append(f"{count:,} {noun} where the benchmark has {wanted}")
                far = far or not low * (1 - slack) <= count <= high * (1 + slack)
    if dataset == constants.IN1K and not far and not {*together.class_lists} <= {in1k_class_list()}:
        differences.insert(0, "other classes than the benchmark's")
        far = True
    match = Match.OFFICIAL if together.classes else Match.UNKNOWN
    if differences:
        match = Match.DIFFERENT if far else Match.NEARLY
    return Verdict(match, tuple(differences), together.class_lists)


_judge = functools.lru_cache(4096)(judge)


def with_features(
    averages: Iterable[_Result], features: Mapping[tuple[str, str, str], FeatureDescription]
) -> list[_Result]:
    """Add to scores or averages of runs on disk what the descriptions of their features say about classes and images.

    Args:
        averages: any.
        features: descriptions by model, data set and split; may lack any.
    """
    counts: dict[tuple[str, str], Counts] = {}
    for (model, dataset, split), made in features.items():
        images = None if made.n_images is None else made.n_images - (made.n_failed or 0)
        stated: dict[str, Any] = {
            "classes": made.n_classes,
            f"{split}_images": images,
            "class_lists": made.class_list_sha256,
        }
        more = Counts(**{name: () if value is None else (value,) for name, value in stated.items()})
        counts[model, dataset] = counts.get((model, dataset), Counts()) + more
    return [
        dataclasses.replace(a, counts=a.counts + counts[a.model, a.dataset])
        if a.source == RUNS and (a.model, a.dataset) in counts
        else a
        for a in averages
    ]


@dataclass(frozen=True)
class Comparable:
    """Which of a set of results may be set beside each other.

    Attributes:
        verdicts: by model, source and data set; published numbers are on the official data.
    """

    verdicts: Mapping[tuple[str, str, str], Verdict]

    @functools.cached_property
    def _benchmark(self) -> frozenset[str]:
        """The data sets on which some results are on the official data."""
        on_it = (Match.OFFICIAL, Match.NEARLY)
        return frozenset(dataset for (*_, dataset), v in self.verdicts.items() if v.match in on_it)

    def verdict(self, average: SeedAverage) -> Verdict:
        """Return the verdict on the data of an average."""
        return self.verdicts[average.model, average.source, average.dataset]

    def is_foreign(self, average: SeedAverage) -> bool:
        """Whether an average is on other data than results on the same data set that are on the official data."""
        return self._is_refused((average.model, average.source, average.dataset), self.verdict(average))

    def allows(self, average: SeedAverage, other: SeedAverage) -> bool:
        """Whether two averages of a data set may be compared.

        Not one on the official data with one on other data, nor two that are known to be on different classes.
        """
        mine, theirs = self.verdict(average), self.verdict(other)
        matches = {mine.match, theirs.match}
        if not mine.on_same_classes(theirs):
            return False
        return Match.DIFFERENT not in matches or matches <= {Match.DIFFERENT, Match.UNKNOWN}

    def _is_refused(self, key: tuple[str, str, str], verdict: Verdict) -> bool:
        """Whether results of a model, source and data set are on other data than official ones beside them."""
        return verdict.match is Match.DIFFERENT and key[2] in self._benchmark

    def _places(self, chosen: Callable[[tuple[str, str, str], Verdict], bool]) -> _Places:
        """Return model and source of chosen verdicts, with their data sets, by the first difference."""
        places: _Places = {}
        for (model, source, dataset), verdict in self.verdicts.items():
            if chosen((model, source, dataset), verdict):
                reason = verdict.differences[0] if verdict.differences else ""
                places.setdefault(reason, {}).setdefault((model, source), []).append(dataset)
        return places

    @property
    def refused(self) -> str:
        """Say in one line what is not compared and why; "" when everything is."""
        places = self._places(self._is_refused)
        if not places:
            return ""
        paper = any(source in published.SOURCES.values() for _, source, _ in self.verdicts)
        reasons = [f"{reason} ({_listing(group)})" for reason, group in places.items()]
        other = "published numbers" if paper else "results on the benchmark's data"
        return f"not compared with {other}: {_first(reasons, 'such differences')}"

    @property
    def unverified_places(self) -> list[str]:
        """The imported results that do not say on how many classes and images they are, a line for each model."""
        places = self._places(lambda key, v: v.match is Match.UNKNOWN and key[1] != RUNS)
        return _lines(places.get("", {}))

    @property
    def unverified(self) -> str:
        """Name the results of :attr:`unverified_places`; "" when there are none."""
        if not (lines := self.unverified_places):
            return ""
        return (
            f"unverified: {_first_models(lines)}; the file does not say how many classes and images these are on, so "
            "the benchmark's are assumed"
        )

    @property
    def mixed_places(self) -> list[str]:
        """The results on different classes under one name; not those that are refused.

        A line for the data sets on which the same models are apart, with " / " between those that are.
        """
        lists: dict[str, dict[str, dict[tuple[str, str], None]]] = {}
        for (model, source, dataset), verdict in self.verdicts.items():
            if self._is_refused((model, source, dataset), verdict):
                continue
            for digest in verdict.class_lists:
                lists.setdefault(dataset, {}).setdefault(digest, {})[model, source] = None
        datasets: dict[tuple[tuple[tuple[str, str], ...], ...], list[str]] = {}
        for dataset, by_digest in lists.items():
            if len(by_digest) > 1:
                datasets.setdefault(tuple(map(tuple, by_digest.values())), []).append(dataset)
        return [
            " / ".join(_listing(dict.fromkeys(models, names)) for models in apart)
            for apart, names in datasets.items()
        ]

    @property
    def mixed(self) -> str:
        """Say in one line what is on different classes; "" when nothing is."""
        if not (apart := self.mixed_places):
            return ""
        return f"on different classes, not compared with each other: {_first(apart, 'such sets of models')}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know, as lines of a log; :func:`as_sentence` makes notes of them."""
        return tuple(filter(None, (self.refused, self.mixed, self.unverified)))


def as_sentence(remark: str) -> str:
    """Return a line of a log as a note below a table or figure."""
    return f"{remark[:1].upper()}{remark[1:]}."


def compare(cells: Iterable[SeedAverage]) -> Comparable:
    """Judge every model, source and data set; all numbers of shots of one are on the same data."""
    groups = grouped(cells, operator.attrgetter("model", "source", "dataset"))
    return Comparable(
        {
            (model, source, dataset): Verdict(Match.OFFICIAL)
            if source in published.SOURCES.values()
            else _judge(dataset, tuple(dict.fromkeys(cell.counts for cell in group)))
            for (model, source, dataset), group in groups.items()
        }
    )


def split(
    results: Sequence[SeedAverage], paper: Sequence[SeedAverage]
) -> tuple[Callable[[str, str, str], bool], tuple[str, ...]]:
    """Decide what is drawn together in one figure.

    Own results on other data than the published ones are left out; or, when all of those on the benchmark's data sets
    are, the published ones.

    Args:
        results: any results that are not published ones.
        paper: published ones.

    Returns:
        Whether results of a model, source and data set are drawn; and :attr:`Comparable.remarks`.
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


def _lines(places: Mapping[tuple[str, str], Sequence[str]]) -> list[str]:
    return [
        f"{model or 'these runs'}{'' if source == RUNS else f' [{source}]'} on {', '.join(datasets)}"
        for (model, source), datasets in places.items()
    ]


def _first(texts: Sequence[str], noun: str) -> str:
    n_more = len(texts) - _NAMED
    return "; ".join([*texts[:_NAMED], *([f"and {n_more} more {noun}"] if n_more > 0 else [])])


def _first_models(lines: Sequence[str]) -> str:
    return _first(lines, "model" if len(lines) == _NAMED + 1 else "models")


def _listing(places: Mapping[tuple[str, str], Sequence[str]]) -> str:
    return _first_models(_lines(places))
