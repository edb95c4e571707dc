"""The outputs of a study and their states, which are read from folders alone: features of a split, classifier runs.

Every process and every user gets the same states. This module does not import torch, and thousands of folders take
seconds.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog import constants
from cog.errors import CogError, some
from cog.paths import ModelDir
from cog.runtime import files, output
from cog.runtime.output import DONE, FAILED, INTERRUPTED, MISSING, RUNNING, State

#: State of features that were deleted when all runs of a study were done (``--delete_features``).
DELETED = "deleted"

STATES = (DONE, DELETED, RUNNING, FAILED, INTERRUPTED, MISSING)

FEATURES_RECORD, RUN_RECORD = "features.json", "results.json"

#: Description of the last study in a models root, which ``status`` shows.
STUDY_FILE = "study.json"

# On a network file system, every file costs a round trip.
_THREADS = 16


@dataclass(frozen=True)
class Unit:
    """One output: the features of a split, or a classifier run.

    Attributes:
        split: ``train`` or ``test`` of features; "" of a run.
        n_shot: training images per class of a run, 0 = all.
        seed: seed of a run.
    """

    model: str
    dataset: str
    split: str = ""
    n_shot: int = 0
    seed: int = 0

    def __str__(self) -> str:
        place = f"{self.model} on {self.dataset}"
        if self.split:
            return f"features of {place} {self.split}"
        return f"classifier of {place}, {f'N = {self.n_shot}' if self.n_shot else 'all images'}, seed {self.seed}"


@dataclass(frozen=True)
class Study:
    """The outputs to be computed: every model on every data set, with all seeds and numbers of shots.

    Attributes:
        root: ``<models_root_dir>``.
        n_shots: training images per class, 0 = all.
        evaluation: name of the evaluation, see :func:`cog.config.evaluation_name`.
    """

    root: Path
    models: tuple[str, ...]
    datasets: tuple[str, ...] = constants.DATASETS
    seeds: tuple[int, ...] = constants.SEEDS
    n_shots: tuple[int, ...] = (0, *constants.SHOTS)
    evaluation: str = "logreg"

    @classmethod
    def of_entries(cls, entries: Mapping[str, Any]) -> Study:
        """Return the study with the entries of :meth:`as_json`.

        Raises:
            CogError: they do not describe a study.
        """
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entries.items()
        }
        try:
            return cls(**values | {"root": Path(values["root"])})
        except (KeyError, TypeError) as error:
            raise CogError(f"{some(list(entries))}: these entries do not describe a study") from error

    def as_json(self) -> str:
        """Return the study as text of one line."""
        return json.dumps(dataclasses.asdict(self) | {"root": str(self.root)})

    def pairs(self) -> list[tuple[str, str]]:
        """Return every pair (model, data set)."""
        return [(model, dataset) for model in self.models for dataset in self.datasets]

    def features(self, model: str, dataset: str) -> list[Unit]:
        """Return the features of one pair."""
        return [Unit(model, dataset, split) for split in constants.SPLITS]

    def runs(self, model: str, dataset: str) -> list[Unit]:
        """Return the classifier runs of one pair in the order of computation."""
        return [Unit(model, dataset, "", n_shot, seed) for n_shot in self.n_shots for seed in self.seeds]

    def units(self) -> Iterator[Unit]:
        """Yield every output."""
        for pair in self.pairs():
            yield from self.features(*pair)
            yield from self.runs(*pair)

    def folder(self, unit: Unit) -> Path:
        """Return the folder of an output."""
        place = ModelDir(self.root, unit.model)
        if unit.split:
            return place.features(unit.dataset, unit.split)
        return place.run(unit.dataset, name=self.evaluation, n_shot=unit.n_shot, seed=unit.seed)

    def record(self, unit: Unit) -> dict[str, Any]:
        """Return ``features.json`` or ``results.json`` of an output; empty without the file.

        Raises:
            CogError: the file cannot be read.
        """
        path = self.folder(unit) / (FEATURES_RECORD if unit.split else RUN_RECORD)
        return files.read_object(path) if path.is_file() else {}


def survey(study: Study) -> dict[Unit, State]:
    """Return the state of every output; those whose folder cannot be read count as failed."""

    def of_pair(pair: tuple[str, str]) -> dict[Unit, State]:
        return {unit: _state(study, unit) for unit in (*study.features(*pair), *study.runs(*pair))}

    states: dict[Unit, State] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for part in pool.map(of_pair, study.pairs()):
            states |= part
    return states


def _state(study: Study, unit: Unit) -> State:
    folder = study.folder(unit)
    try:
        if not unit.split:
            return output.state(folder, RUN_RECORD)
        if (folder / constants.FEATURES_FILE).is_file():  # of this toolkit or the original one
            return State(DONE)
        if (folder / FEATURES_RECORD).is_file():
            return State(DELETED)
        return output.state(folder, FEATURES_RECORD)
    except OSError as error:
        return State(FAILED, f"cannot read {error.filename}: {error.strerror}")


def needs_network(study: Study, states: Mapping[Unit, State], model: str) -> bool:
    """Return whether features of a model are missing that a run needs which is not done."""
    return any(
        any(states[unit].word != DONE for unit in study.features(model, dataset))
        and any(states[run].word != DONE for run in study.runs(model, dataset))
        for dataset in study.datasets
    )
