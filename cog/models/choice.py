"""The choice of a model by name: its network, its files, and what identifies it in records."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config
from cog.constants import CHECKPOINT_FILE, POOLINGS
from cog.errors import CogError, did_you_mean, nearest
from cog.models import models_file as own_models
from cog.models.fetch import checkpoint_files, require_checkpoint, sha256
from cog.models.models_file import ModelEntry
from cog.models.paper_models import MODELS
from cog.paths import ModelDir, split_model_name
from cog.runtime import files

if TYPE_CHECKING:
    import torch
    from yacs.config import CfgNode

    from cog.data.pixels import Preprocess
    from cog.models.backbone import Backbone, Loader

logger = logging.getLogger(__name__)

#: First parts of the names of models of other libraries, see :mod:`cog.models.libraries`.
LIBRARIES = ("timm", "torchvision", "openclip", "hf")


@dataclass(frozen=True, eq=False)
class ModelChoice:
    """A model that can be loaded.

    Attributes:
        name: ``<model_title>_<architecture_name>``.
        source: name of the network in the paper or a library; ``FILE.py:FUNCTION`` (without folders) of a
            loader.
        checkpoint: file of the weights (of a TensorFlow checkpoint: the common prefix of its files); None: a
            loader needs none, or the library has its own.
        loader: ``FILE.py:FUNCTION`` of the user's loader.
        folder: folder that may hold further files of the model.
        pretraining: one of :data:`cog.models.spec.PRETRAINING`.
        label: name in tables and figures that the user gives.
        group: name of a group of models that the user gives.
        keys: configuration keys that the user's file of models gives.
        models_file: path of that file.
    """

    name: str
    source: str
    checkpoint: Path | None = None
    loader: str | None = None
    folder: Path | None = None
    pretraining: str = "unknown"
    label: str | None = None
    group: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    models_file: str = ""
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def identity(self) -> dict[str, Any]:
        """Return what identifies the network: model, source, checkpoint_sha256 and loader_sha256."""
        if "identity" not in self._kept:
            digest = sha256(self.checkpoint) if self.checkpoint else None
            row = MODELS.get(self.source)
            if digest and row and row.is_published(digest) is False:
                text = "the checkpoint of %s is not the published file: SHA-256 %s, expected %s"
                logger.warning(text, self.name, digest, row.sha256)
            self._kept["identity"] = {
                "model": self.name,
                "source": self.source,
                "checkpoint_sha256": digest,
                "loader_sha256": files.sha256(self.loader.rpartition(":")[0]) if self.loader else None,
            }
        return dict(self._kept["identity"])

    def declared(self, pooling: str = "default") -> Mapping[str, Preprocess]:
        """Return the preprocessing by value of ``FT_EXTRACT.PREPROCESS``; a user's loader is run, once."""
        if self.loader is not None:
            row = MODELS.get(self.name)
            return self._load_own(pooling).declared or (row.declared if row else {})
        if self.source in MODELS:
            return MODELS[self.source].declared
        from cog.models import libraries

        pre = libraries.find(self.source, self.folder).preprocess
        return {"protocol": pre.protocol(), "model": pre}

    def config(self, opts: Sequence[str] = ()) -> CfgNode:
        """Return the configuration with this model's preprocessing; a user's loader is run for it.

        Args:
            opts: flat ``[KEY, VALUE, ...]`` list.
        """
        options: dict[str, Any] = {"model_name": self.name, "opts": list(opts)}
        options |= {"entry_values": self.keys, "entry_source": self.models_file}
        pooling = "default"
        if self.loader is not None:  # the configuration is checked before the slow loader runs
            pooling = config.get_cfg(**options).FT_EXTRACT.POOLING
        return config.get_cfg(declared=self.declared(pooling), **options)

    def load(self, device: str | torch.device, cfg: CfgNode) -> Backbone:
        """Return the frozen network for the image size and the pooling of a configuration of :meth:`config`.

        Raises:
            CogError: unsafe or unfitting checkpoint, failing loader or download, or an image size that the
                network does not take.
        """
        fx = cfg.FT_EXTRACT
        size, pooling = fx.IMAGE_CROP_SIZE, fx.POOLING
        if self.loader is not None:
            backbone = self._load_own(pooling)
            del self._kept[pooling]  # else it would stay on the device
        else:
            backbone = _load(self.source, self.checkpoint, size, pooling, self.folder)
        return backbone.move(device).probe(size)

    def _load_own(self, pooling: str) -> Backbone:
        from cog.models.backbone import load_own

        assert self.loader is not None
        if pooling not in self._kept:
            self._kept[pooling] = load_own(self.loader, self.name, self.checkpoint, self.folder, pooling)
        return self._kept[pooling]

    def summary(self, backbone: Backbone, cfg: CfgNode) -> str:
        """Return one line about the input and the features of the network."""
        fx, pre = cfg.FT_EXTRACT, preprocess_of(cfg)
        if backbone.feature_dim == 1000:
            logger.warning(
                "%s gives 1000 features: if these are the scores of a classifier, remove it "
                "(docs/own-models.md)",
                self.name,
            )
        mean, std = (
            "[" + ", ".join(f"{value:.4g}" for value in values) + "]" for values in (pre.mean, pre.std)
        )
        return (
            f"{self.name}: images of {pre.size} pixels ({'both sides' if pre.squash else 'shortest side'} "
            f"{pre.resize}, {pre.interpolation}), mean {mean}, std {std}; {backbone.feature_dim} features "
            f"(pooling {fx.POOLING}), {fx.PRECISION}, {sum(p.numel() for p in backbone.parameters()):,} "
            f"parameters; pretraining: {self.pretraining}"
        )


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
        name: a model of the paper, of a library (timm_resnet18), of ``models_file``, or any with a
            ``loader``.
        root: value of ``--models_root_dir``.
        checkpoint: value of ``--ckpt_file``; None: ``model.ckpt`` or ``model.safetensors`` in the model's
            folder.
        loader: value of ``--model_loader``.
        models_file: value of ``--models_file``; other arguments precede the entry of the model there.

    Raises:
        CogError: an unknown model, a missing file, an unusable entry in ``models_file``.
    """
    split_model_name(name)
    entries = own_models.read(models_file) if models_file is not None else {}
    entry = own_models.parse(models_file or "", name, entries[name]) if name in entries else ModelEntry(name)
    source = (None if loader else entry.source) or name
    flags = {"checkpoint": "--ckpt_file", "loader": "--model_loader"}
    if entry.checkpoint and not checkpoint:
        checkpoint, flags["checkpoint"] = entry.checkpoint, f"{models_file}: checkpoint of {name}:"
    if entry.loader and not loader:
        loader, flags["loader"] = entry.loader, f"{models_file}: loader of {name}:"
    is_library = source.partition("_")[0] in LIBRARIES
    if loader is not None:
        file, separator, function = loader.rpartition(":")
        if not separator or not function.isidentifier():
            raise CogError(f"{flags['loader']} {loader!r} is not of the form FILE.py:load_my_model")
        files.require_file(file, flags["loader"])
    elif not is_library and source not in MODELS:
        error = unknown_model(source, entries)
        if name in entries:
            fault = f"source of {name}" if entry.source else f"{name} has no source and no loader"
            error = CogError(f"{models_file}: {fault}: {error}")
        raise error
    weights, folder = _checkpoint(name, root, checkpoint, flags["checkpoint"])
    if loader is not None and root is not None:
        folder = ModelDir(Path(root), name).home
    if weights is None and loader is None and not is_library:
        where = "no checkpoint" if folder is None else f"there is no checkpoint {folder / CHECKPOINT_FILE}"
        raise CogError(f"{where}; see docs/models.md for how to get it, or give --ckpt_file")
    pretraining = entry.pretraining or "unknown"
    if entry.pretraining is None and loader is None and entry.checkpoint is None and source in MODELS:
        pretraining = MODELS[source].pretraining
    shown = source if loader is None else os.path.basename(loader)
    facts = pretraining, entry.label, entry.group, entry.cfg, str(models_file or "")
    return ModelChoice(name, shown, weights, loader, folder, *facts)


def _checkpoint(
    name: str, root: str | os.PathLike[str] | None, given: str | os.PathLike[str] | None, flag: str
) -> tuple[Path | None, Path | None]:
    """Return the checkpoint of a model, if there is one, and the folder of its further files."""
    if root is not None:
        files.require_dir(ModelDir(Path(root), name).home.parent.parent, "--models_root_dir")
    if given is not None:
        require_checkpoint(given, flag)
        return Path(given), Path(given).parent
    if root is None:
        return None, None
    usual = ModelDir(Path(root), name).checkpoint
    present = [path for path in (usual, usual.with_suffix(".safetensors")) if checkpoint_files(path)]
    return next(iter(present), None), usual.parent


def unknown_model(name: str, others: Mapping[str, Any] | Sequence[str] = ()) -> CogError:
    """Return the error about an unknown model, with the nearest names of the paper's and of others."""
    near = nearest(name, [*others, *MODELS], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`python -m cog models list` lists the paper's."
    return CogError(
        f"--model {name!r} is not known; {hint} Models of libraries are named timm_<name>, "
        "hf_<organization>--<name>, ... (docs/own-models.md); for one of your own, give its loader with "
        "--model_loader FILE.py:load_my_model"
    )


def did_you_mean_model(name: str, others: Iterable[str] = ()) -> str:
    """Return ``; did you mean dino_resnet50?`` for a name neither the paper's nor in ``others``, else ""."""
    known = [*others] if name.partition("_")[0] in LIBRARIES else [*others, *MODELS]
    return "" if name in known else did_you_mean(name, known)


def load_backbone(
    model_name: str,
    checkpoint: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
    loader: str | Loader | None = None,
    *,
    model_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    pooling: str = "default",
) -> Backbone:
    """Load a model and freeze it: float32 ``(B, 3, H, W)`` -> ``(B, D)``.

    Args:
        model_name: ``<model_title>_<architecture_name>``; unless ``loader`` is given one of
            :func:`cog.list_models`, or a model of a library, such as timm_resnet18.
        checkpoint: checkpoint of the model: a file, or the common prefix of a TensorFlow checkpoint's files.
            None: a custom loader gets no checkpoint, and a library's model takes the library's own weights.
        device: device of the network, such as ``"cuda:0"``.
        loader: loader of a model of your own: ``"FILE.py:load_my_model"`` or the function itself.
        model_dir: folder of further files (default: the folder of the checkpoint).
        image_size: side of the images that the model gets, in pixels (default: the side for its weights).
        pooling: value of ``FT_EXTRACT.POOLING``, for models that give tokens.

    Raises:
        CogError: unknown model or pooling, missing, unsafe or unfitting checkpoint, failing loader.
    """
    from cog.models.backbone import load_own

    split_model_name(model_name)
    if pooling not in POOLINGS:
        raise CogError(f"pooling {pooling!r} is not known, expected one of {', '.join(POOLINGS)}")
    if loader is not None:
        backbone = load_own(loader, model_name, checkpoint, model_dir, pooling).move(device)
        return backbone.probe(image_size) if image_size else backbone
    path = None if checkpoint is None else Path(checkpoint)
    if model_dir is None and path is not None:
        model_dir = path.parent
    backbone = _load(model_name, path, image_size, pooling, None if model_dir is None else Path(model_dir))
    return backbone.move(device).probe(image_size or backbone.declared["protocol"].size)


def _load(
    source: str, checkpoint: Path | None, size: int | None, pooling: str, folder: Path | None
) -> Backbone:
    """Load a model of the paper or of a library."""
    if source.partition("_")[0] in LIBRARIES:
        from cog.models import libraries

        return libraries.load(source, checkpoint, size, pooling, folder)
    if source not in MODELS:
        raise unknown_model(source)
    row = MODELS[source]
    if checkpoint is None:
        raise CogError(f"model {source} needs a checkpoint file; give it with --ckpt_file")
    if pooling != "default" and not row.class_token:
        raise CogError(f"FT_EXTRACT.POOLING {pooling}: model {source} gives no tokens; leave it out")
    from cog.models.backbone import Backbone
    from cog.models.checkpoint import load_paper_model

    network: Any = load_paper_model(row, checkpoint)
    forward = None
    if row.class_token:
        forward, pooling = network.forward_features, "cls" if pooling == "default" else pooling
    dim = row.dim * len(pooling.split("+"))
    return Backbone(network, forward, name=source, feature_dim=dim, pooling=pooling, declared=row.declared)


def preprocess_of(cfg: CfgNode) -> Preprocess:
    """Return the preprocessing in a configuration."""
    from cog.data.pixels import Preprocess

    fx = cfg.FT_EXTRACT
    mean, std = tuple(fx.IMAGE_NORM.MEAN), tuple(fx.IMAGE_NORM.STD)
    geometry = fx.IMAGE_CROP_SIZE, fx.IMAGE_RESIZE_SIZE
    return Preprocess(*geometry, mean, std, fx.IMAGE_INTERPOLATION, fx.IMAGE_SQUASH)
