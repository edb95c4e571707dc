"""Statements of the paper, each decided by numbers: published ones, or somebody's own.

A statement is one declaration (:class:`Claim`): its cases are the places where it could fail (a model on a data set, a
pair of models), and it holds when it does in all of them. Published means, which have no counts per concept, decide as
they are printed. With counts, a case is told where its interval over concepts and seeds
(:mod:`cog.results.uncertainty`) excludes the bound that decides it (mostly 0) also after Holm's correction for all
cases of all statements, and a statement is where those that are not told could not change it. Deviations, and the mean
change by blurred faces, are compared as they are. The words are ours; sections are those of the final version (ICCV
2021) unless "v1" says that it is the first one (January 2021), whose levels differ.
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
_SELF_SUPERVISED, _WITH_WEB_DATA = (
    [model.name for model in published.MODELS.values() if model.category == category]
    for category in ("self-supervision", "web-data")
)
_LABEL_MIXING = ("relabel_resnet50", "cutmix_resnet50", "mixup_resnet50", "manifold-mixup_resnet50")
_TOP = "deit_base_distilled_384"

# Half a unit of the last printed digit: what was rounded alike counts as equal.
_ROUNDING = 0.05

# Decimal fractions are not exact in binary.
_BINARY = 1e-9

#: A weight, and the difference of the first average to the second, or the first alone.
Term = tuple[float, SeedAverage, SeedAverage | None]


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

    def pair(
        self, model: str, other: str, dataset: str, n_shot: int = 0
    ) -> tuple[SeedAverage, SeedAverage] | None:
        """Return the averages of two models; None where one is not known, or they cannot be compared."""
        one, two = (self.average(name, dataset, n_shot) for name in (model, other))
        if one is None or two is None or not self._comparable.allows(one, two):
            return None
        return one, two


@dataclass(frozen=True)
class Case:
    """A place where a statement holds or does not.

    Attributes:
        label: which model, data set, number of images.
        value: the number that decides.
        holds: whether the statement holds there, by the means.
        p: two-sided p-value of the value being at the bound that decides; None where there are means alone.
    """

    label: str
    value: float
    holds: bool
    p: float | None = None


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
        verdict: one of ``HOLDS``, ``EXCEPTIONS`` (at most half of the cases), ``FAILS`` (more), ``OPEN`` (no case, or
            those that are not told could change it).
        n_holds: cases in which it holds.
        n_cases: all cases.
        n_not_told: cases that are not told; None where means decide them all.
        span: lowest and highest value; None without cases.
        exceptions: labels and values of the other cases, the clearest first.
    """

    claim: Claim
    verdict: str
    n_holds: int = 0
    n_cases: int = 0
    n_not_told: int | None = None
    span: tuple[float, float] | None = None
    exceptions: tuple[str, ...] = ()

    @property
    def evidence(self) -> str:
        """The numbers in a few words."""
        if self.span is None:
            return "no such numbers"
        ends = " to ".join(f"{end:+.1f}" for end in dict.fromkeys(self.span))
        untold = f", {self.n_not_told} not told" if self.n_not_told else ""
        return f"{self.n_holds} of {self.n_cases}{untold}; {ends} {self.claim.unit}"


