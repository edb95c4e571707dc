"""Feature extraction: images through a frozen network, row by row."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cog.data.image_lists import ImageList
from cog.data.loader import Batch, Decoder, batches
from cog.data.pixels import normalizer, to_input
from cog.errors import CogError
from cog.models.backbone import Backbone
from cog.runtime import memory
from cog.runtime.device import allow_tf32, exact_float32

logger = logging.getLogger(__name__)

# Pixels per forward pass on a CPU (four images of 224 x 224), whatever FT_EXTRACT.BATCH_SIZE is. Activations of
# larger batches exceed the 32 MB above which glibc maps every allocation anew, and having the kernel clear those
# pages costs more than the arithmetic: MobileNetV2 took 60 ms per image in batches of 128, 16 ms in fours (ResNet-50:
# 159 ms in batches of 32, 103 ms in fours).
_CPU_PIXELS = 4 * 224 * 224
_MOST_CPU_IMAGES = 64

# Batches on the GPU while the next one is prepared; more would only take memory.
_IN_FLIGHT = 1

# A device that had nothing to do before more than this share of the batches waits for images; judged from so many on.
_IDLE_SHARE, _ENOUGH_BATCHES = 0.3, 20

_AUTOCAST = {"fp32": None, "tf32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """FeatureBatch of consecutive rows of an image list.

    Attributes:
        first: first row.
        n: number of rows, failed ones included.
        x: ``(len(rows), d)``, float32; float16 where the network returns that (exact, half the memory).
        rows: int64, those of the decoded images.
        failures: ``(row, reason)`` of the others, in row order.
    """

    first: int
    n: int
    x: torch.Tensor
    rows: np.ndarray
    failures: list[tuple[int, str]]


class Extractor:
    """A frozen network, ready to compute the features of any rows of any list of images.

    All forward passes have the same shape (failed images, and what the last one lacks, are black), and an image's place
    in its pass depends on its row alone: neither other images, nor workers, nor which rows are asked for, nor on a CPU
    the batch size, change the last bit of its features. (On a CPU the number of PyTorch's threads does.)

    Args:
        backbone: frozen network, already on ``device``; its weights may change their memory layout.
        resize: length of the shortest image side after bicubic resizing, in pixels.
        crop: side of the centre crop, in pixels.
        interpolation: name of Pillow's resampling filter.
        squash: resize both sides to ``resize``.
        mean: per-channel mean of pixels in [0, 1].
        std: per-channel standard deviation.
        device: where the network is.
        batch_size: images per forward pass; on a CPU the passes are smaller and this is what is decoded at a time.
        n_workers: decoding threads (or processes).
        precision: ``fp32`` (exact: TF32 off), ``tf32``, ``fp16`` or ``bf16`` (automatic mixed precision).
        compiled: run the network through ``torch.compile``.
        load_truncated: see :func:`cog.data.pixels.load_rgb`.
        start_method: see :func:`cog.data.loader.batches`.

    Attributes:
        device: as given.
        rows_per_pass: images per forward pass; ranges of rows begin at multiples of it.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        resize: int,
        crop: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: str | torch.device,
        batch_size: int = 128,
        n_workers: int = 0,
        precision: str = "fp32",
        compiled: bool = False,
        load_truncated: bool = False,
        start_method: str | None = None,
        interpolation: str = "bicubic",
        squash: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self._batch_size, self.rows_per_pass = pass_sizes(self.device, crop=crop, batch_size=batch_size)
        self._how: dict[str, Any] = {
            "resize": resize,
            "crop": crop,
            "load_truncated": load_truncated,
            "interpolation": interpolation,
            "squash": squash,
        }
        self._precision = precision
        self._n_workers = n_workers
        self._overlaps = self.device.type == "cuda"  # decoding, and the device's work
        self._start_method = start_method
        self._network = _Network(
            backbone,
            mean=mean,
            std=std,
            device=self.device,
            precision=precision,
            compiled=compiled,
            per_pass=self.rows_per_pass,
        )

    def stream(
        self,
        images: ImageList,
        ranges: Iterable[tuple[int, int]] | None = None,
        *,
        stop: Callable[[], object] = lambda: False,
    ) -> Generator[FeatureBatch, None, None]:
        """Yield the features of rows, a batch at a time. Close the generator to stop before the end.

        Args:
            images: what to extract.
            ranges: ``(first, stop)`` of the rows wanted (default: all). They begin at multiples of ``rows_per_pass``
                and end at such, or at the end of the list; each is asked for a few batches ahead of its computation.
            stop: asked between forward passes; once it returns something true, what is computed is yielded and the
                generator ends.

        Raises:
            CogError: when the network fails or returns NaN or infinite values (the image is named), a decoding process
                dies, or the images' folder vanishes.
        """
        decoder = Decoder(images, **self._how)
        cuda = self.device.type == "cuda"
        with (
            exact_float32(),
            torch.inference_mode(),
            torch.cuda.device(self.device) if cuda else contextlib.nullcontext(),
            contextlib.closing(
                batches(
                    decoder,
                    batch_size=self._batch_size,
                    n_workers=self._n_workers,
                    start_method=self._start_method,
                    pin_memory=cuda,
                    ranges=ranges,
                )
            ) as stream,
        ):
            if self._precision == "tf32":
                allow_tf32()
            in_flight: deque[tuple[Batch, int, _Pending]] = deque()
            n_batches = n_idle = 0
            for batch in stream:
                n_batches += 1
                n_idle += bool(in_flight) and in_flight[-1][2].is_done()
                in_flight.append(
                    (
                        batch,
                        *self._network.start(batch.pixels.to(self.device, non_blocking=True), batch.n, stop),
                    )
                )
                if len(in_flight) > (_IN_FLIGHT if self._overlaps else 0):
                    yield self._features(images, *in_flight.popleft())
                if stop():
                    break
            while in_flight:
                yield self._features(images, *in_flight.popleft())
            if n_batches >= _ENOUGH_BATCHES and n_idle > _IDLE_SHARE * n_batches:
                logger.warning(
                    "%s waited for images before %.0f %% of the batches: give this process more processors and "
                    "FT_EXTRACT.N_WORKERS (%d now)",
                    self.device, 100 * n_idle / n_batches, self._n_workers,
                )  # fmt: skip

    def _features(self, images: ImageList, batch: Batch, n: int, pending: _Pending) -> FeatureBatch:
        end = batch.first + n
        _require_folders(images, batch)
        failures = [(row, reason) for row, reason in batch.failures if row < end]
        rows = batch.rows
        rows = rows[rows < end]
        x = pending.wait()
        if len(rows) < len(x):
            x = x[torch.from_numpy(rows - batch.first)]
        if len(rows):
            _check_features(x, images, rows, self._precision)
        return FeatureBatch(batch.first, n, x, rows, failures)


def pass_sizes(device: torch.device, *, crop: int, batch_size: int) -> tuple[int, int]:
    """Return the images per batch and per forward pass; the first is a multiple of the second."""
    if device.type != "cpu":
        return batch_size, batch_size
    per_pass = min(max(1, _CPU_PIXELS // crop**2), _MOST_CPU_IMAGES)
    return max(1, batch_size // per_pass) * per_pass, per_pass


class _Pending:
    """Features ``(n, d)``, float32 or float16, on their way from the device to the CPU."""

    def __init__(self, y: torch.Tensor) -> None:
        self._host, self._arrived = y, None
        if y.device.type == "cuda":
            self._host = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)
            self._host.copy_(y, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def is_done(self) -> bool:
        """Whether the device has finished with them."""
        return self._arrived is None or self._arrived.query()

    def wait(self) -> torch.Tensor:
        """Return them on the CPU."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.cpu()


class _Network:
    """A backbone with its input layout, precision and normalisation; runs in passes of one shape."""

    def __init__(
        self,
        backbone: Backbone,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        precision: str,
        compiled: bool,
        per_pass: int,
    ) -> None:
        self._backbone = backbone
        self._run: Callable[[torch.Tensor], torch.Tensor] = backbone
        self._mean, self._std = normalizer(mean, std, device)
        self._device = device
        self._precision = precision
        self._compiled = compiled
        self._per_pass = per_pass
        # Convolutions on a CPU, and those in half precision on a GPU, prefer the channels innermost: MobileNetV2 takes
        # 12.9 instead of 15.4 ms per image on one core, ResNet-50 96 instead of 105. In float32 on a GPU they do not.
        inner = device.type == "cpu" or precision in ("fp16", "bf16")
        self._use(torch.channels_last if inner else torch.contiguous_format)
        self._width: int | None = None  # known once a pass has succeeded

    def _use(self, memory_format: torch.memory_format) -> None:
        self._format = memory_format
        self._backbone.to(memory_format=memory_format)
        if self._compiled:
            self._run = torch.compile(self._backbone, dynamic=False)

    def start(self, pixels: torch.Tensor, n: int, stop: Callable[[], object]) -> tuple[int, _Pending]:
        """Begin to compute the features of the first ``n`` images.

        Args:
            pixels: uint8 ``(batch_size, crop, crop, 3)`` on the device.
            n: how many of them are images.
            stop: asked between passes; once it returns something true, the others are left out.

        Returns:
            How many images that are (``n``, or the whole passes before the stop), and their features.
        """
        parts = []
        for first in range(0, n, self._per_pass):
            parts.append(self._forward(pixels[first : first + self._per_pass]))
            if stop():
                n = min(n, first + self._per_pass)
                break
        y = torch.cat(parts)[:n]
        if y.dtype is not torch.float16:
            y = y.float()
        return n, _Pending(y)

    def _forward(self, pixels: torch.Tensor) -> torch.Tensor:
        shape = (len(pixels), 3, *pixels.shape[1:3])
        try:
            x = to_input(pixels, self._mean, self._std, memory_format=self._format)
            with _autocast(self._device, self._precision):
                y = self._run(x)
        except CogError:
            raise
        except Exception as error:  # whatever a user's network raises
            if memory.is_exhausted(error):
                what = f"extracting features of {len(pixels)} images at a time"
                raise memory.explain(error, what=what, todo="lower FT_EXTRACT.BATCH_SIZE") from error
            if self._width is None and self._format is torch.channels_last:
                # A network with x.view(...) inside cannot work on this layout; it gets the usual one.
                self._use(torch.contiguous_format)
                return self._forward(pixels)
            first = (str(error).strip().splitlines() or [""])[0]
            hint = "; does it work without FT_EXTRACT.COMPILE?" if self._compiled else ""
            raise CogError(
                f"model {self._backbone.name} failed on a batch of shape {shape}: "
                f"{type(error).__name__}: {first}{hint}"
            ) from error
        if self._width not in (None, y.shape[1]):
            raise CogError(
                f"model {self._backbone.name} returned {self._width} dimensions for one batch and {y.shape[1]} for "
                "another"
            )
        self._width = y.shape[1]
        return y


def _require_folders(images: ImageList, batch: Batch) -> None:
    """Tell a file that is missing from a file system that is: each folder was there when the images were listed."""
    for row, reason in batch.failures:
        folder = (images.root / images.file(row)).parent
        if not os.path.isdir(folder):
            raise CogError(
                f"{folder} cannot be read any more ({reason}); when it is back (a network file system?), the same "
                "command continues"
            )


def _check_features(y: torch.Tensor, images: ImageList, rows: np.ndarray, precision: str) -> None:
    bad = (~torch.isfinite(y).all(dim=1)).nonzero().flatten()
    if len(bad):
        hint = "" if precision == "fp32" else f"; try FT_EXTRACT.PRECISION fp32 instead of {precision}"
        raise CogError(
            f"the network returned NaN or infinite features for {images.file(int(rows[int(bad[0])]))}{hint or ''}"
            + ("" if hint else "; check the checkpoint and the input normalisation")
        )


def _autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[None]:
    dtype = _AUTOCAST[precision]
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
