"""Tasks for the missing units of a study: one command each, with the tasks that it has to wait for.

Tasks form arrays. A task number means the same (model, data set) in all arrays, so that a classifier task waits for the
extraction task of the same number (SLURM's ``aftercorr``). A study on one machine runs the same tasks.
"""

from __future__ import annotations

import collections
import logging
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cog.study.slurm import Array, Dependencies, QueuedJobs
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

_TO_DO = (FAILED, INTERRUPTED, MISSING)


@dataclass(frozen=True)
class ScriptCommands:
    """Command lines of the scripts.

    Attributes:
        root: ``<models_root_dir>``.
        results_root: root of the outputs: ``root``, or ``<root>/limit-<N>``.
        extract_flags: further arguments of ``extract_features.py``.
        logreg_flags: further arguments of ``logreg.py``.
    """

    root: Path
    results_root: Path
    extract_flags: tuple[str, ...] = ()
    logreg_flags: tuple[str, ...] = ()

    def extract(self, model: str, dataset: str, splits: Sequence[str]) -> list[str]:
        """Return the command that extracts features."""
        return [
            sys.executable,
            str(REPOSITORY / "extract_features.py"),
            f"--models_root_dir={self.root}",
            f"--model={model}",
            f"--dataset={dataset}",
            "--split",
            *splits,
            *self.extract_flags,
        ]

    def logreg(self, model: str, dataset: str, seeds: Sequence[int], n_shots: Sequence[int]) -> list[str]:
        """Return the command that trains classifiers: every seed with every number of shots."""
        return [
            sys.executable,
            str(REPOSITORY / "logreg.py"),
            f"--models_root_dir={self.results_root}",
            f"--model={model}",
            f"--dataset={dataset}",
            "--seeds",
            *map(str, seeds),
            "--n_shots",
            *map(str, n_shots),
            *self.logreg_flags,
        ]


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

    def without(self, models: Collection[str]) -> StudyPlan:
        """Return the plan without the tasks of some models; the other tasks keep their numbers."""
        arrays = []
        for array in self.arrays:
            units = {number: some for number, some in array.units.items() if some[0].model not in models}
            if units:
                commands = {number: array.commands[number] for number in units}
                arrays.append(replace(array, commands=commands, units=units))
        return replace(self, arrays=tuple(arrays))

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
    throttle: int | None = None,
    max_array_size: int | None = None,
) -> StudyPlan:
    """Return tasks for all missing units that are neither queued nor running.

    Args:
        study: wanted units.
        statuses: statuses of the units, with the queue (:func:`with_queue`).
        queued: tasks of earlier submissions; empty without a scheduler.
        commands: command lines of the scripts.
        throttle: largest number of tasks of one kind at the same time, shared by its arrays; None: unlimited.
        max_array_size: largest number of tasks in an array; more pairs make more arrays. None: unlimited.
    """
    pairs = study.pairs()
    size = max_array_size or len(pairs) or 1
    arrays: list[Array] = []
    held_back: list[str] = []
    for part, start in enumerate(range(0, len(pairs), size), 1):
        chunk = _Chunk(study, statuses, queued, commands, suffix=f"-{part}" if part > 1 else "")
        for number, pair in enumerate(pairs[start : start + size]):
            after, reason = chunk.add_extraction(number, *pair)
            reason = chunk.add_trainings(number, *pair, after, reason)
            held_back += [reason] if reason else []
        arrays += chunk.arrays.values()
    for kind in (EXTRACT, LOGREG):
        same = [array for array in arrays if array.kind == kind]
        for array in same:
            array.throttle = max(1, throttle // len(same)) if throttle else None
    return StudyPlan(tuple(sorted(arrays, key=lambda array: array.kind != EXTRACT)), tuple(held_back))


def _dependencies(arrays: Iterable[str], tasks: Iterable[str], number: int) -> Dependencies:
    """Return the dependencies of the tasks of a number: arrays of this submission, and tasks of earlier ones."""
    places = sorted((*task.split("_"), task) for task in tasks)
    same = tuple(job for job, place, _ in places if place == str(number))
    other = tuple(task for _, place, task in places if place != str(number))
    return Dependencies(tuple(arrays), same, other)


@dataclass
class _Chunk:
    """The arrays for a range of (model, data set) pairs, which share task numbers.

    Attributes:
        suffix: end of the names of the arrays.
        arrays: arrays by name.
    """

    study: Study
    statuses: Mapping[Unit, Status]
    queued: QueuedJobs
    commands: ScriptCommands
    suffix: str
    arrays: dict[str, Array] = field(default_factory=dict)
    names: dict[tuple[Dependencies, int], str] = field(default_factory=dict)

    def _add(
        self,
        name: str,
        kind: str,
        after: Dependencies,
        number: int,
        command: list[str],
        units: Sequence[Unit],
    ) -> str:
        """Add a task to the array of this name, and return the full name of the array."""
        name += self.suffix
        array = self.arrays.setdefault(name, Array(name, kind, after))
        array.commands[number], array.units[number] = command, units
        return name

    def add_extraction(self, number: int, model: str, dataset: str) -> tuple[Dependencies, str]:
        """Add the task that extracts the features of a pair.

        Returns:
            The dependencies of its classifiers, and the reason why these cannot be submitted ("" if they can).
        """
        units = self.study.extractions(model, dataset)
        # Deleted features are extracted again only for a run that needs them.
        needed = any(self.statuses[unit].state in _TO_DO for unit in self.study.trainings(model, dataset))
        settled, to_do = ((DONE,), (*_TO_DO, DELETED)) if needed else ((DONE, DELETED), _TO_DO)
        open_ = [unit for unit in units if self.statuses[unit].state not in settled]
        todo = [unit for unit in open_ if self.statuses[unit].state in to_do]
        elsewhere = [unit for unit in open_ if unit not in todo and unit not in self.queued.units]
        arrays = []
        if todo:
            command = self.commands.extract(model, dataset, [unit.split for unit in todo])
            arrays.append(self._add(EXTRACT, EXTRACT, Dependencies(), number, command, todo))
        queued_tasks = {self.queued.units[unit][0] for unit in open_ if unit in self.queued.units}
        reason = f"{elsewhere[0]}: {self.statuses[elsewhere[0]].detail}" if elsewhere else ""
        return _dependencies(arrays, queued_tasks, number), reason

    def add_trainings(self, number: int, model: str, dataset: str, after: Dependencies, reason: str) -> str:
        """Add the tasks that train the classifiers of a pair, unless there is a reason against it.

        Returns:
            The reason why classifiers are left out; "" if none are.
        """
        units = self.study.trainings(model, dataset)
        missing = [unit for unit in units if self.statuses[unit].state in _TO_DO]
        if not missing or reason:
            runs = f"{len(missing)} classifier runs of {model} on {dataset}"
            return f"{runs} wait for {reason}" if missing else ""
        taken = {
            (unit.seed, unit.n_shot)
            for unit in units
            if self.statuses[unit].state in (RUNNING, QUEUED) or self.statuses[unit].foreign
        }
        for turn, (seeds, shots) in enumerate(as_seed_shot_grids(missing, taken)):
            n = len(self.names) + 1
            name = self.names.setdefault((after, turn), f"{LOGREG}-{n}" if n > 1 else LOGREG)
            command = self.commands.logreg(model, dataset, seeds, shots)
            inside = [unit for unit in missing if unit.seed in seeds and unit.n_shot in shots]
            self._add(name, LOGREG, after, number, command, inside)
        return ""


def as_seed_shot_grids(
    missing: Sequence[TrainingUnit], taken: set[tuple[int, int]]
) -> list[tuple[list[int], list[int]]]:
    """Cover missing runs by calls that train every seed with every number of shots.

    A call may include finished runs, which are skipped, but never runs of other processes or tasks.

    Args:
        missing: missing runs of one model and data set.
        taken: pairs (seed, shots) of the runs of other processes or tasks.

    Returns:
        (seeds, shots) of each call.
    """
    seeds = list(dict.fromkeys(unit.seed for unit in missing))
    shots = list(dict.fromkeys(unit.n_shot for unit in missing))
    by_shot = {shot: [unit.seed for unit in missing if unit.n_shot == shot] for shot in shots}
    if not any((seed, shot) in taken for seed in seeds for shot in shots):
        return [(seeds, shots)]
    together: dict[tuple[int, ...], list[int]] = {}
    for shot, of_shot in by_shot.items():
        together.setdefault(tuple(of_shot), []).append(shot)
    return [(list(of_shots), same) for of_shots, same in together.items()]
