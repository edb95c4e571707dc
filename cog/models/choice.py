"""The choice of a model by name: its network, its files, and what identifies it in records."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.data.pixels import Preprocess
from cog.models.request import ModelRequest

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.models.backbone import Backbone


@dataclass(frozen=True, eq=False)
class ModelChoice:
    """A model that can be loaded.

    Attributes:
        name: ``<model_title>_<architecture_name>``.
        source: name of the network in the paper or a library; ``FILE.py:FUNCTION`` (without folders) of a loader.
        checkpoint: file of the weights (of a TensorFlow checkpoint: the common prefix of its files); None: a loader
            needs none, or the library has its own.
        loader: ``FILE.py:FUNCTION`` of the user's loader.
        pretraining: one of :data:`cog.models.spec.PRETRAINING`.
        label: name in tables and figures that the user gives.
        group: name of a group of models that the user gives.
    """

    name: str
    source: str
    checkpoint: Path | None
    loader: str | None
    pretraining: str
    label: str | None
    group: str | None
    request: ModelRequest = field(repr=False)

    def identity(self) -> dict[str, Any]:
        """Return what identifies the network: model, source, checkpoint_sha256, loader_sha256; the files are read."""
        description = self.request.description
        return {
            "model": self.name,
            "source": self.source,
            "checkpoint_sha256": description["checkpoint_sha256"],
            "loader_sha256": description["loader_sha256"],
        }

    def config(self, config_file: str | None = None, opts: Sequence[str] = ()) -> CfgNode:
        """Return the configuration with this model's preprocessing; a user's loader is run for it.

        Args:
            config_file: path of the user's YAML file.
            opts: flat ``[KEY, VALUE, ...]`` list.

        Raises:
            CogError: an unusable configuration, a loader that fails.
        """
        return self.request.config(config_file, opts)

    def load(self, device: str | torch.device, cfg: CfgNode) -> Backbone:
        """Return the frozen network for the image size and the pooling of a configuration of :meth:`config`.

        Raises:
            CogError: unsafe or unfitting checkpoint, failing loader or download.
        """
        return self.request.load(device, cfg)  # type: ignore[arg-type]


def find_model(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    loader: str | None = None,
    models_file: str | os.PathLike[str] | None = None,
) -> ModelChoice:
    """Return a model by name, after checks that its files exist; nothing is loaded.

    Args:
        name: a model of the paper, of a library (timm_resnet18), of ``models_file``, or any with a ``loader``.
        root: value of ``--models_root_dir``.
        checkpoint: value of ``--ckpt_file``; None: ``model.ckpt`` or ``model.safetensors`` in the model's folder.
        loader: value of ``--model_loader``.
        models_file: value of ``--models_file``.

    Raises:
        CogError: an unknown model, a missing file, an unusable entry in ``models_file``.
    """
    given = {
        key: None if value is None else str(value) for key, value in (("root", root), ("file", checkpoint))
    }
    request = ModelRequest(
        name,
        models_root_dir=given["root"],
        ckpt_file=given["file"],
        output_dir=os.curdir if root is None else None,
        model_loader=loader,
    ).with_models_file(None if models_file is None else str(models_file))
    if request.model_loader is None:
        _ = request.spec
    entry = request.entry
    return ModelChoice(
        name,
        request.known_as if request.model_loader is None else os.path.basename(request.model_loader),
        request.checkpoint,
        request.model_loader,
        request.pretraining,
        entry.label if entry else None,
        entry.group if entry else None,
        request,
    )


def preprocess_of(cfg: CfgNode) -> Preprocess:
    """Return the preprocessing in a configuration."""
    fx = cfg.FT_EXTRACT
    values: Mapping[str, Any] = {
        "size": fx.IMAGE_CROP_SIZE,
        "resize": fx.IMAGE_RESIZE_SIZE,
        "mean": tuple(fx.IMAGE_NORM.MEAN),
        "std": tuple(fx.IMAGE_NORM.STD),
        "interpolation": fx.IMAGE_INTERPOLATION,
        "squash": fx.IMAGE_SQUASH,
    }
    return Preprocess(**values)
