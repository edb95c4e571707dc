"""The input, the task and the result of an analysis, and its declaration. This module does not import torch."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import constants
from cog.errors import CogError
from cog.features.folder import identify_input, no_features
from cog.paths import ModelDir, analysis_folder, features_file
from cog.results import analysis_records
from cog.results.analysis_records import Number
from cog.runtime.fingerprint import differences
from cog.runtime.output_folder import OutputFolder

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.features.feature_files import FeatureSet
    from cog.runtime.resume_dir import ResumeFolder


@dataclass(frozen=True)
class AnalysisRequest:
    """One data set that the command line names for analysis; ``plan`` functions turn it into tasks.

    Attributes:
        model: ``<model_title>_<architecture_name>``; None with the user's own feature folders.
        dataset: name of the data set; None with the user's own feature folders.
        model_dir: the model's folder; None without ``--models_root_dir`` and ``--model``.
        features: expected folder or file of the features of each split.
        output_root: parent of the folder ``analysis_<name>/``.
        cfg: the configuration, frozen and checked.
        args: all flags.
    """

    model: str | None
    dataset: str | None
    model_dir: ModelDir | None
    features: Mapping[str, Path]
    output_root: Path
    cfg: CfgNode
    args: argparse.Namespace

    def features_file(self, split: str) -> Path:
        """Return the ``X_Y.pth`` of a split.

        Raises:
            CogError: the file does not exist.
        """
        if split not in self.features:
            raise CogError(f"no {split} features: give --{split}_features_dir")
        file = features_file(self.features[split])
        if not file.is_file():
            raise no_features(file, split)
        return file

    def output(self, name: str) -> Path:
        """Return the folder of the result of an analysis."""
        return self.output_root / analysis_folder(name)


@dataclass(frozen=True)
class AnalysisOutcome:
    """The result of an analysis.

    Attributes:
        values: headline numbers by name; None (or NaN) where undefined.
        per_seed: values of each repetition by its seed, in order; empty for a result without randomness.
        details: JSON values that explain the numbers: sizes, settings, names of files.
        summary: one line for the terminal; None: the line is made of ``values``.
    """

    values: Mapping[str, Number]
    per_seed: Mapping[int, Mapping[str, Number]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    summary: str | None = None


@dataclass(frozen=True)
class AnalysisContext:
    """The input of the computation of a task.

    Attributes:
        request: the data set.
        device: device of the computation.
        load: ``load(split, normalize=True)`` reads the features of a split once for all tasks of the data set:
            **the features are shared and must not be changed**.
        resume: hidden folder for states from which interrupted work continues.
        stage: folder for large results; its files appear beside ``results.json``.
        label: prefix of log and progress lines, ``"[<model> <dataset>] "``; may be empty.
    """

    request: AnalysisRequest
    device: torch.device
    load: Callable[..., FeatureSet]
    resume: ResumeFolder
    stage: Path
    label: str


class AnalysisOutput(OutputFolder):
    """The folder of the result of an analysis."""

    markers = (analysis_records.RESULTS_FILE,)
    flag = "the output folder"

    def holds_result(self) -> bool:
        """Return whether the folder has the result."""
        if self.overwrite or not (self.path / analysis_records.RESULTS_FILE).exists():
            return False
        try:
            record = analysis_records.read(self.path)
        except CogError as error:
            raise CogError(f"{error}; add --overwrite to replace it") from None
        changed = differences(record.identity, self.identity)
        if changed:
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
        named = named if isinstance(named, list) else []
        return [
            name
            for name in named
            if isinstance(name, str) and Path(name).name == name and not name.startswith(".")
        ]


@dataclass(frozen=True)
class AnalysisTask:
    """One result to compute.

    Attributes:
        request: the data set.
        name: name of the result; its folder is ``analysis_<name>``.
        splits: splits whose features are used; the identity of these features is recorded.
        settings: JSON values of all options that determine the result, and digests of all inputs except features.
        compute: function that computes the result.
        packages: packages whose versions are recorded.
    """

    request: AnalysisRequest
    name: str
    splits: tuple[str, ...]
    settings: dict[str, Any]
    compute: Callable[[AnalysisContext], AnalysisOutcome]
    packages: tuple[str, ...] = ("torch", "numpy")

    @functools.cached_property
    def folder(self) -> AnalysisOutput:
        """The folder of the result, with its identity: settings, and sizes, origins and samples of its features."""
        path = self.request.output(self.name)
        identity = dict(self.settings)
        for split in self.splits:
            identity[f"{split}_features"] = identify_input(self.request.features_file(split))
        return AnalysisOutput(path, identity, overwrite=self.request.args.overwrite)

    @property
    def label(self) -> str:
        """Prefix of log lines: model and data set."""
        words = [word for word in (self.request.model, self.request.dataset) if word]
        return f"[{' '.join(words)}] " if words else ""


@dataclass(frozen=True)
class Analysis:
    """The declaration of an analysis of ``analyze_features.py``.

    Attributes:
        name: value of ``--analysis``.
        help: one line.
        plan: function that returns the tasks of a request. It makes all checks that need no features, and does not
            import torch (:attr:`AnalysisTask.compute` may).
        in_all: whether ``--analysis all`` includes the analysis, because it needs only the features of a data set.
    """

    name: str
    help: str
    plan: Callable[[AnalysisRequest], list[AnalysisTask]]
    in_all: bool = True


def feature_analysis(
    name: str,
    help_text: str,
    compute: Callable[[dict[str, Any], AnalysisContext], AnalysisOutcome],
    *,
    settings: Callable[[CfgNode], dict[str, Any]] = lambda options: {},
    splits: tuple[str, ...] = constants.SPLITS,
    packages: tuple[str, ...] = ("torch", "numpy"),
) -> Analysis:
    """Return the declaration of an analysis that needs only the features of one data set.

    Args:
        name: value of ``--analysis``, and name of the result.
        help_text: help of the analysis, one line.
        compute: function that computes the result from the settings and the input.
        settings: function from the section ANALYSIS of the configuration to the settings, JSON values.
        splits: splits whose features are used.
        packages: packages whose versions are recorded.
    """

    def plan(request: AnalysisRequest) -> list[AnalysisTask]:
        chosen = settings(request.cfg.ANALYSIS)
        return [AnalysisTask(request, name, splits, chosen, functools.partial(compute, chosen), packages)]

    return Analysis(name, help_text, plan)
