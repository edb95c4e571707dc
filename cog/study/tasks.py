"""The tasks of a study: lines of ``<log_dir>/tasks.txt``, a list that only grows.

::

    extract cog_l1 dino_resnet50 sup_resnet50     the features of models on a data set, both splits
    logreg cog_l1 dino_resnet50                   classifiers of one model, all seeds and shots

A line is a piece of work; how it is done comes from the command. Its number is its name for ever: the index
in job arrays, and the log ``<log_dir>/<number>.log``. What is done stands in the output folders alone, so a
task that runs twice ends in a moment.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cog import constants
from cog.errors import os_errors_explained
from cog.runtime.output import DONE, State
from cog.study.units import OTHER, Study, Unit

REPOSITORY = Path(__file__).resolve().parents[2]

EXTRACT, LOGREG, TASKS_FILE = "extract", "logreg", "tasks.txt"

MODELS_PER_PASS = 8  # each image is decoded once for all of them


@dataclass(frozen=True)
class Task:
    """A piece of work: the words ``extract DATASET MODEL...`` or ``logreg DATASET MODEL``."""

    kind: str
    dataset: str
    models: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.kind, self.dataset, *self.models))

    def needs(self, other: Task) -> bool:
        """Return whether the task reads what the other one makes."""
        same = self.dataset == other.dataset and set(self.models) <= set(other.models)
        return (other.kind, self.kind) == (EXTRACT, LOGREG) and same

    def command(self, commands: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the command line, from that of its kind, as ``task.sh`` builds it."""
        python, script, *flags = commands[self.kind]
        return [python, script, "--dataset", self.dataset, "--model", *self.models, *flags]


def commands_of(study: Study, extract: Sequence[str], logreg: Sequence[str]) -> dict[str, list[str]]:
    """Return the command line of each kind, without data set and models, with further flags of each."""
    python, root = sys.executable, f"--models_root_dir={study.root}"
    grid = ["--seeds", *map(str, study.seeds), "--n_shot", *map(str, study.n_shots)]
    return {
        EXTRACT: [python, f"{REPOSITORY}/extract_features.py", root, "--split", *constants.SPLITS, *extract],
        LOGREG: [python, f"{REPOSITORY}/logreg.py", root, *grid, *logreg],
    }


def list_tasks(study: Study, log_dir: Path, *, append: bool = True) -> dict[int, Task]:
    """Return the tasks of a study by number; those that the list does not have are appended.

    The first line of a task counts, and the list is read again after an append. So processes that append at
    once agree, with locks or without; a torn line is a number that nobody uses.
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
        # A listed pass stays as it is, and has no models of others: flags are not for these. The rest is new.
        left = list(study.models)
        for line in numbers:
            words = line.split()
            if words[:2] == [EXTRACT, dataset] and words[2:] and {*words[2:]} <= {*left}:
                extractions.append(Task(EXTRACT, dataset, tuple(words[2:])))
                left = [model for model in left if model not in words[2:]]
        for first in range(0, len(left), MODELS_PER_PASS):
            extractions.append(Task(EXTRACT, dataset, tuple(left[first : first + MODELS_PER_PASS])))
        classifiers += [Task(LOGREG, dataset, (model,)) for model in study.models]
    tasks = [*extractions, *classifiers]
    new = [str(task) for task in tasks if str(task) not in numbers]
    numbers |= {line: number for number, line in enumerate(new, len(lines) + 1)}
    return {numbers[str(task)]: task for task in tasks}


def is_open(study: Study, task: Task, states: Mapping[Unit, State]) -> bool:
    """Return whether something is left to do: what is missing, or another computation's.

    Features whose runs are all done are not needed: they may have been deleted.
    """
    for model in task.models:
        words = {states[run].word for run in study.runs(model, task.dataset)}
        if task.kind == EXTRACT:
            of_features = {states[unit].word for unit in study.features(model, task.dataset)}
            words = of_features if words != {DONE} else of_features & {OTHER}
        if words - {DONE}:
            return True
    return False


def script(study: Study, log_dir: Path, opts: Sequence[str]) -> str:
    """Return the shell commands that write the files, and print the table and what is missing from it.

    A file appears when it is complete; with no finished run the exit code is that of ``print_results.py``.
    """
    python = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable]
    root = f"--models_root_dir={study.root}"
    lists = {"model": study.models, "dataset": study.datasets, "n_shot": study.n_shots, "seeds": study.seeds}
    chosen = [word for flag, values in lists.items() for word in (f"--{flag}", *map(str, values))]
    show = [*python, f"{REPOSITORY}/print_results.py", root, *chosen, *opts]
    # The view is given because the result of a single cell would be printed seed by seed.
    table, page = [*show, "--show", "accuracy"], [*show, "--report", f"{log_dir}/report.html", "--overwrite"]
    lines = [  # in a folder of this process alone
        f"cd {shlex.quote(str(log_dir))} && made=$(mktemp -d .made-XXXXXX) || exit",
        "trap 'rm -r $made' EXIT",
        f"{shlex.join([*python, '-m', 'cog', 'status', root])} > $made/status.txt &&",
        "mv -f $made/status.txt .",
        f"{shlex.join(table)} > $made/results.txt || exit",
        "grep ' of .* %)$' status.txt >> $made/results.txt",  # how much is done
        "cat $made/results.txt && mv -f $made/results.txt .",
        f"{shlex.join(page)} 2>&1 | sed 's/^error:/warning:/' >&2",  # the page of a wider study stays
    ]
    return "\n".join(lines)
