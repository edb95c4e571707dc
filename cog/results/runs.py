"""Result folders below a models root: runs of classifiers, and results of analyses.

One bad folder costs that folder: it is returned with the reason. This module imports no torch, so that tables
appear at once.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cog import constants, paths
from cog.errors import CogError
from cog.results import analysis_records
from cog.results.analysis_records import AnalysisRecord
from cog.results.frame import LOGREG, dataset_key, natural_key
from cog.results.records import RESULTS_FILE, Features, Place, Run, read_run
from cog.runtime import files, output


class Skipped(NamedTuple):
    """A folder that is not counted."""

    path: Path
    reason: str  # in one line
    state: str = ""  # word of cog.runtime.output.State for an unfinished result

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass
class Found:
    """What lies below a root."""

    runs: list[Run] = field(default_factory=list)
    analyses: list[AnalysisRecord] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)  # sorted by path
    features: Features = field(default_factory=dict)  # features.json of the runs; empty where there is none


def find(
    root: str | os.PathLike[str],
    *,
    models: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    n_shots: Iterable[int] | None = None,
    evaluations: Collection[str] | None = None,
    seeds: Iterable[int] | None = None,
) -> Found:
    """Return the results below a models root, in one walk over the folders.

    Both spellings of the folder names are read (``eval_logreg_N8/seed-22`` and ``eval_logreg-N8/seed_22``). A
    seed in two folders is ambiguous, and neither counts; nor do runs on other features than the others of
    their evaluation, model and data set.

    Args:
        root: folder of the layout in ``cog/paths.py``.
        models: names or patterns of names (``deit_*``); None: all, as for the other filters.
        evaluations: names of classifiers; analyses are read without them only.

    Raises:
        CogError: ``root`` is not a readable folder, or a name is not valid.
    """
    root = files.require_dir(root, "--models_root_dir")
    of_datasets = None if datasets is None else set(map(paths.check_dataset_name, datasets))
    of_shots, of_seeds = (None if some is None else set(some) for some in (n_shots, seeds))
    reader = _Reader(limit=paths.limit_of(root))
    for model, folder in _model_folders(root, models, reader.skip):
        for dataset in sorted(_folders(folder, reader.skip), key=dataset_key):
            if of_datasets is not None and dataset not in of_datasets:
                continue
            for name in reader.results(f"{folder}/{dataset}", "analysis_" if evaluations is None else "\0"):
                path, parsed = f"{folder}/{dataset}/{name}", paths.parse_evaluation_folder(name)
                if evaluations is None and name.startswith("analysis_"):
                    reader.read_analysis(path, model, dataset, name.removeprefix("analysis_"))
                elif parsed is not None and (evaluations is None or parsed[0] in evaluations):
                    is_wanted = of_shots is None or parsed[1] in of_shots
                    reader.list_runs(path, (model, dataset, *parsed), of_seeds if is_wanted else ())
    return reader.read()


def read_folder(folder: str | os.PathLike[str], *, seeds: Iterable[int] | None = None) -> Found:
    """Return the runs of one evaluation folder (``.../eval_logreg_N8``, or any folder of seed folders).

    Model, data set and shots come from a path of the layout. Otherwise the names are empty, and the shots are
    those in the records of the runs (original toolkit: those in the name of the folder).

    Raises:
        CogError: ``folder`` is not a readable folder.
    """
    folder = files.require_dir(folder, "--logreg_root_dir")
    path = Path(os.path.abspath(folder))
    parts = path.parts[-4:]
    evaluation, n_shot = paths.parse_evaluation_folder(path.name) or (LOGREG, None)
    place: tuple[str, str, str, int | None] = "", "", evaluation, None
    is_model = len(parts) == 4 and "_" not in parts[0] and constants.is_model_name("_".join(parts[:2]))
    if n_shot is not None and is_model:
        place = "_".join(parts[:2]), parts[2], evaluation, n_shot
    reader = _Reader(limit=paths.limit_above(path))
    reader.list_runs(str(folder), place, None if seeds is None else set(seeds))
    return reader.read()


class _Reader:
    """Folders as they are found, and what is read from them."""

    def __init__(self, limit: int) -> None:
        self.found = Found()
        self._limit = limit
        self._folders: dict[Place, list[str]] = {}

    def skip(self, path: str | Path, reason: str, state: str = "") -> None:
        self.found.skipped.append(Skipped(Path(path), reason, state))

    def results(self, folder: str, prefix: str, seeds: Collection[int] | None = None) -> Iterator[str]:
        """Yield the names of the folders in a folder; note unfinished results that begin with ``prefix``."""
        names = list(_folders(folder, self.skip, hidden=True))
        yield from (name for name in names if not name.startswith("."))
        for name in names:
            result = name[1:].removesuffix(".work")
            is_work = name.startswith(f".{prefix}") and name.endswith(".work") and result not in names
            if is_work and (seeds is None or paths.parse_seed_folder(result) in seeds):
                state = output.state(Path(folder, result), RESULTS_FILE)
                words = {
                    output.RUNNING: f"in progress: {state.detail}",
                    output.FAILED: f"failed: {state.detail}",
                    output.INTERRUPTED: "interrupted; the same command continues",
                }
                if state.word in words:
                    self.skip(f"{folder}/{result}", words[state.word], state.word)

    def list_runs(
        self, folder: str, place: tuple[str, str, str, int | None], seeds: Collection[int] | None
    ) -> None:
        """Add the seed folders of an evaluation."""
        for name in self.results(folder, "seed", seeds):
            seed = paths.parse_seed_folder(name)
            if seed is None and name.startswith("seed"):
                self.skip(f"{folder}/{name}", "not a seed folder, expected seed-<number>")
            elif seed is not None and (seeds is None or seed in seeds):
                self._folders.setdefault(Place(*place, seed), []).append(f"{folder}/{name}")

    def read_analysis(self, path: str, model: str, dataset: str, name: str) -> None:
        """Add the result of an analysis."""
        try:
            record = analysis_records.read(path)
            if record.analysis != name:
                raise CogError(f"{RESULTS_FILE} holds {record.analysis}, the folder's name says {name}")
            self.found.analyses.append(dataclasses.replace(record, model=model, dataset=dataset))
        except CogError as error:
            self._refuse(path, error)

    def read(self) -> Found:
        """Read the listed runs whose seed is in no other folder, and return all results, sorted."""
        found = self.found
        for place, same in self._folders.items():
            for path in same:
                if len(same) > 1:
                    others = ", ".join(other for other in same if other != path)
                    self.skip(path, f"seed {place.seed} is also in {others}; keep one of them")
                    continue
                try:
                    found.runs.append(read_run(path, place, found.features, limit=self._limit))
                except CogError as error:
                    self._refuse(path, error)
        found.runs, odd = _with_same_features(found.runs)
        found.skipped = sorted([*found.skipped, *odd], key=lambda skipped: str(skipped.path))
        return found

    def _refuse(self, path: str, error: CogError) -> None:
        # Messages of the loader contain the path of the folder, which stands before the reason.
        self.skip(path, str(error).replace(f"{path}{os.sep}", ""))


def _with_same_features(runs: Sequence[Run]) -> tuple[list[Run], list[Skipped]]:
    """Leave out runs on other features than most runs of their evaluation, model and data set have.

    Of equally many, those that finished last stay. Runs without a record of their features stay, too.
    """
    numbers: dict[tuple[str, str, str], Counter[str]] = {}
    ends: dict[str, str] = {}
    for run in runs:
        if run.features is not None:
            numbers.setdefault((run.evaluation, run.model, run.dataset), Counter())[run.features] += 1
            ends[run.features] = max(ends.get(run.features, ""), run.finished)
    usual = {kind: max((n[of], ends[of], of) for of in n)[-1] for kind, n in numbers.items()}
    counted, odd = [], []
    for run in runs:
        kind = run.evaluation, run.model, run.dataset
        if run.features in (None, usual.get(kind)):
            counted.append(run)
        else:
            n = numbers[kind][usual[kind]]
            reason = f"trained on other features than {n} run{'s' * (n > 1)} beside it"
            odd.append(Skipped(Path(run.folder), f"{reason}; train all on the same (logreg.py --overwrite)"))
    return counted, odd


# --- folders and names


def _folders(path: str | Path, skip: Callable[..., None], *, hidden: bool = False) -> Iterator[str]:
    """Yield the names of the folders in a folder, sorted, without ``hidden`` ones."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if _is_folder(entry))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        skip(path, f"cannot be read: {error.strerror or error}")
        return
    yield from (name for name in names if hidden or not name.startswith("."))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to a place without permission
        return False


