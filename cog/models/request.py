"""The model that a command was asked for: its checkpoint, its folder, and its description for records."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config
from cog.errors import CogError
from cog.models import hashes
from cog.models.formats.detect import checkpoint_files, require_checkpoint
from cog.models.sources import LibraryModel, find_spec
from cog.models.zoo import MODELS
from cog.paths import ModelDir, split_model_name
from cog.runtime import files

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.models.backbone import Backbone

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelRequest:
    """A model by name, and where it and its results lie; each field is the value of the flag of its name.

    Properties are computed, and checked, when they are first asked for.
    """

    model: str
    models_root_dir: str | None = None
    ckpt_file: str | None = None
    output_dir: str | None = None
    model_loader: str | None = None
    strict_hash: bool = False

    def config(self, config_file: str | None, opts: Sequence[str]) -> CfgNode:
        """Return the configuration with the defaults of this model.

        Raises:
            CogError: an unknown model, an unusable configuration.
        """
        spec = MODELS.get(self.model) if self.model_loader else find_spec(self.model)
        return config.get_cfg(model=spec, model_name=self.model, config_file=config_file, opts=list(opts))

    def check_variant(self, cfg: CfgNode) -> None:
        """Check that no variant is asked for of a model with its own loader.

        Raises:
            CogError: it is.
        """
        if self.model_loader is not None and cfg.FT_EXTRACT.VARIANT:
            raise CogError(
                f"FT_EXTRACT.VARIANT {cfg.FT_EXTRACT.VARIANT} is for declared models, not for one with --model_loader"
            )

    @cached_property
    def paths(self) -> tuple[Path | None, ModelDir | None]:
        """Checkpoint (None: the loader does without, or the library has one) and model folder (None: not known).

        Raises:
            CogError: missing flags, folders or files.
        """
        split_model_name(self.model)
        if self.models_root_dir is None and self.output_dir is None:
            raise CogError("nowhere to write: give --models_root_dir, or --ckpt_file with --output_dir")
        model_dir = checkpoint = None
        if self.models_root_dir is not None:
            files.require_dir(self.models_root_dir, "--models_root_dir")
            model_dir = ModelDir(self.models_root_dir, self.model)
            checkpoint = model_dir.checkpoint
        if self.ckpt_file is not None:
            checkpoint = Path(self.ckpt_file)
            require_checkpoint(checkpoint, "--ckpt_file")
        elif checkpoint is None and self.model_loader is None and self.library_model is None:
            raise CogError("no checkpoint: give --ckpt_file, or --models_root_dir")
        elif checkpoint is not None and not checkpoint_files(checkpoint):
            if self.model_loader is None and self.library_model is None:
                raise CogError(
                    f"there is no checkpoint {checkpoint}; prepare_models/README.md says how to get it, or give "
                    "--ckpt_file"
                )
            checkpoint = None
        if self.model_loader is not None:
            files.require_file(self.model_loader.rpartition(":")[0], "--model_loader")
        return checkpoint, model_dir

    @cached_property
    def library_model(self) -> LibraryModel | None:
        """The declaration of a model of another library; None for others.

        Raises:
            CogError: an unknown model, or a library that is not installed.
        """
        spec = None if self.model_loader else find_spec(self.model)
        return spec if isinstance(spec, LibraryModel) else None

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint; None: the loader does without, or the library has the weights."""
        return self.paths[0]

    @property
    def model_dir(self) -> ModelDir | None:
        """The folder of the model; None without ``--models_root_dir``."""
        return self.paths[1]

    @property
    def n_bytes(self) -> int:
        """Size of the checkpoint in bytes; 0 without one."""
        return (
            sum(path.stat().st_size for path in checkpoint_files(self.checkpoint)) if self.checkpoint else 0
        )

    @cached_property
    def description(self) -> dict[str, Any]:
        """The part of features.json that identifies the network.

        Raises:
            CogError: see :attr:`paths`; with ``strict_hash`` a checkpoint that is not the published file.
        """
        loader_file = Path(self.model_loader.rpartition(":")[0]) if self.model_loader else None
        digest = hashes.sha256(self.checkpoint) if self.checkpoint else None
        description: dict[str, Any] = {
            "model": self.model,
            "checkpoint": str(self.checkpoint) if self.checkpoint else None,
            "checkpoint_sha256": digest,
            "loader": self.model_loader,
            "loader_sha256": files.sha256(loader_file) if loader_file else None,
        }
        if self.library_model is not None and digest is None:
            description["weights"] = self.library_model.address
        if self.model_loader is None:
            description["checkpoint_is_published"] = self._is_published(digest)
        return description

    def _is_published(self, digest: str | None) -> bool | None:
        """Return whether the checkpoint is the published file of its model; None when no SHA-256 was published."""
        spec = find_spec(self.model)
        published = None if digest is None else hashes.is_published(spec, digest)
        if published is False:
            known = " or ".join(map(hashes.abbreviated, spec.sha256_prefixes))
            text = f"the checkpoint of {self.model} is not the published file: SHA-256 {digest}, expected {known}"
            if self.strict_hash:
                raise CogError(f"{text} (--strict_hash)")
            logger.warning("%s", text)
        elif published is None and self.strict_hash:
            logger.warning(
                "no SHA-256 of the checkpoint of %s was published; --strict_hash cannot check it", self.model
            )
        return published

    def load(self, device: torch.device, cfg: CfgNode) -> Backbone:
        """Load the network, see :func:`cog.models.backbone.load_backbone`."""
        from cog.models.backbone import load_backbone

        return load_backbone(
            self.model,
            self.checkpoint,
            device,
            self.model_loader,
            model_dir=self.model_dir.path if self.model_dir else None,
            profile=cfg.FT_EXTRACT.PROFILE,
            variant=cfg.FT_EXTRACT.VARIANT,
            image_size=cfg.FT_EXTRACT.IMAGE_CROP_SIZE,
        )
