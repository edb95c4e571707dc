"""The choice of a model by name: its network, its files, and what identifies it in records."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config
from cog.constants import POOLINGS
from cog.errors import CogError, nearest
from cog.models import models_file as own_models
from cog.models.fetch import checkpoint_files, require_checkpoint, sha256
from cog.models.paper_models import MODELS
from cog.models.preprocessing import preprocess_of
from cog.paths import ModelDir, require_dir, require_file, split_model_name
from cog.runtime import files

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.data.pixels import Preprocess
    from cog.models.backbone import Backbone, Loader

logger = logging.getLogger(__name__)
File = str | os.PathLike[str]

#: First parts of the names of models of other libraries, see :mod:`cog.models.libraries`.
LIBRARIES = ("timm", "torchvision", "openclip", "hf")


@dataclasses.dataclass(frozen=True, eq=False)
class ModelChoice:
    """A model that can be loaded."""

    name: str  # <model_title>_<architecture_name>
    source: str  # name in the paper or a library; FILE.py:FUNCTION (without folders) of a loader
    checkpoint: Path | None = None  # None: a loader needs none, or the library has its own weights
    loader: str | Loader | None = None  # FILE.py:FUNCTION of the user's loader, or the function
    folder: Path | None = None  # may hold further files of the model
    pretraining: str = "unknown"  # one of cog.constants.PRETRAINING
    keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the configuration, in models_file
    models_file: str = ""  # the user's file of models

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What identifies the network: model, source, checkpoint_sha256 and loader_sha256."""
        digest = sha256(self.checkpoint) if self.checkpoint else None
        if digest is None and self.loader is not None:  # it reads weights that no flag names, or draws them
            digest = self._own.sha256()
        row = MODELS.get(self.source)
        if digest and row and row.is_published(digest) is False:
            text = "the checkpoint of %s is not the published file: SHA-256 %s, expected %s"
            logger.warning(text, self.name, digest, row.sha256)
        file = self.loader.rpartition(":")[0] if isinstance(self.loader, str) else None
        return {
            "model": self.name,
            "source": self.source,
            "checkpoint_sha256": digest,
            "loader_sha256": files.sha256(file) if file else None,
        }

    @functools.cached_property
    def _own(self) -> Backbone:
        from cog.models.backbone import load_own

        assert self.loader is not None
        return load_own(self.loader, self.name, self.checkpoint, self.folder)

    def declared(self) -> Mapping[str, Preprocess]:
        """Return the preprocessing by value of ``FT_EXTRACT.PREPROCESS``; a user's loader is run, once."""
        if self.loader is not None:
            row = MODELS.get(self.name)
            return self._own.declared or (row.declared if row else {})
        if self.source in MODELS:
            return MODELS[self.source].declared
        from cog.models import libraries

        pre = libraries.find(self.source, self.folder).preprocess
        return {"protocol": pre.protocol(), "model": pre}

    def config(self, opts: Sequence[str] = ()) -> CfgNode:
        """Return the configuration with this model's preprocessing and ``[KEY, VALUE, ...]`` pairs."""
        options: dict[str, Any] = {"model_name": self.name, "opts": list(opts)}
        options |= {"entry_values": self.keys, "entry_source": self.models_file}
        config.get_cfg(**options)  # wrong keys are found before a slow loader runs
        return config.get_cfg(declared=self.declared(), **options)

    def load(self, device: torch.device, cfg: CfgNode) -> Backbone:
        """Return the frozen network for the image size and the pooling of a configuration."""
        size = cfg.FT_EXTRACT.IMAGE_CROP_SIZE
        return self.network(size, cfg.FT_EXTRACT.POOLING).probe(size, device)

    def network(self, size: int | None, pooling: str) -> Backbone:
        """Return the network on the CPU; ``size`` None: for the images of its weights."""
        if self.loader is not None:
            backbone = self._own
            del self.__dict__["_own"]  # else it would stay on the device
            backbone.pooling = pooling
            return backbone
        if self.source.partition("_")[0] in LIBRARIES:
            from cog.models import libraries

            return libraries.load(self.source, self.checkpoint, size, pooling, self.folder)
        row = MODELS[self.source]
        assert self.checkpoint is not None
        if pooling != "default" and not row.class_token:
            raise CogError(f"FT_EXTRACT.POOLING {pooling}: model {self.source} gives no tokens; leave it out")
        from cog.models.backbone import Backbone
        from cog.models.checkpoint import load_paper_model

        network: Any = load_paper_model(row, self.checkpoint)
        forward = network.forward_features if row.class_token else None
        backbone = Backbone(network, forward, name=self.name, declared=row.declared)
        backbone.pooling = "cls" if row.class_token and pooling == "default" else pooling
        return backbone

    def summary(self, backbone: Backbone, cfg: CfgNode) -> str:
        """Return one line about the input and the features of the network."""
        if backbone.feature_dim == 1000:
            logger.warning("%s gives 1000 features: are they class scores? Remove its classifier", self.name)
        n_parameters = sum(parameter.numel() for parameter in backbone.parameters())
        fx, pre = cfg.FT_EXTRACT, preprocess_of(cfg)
        return (
            f"{self.name}: images of {pre.size} pixels, {pre}; {backbone.feature_dim} features (pooling "
            f"{fx.POOLING}), {fx.PRECISION}, {n_parameters:,} parameters; pretraining: {self.pretraining}"
        )


