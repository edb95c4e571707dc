"""Search for result folders, which are read into records: runs of every evaluation, and analyses.

Nothing is recomputed, and one bad folder does not stop the search: results that cannot be counted are returned as
:class:`Problem`. This module imports no torch, so that tables appear at once.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import operator
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cog import constants, paths
from cog.errors import CogError, os_errors_explained
from cog.results import analysis_records, run_records
from cog.results.analysis_records import AnalysisRecord
from cog.results.run_records import (
    LEFTOVER,
    RESULTS_FILE,
    Problem,
    Run,
    RunPlace,
    UnfinishedError,
    is_folder,
)
from cog.results.scores import LOGREG, dataset_key, grouped, natural_key
from cog.runtime import files


@dataclass(frozen=True)
class Everything:
    """All results below a models root."""

    runs: list[Run]  # of every evaluation, in the order of cog.results.run_records.sort_key
    analyses: list[AnalysisRecord]  # results of analyses, sorted by model, data set and name
    #: Folders that look like results but cannot be counted, sorted by path. A seed in two folders (seed-22 and
    #: seed_22) is ambiguous, so neither is counted.
    problems: list[Problem]


def find_runs(
    models_root_dir: str | os.PathLike[str], *, eval_name: str = LOGREG, **wanted: Iterable | None
) -> tuple[list[Run], list[Problem]]:
    """Return the runs of one evaluation, and the problems; ``wanted`` are filters of :func:`find_all`."""
    everything = find_all(models_root_dir, evaluation=eval_name, analyses=False, **wanted)
    return everything.runs, everything.problems


def find_all(
    models_root_dir: str | os.PathLike[str],
    *,
    models: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    n_shots: Iterable[int] | None = None,
    evaluation: str | None = None,
    seeds: Iterable[int] | None = None,
    analyses: bool = True,
) -> Everything:
    """Return the runs of every evaluation and the results of analyses, read in one walk over the folders.

    Both spellings of the folder names are read (``eval_logreg_N8/seed-22`` and ``eval_logreg-N8/seed_22``).

    Args:
        models_root_dir: folder of the layout in ``cog/paths.py``.
        models: names or patterns of names (``deit_*``) of models; None: all (same for the other filters).
        datasets: names of data sets.
        n_shots: numbers of training images per class of runs, 0 = all images.
        evaluation: name of a single evaluation; None: all.
        seeds: seeds of runs.
        analyses: whether to include analyses.

    Raises:
        CogError: when ``models_root_dir`` is not a readable folder, or a name is not valid.
    """
    root = files.require_dir(models_root_dir, "--models_root_dir")
    of_datasets = None if datasets is None else set(map(paths.check_dataset_name, datasets))
    of_shots, of_seeds = (None if wanted is None else set(wanted) for wanted in (n_shots, seeds))
    reader = _Reader()
    for model, model_dir in _model_folders(root, models, reader.problems):
        for dataset in _folders(model_dir, reader.problems, missing_ok=True):
            if of_datasets is not None and dataset not in of_datasets:
                continue
            for name in _folders(model_dir / dataset, reader.problems):
                path = model_dir / dataset / name
                if analyses and (analysis := paths.parse_analysis_folder(name)) is not None:
                    reader.read_analysis(path, RunPlace(model, dataset, None, None, analysis))
                parsed = paths.parse_evaluation_folder(name)
                if parsed is None or evaluation not in (None, parsed[0]):
                    continue
                if of_shots is None or parsed[1] in of_shots:
                    place = RunPlace(model, dataset, parsed[1], None, parsed[0])
                    reader.list_runs(path, place, of_seeds)
    return reader.everything()


def read_evaluation(
    folder: str | os.PathLike[str], *, seeds: Iterable[int] | None = None
) -> tuple[list[Run], list[Problem]]:
    """Return the runs of one evaluation folder (``.../eval_logreg_N8``, or any folder of seed folders), and problems.

    Model, data set and shots come from a path of the layout. Otherwise the names are empty, and the shots are those in
    the records of the runs (original toolkit: those in the name of the folder).

    Raises:
        CogError: when ``folder`` is not a readable folder.
    """
    folder = files.require_dir(folder, "--logreg_root_dir")
    place = _place_of(Path(os.path.abspath(folder)))
    reader = _Reader()
    reader.list_runs(folder, place, None if seeds is None else set(seeds))
    everything = reader.everything()
    return everything.runs, everything.problems


def _place_of(folder: Path) -> RunPlace:
    """Return the facts that the path of an evaluation folder implies; outside the layout, at most the evaluation."""
    parts = folder.parts[-4:]
    evaluation, n_shot = paths.parse_evaluation_folder(folder.name) or (LOGREG, None)
    model = "_".join(parts[:2])
    if n_shot is None or len(parts) < 4 or not constants.is_model_name(model) or "_" in parts[0]:
        return RunPlace("", "", None, None, evaluation)
    return RunPlace(model, parts[2], n_shot, None, evaluation)


class _Reader:
    """Results as they are found, with the folders that cannot be counted."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._folders: list[tuple[RunPlace, Path]] = []
        self._records: list[AnalysisRecord] = []

    def list_runs(self, folder: Path, place: RunPlace, seeds: Collection[int] | None) -> None:
        """Add the seed folders of an evaluation."""
        for entry in _scan(folder, self.problems):
            hidden = entry.name.startswith(".")
            if not (hidden or entry.name.startswith("seed")) or not is_folder(entry):
                continue
            path, seed = folder / entry.name, paths.parse_seed_folder(entry.name)
            if hidden:
                self.problems.append(Problem(path, LEFTOVER))
            elif seed is None:
                self.problems.append(Problem(path, "not a seed folder, expected seed-<number>"))
            elif seeds is None or seed in seeds:
                self._folders.append((place._replace(seed=seed), path))

    def read_analysis(self, path: Path, place: RunPlace) -> None:
        """Add the result of an analysis."""
        try:
            self._records.append(_read_analysis(path, place))
        except CogError as error:
            self._refuse(path, error)

    def everything(self) -> Everything:
        """Read the listed runs whose seed is in no other folder, and return all results, sorted."""
        runs: list[Run] = []
        for place, same in grouped(self._folders, operator.itemgetter(0)).items():
            for _, path in same:
                if len(same) > 1:
                    others = ", ".join(str(other) for _, other in same if other != path)
                    self.problems.append(
                        Problem(path, f"seed {place.seed} is also in {others}; keep one of them")
                    )
                    continue
                try:
                    runs.append(run_records.read_run(path, place, self.problems))
                except CogError as error:
                    self._refuse(path, error)
        runs, odd = run_records.with_same_features(runs)
        self.problems += odd
        runs.sort(key=run_records.sort_key)
        self._records.sort(
            key=lambda r: (natural_key(r.model or ""), dataset_key(r.dataset or ""), natural_key(r.analysis))
        )
        self.problems.sort(key=lambda problem: str(problem.path))
        return Everything(runs, self._records, self.problems)

    def _refuse(self, path: Path, error: CogError) -> None:
        # Messages of the loader contain the path of the folder, which is already in the problem.
        reason = str(error).replace(f"{path}{os.sep}", "")
        state = error.state if isinstance(error, UnfinishedError) else ""
        self.problems.append(Problem(path, reason, state))


