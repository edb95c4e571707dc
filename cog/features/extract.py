"""A frozen network on a device: pixels to features."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from cog.data.loader import PIECE, Decoder, Facts, Failures, Piece, Span, decoded, is_worker_failure
from cog.data.pixels import Preprocess, normalizer, to_input
from cog.errors import CogError, first_line
from cog.runtime import memory
from cog.runtime.device import exact_float32

logger = logging.getLogger(__name__)

# Pixels per forward pass on a CPU (four images of 224 x 224), independent of FT_EXTRACT.BATCH_SIZE. Activations of
# larger batches exceed the 32 MB above which glibc maps every allocation anew, and the kernel takes more time to clear
# those pages than the arithmetic takes: MobileNetV2 took 60 ms per image in batches of 128, 16 ms in batches of 4
# (ResNet-50: 159 ms in batches of 32, 103 ms in batches of 4).
_CPU_PIXELS = 4 * 224 * 224
_MOST_CPU_IMAGES = 64

# Difference between two passes of the same images, and largest difference between images, in terms of the root mean
# square of the features, from which a network is random, and below which it does not look at its images.
_RANDOM, _EQUAL = 1e-3, 1e-5

_AUTOCAST = {"fp32": None, "tf32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def pass_sizes(device_type: str, *, size: int, batch_size: int) -> tuple[int, int]:
    """Return the images per batch and per forward pass; the first is a multiple of the second."""
    if device_type != "cpu":
        return batch_size, batch_size
    per_pass = min(max(1, _CPU_PIXELS // size**2), _MOST_CPU_IMAGES)
    return max(1, batch_size // per_pass) * per_pass, per_pass


class Extractor:
    """A frozen network that computes the features of batches of decoded images.

    All forward passes have the same shape (failed images, and places after the last image, are black), and the place of
    an image in its pass depends on its row alone. The last bits of its features therefore do not depend on other
    images, on the workers, on the requested rows or, on a CPU, on the batch size. (On a CPU they depend on the number
    of PyTorch's threads.)

    Args:
        backbone: network with a ``name``, in eval mode, already on ``device``; its weights may change their memory
            layout.
        preprocess: its mean and std normalize the pixels.
        device: device of the network.
        batch_size: images per forward pass; on a CPU, images per batch, which takes several smaller passes.
        precision: ``fp32`` (exact: TF32 off), ``tf32``, ``fp16`` or ``bf16`` (automatic mixed precision).

    Attributes:
        batch_size: images per batch; ranges of rows begin at multiples of it.
        width: number of features D; None before the first batch.
    """

    def __init__(
        self,
        backbone: nn.Module,
        preprocess: Preprocess,
        device: str | torch.device,
        *,
        batch_size: int = 128,
        precision: str = "fp32",
    ) -> None:
        self.preprocess, self.device, self.precision = preprocess, torch.device(device), precision
        self.batch_size, self._per_pass = pass_sizes(
            self.device.type, size=preprocess.size, batch_size=batch_size
        )
        self._backbone, self._name = backbone, str(backbone.name)
        self._mean, self._std = normalizer(preprocess.mean, preprocess.std, self.device)
        self._is_checked = False
        self.width: int | None = None
        # Convolutions on a CPU, and those in half precision on a GPU, are faster with the channels innermost:
        # MobileNetV2 takes 12.9 instead of 15.4 ms per image on one core, ResNet-50 96 instead of 105. Those in float32
        # on a GPU are not.
        innermost = self.device.type == "cpu" or precision in ("fp16", "bf16")
        self._use(torch.channels_last if innermost else torch.contiguous_format)

    def _use(self, memory_format: torch.memory_format) -> None:
        self._format = memory_format
        self._backbone.to(memory_format=memory_format)

    @torch.inference_mode()
    def __call__(self, pixels: torch.Tensor, n: int) -> torch.Tensor:
        """Return the features of the first ``n`` images of a batch, float32 ``(n, D)`` on the device.

        Args:
            pixels: uint8 ``(batch_size, size, size, 3)`` on the device; places without an image are black.
            n: number of rows of the batch, including failed images.
        """
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        with exact_float32(tf32=self.precision == "tf32"), on_device:
            parts = [self._forward(part) for part in pixels.split(self._per_pass)[: -(-n // self._per_pass)]]
            y = torch.cat(parts)[:n].float()
            if not self._is_checked:
                self._is_checked = True
                self._warn_of_unusable(pixels, parts[0].float(), y)
        return y

    @property
    def n_bytes(self) -> int:
        """Size of the parameters of the network in bytes."""
        return sum(parameter.nbytes for parameter in self._backbone.parameters())

    def rehearse(self) -> None:
        """Compute the features of a black batch, to find out whether the memory of the device suffices."""
        size, self._is_checked = self.preprocess.size, True
        black = torch.zeros(self.batch_size, size, size, 3, dtype=torch.uint8, device=self.device)
        self(black, self.batch_size)
        self._is_checked = False

    def _warn_of_unusable(self, pixels: torch.Tensor, first: torch.Tensor, y: torch.Tensor) -> None:
        """Warn of a network that is random, or gives equal features for all images of the first batch."""
        again, rms = self._forward(pixels[: len(first)]).float(), float(first.square().mean().sqrt())
        spread, level = float((y - y[:1]).abs().max()), float(y.square().mean().sqrt())
        if float((again - first).abs().max()) > _RANDOM * rms:
            logger.warning(
                "%s gives other features for the same images in a second pass: it is random at evaluation; is there "
                "dropout, a random mask or noise in its forward?",
                self._name,
            )
        elif spread <= _EQUAL * level and bool((pixels[: len(y)] != pixels[:1]).any()):
            facts = self._name, len(y)
            logger.warning(
                "%s gives equal features for all %d images of the first batch; check the checkpoint and the loader",
                *facts,
            )

    def _forward(self, pixels: torch.Tensor) -> torch.Tensor:
        dtype = _AUTOCAST[self.precision]
        try:
            x = to_input(pixels, self._mean, self._std, memory_format=self._format)
            with torch.autocast(self.device.type, dtype=dtype) if dtype else contextlib.nullcontext():
                y = self._backbone(x)
        except CogError:
            raise
        except Exception as error:  # a user's network may raise any exception
            if is_worker_failure(error):
                raise
            if memory.is_exhausted(error):
                task = f"extracting features of {len(pixels)} images at a time"
                # On a CPU, a pass does not get smaller with the batch, see pass_sizes.
                is_smaller = self.device.type != "cpu" or self.batch_size > self._per_pass
                todo = "lower FT_EXTRACT.BATCH_SIZE" if is_smaller else ""
                raise memory.explain(error, task, todo) from error
            if self.width is None and self._format is torch.channels_last:
                # A network that uses x.view(...) cannot work on this layout; the usual layout is tried.
                self._use(torch.contiguous_format)
                return self._forward(pixels)
            shape, reason = (
                (len(pixels), 3, *pixels.shape[1:3]),
                f"{type(error).__name__}: {first_line(error)}",
            )
            raise CogError(f"model {self._name} failed on a batch of shape {shape}: {reason}") from error
        if self.width not in (None, y.shape[1]):
            raise CogError(
                f"model {self._name} returned {self.width} dimensions for one batch and {y.shape[1]} for another"
            )
        self.width = y.shape[1]
        return y


class PixelBatch(NamedTuple):
    """Decoded images of ``n`` rows from ``first``, uint8 ``(batch_size, size, size, 3)`` on the device."""

    pixels: torch.Tensor
    first: int
    n: int
    failures: Failures
    facts: Facts

    @property
    def kept(self) -> np.ndarray:
        """Places in the batch of the images that could be decoded, int64."""
        return np.delete(np.arange(self.n), [row - self.first for row, _ in self.failures])


def pieces(number: int, span: Span, batch_size: int) -> list[tuple[int, int, int]]:
    """Return the pieces of a span for :func:`cog.data.loader.decoded`; none crosses the end of a batch."""
    return [
        (number, row, min(row + PIECE, first + batch_size, span[1]))
        for first in range(*span, batch_size)
        for row in range(first, min(first + batch_size, span[1]), PIECE)
    ]


def batches(
    stream: Iterator[Piece], span: Span, batch_size: int, size: int, device: torch.device
) -> Iterator[PixelBatch]:
    """Put the decoded :func:`pieces` of a span together to batches on a device; images that are not there are black."""
    for first in range(*span, batch_size):
        stop = min(first + batch_size, span[1])
        pixels = torch.zeros(batch_size, size, size, 3, dtype=torch.uint8, device=device)
        batch = PixelBatch(pixels, first, stop - first, [], {})
        for row in range(first, stop, PIECE):
            piece = next(stream)
            pixels[row - first :][: len(piece.pixels)].copy_(piece.pixels, non_blocking=True)
            batch.failures.extend(piece.failures)
            batch.facts.update(piece.facts)
        yield batch


def extract(
    extractor: Extractor, decoder: Decoder, span: Span | None = None, *, n_workers: int = 0
) -> tuple[torch.Tensor, Failures]:
    """Return the features of a small list at once, float32 ``(n, D)`` on the CPU, and the rows without, with reasons.

    Args:
        extractor: the network.
        decoder: decoder of the images.
        span: first row, row after the last one; None: all.
        n_workers: decoding processes.
    """
    span = span or (0, len(decoder.images))
    size, failures, parts = extractor.preprocess.size, [], []
    stream = decoded([decoder], pieces(0, span, extractor.batch_size), n_workers=n_workers)
    for batch in batches(stream, span, extractor.batch_size, size, extractor.device):
        parts.append(extractor(batch.pixels, batch.n).cpu()[torch.from_numpy(batch.kept)])
        failures += batch.failures
    return torch.cat(parts), failures
