"""Saved classifier runs as input of an analysis: their seeds, weights, and the names of their classes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from yacs.config import CfgNode

from cog import config, constants
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError
from cog.features.feature_files import open_file, unit_rows
from cog.features.folder import read_image_paths
from cog.paths import ModelDir, evaluation_folder
from cog.results.records import Run, load_record
from cog.results.runs import Found, read_folder
from cog.runtime.safe_load import load_torch

logger = logging.getLogger(__name__)


def evaluation(cfg: CfgNode) -> str:
    """Return the name of the evaluation folder that a configuration selects: ``eval_logreg_N8``."""
    return evaluation_folder(config.evaluation_name(cfg), cfg.CLF.N_SHOT)


def find_runs(model_dir: ModelDir | None, dataset: str | None, cfg: CfgNode) -> list[Run]:
    """Return the complete runs of a model on a data set, by seed; a warning names the runs that do not count.

    ``cfg`` selects the evaluation (EVAL.NAME, CLF.TYPE, CLF.N_SHOT ...). No model and data set, or no runs that can be
    read, are a CogError.
    """
    if model_dir is None or dataset is None:
        raise CogError("analyses of classifiers need --models_root_dir, --model and --dataset")
    folder = model_dir.path / dataset / evaluation(cfg)
    found = read_folder(folder) if folder.is_dir() else Found()
    for skipped in found.skipped:
        logger.warning("%s is left out: %s", skipped.path, skipped.reason)
    if not found.runs:
        raise CogError(
            f"there are no classifiers in {folder}; run logreg.py --model {model_dir.model} --dataset {dataset} first, "
            "or check EVAL.NAME and CLF.N_SHOT"
        )
    return found.runs


def weights(run: Run) -> Path:
    """Return the path of the weights of a run, which may be missing."""
    return Path(run.folder, run.final, "model.pth")


def labels(run: Run, n_classes: int) -> list[int]:
    """Return the label of each output of a classifier, in the features that it was trained on."""
    stated = (load_record(run.folder) or {}).get("labels")
    return list(map(int, stated)) if isinstance(stated, list) else list(range(n_classes))


def class_names(file: Path | None, dataset: str | None, n_classes: int) -> list[str]:
    """Return the name of each label of features: the folder of its images, usually a WordNet id.

    Without a list of images (features of the original toolkit), the names are the ids of IN-1K, or ``class 17``.
    """
    y = [] if file is None else open_file(file, mapped=True).y.long().tolist()
    images = None if file is None else read_image_paths(file, n_rows=len(y))
    if images is not None:
        folders = {label: path.split("/")[0] for label, path in zip(y, images, strict=True)}
        return [folders.get(label, f"class {label}") for label in range(n_classes)]
    wnids = sorted(IN1K_LIST.read_text(encoding="utf-8").split()) if dataset == constants.IN1K else []
    return wnids if len(wnids) == n_classes else [f"class {label}" for label in range(n_classes)]


@dataclass(frozen=True, eq=False)
class SavedClassifier:
    """Layers, each a weight ``(h, d)`` and a bias ``(h,)``, float32; of l2-normalized features if ``normalize``."""

    layers: list[tuple[torch.Tensor, torch.Tensor]]
    normalize: bool = True
    relu: bool = True

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 logits ``(b, C)`` of features ``(b, d)`` as they are in the file."""
        x = unit_rows(x) if self.normalize else x
        for position, (weight, bias) in enumerate(self.layers):
            x = torch.addmm(bias, x.relu() if position and self.relu else x, weight.T)
        return x


def load_classifier(run: Run, *, normalize: bool, device: torch.device | str = "cpu") -> SavedClassifier:
    """Read ``model.pth`` of a run, a linear layer or the Sequential of an MLP.

    ``normalize`` holds if the run does not record it (the original toolkit). A missing file, another form and values
    that are not finite are a CogError.
    """
    path = weights(run)
    if not path.is_file():
        raise CogError(f"there is no {path}; run logreg.py again (--overwrite)")
    content = load_torch(path)
    state = content.get("model") if isinstance(content, dict) else None
    names = [str(key) for key in state] if isinstance(state, dict) else []
    prefixes = [name.removesuffix("weight") for name in names if name.endswith("weight")]
    prefixes.sort(key=lambda prefix: int(prefix[:-1]) if prefix[:-1].isdecimal() else -1)
    layers = [(state.get(f"{prefix}weight"), state.get(f"{prefix}bias")) for prefix in prefixes]  # type: ignore[union-attr]
    for weight, bias in layers or [(None, None)]:
        tensors = isinstance(weight, torch.Tensor) and isinstance(bias, torch.Tensor)
        if not tensors or weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise CogError(f"{path} holds no linear layers, expected {{'model': {{'weight', 'bias'}}}}")
        if not bool(torch.isfinite(weight).all() & torch.isfinite(bias).all()):
            raise CogError(f"{path} holds NaN or infinite weights: the training diverged; leave its seed out")
    settings = (load_record(run.folder) or {}).get("configuration")
    settings = settings if isinstance(settings, dict) else {}
    recorded = settings.get("CLF.NORM_FTS")
    return SavedClassifier(
        [(weight.to(device).float(), bias.to(device).float()) for weight, bias in layers],
        recorded if isinstance(recorded, bool) else normalize,
        relu=settings.get("CLF.TYPE") != "mlp_noact",
    )
