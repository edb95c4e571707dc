"""Saved classifier runs as input of an analysis: their seeds and weights.

Runs are read by :mod:`cog.results.run_records`, which also reads runs of the original toolkit. This module imports
torch only to read weights.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config
from cog.errors import CogError
from cog.paths import ModelDir, evaluation_folder
from cog.results import find, run_records
from cog.runtime import files
from cog.runtime.safe_load import load_torch

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.logreg.mlp import TrainedClassifier

logger = logging.getLogger(__name__)

MODEL_FILE = "model.pth"
PCA_FILE = "pca.pth"


@dataclass(frozen=True)
class SavedRun:
    """One complete run.

    Attributes:
        seed: seed of the run.
        folder: folder with ``model.pth``.
        record: contents of results.json; empty for runs of the original toolkit.
    """

    seed: int
    folder: Path
    record: Mapping[str, Any]

    @property
    def labels(self) -> list[int] | None:
        """The original labels of the classes; None if they are 0..C-1."""
        labels = self.record.get("labels")
        return [int(label) for label in labels] if isinstance(labels, list) else None

    def file(self, name: str) -> Path:
        """Return the path of a file of the run.

        Raises:
            CogError: the file does not exist.
        """
        path = self.folder / name
        if not path.is_file():
            raise CogError(f"the run {self.folder.parent} has no {name}; run logreg.py again (--overwrite)")
        return path


def evaluation(cfg: CfgNode) -> tuple[str, int]:
    """Return the name and the number of shots of the evaluation in a configuration."""
    return config.evaluation_name(cfg), cfg.CLF.N_SHOT


def evaluation_label(cfg: CfgNode) -> str:
    """Return the suffix that names an evaluation in the name of a result; "" for the protocol's evaluation."""
    folder = evaluation_folder(*evaluation(cfg))
    protocol = evaluation_folder(config.default_cfg().EVAL.NAME, 0)
    if folder.startswith(f"{protocol}_"):
        return folder.removeprefix(protocol)
    return "" if folder == protocol else folder.removeprefix("eval")


def find_runs(model_dir: ModelDir, dataset: str, cfg: CfgNode) -> list[SavedRun]:
    """Return the complete runs of a model on a data set, by seed; a warning names the runs that do not count.

    Args:
        model_dir: the model's folder.
        dataset: data set that the classifiers were trained on.
        cfg: configuration with the name of the evaluation (EVAL.NAME, CLF.TYPE, CLF.N_SHOT ...).

    Raises:
        CogError: there are no runs that can be read.
    """
    name, n_shot = evaluation(cfg)
    folder = model_dir.evaluation(dataset, name=name, n_shot=n_shot)
    runs, problems = find.read_evaluation(folder) if folder.is_dir() else ([], [])
    for problem in problems:
        logger.warning("%s is left out: %s", problem.path, problem.reason)
    if not runs:
        raise CogError(
            f"there are no classifiers in {folder}; run logreg.py --model {model_dir.model} --dataset {dataset} first, "
            "or check EVAL.NAME and CLF.N_SHOT"
        )
    return [_saved(run) for run in runs]


def read_run(path: Path, *, n_shot: int | None, seed: int) -> SavedRun:
    """Read one seed folder.

    Raises:
        CogError: see :func:`cog.results.run_records.read_run`.
    """
    return _saved(run_records.read_run(path, run_records.RunPlace("", "", n_shot, seed)))


def _saved(run: run_records.Run) -> SavedRun:
    return SavedRun(run.seed, run.path / run.final_folder, run_records.load_record(run.path) or {})


def digest(*paths: Path) -> str:
    """Return the SHA-256 of the concatenated files of a run, as 64 hexadecimal digits.

    Raises:
        CogError: a file cannot be read.
    """
    result = hashlib.sha256()
    for path in paths:
        result.update(files.contents(path, "file of a run"))
    return result.hexdigest()


@dataclass(frozen=True, eq=False)
class SavedClassifier:
    """A classifier of a run, and the preprocessing of its input.

    Attributes:
        network: layers of the classifier.
        normalize: whether the input of the layers is l2-normalized.
        projection: ``mean`` ``(D,)`` and ``components`` ``(d, D)`` of principal components; None without projection.
        normalizes_before: whether features are l2-normalized before they are projected.
    """

    network: TrainedClassifier
    normalize: bool
    projection: tuple[torch.Tensor, torch.Tensor] | None = None
    normalizes_before: bool = False

    @property
    def n_classes(self) -> int:
        """Number of classes, C."""
        return self.network.sizes[-1]

    @property
    def feature_dim(self) -> int:
        """Width of the features that the classifier takes, D."""
        return self.network.sizes[0] if self.projection is None else self.projection[1].shape[1]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, float32 ``(n, C)``, of features as in the file, float32 ``(n, D)``."""
        from cog.features.feature_files import unit_rows

        if self.normalizes_before:
            x = unit_rows(x)
        if self.projection is not None:
            x = (x - self.projection[0]) @ self.projection[1].T
        return self.network.logits(unit_rows(x) if self.normalize else x)


def load_classifier(run: SavedRun, *, normalize: bool, device: torch.device | str = "cpu") -> SavedClassifier:
    """Read ``model.pth`` of a run, a linear layer or the Sequential of an MLP, and ``pca.pth`` if it exists.

    Args:
        run: a complete run.
        normalize: whether features are l2-normalized, if the run does not record it (the original toolkit).
        device: device of the classifier.

    Raises:
        CogError: a file has another form, or values that are not finite.
    """
    import torch

    from cog.logreg.mlp import TrainedClassifier

    path = run.file(MODEL_FILE)
    content = load_torch(path)
    state = content.get("model") if isinstance(content, dict) else None
    layers: list[tuple[torch.Tensor, torch.Tensor]] = []
    if isinstance(state, dict):
        prefixes = sorted(
            (key.removesuffix("weight") for key in state if str(key).endswith("weight")),
            key=lambda prefix: int(prefix.rstrip(".")) if prefix.rstrip(".").isdecimal() else -1,
        )
        layers = [(state[f"{p}weight"], state[f"{p}bias"]) for p in prefixes if f"{p}bias" in state]
    if not layers or any(
        not isinstance(weight, torch.Tensor)
        or not isinstance(bias, torch.Tensor)
        or weight.ndim != 2
        or bias.shape != weight.shape[:1]
        for weight, bias in layers
    ):
        raise CogError(f"{path} holds no linear layers, expected {{'model': {{'weight', 'bias'}}}}")
    layers = [(weight.to(device).float(), bias.to(device).float()) for weight, bias in layers]
    if not all(bool(torch.isfinite(tensor).all()) for layer in layers for tensor in layer):
        raise CogError(f"{path} holds NaN or infinite weights: the training diverged; leave its seed out")
    settings = run.record.get("configuration")
    settings = settings if isinstance(settings, dict) else {}
    recorded = settings.get("CLF.NORM_FTS")
    normalize = recorded if isinstance(recorded, bool) else normalize
    network = TrainedClassifier(layers, relu=settings.get("CLF.TYPE") != "mlp_noact")
    if not (run.folder / PCA_FILE).is_file():
        return SavedClassifier(network, normalize)
    tensors = load_torch(run.folder / PCA_FILE)
    projection = (tensors["mean"].to(device).float(), tensors["components"].to(device).float())
    before = normalize and settings.get("CLF.PCA_NORM") == "before"
    return SavedClassifier(network, normalize and not before, projection, before)
