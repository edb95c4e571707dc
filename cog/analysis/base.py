"""What all analyses share: their declaration, their input, and the computation of their results.

An analysis is a function from :class:`Data` to numbers by name, declared by :func:`analysis`. Every module of this
package is imported by ``analyze_features.py``, so a new file with one function is a new analysis.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from yacs.config import CfgNode

import cog.analysis
from cog import constants
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import identify_input, no_features, require_one_network
from cog.paths import ModelDir, features_file
from cog.results import analysis_records
from cog.results.analysis_records import AnalysisRecord, Number
from cog.runtime import log, signals
from cog.runtime.device import exact_float32
from cog.runtime.files import plain
from cog.runtime.memory import exhaustion_explained, free_on_gpu
from cog.runtime.output import Output

logger = logging.getLogger(__name__)

#: Number of rows in a block. A constant, so that results do not depend on the memory of a machine.
BLOCK = 4096

#: Largest share of a GPU's free memory for features; the rest is for blocks of distances.
_USABLE = 0.8


@dataclass(frozen=True, eq=False)
class Data:
    """One model on one data set, the input of an analysis; and what it tells beside its numbers."""

    model: (
        str | None
    )  # <model_title>_<architecture_name>; None with the user's own feature folders, as the next two
    dataset: str | None
    model_dir: ModelDir | None
    folders: Mapping[str, Path]  # folder or file of the features of each split
    cfg: CfgNode
    flags: Mapping[str, Any]  # of the command, such as trained_on
    device: torch.device
    folder: Path = Path()  # for files beside the record
    per_seed: dict[int, Mapping[str, Number]] = field(default_factory=dict)  # numbers of each repetition
    details: dict[str, Any] = field(default_factory=dict)  # JSON values that explain the numbers
    _loaded: dict[tuple[str, bool], FeatureSet] = field(default_factory=dict, repr=False)

    def file(self, split: str) -> Path:
        """Return the ``X_Y.pth`` of a split; a :class:`CogError` if it does not exist."""
        if split not in self.folders:
            raise CogError(f"no {split} features: give --{split}_features_dir")
        file = features_file(self.folders[split])
        if not file.is_file():
            raise no_features(file, split)
        return file

    def load(self, split: str, *, normalize: bool = True) -> FeatureSet:
        """Return the features of a split, float32, read once for all analyses: **they must not be changed**.

        Rows are l2-normalized, or as in the file. Features that cannot be read are a :class:`CogError`.
        """
        if (split, normalize) not in self._loaded:
            self._loaded[split, normalize] = feature_files.load(self.file(split), normalize=normalize)
        return self._loaded[split, normalize]

    def both(self) -> tuple[FeatureSet, FeatureSet]:
        """Return training and test features, l2-normalized, after a check that they fit each other."""
        train, test = self.load("train"), self.load("test")
        if mixed := feature_files.check_pair(train, test):
            logger.warning("%s%s", self.label, mixed)
        return train, test

    def blocks(
        self, x: torch.Tensor, *, shift: torch.Tensor | None = None, size: int = BLOCK
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the first row number and the rows ``(b, d)``, on the device, of each block of features ``(n, d)``.

        ``shift``, a vector ``(d,)``, is subtracted. A signal ends the work between two blocks.
        """
        for start in range(0, len(x), size):
            signals.check("this analysis is started over")
            block = x[start : start + size].to(self.device)
            yield start, block if shift is None else block - shift

    def mean_row(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of features ``(n, d)``, float32 ``(d,)``, summed in float64.

        Distances of centered rows are the same, and keep the digits of rows that are close to each other but far from
        the origin (features of an untrained network).
        """
        total = torch.zeros(x.shape[1], dtype=torch.float64, device=self.device)
        for _, block in self.blocks(x):
            total += block.sum(dim=0, dtype=torch.float64)
        return (total / len(x)).float()

    def sums(
        self, x: torch.Tensor, labels: torch.Tensor, n: int, shift: torch.Tensor | float = 0.0
    ) -> torch.Tensor:
        """Return the sums of the rows of ``x`` with each label 0..n-1, float64 ``(n, d)``, the same in every run."""
        sums = torch.zeros(n, x.shape[1], dtype=torch.float64, device=self.device)
        # On CUDA, sums by index have no fixed order by default. (use_deterministic_algorithms imports the compiler.)
        before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("error")
        try:
            for first, block in self.blocks(x):
                rows = labels[first : first + len(block)].to(self.device)
                sums.index_add_(0, rows, (block - shift).double())
        finally:
            torch.set_deterministic_debug_mode(before)
        return sums

    @property
    def label(self) -> str:
        """Prefix of log lines: model and data set."""
        words = [word for word in (self.model, self.dataset) if word]
        return f"[{' '.join(words)}] " if words else ""


def resident(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return features on a GPU if they fit there; else as they are: :meth:`Data.blocks` then moves each block."""
    if device.type == "cuda" and x.nbytes > _USABLE * free_on_gpu(device):
        return x
    return x.to(device)


#: Function that computes the numbers of an analysis; None (or NaN) where one is undefined.
Compute = Callable[[Data], Mapping[str, Number]]

#: Function that returns the end of the name of a result, and the inputs that determine it beside the features.
Inputs = Callable[[Data], tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Analysis:
    """A declared analysis; see :func:`analysis`."""

    name: str
    help: str
    compute: Compute
    inputs: Inputs
    splits: tuple[str, ...]
    in_all: bool


#: All analyses by name.
ANALYSES: dict[str, Analysis] = {}


def analysis(
    name: str,
    help_text: str,
    *,
    keys: Sequence[str] = (),
    splits: tuple[str, ...] = constants.SPLITS,
    inputs: Inputs | None = None,
) -> Callable[[Compute], Compute]:
    """Return a decorator that declares a function as an analysis.

    ``keys`` are those of the section ANALYSIS of the configuration that determine the result, ``splits`` those whose
    features are used. An analysis with ``inputs``, which also check them, needs more than features: ``--analysis all``
    leaves it out.
    """

    def declared(compute: Compute) -> Compute:
        of_keys = inputs or (lambda data: ("", {key: data.cfg.ANALYSIS[key] for key in keys}))
        ANALYSES[name] = Analysis(name, help_text, compute, of_keys, splits, inputs is None)
        return compute

    return declared


def load_all() -> dict[str, Analysis]:
    """Import every module of the package, and return all analyses by name, sorted."""
    for module in pkgutil.iter_modules(cog.analysis.__path__, "cog.analysis."):
        importlib.import_module(module.name)
    return dict(sorted(ANALYSES.items()))


def run(analyses: Sequence[Analysis], inputs: Sequence[tuple[Data, Path]], *, overwrite: bool) -> None:
    """Compute results that are missing, and publish and print each as soon as it is finished.

    All ``inputs``, each a data set and the parent of its folders ``analysis_<name>``, and output folders are checked
    before. An analysis that is interrupted is started over. A missing input, a folder with another result and an
    analysis that fails are a CogError; earlier results stay.
    """
    todo = [
        task for data, path in inputs for each in analyses if (task := _plan(each, data, path, overwrite))
    ]
    with signals.deferred(), exact_float32():
        for position, (each, data, output, name) in enumerate(todo):
            if position and data is not todo[position - 1][1]:
                todo[position - 1][1]._loaded.clear()  # before the features of the next data set are read
            with output.claimed() as work:
                if work.published:  # another process has computed this result in the meantime
                    continue
                with log.log_file(work.folder / "program.log"), work.publish() as stage:
                    values = _compute(each, data, output, name, stage)
            shown = (f"{key} {'undefined' if n is None else f'{n:.4g}'}" for key, n in values.items())
            print(f"{data.label}{name}: {'  '.join(shown)}  ({output.path})", flush=True)


def _plan(
    each: Analysis, data: Data, path: Path, overwrite: bool
) -> tuple[Analysis, Data, Output, str] | None:
    """Return what is to be computed, with its place and name; None if the result is there."""
    suffix, identity = each.inputs(data)
    if len(each.splits) > 1:
        require_one_network(*map(data.file, each.splits))
    for split in each.splits:
        identity[f"{split}_features"] = identify_input(data.file(split))
    output = Output(path / f"analysis_{each.name}{suffix}", plain(identity))
    return None if output.is_done(overwrite=overwrite) else (each, data, output, f"{each.name}{suffix}")


def _compute(each: Analysis, data: Data, output: Output, name: str, stage: Path) -> dict[str, Number]:
    start = time.monotonic()
    data = replace(data, folder=stage, per_seed={}, details={})
    with exhaustion_explained(f"computing {name}", ""):
        values = plain(each.compute(data))
    record = AnalysisRecord(
        analysis=name,
        model=data.model,
        dataset=data.dataset,
        identity=dict(output.identity),
        values=values,
        seeds=list(data.per_seed),
        per_seed=plain(data.per_seed),
        details=plain(data.details),
        versions=log.versions(("torch", "numpy", "scikit-learn", "scipy")),
        device=str(data.device),
        seconds=round(time.monotonic() - start, 3),
        finished=log.now(),
    )
    analysis_records.write(stage, record)
    return values
