"""Numbers relative to others: differences in points, ratios in percent, and derived numbers of tables.

>>> mlp = SeedAverage("my_net", "in1k", "mlp", "top1", 0, 77.0, 0.3)
>>> logreg = SeedAverage("my_net", "in1k", "logreg", "top1", 0, 70.0, 0.4)
>>> points(mlp, logreg)
(7.0, 0.5)
>>> value, std = relative(mlp, logreg)
>>> round(value, 3), round(std, 3)
(10.0, 0.761)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from cog import constants
from cog.results import uncertainty
from cog.results.scores import LOGREG, SeedAverage, interval_of, is_classifier
from cog.results.uncertainty import Estimate

#: Metrics that :func:`derive` computes from two averages.
RELATIVE_TO_LOGREG = "relative_to_logreg"
LOGREG_RELATIVE = "logreg_relative"
RATIO_TO_IN1K = "ratio_to_in1k"
POINTS_TO_IN1K = "points_to_in1k"

# Metrics of alignment that are also shown relative to IN-1K.
_RATIOS = ("alignment", "uniformity", "alignment_by_uniformity")


def points(average: SeedAverage, base: SeedAverage) -> tuple[float, float | None]:
    """Return ``average - base`` and its deviation ``sqrt(s1 ** 2 + s2 ** 2)``, both in the unit of the metric.

    The deviation is that of the difference of two single runs; None if either deviation is not known.
    """
    known = average.std is not None and base.std is not None
    return average.value - base.value, math.hypot(average.std or 0, base.std or 0) if known else None


def relative(average: SeedAverage, base: SeedAverage) -> tuple[float | None, float | None]:
    """Return ``100 * (average - base) / base`` and its deviation, both in percent; None when ``base`` is not positive.

    The deviation is that of the ratio of two independent numbers, to first order; None if either is not known.
    """
    if base.value <= 0:
        return None, None
    std = None
    if average.std is not None and base.std is not None:
        std = 100 * math.hypot(average.std / base.value, average.value * base.std / base.value**2)
    return 100 * (average.value - base.value) / base.value, std


def change_from(average: SeedAverage, base: SeedAverage) -> Estimate | None:
    """Return the change from ``base`` to ``average`` in percent of ``base``, with its interval.

    None if right answers per concept are not known, or if ``base`` may be 0.
    """
    estimate, base_estimate = (uncertainty.accuracy(a.concepts) for a in (average, base))
    return None if estimate is None or base_estimate is None else uncertainty.change(estimate, base_estimate)


def derive(averages: Iterable[SeedAverage]) -> list[SeedAverage]:
    """Return the averages, and the numbers derived from pairs of averages that are not among them.

    A seed that is missing in either average of a pair is missing in the derived number.

    * ``relative_to_logreg``: a variant :func:`relative` to logistic regression on the same data and with as many shots
      (first version, Table 3).
    * ``logreg_relative`` of fine-tuning: the reverse comparison, frozen features relative to the fine-tuned model
      (final version, Fig. 6).
    * ``points_to_in1k`` of ``in1k_blurred``: its accuracy minus that on IN-1K (final version, C.4).
    * ``<metric>_ratio_to_in1k`` of alignment, uniformity and their ratio: the metric divided by that of the same model
      on IN-1K (first version, Fig. 6).

    For two accuracies on the same images, with right answers per concept of the same seeds, ``<metric>_low`` and
    ``<metric>_high`` are the ends of the 95 % interval over concepts and seeds.
    """
    given = list(averages)
    by_place = {a.place: a for a in given}
    derived: dict[tuple, SeedAverage] = {}

    def base_of(a: SeedAverage, dataset: str, evaluation: str) -> SeedAverage | None:
        return by_place.get((a.model, dataset, (evaluation, a.metric, a.n_shot), a.source))

    def add(
        a: SeedAverage,
        base: SeedAverage,
        metric: str,
        value_and_std: tuple[float | None, float | None],
        interval: Estimate | None = None,
    ) -> None:
        value, std = value_and_std
        place = a.model, a.dataset, (a.evaluation, metric, a.n_shot), a.source
        if value is None or not math.isfinite(value) or place in by_place:
            return
        seeds, missing = a.seeds, a.missing_seeds
        if not set(base.missing_seeds) <= set(missing):
            missing = tuple(sorted({*missing, *base.missing_seeds}))
            seeds = tuple(sorted({*seeds, *base.seeds} - set(missing)))
        numbers: list[tuple[str, float, float | None]] = [(metric, value, std)]
        if interval is not None and a.seeds == base.seeds:
            low, high = interval_of(metric)
            numbers += [(low, interval.low, None), (high, interval.high, None)]
        for name, number, deviation in numbers:
            made = SeedAverage(
                *(a.model, a.dataset, a.evaluation, name, a.n_shot, number, deviation, seeds, missing),
                source=a.source,
            )
            derived.setdefault(made.place, made)

    for a in given:
        is_top1 = a.metric == "top1" and is_classifier(a.evaluation)
        if is_top1 and a.evaluation != LOGREG and (base := base_of(a, a.dataset, LOGREG)) is not None:
            tuned = a.evaluation.startswith("finetune")
            pair = (base, a) if tuned else (a, base)
            interval = uncertainty.relative_difference(*(average.concepts for average in pair))
            add(a, base, LOGREG_RELATIVE if tuned else RELATIVE_TO_LOGREG, relative(*pair), interval)
        base = base_of(a, constants.IN1K, a.evaluation)
        if base is not None and is_top1 and a.dataset == constants.IN1K_BLURRED:
            add(a, base, POINTS_TO_IN1K, points(a, base), uncertainty.difference(a.concepts, base.concepts))
        if base is not None and base.value and a.evaluation == "alignment" and a.metric in _RATIOS:
            add(a, base, f"{a.metric}_{RATIO_TO_IN1K}", (a.value / base.value, None))
    return [*given, *derived.values()]
