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


class NonFiniteError(CogError):
    """The network returns NaN or infinite values."""


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """Features of consecutive rows of an image list.

    Attributes:
        first: first row.
        n: number of rows, failed ones included.
        x: ``(len(rows), d)``, in the type to be saved; instead of float32 it is float16 where the network returns that
            (exact, half the memory).
        rows: int64, those of the decoded images.
        failures: ``(row, reason)`` of the others, in row order.
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
        """Return ``x`` for NumPy: float32, float16, or as int16 the bits of bfloat16, which NumPy does not have."""
        return (self.x.view(torch.int16) if self.x.dtype is torch.bfloat16 else self.x).numpy()


class Extractor:
    """A frozen network, ready to compute the features of any rows of any list of images.

    All forward passes have the same shape (failed images, and places after the last image, are black), and an image's
    place in its pass depends on its row alone: neither other images, nor workers, nor the rows that are asked for, nor
    on a CPU the batch size, change the last bit of its features. (On a CPU the number of PyTorch's threads does.)

    Args:
        backbone: network with a ``name``, in eval mode, already on ``device``; its weights may change their memory
            layout.
        crop: side of the center crop, in pixels.
        mean: per-channel mean of pixels in [0, 1].
        std: per-channel standard deviation.
        device: device of the network.
        batch_size: images per forward pass; on a CPU the passes are smaller and so many are decoded at a time.
        batch_key: configuration key of the batch size, for messages.
        n_workers: decoding threads (or processes).
        precision: ``fp32`` (exact: TF32 off), ``tf32``, ``fp16`` or ``bf16`` (automatic mixed precision).
        save_dtype: type of the features: float32, or rounded to float16 or bfloat16.
        compiled: run the network through ``torch.compile``.
        start_method: see :func:`cog.data.loader.batches`.
        memory_format: layout of the network's input and weights (default: the one that is fast on the device, or the
            usual one for networks that cannot work on that).
        decoding: the other arguments of :class:`cog.data.loader.Decoder`, ``resize`` among them.

    Attributes:
        device: as given.
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
        compiled: bool = False,
        start_method: str | None = None,
        memory_format: torch.memory_format | None = None,
        **decoding: Any,
    ) -> None:
        self.device = torch.device(device)
        self._batch_size, self.rows_per_pass = pass_sizes(self.device, crop=crop, batch_size=batch_size)
        self._batch_key = batch_key
        self._decoding = {"crop": crop, **decoding}
        self._n_workers = n_workers
        self._start_method = start_method
        self._overlaps = self.device.type == "cuda"  # decoding, and the device's work
        self._backbone = backbone
        self._name = str(backbone.name)
        self._run: Callable[[torch.Tensor], torch.Tensor] = backbone
        self._mean, self._std = normalizer(mean, std, self.device)
        self._precision = precision
        self._save_dtype = save_dtype
        self._compiled = compiled
        self._width: int | None = None  # known once a pass has succeeded
        if memory_format is None:
            # Convolutions on a CPU, and those in half precision on a GPU, prefer the channels innermost: MobileNetV2
            # takes 12.9 instead of 15.4 ms per image on one core, ResNet-50 96 instead of 105. In float32 on a GPU they
            # do not.
            innermost = self.device.type == "cpu" or precision in ("fp16", "bf16")
            memory_format = torch.channels_last if innermost else torch.contiguous_format
        self._use(memory_format)

    @classmethod
    def from_config(
        cls,
        backbone: nn.Module,
        cfg: CfgNode,
        device: torch.device,
        *,
        n_workers: int,
        compiled: bool | None = None,
    ) -> Extractor:
        """Return an extractor for a network on ``device``, as a configuration asks for it.

        Args:
            backbone: see above, as the other arguments.
            cfg: the configuration.
            device: device of the network.
            n_workers: decoding threads (or processes).
            compiled: None: as configured.
        """
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
            compiled=fx.COMPILE if compiled is None else compiled,
            load_truncated=fx.LOAD_TRUNCATED_IMAGES,
            start_method=fx.WORKER_START_METHOD or None,
            interpolation=fx.IMAGE_INTERPOLATION,
            squash=fx.IMAGE_SQUASH,
        )

    def _use(self, memory_format: torch.memory_format) -> None:
        self._format = memory_format
        self._backbone.to(memory_format=memory_format)
        if self._compiled:
            self._run = torch.compile(self._backbone, dynamic=False)

    def extract(self, images: ImageList, ranges: Iterable[tuple[int, int]] | None = None) -> FeatureBatch:
        """Return the features of rows together, for lists that are small; see :meth:`stream`."""
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
        """Yield the features of rows, a batch at a time. Close the generator to stop before the end.

        Args:
            images: the images.
            ranges: ``(first, stop)`` of the rows wanted (default: all). They begin at multiples of ``rows_per_pass``
                and end at such, or at the end of the list; each is asked for a few batches ahead of its computation.
            stop: asked between forward passes; once it returns something true, the features computed so far are yielded
                and the generator ends.

        Raises:
            CogError: when the network fails or returns NaN or infinite values, or values beyond the range of
                ``save_dtype`` (the image is named), a decoding process dies, or the images' folder vanishes.
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
                in_flight.append((batch, *self._start(batch, stop)))
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

    def _start(self, batch: Batch, stop: Callable[[], object]) -> tuple[int, _Pending]:
        """Begin to compute features; returns of how many rows (all, or the whole passes before a stop), and these."""
        pixels, n = batch.pixels.to(self.device, non_blocking=True), batch.n
        parts = []
        for first in range(0, n, self.rows_per_pass):
            parts.append(self._forward(pixels[first : first + self.rows_per_pass]))
            if stop():
                n = min(n, first + self.rows_per_pass)
                break
        y = torch.cat(parts)[:n]
        return n, _Pending(y if y.dtype is torch.float16 else y.float())

    def _forward(self, pixels: torch.Tensor) -> torch.Tensor:
        dtype, shape = _AUTOCAST[self._precision], (len(pixels), 3, *pixels.shape[1:3])
        try:
            x = to_input(pixels, self._mean, self._std, memory_format=self._format)
            with torch.autocast(self.device.type, dtype=dtype) if dtype else contextlib.nullcontext():
                y = self._run(x)
        except CogError:
            raise
        except Exception as error:  # whatever a user's network raises
            if memory.is_exhausted(error):
                task = f"extracting features of {len(pixels)} images at a time"
                raise memory.explain(error, what=task, todo=f"lower {self._batch_key}") from error
            if self._width is None and self._format is torch.channels_last:
                # A network with x.view(...) inside cannot work on this layout; it gets the usual one.
                self._use(torch.contiguous_format)
                return self._forward(pixels)
            hint = "; does it work without FT_EXTRACT.COMPILE?" if self._compiled else ""
            raise CogError(
                f"model {self._name} failed on a batch of shape {shape}: "
                f"{type(error).__name__}: {first_line(error)}{hint}"
            ) from error
        if self._width not in (None, y.shape[1]):
            raise CogError(
                f"model {self._name} returned {self._width} dimensions for one batch and {y.shape[1]} for "
                "another"
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
        _require_finite(x, images, rows, self._precision)
        if self._save_dtype is not torch.float32:
            exact, x = x, x.to(self._save_dtype)
            _require_range(x, exact, images, rows)
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


def _require_folders(images: ImageList, batch: Batch) -> None:
    """Tell a file that is missing from a file system that is: all folders were there when the images were listed."""
    for row, reason in batch.failures:
        lost = images.store.lost(images.file(row))
        if lost is not None:
            raise CogError(
                f"{lost} cannot be read any more ({reason}); when it is back (a network file system?), the same "
                "command continues"
            )


def _first_bad_row(x: torch.Tensor) -> int | None:
    """Return the first row of ``x`` that holds NaN or infinite values; None: there is none."""
    bad = (~torch.isfinite(x).all(dim=1)).nonzero().flatten()
    return int(bad[0]) if len(bad) else None


def _require_finite(x: torch.Tensor, images: ImageList, rows: np.ndarray, precision: str) -> None:
    """Refuse features ``x`` that are NaN or infinite, naming the first image."""
    row = _first_bad_row(x)
    if row is not None:
        advice = f"try FT_EXTRACT.PRECISION fp32 instead of {precision}"
        if precision == "fp32":
            advice = "check the checkpoint and the input normalization"
        file = images.file(int(rows[row]))
        raise NonFiniteError(f"the network returned NaN or infinite features for {file}; {advice}")


def _require_range(rounded: torch.Tensor, x: torch.Tensor, images: ImageList, rows: np.ndarray) -> None:
    """Refuse features ``x`` whose rounded values are infinite, naming the first image."""
    row = _first_bad_row(rounded)
    if row is not None:
        dtype = str(rounded.dtype).rpartition(".")[2]
        raise CogError(
            f"the network returned {x[row].abs().max():.6g} for {images.file(int(rows[row]))}, and {dtype} ends at "
            f"{torch.finfo(rounded.dtype).max:.6g}; set FT_EXTRACT.SAVE_DTYPE "
            f"{'bfloat16 or float32' if dtype == 'float16' else 'float32'}"
        )
