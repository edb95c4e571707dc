"""A frozen network on a device: pixels to features, and that for a notebook."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from cog import config
from cog.data.images import ImageList, from_class_folders
from cog.data.loader import Decoder, Failures, Span, decoded, is_worker_failure
from cog.data.pixels import normalizer, to_input
from cog.data.wnids import class_list_digest
from cog.errors import CogError, FailedImagesError, first_line
from cog.features.feature_files import FeatureSet, check_and_normalize_
from cog.models.backbone import Backbone
from cog.models.choice import ModelChoice, preprocess_of
from cog.runtime import memory
from cog.runtime.device import exact_float32, require_precision, resolve_device

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

OWN_NETWORK = "own_network"  # name of a module without a name

# Pixels and images per pass on a CPU, images per decoded batch. Larger activations exceed 32 MB, above which
# glibc maps memory anew: MobileNetV2 took 60 ms per image in batches of 128, 16 ms in batches of 4.
_CPU_PIXELS, _CPU_IMAGES, _CPU_BATCH = 4 * 224 * 224, 64, 32
_RANDOM, _EQUAL = 1e-3, 1e-5  # differences of two passes, of images, in root mean squares of the features
_AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class Model:
    """A model and its configuration."""

    choice: ModelChoice
    cfg: CfgNode

    def identity(self) -> dict[str, Any]:
        """Return what determines the features of an image, in types of JSON."""
        fx = self.cfg.FT_EXTRACT
        pre = dataclasses.asdict(preprocess_of(self.cfg)) | {"load_truncated": fx.LOAD_TRUNCATED_IMAGES}
        how = {"pooling": fx.POOLING, "precision": fx.PRECISION, "save_dtype": fx.SAVE_DTYPE}
        return json.loads(json.dumps(self.choice.identity | {"preprocessing": pre} | how))

    def load(self, device: torch.device) -> Extractor:
        """Load the network, and log a line about it."""
        backbone = self.choice.load(device, self.cfg)
        logger.info("%s", self.choice.summary(backbone, self.cfg))
        return Extractor(backbone, self.cfg, device)


class Extractor:
    """A network on ``device`` that computes the features of batches of decoded images.

    All passes have the same shape (missing images are black), and the place of an image in its pass depends
    on its row alone: bits do not depend on other images or, on a CPU, on the batch size.
    """

    @staticmethod
    def sizes(cfg: CfgNode, on_cuda: bool) -> tuple[int, int]:
        """Return the images per decoded batch and per forward pass; the first is a multiple of the second."""
        size, batch_size = cfg.FT_EXTRACT.IMAGE_CROP_SIZE, cfg.FT_EXTRACT.BATCH_SIZE
        per_pass = batch_size if on_cuda else min(max(1, _CPU_PIXELS // size**2), _CPU_IMAGES)
        n = batch_size if on_cuda else min(batch_size, _CPU_BATCH)
        return max(1, n // per_pass) * per_pass, per_pass

    def __init__(self, backbone: Backbone, cfg: CfgNode, device: torch.device) -> None:
        self.device, self.fault, self._is_checked = device, "", False
        self._backbone, self._precision = backbone, cfg.FT_EXTRACT.PRECISION
        require_precision(device, "FT_EXTRACT.PRECISION", self._precision)
        self.batch_size, self._per_pass = self.sizes(cfg, device.type == "cuda")
        self._statistics = normalizer(cfg.FT_EXTRACT.IMAGE_NORM.MEAN, cfg.FT_EXTRACT.IMAGE_NORM.STD, device)
        # Faster for convolutions on a CPU (ResNet-50: 96 instead of 105 ms) and in half precision on a GPU.
        innermost = device.type == "cpu" or self._precision in _AUTOCAST
        is_flat = all(each.ndim < 5 for each in (*backbone.parameters(), *backbone.buffers()))
        self._format = torch.channels_last if innermost and is_flat else torch.contiguous_format
        self._backbone.to(memory_format=self._format)

    @torch.inference_mode()
    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the features of pixels uint8 ``(n, size, size, 3)``, as float32 ``(n, D)`` on the device."""
        n, pixels = len(pixels), pixels.to(self.device, non_blocking=True)
        if n_black := -n % self._per_pass:
            pixels = torch.cat([pixels, pixels.new_zeros(n_black, *pixels.shape[1:])])
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        with exact_float32(tf32=self._precision == "tf32"), on_device:
            passes = pixels.split(self._per_pass)
            y = torch.cat([self._forward(part) for part in passes])[:n].float()
            if not self._is_checked:
                self._is_checked = True
                n_again = -(-min(n, self._per_pass) // 2)  # beside black images
                other = torch.cat([pixels[:n_again], torch.zeros_like(passes[0][n_again:])])
                self._check(pixels[:n], y, self._forward(other)[:n_again].float())
        return y

    def _check(self, pixels: torch.Tensor, y: torch.Tensor, again: torch.Tensor) -> None:
        """Warn if the features of the first images, and of some in a second pass, are useless."""
        level, spread = float(y.square().mean().sqrt()), float((y - y[:1]).abs().max())
        if float((again - y[: len(again)]).abs().max()) > _RANDOM * level:
            self.fault = "is random at evaluation, or mixes images: other features in a second pass"
        elif spread <= _EQUAL * level < math.inf and not bool((pixels == pixels[:1]).all()):
            self.fault = f"gives equal features for all {len(y)} images; check the checkpoint and the loader"
        if self.fault:
            logger.warning("%s %s", self._backbone.name, self.fault)

    def _forward(self, pixels: torch.Tensor) -> torch.Tensor:
        dtype = _AUTOCAST.get(self._precision)
        try:
            x = to_input(pixels, *self._statistics, memory_format=self._format)
            with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
                return self._backbone(x)
        except Exception as error:  # a user's network may raise any exception
            if isinstance(error, CogError) or is_worker_failure(error):
                raise
            if memory.is_exhausted(error):
                todo = "run this elsewhere" if self.device.type == "cpu" else "lower FT_EXTRACT.BATCH_SIZE"
                found = f"out of memory with {len(pixels)} images at a time ({first_line(error)[:200]})"
                raise CogError(f"{found}; {todo}") from error
            if self._format is torch.channels_last and not self._is_checked:
                # A network that uses x.view(...) cannot work on this layout; the usual one is tried.
                self._format = torch.contiguous_format
                self._backbone.to(memory_format=self._format)
                return self._forward(pixels)
            reason = f"{(len(pixels), 3, *pixels.shape[1:3])}: {type(error).__name__}: {first_line(error)}"
            raise CogError(f"model {self._backbone.name} failed on a batch of shape {reason}") from error


def batches(spans: Iterable[Span], n: int) -> list[Span]:
    """Return the spans of ``n`` rows, or fewer at the ends, that spans consist of."""
    return [(row, min(row + n, stop)) for start, stop in spans for row in range(start, stop, n)]


def decoded_places(span: Span, failures: Failures) -> torch.Tensor:
    """Return the places in a span of the images that could be decoded, int64."""
    failed = [row - span[0] for row, _ in failures]
    return torch.from_numpy(np.delete(np.arange(span[1] - span[0]), failed))


def extract_rows(extractor: Extractor, decoder: Decoder, n: int, *, n_workers: int = 0) -> torch.Tensor:
    """Return the features of the first ``n`` rows, float32 on the CPU; all of them have to be decoded."""
    parts = []
    for piece in decoded(decoder, batches([(0, n)], extractor.batch_size), n_workers=n_workers):
        for row, reason in piece.failures:
            raise FailedImagesError(f"{decoder.images.file(row)} could not be decoded ({reason}); fix it")
        parts.append(extractor(piece.pixels).cpu())
    return torch.cat(parts)


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
    """Return features float32 ``(n, d)`` of images, and as labels the positions of the sorted class folders.

    ``backbone``: of :func:`cog.load_backbone`, or any module ``(B, 3, H, W)`` -> ``(B, D)``, which is moved.
    ``images``: a folder with a folder or an archive per class (docs/data.md), or a list. ``opts``: ``[KEY,
    VALUE, ...]``; the preprocessing of the model precedes defaults. ``normalize``: to rows of unit length.
    """
    if not isinstance(backbone, Backbone):
        backbone = Backbone(backbone, name=name or OWN_NETWORK)
    name = name or backbone.name
    cfg = config.get_cfg(model_name=name, declared=backbone.declared, opts=[*map(str, opts)])
    if cfg.FT_EXTRACT.POOLING != "default":
        raise CogError("the network is loaded already; give pooling= to cog.load_backbone")
    if not isinstance(images, ImageList):
        folder = Path(images).absolute()
        images = from_class_folders(folder.parent.name, folder.name, folder, flag="images")
    place, fx = resolve_device(device), cfg.FT_EXTRACT
    decoder = Decoder(images, preprocess_of(cfg), fx.LOAD_TRUNCATED_IMAGES)
    extractor = Extractor(backbone.to(place), cfg, place)
    x = extract_rows(extractor, decoder, len(images), n_workers=n_workers)
    x = x.to(getattr(torch, fx.SAVE_DTYPE)).float()
    check_and_normalize_(x, name, normalize=normalize)
    y, title = torch.from_numpy(images.labels), f"{name}_{images.dataset}_{images.split}"
    return FeatureSet(x, y, title, class_list=class_list_digest(images.classes))
