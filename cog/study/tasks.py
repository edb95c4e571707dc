"""The tasks of a study: lines of ``<log_dir>/tasks.txt``, a list that only grows.

::

    extract cog_l1 dino_resnet50 sup_resnet50     the features of models on a data set, both splits
    logreg cog_l1 dino_resnet50                   classifiers of one model, all seeds and shots

A line is a piece of work; how it is done (folders, settings) comes from the command. Its number is its name for ever:
the index in job arrays, and the log ``<log_dir>/<number>.log``. What is done stands in the output folders alone, so a
task that runs twice ends in a moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cog import constants
from cog.errors import os_errors_explained
from cog.runtime.output import DONE, State
from cog.study.units import Study, Unit

#: The checkout, which is the working folder of the scripts.
REPOSITORY = Path(__file__).resolve().parents[2]

EXTRACT, LOGREG = "extract", "logreg"

#: The list, in the log folder.
TASKS_FILE = "tasks.txt"

#: Largest number of models that one task extracts; each image is decoded once for all of them.
MODELS_PER_PASS = 8


@dataclass(frozen=True)
class Task:
    """A piece of work: the words ``extract DATASET MODEL...`` or ``logreg DATASET MODEL``."""

    stage: str
    dataset: str
    models: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.stage, self.dataset, *self.models))

    def needs(self, other: Task) -> bool:
        """Return whether the task reads what the other one makes."""
        same = self.dataset == other.dataset and set(self.models) <= set(other.models)
        return (other.stage, self.stage) == (EXTRACT, LOGREG) and same


def commands_of(study: Study, flags: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the command line of each stage, without data set and models; ``flags`` has further flags of the stages."""
    root = f"--models_root_dir={study.root}"
    grid = ["--seeds", *map(str, study.seeds), "--n_shot", *map(str, study.n_shots)]
    extract = [sys.executable, f"{REPOSITORY / 'extract_features.py'}", root, "--split", *constants.SPLITS]
    logreg = [sys.executable, f"{REPOSITORY / 'logreg.py'}", root, *grid]
    return {EXTRACT: [*extract, *flags[EXTRACT]], LOGREG: [*logreg, *flags[LOGREG]]}


def command_of(task: Task, commands: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the command line of a task, as ``task.sh`` builds it."""
    python, script, *flags = commands[task.stage]
    return [python, script, "--dataset", task.dataset, "--model", *task.models, *flags]


def list_tasks(study: Study, log_dir: Path, *, append: bool = True) -> dict[int, Task]:
    """Return the tasks of a study by number; those that the list does not have are appended.

    The first line of a task counts, and the list is read again after an append. So processes that append at once agree,
    with locks or without; a torn line is a number that nobody uses.

    Raises:
        CogError: the list cannot be read or written.
    """
    path = log_dir / TASKS_FILE
    while True:
        with os_errors_explained(f"cannot read {path}"):
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        lines = text.split("\n")
        torn = lines.pop() != ""
        lines += [""] * torn
        tasks = _numbered(study, lines)
        new = "".join(f"{task}\n" for number, task in tasks.items() if number > len(lines))
        if not (new and append):
            return tasks
        with os_errors_explained(f"cannot write {path}"), open(path, "ab", buffering=0) as file:
            file.write(("\n" * torn + new).encode())


def _numbered(study: Study, lines: Sequence[str]) -> dict[int, Task]:
    """Return the tasks of a study by number: lines of the list, then new ones."""
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        numbers.setdefault(line, number)
    extractions, classifiers = [], []
    for dataset in study.datasets:
        left = dict.fromkeys(study.models)  # a listed pass stays as it is; only other models get a new one
        for line in numbers:
            stage, _, rest = line.partition(" ")
            models = tuple(rest.split()[1:])
            if stage == EXTRACT and rest.split()[:1] == [dataset] and left.keys() & set(models):
                extractions.append(Task(EXTRACT, dataset, models))
                left = {model: None for model in left if model not in models}
        models = tuple(left)
        for first in range(0, len(models), MODELS_PER_PASS):
            extractions.append(Task(EXTRACT, dataset, models[first : first + MODELS_PER_PASS]))
        classifiers += [Task(LOGREG, dataset, (model,)) for model in study.models]
    tasks = [*extractions, *classifiers]
    new = [str(task) for task in tasks if str(task) not in numbers]
    numbers |= {line: number for number, line in enumerate(new, len(lines) + 1)}
    return {numbers[str(task)]: task for task in tasks}


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


def outputs_to_make(
    study: Study, task: Task, states: Mapping[Unit, State], other: Collection[Unit]
) -> list[Unit]:
    """Return the outputs of a task that are missing, or in ``other`` (results of other computations, to be replaced).

    Features whose runs are all done are not needed: they may have been deleted.
    """
    units: list[Unit] = []
    for model in task.models:
        if model not in study.models:  # in a pass that an earlier study has listed
            continue
        runs = study.runs(model, task.dataset)
        made = {run for run in runs if states[run].word == DONE and run not in other}
        if task.stage == LOGREG:
            units += [run for run in runs if run not in made]
            continue
        features = study.features(model, task.dataset)
        is_needed = len(made) < len(runs)
        units += [unit for unit in features if unit in other or (is_needed and states[unit].word != DONE)]
    return units
