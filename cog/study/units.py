"""The units of a study and their states: extractions (model, data set, split) and classifier runs.

A unit is one output folder. Its state is read from the folder alone, so that every process and every user gets the same
state. This module does not import torch, and thousands of folders take seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cog import constants, paths
from cog.errors import CogError
from cog.features.folder import DELETED_FILE
from cog.logreg.run_folder import RESULTS_FILE, RunFolder
from cog.results import find, scores
from cog.runtime.locks import LOCK_FILE
from cog.runtime.output_folder import DONE as DONE
from cog.runtime.output_folder import FAILED as FAILED
from cog.runtime.output_folder import INTERRUPTED as INTERRUPTED
from cog.runtime.output_folder import MISSING as MISSING
from cog.runtime.output_folder import RUNNING as RUNNING
from cog.runtime.output_folder import read_state

logger = logging.getLogger(__name__)

#: State of a submitted unit that is not begun; it comes from a scheduler (:mod:`cog.study.slurm`), never a folder.
QUEUED = "queued"

#: State of features that were deleted after all runs of a study were done.
DELETED = "deleted"

_THREADS = 16

STATES = (DONE, DELETED, RUNNING, QUEUED, FAILED, INTERRUPTED, MISSING)


@dataclass(frozen=True)
class ExtractionUnit:
    """The features of one split of a data set by one model."""

    model: str
    dataset: str
    split: str

    def folder(self, root: Path) -> Path:
        """Return the output folder of the features."""
        return paths.ModelDir(root, self.model).features(self.dataset, self.split)

    def __str__(self) -> str:
        return f"features of {self.model} on {self.dataset} {self.split}"


@dataclass(frozen=True)
class TrainingUnit:
    """One classifier run.

    Attributes:
        evaluation: name of the evaluation (``logreg``), see :func:`cog.config.evaluation_name`.
        n_shot: training images per class, 0 = all.
    """

    model: str
    dataset: str
    evaluation: str
    n_shot: int
    seed: int

    def folder(self, root: Path) -> Path:
        """Return the output folder of the run."""
        return paths.ModelDir(root, self.model).run(
            self.dataset, name=self.evaluation, n_shot=self.n_shot, seed=self.seed
        )

    def __str__(self) -> str:
        shots = f"N = {self.n_shot}" if self.n_shot else "all images"
        name = "" if self.evaluation == "logreg" else f" ({self.evaluation})"
        return f"classifier of {self.model} on {self.dataset}{name}, {shots}, seed {self.seed}"


Unit = ExtractionUnit | TrainingUnit


@dataclass(frozen=True)
class Status:
    """The state of a unit.

    Attributes:
        state: one of ``STATES``.
        detail: holder of the lock and start of the work, or the message of the failure; else "".
        foreign: whether the unit is done in a folder with the spelling of the original toolkit's code
            (``eval_logreg-N8/seed_22``).
    """

    state: str
    detail: str = ""
    foreign: bool = False


# Most units have one of these statuses.
_DONE, _MISSING = Status(DONE), Status(MISSING)


@dataclass(frozen=True)
class Study:
    """The units to be computed: every model on every data set.

    Attributes:
        root: ``<models_root_dir>``.
        models: names of the models, ``<model_title>_<architecture_name>``.
        datasets: names of the data sets.
        seeds: seeds of the classifier runs.
        n_shots: training images per class of the classifier runs, 0 = all images.
        evaluation: name of the evaluation.
    """

    root: Path
    models: tuple[str, ...]
    datasets: tuple[str, ...] = constants.DATASETS
    seeds: tuple[int, ...] = constants.SEEDS
    n_shots: tuple[int, ...] = (0, *constants.SHOTS)
    evaluation: str = "logreg"

    def pairs(self) -> list[tuple[str, str]]:
        """Return every pair (model, data set)."""
        return [(model, dataset) for model in self.models for dataset in self.datasets]

    def extractions(self, model: str, dataset: str) -> list[ExtractionUnit]:
        """Return the extractions of one pair."""
        return [ExtractionUnit(model, dataset, split) for split in constants.SPLITS]

    def trainings(self, model: str, dataset: str) -> list[TrainingUnit]:
        """Return the classifier runs of one pair in the order of computation: by number of shots, then by seed."""
        return [
            TrainingUnit(model, dataset, self.evaluation, n_shot, seed)
            for n_shot in self.n_shots
            for seed in self.seeds
        ]

    def units(self) -> Iterator[Unit]:
        """Yield every unit."""
        for pair in self.pairs():
            yield from self.extractions(*pair)
            yield from self.trainings(*pair)


def survey(study: Study) -> dict[Unit, Status]:
    """Return the status of every unit, read from its folder.

    Units whose folder cannot be read count as failed, with a warning. They do not affect other pairs.

    Raises:
        CogError: the name of a data set is malformed.
    """
    for dataset in study.datasets:
        paths.check_dataset_name(dataset)
    statuses: dict[Unit, Status] = {}
    with ThreadPoolExecutor(_THREADS) as pool:  # on a network file system, every file costs a round trip
        parts = list(pool.map(lambda pair: _survey_pair(study, *pair), study.pairs()))
    for (model, dataset), (part, fault) in zip(study.pairs(), parts, strict=True):
        if fault:
            _warn_once(f"{model} on {dataset}: {fault}; what cannot be read counts as failed")
        statuses |= part
    return statuses


@functools.cache
def _warn_once(text: str) -> None:
    """Log a warning, once per process: a study reads the statuses of the same units many times."""
    logger.warning("%s", text)


def _survey_pair(study: Study, model: str, dataset: str) -> tuple[dict[Unit, Status], str]:
    """Return the statuses of the units of a pair, and why some of them cannot be read; "" if all can."""
    statuses: dict[Unit, Status] = {}
    try:
        _read_pair(study, model, dataset, statuses)
        return statuses, ""
    except OSError as error:
        fault = f"cannot read {error.filename}: {error.strerror or error}"
    except CogError as error:
        fault = str(error)
    units: list[Unit] = [*study.extractions(model, dataset), *study.trainings(model, dataset)]
    return dict.fromkeys(units, Status(FAILED, fault)) | statuses, fault


def _read_pair(study: Study, model: str, dataset: str, statuses: dict[Unit, Status]) -> None:
    """Read the statuses of a pair into ``statuses``."""
    folder = paths.ModelDir(study.root, model).path / dataset
    entries = _list(folder)
    for extraction in study.extractions(model, dataset):
        path = extraction.folder(study.root)
        listed = _list(path) if path.name in entries else frozenset()
        statuses[extraction] = _status(path, listed, done=constants.FEATURES_FILE in listed)
    runs = _run_statuses(folder, entries, study)
    for training in study.trainings(model, dataset):
        statuses[training] = runs.get((training.n_shot, training.seed), _MISSING)


def _run_statuses(folder: Path, entries: frozenset[str], study: Study) -> dict[tuple[int, int], Status]:
    """Return the statuses of runs by (n_shot, seed), read from folders in either spelling."""
    places: list[tuple[bool, int, int, str]] = []
    for name in entries:
        parsed = paths.parse_evaluation_folder(name)
        if parsed is None or parsed[0] != study.evaluation or parsed[1] not in study.n_shots:
            continue
        path = os.path.join(folder, name)
        for seed_name in _list(path):
            seed = paths.parse_seed_folder(seed_name)
            if seed in study.seeds:
                usual = (paths.evaluation_folder(*parsed), paths.seed_folder(seed))
                places.append(((name, seed_name) != usual, parsed[1], seed, f"{path}{os.sep}{seed_name}"))
    statuses: dict[tuple[int, int], Status] = {}
    for foreign, n_shot, seed, path in sorted(places):  # this toolkit's spelling first
        if (before := statuses.get((n_shot, seed))) is not None and before.state in (DONE, RUNNING):
            continue
        listed = _list(path)
        marked = RESULTS_FILE in listed
        done = marked or (
            any(name.startswith("final-lr-") for name in listed) and RunFolder(path).is_complete()
        )
        status = _status(path, listed, done=done, marked=marked)
        if not foreign:
            statuses[n_shot, seed] = status
        elif status.state == DONE:
            statuses[n_shot, seed] = dataclasses.replace(status, foreign=True)
    return statuses


def _status(path: str | Path, listed: frozenset[str], *, done: bool, marked: bool = True) -> Status:
    """Return the status of an output folder with the entries ``listed``."""
    if done and marked and LOCK_FILE not in listed:
        return _DONE
    folder = read_state(path, listed, complete=done, marked=marked)
    if folder.state == MISSING and DELETED_FILE in listed:
        return Status(DELETED, "features deleted, since all runs were done")
    return Status(folder.state, str({RUNNING: folder.holder, FAILED: folder.failure}.get(folder.state, "")))


def _list(path: str | Path) -> frozenset[str]:
    """Return the names in a folder; an empty set when it does not exist."""
    try:
        return frozenset(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def find_models(root: Path, wanted: Sequence[str] | None, others: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the models of a study.

    Args:
        root: ``<models_root_dir>``.
        wanted: names and patterns (``deit_*``), matched with the folders under ``root`` and with ``others``; None: all
            models under ``root`` and all of ``others``.
        others: names of the user's own models, with or without a folder.

    Raises:
        CogError: a name is malformed, or a pattern matches no model.
    """
    from cog.results.query import matches

    known = list(dict.fromkeys([*find.list_models(root), *others]))
    if wanted is None:
        if not known:
            raise CogError(
                f"there is no <model_title>/<architecture_name> folder under {root}; give --models"
            )
        wanted = known
    models: list[str] = []
    for name in wanted:
        if not find.is_pattern(name):
            paths.split_model_name(name)
            models.append(name)
            continue
        matching = [model for model in known if matches(model, name)]
        if not matching:
            raise CogError(f"no model under {root} matches {name}")
        models += matching
    return tuple(dict.fromkeys(models))


def find_datasets(root: Path, models: Sequence[str]) -> tuple[str, ...]:
    """Return the data sets with a folder of any of ``models``, in the usual order; all six if there are no others."""
    datasets = set()
    for model in models:
        folder = paths.ModelDir(root, model).path
        datasets |= {name for name in _list_readable(folder) if _is_dataset(folder / name)}
    if datasets <= set(constants.DATASETS):
        return constants.DATASETS
    known = [name for name in constants.DATASETS if name in datasets]
    return (*known, *sorted(datasets - set(known), key=scores.dataset_key))


def _is_dataset(folder: Path) -> bool:
    """Return whether a folder in that of a model holds outputs on a data set."""
    return constants.is_plain_name(folder.name) and any(
        name.startswith("features_") or paths.parse_evaluation_folder(name) is not None
        for name in _list_readable(folder)
    )


def _list_readable(path: Path) -> frozenset[str]:
    """Return the names in a folder; an empty set when it cannot be listed, such as a private folder of someone else."""
    try:
        return _list(path)
    except OSError:
        return frozenset()