def find_model(
    name: str,
    *,
    root: File | None = None,
    checkpoint: File | None = None,
    loader: str | Loader | None = None,
    models_file: File | None = None,
) -> ModelChoice:
    """Return a model by name; nothing is loaded. A CogError names what is unknown or does not exist.

    ``name`` is a model of the paper, of a library (timm_resnet18), of ``models_file``, or with a ``loader``.
    The others are the values of ``--models_root_dir``, ``--ckpt_file`` (None: ``model.ckpt`` or
    ``model.safetensors`` in the model's folder), ``--model_loader`` (or a function) and ``--models_file``.
    """
    split_model_name(name)
    entries = own_models.read(models_file) if models_file is not None else {}
    entry = own_models.parse(models_file or "", name, entries[name]) if name in entries else {}
    ckpt_flag = "--ckpt_file" if checkpoint else f"{models_file}: checkpoint of {name}:"
    loader_flag = "--model_loader" if loader else f"{models_file}: loader of {name}:"
    checkpoint, loader = checkpoint or entry.get("checkpoint"), loader or entry.get("loader")
    source = entry.get("source", name)
    is_library = source.partition("_")[0] in LIBRARIES
    if isinstance(loader, str):
        file, _, function = loader.rpartition(":")
        if not file.endswith(".py") or not function.isidentifier():
            raise CogError(f"{loader_flag} {loader} is not of the form FILE.py:load_my_model")
        require_file(file, loader_flag)
    elif loader is None and not is_library and source not in MODELS:
        raise unknown_model(source, {*entries} - {name}, f"{models_file}: {name}: " if entry else "")
    path, folder = _files(name, root, checkpoint, loader is not None)
    if path is not None:
        require_checkpoint(path, ckpt_flag)
    elif loader is None and not is_library:
        where = f" in {folder}" if folder else ""
        advice = "docs/models.md tells how to get it, or give --ckpt_file"
        raise CogError(f"no checkpoint of {name}{where}; {advice}")
    pretraining = entry.get("pretraining", "unknown")
    if not {"pretraining", "checkpoint"} & entry.keys() and loader is None and source in MODELS:
        pretraining = MODELS[source].pretraining
    source = source if loader is None else os.path.basename(str(loader))
    own = entry.get("cfg", {}), str(models_file or "")
    return ModelChoice(name, source, path, loader, folder, pretraining, *own)


def _files(
    name: str, root: File | None, checkpoint: File | None, of_loader: bool
) -> tuple[Path | None, Path | None]:
    """Return the checkpoint, given or in the model's folder, and the folder of the model's further files."""
    path = None if checkpoint is None else Path(checkpoint)
    if root is None:
        return path, path and path.parent
    place = ModelDir(Path(root), name)
    require_dir(place.home.parent.parent, "--models_root_dir")
    if path is not None:
        return path, place.home if of_loader else path.parent
    usual = place.checkpoint, place.checkpoint.with_suffix(".safetensors")
    return next(filter(checkpoint_files, usual), None), place.home


def unknown_model(name: str, others: Iterable[str] = (), place: str = "") -> CogError:
    """Return the error about an unknown model, with the nearest names of the paper's and of others."""
    near = nearest(name, [*others, *MODELS], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`python -m cog models list` lists the paper's."
    return CogError(
        f"{place}--model {name!r} is not known; for one of your own, give its loader with --model_loader "
        f"FILE.py:load_my_model; else {hint} Models of libraries are named timm_<name>, "
        "hf_<organization>--<name>, ... (docs/own-models.md)"
    )


def load_backbone(
    model_name: str,
    checkpoint: File | None = None,
    device: str | torch.device = "cpu",
    loader: str | Loader | None = None,
    *,
    model_dir: File | None = None,
    image_size: int | None = None,
    pooling: str = "default",
) -> Backbone:
    """Load a model and freeze it: float32 ``(B, 3, H, W)`` -> ``(B, D)``; a CogError says why it cannot be.

    Args:
        model_name: one of :func:`cog.list_models`, of a library (timm_resnet18), or any with a loader.
        checkpoint: a file, or the common prefix of a TensorFlow checkpoint's files. None: a loader gets none,
            and a library's model takes the library's own weights.
        device: device of the network, such as ``"cuda:0"``.
        loader: loader of a model of your own: ``"FILE.py:load_my_model"`` or the function itself.
        model_dir: folder of further files (default: the folder of the checkpoint).
        image_size: side of the images that the model gets, in pixels (default: the side for its weights).
        pooling: value of ``FT_EXTRACT.POOLING``, for models that give tokens.
    """
    from cog.runtime.device import resolve_device

    if pooling not in POOLINGS:
        raise CogError(f"pooling {pooling!r} is not known, expected one of {', '.join(POOLINGS)}")
    choice = find_model(model_name, checkpoint=checkpoint, loader=loader)
    if model_dir is not None:
        choice = dataclasses.replace(choice, folder=Path(model_dir))
    backbone = choice.network(image_size, pooling)
    size = image_size or (backbone.declared["protocol"].size if loader is None else None)
    place = resolve_device(str(device))
    return backbone.probe(size, place) if size else backbone.to(place)