def list_models(root: str | os.PathLike[str]) -> list[str]:
    """Return the names of the models that have a folder under a root, in natural order."""
    return sorted((model for model, _ in _model_folders(Path(root), None, lambda *_: None)), key=natural_key)


def is_pattern(name: str) -> bool:
    """Return whether ``name`` is a shell pattern (``deit_*``) rather than a name."""
    return any(character in name for character in "*?[")


def matches(name: str, pattern: str) -> bool:
    """Return whether ``name`` matches ``pattern``, a name or a pattern with ``*``, ``?`` and ``[...]``."""
    return name == pattern or (is_pattern(pattern) and fnmatch.fnmatchcase(name, pattern))


def _model_folders(
    root: Path, models: Iterable[str] | None, skip: Callable[..., None]
) -> Iterator[tuple[str, str]]:
    """Yield names and folders of models: the named ones, there or not, and those that match a pattern."""
    wanted = ["*"] if models is None else list(dict.fromkeys(models))
    exact = [model for model in wanted if not is_pattern(model)]
    for model in exact:
        yield model, str(paths.ModelDir(root, model).path)
    if len(exact) == len(wanted):
        return
    for title in _folders(root, skip):
        if "_" in title or paths.limit_of(title):  # names of models are split at the first underscore
            continue
        for architecture in _folders(root / title, skip):
            model = f"{title}_{architecture}"
            wanted_too = model not in exact and any(matches(model, pattern) for pattern in wanted)
            if wanted_too and constants.is_model_name(model):
                yield model, str(root / title / architecture)
