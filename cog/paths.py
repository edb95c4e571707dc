"""The layout of ``<models_root_dir>``.

::

    <models_root_dir>/<model_title>/<architecture_name>/
        model.ckpt
        <dataset>/features_<split>/X_Y.pth
        <dataset>/eval_<name>[_N<n_shot>]/seed-<seed>/
        <dataset>/analysis_<name>/

``<models_root_dir>/limit-<N>/`` is such a root without checkpoints: first N images of the first N classes.
"""

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cog import constants
from cog.errors import CogError

# The original toolkit wrote eval_logreg-N8/seed_22, its README says eval_logreg_N8/seed-22: both are read.
_EVAL_FOLDER = re.compile(r"eval_(?P<name>(?!N[0-9]+$).+?)(?:[_-]N(?P<n_shot>[0-9]+))?")


def limit_of(root: str | os.PathLike[str]) -> int:
    """Return N for a root ``limit-<N>``; 0 for all others."""
    match = re.fullmatch(r"limit-([1-9][0-9]{0,8})", os.path.basename(os.path.abspath(root)))
    return int(match[1]) if match else 0


def split_model_name(model: str, *, flag: str = "--model") -> tuple[str, str]:
    """Split ``<model_title>_<architecture_name>`` at the first underscore; a CogError names ``flag``."""
    if not constants.is_model_name(model):
        form = "<model_title>_<architecture_name> such as sup_resnet50 (letters, digits and ._+-)"
        raise CogError(f"{flag} {model!r} is not a model name, expected {form}")
    title, _, architecture = model.partition("_")
    return title, architecture


def check_dataset_name(dataset: str) -> str:
    """Return ``dataset`` when it can name a folder; else raise a CogError."""
    if not constants.is_plain_name(dataset):
        raise CogError(f"--dataset {dataset!r} is not a data set name, expected letters, digits and ._+-")
    return dataset


@dataclass(frozen=True)
class ModelDir:
    """The folder of one model under ``models_root_dir``; a CogError when ``model`` is no such name."""

    root: Path
    model: str

    @property
    def path(self) -> Path:
        """The folder ``<root>/<model_title>/<architecture_name>``."""
        return Path(self.root, *split_model_name(self.model))

    @property
    def home(self) -> Path:
        """The folder of the checkpoint and of files beside it: :attr:`path` without ``limit-<N>``."""
        root = Path(os.path.abspath(self.root)).parent if limit_of(self.root) else self.root
        return ModelDir(root, self.model).path

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

    def run(self, dataset: str, *, name: str, n_shot: int, seed: int) -> Path:
        """Return the folder of one classifier run (``n_shot`` 0: all training images), in its spelling."""
        place, folder = self.path / check_dataset_name(dataset), evaluation_folder(name, n_shot)
        spelled = [f"{folder}/seed-{seed}", f"{folder}/seed_{seed}", f"eval_{name}-N{n_shot}/seed_{seed}"]
        return next((place / one for one in spelled if (place / one).exists()), place / spelled[0])


def features_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of an ``X_Y.pth`` from its own path or that of its folder."""
    return Path(path, constants.FEATURES_FILE) if os.path.isdir(path) else Path(path)


def evaluation_folder(name: str, n_shot: int) -> str:
    """Return ``eval_<name>`` or, for few-shot runs, ``eval_<name>_N<n_shot>``."""
    return f"eval_{name}_N{n_shot}" if n_shot else f"eval_{name}"


def parse_evaluation_folder(folder: str) -> tuple[str, int] | None:
    """Return ``(name, n_shot)`` of an evaluation folder in either spelling, or None."""
    match = _EVAL_FOLDER.fullmatch(folder)
    return (match["name"], int(match["n_shot"] or 0)) if match else None


def parse_seed_folder(folder: str) -> int | None:
    """Return the seed of a seed folder in either spelling, or None."""
    return int(match[1]) if (match := re.fullmatch(r"seed[-_]([0-9]+)", folder)) else None


def require_file(path: str | os.PathLike[str], flag: str, kind: str = "file") -> Path:
    """Return ``path`` when it is a readable file, or "folder"; else a CogError names ``flag``."""
    path = Path(path)
    if not (path.is_dir() if kind == "folder" else path.is_file()):
        found = "is a folder" if path.is_dir() else "is a file" if path.exists() else "does not exist"
        raise CogError(f"{flag} {path} {found}, expected a {kind}")
    return path


require_dir = functools.partial(require_file, kind="folder")
