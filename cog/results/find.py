"""Search for result folders, which are read into records: runs of every evaluation, and analyses.

Nothing is recomputed, and one bad folder does not stop the search: results that cannot be counted are returned as
:class:`Problem`. This module imports no torch, so that tables appear at once.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import operator
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cog import config, constants, paths
from cog.errors import CogError, os_errors_explained, some
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
from cog.results.scores import LOGREG, SeedAverage, dataset_key, grouped, natural_key, of_metric
from cog.runtime import files, run_archive
from cog.runtime.parallel_reading import map_waiting
from cog.runtime.run_archive import RunArchive

if TYPE_CHECKING:
    from yacs.config import CfgNode

# For folders without a name like that of a model: how many are named in a message, and the maximal number of folders
# that are examined inside on each level.
_NAMED = 5
_MOST_LOOKED_AT = 100


class _Folder(NamedTuple):
    """A folder with the name of a result, and the facts that its path implies."""

    place: RunPlace
    path: str
    run: Run | Problem | None = None  # already read, from an archive


@dataclass(frozen=True)
class Everything:
    """All results below a models root."""

    #: Runs by the name of their evaluation, in the order of cog.results.run_records.sort_key.
    runs: dict[str, list[Run]]
    analyses: list[AnalysisRecord]  # results of analyses, sorted by model, data set and name
    #: Folders that look like results but cannot be counted, sorted by path. A seed in two folders (seed-22 and
    #: seed_22) is ambiguous, so neither is counted.
    problems: list[Problem]


def find_runs(
    models_root_dir: str | os.PathLike[str], *, eval_name: str = LOGREG, **wanted: Iterable | None
) -> tuple[list[Run], list[Problem]]:
    """Return the runs of one evaluation, and the problems; ``wanted`` are filters of :func:`find_all`."""
    everything = find_all(models_root_dir, evaluation=eval_name, analyses=False, **wanted)
    return everything.runs.get(eval_name, []), everything.problems


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
    search = _Search(
        datasets=None if datasets is None else frozenset(map(paths.check_dataset_name, datasets)),
        n_shots=None if n_shots is None else frozenset(n_shots),
        evaluation=evaluation,
        seeds=None if seeds is None else frozenset(seeds),
        analyses=analyses,
    )
    problems = [] if models is not None else _misnamed(root)
    folders: list[_Folder] = []
    for of_model, inside in map_waiting(
        search.list_model, list(_model_folders(root, models, problems)), patience=8
    ):
        folders += of_model
        problems += inside
    return _read_all(folders, problems)


@dataclass(frozen=True)
class _Search:
    """The filters of a search, see :func:`find_all`."""

    datasets: frozenset[str] | None
    n_shots: frozenset[int] | None
    evaluation: str | None
    seeds: frozenset[int] | None
    analyses: bool

    def list_model(self, item: tuple[str, Path]) -> tuple[list[_Folder], list[Problem]]:
        """Return the folders of results in the folder of a model, given its name and path, and the problems."""
        model, path = item
        folders: list[_Folder] = []
        problems: list[Problem] = []
        for dataset in _folders(path, problems, missing_ok=True):
            if self.datasets is None or dataset in self.datasets:
                of_dataset, inside = self._list_dataset(model, dataset, path / dataset)
                folders += of_dataset
                problems += inside
        return folders, problems

    def _list_dataset(self, model: str, dataset: str, path: Path) -> tuple[list[_Folder], list[Problem]]:
        folders: list[_Folder] = []
        problems: list[Problem] = []
        try:
            version = run_archive.version(path)
        except OSError as error:  # no permission
            return [], [Problem(path, f"cannot be read: {error.strerror or error}")]
        archive = _archive(path, problems)
        for name in _names(path, archive, problems):
            if self.analyses and (analysis := paths.parse_analysis_folder(name)) is not None:
                place = RunPlace(model, dataset, None, None, analysis)
                folders.append(_Folder(place, os.path.join(path, name)))
            parsed = paths.parse_evaluation_folder(name)
            if parsed is None or self.evaluation not in (None, parsed[0]):
                continue
            if self.n_shots is None or parsed[1] in self.n_shots:
                place = RunPlace(model, dataset, parsed[1], None, parsed[0])
                folders += _runs_in(path / name, place, self.seeds, archive, problems)
        if version != run_archive.version(path):
            return self._list_dataset(model, dataset, path)
        return _unambiguous(folders, problems), problems


def top1_of_model(
    models_root_dir: str | os.PathLike[str], model: str, cfg: CfgNode, *, seeds: Iterable[int] | None = None
) -> list[SeedAverage]:
    """Return the mean top-1 accuracies of a model on all data sets for the evaluation and shots of a configuration."""
    name = config.evaluation_name(cfg)
    runs, _ = find_runs(
        models_root_dir, eval_name=name, models=[model], n_shots=[cfg.CLF.N_SHOT], seeds=seeds
    )
    return of_metric(run_records.average_runs(runs), "top1")


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
    problems: list[Problem] = []
    archive = _archive(Path(os.path.abspath(folder)).parent, problems)
    runs = _runs_in(folder, place, None if seeds is None else set(seeds), archive, problems)
    everything = _read_all(_unambiguous(runs, problems), problems)
    return everything.runs.get(place.evaluation, []), everything.problems


def _place_of(folder: Path) -> RunPlace:
    """Return the facts that the path of an evaluation folder implies; outside the layout, at most the evaluation."""
    parts = folder.parts[-4:]
    evaluation, n_shot = paths.parse_evaluation_folder(folder.name) or (LOGREG, None)
    model = "_".join(parts[:2])
    if n_shot is None or len(parts) < 4 or not constants.is_model_name(model) or "_" in parts[0]:
        return RunPlace("", "", None, None, evaluation)
    return RunPlace(model, parts[2], n_shot, None, evaluation)


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
        if "_" in title or paths.parse_limit_folder(title):
            continue
        for architecture in _folders(root / title, problems):
            model = f"{title}_{architecture}"
            wanted_too = model not in exact and any(matches(model, pattern) for pattern in wanted)
            if wanted_too and constants.is_model_name(model):
                yield model, root / title / architecture


def _misnamed(root: Path) -> list[Problem]:
    """Return at most one problem, which names folders that contain runs but are skipped because of their names."""
    suspects: list[tuple[str, int]] = []  # with the number of levels of folders above those of evaluations
    for title in _folders(root, []):
        if "_" in title or not constants.is_plain_name(title):
            suspects.append((title, 2))
        else:
            odd = (name for name in _folders(root / title, []) if not constants.is_plain_name(name))
            suspects += ((f"{title}/{name}", 1) for name in odd)
    misnamed = [name for name, above in suspects if _holds_runs(root / name, above=above)]
    if not misnamed:
        return []
    reason = (
        f"runs in folders that are not named like a model: {some(misnamed, _NAMED)}; expected "
        "<title>/<architecture> of letters, digits and ._+-, without _ in the title"
    )
    return [Problem(root, reason)]


def _holds_runs(folder: Path, *, above: int) -> bool:
    """Return whether a quick look finds a finished run, ``above`` levels of folders below ``folder``."""
    level = [folder]
    for is_wanted in (
        *[lambda name: True] * above,
        lambda name: paths.parse_evaluation_folder(name) is not None,
        lambda name: paths.parse_seed_folder(name) is not None,
        lambda name: name.startswith("final"),
    ):
        inside = [path / name for path in level for name in _folders(path, []) if is_wanted(name)]
        # The folder may be a data set of images, with a thousand folders of a thousand files.
        level = inside[:_MOST_LOOKED_AT]
    return bool(level)


def _archive(folder: Path, problems: list[Problem]) -> RunArchive | None:
    """Return the archive of a model and data set, if any; add a problem if it cannot be read."""
    try:
        return run_archive.open_archive(folder)
    except CogError as error:
        path = folder / run_archive.ARCHIVE_FILE
        problems.append(Problem(path, str(error).replace(f"{path} ", "it ")))
        return None


def _names(folder: Path, archive: RunArchive | None, problems: list[Problem]) -> list[str]:
    """Return the names of the folders of a model and data set, including evaluations that are only in the archive."""
    packed = {run.partition("/")[0] for run in archive.runs} if archive is not None else set()
    return sorted({*_folders(folder, problems), *packed})


def _runs_in(
    folder: Path,
    place: RunPlace,
    wanted: Collection[int] | None,
    archive: RunArchive | None,
    problems: list[Problem],
) -> list[_Folder]:
    """Return the run folders of an evaluation; runs in the archive are read already, since its index is in memory."""
    by_name = {}
    prefix = str(folder / "-").removesuffix("-")  # text: a path takes three times the memory
    if archive is not None:
        packed = Path(os.path.abspath(folder)).name
        for name in archive.seeds(packed):
            seed = paths.parse_seed_folder(name)
            if seed is None or (wanted is not None and seed not in wanted):
                continue
            here, path = place._replace(seed=seed), f"{prefix}{name}"
            run: Run | Problem
            try:
                run = run_records.read_packed(archive, f"{packed}/{name}", path, here)
            except CogError as error:
                run = Problem(folder / name, str(error))
            by_name[name] = _Folder(here, path, run)
    for seed, name in _seed_folders(folder, wanted, problems, missing_ok=archive is not None):
        if name not in by_name or run_archive.holds_result(
            [entry.name for entry in _scan(folder / name, [])]
        ):
            by_name[name] = _Folder(place._replace(seed=seed), f"{prefix}{name}")
    return list(by_name.values())


def _seed_folders(
    folder: Path, wanted: Collection[int] | None, problems: list[Problem], *, missing_ok: bool = False
) -> Iterator[tuple[int, str]]:
    for entry in _scan(folder, problems, missing_ok=missing_ok):
        hidden = entry.name.startswith(".")
        if not (hidden or entry.name.startswith("seed")) or not is_folder(entry):
            continue
        seed = paths.parse_seed_folder(entry.name)
        if hidden:
            problems.append(Problem(folder / entry.name, LEFTOVER))
        elif seed is None:
            problems.append(Problem(folder / entry.name, "not a seed folder, expected seed-<number>"))
        elif wanted is None or seed in wanted:
            yield seed, entry.name


def _unambiguous(folders: Iterable[_Folder], problems: list[Problem]) -> list[_Folder]:
    """Return the folders whose result is in no other folder; add problems for the others."""
    single = []
    for group in grouped(folders, lambda folder: folder.place).values():
        if len(group) == 1:
            single += group
            continue
        for folder in group:
            others = ", ".join(other.path for other in group if other is not folder)
            reason = f"seed {folder.place.seed} is also in {others}; keep one of them"
            problems.append(Problem(Path(folder.path), reason))
    return single


def _read_all(folders: Sequence[_Folder], problems: list[Problem]) -> Everything:
    """Return the results in folders, sorted, with new problems added to the known ones."""
    runs: list[Run] = []
    records: list[AnalysisRecord] = []
    for result, inside in map_waiting(_read, folders):
        if isinstance(result, Run):
            runs.append(result)
        elif result is not None:
            records.append(result)
        problems += inside
    runs.sort(key=run_records.sort_key)
    records.sort(
        key=lambda r: (natural_key(r.model or ""), dataset_key(r.dataset or ""), natural_key(r.analysis))
    )
    problems.sort(key=lambda problem: str(problem.path))
    return Everything(grouped(runs, operator.attrgetter("evaluation")), records, problems)


def _read(folder: _Folder) -> tuple[Run | AnalysisRecord | None, list[Problem]]:
    """Return the result in a folder, if any, and the problems with it; no content of the folder raises an error."""
    problems: list[Problem] = []
    if folder.run is not None:
        return (folder.run, []) if isinstance(folder.run, Run) else (None, [folder.run])
    try:
        if folder.place.seed is None:
            return _read_analysis(folder), problems
        return run_records.read_run(folder.path, folder.place, problems), problems
    except CogError as error:
        # Messages of the loader contain the path of the folder, which is already in the problem.
        reason = str(error).replace(f"{folder.path}{os.sep}", "")
        state = error.state if isinstance(error, UnfinishedError) else ""
        return None, [*problems, Problem(Path(folder.path), reason, state)]


def _read_analysis(folder: _Folder) -> AnalysisRecord:
    path, place = Path(folder.path), folder.place
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
