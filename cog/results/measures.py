"""Numbers of all experiments: accuracies of variants of the classifier, results of analyses, what follows from both.

They come from run folders of any evaluation (:mod:`cog.results.find`), analyses (:mod:`cog.results.analysis_records`),
the first version of the paper (:mod:`cog.results.published`), or other people's files (:mod:`cog.results.exchange`).
What is known of an experiment beyond its number (name, unit, which direction is better) is in
:mod:`cog.results.metric_info`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from cog import constants
from cog.results import published
from cog.results.analysis_records import AnalysisRecord
from cog.results.cells import Run, SeedAverage, dataset_key, default_seeds, natural_key, summarise
from cog.runtime.json_fields import number

#: ``SeedAverage.experiment`` of the protocol's classifier on all features.
LOGREG = "logreg"

#: Quantities that are derived from two measures, see :func:`derive`.
RELATIVE_TO_LOGREG = "relative_to_logreg"
POINTS_TO_LOGREG = "points_to_logreg"
LOGREG_RELATIVE = "logreg_relative"
LOGREG_POINTS = "logreg_points"
RATIO_TO_IN1K = "ratio_to_in1k"
POINTS_TO_IN1K = "points_to_in1k"

_FINETUNE = "finetune"

# Of alignment, what is shown relative to IN-1K as well.
_RATIOS = ("alignment", "uniformity", "alignment_by_uniformity")


def without_single_std(averages: Iterable[SeedAverage]) -> list[SeedAverage]:
    """Return averages without the deviation of those that have one seed, which tells none."""
    return [dataclasses.replace(one, std=None) if len(one.seeds) == 1 else one for one in averages]


def of_runs(runs: Mapping[str, Sequence[Run]], *, expected_seeds: Iterable[int] = ()) -> list[SeedAverage]:
    """Return the accuracies of runs by the name of their evaluation.

    Evaluations under a name of the user's own (``EVAL.NAME``) are left out: what they are is not known.

    Args:
        runs: of :func:`cog.results.find.find_all`.
        expected_seeds: seeds that each number should have; default: as in tables, for each evaluation by itself.
    """
    found = []
    for evaluation, group in runs.items():
        if not is_classifier(evaluation):
            continue
        found += summarise(group, tuple(expected_seeds) or _expected(evaluation, group))
    return without_single_std(found)


def _expected(evaluation: str, runs: Sequence[Run]) -> tuple[int, ...]:
    # A backbone is fine-tuned once or so, not once for each seed of the protocol.
    if evaluation.startswith(_FINETUNE):
        return tuple(sorted({run.seed for run in runs}))
    return default_seeds(runs)


def of_records(records: Iterable[AnalysisRecord]) -> list[SeedAverage]:
    """Return the headline numbers of analyses; those that are undefined are left out."""
    found = []
    for record in records:
        if record.model is None or record.dataset is None:
            continue
        for quantity, given in record.values.items():
            value = number(given)
            if value is None:
                continue
            repeated = {
                seed: repetition
                for seed in sorted(set(record.seeds))
                if (repetition := number(record.per_seed.get(str(seed), {}).get(quantity))) is not None
            }
            found.append(
                SeedAverage(
                    model=record.model,
                    dataset=record.dataset,
                    evaluation=record.analysis,
                    metric=quantity,
                    n_shot=0,
                    value=value,
                    std=statistics.pstdev(repeated.values()) if len(repeated) > 1 else None,
                    seeds=tuple(repeated),
                    by_seed=tuple(repeated.values()),
                )
            )
    return found


#: Quantities of Table 6 of the first version by the name under which k-means records the same definition.
_CLUSTERING = {"purity": "purity_v1", "ami": "ami", "nmi": "nmi", "ari": "ari"}


def of_paper(version: str) -> list[SeedAverage]:
    """Return the published numbers of other experiments than logistic regression (:func:`cog.results.published.cells`).

    Only the first version has some: Tables 3 (MLP, relative to logistic regression), 5 (PCA) and 6 (clustering). Its
    2048 components are all of them, and that column equals logistic regression on all features in every cell.
    """
    if version != "v1":
        return []
    found = []
    for one in published.v1_values():
        if one.quantity == LOGREG or one.quantity == "pca_2048":
            continue
        if one.table == 3:
            experiment, quantity = one.quantity, RELATIVE_TO_LOGREG
        elif one.table == 5:
            experiment, quantity = f"{LOGREG}_{one.quantity.replace('_', '')}", "top1"
        else:
            experiment, quantity = "kmeans", _CLUSTERING[one.quantity]
        found.append(
            SeedAverage(
                one.model, one.dataset, experiment, quantity, 0, one.value, source=published.SOURCES[version]
            )
        )
    return found


def derive(measures: Iterable[SeedAverage]) -> list[SeedAverage]:
    """Return the measures and what follows from pairs of them, unless it is there already.

    Deviations are those of independent numbers, to first order. Seeds that one of the two lacks are missing.

    * ``relative_to_logreg``: score of a variant relative to logistic regression on the same data and with as many
      shots, ``100 * (variant - logreg) / logreg`` (first version, Table 3), and ``points_to_logreg``, the difference in
      points.
    * ``logreg_relative`` and ``logreg_points`` of fine-tuning: the same the other way round, frozen features relative
      to the fine-tuned model (final version, Fig. 6).
    * ``points_to_in1k`` of ``in1k_blurred``: its accuracy minus that on IN-1K (final version, C.4).
    * ``ratio_to_in1k``, as ``<quantity>_ratio_to_in1k``, of alignment, uniformity and their ratio: relative to the
      model's own on IN-1K (first version, Fig. 6).
    """
    measures = list(measures)
    known = {(m.model, m.source, m.dataset, m.key): m for m in measures}
    found = list(measures)

    def add(
        measure: SeedAverage, base: SeedAverage, quantity: str, value: float | None, std: float | None
    ) -> None:
        key = (measure.evaluation, quantity, measure.n_shot)
        place = (measure.model, measure.source, measure.dataset, key)
        if value is not None and math.isfinite(value) and place not in known:
            seeds, missing = measure.seeds, measure.missing_seeds
            if not set(base.missing_seeds) <= set(missing):
                missing = tuple(sorted({*missing, *base.missing_seeds}))
                seeds = tuple(sorted({*seeds, *base.seeds} - set(missing)))
            made = SeedAverage(
                measure.model, measure.dataset, *key, value, std, seeds, missing, source=measure.source
            )
            known[place] = made
            found.append(made)

    for m in measures:
        where = (m.model, m.source)
        if m.metric == "top1" and is_variant(m.evaluation):
            base = known.get((*where, m.dataset, (LOGREG, "top1", m.n_shot)))
            if base is not None and m.evaluation.startswith(_FINETUNE):
                add(m, base, LOGREG_RELATIVE, *_relative(base, m))
                add(m, base, LOGREG_POINTS, *_points(base, m))
            elif base is not None:
                add(m, base, RELATIVE_TO_LOGREG, *_relative(m, base))
                add(m, base, POINTS_TO_LOGREG, *_points(m, base))
        if m.dataset == constants.IN1K_BLURRED and m.metric == "top1" and is_classifier(m.evaluation):
            base = known.get((*where, constants.IN1K, m.key))
            if base is not None:
                add(m, base, POINTS_TO_IN1K, *_points(m, base))
        if m.evaluation == "alignment" and m.metric in _RATIOS:
            base = known.get((*where, constants.IN1K, m.key))
            if base is not None and base.value:
                add(m, base, f"{m.metric}_{RATIO_TO_IN1K}", m.value / base.value, None)
    return found


#: Names of the evaluations whose meaning is known (:func:`cog.config.evaluation_name`).
CLASSIFIER = re.compile(
    rf"(?P<type>{LOGREG}|mlp_noact|mlp|{_FINETUNE})(?:_pca(?P<pca>\d{{1,9}}))?(?:_max(?P<max>\d{{1,9}}))?"
)


def is_classifier(experiment: str) -> bool:
    """Whether an experiment is an evaluation of a known kind, and not an analysis."""
    return CLASSIFIER.fullmatch(experiment) is not None


def is_variant(experiment: str) -> bool:
    """Whether it is a classifier other than logistic regression on all features and images."""
    return is_classifier(experiment) and experiment != LOGREG


def _relative(one: SeedAverage, base: SeedAverage) -> tuple[float | None, float | None]:
    if base.value <= 0:
        return None, None
    std = None
    if one.std is not None and base.std is not None:
        std = 100 * math.hypot(one.std / base.value, one.value * base.std / base.value**2)
    return 100 * (one.value - base.value) / base.value, std


def _points(one: SeedAverage, base: SeedAverage) -> tuple[float, float | None]:
    std = math.hypot(one.std, base.std) if one.std is not None and base.std is not None else None
    return one.value - base.value, std


def sort_key(measure: SeedAverage) -> tuple:
    """Order of flat lists: model, data set, experiment, quantity, shots."""
    return (
        natural_key(measure.model),
        dataset_key(measure.dataset),
        natural_key(measure.evaluation),
        natural_key(measure.metric),
        measure.n_shot,
    )
