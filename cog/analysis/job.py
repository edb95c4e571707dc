"""What an analysis is given, and what it gives back. Nothing here imports torch before features are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import names
from cog.analysis.records import Number
from cog.errors import CogError
from cog.paths import ModelDir, analysis_folder

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.features import FeatureSet
    from cog.resume_folder import SavedStates


@dataclass(frozen=True)
class Request:
    """What the command line asks of one data set; ``plan`` functions turn it into tasks.

    Attributes:
        model: ``<model_title>_<architecture_name>``, or None.
        dataset: name, or None (with feature folders of the user's own).
        model_dir: the model's folder; None without ``--models_root_dir`` and ``--model``.
        features: where the features of each split are expected: a folder or a file.
        output_root: folder that gets ``analysis_<name>/``.
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
            CogError: when it is not there.
        """
        if split not in self.features:
            raise CogError(f"no {split} features: give --{split}_features_dir")
        path = self.features[split]
        file = path / names.FEATURES_FILE if path.is_dir() else path
        if not file.is_file():
            raise CogError(
                f"there are no {split} features {file}; run extract_features.py first, or check the path"
            )
        return file

    def output(self, name: str) -> Path:
        """Return the folder of the result of an analysis."""
        return self.output_root / analysis_folder(name)


@dataclass(frozen=True)
class Outcome:
    """What an analysis found.

    Attributes:
        values: headline numbers, flat; None (or NaN) where undefined.
        seeds: of the repetitions, in order; empty where nothing is random.
        per_seed: values of each repetition.
        details: whatever else is worth knowing.
        summary: one line for the terminal; empty: the values.
    """

    values: Mapping[str, Number]
    seeds: Sequence[int] = ()
    per_seed: Mapping[int, Mapping[str, Number]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


@dataclass(frozen=True)
class Job:
    """What a task computes with.

    Attributes:
        request: of the data set.
        device: where to compute.
        load: ``load(split, normalize=True)`` reads the features of a split, once for all tasks of the data set:
            **they are shared and must not be changed**.
        resume: the hidden folder for what must survive an interruption.
        stage: folder for bulky data; what is written there appears beside ``results.json``.
        label: ``"<model> <dataset>: "``, for log and progress lines; may be empty.
    """

    request: Request
    device: torch.device
    load: Callable[..., FeatureSet]
    resume: SavedStates
    stage: Path
    label: str


@dataclass(frozen=True)
class Task:
    """One result to compute.

    Attributes:
        name: of the folder, ``analysis_<name>``.
        splits: whose features are used; their identity is recorded.
        settings: what else makes two results the same: options, digests of other inputs. JSON values.
        compute: does the work.
        packages: whose versions are recorded.
    """

    name: str
    splits: tuple[str, ...]
    settings: dict[str, Any]
    compute: Callable[[Job], Outcome]
    packages: tuple[str, ...] = ("torch", "numpy")
