"""All that decides a fine-tuning run beside the network and the images."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cog.errors import CogError

if TYPE_CHECKING:
    from yacs.config import CfgNode

#: Images per step that ``FINETUNE.LR`` is meant for (Goyal et al., 2017: the rate grows in proportion).
LR_BATCH = 256


@dataclass(frozen=True)
class FineTuneRecipe:
    """All that decides a run beside the network and the images; see ``FINETUNE`` in configs/default.py.

    Attributes:
        seed: of every random choice.
        n_epochs: passes over the training images.
        batch_size: images per SGD step.
        per_pass: images per forward pass; ``batch_size`` is a multiple.
        lr: highest learning rate, for ``batch_size`` images.
        momentum: of SGD.
        weight_decay: of all parameters.
        warmup_epochs: epochs of linear warm-up.
        clip_norm: norm that gradients are scaled down to; 0: never.
        crop_scale: share of the image's area covered by a crop, from and to.
        crop_ratio: width / height of a crop, from and to.
        flip: mirror half of the crops.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        resize: shortest side of test images, in pixels.
        crop: side of the network's input, in pixels.
        mean: per-channel mean of pixels in [0, 1].
        std: per-channel standard deviation.
        load_truncated: fill missing data of truncated files with grey.
    """

    seed: int
    n_epochs: int
    batch_size: int
    per_pass: int
    lr: float
    momentum: float
    weight_decay: float
    warmup_epochs: float
    clip_norm: float
    crop_scale: tuple[float, float]
    crop_ratio: tuple[float, float]
    flip: bool
    precision: str
    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    load_truncated: bool = False

    def __post_init__(self) -> None:
        if self.warmup_epochs >= self.n_epochs:
            raise CogError(
                f"FINETUNE.WARMUP_EPOCHS {self.warmup_epochs:g} leaves nothing of FINETUNE.N_EPOCHS {self.n_epochs}; "
                "lower it"
            )
        if self.batch_size % self.per_pass:
            raise CogError(
                f"FINETUNE.BATCH_SIZE {self.batch_size} is no multiple of FINETUNE.BATCH_PER_DEVICE {self.per_pass}; "
                "change one of them"
            )

    @property
    def n_passes(self) -> int:
        """Forward passes per step, all processes together."""
        return self.batch_size // self.per_pass

    def steps_per_epoch(self, n_images: int) -> int:
        """Return the number of SGD steps in an epoch; what is left of the images waits for another epoch's order.

        Raises:
            CogError: when there are fewer images than one step takes.
        """
        if n_images < self.batch_size:
            raise CogError(
                f"there are {n_images} training images, fewer than FINETUNE.BATCH_SIZE {self.batch_size}; lower it"
            )
        return n_images // self.batch_size

    def passes_per_process(self, n_processes: int) -> int:
        """Return how many forward passes of a step each process does.

        Raises:
            CogError: when the processes cannot share them equally.
        """
        if self.n_passes % n_processes:
            share = self.batch_size // n_processes
            fits = next((size for size in range(min(share, self.per_pass), 0, -1) if share % size == 0), 0)
            advice = (
                f"set FINETUNE.BATCH_PER_DEVICE {fits}"
                if fits and self.batch_size % n_processes == 0
                else "change FINETUNE.BATCH_SIZE"
            )
            raise CogError(
                f"FINETUNE.BATCH_SIZE {self.batch_size} is {self.n_passes} passes of {self.per_pass} images, which "
                f"{n_processes} processes cannot share equally; {advice}"
            )
        return self.n_passes // n_processes

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of a step: linear warm-up, then cosine decay to 0 (Loshchilov and Hutter, 2017).

        Args:
            step: counted from 0 over all epochs.
            steps_per_epoch: SGD steps in an epoch.
        """
        total = self.n_epochs * steps_per_epoch
        warmup = round(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        return self.lr * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1))) / 2

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in dataclasses.asdict(self).items()
        }


def from_config(cfg: CfgNode, *, precision: str) -> FineTuneRecipe:
    """Return the recipe that a configuration describes.

    Args:
        cfg: frozen and checked.
        precision: what ``FINETUNE.PRECISION`` means on the device.

    Raises:
        CogError: values that do not fit together.
    """
    ft, fx = cfg.FINETUNE, cfg.FT_EXTRACT
    return FineTuneRecipe(
        seed=cfg.EVAL.SEED,
        n_epochs=ft.N_EPOCHS,
        batch_size=ft.BATCH_SIZE,
        per_pass=min(ft.BATCH_SIZE, ft.BATCH_PER_DEVICE),
        lr=ft.LR * ft.BATCH_SIZE / LR_BATCH,
        momentum=float(ft.MOMENTUM),
        weight_decay=ft.WEIGHT_DECAY,
        warmup_epochs=ft.WARMUP_EPOCHS,
        clip_norm=ft.CLIP_NORM,
        crop_scale=(float(ft.CROP_SCALE[0]), float(ft.CROP_SCALE[1])),
        crop_ratio=(float(ft.CROP_RATIO[0]), float(ft.CROP_RATIO[1])),
        flip=ft.FLIP,
        precision=precision,
        resize=fx.IMAGE_RESIZE_SIZE,
        crop=fx.IMAGE_CROP_SIZE,
        mean=tuple(map(float, fx.IMAGE_NORM.MEAN)),
        std=tuple(map(float, fx.IMAGE_NORM.STD)),
        load_truncated=fx.LOAD_TRUNCATED_IMAGES,
    )
