"""The model that a user requests in a command: its checkpoint, its folder, and its description for records."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config
from cog.errors import CogError, nearest
from cog.models import models_file
from cog.models.formats.detect import checkpoint_files, require_checkpoint, sha256
from cog.models.pretraining import UNKNOWN, of_entry
from cog.models.sources import LibraryModel, find_spec, is_library_model
from cog.models.zoo import MODELS
from cog.paths import ModelDir, split_model_name, without_limit
from cog.runtime import files

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.models.backbone import Backbone
    from cog.models.models_file import ModelEntry
    from cog.models.spec import PaperModel

logger = logging.getLogger(__name__)

#: Number of classes of ImageNet-1K; as many features are probably the scores of a classifier.
_N_CLASSES_IN1K = 1000


@dataclass(frozen=True)
class ModelRequest:
    """A model by name, and the places of its files and results.

    A field with the name of a flag holds the value of the flag.

    Attributes:
        source: name of the network in the zoo or in its library, if it is not ``model``.
        entry: the model's entry in ``entry_file``; None: no entry.
        entry_file: value of ``--models_file``, if the model has an entry there.

    Properties are computed and checked on first use.
    """

    model: str
    models_root_dir: str | None = None
    ckpt_file: str | None = None
    output_dir: str | None = None
    model_loader: str | None = None
    source: str | None = None
    entry: ModelEntry | None = None
    entry_file: str = ""

    def config(self, config_file: str | None, opts: Sequence[str]) -> CfgNode:
        """Return the configuration with the defaults of this model; a user's loader is run for its preprocessing.

        Args:
            config_file: path of the user's YAML file.
            opts: flat ``[KEY, VALUE, ...]`` list.

        Raises:
            CogError: an unknown model, an unusable configuration, a loader that fails.
        """
        common: dict[str, Any] = {"model_name": self.model, "config_file": config_file, "opts": list(opts)}
        if self.entry is not None:
            common |= {"entry_values": self.entry.cfg, "entry_source": self.entry_file}
        if self.model_loader is None:
            return config.get_cfg(model=self.spec, **common)
        # The configuration is checked before the slow loader runs.
        cfg = config.get_cfg(model=MODELS.get(self.model), **common)
        preprocess = self._loaded(cfg.FT_EXTRACT.POOLING).preprocess
        if preprocess is not None:
            return config.get_cfg(model=preprocess, **common)
        if cfg.FT_EXTRACT.PREPROCESS == "model":
            raise CogError(
                f"FT_EXTRACT.PREPROCESS model: the loader of {self.model} declares no preprocessing; it can be the "
                "third value that it returns (docs/own-models.md)"
            )
        return cfg

    @cached_property
    def _backbones(self) -> dict[str, Backbone]:
        return {}

    def _loaded(self, pooling: str) -> Backbone:
        """Return the network of the user's loader, loaded once for its preprocessing and its features."""
        from cog.models.backbone import load_backbone

        if pooling not in self._backbones:
            self._backbones[pooling] = load_backbone(
                self.model,
                self.checkpoint,
                "cpu",
                self.model_loader,
                model_dir=self.model_dir.home if self.model_dir else None,
                pooling=pooling,
            )
        return self._backbones[pooling]

    @cached_property
    def spec(self) -> PaperModel | LibraryModel:
        """Declaration of the model, which must not have a user's loader.

        Raises:
            CogError: an unknown model, or a library that is not installed.
        """
        try:
            return find_spec(self.known_as, self.library_folder)
        except CogError as error:
            if self.entry is None:
                raise
            fault = f"source of {self.model}" if self.source else f"{self.model} has no source and no loader"
            raise CogError(f"{self.entry_file}: {fault}: {error}") from error

    @property
    def library_folder(self) -> Path | None:
        """Folder of a library's files: the folder of the given checkpoint, else that of the model."""
        if self.ckpt_file is not None:
            return Path(self.ckpt_file).parent
        return ModelDir(self.models_root_dir, self.model).home if self.models_root_dir is not None else None

    @property
    def known_as(self) -> str:
        """Name of the model in the zoo or in its library."""
        return self.source or self.model

    def with_models_file(self, path: str | None) -> ModelRequest:
        """Return the request with the values of the model's entry in the user's file; flags take precedence.

        Raises:
            CogError: an unusable file or entry, or an unknown name that resembles a name in the file.
        """
        if path is None:
            return self
        entry = models_file.find(path, self.model)
        if entry is None:
            known = self.model in MODELS or is_library_model(self.model) or self.model_loader is not None
            if not known and (names := nearest(self.model, models_file.read(path), n=3)):
                raise CogError(
                    f"--model {self.model!r} is not in --models_file {path}; did you mean {' or '.join(names)}?"
                )
            return self
        return dataclasses.replace(
            self,
            entry=entry,
            entry_file=str(path),
            source=None if self.model_loader else entry.source,
            model_loader=self.model_loader or entry.loader,
            ckpt_file=self.ckpt_file or entry.checkpoint,
        )

    @cached_property
    def paths(self) -> tuple[Path | None, ModelDir | None]:
        """Checkpoint (None: the loader needs none, or the library has one) and model folder (None: not known).

        Raises:
            CogError: missing flags, folders or files.
        """
        split_model_name(self.model)
        if self.models_root_dir is None and self.output_dir is None:
            raise CogError("nowhere to write: give --models_root_dir, or --ckpt_file with --output_dir")
        model_dir = checkpoint = None
        if self.models_root_dir is not None:
            files.require_dir(without_limit(self.models_root_dir), "--models_root_dir")
            model_dir = ModelDir(self.models_root_dir, self.model)
            checkpoint = model_dir.checkpoint
            other = checkpoint.with_suffix(".safetensors")
            if not checkpoint_files(checkpoint) and other.is_file():
                checkpoint = other
        if self.ckpt_file is not None:
            checkpoint = Path(self.ckpt_file)
            require_checkpoint(checkpoint, self._flag("--ckpt_file", "checkpoint"))
        elif checkpoint is None and not self._has_weights():
            raise CogError("no checkpoint: give --ckpt_file, or --models_root_dir")
        elif checkpoint is not None and not checkpoint_files(checkpoint):
            if not self._has_weights():
                raise CogError(
                    f"there is no checkpoint {checkpoint}; see docs/models.md for how to get it, or give "
                    "--ckpt_file"
                )
            checkpoint = None
        if self.model_loader is not None:
            files.require_file(self.model_loader.rpartition(":")[0], self._flag("--model_loader", "loader"))
        return checkpoint, model_dir

    def _flag(self, flag: str, key: str) -> str:
        """Return the origin of a file's path for messages: the flag, or the key in the model's entry."""
        given = self.ckpt_file if key == "checkpoint" else self.model_loader
        if self.entry is None or getattr(self.entry, key) != given:
            return flag
        return f"{self.entry_file}: {key} of {self.model}:"

    def _has_weights(self) -> bool:
        """Return whether the model, which must be known, needs no checkpoint of the user."""
        if self.model_loader is not None or is_library_model(self.known_as):
            return True
        return isinstance(self.spec, LibraryModel)

    @property
    def library_model(self) -> LibraryModel | None:
        """Declaration of a model of another library; None for other models."""
        if self.model_loader is not None or not isinstance(self.spec, LibraryModel):
            return None
        return self.spec

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint; None: the loader needs none, or the library has the weights."""
        return self.paths[0]

    @property
    def model_dir(self) -> ModelDir | None:
        """The folder of the model; None without ``--models_root_dir``."""
        return self.paths[1]

    @cached_property
    def description(self) -> dict[str, Any]:
        """Part of features.json that identifies the network.

        Raises:
            CogError: see :attr:`paths`.
        """
        loader_file = Path(self.model_loader.rpartition(":")[0]) if self.model_loader else None
        digest = sha256(self.checkpoint) if self.checkpoint else None
        description: dict[str, Any] = {
            "model": self.model,
            "checkpoint": str(self.checkpoint) if self.checkpoint else None,
            "checkpoint_sha256": digest,
            "loader": self.model_loader,
            "loader_sha256": files.sha256(loader_file) if loader_file else None,
        }
        description["pretraining"] = self.pretraining
        if self.source is not None:
            description["source"] = self.source
        if self.entry is not None:
            facts = {"label": self.entry.label, "group": self.entry.group}
            description |= {key: value for key, value in facts.items() if value is not None}
        if self.library_model is not None and digest is None:
            description["weights"] = self.library_model.address
        if self.model_loader is None:
            description["checkpoint_is_published"] = self._is_published(digest)
        return description

    def _is_published(self, digest: str | None) -> bool | None:
        """Return whether the checkpoint is the published file of its model; None when no SHA-256 was published."""
        if digest is None or isinstance(self.spec, LibraryModel):
            return None
        published = self.spec.is_published(digest)
        if published is False:
            logger.warning(
                "the checkpoint of %s is not the published file: SHA-256 %s, expected %s",
                self.model,
                digest,
                self.spec.sha256,
            )
        return published

    def fine_tuned(self, cfg: CfgNode) -> dict[str, Any]:
        """Return further settings that distinguish fine-tuned networks of this name; none for models of the zoo.

        Raises:
            CogError: the configuration has another geometry of images than the protocol.
        """
        fx = cfg.FT_EXTRACT
        if fx.IMAGE_INTERPOLATION != "bicubic" or fx.IMAGE_SQUASH:
            raise CogError(
                "fine-tuning resizes images as the protocol does: leave out FT_EXTRACT.PREPROCESS model, "
                "IMAGE_INTERPOLATION and IMAGE_SQUASH"
            )
        facts = {"source": self.source, "pooling": None if fx.POOLING == "default" else fx.POOLING}
        return {key: value for key, value in facts.items() if value is not None}

    def preprocessing(self, cfg: CfgNode) -> dict[str, Any]:
        """Return the part of features.json about the input of the network and the pooling of its tokens.

        Squashing, geometry and pooling have an entry only where they differ from the protocol.
        """
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

    @property
    def pretraining(self) -> str:
        """Pretraining data of the model, one of :data:`cog.models.spec.PRETRAINING`."""
        stated = self.entry.pretraining if self.entry is not None else None
        if self.model_loader is not None:
            return stated or UNKNOWN
        return of_entry(self.model, self.entry)

    def summary(self, backbone: Backbone, cfg: CfgNode) -> str:
        """Return one line about the input and the features of the network."""
        fx = cfg.FT_EXTRACT
        side = "both sides" if fx.IMAGE_SQUASH else "shortest side"
        if backbone.feature_dim == _N_CLASSES_IN1K:
            logger.warning(
                "%s gives %d features: if these are the scores of a classifier, remove it (docs/own-models.md)",
                self.model,
                _N_CLASSES_IN1K,
            )
        return (
            f"{self.model}: images of {fx.IMAGE_CROP_SIZE} pixels ({side} {fx.IMAGE_RESIZE_SIZE}, "
            f"{fx.IMAGE_INTERPOLATION}), mean {_rounded(fx.IMAGE_NORM.MEAN)}, std {_rounded(fx.IMAGE_NORM.STD)}; "
            f"{backbone.feature_dim} features (pooling {fx.POOLING}), {fx.PRECISION}, "
            f"{sum(parameter.numel() for parameter in backbone.parameters()):,} parameters; pretraining: "
            f"{self.pretraining}"
        )

    def load(self, device: torch.device, cfg: CfgNode) -> Backbone:
        """Load the network, see :func:`cog.models.backbone.load_backbone`."""
        from cog.models.backbone import load_backbone, move

        fx = cfg.FT_EXTRACT
        if self.model_loader is not None:
            return move(self._loaded(fx.POOLING), device)
        return load_backbone(
            self.known_as,
            self.checkpoint,
            device,
            model_dir=self.library_folder,
            image_size=fx.IMAGE_CROP_SIZE,
            pooling=fx.POOLING,
        )


def _rounded(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values) + "]"
