"""The tasks of a study: lines of ``<log_dir>/tasks.txt``, a list that only grows.

::

    extract cog_l1 dino_resnet50     the features of a model on a data set, both splits
    logreg cog_l1 dino_resnet50      its classifiers, all seeds and shots

The number of a line is the number of its task for ever: the index in job arrays, and the log
``<log_dir>/<number>.log``. What is done stands in the output folders alone, so a task that runs twice ends in a moment.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cog.errors import os_errors_explained
from cog.study.units import (
    DELETED,
    DONE,
    FAILED,
    INTERRUPTED,
    MISSING,
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

EXTRACT, LOGREG = "extract", "logreg"

#: The list, in the log folder.
TASKS_FILE = "tasks.txt"

_TO_DO = (FAILED, INTERRUPTED, MISSING)


@dataclass(frozen=True)
class StudyTask:
    """A piece of work: the words ``extract DATASET MODEL`` or ``logreg DATASET MODEL``."""

    stage: str
    dataset: str
    model: str

    def __str__(self) -> str:
        return f"{self.stage} {self.dataset} {self.model}"

    def needs(self, other: StudyTask) -> bool:
        """Return whether the task reads what the other one makes."""
        return self.stage == LOGREG and other == StudyTask(EXTRACT, self.dataset, self.model)

    def units(self, study: Study) -> Sequence[Unit]:
        """Return the outputs of the task."""
        if self.stage == EXTRACT:
            return study.extractions(self.model, self.dataset)
        return study.trainings(self.model, self.dataset)


@dataclass(frozen=True)
class Commands:
    """Command lines of the scripts, without data set and model.

    Attributes:
        extract: program and flags of an extraction.
        logreg: program and flags of the training of classifiers.
    """

    extract: tuple[str, ...]
    logreg: tuple[str, ...]

    @classmethod
    def of_scripts(
        cls, study: Study, root: Path, extract_flags: Sequence[str], logreg_flags: Sequence[str]
    ) -> Commands:
        """Return the commands of a study; ``root`` is that of the checkpoints."""
        grid = ["--seeds", *map(str, study.seeds), "--n_shots", *map(str, study.n_shots)]
        extract = [f"--models_root_dir={root}", "--split", "train", "test", *extract_flags]
        logreg = [f"--models_root_dir={study.root}", *grid, *logreg_flags]
        return cls(
            (sys.executable, str(REPOSITORY / "extract_features.py"), *extract),
            (sys.executable, str(REPOSITORY / "logreg.py"), *logreg),
        )

    def of_stage(self, stage: str) -> tuple[str, ...]:
        """Return the command of a stage."""
        return self.extract if stage == EXTRACT else self.logreg

    def of_task(self, task: StudyTask) -> list[str]:
        """Return the command of a task, as ``task.sh`` builds it."""
        python, script, *flags = self.of_stage(task.stage)
        return [python, script, "--dataset", task.dataset, "--model", task.model, *flags]


def list_tasks(study: Study, log_dir: Path, *, append: bool = True) -> dict[int, StudyTask]:
    """Return the tasks of a study by number; those that the list does not have are appended.

    The first line of a task counts, and the list is read again after an append. So processes that append at once agree,
    with locks or without; a torn line is a number that nobody uses.

    Raises:
        CogError: the list cannot be read or written.
    """
    path = log_dir / TASKS_FILE
    wanted = [StudyTask(EXTRACT, dataset, model) for dataset in study.datasets for model in study.models]
    wanted += [StudyTask(LOGREG, dataset, model) for dataset in study.datasets for model in study.models]
    while True:
        with os_errors_explained(f"cannot read {path}"):
            text = path.read_text() if path.is_file() else ""
        lines = text.split("\n")
        torn = lines.pop() != ""
        lines += [""] * torn
        numbers: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            numbers.setdefault(line, number)
        new = [str(task) for task in wanted if str(task) not in numbers]
        if not (new and append):
            numbers |= {line: number for number, line in enumerate(new, len(lines) + 1)}
            return {numbers[str(task)]: task for task in wanted}
        with os_errors_explained(f"cannot write {path}"), open(path, "ab", buffering=0) as file:
            file.write(("\n" * torn + "".join(f"{line}\n" for line in new)).encode())


@contextlib.contextmanager
def one_at_a_time(log_dir: Path) -> Iterator[None]:
    """Wait until no other process lists or submits tasks in a log folder.

    Where a file system has no locks, tasks may be queued twice, which costs a moment.

    Raises:
        CogError: the folder cannot be written to.
    """
    with os_errors_explained(f"cannot write into --log_dir {log_dir}"):
        log_dir.mkdir(parents=True, exist_ok=True)
        file = open(log_dir / ".lock", "ab")  # noqa: SIM115
    with file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def open_tasks(
    study: Study, tasks: Mapping[int, StudyTask], statuses: Mapping[Unit, Status]
) -> dict[int, StudyTask]:
    """Return the tasks with something to do, and log the others that are not done.

    Deleted features are extracted again only for a run that needs them. Classifiers wait for features that another
    process extracts now; a later start of the study trains them.
    """
    todo: dict[int, StudyTask] = {}
    for number, task in tasks.items():
        states = {statuses[unit].state for unit in task.units(study)}
        extractions = study.extractions(task.model, task.dataset)
        if task.stage == EXTRACT:
            runs = study.trainings(task.model, task.dataset)
            again = DELETED in states and any(statuses[run].state in _TO_DO for run in runs)
            to_do = again or bool(states & {*_TO_DO})
        else:
            to_do = bool(states & {*_TO_DO})
            elsewhere = [unit for unit in extractions if statuses[unit].state == RUNNING]
            if to_do and elsewhere:
                logger.warning("left out: %s: %s: %s", task, elsewhere[0], statuses[elsewhere[0]].detail)
                continue
        if to_do:
            todo[number] = task
    return todo


def is_done(study: Study, tasks: Collection[StudyTask], statuses: Mapping[Unit, Status]) -> bool:
    """Return whether all outputs of some tasks are there."""
    return all(statuses[unit].state in (DONE, DELETED) for task in tasks for unit in task.units(study))


def log_counts(tasks: Collection[StudyTask], statuses: Mapping[Unit, Status]) -> None:
    """Log the states of the units, and the number of tasks to do."""
    for stage, label, kind in (
        (EXTRACT, "features", ExtractionUnit),
        (LOGREG, "classifier runs", TrainingUnit),
    ):
        counts = collections.Counter(
            status.state for unit, status in statuses.items() if isinstance(unit, kind)
        )
        states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
        n = sum(task.stage == stage for task in tasks)
        todo = f"to do now: {n} task{'s' * (n > 1)}" if n else "nothing to do now"
        logger.info("%s: %s; %s", label, states, todo)
