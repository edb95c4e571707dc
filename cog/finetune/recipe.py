"""The settings and random choices that determine a fine-tuning run, together with the network and the images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cog.errors import CogError

if TYPE_CHECKING:
    from yacs.config import CfgNode

#: Images per step that ``FINETUNE.LR`` is meant for (Goyal et al., 2017: the rate grows in proportion).
LR_BATCH = 256

#: Kinds of random choices. Seeds are derived from the position in this tuple: append only.
PURPOSES = ("head", "order", "image", "pass")

# Offset of the positions, so that they differ from those of the purposes of cog.runtime.random_streams.
_FIRST_PURPOSE = 1000


@dataclass(frozen=True)
class FineTuneRecipe:
    """The settings of a run; see ``FINETUNE`` in configs/default.py.

    A random choice is a function of the seed and of its position (such as epoch and row), and independent of earlier
    choices: all processes draw the same values, and an interrupted run continues without saved states of generators.

    Attributes:
        seed: seed of every random choice.
        n_epochs: passes over the training images.
        batch_size: images per SGD step.
        per_pass: images per forward pass; ``batch_size`` is a multiple of it.
        lr: highest learning rate, for ``batch_size`` images.
        momentum: momentum of SGD.
        weight_decay: weight decay of all parameters.
        warmup_epochs: epochs of linear warm-up.
        clip_norm: largest norm of the gradients, to which larger ones are scaled down; 0: no limit.
        crop_scale: range of the share of the image's area in a crop.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        resize: shortest side of test images, in pixels.
        crop: side of the network's input, in pixels.
        mean: per-channel mean of pixels in [0, 1], and ``std`` their standard deviation.
        load_truncated: whether to fill missing data of truncated files with gray.
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
    crop_scale: tuple[float, ...]
    precision: str
    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    load_truncated: bool = False

    @classmethod
    def from_config(cls, cfg: CfgNode, *, precision: str) -> FineTuneRecipe:
        """Return the recipe of a checked configuration, with ``precision`` in place of its ``FINETUNE.PRECISION``."""
        ft, fx = cfg.FINETUNE, cfg.FT_EXTRACT
        return cls(
            seed=cfg.EVAL.SEED,
            n_epochs=ft.N_EPOCHS,
            batch_size=ft.BATCH_SIZE,
            per_pass=min(ft.BATCH_SIZE, ft.BATCH_PER_DEVICE),
            lr=ft.LR * ft.BATCH_SIZE / LR_BATCH,
            momentum=float(ft.MOMENTUM),
            weight_decay=ft.WEIGHT_DECAY,
            warmup_epochs=ft.WARMUP_EPOCHS,
            clip_norm=ft.CLIP_NORM,
            crop_scale=tuple(map(float, ft.CROP_SCALE)),
            precision=precision,
            resize=fx.IMAGE_RESIZE_SIZE,
            crop=fx.IMAGE_CROP_SIZE,
            mean=tuple(map(float, fx.IMAGE_NORM.MEAN)),
            std=tuple(map(float, fx.IMAGE_NORM.STD)),
            load_truncated=fx.LOAD_TRUNCATED_IMAGES,
        )

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
        """Return the number of SGD steps in an epoch; the remaining images of its random order are left out."""
        if n_images < self.batch_size:
            raise CogError(
                f"there are {n_images} training images, fewer than FINETUNE.BATCH_SIZE {self.batch_size}; lower it"
            )
        return n_images // self.batch_size

    def passes_per_process(self, n_processes: int) -> int:
        """Return the number of forward passes of each process in a step."""
        if self.n_passes % n_processes == 0:
            return self.n_passes // n_processes
        share = self.batch_size // n_processes
        fits = next((size for size in range(min(share, self.per_pass), 0, -1) if share % size == 0), 0)
        can_share = fits and self.batch_size % n_processes == 0
        raise CogError(
            f"FINETUNE.BATCH_SIZE {self.batch_size} is {self.n_passes} passes of {self.per_pass} images, which "
            f"{n_processes} processes cannot share equally; "
            + (f"set FINETUNE.BATCH_PER_DEVICE {fits}" if can_share else "change FINETUNE.BATCH_SIZE")
        )

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of a step, counted from 0 over all epochs.

        It has a linear warm-up, then a cosine decay to 0 (Loshchilov and Hutter, 2017).
        """
        total = self.n_epochs * steps_per_epoch
        warmup = round(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        return self.lr * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1))) / 2

    def generator(self, purpose: str, *position: int) -> np.random.Generator:
        """Return the numpy generator of one of :data:`PURPOSES`, at a position such as epoch and row."""
        return np.random.default_rng(self._sequence(purpose, *position))

    def torch_seed(self, purpose: str, *position: int) -> int:
        """Return the 63-bit seed of a random choice for torch; see :meth:`generator`."""
        return int(self._sequence(purpose, *position).generate_state(1, "uint64")[0]) >> 1

    def _sequence(self, purpose: str, *position: int) -> np.random.SeedSequence:
        key = (_FIRST_PURPOSE + PURPOSES.index(purpose), *position)
        return np.random.SeedSequence(entropy=self.seed, spawn_key=key)
