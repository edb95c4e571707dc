"""What all analyses share: their declaration, their input, and the computation of their results.

An analysis is a function from :class:`AnalysisInput` to numbers by name, declared by :func:`analysis`. A new
file with one function is a new analysis: all files of the package are imported by ``analyze_features.py``.
"""

import importlib
import logging
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from yacs.config import CfgNode

import cog.analysis
from cog import constants
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import identify_input, no_features, require_one_network
from cog.paths import ModelDir
from cog.results import analysis_records
from cog.results.analysis_records import AnalysisRecord, Number
from cog.runtime import log, signals
from cog.runtime.device import exact_float32
from cog.runtime.files import plain
from cog.runtime.output import LOG_FILE, Output

logger = logging.getLogger(__name__)

#: Number of rows in a block. A constant, so that results do not depend on the memory of a machine.
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class AnalysisInput:
    """One model on one data set, the input of an analysis; and what it tells beside its numbers."""

    model_dir: ModelDir
    dataset: str
    cfg: CfgNode
    flags: Mapping[str, Any]  # of the command, such as trained_on
    device: torch.device
    folder: Path = Path()  # for files beside the record
    per_seed: dict[int, Mapping[str, Number]] = field(default_factory=dict)  # numbers of each repetition
    details: dict[str, Any] = field(default_factory=dict)  # JSON values that explain the numbers
    _loaded: dict[tuple[str, bool], FeatureSet] = field(default_factory=dict, repr=False)

    def file(self, split: str) -> Path:
        """Return the ``X_Y.pth`` of a split; a CogError if it does not exist."""
        file = self.model_dir.features_file(self.dataset, split)
        if not file.is_file():
            raise no_features(file, split)
        return file

    def load(self, split: str, *, normalize: bool = True) -> FeatureSet:
        """Return float32 features with unit rows or as in the file, read once: **not to be changed**."""
        if (split, normalize) not in self._loaded:
            self._loaded[split, normalize] = feature_files.load(self.file(split), normalize=normalize)
        return self._loaded[split, normalize]

    def both(self) -> tuple[FeatureSet, FeatureSet]:
        """Return training and test features, l2-normalized, after a check that they fit each other."""
        train, test = self.load("train"), self.load("test")
        if mixed := feature_files.check_pair(train, test):
            logger.warning("%s%s", self.label, mixed)
        return train, test

    def resident(self, x: torch.Tensor) -> torch.Tensor:
        """Return features on a GPU if they fit there beside blocks of distances, else as they are."""
        is_large = self.device.type == "cuda" and x.nbytes > 0.8 * torch.cuda.mem_get_info(self.device)[0]
        return x if is_large else x.to(self.device)

    def blocks(
        self, x: torch.Tensor, shift: torch.Tensor | float = 0.0, *, size: int = BLOCK
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the first row number and the rows minus ``shift``, on the device, of blocks of features."""
        for start in range(0, len(x), size):
            signals.check("this analysis is started over")
            yield start, x[start : start + size].to(self.device) - shift

    def mean_row(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean row; without it, distances of rows that hardly differ keep their digits."""
        zero = torch.zeros(x.shape[1], dtype=torch.float64, device=self.device)
        return (sum((b.sum(dim=0, dtype=torch.float64) for _, b in self.blocks(x)), zero) / len(x)).float()

    def sums(
        self, x: torch.Tensor, labels: torch.Tensor, n: int, shift: torch.Tensor | float = 0.0
    ) -> torch.Tensor:
        """Return the sums of the rows minus ``shift`` with each label 0..n-1, float64 ``(n, d)``."""
        sums = torch.zeros(n, x.shape[1], dtype=torch.float64, device=self.device)
        # Else they have no fixed order on CUDA. (use_deterministic_algorithms imports the compiler.)
        before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("error")
        try:
            for first, block in self.blocks(x, shift):
                sums.index_add_(0, labels[first : first + len(block)].to(self.device), block.double())
        finally:
            torch.set_deterministic_debug_mode(before)
        return sums

    @property
    def label(self) -> str:
        """Prefix of log lines: model and data set."""
        return f"[{self.model_dir.model} {self.dataset}] "


class Analysis(NamedTuple):
    """A declared analysis; numbers that are undefined are None or NaN."""

    name: str
    compute: Callable[[AnalysisInput], Mapping[str, Number]]
    splits: tuple[str, ...]  # whose features are used
    keys: tuple[str, ...]  # of the section ANALYSIS of the configuration that determine the result
    #: Returns the end of the name of a result, and what determines it beside features and keys, after checks.
    inputs: Callable[[AnalysisInput], tuple[str, dict[str, Any]]] | None


#: All analyses by name.
ANALYSES: dict[str, Analysis] = {}


def analysis(
    name: str, *, splits: tuple[str, ...] = constants.SPLITS, keys: tuple[str, ...] = (), inputs: Any = None
) -> Callable[[Callable], Callable]:
    """Declare a function as an :class:`Analysis`; ``--analysis all`` leaves those with ``inputs`` out."""

    def declared(compute: Callable) -> Callable:
        ANALYSES[name] = Analysis(name, compute, splits, keys, inputs)
        return compute

    return declared


def load_all() -> dict[str, Analysis]:
    """Import every module of the package, and return all analyses by name, sorted."""
    for module in pkgutil.iter_modules(cog.analysis.__path__, "cog.analysis."):
        importlib.import_module(module.name)
    return dict(sorted(ANALYSES.items()))


def run(analyses: Sequence[Analysis], inputs: Sequence[AnalysisInput], *, overwrite: bool) -> None:
    """Compute results that are missing, and publish and print each as soon as it is finished.

    All inputs and output folders are checked before: what is missing, and another result, are a CogError.
    """
    todo: list[tuple[AnalysisInput, list[tuple[Analysis, Output, str]]]] = []
    for data in inputs:
        todo.append((data, []))
        for each in analyses:
            suffix, identity = each.inputs(data) if each.inputs else ("", {})
            if len(each.splits) > 1:
                require_one_network(*map(data.file, each.splits))
            identity |= {key: data.cfg.ANALYSIS[key] for key in each.keys}
            identity |= {f"{split}_features": identify_input(data.file(split)) for split in each.splits}
            folder = data.model_dir.path / data.dataset / f"analysis_{each.name}{suffix}"
            output = Output(folder, plain(identity))
            if not output.is_done(overwrite=overwrite):
                todo[-1][1].append((each, output, each.name + suffix))
    with signals.deferred(), exact_float32():
        for data, missing in todo:
            for each, output, name in missing:
                with output.claimed():
                    if output.is_published:  # another process has computed this result in the meantime
                        continue
                    with log.log_file(output.work / LOG_FILE), output.publish() as stage:
                        values = _compute(each, data, output, name, stage)
                shown = (f"{key} {'undefined' if n is None else f'{n:.4g}'}" for key, n in values.items())
                print(f"{data.label}{name}: {'  '.join(shown)}  ({output.path})", flush=True)
            data._loaded.clear()  # before the features of the next data set are read


def _compute(
    each: Analysis, data: AnalysisInput, output: Output, name: str, stage: Path
) -> dict[str, Number]:
    start, data = time.monotonic(), replace(data, folder=stage, per_seed={}, details={})
    values = plain(each.compute(data))
    about: dict[str, Any] = {"device": str(data.device), "seconds": round(time.monotonic() - start, 3)}
    about |= {"finished": log.now(), "versions": log.versions(("torch", "numpy", "scikit-learn", "scipy"))}
    about |= {"per_seed": plain(data.per_seed), "seeds": list(data.per_seed), "details": plain(data.details)}
    record = AnalysisRecord(name, data.model_dir.model, data.dataset, dict(output.identity), values, **about)
    analysis_records.write(stage, record)
    return values
