"""Selection of results, and the reading of selected results from folders, files and the papers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cog import constants, paths
from cog.data import datasets as data_sets
from cog.errors import CogError, did_you_mean
from cog.results import (
    analysis_records,
    exchange,
    find,
    official,
    published,
    run_records,
    search_history,
)
from cog.results.analysis_records import AnalysisRecord
from cog.results.find import is_pattern, matches
from cog.results.labels import shots_label
from cog.results.model_facts import ModelFacts, read_model_facts
from cog.results.relative import derive
from cog.results.run_records import LOGS_FILE, Problem, Run
from cog.results.scores import (
    LOGREG,
    RUNS,
    Score,
    SeedAverage,
    dataset_key,
    is_classifier,
    is_protocol,
    natural_key,
    single,
)

# Maximal number of names that a message lists.
_LISTED = 9


@dataclass(frozen=True)
class ResultQuery:
    """A selection of results: their origins and filters."""

    logreg_root_dir: Path | None = None  # one evaluation folder, read as a whole
    models_root_dir: Path | None = None  # folder of all models
    imports: tuple[Path, ...] = ()  # files of --export
    paper: str | None = None  # version of the published numbers (key of cog.results.published.SOURCES)
    models: list[str] | None = None  # names and patterns of models; None: all (same for the other filters)
    datasets: list[str] | None = None  # names of data sets
    n_shots: list[int] | None = None  # numbers of training images per class, 0 = all
    seeds: list[int] | None = None  # seeds of runs found on disk, which are then also the expected seeds
    eval_name: str = "logreg"  # EVAL.NAME of runs found on disk
    baseline: str | None = None  # name of a model that is read regardless of the filters by model
    experiments: bool = False  # whether results of other evaluations and of analyses are selected as well

    @property
    def reads_runs(self) -> bool:
        """Whether runs are read from folders."""
        return self.logreg_root_dir is not None or self.models_root_dir is not None

    @property
    def exact_models(self) -> list[str] | None:
        """The names of the models; None if all models are selected, or some by a pattern."""
        return None if self.models is None or any(map(is_pattern, self.models)) else self.models

    def wants_dataset(self, model: str, dataset: str) -> bool:
        """Return whether numbers of a model on a data set are selected."""
        wants_model = self.models is None or any(matches(model, pattern) for pattern in self.models)
        return wants_model and (self.datasets is None or dataset in self.datasets)

    def wants(self, result: SeedAverage | Run) -> bool:
        """Return whether a number or run is selected; the filter by shots does not apply to analyses.

        No filter applies to runs of ``logreg_root_dir``.
        """
        if self.logreg_root_dir is not None and getattr(result, "source", RUNS) == RUNS:
            return True
        has_shots = (
            isinstance(result, Run) or is_classifier(result.evaluation) or result.evaluation == self.eval_name
        )
        return self.wants_dataset(result.model, result.dataset) and (
            self.n_shots is None or result.n_shot in self.n_shots or not has_shots
        )


@dataclass(frozen=True)
class QueryResult:
    """The results of a selection."""

    runs: list[Run]  # selected runs found on disk
    problems: list[Problem]  # folders that were not counted
    #: Selected accuracies of one evaluation: first of the runs, then imported ones, then published ones.
    cells: list[SeedAverage]
    #: Accuracies outside the selection for comparisons: those of the baseline and, with needs_in1k of gather, those on
    #: IN-1K; of every data set and number of shots that were read.
    others: list[SeedAverage]
    #: Selected numbers of other experiments, as they were read.
    measures: list[SeedAverage] = field(default_factory=list)
    #: Selected numbers of all experiments, including those of cells and derived ones.
    all_measures: list[SeedAverage] = field(default_factory=list)
    #: Selected results of analyses found on disk.
    analyses: list[AnalysisRecord] = field(default_factory=list)
    other_runs: list[Run] = field(default_factory=list)  # selected runs of other evaluations
    model_facts: ModelFacts = field(default_factory=ModelFacts)

    @property
    def has_experiments(self) -> bool:
        """Whether there is more than logistic regression on all features."""
        return any(average.evaluation != LOGREG for average in self.all_measures)


def gather(
    selection: ResultQuery,
    *,
    on_problems: Callable[[Sequence[Problem]], None],
    needs_in1k: bool = False,
) -> QueryResult:
    """Return the results of a selection.

    Args:
        selection: the selection.
        on_problems: function that is called with the folders that are not counted, as soon as all folders are read.
        needs_in1k: whether accuracies on IN-1K are needed even if this data set is not selected; they are returned in
            ``others``.

    Raises:
        CogError: when a folder or file cannot be read, a given folder has no finished run, or no result is selected.
    """
    read = _read(selection, needs_in1k=needs_in1k)
    on_problems(read.problems)
    runs = [run for run in read.runs if run.evaluation == selection.eval_name]
    other_runs = [run for run in read.runs if run.evaluation != selection.eval_name]
    seeds = selection.seeds or ()
    accuracies = run_records.average_runs(runs, seeds)
    # The meaning of evaluations with a user's own name is not known.
    more = run_records.average_runs((run for run in other_runs if is_classifier(run.evaluation)), seeds)
    more += analysis_records.averages(read.analyses)
    features = search_history.features_of(runs)
    accuracies, more = (official.with_features(averages, features) for averages in (accuracies, more))
    runs = list(filter(selection.wants, runs))
    others_are_read = selection.models is not None and bool(selection.imports or selection.paper)
    if selection.reads_runs and not (runs or any(map(selection.wants, more)) or others_are_read):
        raise CogError(_nothing_found(selection, read.problems))
    stated = _stated(selection.imports, selection.paper)
    accuracies += filter(is_protocol, stated)
    if selection.experiments:
        more += (average for average in stated if not is_protocol(average))
    wanted, others = [], []
    for average in accuracies:
        if selection.wants(average):
            wanted.append(average)
        elif average.model == selection.baseline or (needs_in1k and average.dataset == constants.IN1K):
            others.append(average)
    everything: list[SeedAverage] = []
    if selection.experiments:
        # Selected numbers may be relative to others that are not selected.
        known = [a for a in accuracies if a.source != RUNS or is_classifier(a.evaluation)]
        everything = list(filter(selection.wants, derive([*known, *more])))
    if not wanted and not everything:
        if not accuracies and stated:
            raise CogError(
                f"--import {' '.join(map(str, selection.imports))}: only numbers of other experiments there; add "
                "--analysis all"
            )
        raise CogError(_nothing_left(selection, accuracies))
    return QueryResult(
        runs,
        read.problems,
        wanted,
        others,
        measures=list(filter(selection.wants, more)),
        all_measures=everything,
        analyses=[r for r in read.analyses if selection.wants_dataset(r.model or "", r.dataset or "")],
        other_runs=list(filter(selection.wants, other_runs)),
        model_facts=read_model_facts(features, stated),
    )


def _read(selection: ResultQuery, *, needs_in1k: bool) -> find.Everything:
    if selection.logreg_root_dir is not None:
        runs, problems = find.read_evaluation(selection.logreg_root_dir, seeds=selection.seeds)
        named = [dataclasses.replace(run, evaluation=selection.eval_name) for run in runs]
        return find.Everything(named, [], problems)
    if selection.models_root_dir is None:
        return find.Everything([], [], [])
    models, datasets = selection.models, selection.datasets
    if models is not None and selection.baseline is not None:
        models = [*models, selection.baseline]
    if datasets is not None and (needs_in1k or selection.experiments):
        datasets = [*datasets, constants.IN1K]
    return find.find_all(
        selection.models_root_dir,
        models=models,
        datasets=datasets,
        n_shots=selection.n_shots,
        evaluation=None if selection.experiments else selection.eval_name,
        seeds=selection.seeds,
        analyses=selection.experiments,
    )


def _stated(
    imports: Iterable[str | os.PathLike[str]], paper: str | None, flag: str = "--import"
) -> list[SeedAverage]:
    """Return the averages in imported files and, of a version of the paper, the published ones."""
    stated = exchange.merge(*((str(path), exchange.load(path, flag=flag)) for path in imports))
    # An imported file may contain published numbers as well.
    return list(dict.fromkeys([*stated, *(published.averages(paper) if paper is not None else ())]))


def read_scores(
    root: str | os.PathLike[str] | None = None,
    *,
    models: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    imports: Iterable[str | os.PathLike[str]] = (),
    paper: str | None = None,
) -> tuple[list[Score], list[Problem], ModelFacts]:
    """Return every number of run folders, analyses, shared files and the paper as scores.

    Args:
        root: folder of all models; None: no folders are read.
        models: names of models, or patterns such as ``deit_*``; None: all.
        datasets: names of data sets; None: all.
        imports: files of ``--export``.
        paper: version of the published numbers; None: none.

    Returns:
        The scores, in the order of tables, the folders that were not counted, and facts about the models.

    Raises:
        CogError: when a folder or file cannot be read.

    >>> scores, problems, facts = read_scores(models=["dino_*"], datasets=["cog_l5"], paper="v2")
    >>> [(score.n_shots, score.value) for score in scores][:3]
    [(0, 57.6), (1, 12.6), (2, 18.6)]
    """
    wanted = ResultQuery(
        models=None if models is None else list(models), datasets=None if datasets is None else list(datasets)
    )
    everything = find.Everything([], [], [])
    if root is not None:
        everything = find.find_all(root, models=wanted.models, datasets=wanted.datasets)
    features = search_history.features_of(everything.runs)
    scores = official.with_features(run_records.scores(everything.runs), features)
    scores += single(analysis_records.averages(everything.analyses))
    stated = _stated(imports, paper, "file")
    scores += single(a for a in stated if wanted.wants_dataset(a.model, a.dataset))
    return sorted(scores, key=_sort_key), everything.problems, read_model_facts(features, stated)


def _sort_key(score: Score) -> tuple[Any, ...]:
    """Return the sort key of a score: runs first, models in the order of the paper, IN-1K before the levels."""
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


def check_baseline(model: str, cells: Sequence[SeedAverage], root: Path | None = None) -> None:
    """Check that there are results of the baseline of ``--relative_to`` among those read from a root.

    Raises:
        CogError: when no cell belongs to ``model``; the message suggests the nearest name.
    """
    models = {cell.model for cell in cells}
    if model not in models:
        there = find.list_models(root) if root is not None else []
        hint = did_you_mean(model, sorted({*models, *there} - {model}))
        if model in published.MODELS and not {cell.source for cell in cells} & {*published.SOURCES.values()}:
            hint = "; add --with_published to read the paper's"
        raise CogError(f"--relative_to {model}: no result of it among those read{hint}")


def _nothing_left(selection: ResultQuery, cells: Sequence[SeedAverage]) -> str:
    """Return a message that names the filter which excludes all results."""
    models = sorted({cell.model for cell in cells}, key=natural_key)
    datasets = sorted({cell.dataset for cell in cells}, key=dataset_key)
    n_shots = [str(n_shot) for n_shot in sorted({cell.n_shot for cell in cells})]
    filters: tuple[tuple[str, Iterable[Any] | None, Sequence[str], str], ...] = (
        ("--model", selection.models, models, "models"),
        ("--dataset", selection.datasets, datasets, "data sets"),
        ("--n_shot", selection.n_shots, n_shots, "numbers of images (0 = all)"),
    )
    for flag, wanted, known, noun in filters:
        for value in map(str, wanted or ()):
            if not any(matches(name, value) for name in known):
                more = f": {', '.join(known)}" if len(known) <= _LISTED else did_you_mean(value, known)
                return f"{flag} {value} is none of the {len(known)} {noun} with results{more}"
    return "no result has the model, data set and number of shots asked for together"


def _nothing_found(selection: ResultQuery, problems: Sequence[Problem]) -> str:
    """Return a message about missing runs: the selection, the expected folders, and the nearest names."""
    seeds = f" with seeds {' '.join(map(str, selection.seeds))}" if selection.seeds else ""
    refused = f" ({len(problems)} could not be counted, see above)" if problems else ""
    if selection.logreg_root_dir is not None:
        folder = selection.logreg_root_dir
        inside = sorted(filter(paths.parse_evaluation_folder, find.list_folders(folder)), key=natural_key)
        hint = f"; did you mean its subfolder {inside[0]}?" if inside else ""
        return (
            f"no finished run{seeds} in --logreg_root_dir {folder}{refused}; expected "
            f"seed-<seed>/final-*/{LOGS_FILE}{hint}"
        )
    root = selection.models_root_dir
    assert root is not None
    models = " ".join(selection.models) if selection.models else "any model"
    datasets = " ".join(selection.datasets) if selection.datasets else "any data set"
    shots = f" with {', '.join(map(shots_label, selection.n_shots))}" if selection.n_shots is not None else ""
    layout = f"<title>/<architecture>/<dataset>/eval_{selection.eval_name}[_N<shots>]/seed-<seed>"
    there = find.list_models(root)
    hints = [
        did_you_mean(name, there)
        for name in selection.models or ()
        if not is_pattern(name) and name not in there
    ]
    known = {
        *data_sets.names(),
        *(d for model in there for d in find.list_folders(paths.ModelDir(root, model).path)),
    }
    hints += [did_you_mean(name, known) for name in selection.datasets or () if name not in known]
    return (
        f"no finished run of {models} on {datasets}{shots}{seeds} under --models_root_dir {root}{refused}; expected "
        f"{layout} there{next(filter(None, hints), '')}"
    )
