"""Feature extraction: images through a frozen network, row by row."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cog.data.image_lists import ImageList
from cog.data.loader import batches
from cog.errors import CogError
from cog.models.backbone import Backbone
from cog.progress import Progress

logger = logging.getLogger(__name__)

# Pixels per forward pass on a CPU (four images of 224 x 224), whatever FT_EXTRACT.BATCH_SIZE is. Activations of
# larger batches exceed the 32 MB above which glibc maps every allocation anew, and having the kernel clear those
# pages costs more than the arithmetic: MobileNetV2 took 60 ms per image in batches of 128, 16 ms in fours (ResNet-50:
# 159 ms in batches of 32, 103 ms in fours).
_CPU_PIXELS = 4 * 224 * 224

_AUTOCAST = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class Extraction:
    """What extraction found.

    Attributes:
        x: float32 ``(n, d)``, one row per decoded image.
        rows: int64 ``(n,)``: the row of the image list each feature belongs to.
        failures: ``(file, reason)`` of the images that could not be decoded, in row order.
        seconds: duration.
    """

    x: torch.Tensor
    rows: np.ndarray
    failures: list[tuple[str, str]]
    seconds: float


def normalizer(
    mean: Sequence[float], std: Sequence[float], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and std as float32 ``(1, 3, 1, 1)`` on ``device``."""
    shape = (1, 3, 1, 1)
    return (
        torch.tensor(list(mean), dtype=torch.float32, device=device).view(shape),
        torch.tensor(list(std), dtype=torch.float32, device=device).view(shape),
    )


def to_input(pixels: np.ndarray, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Turn uint8 pixels into the network's input on the device of ``mean``.

    The arithmetic is that of torchvision's ``ToTensor`` and ``Normalize``, in the same order, so that the
    result is equal bit for bit; bytes are moved to the device, not floats.

    Args:
        pixels: uint8 ``(b, h, w, 3)``.
        mean: float32 ``(1, 3, 1, 1)``.
        std: float32 ``(1, 3, 1, 1)``.

    Returns:
        float32 ``(b, 3, h, w)``.
    """
    x = torch.from_numpy(pixels).to(mean.device, non_blocking=True).permute(0, 3, 1, 2).contiguous()
    return x.float().div_(255).sub_(mean).div_(std)


def extract(
    backbone: Backbone,
    images: ImageList,
    *,
    resize: int,
    crop: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: str | torch.device,
    batch_size: int = 128,
    n_workers: int = 0,
    precision: str = "fp32",
    load_truncated: bool = False,
    start_method: str | None = None,
) -> Extraction:
    """Compute the features of every image.

    Args:
        backbone: frozen network, already on ``device``.
        images: what to extract, in which order.
        resize: length of the shortest image side after bicubic resizing, in pixels.
        crop: side of the centre crop, in pixels.
        mean: per-channel mean of pixels in [0, 1].
        std: per-channel standard deviation.
        device: where the network is.
        batch_size: images per forward pass.
        n_workers: decoding processes; the features do not depend on it.
        precision: ``fp32`` (exact: TF32 off), ``fp16`` or ``bf16`` (automatic mixed precision).
        load_truncated: see :func:`cog.data.pixels.load_rgb`.
        start_method: see :func:`cog.data.loader.batches`.

    Returns:
        Features of the images that could be decoded, and the list of the others.

    Raises:
        CogError: when the network fails or returns NaN or infinite values (the image is named).
    """
    device = torch.device(device)
    offset, scale = normalizer(mean, std, device)
    features: torch.Tensor | None = None
    rows: list[np.ndarray] = []
    failures: list[tuple[str, str]] = []
    filled = 0
    with (
        exact_float32(),
        torch.inference_mode(),
        _autocast(device, precision),
        Progress(len(images), f"{images.dataset} {images.split}") as progress,
    ):
        for batch in batches(
            images,
            resize=resize,
            crop=crop,
            batch_size=batch_size,
            n_workers=n_workers,
            load_truncated=load_truncated,
            start_method=start_method,
        ):
            failures += [(images.file(row), reason) for row, reason in batch.failures]
            if len(batch.rows):
                y = _forward(backbone, to_input(batch.pixels, offset, scale)).float().cpu()
                _check_features(y, images, batch.rows, precision)
                if features is None:  # allocated once, when D is known: no second copy at the end
                    features = torch.empty((len(images), y.shape[1]), dtype=torch.float32)
                if y.shape[1] != features.shape[1]:
                    raise CogError(
                        f"model {backbone.name} returned {features.shape[1]} dimensions for one batch and {y.shape[1]} "
                        "for another"
                    )
                features[filled : filled + len(y)] = y
                filled += len(y)
                rows.append(batch.rows)
            progress.update(len(batch.rows) + len(batch.failures))
        seconds = progress.seconds
    x = torch.empty((0, 0)) if features is None else features[:filled]
    return Extraction(
        x=x.clone() if filled < len(images) else x,
        rows=np.concatenate(rows) if rows else np.empty(0, dtype=np.int64),
        failures=failures,
        seconds=seconds,
    )


def _forward(backbone: Backbone, x: torch.Tensor) -> torch.Tensor:
    chunk = len(x) if x.device.type != "cpu" else max(1, _CPU_PIXELS // (x.shape[2] * x.shape[3]))
    try:
        return torch.cat([backbone(part) for part in x.split(chunk)])
    except torch.cuda.OutOfMemoryError as error:
        raise CogError(
            f"the GPU is out of memory with batches of {len(x)} images; lower FT_EXTRACT.BATCH_SIZE"
        ) from error
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise CogError(
            f"model {backbone.name} failed on a batch of shape {tuple(x.shape)}: {type(error).__name__}: {first}"
        ) from error


def _check_features(y: torch.Tensor, images: ImageList, rows: np.ndarray, precision: str) -> None:
    bad = (~torch.isfinite(y).all(dim=1)).nonzero().flatten()
    if len(bad):
        hint = "" if precision == "fp32" else f"; try FT_EXTRACT.PRECISION fp32 instead of {precision}"
        raise CogError(
            f"the network returned NaN or infinite features for {images.file(int(rows[int(bad[0])]))}{hint or ''}"
            + ("" if hint else "; check the checkpoint and the input normalisation")
        )


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Compute in full float32 and reproducibly on CUDA: no TF32, no autotuned convolutions."""
    cudnn = torch.backends.cudnn
    saved = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, torch.get_float32_matmul_precision())
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = True, False, False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = saved[:3]
        torch.set_float32_matmul_precision(saved[3])


def _autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[None]:
    dtype = _AUTOCAST[precision]
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
