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
from cog.data.jpeg import decode_on_device, require_decoder
from cog.data.loader import Batch, Decoder, batches
from cog.device import exact_float32
from cog.errors import CogError
from cog.models.backbone import Backbone
from cog.progress import Progress

logger = logging.getLogger(__name__)

# Pixels per forward pass on a CPU (four images of 224 x 224), whatever FT_EXTRACT.BATCH_SIZE is. Activations of
# larger batches exceed the 32 MB above which glibc maps every allocation anew, and having the kernel clear those
# pages costs more than the arithmetic: MobileNetV2 took 60 ms per image in batches of 128, 16 ms in fours (ResNet-50:
# 159 ms in batches of 32, 103 ms in fours).
_CPU_PIXELS = 4 * 224 * 224
_MOST_CPU_IMAGES = 64

# Batches on the GPU while the next one is prepared; more would only take memory.
_IN_FLIGHT = 1

_AUTOCAST = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class Extraction:
    """What extraction found.

    Attributes:
        x: float32 ``(n, d)``, one row per decoded image.
        rows: int64 ``(n,)``: the row of the image list each feature belongs to.
        failures: ``(file, reason)`` of the images that could not be decoded, in row order.
        seconds: duration.
        n_left_to_cpu: with ``decode="cuda"``, how many images the GPU could not decode and Pillow did.
    """

    x: torch.Tensor
    rows: np.ndarray
    failures: list[tuple[str, str]]
    seconds: float
    n_left_to_cpu: int = 0


@dataclass(frozen=True, eq=False)
class Features:
    """Features of consecutive rows of an image list.

    Attributes:
        first: first row.
        n: number of rows, failed ones included.
        x: ``(len(rows), d)``, float32; float16 where the network returns that (exact, half the memory).
        rows: int64, those of the decoded images.
        failures: ``(row, reason)`` of the others, in row order.
        n_left_to_cpu: see :class:`Extraction`.
    """

    first: int
    n: int
    x: torch.Tensor
    rows: np.ndarray
    failures: list[tuple[int, str]]
    n_left_to_cpu: int


