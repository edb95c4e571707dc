"""Tasks for the missing units of a study: one command each, with the tasks that it has to wait for.

Tasks form arrays. A task number means the same (model, data set) in all arrays, so that a classifier task waits for the
extraction task of the same number (SLURM's ``aftercorr``). A study on one machine runs the same tasks.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cog import constants
from cog.study.slurm import Array, QueuedJobs, Resources
from cog.study.units import (
    DELETED,
    DONE,
    FAILED,
    INTERRUPTED,
    MISSING,
    QUEUED,
    RUNNING,
    STATES,
    ExtractionUnit,
    Status,
    Study,
    TrainingUnit,
    Unit,
)

logger = logging.getLogger(__name__)

#: The checkout, which is the working folder of the scripts.
REPOSITORY = Path(__file__).resolve().parents[2]

EXTRACT = "extract"
LOGREG = "logreg"
RESULTS = "results"
STAGES = (EXTRACT, LOGREG, RESULTS)

#: Work of one extraction task: both splits of a data set with the network loaded once, or one split.
EXTRACT_TASKS = ("dataset", "split")

#: Work of one classifier task: all runs of a data set with the features loaded once, the runs of one seed or of one
#: number of shots, or a single run.
LOGREG_TASKS = ("dataset", "seed", "shot", "run")

_TO_DO = (FAILED, INTERRUPTED, MISSING)


@dataclass(frozen=True)
class ScriptCommands:
    """Command lines of the scripts.

    Attributes:
        python: path of the Python interpreter.
        root: ``<models_root_dir>``.
        extract_flags: further arguments of ``extract_features.py``.
        logreg_flags: further arguments of ``logreg.py``.
        launcher: command that starts the ranks of an extraction (``srun ...``).
    """

    python: str
    root: Path
    extract_flags: tuple[str, ...] = ()
    logreg_flags: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()

    def extract(self, model: str, datasets: Sequence[str], splits: Sequence[str]) -> list[str]:
        """Return the command that extracts features."""
        return [
            *self.launcher, self.python, str(REPOSITORY / "extract_features.py"), f"--models_root_dir={self.root}",
            f"--model={model}", "--dataset", *datasets, "--split", *splits, *self.extract_flags,
        ]  # fmt: skip

    def logreg(self, model: str, dataset: str, seeds: Sequence[int], n_shots: Sequence[int]) -> list[str]:
        """Return the command that trains classifiers: every seed with every number of shots."""
        return [
            self.python, str(REPOSITORY / "logreg.py"), f"--models_root_dir={self.root}", f"--model={model}",
            f"--dataset={dataset}", "--seeds", *map(str, seeds), "--n_shots", *map(str, n_shots), *self.logreg_flags,
        ]  # fmt: skip


@dataclass(frozen=True)
class StudyPlan:
    """The tasks of a study.

    Attributes:
        arrays: job arrays, each after the arrays that it waits for.
        held_back: reasons why missing units have no task, one line each.
    """

    arrays: tuple[Array, ...]
    held_back: tuple[str, ...]

    def units(self, kind: str) -> list[Unit]:
        """Return the units that the tasks of a kind work on."""
        of_tasks = [units for array in self.arrays if array.kind == kind for units in array.units.values()]
        return [unit for units in of_tasks for unit in units]

    def log(self, statuses: Mapping[Unit, Status]) -> None:
        """Log the number of tasks, and the units without a task."""
        for kind, label, unit_class in (
            (EXTRACT, "features", ExtractionUnit),
            (LOGREG, "classifier runs", TrainingUnit),
        ):
            counts = collections.Counter(
                status.state for unit, status in statuses.items() if isinstance(unit, unit_class)
            )
            states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
            n_tasks = sum(len(array.commands) for array in self.arrays if array.kind == kind)
            tasks = f"to do now: {len(set(self.units(kind)))} in {n_tasks} task{'s' * (n_tasks > 1)}"
            logger.info("%s: %s; %s", label, states, tasks if n_tasks else "nothing to do now")
        for line in self.held_back:
            logger.warning("left out: %s", line)


def with_queue(statuses: Mapping[Unit, Status], queued: QueuedJobs) -> dict[Unit, Status]:
    """Return the statuses with the state of queued units set to ``queued``."""
    result = dict(statuses)
    for unit, (task, state) in queued.units.items():
        if unit in result and result[unit].state in _TO_DO:
            result[unit] = Status(QUEUED, f"SLURM job {task}, {state.lower()}")
    return result


def make_plan(
    study: Study,
    statuses: Mapping[Unit, Status],
    queued: QueuedJobs,
    commands: ScriptCommands,
    *,
    extract: Resources,
    logreg: Resources,
    extract_task: str = "dataset",
    logreg_task: str = "dataset",
    stages: Sequence[str] = (EXTRACT, LOGREG),
    throttle: int | None = None,
    max_array_size: int = 1001,
) -> StudyPlan:
    """Return tasks for all missing units that are neither queued nor running.

    Args:
        study: wanted units.
        statuses: statuses of the units, with the queue (:func:`with_queue`).
        queued: tasks of earlier submissions; empty without a scheduler.
        commands: command lines of the scripts.
        extract: resources of an extraction task.
        logreg: resources of a classifier task.
        extract_task: one of ``EXTRACT_TASKS``.
        logreg_task: one of ``LOGREG_TASKS``.
        stages: wanted kinds of tasks.
        throttle: largest number of tasks of one kind at the same time, shared by its arrays; None: unlimited.
        max_array_size: largest number of tasks in an array; more pairs make more arrays.
    """
    pairs = study.pairs()
    arrays: list[Array] = []
    held_back: list[str] = []
    for part, start in enumerate(range(0, len(pairs), max_array_size), 1):
        chunk = _Chunk(
            study, statuses, queued, commands, extract, logreg, suffix=f"-{part}" if part > 1 else ""
        )
        for number, pair in enumerate(pairs[start : start + max_array_size]):
            waits, reason = chunk.add_extractions(number, *pair, per=extract_task, wanted=EXTRACT in stages)
            if LOGREG in stages:
                chunk.add_trainings(number, *pair, waits, reason, per=logreg_task, held_back=held_back)
            elif reason:
                held_back.append(reason)
        arrays += chunk.arrays.values()
    for kind in (EXTRACT, LOGREG):
        same = [array for array in arrays if array.kind == kind]
        for array in same:
            array.throttle = max(1, throttle // len(same)) if throttle else None
    return StudyPlan(tuple(sorted(arrays, key=lambda array: array.kind != EXTRACT)), tuple(held_back))


@dataclass(frozen=True)
class _Waits:
    """The arrays, earlier jobs and earlier tasks that the classifiers of a model and data set wait for."""

    arrays: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


def _by_number(tasks: Iterable[str], number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split tasks into the jobs of tasks with this number (``aftercorr``) and all other tasks."""
    same = [task.partition("_")[0] for task in tasks if task.partition("_")[2] == str(number)]
    other = [task for task in tasks if task.partition("_")[2] != str(number)]
    return tuple(sorted(same)), tuple(sorted(other))


