"""Features of images in a notebook, equal bit for bit to those of ``extract_features.py``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from cog import config
from cog.data.images import ImageList, from_class_folders
from cog.data.loader import Decoder
from cog.data.wnids import class_list_digest
from cog.errors import CogError, FailedImagesError
from cog.features import feature_files
from cog.features.extract import Extractor, extract
from cog.features.feature_files import FeatureSet
from cog.models.backbone import Backbone
from cog.models.choice import preprocess_of
from cog.runtime.device import require_precision, resolve_device

#: Model name of a module without a name.
OWN_NETWORK = "own_network"


def extract_features(
    backbone: nn.Module,
    images: str | os.PathLike[str] | ImageList,
    *,
    name: str | None = None,
    device: str | None = None,
    n_workers: int = 0,
    opts: Sequence[object] = (),
    normalize: bool = False,
) -> FeatureSet:
    """Return the features of images.

    Args:
        backbone: network from :func:`cog.load_backbone`, or any module that maps float32 ``(B, 3, H, W)`` to
            ``(B, D)``; it is moved to the device, and frozen.
        images: folder with a folder per class, or with archives of such folders (docs/data.md); or an image list.
        name: ``<model_title>_<architecture_name>`` (default: the backbone's name).
        device: value of ``--device``; None: CUDA when there is a GPU, else the CPU.
        n_workers: decoding processes; 0: the calling process decodes between the batches.
        opts: ``[KEY, VALUE, ...]`` of the configuration, such as ``["FT_EXTRACT.IMAGE_CROP_SIZE", 96]``. Without them,
            input size, mean and standard deviation are those that a model of the zoo or of a library, or a user's
            loader, declares, and those of the protocol for other modules.
        normalize: whether to scale the rows to unit length, as for the classifiers of the protocol.

    Returns:
        Float32 features ``(n, d)`` and int64 labels ``(n,)``, the positions of the sorted class folders.
    """
    if not isinstance(backbone, Backbone):
        backbone = Backbone(backbone, name=name or OWN_NETWORK)
    name = name or backbone.name
    cfg = config.get_cfg(model_name=name, declared=backbone.declared, opts=words_of(opts))
    if not isinstance(images, ImageList):
        folder = Path(images).absolute()
        images = from_class_folders(folder.parent.name, folder.name, folder, flag="images")
    fx, preprocess, place = cfg.FT_EXTRACT, preprocess_of(cfg), resolve_device(device)
    require_precision(place, "FT_EXTRACT.PRECISION", fx.PRECISION)
    extractor = Extractor(
        backbone.to(place), preprocess, place, batch_size=fx.BATCH_SIZE, precision=fx.PRECISION
    )
    x, failures = extract(
        extractor, Decoder(images, preprocess, fx.LOAD_TRUNCATED_IMAGES), n_workers=n_workers
    )
    if failures:
        row, reason = failures[0]
        raise FailedImagesError(
            f"{len(failures)} of {len(images)} images could not be decoded, such as {images.file(row)} ({reason})"
        )
    x = x.to(getattr(torch, fx.SAVE_DTYPE)).float()
    feature_files.check_and_normalize_(x, name, normalize=normalize)
    y, title = torch.from_numpy(images.labels).long(), f"{name}_{images.dataset}_{images.split}"
    return FeatureSet(x, y, title, class_list=class_list_digest(images.classes))


def words_of(opts: Sequence[object]) -> list[str]:
    """Return ``[KEY, VALUE, ...]`` of an extraction as on a command line."""
    if isinstance(opts, str | Mapping) or not isinstance(opts, Iterable):
        raise CogError('opts: expected a list [KEY, VALUE, ...], such as ["FT_EXTRACT.IMAGE_CROP_SIZE", 96]')
    words = [str(word) for word in opts]
    if (key := "FT_EXTRACT.POOLING") in words[::2]:
        raise CogError(f"{key} in opts: the network is loaded already; give pooling= to cog.load_backbone")
    return words
