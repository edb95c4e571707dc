"""From the units of a study that are missing to tasks: one command each, with what it has to wait for.

Tasks come as arrays whose numbers stand for the same (model, data set) in all of them, so that a classifier task waits
for the extraction task of its own number: SLURM's ``aftercorr``. Run on one machine, they are the same tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cog import names
from cog.slurm import Ahead, Array, Resources
from cog.study_units import (
    DONE,
    FAILED,
    INTERRUPTED,
    MISSING,
    QUEUED,
    RUNNING,
    Extraction,
    Status,
    Study,
    Training,
    Unit,
)

EXTRACT = "extract"
LOGREG = "logreg"

#: What one extraction task does: both splits of a data set with the network loaded once, or one split.
EXTRACT_TASKS = ("dataset", "split")

#: What one classifier task does: all runs of a data set with the features loaded once, those of one seed or of one
#: number of shots, or a single run.
LOGREG_TASKS = ("dataset", "seed", "shot", "run")

_TO_DO = (FAILED, INTERRUPTED, MISSING)


@dataclass(frozen=True)
class Commands:
    """How the scripts are called.

    Attributes:
        python: interpreter.
        repository: checkout that holds the scripts.
        root: ``<models_root_dir>``.
        extract_flags: further arguments of ``extract_features.py``.
        logreg_flags: further arguments of ``logreg.py``.
        launcher: what starts the ranks of an extraction (``srun ...``).
    """

    python: str
    repository: Path
    root: Path
    extract_flags: tuple[str, ...] = ()
    logreg_flags: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()

    def extract(self, model: str, datasets: Sequence[str], splits: Sequence[str]) -> list[str]:
        """Return the command that extracts features."""
        return [
            *self.launcher, self.python, str(self.repository / "extract_features.py"), f"--models_root_dir={self.root}",
            f"--model={model}", "--dataset", *datasets, "--split", *splits, *self.extract_flags,
        ]  # fmt: skip

    def logreg(self, model: str, dataset: str, seeds: Sequence[int], n_shots: Sequence[int]) -> list[str]:
        """Return the command that trains classifiers: every seed with every number of shots."""
        return [
            self.python, str(self.repository / "logreg.py"), f"--models_root_dir={self.root}", f"--model={model}",
            f"--dataset={dataset}", "--seeds", *map(str, seeds), "--n_shots", *map(str, n_shots), *self.logreg_flags,
        ]  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        arrays: in an order in which each comes after those it waits for.
        held_back: why units that are missing are not among them, one line each.
    """

    arrays: tuple[Array, ...]
    held_back: tuple[str, ...]


def with_queue(statuses: Mapping[Unit, Status], ahead: Ahead) -> dict[Unit, Status]:
    """Return the states with those of the scheduler's queue put in."""
    result = dict(statuses)
    for unit, (task, state) in ahead.units.items():
        if unit in result and result[unit].state in _TO_DO:
            result[unit] = Status(QUEUED, f"SLURM job {task}, {state.lower()}")
    return result


