"""Statements of the paper, each decided by numbers: published ones, or somebody's own.

A statement is one declaration (:class:`Claim`): its cases are the places where it could fail (a model on a data set, a
pair of models), and it holds when it does in all of them. Uncertainty takes no part: published means are of five seeds
and printed to 0.1 point. The words are ours; sections are those of the final version (ICCV 2021) unless "v1" says that
it is the first one (January 2021), whose levels differ.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cog import constants
from cog.results import official, published
from cog.results.labels import dataset_label
from cog.results.scores import LOGREG, SeedAverage

HOLDS, EXCEPTIONS, FAILS, OPEN = "holds", "holds with exceptions", "does not hold", "cannot be told"

#: Numbers of images per class of the few-shot experiments.
SHOTS = (1, 2, 4, 8, 16, 32, 64, 128)

#: The model that statements compare with.
BASE = published.REFERENCE

IN1K, *LEVELS = constants.DATASETS
FARTHEST = LEVELS[-1]

_TRANSFORMERS = ("t2tvit_t14", "deit_small", "deit_small_distilled", "deit_base_distilled_384")
_SEARCHED = ("nat_m4", "efficientnet_b1", "efficientnet_b4")
_DISTILLED = (("deit_small_distilled", "deit_small"), ("mealv2_resnet50", BASE))
_LABEL_MIXING = ("relabel_resnet50", "cutmix_resnet50", "mixup_resnet50", "manifold-mixup_resnet50")
_TOP = "deit_base_distilled_384"

# Half a unit of the last printed digit: what was rounded alike counts as equal.
_ROUNDING = 0.05


class Numbers:
    """Accuracies and other averages of one source, by place.

    Two models are compared where :meth:`cog.results.official.Comparable.allows` it.

    Args:
        averages: of one source.
    """

    def __init__(self, averages: Iterable[SeedAverage]) -> None:
        averages = list(averages)
        self._comparable = official.compare(averages)
        self._at = {(a.model, a.dataset, a.evaluation, a.metric, a.n_shot): a for a in averages}
        self.models = list(dict.fromkeys(place[0] for place in self._at))

    def average(
        self, model: str, dataset: str, n_shot: int = 0, evaluation: str = LOGREG
    ) -> SeedAverage | None:
        """Return the top-1 average of a place, or None."""
        return self._at.get((model, dataset, evaluation, "top1", n_shot))

    def gap(self, model: str, other: str, dataset: str, n_shot: int = 0) -> float | None:
        """Return by how many points a model is above another one; None where one is not known."""
        one, two = (self.average(name, dataset, n_shot) for name in (model, other))
        if one is None or two is None or not self._comparable.allows(one, two):
            return None
        return one.value - two.value

    def category(self, name: str) -> list[str]:
        """Return the models of a category of the paper, in its order."""
        known = set(self.models)
        return [m.name for m in published.MODELS.values() if m.category == name and m.name in known]


@dataclass(frozen=True)
class Case:
    """A place where a statement holds or does not.

    Attributes:
        label: which model, data set, number of images.
        value: the number that decides.
        holds: whether the statement holds there.
    """

    label: str
    value: float
    holds: bool


@dataclass(frozen=True)
class Claim:
    """A statement.

    Attributes:
        name: key, in flat records.
        section: where the paper makes it.
        text: the statement.
        cases: returns its cases in the numbers of a source.
        unit: of the values of cases.
        version: of the paper whose published numbers decide.
    """

    name: str
    section: str
    text: str
    cases: Callable[[Numbers], Iterator[Case]]
    unit: str = "points"
    version: str = "v2"


@dataclass(frozen=True)
class Finding:
    """What numbers say of a statement.

    Attributes:
        claim: the statement.
        verdict: one of ``HOLDS``, ``EXCEPTIONS`` (at most half of the cases), ``FAILS`` (more), ``OPEN`` (no case).
        n_holds: cases in which it holds.
        n_cases: all cases.
        span: lowest and highest value; None without cases.
        exceptions: labels and values of the other cases, the clearest first.
    """

    claim: Claim
    verdict: str
    n_holds: int = 0
    n_cases: int = 0
    span: tuple[float, float] | None = None
    exceptions: tuple[str, ...] = ()

    @property
    def evidence(self) -> str:
        """The numbers in a few words."""
        if self.span is None:
            return "no such numbers"
        ends = " to ".join(f"{end:+.1f}" for end in dict.fromkeys(self.span))
        return f"{self.n_holds} of {self.n_cases}; {ends} {self.claim.unit}"


def judge(claim: Claim, numbers: Numbers) -> Finding:
    """Decide a statement."""
    cases = list(claim.cases(numbers))
    if not cases:
        return Finding(claim, OPEN)
    values = [case.value for case in cases]
    against = sorted((case for case in cases if not case.holds), key=lambda case: case.value)
    verdict = HOLDS if not against else EXCEPTIONS if 2 * len(against) <= len(cases) else FAILS
    exceptions = tuple(f"{case.label} {case.value:+.1f}" for case in against)
    return Finding(
        claim, verdict, len(cases) - len(against), len(cases), (min(values), max(values)), exceptions
    )


def judge_all(numbers: Numbers) -> list[Finding]:
    """Decide all statements by the numbers of one source."""
    return [judge(claim, numbers) for claim in CLAIMS]


def judge_published() -> list[Finding]:
    """Decide all statements by the published numbers of the version that makes them."""
    numbers = {version: Numbers(published.averages(version)) for version in published.SOURCES}
    return [judge(claim, numbers[claim.version]) for claim in CLAIMS]


# --- cases


def _above(
    pairs: Callable[[Numbers], Iterable[tuple[str, str]]],
    datasets: Sequence[str],
    shots: Sequence[int] = (0,),
    *,
    sign: int = 1,
    by: float = 0.0,
) -> Callable[[Numbers], Iterator[Case]]:
    """Return cases: the first model of each pair is above the second by more than ``by`` (``sign`` -1: below)."""

    def cases(numbers: Numbers) -> Iterator[Case]:
        for (model, other), dataset, n_shot in itertools.product(pairs(numbers), datasets, shots):
            if (gap := numbers.gap(model, other, dataset, n_shot)) is not None:
                yield Case(_place(model, dataset, n_shot), gap, sign * gap > by + 1e-9)

    return cases


def _to_base(*models: str) -> Callable[[Numbers], Iterable[tuple[str, str]]]:
    return lambda numbers: [(model, BASE) for model in models]


def _category_to_base(name: str) -> Callable[[Numbers], Iterable[tuple[str, str]]]:
    return lambda numbers: [(model, BASE) for model in numbers.category(name)]


def _gain(models: Callable[[Numbers], Iterable[str]], sign: int) -> Callable[[Numbers], Iterator[Case]]:
    """Return cases: from IN-1K to the farthest level, models gain (``sign`` -1: lose) against the base."""

    def cases(numbers: Numbers) -> Iterator[Case]:
        for model in models(numbers):
            near, far = (numbers.gap(model, BASE, dataset) for dataset in (IN1K, FARTHEST))
            if near is not None and far is not None:
                yield Case(model, far - near, sign * (far - near) > 1e-9)

    return cases


def _first(
    model: str, datasets: Sequence[str], shots: Sequence[int] = (0,)
) -> Callable[[Numbers], Iterator[Case]]:
    """Return cases: ``model`` is above every other one; the value is its lead over the best of them."""

    def cases(numbers: Numbers) -> Iterator[Case]:
        for dataset, n_shot in itertools.product(datasets, shots):
            others = (other for other in numbers.models if other != model)
            leads = {m: g for m in others if (g := numbers.gap(model, m, dataset, n_shot)) is not None}
            if leads:
                rival = min(leads, key=leads.__getitem__)
                yield Case(f"{_place('', dataset, n_shot)} ({rival})", leads[rival], leads[rival] > 1e-9)

    return cases


def _above_all_in_the_mean(numbers: Numbers) -> Iterator[Case]:
    for model in numbers.models:
        gaps = [numbers.gap(_TOP, model, dataset) for dataset in constants.DATASETS]
        known = [gap for gap in gaps if gap is not None]
        if model != _TOP and len(known) == len(gaps):
            lead = statistics.fmean(known)
            yield Case(model, lead, lead > 1e-9)


def _falls(numbers: Numbers) -> Iterator[Case]:
    for model in numbers.models:
        for near, far in itertools.pairwise(constants.DATASETS):
            one, two = numbers.average(model, near), numbers.average(model, far)
            if one is not None and two is not None:
                step = f"{model}, {dataset_label(near)} to {dataset_label(far)}"
                yield Case(step, two.value - one.value, two.value < one.value)


def _transformers_by_3_to_4(numbers: Numbers) -> Iterator[Case]:
    for model, n_shot in itertools.product(_TRANSFORMERS, SHOTS):
        if (gap := numbers.gap(model, BASE, FARTHEST, n_shot)) is not None:
            yield Case(_place(model, FARTHEST, n_shot), gap, 3 - _ROUNDING <= gap <= 4 + _ROUNDING)


def _deviations(numbers: Numbers) -> Iterator[Case]:
    """Yield one case for each average over several seeds; deviations are published as printed."""
    for model, dataset, n_shot in itertools.product(numbers.models, constants.DATASETS, (0, *SHOTS)):
        average = numbers.average(model, dataset, n_shot)
        if average is not None and average.std is not None and len(average.seeds) != 1:
            yield Case(_place(model, dataset, n_shot), average.std, average.std < 0.2 - 1e-9)


def _loses_25_to_35(numbers: Numbers) -> Iterator[Case]:
    for model in numbers.models:
        near, far = (numbers.average(model, dataset) for dataset in (IN1K, FARTHEST))
        if near is not None and far is not None and near.value > 0:
            loss = 100 * (1 - far.value / near.value)
            yield Case(model, loss, 25 - _ROUNDING <= loss <= 35 + _ROUNDING)


def _best_without_labels(numbers: Numbers) -> Iterator[Case]:
    for n_shot in (*SHOTS, 0):
        gaps = {
            model: gap
            for model in numbers.category("self-supervision")
            if (gap := numbers.gap(model, BASE, FARTHEST, n_shot)) is not None
        }
        if gaps:
            best = max(gaps, key=gaps.__getitem__)
            yield Case(_place(best, FARTHEST, n_shot), gaps[best], gaps[best] > -1e-9)


def _half_of_the_components(numbers: Numbers) -> Iterator[Case]:
    for dataset in constants.DATASETS:
        half = numbers.average(BASE, dataset, evaluation=f"{LOGREG}_pca1024")
        whole = numbers.average(BASE, dataset)
        if half is not None and whole is not None:
            gap = half.value - whole.value
            yield Case(_place(BASE, dataset, 0), gap, abs(gap) < _ROUNDING)


def _blurred(numbers: Numbers) -> Iterator[Case]:
    changes = []
    for model in numbers.models:
        blurred, whole = (numbers.average(model, dataset) for dataset in (constants.IN1K_BLURRED, IN1K))
        if blurred is not None and whole is not None:
            changes.append(blurred.value - whole.value)
    if changes:
        change = statistics.fmean(changes)
        yield Case(f"mean of {len(changes)}", change, -1 < change < 0)


def _place(model: str, dataset: str, n_shot: int) -> str:
    words = (model, dataset_label(dataset), f"N={n_shot}" if n_shot else "")
    return " ".join(filter(None, words))


#: All statements.
CLAIMS: tuple[Claim, ...] = (
    Claim("distance", "4.2.1", "accuracy falls from IN-1K to L5, level by level, for every model", _falls),
    Claim(
        "self-supervised above", "4.2.1", "self-supervised models are above ResNet-50 on L5",
        _above(_category_to_base("self-supervision"), [FARTHEST]),
    ),
    Claim(
        "self-supervised gain", "4.2.1", "self-supervised models gain on ResNet-50 from IN-1K to L5",
        _gain(lambda numbers: numbers.category("self-supervision"), 1),
    ),
    Claim(
        "transformers lose", "4.2.1", "visual transformers lose to ResNet-50 from IN-1K to L5",
        _gain(lambda numbers: _TRANSFORMERS, -1),
    ),
    Claim(
        "web data", "4.2.1", "models with web data are above ResNet-50 on every level",
        _above(_category_to_base("web-data"), LEVELS),
    ),
    Claim(
        "distillation", "4.2.1", "distilled models are above what they were distilled without, on every level",
        _above(lambda numbers: _DISTILLED, LEVELS),
    ),
    Claim(
        "searched", "4.2.1", "searched architectures (NAT, EfficientNets) are above ResNet-50 on every level",
        _above(_to_base(*_SEARCHED), LEVELS),
    ),
    Claim(
        "label mixing helps near", "4.2.1", "ReLabel, CutMix and MixUps are above ResNet-50 on IN-1K",
        _above(_to_base(*_LABEL_MIXING), [IN1K]),
    ),
    Claim(
        "label mixing hurts far", "4.2.1", "ReLabel, CutMix and MixUps are below ResNet-50 on every level",
        _above(_to_base(*_LABEL_MIXING), LEVELS, sign=-1),
    ),
    Claim(
        "top overall", "4.2.1", "DeiT-B-distilled is above every other model there, in the mean over the six data sets",
        _above_all_in_the_mean,
    ),
    Claim(
        "few-shot transformers", "4.2.2", "with few images, visual transformers are above ResNet-50 on L5",
        _above(_to_base(*_TRANSFORMERS), [FARTHEST], SHOTS),
    ),
    Claim(
        "few-shot transformers by", "4.2.2", "... by 3 to 4 points", _transformers_by_3_to_4,
    ),
    Claim(
        "few-shot distillation", "4.2.2", "with few images, distilled models are above undistilled on every level",
        _above(lambda numbers: _DISTILLED, LEVELS, SHOTS),
    ),
    Claim(
        "few-shot EfficientNet", "4.2.2", "EfficientNet-B4 is above ResNet-50 on every level, for any number of images",
        _above(_to_base("efficientnet_b4"), LEVELS, (*SHOTS, 0)),
    ),
    Claim(
        "few-shot NAT", "4.2.2", "with few images far from IN-1K (L3 to L5), NAT-M4 is above every other model there",
        _first("nat_m4", LEVELS[2:], SHOTS),
    ),
    Claim(
        "few-shot bigger", "4.2.2", "with few images, ResNet-152 is above ResNet-50 on every level",
        _above(_to_base("sup_resnet152"), LEVELS, SHOTS),
    ),
    Claim(
        "few-shot VGG-19", "4.2.2", "... and so is VGG-19", _above(_to_base("sup_vgg19"), LEVELS, SHOTS),
    ),
    Claim("deviation", "B.3", "deviations over seeds are mostly below 0.2", _deviations),
    Claim(
        "faces", "Table 4", "blurring faces costs less than 1 point on IN-1K, in the mean over models", _blurred,
    ),
    Claim(
        "loss", "v1", "models lose 25 to 35 % of their IN-1K accuracy on L5", _loses_25_to_35, "%", "v1",
    ),
    Claim(
        "best without labels", "v1", "on L5 the best self-supervised model is no worse than ResNet-50, for any N",
        _best_without_labels, version="v1",
    ),
    Claim(
        "half of the components", "v1", "1024 principal components are as good as all, for ResNet-50",
        _half_of_the_components, version="v1",
    ),
)  # fmt: skip