def normalizer(
    mean: Sequence[float], std: Sequence[float], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and std as float32 ``(1, 3, 1, 1)`` on ``device``."""
    shape = (1, 3, 1, 1)
    return (
        torch.tensor(list(mean), dtype=torch.float32, device=device).view(shape),
        torch.tensor(list(std), dtype=torch.float32, device=device).view(shape),
    )


def to_input(
    pixels: np.ndarray | torch.Tensor,
    mean: torch.Tensor,
    std: torch.Tensor,
    *,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """Turn uint8 pixels into the network's input on the device of ``mean``.

    The arithmetic is that of torchvision's ``ToTensor`` and ``Normalize``, in the same order, so that the
    result is equal bit for bit; bytes are moved to the device, not floats.

    Args:
        pixels: uint8 ``(b, h, w, 3)``.
        mean: float32 ``(1, 3, 1, 1)``.
        std: float32 ``(1, 3, 1, 1)``.
        memory_format: of the result; as ``torch.channels_last`` nothing has to be transposed.

    Returns:
        float32 ``(b, 3, h, w)``.
    """
    if isinstance(pixels, np.ndarray):
        pixels = torch.from_numpy(pixels)
    if mean.device.type == "cpu" and memory_format is torch.channels_last:
        return _to_input_row_by_row(pixels, mean, std)
    x = pixels.to(mean.device, non_blocking=True).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    return x.float().div_(255).sub_(mean).div_(std)


def _to_input_row_by_row(pixels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Do the same where the channels stay innermost.

    One image at a time stays in the processor's cache, and statistics repeated for a row of pixels turn loops over
    three channels into long ones: 80 instead of 390 microseconds for an image of 224 x 224.
    """
    n, height, width, _ = pixels.shape
    row_mean, row_std = mean.view(-1).repeat(width), std.view(-1).repeat(width)
    x = torch.empty(pixels.shape, dtype=torch.float32)
    for image, target in zip(pixels.reshape(n, height, 3 * width), x.view(n, height, 3 * width), strict=True):
        target.copy_(image).div_(255).sub_(row_mean).div_(row_std)
    return x.permute(0, 3, 1, 2)


class Extractor:
    """A frozen network, ready to compute the features of any rows of any list of images.

    All forward passes have the same shape (failed images, and what the last one lacks, are black), and an image's place
    in its pass depends on its row alone: neither other images, nor workers, nor which rows are asked for, nor on a CPU
    the batch size, change the last bit of its features. (On a CPU the number of PyTorch's threads does.)

    Args:
        backbone: frozen network, already on ``device``; its weights may change their memory layout.
        resize: length of the shortest image side after bicubic resizing, in pixels.
        crop: side of the centre crop, in pixels.
        mean: per-channel mean of pixels in [0, 1].
        std: per-channel standard deviation.
        device: where the network is.
        batch_size: images per forward pass; on a CPU the passes are smaller and this is what is decoded at a time.
        n_workers: decoding threads (or processes).
        precision: ``fp32`` (exact: TF32 off), ``fp16`` or ``bf16`` (automatic mixed precision).
        decode: one of :data:`cog.data.loader.DECODERS`.
        compiled: run the network through ``torch.compile``.
        load_truncated: see :func:`cog.data.pixels.load_rgb`.
        start_method: see :func:`cog.data.loader.batches`.

    Attributes:
        device: as given.
        rows_per_pass: images per forward pass; ranges of rows begin at multiples of it.

    Raises:
        CogError: when ``decode`` is ``cuda`` and the device cannot.
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
        decode: str = "exact",
        compiled: bool = False,
        load_truncated: bool = False,
        start_method: str | None = None,
    ) -> None:
        self.device = torch.device(device)
        if decode == "cuda":
            require_decoder(self.device)
        self._batch_size, self.rows_per_pass = pass_sizes(self.device, crop=crop, batch_size=batch_size)
        self._how: dict[str, Any] = {
            "resize": resize,
            "crop": crop,
            "decode": decode,
            "load_truncated": load_truncated,
        }
        self._precision = precision
        self._n_workers = n_workers
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
    ) -> Generator[Features, None, None]:
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
            in_flight: deque[tuple[Batch, int, Callable[[], torch.Tensor]]] = deque()
            for batch in stream:
                in_flight.append(
                    (batch, *self._network.start(_on_device(batch, decoder, self.device), batch.n, stop))
                )
                if len(in_flight) > (_IN_FLIGHT if cuda else 0):
                    yield self._features(images, *in_flight.popleft())
                if stop():
                    break
            while in_flight:
                yield self._features(images, *in_flight.popleft())

    def _features(
        self, images: ImageList, batch: Batch, n: int, wait: Callable[[], torch.Tensor]
    ) -> Features:
        end = batch.first + n
        _require_folders(images, batch)
        failures = [(row, reason) for row, reason in batch.failures if row < end]
        rows = batch.rows
        rows = rows[rows < end]
        x = wait()
        if len(rows) < len(x):
            x = x[torch.from_numpy(rows - batch.first)]
        if len(rows):
            _check_features(x, images, rows, self._precision)
        return Features(batch.first, n, x, rows, failures, sum(row < end for row in batch.left_to_cpu))


def extract(
    backbone: Backbone, images: ImageList, *, label: str | None = None, **settings: Any
) -> Extraction:
    """Compute the features of every image, in this process and in memory.

    Args:
        backbone: see :class:`Extractor`.
        images: what to extract, in which order.
        label: what the progress is called (default: data set and split).
        **settings: the other arguments of :class:`Extractor`.

    Returns:
        Features of the images that could be decoded, and the list of the others.

    Raises:
        CogError: see :class:`Extractor` and :meth:`Extractor.stream`.
    """
    extractor = Extractor(backbone, **settings)
    table = _Table(images)
    with (
        Progress(len(images), label or f"{images.dataset} {images.split}") as progress,
        contextlib.closing(extractor.stream(images)) as stream,
    ):
        for found in stream:
            table.add(found)
            progress.update(found.n)
        seconds = progress.seconds
    return table.extraction(seconds)


def pass_sizes(device: torch.device, *, crop: int, batch_size: int) -> tuple[int, int]:
    """Return the images per batch and per forward pass; the first is a multiple of the second."""
    if device.type != "cpu":
        return batch_size, batch_size
    per_pass = min(max(1, _CPU_PIXELS // crop**2), _MOST_CPU_IMAGES)
    return max(1, batch_size // per_pass) * per_pass, per_pass


def _on_device(batch: Batch, decoder: Decoder, device: torch.device) -> torch.Tensor:
    """Return the batch's pixels on the device, where the files that were left to it are decoded."""
    if not batch.encoded:
        return batch.pixels.to(device, non_blocking=True)
    rows = sorted(batch.encoded)
    decoded = decode_on_device(
        [batch.encoded[row] for row in rows], resize=decoder.resize, crop=decoder.crop, device=device
    )
    for row, image in zip(rows, decoded, strict=True):
        if image is None:  # damaged, or of a kind this decoder does not know: Pillow decides
            found = decoder(row, on_cpu=True)
            batch.add(row, found, asked_device=True)
    batch.failures.sort()
    pixels = batch.pixels.to(device, non_blocking=True)
    for row, image in zip(rows, decoded, strict=True):
        if image is not None:
            pixels[row - batch.first] = image
    return pixels


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
        inner = device.type == "cpu" or precision != "fp32"
        self._use(torch.channels_last if inner else torch.contiguous_format)
        self._width: int | None = None  # known once a pass has succeeded

    def _use(self, memory_format: torch.memory_format) -> None:
        self._format = memory_format
        self._backbone.to(memory_format=memory_format)
        if self._compiled:
            self._run = torch.compile(self._backbone, dynamic=False)

    def start(
        self, pixels: torch.Tensor, n: int, stop: Callable[[], object]
    ) -> tuple[int, Callable[[], torch.Tensor]]:
        """Begin to compute the features of the first ``n`` images.

        Args:
            pixels: uint8 ``(batch_size, crop, crop, 3)`` on the device.
            n: how many of them are images.
            stop: asked between passes; once it returns something true, the others are left out.

        Returns:
            How many images that are (``n``, or the whole passes before the stop), and a function that waits for their
            features and returns them on the CPU: ``(n, d)``, float32 or float16.
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
        if self._device.type != "cuda":
            return n, y.cpu
        host = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)
        host.copy_(y, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

        def wait() -> torch.Tensor:
            done.synchronize()
            return host

        return n, wait

    def _forward(self, pixels: torch.Tensor) -> torch.Tensor:
        shape = (len(pixels), 3, *pixels.shape[1:3])
        try:
            x = to_input(pixels, self._mean, self._std, memory_format=self._format)
            with _autocast(self._device, self._precision):
                y = self._run(x)
        except torch.cuda.OutOfMemoryError as error:
            raise CogError(
                f"the GPU is out of memory with batches of {len(pixels)} images; lower FT_EXTRACT.BATCH_SIZE"
            ) from error
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
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


class _Table:
    """Collects the features in row order."""

    def __init__(self, images: ImageList) -> None:
        self._images = images
        self._x: torch.Tensor | None = None
        self._rows: list[np.ndarray] = []
        self._failures: list[tuple[str, str]] = []
        self._filled = 0
        self._left_to_cpu = 0

    def add(self, found: Features) -> None:
        """Append the features of a batch."""
        self._failures += [(self._images.file(row), reason) for row, reason in found.failures]
        self._left_to_cpu += found.n_left_to_cpu
        if len(found.rows):
            if self._x is None:  # allocated once, when D is known: no second copy at the end
                self._x = torch.empty((len(self._images), found.x.shape[1]), dtype=torch.float32)
            self._x[self._filled : self._filled + len(found.x)] = found.x
            self._filled += len(found.x)
            self._rows.append(found.rows)

    def extraction(self, seconds: float) -> Extraction:
        """Return everything."""
        x = torch.empty((0, 0)) if self._x is None else self._x[: self._filled]
        return Extraction(
            x=x.clone() if self._filled < len(self._images) else x,
            rows=np.concatenate(self._rows) if self._rows else np.empty(0, dtype=np.int64),
            failures=self._failures,
            seconds=seconds,
            n_left_to_cpu=self._left_to_cpu,
        )


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
