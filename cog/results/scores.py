"""One number, whatever it is: the accuracy of a classifier, a result of an analysis, a published mean.

>>> runs = [Score("my_net", "in1k", "logreg", 0, "top1", value, seed) for seed, value in ((22, 70.0), (37, 71.0))]
>>> (mean,) = average(runs)
>>> mean.value, mean.std, mean.seeds
(70.5, 0.5, (22, 37))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cog.results import measures, published
from cog.results.analysis_records import AnalysisRecord
from cog.results.cells import RUNS, Run, SeedAverage, dataset_key, mean_std, natural_key
from cog.results.measures import LOGREG


@dataclass(frozen=True)
class Score:
    """One number of one model on one data set.

    Attributes:
        model: ``<title>_<architecture>``.
        dataset: ``in1k``, ``cog_l1``, ...
        evaluation: the classifier (``logreg``, ``mlp``, any ``EVAL.NAME``) or the analysis (``kmeans``).
        n_shots: training images per class, 0 = all.
        metric: ``top1``, ``ami``, ...; accuracies are in percent.
        value: the number.
        seed: of the run; None where nothing is random, or where only a mean over seeds is known.
        std: population standard deviation over seeds of such a mean; None where it is not known.
        source: ``runs`` (found on disk), ``paper v2``, ``paper v1``, or the label of an imported file.
    """

    model: str
    dataset: str
    evaluation: str
    n_shots: int
    metric: str
    value: float
    seed: int | None = None
    std: float | None = None
    source: str = RUNS


#: What one number over all seeds is of: the fields of a score but for the number itself.
PLACE = ("model", "dataset", "evaluation", "n_shots", "metric", "source")


def of_runs(runs: Iterable[Run]) -> list[Score]:
    """Return both accuracies of every run, in percent."""
    return [
        Score(run.model, run.dataset, run.evaluation, run.n_shot, metric, getattr(run, metric), run.seed)
        for run in runs
        for metric in ("top1", "top5")
    ]


def of_averages(averages: Iterable[SeedAverage]) -> list[Score]:
    """Return a score for each seed of averages of which these are known, else one for the average itself."""
    scores = []
    for one in averages:
        place: dict[str, Any] = {
            "model": one.model, "dataset": one.dataset, "evaluation": one.evaluation, "n_shots": one.n_shot,
            "metric": one.metric, "source": one.source,
        }  # fmt: skip
        # The value of an analysis need not be the mean: of k-means it is that of the best seed.
        if one.by_seed and measures.is_classifier(one.evaluation):
            pairs = zip(one.seeds, one.by_seed, strict=True)
            scores += [Score(**place, value=value, seed=seed) for seed, value in pairs]
        else:
            scores.append(Score(**place, value=one.value, std=one.std))
    return scores


def of_records(records: Iterable[AnalysisRecord]) -> list[Score]:
    """Return the headline numbers of analyses."""
    return of_averages(measures.of_records(records))


def of_paper(version: str) -> list[Score]:
    """Return everything published in a version (``v2`` or ``v1``) of the paper."""
    return of_averages([*published.cells(version), *measures.of_paper(version)])


def average(scores: Iterable[Score]) -> list[SeedAverage]:
    """Average over seeds: the mean and, of several seeds, the population standard deviation (divided by n).

    A score without a seed is an average already and stays as it is.

    Raises:
        ValueError: when a seed is there twice for the same place.
    """
    groups: dict[tuple[Any, ...], list[Score]] = {}
    for score in scores:
        groups.setdefault(tuple(getattr(score, name) for name in PLACE), []).append(score)
    averages = []
    for (model, dataset, evaluation, n_shots, metric, source), group in groups.items():
        by_seed = {score.seed: score for score in group}
        if len(by_seed) < len(group):
            raise ValueError(
                f"two numbers of {model} on {dataset} ({evaluation}, {metric}) have the same seed"
            )
        seeds = tuple(sorted(seed for seed in by_seed if seed is not None))
        if seeds and None in by_seed:
            raise ValueError(
                f"{model} on {dataset} ({evaluation}, {metric}) has an average beside single seeds"
            )
        values = tuple(by_seed[seed].value for seed in seeds)
        mean, over_seeds = mean_std(values or [group[0].value])
        std = over_seeds if len(seeds) > 1 else group[0].std
        averages.append(
            SeedAverage(
                model, dataset, evaluation, metric, n_shots, mean, std, seeds, (), values, source
            )
        )  # fmt: skip
    return averages


def sort_key(score: Score) -> tuple[Any, ...]:
    """Order of scores: runs first, models by the paper's order where it has them, IN-1K before the levels."""
    known = published.MODELS.get(score.model)
    return (
        score.source != RUNS,
        natural_key(score.source),
        (1, natural_key(score.model)) if known is None else (0, known.order),
        dataset_key(score.dataset),
        score.evaluation != LOGREG,
        natural_key(score.evaluation),
        score.n_shots,
        natural_key(score.metric),
        -1 if score.seed is None else score.seed,
    )


def select(scores: Sequence[Score], **wanted: Any) -> list[Score]:
    """Return the scores whose fields have the values given: one value, or a list of several.

    >>> scores = [Score("my_net", name, "logreg", 0, "top1", 70.0) for name in ("in1k", "cog_l1", "cog_l5")]
    >>> [score.dataset for score in select(scores, dataset=["in1k", "cog_l5"], n_shots=0)]
    ['in1k', 'cog_l5']
    """
    unknown = sorted(wanted.keys() - set(Score.__dataclass_fields__))
    if unknown:
        raise ValueError(
            f"a score has no {unknown[0]}, expected some of {', '.join(Score.__dataclass_fields__)}"
        )
    values = {
        name: set(value) if isinstance(value, list | tuple | set | frozenset | range) else {value}
        for name, value in wanted.items()
    }
    return [one for one in scores if all(getattr(one, name) in known for name, known in values.items())]
