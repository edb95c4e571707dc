"""A model with the places of its results, for commands that do not yet take :func:`cog.models.choice.find_model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.models.choice import ModelChoice, find_model
from cog.paths import ModelDir

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.models.backbone import Backbone


@dataclass(frozen=True)
class ModelRequest:
    """A model by name; a field with the name of a flag holds the value of the flag."""

    model: str
    models_root_dir: str | None = None
    ckpt_file: str | None = None
    output_dir: str | None = None
    model_loader: str | None = None
    models_file: str | None = None

    def with_models_file(self, path: str | None) -> ModelRequest:
        """Return the request with a file of the user's models."""
        return replace(self, models_file=path)

    @cached_property
    def choice(self) -> ModelChoice:
        """The model."""
        if self.models_root_dir is None and self.output_dir is None:
            raise CogError("nowhere to write: give --models_root_dir, or --ckpt_file with --output_dir")
        return find_model(
            self.model,
            root=self.models_root_dir,
            checkpoint=self.ckpt_file,
            loader=self.model_loader,
            models_file=self.models_file,
        )

    @property
    def paths(self) -> tuple[Path | None, ModelDir | None]:
        """Checkpoint and model folder."""
        return self.checkpoint, self.model_dir

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint; None: the loader needs none, or the library has the weights."""
        return self.choice.checkpoint

    @property
    def model_dir(self) -> ModelDir | None:
        """The folder of the model; None without ``--models_root_dir``."""
        return ModelDir(self.models_root_dir, self.model) if self.models_root_dir is not None else None

    @cached_property
    def description(self) -> dict[str, Any]:
        """Part of features.json that identifies the network."""
        choice = self.choice
        facts = {"pretraining": choice.pretraining, "label": choice.label, "group": choice.group}
        facts |= {
            "checkpoint": str(choice.checkpoint) if choice.checkpoint else None,
            "loader": choice.loader,
        }
        return choice.identity() | {key: value for key, value in facts.items() if value is not None}

    def config(self, config_file: str | None, opts: Sequence[str]) -> CfgNode:
        """Return the configuration with the defaults of this model."""
        return self.choice.config(config_file, opts)

    def load(self, device: torch.device, cfg: CfgNode) -> Backbone:
        """Load the network."""
        return self.choice.load(device, cfg)

    def summary(self, backbone: Backbone, cfg: CfgNode) -> str:
        """Return one line about the input and the features of the network."""
        return self.choice.summary(backbone, cfg)

    def fine_tuned(self, cfg: CfgNode) -> dict[str, Any]:
        """Return further settings that distinguish fine-tuned networks of this name."""
        fx = cfg.FT_EXTRACT
        if fx.IMAGE_INTERPOLATION != "bicubic" or fx.IMAGE_SQUASH:
            raise CogError(
                "fine-tuning resizes images as the protocol does: leave out FT_EXTRACT.PREPROCESS model, "
                "IMAGE_INTERPOLATION and IMAGE_SQUASH"
            )
        facts = {
            "source": self.choice.source if self.choice.source != self.model else None,
            "pooling": None if fx.POOLING == "default" else fx.POOLING,
        }
        return {key: value for key, value in facts.items() if value is not None}

    def preprocessing(self, cfg: CfgNode) -> dict[str, Any]:
        """Return the part of features.json about the input of the network and the pooling of its tokens."""
        fx = cfg.FT_EXTRACT
        record = {
            "resize": fx.IMAGE_RESIZE_SIZE,
            "crop": fx.IMAGE_CROP_SIZE,
            "interpolation": f"{fx.IMAGE_INTERPOLATION} (Pillow)",
            "mean": list(fx.IMAGE_NORM.MEAN),
            "std": list(fx.IMAGE_NORM.STD),
            "load_truncated_images": fx.LOAD_TRUNCATED_IMAGES,
        }
        if fx.IMAGE_SQUASH:
            record["squash"] = True
        if fx.PREPROCESS != "protocol":
            record["geometry"] = fx.PREPROCESS
        if fx.POOLING != "default":
            record["pooling"] = fx.POOLING
        return record