def _judge(claim: Claim, cases: Sequence[Case]) -> Finding:
    """Decide a statement by its cases, whose p-values are corrected."""
    if not cases:
        return Finding(claim, OPEN)
    values = [case.value for case in cases]
    told = [case for case in cases if case.p is None or case.p < comparison.ERROR_RATE]
    against = sorted((case for case in told if not case.holds), key=lambda case: case.value)
    n_untold = len(cases) - len(told)
    # If all others hold, and if none of them does.
    verdicts = {_verdict(n, len(cases)) for n in (len(against), len(against) + n_untold)}
    return Finding(
        claim,
        verdicts.pop() if len(verdicts) == 1 else OPEN,
        len(told) - len(against),
        len(cases),
        n_untold if any(case.p is not None for case in cases) else None,
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
    """Decide all statements by the published numbers of the version that makes them."""
    numbers = {version: Numbers(published.averages(version)) for version in published.SOURCES}
    return [_judge(claim, list(claim.cases(numbers[claim.version]))) for claim in CLAIMS]


# --- cases


def _case(label: str, terms: Sequence[Term], *, low: float = -math.inf, high: float = math.inf) -> Case:
    """Return a case that holds where a weighted sum of accuracies or differences is between two bounds."""
    value = sum(weight * (one.value - (two.value if two else 0.0)) for weight, one, two in terms)
    nearest = min((low, high), key=lambda bound: abs(value - bound))
    return Case(label, value, low + _BINARY < value < high - _BINARY, _p(value - nearest, terms))


def _p(distance: float, terms: Sequence[Term]) -> float | None:
    """Return the p-value of a sum being this far from a bound; None without counts, 1 where these do not tell."""
    paired = []
    for weight, one, two in terms:
        if not one.concepts or (two is not None and not two.concepts):
            return None
        runs, *baseline = comparison.with_common_seeds(*(a for a in (one, two) if a is not None))
        if len(runs) < 2:  # another seed may say otherwise
            return 1.0
        paired.append((weight, runs, baseline[0] if baseline else []))
    found = uncertainty.p_of_sum(distance, paired)
    return 1.0 if found is None else found


def _extreme(cases: Sequence[Case], place: str, *, of: Callable[..., Case]) -> Case:
    """Return the case of the lowest (``of`` min) or highest value (max) among several models.

    That the lowest is high enough is told when it is told of all; that it is not, when it is told of that one, for
    which there were as many chances.
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
    """Return cases: the first model of each pair is above the second (or as ``low`` and ``high`` of the gap say)."""

    def cases(numbers: Numbers) -> Iterator[Case]:
        for (model, other), dataset, n_shot in itertools.product(pairs, datasets, shots):
            if pair := numbers.pair(model, other, dataset, n_shot):
                yield _case(_place(model, dataset, n_shot), [(1, *pair)], **(bounds or {"low": 0.0}))

    return cases


def _to_base(models: Iterable[str]) -> list[tuple[str, str]]:
    return [(model, BASE) for model in models]


def _gain(models: Iterable[str], **bounds: float) -> Callable[[Numbers], Iterator[Case]]:
    """Return cases: from IN-1K to the farthest level, models gain against the base (or as the bounds say)."""

    def cases(numbers: Numbers) -> Iterator[Case]:
        for model in models:
            near, far = (numbers.pair(model, BASE, dataset) for dataset in (IN1K, FARTHEST))
            if near and far:
                yield _case(model, [(1, *far), (-1, *near)], **(bounds or {"low": 0.0}))

    return cases


def _first(
    model: str, datasets: Sequence[str], shots: Sequence[int] = (0,)
) -> Callable[[Numbers], Iterator[Case]]:
    """Return cases: ``model`` is above every other one; the value is its lead over the best of them."""

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
    for model in numbers.models:
        for near, far in itertools.pairwise(constants.DATASETS):
            one, two = numbers.average(model, near), numbers.average(model, far)
            if one is not None and two is not None:
                step = f"{model}, {dataset_label(near)} to {dataset_label(far)}"
                yield _case(step, [(1, two, None), (-1, one, None)], high=0.0)


def _deviations(numbers: Numbers) -> Iterator[Case]:
    """Yield one case for each average over several seeds; deviations are published as printed."""
    for model, dataset, n_shot in itertools.product(numbers.models, constants.DATASETS, (0, *SHOTS)):
        average = numbers.average(model, dataset, n_shot)
        if average is not None and average.std is not None and len(average.seeds) != 1:
            yield Case(_place(model, dataset, n_shot), average.std, average.std < 0.2 - 1e-9)


def _loses_25_to_35(numbers: Numbers) -> Iterator[Case]:
    bounds = 25 - _ROUNDING, 35 + _ROUNDING
    for model in numbers.models:
        near, far = (numbers.average(model, dataset) for dataset in (IN1K, FARTHEST))
        if near is not None and far is not None and near.value > 0:
            loss = 100 * (1 - far.value / near.value)
            # At a bound, the level has this share of IN-1K.
            share = 1 - min(bounds, key=lambda bound: abs(loss - bound)) / 100
            p = _p(far.value - share * near.value, [(1, far, None), (-share, near, None)])
            yield Case(model, loss, bounds[0] <= loss <= bounds[1], p)


def _best_without_labels(numbers: Numbers) -> Iterator[Case]:
    for n_shot in (*SHOTS, 0):
        pairs = {m: numbers.pair(m, BASE, FARTHEST, n_shot) for m in _SELF_SUPERVISED}
        # As good is no worse.
        if gaps := [_case(m, [(1, *pair)], low=-2 * _BINARY) for m, pair in pairs.items() if pair]:
            yield _extreme(gaps, _place("", FARTHEST, n_shot), of=max)


def _half_of_the_components(numbers: Numbers) -> Iterator[Case]:
    for dataset in constants.DATASETS:
        half = numbers.average(BASE, dataset, evaluation=f"{LOGREG}_pca1024")
        whole = numbers.average(BASE, dataset)
        if half is not None and whole is not None:
            yield _case(_place(BASE, dataset, 0), [(1, half, whole)], low=-_ROUNDING, high=_ROUNDING)


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
        "distillation", "4.2.1", "distilled models are above what they were distilled without, on every level",
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
