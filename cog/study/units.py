"""The outputs of a study (features of a split, classifier runs) and their states, read from folders alone.

Every process and every user gets the same states. Thousands of folders take seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from cog import constants
from cog.constants import FEATURES_RECORD, RESULTS_FILE
from cog.errors import CogError, printable
from cog.paths import ModelDir
from cog.runtime import files, output
from cog.runtime.output import DONE, FAILED, INTERRUPTED, MISSING, RUNNING, State

#: States beside those of outputs: features without X_Y.pth, results of another computation than the study's.
DELETED, OTHER = "deleted", "other"

#: Description of the last study in a models root, which ``status`` shows.
STUDY_FILE = "study.json"

_THREADS = 16  # on a network file system, every file costs a round trip

_LETTERS = {DELETED: "d", RUNNING: "r", FAILED: "f", INTERRUPTED: "i"}

_LISTED = 20  # reasons, one by one


@dataclass(frozen=True)
class Unit:
    """One output: the features of a ``split``, or (``split`` is "") a classifier run."""

    model: str
    dataset: str
    split: str = ""
    n_shot: int = 0
    seed: int = 0

    def __str__(self) -> str:
        if self.split:
            return f"features of {self.model} on {self.dataset} {self.split}"
        shots = f"N = {self.n_shot}" if self.n_shot else "all images"
        return f"classifier of {self.model} on {self.dataset}, {shots}, seed {self.seed}"


@dataclass(frozen=True)
class Study:
    """The wanted outputs under ``<models_root_dir>``: every model on every data set, all seeds and shots."""

    root: Path
    models: tuple[str, ...]
    datasets: tuple[str, ...] = constants.DATASETS
    seeds: tuple[int, ...] = constants.SEEDS
    n_shots: tuple[int, ...] = (0, *constants.SHOTS)
    evaluation: str = "logreg"

    @classmethod
    def of_entries(cls, entries: Mapping[str, Any]) -> Study:
        """Return the study of its fields in types of JSON; a CogError says that these are of none."""
        try:
            lists = {key: tuple(entries[key]) for key in ("models", "datasets", "seeds", "n_shots")}
            return cls(root=Path(entries["root"]), evaluation=entries["evaluation"], **lists)
        except (KeyError, TypeError) as error:
            raise CogError(f"this describes no study ({error}): {entries}") from error

    def pairs(self) -> list[tuple[str, str]]:
        """Return every pair (model, data set)."""
        return [(model, dataset) for model in self.models for dataset in self.datasets]

    def features(self, model: str, dataset: str) -> list[Unit]:
        """Return the features of one pair."""
        return [Unit(model, dataset, split) for split in constants.SPLITS]

    def runs(self, model: str, dataset: str) -> list[Unit]:
        """Return the classifier runs of one pair."""
        return [Unit(model, dataset, "", n_shot, seed) for n_shot in self.n_shots for seed in self.seeds]

    def folder(self, unit: Unit) -> Path:
        """Return the folder of an output."""
        place = ModelDir(self.root, unit.model)
        if unit.split:
            return place.features(unit.dataset, unit.split)
        return place.run(unit.dataset, name=self.evaluation, n_shot=unit.n_shot, seed=unit.seed)

    def record(self, unit: Unit) -> dict[str, Any]:
        """Return ``features.json`` or ``results.json`` of an output; empty without the file."""
        path = self.folder(unit) / (FEATURES_RECORD if unit.split else RESULTS_FILE)
        return files.read_object(path) if path.is_file() else {}


def survey(study: Study) -> dict[Unit, State]:
    """Return the state of every output."""
    pairs = study.pairs()
    units = [unit for pair in pairs for unit in (*study.features(*pair), *study.runs(*pair))]
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(units, pool.map(lambda unit: _state(study, unit), units), strict=True))


def _state(study: Study, unit: Unit) -> State:
    folder = study.folder(unit)
    state = output.state(folder, FEATURES_RECORD if unit.split else RESULTS_FILE)
    made = constants.FEATURES_FILE if unit.split else constants.FINAL_MODEL
    if (unit.split or state.word == MISSING) and any(folder.glob(made)):  # of the original toolkit, too
        return State(DONE)
    return State(DELETED) if unit.split and state.word == DONE else state


def draw(study: Study, states: Mapping[Unit, State]) -> str:
    """Return the table, the totals, and lists of running and failed outputs."""
    counts: dict[tuple[str, str, bool], Counter[str]] = defaultdict(Counter)
    for unit, state in states.items():
        for model in (unit.model, "all"):
            for dataset in (unit.dataset, "all"):
                counts[model, dataset, bool(unit.split)][state.word] += 1

    def entry(model: str, dataset: str, is_features: bool) -> str:
        found = counts[model, dataset, is_features]
        marks = "".join(f" {found[word]}{letter}" for word, letter in _LETTERS.items() if found[word])
        return f"{found[DONE] + found[DELETED]}/{found.total()}{marks}"

    columns = [*study.datasets, "all"]
    rows = [
        [model, *(f"{entry(model, dataset, True)}, {entry(model, dataset, False)}" for dataset in columns)]
        for model in (*study.models, "all")
    ]
    letters = ", ".join(f"{letter} {word}" for word, letter in _LETTERS.items())
    text = f"features and classifier runs, done/wanted; of the others {letters}, the rest missing\n\n"
    text += f"{tabulate(rows, ['', *columns], disable_numparse=True)}\n\n"
    for label, is_features in (("features", True), ("classifier runs", False)):
        found = counts["all", "all", is_features]
        words = (DONE, DELETED, RUNNING, FAILED, INTERRUPTED, MISSING)
        parts = ", ".join(f"{found[word]} {word}" for word in words if found[word])
        percentage = 100 * (found[DONE] + found[DELETED]) // max(1, found.total())
        text += f"{label}: {parts} of {found.total()} ({percentage} %)\n"
    for word in (RUNNING, FAILED):
        if lines := reasons(states, word):
            text += "\n".join(["", f"{word}:", *(f"  {line}" for line in lines), ""])
    return text


def reasons(states: Mapping[Unit, State], word: str) -> list[str]:
    """Return a line for each detail of outputs in a state: several with the same detail are one entry."""
    together: dict[str, list[Unit]] = defaultdict(list)
    for unit, state in states.items():
        if state.word == word:
            together[state.detail].append(unit)
    lines = [
        f"{same[0]}{f' and {len(same) - 1} more' if len(same) > 1 else ''}: {printable(detail)}"
        for detail, same in list(together.items())[:_LISTED]
    ]
    return lines + [f"... and {len(together) - _LISTED} more"] * (len(together) > _LISTED)