def _scan(path: Path, problems: list[Problem], *, missing_ok: bool = False) -> list[os.DirEntry[str]]:
    """Return the entries of a folder in name order; add a problem if it is unreadable."""
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        if not missing_ok:
            problems.append(Problem(path, "vanished while the results were read"))
    except NotADirectoryError:
        pass
    except OSError as error:
        problems.append(Problem(path, f"cannot be read: {error.strerror or error}"))
    return []


def _folders(path: Path, problems: list[Problem], *, missing_ok: bool = False) -> Iterator[str]:
    for entry in _scan(path, problems, missing_ok=missing_ok):
        if not entry.name.startswith(".") and is_folder(entry):
            yield entry.name


def list_folders(path: Path) -> list[str]:
    """Return the names of the folders in ``path``, without hidden ones; none when ``path`` is missing."""
    return list(_folders(path, [], missing_ok=True))


def list_models(models_root_dir: str | os.PathLike[str]) -> list[str]:
    """Return the names of the models that have a folder under ``models_root_dir``, in natural order."""
    return sorted((model for model, _ in _model_folders(Path(models_root_dir), None, [])), key=natural_key)


def is_pattern(name: str) -> bool:
    """Return whether ``name`` is a shell pattern (``deit_*``) rather than a name."""
    return any(character in name for character in "*?[")


def matches(model: str, pattern: str) -> bool:
    """Return whether ``model`` matches ``pattern``, a name or a pattern with ``*``, ``?`` and ``[...]``."""
    return model == pattern or (is_pattern(pattern) and fnmatch.fnmatchcase(model, pattern))


def _model_folders(
    root: Path, models: Iterable[str] | None, problems: list[Problem]
) -> Iterator[tuple[str, Path]]:
    """Yield names and folders of models: the named ones, which may be missing, and those that match a pattern."""
    wanted = ["*"] if models is None else list(dict.fromkeys(models))
    exact = [model for model in wanted if not is_pattern(model)]
    for model in exact:
        yield model, paths.ModelDir(root, model).path
    if len(exact) == len(wanted):
        return
    for title in _folders(root, problems):
        # Names of models are split at the first underscore.
        if "_" in title or paths.limit_of(title):
            continue
        for architecture in _folders(root / title, problems):
            model = f"{title}_{architecture}"
            wanted_too = model not in exact and any(matches(model, pattern) for pattern in wanted)
            if wanted_too and constants.is_model_name(model):
                yield model, root / title / architecture


def _read_analysis(path: Path, place: RunPlace) -> AnalysisRecord:
    with os_errors_explained("cannot be read"):
        entries = sorted(os.listdir(path))
    if RESULTS_FILE not in entries:
        run_records.check_finished(path, entries)
        raise CogError(f"no {RESULTS_FILE}: the analysis is unfinished or failed")
    record = analysis_records.read(path)
    if record.analysis != place.evaluation:
        expected = place.evaluation
        raise CogError(
            f"{RESULTS_FILE} holds a result of {record.analysis}, the folder's name says {expected}"
        )
    odd = [name for name in record.values if not constants.is_plain_name(name)]
    if odd:
        raise CogError(f"{RESULTS_FILE} has a value named {odd[0][:40]!r}, expected letters, digits and ._+-")
    return dataclasses.replace(record, model=place.model, dataset=place.dataset)