def plan(
    study: Study,
    statuses: Mapping[Unit, Status],
    ahead: Ahead,
    commands: Commands,
    *,
    extract: Resources,
    logreg: Resources,
    extract_task: str = "dataset",
    logreg_task: str = "dataset",
    stages: Sequence[str] = (EXTRACT, LOGREG),
    throttle: int | None = None,
    max_array_size: int = 1001,
) -> Plan:
    """Make tasks of everything that is missing and on nobody's list yet.

    Args:
        study: what is wanted.
        statuses: of its units, with the queue (:func:`with_queue`).
        ahead: tasks of earlier submissions that are still to end; empty without a scheduler.
        commands: how the scripts are called.
        extract: what an extraction task asks for.
        logreg: what a classifier task asks for.
        extract_task: one of ``EXTRACT_TASKS``.
        logreg_task: one of ``LOGREG_TASKS``.
        stages: which kinds of tasks are wanted.
        throttle: tasks of one kind that run at the same time, distributed over its arrays.
        max_array_size: numbers in an array; with more pairs there are more arrays.
    """
    pairs = study.pairs()
    arrays: list[Array] = []
    held_back: list[str] = []
    for part, start in enumerate(range(0, len(pairs), max_array_size), 1):
        chunk = _Chunk(
            study, statuses, ahead, commands, extract, logreg, suffix=f"-{part}" if part > 1 else ""
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
    return Plan(tuple(sorted(arrays, key=lambda array: array.kind != EXTRACT)), tuple(held_back))


@dataclass(frozen=True)
class _Waits:
    """What the classifiers of a pair wait for."""

    arrays: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


def _by_number(tasks: Iterable[str], number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tell the arrays whose task has this number, which one array can wait for, from other tasks."""
    same = [task.partition("_")[0] for task in tasks if task.partition("_")[2] == str(number)]
    other = [task for task in tasks if task.partition("_")[2] != str(number)]
    return tuple(sorted(same)), tuple(sorted(other))


class _Chunk:
    """The arrays of pairs that share numbers."""

    def __init__(
        self,
        study: Study,
        statuses: Mapping[Unit, Status],
        ahead: Ahead,
        commands: Commands,
        extract: Resources,
        logreg: Resources,
        *,
        suffix: str,
    ) -> None:
        self._study = study
        self._statuses = statuses
        self._ahead = ahead
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
        """Add what extracts the features of a pair.

        Returns:
            What its classifiers wait for, and why they cannot be submitted ("" when they can).
        """
        units = self._study.extractions(model, dataset)
        open_ = [unit for unit in units if self._statuses[unit].state != DONE]
        todo = [unit for unit in open_ if self._statuses[unit].state in _TO_DO]
        queued = {self._ahead.units[unit][0] for unit in open_ if unit in self._ahead.units}
        elsewhere = [unit for unit in open_ if unit not in todo and unit not in self._ahead.units]
        reason = ""
        if elsewhere:
            reason = f"{elsewhere[0]}: {self._statuses[elsewhere[0]].detail}"
        elif todo and not wanted:
            reason = f"{todo[0]}: missing"
        for split in names.SPLITS:
            other = Extraction(model, dataset, split)
            if other not in units and not (other.folder(self._study.root) / names.FEATURES_FILE).is_file():
                reason = reason or f"{other}: missing, and {split} is not among the splits"
        if not wanted:
            return _Waits((), *_by_number(queued, number)), reason
        waits_for = []
        groups = [todo] if per == "dataset" else [[unit] for unit in todo]
        for group in filter(None, groups):
            name = EXTRACT if per == "dataset" else f"{EXTRACT}-{group[0].split}"
            array = self._array(name, EXTRACT, _Waits())
            array.commands[number] = self._commands.extract(model, [dataset], [unit.split for unit in group])
            array.units[number] = list(group)
            waits_for.append(array.name)
        return _Waits(tuple(waits_for), *_by_number(queued, number)), reason

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
        """Add what trains the classifiers of a pair."""
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
        for turn, (seeds, shots) in enumerate(products(missing, taken, per=per)):
            key = (waits, turn)
            if key not in self._of_waits:
                self._of_waits[key] = LOGREG if not self._of_waits else f"{LOGREG}-{len(self._of_waits) + 1}"
            array = self._array(self._of_waits[key], LOGREG, waits)
            array.commands[number] = self._commands.logreg(model, dataset, seeds, shots)
            array.units[number] = [unit for unit in missing if unit.seed in seeds and unit.n_shot in shots]


def products(
    missing: Sequence[Training], taken: set[tuple[int, int]], *, per: str
) -> list[tuple[list[int], list[int]]]:
    """Cover missing runs by calls that train every seed with every number of shots.

    A call may name runs that are done (they are skipped), never those that others work on.

    Args:
        missing: runs of one model and data set.
        taken: (seed, shots) that must not be named.
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
