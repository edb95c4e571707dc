"""Feature extraction: images through a frozen network, row by row."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from cog.data.image_lists import ImageList
from cog.data.loader import Batch, Decoder, batches
from cog.data.pixels import normalizer, to_input
from cog.errors import CogError, first_line
from cog.runtime import memory
from cog.runtime.device import allow_tf32, exact_float32

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

# Pixels per forward pass on a CPU (four images of 224 x 224), independent of FT_EXTRACT.BATCH_SIZE. Activations of
# larger batches exceed the 32 MB above which glibc maps every allocation anew, and the kernel takes more time to clear
# those pages than the arithmetic takes: MobileNetV2 took 60 ms per image in batches of 128, 16 ms in batches of 4
# (ResNet-50: 159 ms in batches of 32, 103 ms in batches of 4).
_CPU_PIXELS = 4 * 224 * 224
_MOST_CPU_IMAGES = 64

# Number of batches on the GPU while the next one is prepared; more would only take memory.
_IN_FLIGHT = 1

# Difference between two passes of the same images, and largest difference between images, in terms of the root mean
# square of the features, from which a network is random, and below which it does not look at its images.
_RANDOM, _EQUAL = 1e-3, 1e-5

_AUTOCAST = {"fp32": None, "tf32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


class NonFiniteError(CogError):
    """The network returns NaN or infinite values."""


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """Features of consecutive rows of an image list.

    Attributes:
        first: first row of the batch.
        n: number of rows, including the rows of failed images.
        x: features ``(len(rows), d)``, in the type to be saved; where that is float32, the float16 output of a network
            stays float16 (exact, half the memory).
        rows: rows of the decoded images, int64.
        failures: ``(row, reason)`` of the images that could not be decoded, in row order.
    """

    first: int
    n: int
    x: torch.Tensor
    rows: np.ndarray
    failures: list[tuple[int, str]]

    @property
    def stop(self) -> int:
        """Row after the last one."""
        return self.first + self.n

    def array(self) -> np.ndarray:
        """Return ``x`` as a NumPy array: float32, float16, or the bits of bfloat16, which NumPy lacks, as int16."""
        return (self.x.view(torch.int16) if self.x.dtype is torch.bfloat16 else self.x).numpy()


class Extractor:
    """A frozen network that computes the features of any rows of any image list.

    All forward passes have the same shape (failed images, and places after the last image, are black), and the place of
    an image in its pass depends on its row alone. The last bits of its features therefore do not depend on other
    images, on the workers, on the requested rows or, on a CPU, on the batch size. (On a CPU they depend on the number
    of PyTorch's threads.)

    Args:
        backbone: network with a ``name``, in eval mode, already on ``device``; its weights may change their memory
            layout.
        crop: side of the center crop, in pixels.
        mean: per-channel mean of pixels in [0, 1], and ``std`` their standard deviation.
        device: device of the network.
        batch_size: images per forward pass; on a CPU, images decoded at a time, which take several smaller passes.
        batch_key: configuration key of the batch size, for messages.
        n_workers: decoding threads.
        precision: ``fp32`` (exact: TF32 off), ``tf32``, ``fp16`` or ``bf16`` (automatic mixed precision).
        save_dtype: type of the features: float32, float16 or bfloat16.
        memory_format: layout of the network's input and weights (default: the fast layout of the device, or the usual
            layout for networks that cannot work on that).
        warns: whether to warn in the first batch of a network that is random or gives equal features for all images.
        decoding: other arguments of :class:`cog.data.loader.Decoder`, such as ``resize``.

    Attributes:
        device: device of the network.
        rows_per_pass: images per forward pass; ranges of rows begin at multiples of it.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        crop: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: str | torch.device,
        batch_size: int = 128,
        batch_key: str = "FT_EXTRACT.BATCH_SIZE",
        n_workers: int = 0,
        precision: str = "fp32",
        save_dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format | None = None,
        warns: bool = False,
        **decoding: Any,
    ) -> None:
        self.device = torch.device(device)
        self._batch_size, self.rows_per_pass = pass_sizes(self.device, crop=crop, batch_size=batch_size)
        self._batch_key, self._n_workers = batch_key, n_workers
        self._decoding = {"crop": crop, **decoding}
        self._overlaps = self.device.type == "cuda"  # whether decoding overlaps with the work of the device
        self._backbone, self._name = backbone, str(backbone.name)
        self._mean, self._std = normalizer(mean, std, self.device)
        self._precision, self._save_dtype = precision, save_dtype
        self._warns = warns
        self._width: int | None = None  # of the features; known after the first pass
        if memory_format is None:
            # Convolutions on a CPU, and those in half precision on a GPU, are faster with the channels innermost:
            # MobileNetV2 takes 12.9 instead of 15.4 ms per image on one core, ResNet-50 96 instead of 105. Those in
            # float32 on a GPU are not.
            innermost = self.device.type == "cpu" or precision in ("fp16", "bf16")
            memory_format = torch.channels_last if innermost else torch.contiguous_format
        self._use(memory_format)

    @classmethod
    def from_config(
        cls, backbone: nn.Module, cfg: CfgNode, device: torch.device, *, n_workers: int
    ) -> Extractor:
        """Return an extractor with the settings of a configuration."""
        fx = cfg.FT_EXTRACT
        return cls(
            backbone,
            resize=fx.IMAGE_RESIZE_SIZE,
            crop=fx.IMAGE_CROP_SIZE,
            mean=fx.IMAGE_NORM.MEAN,
            std=fx.IMAGE_NORM.STD,
            device=device,
            batch_size=fx.BATCH_SIZE,
            n_workers=n_workers,
            precision=fx.PRECISION,
            save_dtype=getattr(torch, fx.SAVE_DTYPE),
            warns=True,
            load_truncated=fx.LOAD_TRUNCATED_IMAGES,
            interpolation=fx.IMAGE_INTERPOLATION,
            squash=fx.IMAGE_SQUASH,
        )

    def _use(self, memory_format: torch.memory_format) -> None:
        self._format = memory_format
        self._backbone.to(memory_format=memory_format)

    def extract(self, images: ImageList, ranges: Iterable[tuple[int, int]] | None = None) -> FeatureBatch:
        """Return the features of rows in one batch, for small lists; see :meth:`stream`."""
        with contextlib.closing(self.stream(images, ranges)) as stream:
            parts = list(stream)
        return FeatureBatch(
            parts[0].first,
            sum(part.n for part in parts),
            torch.cat([part.x for part in parts]),
            np.concatenate([part.rows for part in parts]),
            [failure for part in parts for failure in part.failures],
        )

    def stream(
        self,
        images: ImageList,
        ranges: Iterable[tuple[int, int]] | None = None,
        *,
        stop: Callable[[], object] = lambda: False,
    ) -> Generator[FeatureBatch, None, None]:
        """Yield the features of rows, one batch at a time; close the generator to stop before the end.

        Args:
            images: the image list.
            ranges: ``(first, stop)`` of the requested rows (default: all), which begin at multiples of
                ``rows_per_pass``, and end at multiples or at the end of the list.
            stop: function called between forward passes; once it returns a true value, the generator yields the
                features computed so far and ends.
        """
        decoder = Decoder(images, **self._decoding)
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
                    pin_memory=cuda,
                    ranges=ranges,
                )
            ) as stream,
        ):
            if self._precision == "tf32":
                allow_tf32()
            in_flight: deque[tuple[Batch, int, _Pending]] = deque()
            for batch in stream:
                in_flight.append((batch, *self._start(batch, stop)))
                if len(in_flight) > (_IN_FLIGHT if self._overlaps else 0):
                    yield self._features(images, *in_flight.popleft())
                if stop():
                    break
            while in_flight:
                yield self._features(images, *in_flight.popleft())

    def _start(self, batch: Batch, stop: Callable[[], object]) -> tuple[int, _Pending]:
        """Begin to compute features; return the number of their rows (fewer after a stop) and the pending features."""
        pixels, n = batch.pixels.to(self.device, non_blocking=True), batch.n
        is_first = self._warns and self._width is None
        parts = []
        for first in range(0, n, self.rows_per_pass):
            parts.append(self._forward(pixels[first : first + self.rows_per_pass]))
            if stop():
                n = min(n, first + self.rows_per_pass)
                break
        y = torch.cat(parts)[:n]
        if is_first:
            self._warn_of_unusable(pixels, parts[0].float(), y.float())
        return n, _Pending(y if y.dtype is torch.float16 else y.float())

    def _warn_of_unusable(self, pixels: torch.Tensor, first: torch.Tensor, y: torch.Tensor) -> None:
        """Warn of a network that is random, or that gives equal features for all images of the first batch.

        Args:
            pixels: images of the batch, with black ones after its end.
            first: features of the first forward pass.
            y: features of the batch.
        """
        again = self._forward(pixels[: len(first)]).float()
        if float((again - first).abs().max()) > _RANDOM * float(first.square().mean().sqrt()):
            logger.warning(
                "%s gives other features for the same images in a second pass: it is random at evaluation; is there "
                "dropout, a random mask or noise in its forward?",
                self._name,
            )
        elif bool((pixels[: len(y)] != pixels[:1]).any()) and float(
            (y - y[:1]).abs().max()
        ) <= _EQUAL * float(y.square().mean().sqrt()):
            logger.warning(
                "%s gives equal features for all %d images of the first batch; check the checkpoint and the loader",
                self._name,
                len(y),
            )

    def _forward(self, pixels: torch.Tensor) -> torch.Tensor:
        dtype, shape = _AUTOCAST[self._precision], (len(pixels), 3, *pixels.shape[1:3])
        try:
            x = to_input(pixels, self._mean, self._std, memory_format=self._format)
            with torch.autocast(self.device.type, dtype=dtype) if dtype else contextlib.nullcontext():
                y = self._backbone(x)
        except CogError:
            raise
        except Exception as error:  # a user's network may raise any exception
            if memory.is_exhausted(error):
                task = f"extracting features of {len(pixels)} images at a time"
                # On a CPU, a pass does not get smaller with the batch, see pass_sizes.
                is_smaller = self.device.type != "cpu" or self._batch_size > self.rows_per_pass
                todo = f"lower {self._batch_key}" if is_smaller else ""
                raise memory.explain(error, task=task, todo=todo) from error
            if self._width is None and self._format is torch.channels_last:
                # A network that uses x.view(...) cannot work on this layout; the usual layout is tried.
                self._use(torch.contiguous_format)
                return self._forward(pixels)
            raise CogError(
                f"model {self._name} failed on a batch of shape {shape}: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
        if self._width not in (None, y.shape[1]):
            raise CogError(
                f"model {self._name} returned {self._width} dimensions for one batch and {y.shape[1]} for another"
            )
        self._width = y.shape[1]
        return y

    def _features(self, images: ImageList, batch: Batch, n: int, pending: _Pending) -> FeatureBatch:
        end = batch.first + n
        _require_folders(images, batch)
        failures = [(row, reason) for row, reason in batch.failures if row < end]
        rows = batch.rows
        rows = rows[rows < end]
        x = pending.wait()
        if len(rows) < len(x):
            x = x[torch.from_numpy(rows - batch.first)]
        if (row := _first_bad_row(x)) is not None:
            advice = f"try FT_EXTRACT.PRECISION fp32 instead of {self._precision}"
            if self._precision == "fp32":
                advice = "check the checkpoint and the input normalization"
            file = images.file(int(rows[row]))
            raise NonFiniteError(f"the network returned NaN or infinite features for {file}; {advice}")
        dtype = self._save_dtype
        saved = x if dtype is torch.float32 else x.to(dtype)
        if saved is not x and (row := _first_bad_row(saved)) is not None:
            raise CogError(
                f"the network returned {x[row].abs().max():.6g} for {images.file(int(rows[row]))}, and "
                f"{str(dtype).removeprefix('torch.')} ends at {torch.finfo(dtype).max:.6g}; set FT_EXTRACT.SAVE_DTYPE "
                f"{'bfloat16 or float32' if dtype is torch.float16 else 'float32'}"
            )
        return FeatureBatch(batch.first, n, saved, rows, failures)


def pass_sizes(device: torch.device, *, crop: int, batch_size: int) -> tuple[int, int]:
    """Return the images per batch and per forward pass; the first is a multiple of the second."""
    if device.type != "cpu":
        return batch_size, batch_size
    per_pass = min(max(1, _CPU_PIXELS // crop**2), _MOST_CPU_IMAGES)
    return max(1, batch_size // per_pass) * per_pass, per_pass


class _Pending:
    """Features ``(n, d)``, float32 or float16, in transfer from the device to the CPU."""

    def __init__(self, y: torch.Tensor) -> None:
        self._host, self._arrived = y, None
        if y.device.type == "cuda":
            self._host = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)
            self._host.copy_(y, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def wait(self) -> torch.Tensor:
        """Wait for the features and return them on the CPU."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.cpu()


def _require_folders(images: ImageList, batch: Batch) -> None:
    """Raise an error for failures that come from a lost file system: all folders existed when they were listed."""
    for row, reason in batch.failures:
        lost = images.store.lost(images.file(row))
        if lost is not None:
            raise CogError(
                f"{lost} cannot be read any more ({reason}); when it is back (a network file system?), the same "
                "command continues"
            )


def _first_bad_row(x: torch.Tensor) -> int | None:
    """Return the first row of ``x`` that holds NaN or infinite values; None without such a row."""
    bad = (~torch.isfinite(x).all(dim=1)).nonzero()
    return int(bad[0]) if len(bad) else None
