"""Statements of the paper, each tested against numbers: the published ones, or those of a user.

A statement is one declaration (:class:`Claim`). Its cases are the places where it could fail (a model on a data set, a
pair of models); it holds when it holds in all cases. Published means have no counts per concept and are compared as
printed. With counts, a case is decided when its interval over concepts and seeds (:mod:`cog.results.uncertainty`)
excludes the bound that decides it (mostly 0) even after Holm's correction for all cases of all statements. A statement
is decided when its undecided cases could not change the verdict. Deviations, and the mean change by blurred faces, are
compared without an interval. The wording is this toolkit's. Sections are those of the final version (ICCV 2021); "v1"
stands for the first version (January 2021), whose levels differ.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cog import constants
from cog.results import comparison, official, published, uncertainty
from cog.results.comparison import Term
from cog.results.labels import dataset_label
from cog.results.scores import LOGREG, SeedAverage

HOLDS, EXCEPTIONS, FAILS, OPEN = "holds", "holds with exceptions", "does not hold", "cannot be told"

#: Numbers of images per class of the few-shot experiments.
SHOTS = (1, 2, 4, 8, 16, 32, 64, 128)

#: The model with which statements compare other models.
BASE = published.REFERENCE

IN1K, *LEVELS = constants.DATASETS
FARTHEST = LEVELS[-1]

_TRANSFORMERS = ("t2tvit_t14", "deit_small", "deit_small_distilled", "deit_base_distilled_384")
_SEARCHED = ("nat_m4", "efficientnet_b1", "efficientnet_b4")
_DISTILLED = (("deit_small_distilled", "deit_small"), ("mealv2_resnet50", BASE))
_SELF_SUPERVISED, _WITH_WEB_DATA = (
    [model.name for model in published.MODELS.values() if model.category == category]
    for category in ("self-supervision", "web-data")
)
_LABEL_MIXING = ("relabel_resnet50", "cutmix_resnet50", "mixup_resnet50", "manifold-mixup_resnet50")
_TOP = "deit_base_distilled_384"

# Half a unit of the last printed digit: numbers that are printed alike count as equal.
_ROUNDING = 0.05

# Decimal fractions are not exact in binary.
_BINARY = 1e-9

_Pair = tuple[SeedAverage, SeedAverage]


class Numbers:
    """Averages of one source by model, data set, number of shots and evaluation; two models only if comparable."""

    def __init__(self, averages: Iterable[SeedAverage]) -> None:
        averages = list(averages)
        self._comparable = official.compare(averages)
        self._top1 = {(a.model, a.dataset, a.n_shot, a.evaluation): a for a in averages if a.metric == "top1"}
        self.models = list(dict.fromkeys(a.model for a in averages))

    def average(
        self, model: str, dataset: str, n_shot: int = 0, evaluation: str = LOGREG
    ) -> SeedAverage | None:
        """Return the average top-1 accuracy of a model on a data set, or None."""
        return self._top1.get((model, dataset, n_shot, evaluation))

    def both(self, model: str, first: str, second: str) -> _Pair | None:
        """Return the averages of a model on two data sets with all images; None when one is not known."""
        pair = self.average(model, first), self.average(model, second)
        return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])

    def pair(self, model: str, other: str, dataset: str, n_shot: int = 0) -> _Pair | None:
        """Return the averages of two models; None when one is not known, or they cannot be compared."""
        first, second = (self.average(name, dataset, n_shot) for name in (model, other))
        if first is None or second is None or not self._comparable.allows(first, second):
            return None
        return first, second


@dataclass(frozen=True)
class Case:
    """One test of a statement, such as one model on one data set."""

    label: str  # model, data set and number of images
    value: float  # the number that decides
    holds: bool  # by the means
    #: Two-sided p-value of the hypothesis that the value is at the bound; None without counts per concept.
    p: float | None = None


@dataclass(frozen=True)
class Claim:
    """A statement of the paper."""

    name: str  # key in flat records
    section: str  # of the paper
    text: str
    cases: Callable[[Numbers], Iterator[Case]]
    unit: str = "points"  # of the values of the cases
    version: str = "v2"  # of the paper whose published numbers decide


@dataclass(frozen=True)
class Finding:
    """The verdict on a statement."""

    claim: Claim
    #: One of HOLDS, EXCEPTIONS (at most half of the cases), FAILS (more), OPEN (no cases, or undecided ones that could
    #: change the verdict).
    verdict: str
    n_holds: int = 0  # decided cases in which the statement holds
    n_cases: int = 0
    n_not_told: int | None = None  # undecided cases; None when the means decide all
    span: tuple[float, float] | None = None  # lowest and highest value; None without cases
    #: Labels and values of decided cases in which the statement does not hold, the lowest value first.
    exceptions: tuple[str, ...] = ()

    @property
    def evidence(self) -> str:
        """Summary of the numbers in a few words."""
        if self.span is None:
            return "no such numbers"
        ends = " to ".join(f"{end:+.1f}" for end in dict.fromkeys(self.span))
        undecided = f", {self.n_not_told} not told" if self.n_not_told else ""
        return f"{self.n_holds} of {self.n_cases}{undecided}; {ends} {self.claim.unit}"


def _judge(claim: Claim, cases: Sequence[Case]) -> Finding:
    """Decide a statement by its cases, which have corrected p-values."""
    if not cases:
        return Finding(claim, OPEN)
    values = [case.value for case in cases]
    decided = [case for case in cases if case.p is None or case.p < comparison.ERROR_RATE]
    against = sorted((case for case in decided if not case.holds), key=lambda case: case.value)
    n_open = len(cases) - len(decided)
    # The verdicts if the statement holds in all undecided cases, and in none of them.
    verdicts = {_verdict(n, len(cases)) for n in (len(against), len(against) + n_open)}
    return Finding(
        claim,
        verdicts.pop() if len(verdicts) == 1 else OPEN,
        len(decided) - len(against),
        len(cases),
        n_open if any(case.p is not None for case in cases) else None,
        (min(values), max(values)),
        tuple(f"{case.label} {case.value:+.1f}" for case in against),
    )


def _verdict(n_against: int, n_cases: int) -> str:
    return HOLDS if not n_against else EXCEPTIONS if 2 * n_against <= n_cases else FAILS


def judge_all(numbers: Numbers) -> list[Finding]:
    """Decide all statements by the numbers of one source."""
    cases = [list(claim.cases(numbers)) for claim in CLAIMS]
    adjusted = iter(uncertainty.holm([case.p for group in cases for case in group if case.p is not None]))
    corrected = [
        [case if case.p is None else dataclasses.replace(case, p=next(adjusted)) for case in group]
        for group in cases
    ]
    return list(map(_judge, CLAIMS, corrected))


def judge_published() -> list[Finding]:
    """Decide all statements by the published numbers, each by those of its version of the paper."""
    numbers = {version: Numbers(published.averages(version)) for version in published.SOURCES}
    return [_judge(claim, list(claim.cases(numbers[claim.version]))) for claim in CLAIMS]


# --- cases


def _case(label: str, terms: Sequence[Term], *, low: float = -math.inf, high: float = math.inf) -> Case:
    """Return a case that holds when a weighted sum of accuracies or differences is between two bounds."""
    value = sum(weight * (first.value - (second.value if second else 0.0)) for weight, first, second in terms)
    nearest = min((low, high), key=lambda bound: abs(value - bound))
    return Case(
        label, value, low + _BINARY < value < high - _BINARY, comparison.p_of_sum(value - nearest, terms)
    )


def _extreme(cases: Sequence[Case], place: str, *, of: Callable[..., Case]) -> Case:
    """Return the case of the model with the lowest (``of`` min) or highest value (``of`` max).

    "The lowest is high enough" is decided when it is decided for all models, so its p-value is their largest. "The
    lowest is not high enough" is decided by the lowest one alone; its p-value is multiplied by the number of models,
    since any of them could have been the lowest. For the highest value, the roles are exchanged.
    """
    chosen = of(cases, key=lambda case: case.value)
    p = chosen.p
    known = [case.p for case in cases if case.p is not None]
    if p is not None:
        p = max(known) if chosen.holds == (of is min) else min(1.0, len(known) * p)
    if len(known) < len(cases):
        p = None
    return dataclasses.replace(chosen, label=f"{place} ({chosen.label})", p=p)


def _above(
    pairs: Sequence[tuple[str, str]],
    datasets: Sequence[str],
    shots: Sequence[int] = (0,),
    **bounds: float,
) -> Callable[[Numbers], Iterator[Case]]:
    """Return cases: the first model of each pair is above the second, or the gap between them is within ``bounds``."""

    def cases(numbers: Numbers) -> Iterator[Case]:
        for (model, other), dataset, n_shot in itertools.product(pairs, datasets, shots):
            if pair := numbers.pair(model, other, dataset, n_shot):
                yield _case(_place(model, dataset, n_shot), [(1, *pair)], **(bounds or {"low": 0.0}))

    return cases


def _to_base(models: Iterable[str]) -> list[tuple[str, str]]:
    return [(model, BASE) for model in models]


def _gain(models: Iterable[str], **bounds: float) -> Callable[[Numbers], Iterator[Case]]:
    """Return cases: from IN-1K to the farthest level, models gain on the base, or the gain is within ``bounds``."""

    def cases(numbers: Numbers) -> Iterator[Case]:
        for model in models:
            near, far = (numbers.pair(model, BASE, dataset) for dataset in (IN1K, FARTHEST))
            if near and far:
                yield _case(model, [(1, *far), (-1, *near)], **(bounds or {"low": 0.0}))

    return cases


def _first(
    model: str, datasets: Sequence[str], shots: Sequence[int] = (0,)
) -> Callable[[Numbers], Iterator[Case]]:
    """Return cases: ``model`` is above every other model; the value is its lead over the best other one."""

    def cases(numbers: Numbers) -> Iterator[Case]:
        for dataset, n_shot in itertools.product(datasets, shots):
            pairs = {m: numbers.pair(model, m, dataset, n_shot) for m in numbers.models if m != model}
            if leads := [_case(m, [(1, *pair)], low=0.0) for m, pair in pairs.items() if pair]:
                yield _extreme(leads, _place("", dataset, n_shot), of=min)

    return cases


def _above_all_in_the_mean(numbers: Numbers) -> Iterator[Case]:
    for model in numbers.models:
        pairs = [numbers.pair(_TOP, model, dataset) for dataset in constants.DATASETS]
        terms = [(1 / len(pairs), *pair) for pair in pairs if pair]
        if model != _TOP and len(terms) == len(pairs):
            yield _case(model, terms, low=0.0)


def _falls(numbers: Numbers) -> Iterator[Case]:
    for model, (near, far) in itertools.product(numbers.models, itertools.pairwise(constants.DATASETS)):
        if both := numbers.both(model, near, far):
            step = f"{model}, {dataset_label(near)} to {dataset_label(far)}"
            yield _case(step, [(1, both[1], None), (-1, both[0], None)], high=0.0)


def _deviations(numbers: Numbers) -> Iterator[Case]:
    """Yield one case for each average over several seeds, or with a published deviation."""
    for model, dataset, n_shot in itertools.product(numbers.models, constants.DATASETS, (0, *SHOTS)):
        average = numbers.average(model, dataset, n_shot)
        if average is not None and average.std is not None and len(average.seeds) != 1:
            yield Case(_place(model, dataset, n_shot), average.std, average.std < 0.2 - 1e-9)


def _loses_25_to_35(numbers: Numbers) -> Iterator[Case]:
    bounds = 25 - _ROUNDING, 35 + _ROUNDING
    for model in numbers.models:
        both = numbers.both(model, IN1K, FARTHEST)
        if both and both[0].value > 0:
            near, far = both
            loss = 100 * (1 - far.value / near.value)
            # The accuracy on the level as a share of that on IN-1K, at the nearest bound.
            share = 1 - min(bounds, key=lambda bound: abs(loss - bound)) / 100
            p = comparison.p_of_sum(far.value - share * near.value, [(1, far, None), (-share, near, None)])
            yield Case(model, loss, bounds[0] <= loss <= bounds[1], p)


def _best_without_labels(numbers: Numbers) -> Iterator[Case]:
    for n_shot in (*SHOTS, 0):
        pairs = {m: numbers.pair(m, BASE, FARTHEST, n_shot) for m in _SELF_SUPERVISED}
        # Equal accuracy counts as no worse.
        if gaps := [_case(m, [(1, *pair)], low=-2 * _BINARY) for m, pair in pairs.items() if pair]:
            yield _extreme(gaps, _place("", FARTHEST, n_shot), of=max)


def _half_of_the_components(numbers: Numbers) -> Iterator[Case]:
    for dataset in constants.DATASETS:
        half = numbers.average(BASE, dataset, evaluation=f"{LOGREG}_pca1024")
        whole = numbers.average(BASE, dataset)
        if half is not None and whole is not None:
            yield _case(_place(BASE, dataset, 0), [(1, half, whole)], low=-_ROUNDING, high=_ROUNDING)


def _blurred(numbers: Numbers) -> Iterator[Case]:
    pairs = filter(None, (numbers.both(model, constants.IN1K_BLURRED, IN1K) for model in numbers.models))
    if changes := [blurred.value - whole.value for blurred, whole in pairs]:
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
        _above(_to_base(_SELF_SUPERVISED), [FARTHEST]),
    ),
    Claim(
        "self-supervised gain", "4.2.1", "self-supervised models gain on ResNet-50 from IN-1K to L5",
        _gain(_SELF_SUPERVISED),
    ),
    Claim(
        "transformers lose", "4.2.1", "visual transformers lose to ResNet-50 from IN-1K to L5",
        _gain(_TRANSFORMERS, high=0.0),
    ),
    Claim(
        "web data", "4.2.1", "models with web data are above ResNet-50 on every level",
        _above(_to_base(_WITH_WEB_DATA), LEVELS),
    ),
    Claim(
        "distillation", "4.2.1", "distilled models are above the same models without distillation, on every level",
        _above(_DISTILLED, LEVELS),
    ),
    Claim(
        "searched", "4.2.1", "searched architectures (NAT, EfficientNets) are above ResNet-50 on every level",
        _above(_to_base(_SEARCHED), LEVELS),
    ),
    Claim(
        "label mixing helps near", "4.2.1", "ReLabel, CutMix and MixUps are above ResNet-50 on IN-1K",
        _above(_to_base(_LABEL_MIXING), [IN1K]),
    ),
    Claim(
        "label mixing hurts far", "4.2.1", "ReLabel, CutMix and MixUps are below ResNet-50 on every level",
        _above(_to_base(_LABEL_MIXING), LEVELS, high=0.0),
    ),
    Claim(
        "top overall", "4.2.1", "DeiT-B-distilled is above every other model there, in the mean over the six data sets",
        _above_all_in_the_mean,
    ),
    Claim(
        "few-shot transformers", "4.2.2", "with few images, visual transformers are above ResNet-50 on L5",
        _above(_to_base(_TRANSFORMERS), [FARTHEST], SHOTS),
    ),
    Claim(
        "few-shot transformers by", "4.2.2", "... by 3 to 4 points",
        _above(_to_base(_TRANSFORMERS), [FARTHEST], SHOTS, low=3 - _ROUNDING, high=4 + _ROUNDING),
    ),
    Claim(
        "few-shot distillation", "4.2.2", "with few images, distilled models are above undistilled on every level",
        _above(_DISTILLED, LEVELS, SHOTS),
    ),
    Claim(
        "few-shot EfficientNet", "4.2.2", "EfficientNet-B4 is above ResNet-50 on every level, for any number of images",
        _above(_to_base(["efficientnet_b4"]), LEVELS, (*SHOTS, 0)),
    ),
    Claim(
        "few-shot NAT", "4.2.2", "with few images far from IN-1K (L3 to L5), NAT-M4 is above every other model there",
        _first("nat_m4", LEVELS[2:], SHOTS),
    ),
    Claim(
        "few-shot bigger", "4.2.2", "with few images, ResNet-152 is above ResNet-50 on every level",
        _above(_to_base(["sup_resnet152"]), LEVELS, SHOTS),
    ),
    Claim(
        "few-shot VGG-19", "4.2.2", "... and so is VGG-19", _above(_to_base(["sup_vgg19"]), LEVELS, SHOTS),
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
