"""The settings and random choices that determine a fine-tuning run, together with the network and the images.

A random choice is a function of the seed and of its position (such as epoch and row), and independent of earlier
choices: an interrupted run continues without saved states of generators.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.functional import resized_crop

from cog.data.loader import Decoder
from cog.data.pixels import Preprocess, load_rgb
from cog.errors import CogError
from cog.runtime import files

if TYPE_CHECKING:
    from yacs.config import CfgNode

#: Images per step that ``FINETUNE.LR`` is meant for (Goyal et al., 2017: the rate grows in proportion).
LR_BATCH = 256

#: Kinds of random choices. Seeds are derived from the position in this tuple: append only.
PURPOSES = ("head", "order", "image", "pass")

#: Smallest and largest width / height of a crop (Szegedy et al., 2015).
CROP_RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True, eq=False)
class Recipe:
    """The settings of a run.

    Attributes:
        cfg: configuration; ``FINETUNE``, ``EVAL.SEED`` and ``LOAD_TRUNCATED_IMAGES`` are used.
        preprocess: from a test image to the input of the network; training images have its size, mean and std.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        n_processes: number of processes that share a step.
    """

    cfg: CfgNode
    preprocess: Preprocess
    precision: str = "fp32"
    n_processes: int = 1

    def __post_init__(self) -> None:
        ft = self.ft
        if ft.WARMUP_EPOCHS >= ft.N_EPOCHS:
            found = f"FINETUNE.WARMUP_EPOCHS {ft.WARMUP_EPOCHS:g} leaves nothing of"
            raise CogError(f"{found} FINETUNE.N_EPOCHS {ft.N_EPOCHS}; lower it")
        if ft.BATCH_SIZE % (self.n_processes * self.per_pass):
            raise CogError(
                f"FINETUNE.BATCH_SIZE {ft.BATCH_SIZE} is no multiple of {self.n_processes} process(es) x "
                f"FINETUNE.BATCH_PER_DEVICE {self.per_pass}; change one of them"
            )

    @property
    def ft(self) -> CfgNode:
        """The settings ``FINETUNE`` of configs/default.py."""
        return self.cfg.FINETUNE

    @property
    def per_pass(self) -> int:
        """Images per forward pass of a process, and in the statistics of batch norm."""
        return max(1, min(self.ft.BATCH_PER_DEVICE, self.ft.BATCH_SIZE // self.n_processes))

    @property
    def n_passes(self) -> int:
        """Forward passes of each process in a step."""
        return self.ft.BATCH_SIZE // (self.n_processes * self.per_pass)

    @property
    def lr(self) -> float:
        """The highest learning rate."""
        return self.ft.LR * self.ft.BATCH_SIZE / LR_BATCH

    def identity(self) -> dict[str, Any]:
        """Return what determines the training, for records."""
        settings = {key.lower(): value for key, value in self.ft.items()}
        settings |= {"precision": self.precision, "n_processes": self.n_processes, "seed": self.cfg.EVAL.SEED}
        fill = {"load_truncated": self.cfg.FT_EXTRACT.LOAD_TRUNCATED_IMAGES}
        settings["preprocessing"] = dataclasses.asdict(self.preprocess) | fill
        return files.plain(settings)

    def steps_per_epoch(self, n_images: int) -> int:
        """Return the number of SGD steps in an epoch; the remaining images of its random order are left out."""
        if n_images < (size := self.ft.BATCH_SIZE):
            found = f"there are {n_images} training images, fewer than"
            raise CogError(f"{found} FINETUNE.BATCH_SIZE {size}; lower it")
        return n_images // size

    def lr_at(self, step: int, n_steps: int) -> float:
        """Return the learning rate of a step, counted from 0 over all epochs of ``n_steps`` steps.

        It has a linear warm-up, then a cosine decay to 0 (Loshchilov and Hutter, 2017).
        """
        total, warmup = self.ft.N_EPOCHS * n_steps, round(self.ft.WARMUP_EPOCHS * n_steps)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        return self.lr * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1))) / 2

    def seed(self, purpose: str, *position: int) -> int:
        """Return the 63-bit seed of one of :data:`PURPOSES`, at a position such as epoch and row."""
        key = (1000 + PURPOSES.index(purpose), *position)  # others than those of cog.runtime.seeds
        words = np.random.SeedSequence(self.cfg.EVAL.SEED, spawn_key=key).generate_state(1, "uint64")
        return int(words[0]) >> 1

    def order(self, epoch: int, n_images: int) -> np.ndarray:
        """Return the rows of the training images in the order of their use, int64 ``(n_images,)``."""
        return np.random.default_rng(self.seed("order", epoch)).permutation(n_images)


@dataclass(frozen=True, eq=False)
class TrainingDecoder(Decoder):
    """Decoder of the training images of an epoch, which are listed in the order of their use.

    Attributes:
        recipe: settings of the crops.
        epoch: number of the epoch.
        order: row of each image in the list of the data set, int64.
    """

    recipe: Recipe = field(kw_only=True)
    epoch: int = field(kw_only=True)
    order: np.ndarray = field(kw_only=True)

    def decode(self, data: bytes, row: int) -> np.ndarray:
        """Return a random part of an image, mirrored half of the time, uint8 ``(size, size, 3)``.

        The part is drawn as by torchvision's ``RandomResizedCrop``, with a seed for each image and epoch.
        """
        image, size = load_rgb(data, load_truncated=self.load_truncated), self.preprocess.size
        torch.manual_seed(self.recipe.seed("image", self.epoch, int(self.order[row])))
        box = RandomResizedCrop.get_params(image, list(self.recipe.ft.CROP_SCALE), list(CROP_RATIO))  # type: ignore[arg-type]
        part = np.asarray(resized_crop(image, *box, [size, size], InterpolationMode.BICUBIC))  # type: ignore[arg-type]
        return part[:, ::-1] if torch.rand(1) < 0.5 else part