class _Chunk:
    """The arrays for a range of (model, data set) pairs, which share task numbers."""

    def __init__(
        self,
        study: Study,
        statuses: Mapping[Unit, Status],
        queued: QueuedJobs,
        commands: ScriptCommands,
        extract: Resources,
        logreg: Resources,
        *,
        suffix: str,
    ) -> None:
        self._study = study
        self._statuses = statuses
        self._queued = queued
        self._commands = commands
        self._resources = {EXTRACT: extract, LOGREG: logreg}
        self._suffix = suffix
        self._of_waits: dict[tuple[_Waits, int], str] = {}
        self.arrays: dict[str, Array] = {}

    def _array(self, name: str, kind: str, waits: _Waits) -> Array:
        name += self._suffix
        if name not in self.arrays:
            self.arrays[name] = Array(
                name,
                kind,
                self._resources[kind],
                after=waits.arrays,
                after_jobs=waits.jobs,
                after_tasks=waits.tasks,
            )
        return self.arrays[name]

    def add_extractions(
        self, number: int, model: str, dataset: str, *, per: str, wanted: bool
    ) -> tuple[_Waits, str]:
        """Add the tasks that extract the features of a pair.

        Returns:
            The tasks that its classifiers wait for, and the reason why the classifiers cannot be submitted ("" if they
            can).
        """
        units = self._study.extractions(model, dataset)
        # Deleted features are extracted again only for a run that needs them.
        needed = any(self._statuses[unit].state in _TO_DO for unit in self._study.trainings(model, dataset))
        settled, to_do = ((DONE,), (*_TO_DO, DELETED)) if needed else ((DONE, DELETED), _TO_DO)
        open_ = [unit for unit in units if self._statuses[unit].state not in settled]
        todo = [unit for unit in open_ if self._statuses[unit].state in to_do]
        queued_tasks = {self._queued.units[unit][0] for unit in open_ if unit in self._queued.units}
        elsewhere = [unit for unit in open_ if unit not in todo and unit not in self._queued.units]
        reason = ""
        if elsewhere:
            reason = f"{elsewhere[0]}: {self._statuses[elsewhere[0]].detail}"
        elif todo and not wanted:
            reason = f"{todo[0]}: missing"
        for split in constants.SPLITS:
            other = ExtractionUnit(model, dataset, split)
            if (
                other not in units
                and not (other.folder(self._study.root) / constants.FEATURES_FILE).is_file()
            ):
                reason = reason or f"{other}: missing, and {split} is not among the splits"
        if not wanted:
            return _Waits((), *_by_number(queued_tasks, number)), reason
        waits_for = []
        groups = [todo] if per == "dataset" else [[unit] for unit in todo]
        for group in filter(None, groups):
            name = EXTRACT if per == "dataset" else f"{EXTRACT}-{group[0].split}"
            array = self._array(name, EXTRACT, _Waits())
            array.commands[number] = self._commands.extract(model, [dataset], [unit.split for unit in group])
            array.units[number] = list(group)
            waits_for.append(array.name)
        return _Waits(tuple(waits_for), *_by_number(queued_tasks, number)), reason

    def add_trainings(
        self,
        number: int,
        model: str,
        dataset: str,
        waits: _Waits,
        reason: str,
        *,
        per: str,
        held_back: list[str],
    ) -> None:
        """Add the tasks that train the classifiers of a pair."""
        units = self._study.trainings(model, dataset)
        missing = [unit for unit in units if self._statuses[unit].state in _TO_DO]
        if not missing:
            return
        if reason:
            held_back.append(f"{len(missing)} classifier runs of {model} on {dataset} wait for {reason}")
            return
        taken = {
            (unit.seed, unit.n_shot)
            for unit in units
            if self._statuses[unit].state in (RUNNING, QUEUED) or self._statuses[unit].foreign
        }
        for turn, (seeds, shots) in enumerate(as_seed_shot_grids(missing, taken, per=per)):
            key = (waits, turn)
            if key not in self._of_waits:
                self._of_waits[key] = LOGREG if not self._of_waits else f"{LOGREG}-{len(self._of_waits) + 1}"
            array = self._array(self._of_waits[key], LOGREG, waits)
            array.commands[number] = self._commands.logreg(model, dataset, seeds, shots)
            array.units[number] = [unit for unit in missing if unit.seed in seeds and unit.n_shot in shots]


