"""The layout of ``<models_root_dir>``; no other module builds these paths.

::

    <models_root_dir>/<model_title>/<architecture_name>/
        model.ckpt
        <dataset>/features_<split>/X_Y.pth
        <dataset>/eval_<name>[_N<n_shot>]/seed-<seed>/
        <dataset>/analysis_<name>/

Features of ``extract_features.py --limit N`` lie below ``<models_root_dir>/limit-<N>/`` in the same layout.
Other commands are given that root; the checkpoints of its models are those of ``<models_root_dir>``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from cog import constants
from cog.errors import CogError

# The original toolkit's code wrote "eval_logreg-N8/seed_22" where its README says
# "eval_logreg_N8/seed-22": both are read, the README's form is written.
_EVAL_FOLDER = re.compile(r"eval_(?P<name>(?!N[0-9]+$).+?)(?:[_-]N(?P<n_shot>[0-9]+))?")
_SEED_FOLDER = re.compile(r"seed[-_](?P<seed>[0-9]+)")
_ANALYSIS_FOLDER = re.compile(r"analysis_(?P<name>[A-Za-z0-9][A-Za-z0-9._+-]*)")
_LIMIT_FOLDER = re.compile(r"limit-(?P<limit>[1-9][0-9]{0,8})")


def limit_of(root: str | os.PathLike[str]) -> int:
    """Return N for a root ``limit-<N>``; 0 for all others."""
    match = _LIMIT_FOLDER.fullmatch(os.path.basename(os.path.abspath(root)))
    return int(match["limit"]) if match else 0


def limit_above(path: str | os.PathLike[str]) -> int:
    """Return N for a path in or below a root ``limit-<N>``; 0 for all others."""
    return next(filter(None, map(limit_of, [path, *Path(os.path.abspath(path)).parents])), 0)


def with_limit(root: str | os.PathLike[str], limit: int) -> Path:
    """Return the root ``limit-<limit>`` in a root; a root of this name is returned as it is."""
    return Path(root) if limit_of(root) == limit else Path(root) / f"limit-{limit}"


def without_limit(root: str | os.PathLike[str]) -> Path:
    """Return the root of all models: the parent of a root ``limit-<N>``, else ``root`` itself."""
    return Path(os.path.abspath(root)).parent if limit_of(root) else Path(root)


def split_model_name(model: str, *, flag: str = "--model") -> tuple[str, str]:
    """Split ``<model_title>_<architecture_name>`` at the first underscore; a CogError names ``flag``."""
    if not constants.is_model_name(model):
        raise CogError(
            f"{flag} {model!r} is not a model name, expected <model_title>_<architecture_name> "
            "such as sup_resnet50 (letters, digits and ._+- only)"
        )
    title, _, architecture = model.partition("_")
    return title, architecture


def check_dataset_name(dataset: str) -> str:
    """Return ``dataset`` when it can name a folder; else raise a CogError."""
    if not constants.is_plain_name(dataset):
        raise CogError(
            f"--dataset {dataset!r} is not a data set name, expected one of {', '.join(constants.DATASETS)} "
            "or a name of your own (letters, digits and ._+- only)"
        )
    return dataset


@dataclass(frozen=True)
class ModelDir:
    """The folder of one model under ``models_root_dir``; a CogError when ``model`` is no such name."""

    root: Path
    model: str

    def __post_init__(self) -> None:
        split_model_name(self.model)
        object.__setattr__(self, "root", Path(self.root))

    @property
    def path(self) -> Path:
        """The folder ``<root>/<model_title>/<architecture_name>``."""
        return self.root.joinpath(*split_model_name(self.model))

    @property
    def home(self) -> Path:
        """The folder of the checkpoint and of files beside it: :attr:`path` without ``limit-<N>``."""
        return without_limit(self.root).joinpath(*split_model_name(self.model))

    @property
    def checkpoint(self) -> Path:
        """The model's ``model.ckpt``."""
        return self.home / constants.CHECKPOINT_FILE

    def features(self, dataset: str, split: str) -> Path:
        """Return the folder of the features of one split."""
        return self.path / check_dataset_name(dataset) / f"features_{split}"

    def features_file(self, dataset: str, split: str) -> Path:
        """Return the ``X_Y.pth`` of one split."""
        return self.features(dataset, split) / constants.FEATURES_FILE

    def evaluation(self, dataset: str, *, name: str, n_shot: int) -> Path:
        """Return the folder that holds one run per seed (``n_shot`` 0: all training images)."""
        return self.path / check_dataset_name(dataset) / evaluation_folder(name, n_shot)

    def run(self, dataset: str, *, name: str, n_shot: int, seed: int) -> Path:
        """Return the folder of one classifier run."""
        return self.evaluation(dataset, name=name, n_shot=n_shot) / seed_folder(seed)

    def analysis(self, dataset: str, name: str) -> Path:
        """Return the folder of the result of one analysis."""
        return self.path / check_dataset_name(dataset) / analysis_folder(name)


def features_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of an ``X_Y.pth`` from its own path or that of its folder."""
    path = Path(path)
    return path / constants.FEATURES_FILE if path.is_dir() else path


def evaluation_folder(name: str, n_shot: int) -> str:
    """Return ``eval_<name>`` or, for few-shot runs, ``eval_<name>_N<n_shot>``."""
    return f"eval_{name}_N{n_shot}" if n_shot else f"eval_{name}"


def seed_folder(seed: int) -> str:
    """Return ``seed-<seed>``."""
    return f"seed-{seed}"


def parse_evaluation_folder(folder: str) -> tuple[str, int] | None:
    """Return ``(name, n_shot)`` of an evaluation folder in either spelling, or None."""
    match = _EVAL_FOLDER.fullmatch(folder)
    return (match["name"], int(match["n_shot"] or 0)) if match else None


def parse_seed_folder(folder: str) -> int | None:
    """Return the seed of a seed folder in either spelling, or None."""
    match = _SEED_FOLDER.fullmatch(folder)
    return int(match["seed"]) if match else None


def analysis_folder(name: str) -> str:
    """Return ``analysis_<name>``."""
    return f"analysis_{name}"


def parse_analysis_folder(folder: str) -> str | None:
    """Return the name of an analysis folder, or None."""
    match = _ANALYSIS_FOLDER.fullmatch(folder)
    return match["name"] if match else None
