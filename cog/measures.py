"""Numbers of all experiments in one form: accuracies of variants of the classifier, and results of analyses.

A :class:`Measure` is one number of one experiment of one model on one data set, wherever it comes from: run folders of
any evaluation (:mod:`cog.results`), analyses (:mod:`cog.analysis.records`), the first version of the paper
(:mod:`cog.published`), or other people's files (:mod:`cog.exchange`). What is known of an experiment beyond its number
(name, unit, which direction is better) is in :mod:`cog.experiments`.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cog import names, published
from cog.analysis.records import AnalysisRecord
from cog.cells import RUNS, Cell, Run, Score, dataset_key, default_seeds, natural_key, summarise
from cog.values import number

#: ``Measure.experiment`` of the protocol's classifier on all features.
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


@dataclass(frozen=True)
class Measure:
    """One number.

    Attributes:
        model: name.
        dataset: data set.
        experiment: name of the evaluation (``logreg_pca256``, ``mlp``) or of the analysis (``kmeans``).
        quantity: which of its numbers (``top1``, ``ami``).
        n_shot: training images per class of a classifier, 0 = all.
        value: the number.
        std: population standard deviation over seeds; None where nothing is random, or it is not known.
        seeds: ascending; empty where nothing is random, or they are not known.
        missing_seeds: expected but absent.
        by_seed: values in the order of ``seeds``; empty where only ``value`` is known.
        source: as that of a :class:`cog.cells.Cell`.
    """

    model: str
    dataset: str
    experiment: str
    quantity: str
    n_shot: int
    value: float
    std: float | None = None
    seeds: tuple[int, ...] = ()
    missing_seeds: tuple[int, ...] = ()
    by_seed: tuple[float, ...] = ()
    source: str = RUNS

    @property
    def key(self) -> tuple[str, str, int]:
        """Which number it is, whatever the model and the data set."""
        return self.experiment, self.quantity, self.n_shot

    def score(self, metric: str = "") -> Score:
        """Return value and deviation as what figures draw; ``metric`` is ignored."""
        return Score(self.value, self.std)


def of_cells(cells: Iterable[Cell], evaluation: str = LOGREG) -> list[Measure]:
    """Return the accuracies of classifiers, in percent.

    Args:
        cells: of one evaluation.
        evaluation: its name.
    """
    found = []
    for cell in cells:
        for metric in ("top1", "top5"):
            score = cell.score(metric)
            if score is None:
                continue
            found.append(
                Measure(
                    model=cell.model,
                    dataset=cell.dataset,
                    experiment=evaluation,
                    quantity=metric,
                    n_shot=cell.n_shot,
                    value=score.mean,
                    std=None if len(cell.seeds) == 1 else score.std,  # one seed tells no deviation
                    seeds=cell.seeds,
                    missing_seeds=cell.missing_seeds,
                    by_seed=tuple(cell.by_seed(metric).values()),
                    source=cell.source,
                )
            )
    return found


def of_runs(runs: Mapping[str, Sequence[Run]], *, expected_seeds: Iterable[int] = ()) -> list[Measure]:
    """Return the accuracies of runs by the name of their evaluation.

    Evaluations under a name of the user's own (``EVAL.NAME``) are left out: what they are is not known.

    Args:
        runs: of :func:`cog.results.find_all`.
        expected_seeds: seeds that each number should have; default: as in tables, for each evaluation by itself.
    """
    found = []
    for evaluation, group in runs.items():
        if not is_classifier(evaluation):
            continue
        found += of_cells(summarise(group, tuple(expected_seeds) or _expected(evaluation, group)), evaluation)
    return found


def _expected(evaluation: str, runs: Sequence[Run]) -> tuple[int, ...]:
    # A backbone is fine-tuned once or so, not once for each seed of the protocol.
    if evaluation.startswith(_FINETUNE):
        return tuple(sorted({run.seed for run in runs}))
    return default_seeds(runs)


def of_records(records: Iterable[AnalysisRecord]) -> list[Measure]:
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
                Measure(
                    model=record.model,
                    dataset=record.dataset,
                    experiment=record.analysis,
                    quantity=quantity,
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


def of_paper(version: str) -> list[Measure]:
    """Return the published numbers of other experiments than logistic regression, which :func:`of_cells` has.

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
            Measure(
                one.model, one.dataset, experiment, quantity, 0, one.value, source=published.SOURCES[version]
            )
        )
    return found


def derive(measures: Iterable[Measure]) -> list[Measure]:
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

    def add(measure: Measure, base: Measure, quantity: str, value: float | None, std: float | None) -> None:
        key = (measure.experiment, quantity, measure.n_shot)
        place = (measure.model, measure.source, measure.dataset, key)
        if value is not None and math.isfinite(value) and place not in known:
            seeds, missing = measure.seeds, measure.missing_seeds
            if not set(base.missing_seeds) <= set(missing):
                missing = tuple(sorted({*missing, *base.missing_seeds}))
                seeds = tuple(sorted({*seeds, *base.seeds} - set(missing)))
            made = Measure(
                measure.model, measure.dataset, *key, value, std, seeds, missing, source=measure.source
            )
            known[place] = made
            found.append(made)

    for m in measures:
        where = (m.model, m.source)
        if m.quantity == "top1" and is_variant(m.experiment):
            base = known.get((*where, m.dataset, (LOGREG, "top1", m.n_shot)))
            if base is not None and m.experiment.startswith(_FINETUNE):
                add(m, base, LOGREG_RELATIVE, *_relative(base, m))
                add(m, base, LOGREG_POINTS, *_points(base, m))
            elif base is not None:
                add(m, base, RELATIVE_TO_LOGREG, *_relative(m, base))
                add(m, base, POINTS_TO_LOGREG, *_points(m, base))
        if m.dataset == names.IN1K_BLURRED and m.quantity == "top1" and is_classifier(m.experiment):
            base = known.get((*where, names.IN1K, m.key))
            if base is not None:
                add(m, base, POINTS_TO_IN1K, *_points(m, base))
        if m.experiment == "alignment" and m.quantity in _RATIOS:
            base = known.get((*where, names.IN1K, m.key))
            if base is not None and base.value:
                add(m, base, f"{m.quantity}_{RATIO_TO_IN1K}", m.value / base.value, None)
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


def _relative(one: Measure, base: Measure) -> tuple[float | None, float | None]:
    if base.value <= 0:
        return None, None
    std = None
    if one.std is not None and base.std is not None:
        std = 100 * math.hypot(one.std / base.value, one.value * base.std / base.value**2)
    return 100 * (one.value - base.value) / base.value, std


def _points(one: Measure, base: Measure) -> tuple[float, float | None]:
    std = math.hypot(one.std, base.std) if one.std is not None and base.std is not None else None
    return one.value - base.value, std


def sort_key(measure: Measure) -> tuple:
    """Order of flat lists: model, data set, experiment, quantity, shots."""
    return (
        natural_key(measure.model),
        dataset_key(measure.dataset),
        natural_key(measure.experiment),
        natural_key(measure.quantity),
        measure.n_shot,
    )
