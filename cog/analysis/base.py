"""What all analyses share: their declaration, their input, and the computation of their results.

An analysis is a function from :class:`ModelData` to numbers, declared by :func:`analysis`. It imports torch when it is
called, since tables need only the descriptions of its numbers.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import constants
from cog.errors import CogError
from cog.features.folder import identify_input, no_features, require_one_network
from cog.paths import ModelDir, analysis_folder, features_file
from cog.results import analysis_records
from cog.results.analysis_records import AnalysisRecord, Number
from cog.runtime import provenance, signals
from cog.runtime.fingerprint import differences, plain
from cog.runtime.memory import exhaustion_explained, free_on_gpu
from cog.runtime.output_folder import OutputFolder

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.features.feature_files import FeatureSet

logger = logging.getLogger(__name__)

#: Number of rows in a block. A constant, so that results do not depend on the memory of a machine.
BLOCK = 4096

#: Largest share of a GPU's free memory for features; the rest is for blocks of distances.
_USABLE = 0.8


@dataclass(frozen=True, eq=False)
class ModelData:
    """One model on one data set.

    Attributes:
        model: ``<model_title>_<architecture_name>``; None with the user's own feature folders.
        dataset: name of the data set; None with the user's own feature folders.
        model_dir: the model's folder; None without ``--models_root_dir`` and ``--model``.
        folders: folder or file of the features of each split.
        output: parent of the folder ``analysis_<name>/``.
        cfg: the configuration.
        args: all flags.
        loaded: features that were read already, by split and normalization.
    """

    model: str | None
    dataset: str | None
    model_dir: ModelDir | None
    folders: Mapping[str, Path]
    output: Path
    cfg: CfgNode
    args: argparse.Namespace
    loaded: dict[tuple[str, bool], FeatureSet] = field(default_factory=dict, repr=False)

    def file(self, split: str) -> Path:
        """Return the ``X_Y.pth`` of a split.

        Raises:
            CogError: the file does not exist.
        """
        if split not in self.folders:
            raise CogError(f"no {split} features: give --{split}_features_dir")
        file = features_file(self.folders[split])
        if not file.is_file():
            raise no_features(file, split)
        return file

    def load(self, split: str, *, normalize: bool = True) -> FeatureSet:
        """Return the features of a split, float32, read once for all analyses: **they must not be changed**.

        Args:
            split: ``train`` or ``test``.
            normalize: whether the rows are l2-normalized, or as in the file.

        Raises:
            CogError: see :func:`cog.features.feature_files.load`.
        """
        from cog.features import feature_files
        from cog.features.folder import with_class_list

        if (split, normalize) not in self.loaded:
            file = self.file(split)
            features = feature_files.load(file, normalize=normalize)
            self.loaded[split, normalize] = with_class_list(features, file)
        return self.loaded[split, normalize]

    def both(self) -> tuple[FeatureSet, FeatureSet]:
        """Return training and test features, l2-normalized.

        Raises:
            CogError: the features do not fit each other, or cannot be read.
        """
        from cog.features import feature_files

        train, test = self.load("train"), self.load("test")
        if mixed := feature_files.check_pair(train, test):
            logger.warning("%s%s", self.label, mixed)
        return train, test

    @property
    def label(self) -> str:
        """Prefix of log lines: model and data set."""
        words = [word for word in (self.model, self.dataset) if word]
        return f"[{' '.join(words)}] " if words else ""


@dataclass(frozen=True)
class Outcome:
    """The result of an analysis.

    Attributes:
        values: headline numbers by name; None (or NaN) where undefined.
        per_seed: values of each repetition by its seed, in order; empty for a result without randomness.
        details: JSON values that explain the numbers; ``files`` are the names of files beside the record.
    """

    values: Mapping[str, Number]
    per_seed: Mapping[int, Mapping[str, Number]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


#: Function of the data, the device and a folder for files beside the record.
Compute = Callable[[ModelData, "torch.device", Path], Outcome]


@dataclass(frozen=True)
class Analysis:
    """A declared analysis.

    Attributes:
        name: value of ``--analysis``.
        help: one line.
        compute: function that computes the result.
        describe: function that returns the end of the name of the result, and all settings and inputs that determine
            it, except features. It checks these inputs.
        splits: splits whose features are used.
        in_all: whether ``--analysis all`` includes the analysis, because it needs only the features of a data set.
    """

    name: str
    help: str
    compute: Compute
    describe: Callable[[ModelData], tuple[str, dict[str, Any]]]
    splits: tuple[str, ...]
    in_all: bool


#: All analyses by name; a module that declares one is imported by :mod:`cog.analysis.registry`.
ANALYSES: dict[str, Analysis] = {}


def analysis(
    name: str,
    help_text: str,
    *,
    keys: Sequence[str] = (),
    splits: tuple[str, ...] = constants.SPLITS,
    describe: Callable[[ModelData], tuple[str, dict[str, Any]]] | None = None,
) -> Callable[[Compute], Compute]:
    """Return a decorator that declares a function as an analysis.

    Args:
        name: value of ``--analysis``, and name of the result.
        help_text: help of the analysis, one line.
        keys: keys of the section ANALYSIS of the configuration that determine the result.
        splits: splits whose features are used.
        describe: see :class:`Analysis`, for an analysis with other inputs; not part of ``--analysis all`` then.
    """

    def declared(compute: Compute) -> Compute:
        of_keys = describe or (lambda data: ("", {key: data.cfg.ANALYSIS[key] for key in keys}))
        ANALYSES[name] = Analysis(name, help_text, compute, of_keys, splits, describe is None)
        return compute

    return declared


class AnalysisOutput(OutputFolder):
    """The folder of the result of an analysis."""

    markers = (analysis_records.RESULTS_FILE,)
    flag = "the output folder"

    def holds_result(self) -> bool:
        """Return whether the folder has the result.

        Raises:
            CogError: it has another one, or cannot be read, and there is no ``--overwrite``.
        """
        if self.overwrite or not (self.path / analysis_records.RESULTS_FILE).exists():
            return False
        try:
            record = analysis_records.read(self.path)
        except CogError as error:
            raise CogError(f"{error}; add --overwrite to replace it") from None
        if changed := differences(record.identity, self.identity):
            raise CogError(
                f"{self.path} holds a different result ({'; '.join(changed)}); add --overwrite to replace it"
            )
        return True

    def replaced(self) -> list[str]:
        """Return the names of the files of the result in the folder."""
        try:
            named = analysis_records.read(self.path).details.get("files", [])
        except CogError:
            return []
        named = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        return [name for name in named if Path(name).name == name and not name.startswith(".")]


@dataclass(frozen=True)
class Task:
    """One result to compute: an analysis of the data, and the output folder."""

    analysis: Analysis
    data: ModelData
    name: str
    folder: AnalysisOutput


def plan(analyses: Sequence[Analysis], data: ModelData) -> Iterator[Task]:
    """Yield the tasks of a data set, after a check that its features and other inputs are there.

    Raises:
        CogError: an input is missing.
    """
    for each in analyses:
        suffix, identity = each.describe(data)
        if len(each.splits) > 1:
            require_one_network(*map(data.file, each.splits))
        for split in each.splits:
            identity[f"{split}_features"] = identify_input(data.file(split))
        path = data.output / analysis_folder(f"{each.name}{suffix}")
        output = AnalysisOutput(path, identity, overwrite=data.args.overwrite)
        yield Task(each, data, f"{each.name}{suffix}", output)


def execute(todo: Sequence[Task], *, device: torch.device) -> None:
    """Compute all results, and publish and print each result as soon as it is finished.

    SIGTERM and SIGUSR1 end the work between blocks of rows; an analysis that was not finished is started over.

    Raises:
        CogError: an analysis fails (earlier results stay).
        LockedError: another process has locked a folder.
        Interrupted: see :mod:`cog.runtime.signals`.
    """
    from cog.runtime.device import exact_float32

    with signals.deferred(), exact_float32():
        for position, task in enumerate(todo):
            if position and task.data is not todo[position - 1].data:
                todo[position - 1].data.loaded.clear()  # before the features of the next data set are read
            with task.folder.claim() as claim:
                if claim.is_done():  # another process has computed this result in the meantime
                    continue
                claim.begin()
                with claim.failures_noted(), claim.publish() as stage:
                    with provenance.log_file(stage / "program.log"):
                        record = _compute(task, device, stage)
                    analysis_records.write(stage, record)
            numbers = (
                f"{name} {'undefined' if n is None else f'{n:.4g}'}" for name, n in record.values.items()
            )
            print(f"{task.data.label}{task.name}: {'  '.join(numbers)}  ({task.folder.path})", flush=True)


def _compute(task: Task, device: torch.device, stage: Path) -> AnalysisRecord:
    start = time.monotonic()
    with exhaustion_explained(f"computing {task.name}", ""):
        outcome = task.analysis.compute(task.data, device, stage)
    return AnalysisRecord(
        analysis=task.name,
        model=task.data.model,
        dataset=task.data.dataset,
        identity=task.folder.identity,
        values=plain(outcome.values),
        seeds=list(outcome.per_seed),
        per_seed=plain(outcome.per_seed),
        details=plain(outcome.details),
        versions=provenance.versions(("torch", "numpy", "scikit-learn")),
        device=str(device),
        seconds=round(time.monotonic() - start, 3),
        finished=provenance.now(),
        folder=task.folder.path,
    )


def resident(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return features on a GPU if they fit there; else as they are: :func:`blocks` then moves each block."""
    if device.type == "cuda" and x.nbytes > _USABLE * free_on_gpu(device):
        return x
    return x.to(device)


def blocks(
    x: torch.Tensor, device: torch.device, *, shift: torch.Tensor | None = None, size: int = BLOCK
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the first row number and the rows ``(b, d)`` of each block of features ``(n, d)``, in order.

    Args:
        x: features, on any device.
        device: device of the blocks.
        shift: vector ``(d,)`` to subtract.
        size: number of rows.

    Raises:
        Interrupted: a signal has come.
    """
    for start in range(0, len(x), size):
        signals.check("this analysis is started over")
        block = x[start : start + size].to(device)
        yield start, block if shift is None else block - shift


def mean_row(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the mean of features ``(n, d)``, float32 ``(d,)``, summed in float64.

    Distances of centered rows are the same, and keep the digits of rows that are close to each other but far from the
    origin (features of an untrained network).
    """
    import torch

    total = torch.zeros(x.shape[1], dtype=torch.float64, device=device)
    for _, block in blocks(x, device):
        total += block.sum(dim=0, dtype=torch.float64)
    return (total / len(x)).float()


def n_zero_rows(features: FeatureSet) -> int:
    """Return the number of rows of zeros, which l2 normalization does not change; their cosines are 0."""
    return sum(int((~part.any(dim=1)).sum()) for part in features.x.split(BLOCK))