def as_seed_shot_grids(
    missing: Sequence[TrainingUnit], taken: set[tuple[int, int]], *, per: str
) -> list[tuple[list[int], list[int]]]:
    """Cover missing runs by calls that train every seed with every number of shots.

    A call may include finished runs, which are skipped, but never runs of other processes or tasks.

    Args:
        missing: missing runs of one model and data set.
        taken: pairs (seed, shots) of the runs of other processes or tasks.
        per: one of ``LOGREG_TASKS``.

    Returns:
        (seeds, shots) of each call.
    """
    seeds = list(dict.fromkeys(unit.seed for unit in missing))
    shots = list(dict.fromkeys(unit.n_shot for unit in missing))
    if per == "run":
        return [([unit.seed], [unit.n_shot]) for unit in missing]
    if per == "seed":
        return [([seed], [unit.n_shot for unit in missing if unit.seed == seed]) for seed in seeds]
    by_shot = {shot: [unit.seed for unit in missing if unit.n_shot == shot] for shot in shots}
    if per == "shot":
        return [(by_shot[shot], [shot]) for shot in shots]
    if not any((seed, shot) in taken for seed in seeds for shot in shots):
        return [(seeds, shots)]
    together: dict[tuple[int, ...], list[int]] = {}
    for shot, of_shot in by_shot.items():
        together.setdefault(tuple(of_shot), []).append(shot)
    return [(list(of_shots), same) for of_shots, same in together.items()]
