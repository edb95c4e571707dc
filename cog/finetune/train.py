"""Fine-tuning: a backbone with a new classifier, SGD steps that processes share, a test after each epoch.

A random choice depends on the seed and on its position (such as epoch and row) alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.functional import resized_crop
from yacs.config import CfgNode

from cog.data.images import ImageList
from cog.data.loader import Decoder, decoded, is_worker_failure
from cog.data.pixels import Preprocess, load_rgb, normalizer, to_input
from cog.errors import CogError, FailedImagesError, first_line
from cog.logreg import metrics
from cog.models.backbone import Backbone
from cog.runtime import files, memory, signals
from cog.runtime.log import progress_of
from cog.runtime.safe_load import load_torch

logger = logging.getLogger(__name__)

STATE_FILE = "state.pth"  # state of the training after an epoch
PURPOSES = ("head", "order", "image", "pass")  # of random choices; seeds depend on the place: append only
CROP_RATIO = [3 / 4, 4 / 3]  # smallest and largest width / height of a crop (Szegedy et al., 2015)
_INIT_STD = 0.01  # of the classifier's initial weights; its bias starts at 0
_NO_LABEL = -100  # of an image that could not be decoded, which PyTorch's losses leave out
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Recipe:
    """The settings of a run; training images have the size, mean and std of ``preprocess``."""

    def __init__(self, cfg: CfgNode, preprocess: Preprocess, precision: str, n_processes: int):
        self.cfg, self.preprocess, self.precision, self.n_processes = cfg, preprocess, precision, n_processes
        self.ft = ft = cfg.FINETUNE
        self.lr = ft.LR * ft.BATCH_SIZE / 256  # the highest rate (Goyal et al., 2017)
        # Images per forward pass of a process, also of batch norm; passes of a process in a step.
        self.per_pass = max(1, min(ft.BATCH_PER_DEVICE, ft.BATCH_SIZE // n_processes))
        self.n_passes = ft.BATCH_SIZE // (n_processes * self.per_pass)
        if ft.WARMUP_EPOCHS >= ft.N_EPOCHS:
            raise CogError(f"FINETUNE.WARMUP_EPOCHS {ft.WARMUP_EPOCHS:g} is not below N_EPOCHS {ft.N_EPOCHS}")
        if self.n_passes * n_processes * self.per_pass != ft.BATCH_SIZE:
            raise CogError(
                f"FINETUNE.BATCH_SIZE {ft.BATCH_SIZE} is no multiple of {n_processes} process(es) x "
                f"FINETUNE.BATCH_PER_DEVICE {self.per_pass}; change one of them"
            )

    def identity(self) -> dict[str, Any]:
        """Return what determines the training, for records."""
        settings = {key.lower(): value for key, value in self.ft.items()}
        settings |= {"precision": self.precision, "n_processes": self.n_processes, "seed": self.cfg.EVAL.SEED}
        fill = {"load_truncated": self.cfg.FT_EXTRACT.LOAD_TRUNCATED_IMAGES}
        return files.plain(settings | {"preprocessing": dataclasses.asdict(self.preprocess) | fill})

    def steps_per_epoch(self, n_images: int) -> int:
        """Return the number of SGD steps in an epoch; images that remain are left out."""
        if n_images < (size := self.ft.BATCH_SIZE):
            raise CogError(f"FINETUNE.BATCH_SIZE {size} is above the {n_images} training images; lower it")
        return n_images // size

    def lr_at(self, step: int, n_steps: int) -> float:
        """Return the rate of a step, counted from 0: a linear warm-up, then a cosine to 0."""
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
        """Return the rows of training images in the order of their use, int64 ``(n_images,)``."""
        return np.random.default_rng(self.seed("order", epoch)).permutation(n_images)


@dataclass(frozen=True, eq=False)
class TrainingDecoder(Decoder):
    """Decoder of the training images of an epoch, which are listed in the order of their use."""

    recipe: Recipe = field(kw_only=True)
    epoch: int = field(kw_only=True)
    order: np.ndarray = field(kw_only=True)  # row of each image in the list of the data set

    def decode(self, data: bytes, row: int) -> np.ndarray:
        """Return a random part of an image, as RandomResizedCrop of torchvision, or its mirror image."""
        image: Any = load_rgb(data, load_truncated=self.load_truncated)
        torch.default_generator.manual_seed(self.recipe.seed("image", self.epoch, int(self.order[row])))
        box = RandomResizedCrop.get_params(image, list(self.recipe.ft.CROP_SCALE), CROP_RATIO)
        part = resized_crop(image, *box, [self.preprocess.size] * 2, InterpolationMode.BICUBIC)
        return np.asarray(part)[:, ::-1] if torch.rand(1) < 0.5 else np.asarray(part)


class FineTuned(nn.Module):
    """A backbone with a new linear classifier, from images ``(B, 3, H, W)`` to logits ``(B, C)``."""

    def __init__(self, backbone: Backbone, recipe: Recipe, n_classes: int, device: torch.device) -> None:
        super().__init__()
        side = recipe.preprocess.size
        y = backbone.requires_grad_(True)(torch.zeros((1, 3, side, side), device=device))
        if not y.requires_grad:
            raise CogError(f"no parameter of {backbone.name} affects its features, nothing can be fine-tuned")
        self.backbone, self.head = backbone, nn.Linear(y.shape[1], n_classes)
        generator = torch.Generator().manual_seed(recipe.seed("head"))
        nn.init.normal_(self.head.weight, 0, _INIT_STD, generator=generator)
        nn.init.zeros_(self.head.bias)
        self.to(device).eval()

    def train(self, mode: bool = True) -> FineTuned:
        """Set training mode, also in the network of the backbone, which itself stays in eval mode."""
        super().train(mode)
        self.backbone.network.train(mode)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of images."""
        try:
            return self.head(self.backbone(x))
        except Exception as error:
            if is_worker_failure(error) or memory.is_exhausted(error):
                raise
            what = f"{self.backbone.name} fails for a batch of shape {tuple(x.shape)}"
            raise CogError(f"{what}: {first_line(error)}") from error


@dataclass
class Epochs:
    """The epochs that are done."""

    n: int = 0
    logs: metrics.Logs = field(default_factory=metrics.new_logs)
    n_failed: list[int] = field(default_factory=lambda: [0, 0])  # of training and test, most of an epoch
    seconds: float = 0.0  # of the work, over all attempts
    predictions: torch.Tensor | None = None  # class of each test image, int64 (n,); -1: it was not decoded


class Training:
    """The training of a network in process ``rank`` of those of the recipe; ``allowed`` images may fail."""

    def __init__(self, network: FineTuned, recipe: Recipe, rank: int, n_workers: int, allowed: int):
        self.network, self.recipe, self.device = network, recipe, network.head.weight.device
        self._rank, self._n_workers, self._allowed = rank, n_workers, allowed
        self._fill = recipe.cfg.FT_EXTRACT.LOAD_TRUNCATED_IMAGES
        self._normalizer = normalizer(recipe.preprocess.mean, recipe.preprocess.std, self.device)
        is_shared = recipe.n_processes > 1
        self._shared = DistributedDataParallel(network, find_unused_parameters=True) if is_shared else None
        ft = {"momentum": recipe.ft.MOMENTUM, "weight_decay": recipe.ft.WEIGHT_DECAY}
        self._optimizer = torch.optim.SGD(network.parameters(), recipe.lr, **ft)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "fp16")
        self._parts: Any = {"network": network, "optimizer": self._optimizer, "scaler": self._scaler}

    def run(self, train: ImageList, test: ImageList, state: Path) -> Epochs:
        """Train all epochs, going on from the saved state, if there is one."""
        recipe, n_epochs = self.recipe, self.recipe.ft.N_EPOCHS
        done = self._load(state) if state.exists() else Epochs()
        start = time.monotonic() - done.seconds
        n_steps = recipe.steps_per_epoch(len(train))
        n_images = n_steps * recipe.ft.BATCH_SIZE
        progress = progress_of((n_epochs - done.n) * n_images, "fine-tuning")
        with torch.random.fork_rng(devices=[]), progress:
            while done.n < n_epochs:
                sums = self._train_epoch(train, done.n, progress)
                scores, done.predictions = self.test(test)
                self._require_finite(scores, f"in the test after epoch {done.n + 1}")
                n_failed = [n_images - int(sums[3]), len(test) - int(scores[3])]
                self._require_few(sum(n_failed), "see above")
                done.n_failed = list(map(max, done.n_failed, n_failed))
                of_train, of_test = (metrics.to_scores(v[:3], max(int(v[3]), 1)) for v in (sums, scores))
                done.n, done.seconds = done.n + 1, time.monotonic() - start
                lr = recipe.lr_at(done.n * n_steps - 1, n_steps)
                metrics.append_epoch(done.logs, of_train, of_test, lr)
                if self._rank == 0:
                    self._save(state, done)
                logger.info("%s", metrics.describe_last_epoch(done.logs, n_epochs))
        return done

    def _train_epoch(self, images: ImageList, epoch: int, progress: Any) -> list[float]:
        """Return the sums over all steps and processes: loss, top-1 hits, top-5 hits, decoded images."""
        recipe, size = self.recipe, self.recipe.ft.BATCH_SIZE
        order, n_steps = recipe.order(epoch, len(images)), recipe.steps_per_epoch(len(images))
        extra: dict[str, Any] = {"recipe": recipe, "epoch": epoch, "order": order}
        decoder = TrainingDecoder(images.rows(order), recipe.preprocess, self._fill, **extra)
        own = range(self._rank * recipe.n_passes, (self._rank + 1) * recipe.n_passes)
        starts = [step * size + number * recipe.per_pass for step in range(n_steps) for number in own]
        passes = self._labelled(decoder, [(start, start + recipe.per_pass) for start in starts])
        sums = torch.zeros(4, dtype=torch.float64)
        self.network.train()
        for step in range(n_steps):
            for group in self._optimizer.param_groups:
                group["lr"] = recipe.lr_at(epoch * n_steps + step, n_steps)
            self._optimizer.zero_grad(set_to_none=True)
            totals = torch.zeros(5, dtype=torch.float64, device=self.device)
            for number, batch in zip(own, passes, strict=False):
                # Dropout and similar layers draw from PyTorch's own generators, and decoding does.
                torch.manual_seed(recipe.seed("pass", epoch, step, number))
                totals[:4] += self._one_pass(*batch, is_last=number + 1 == own.stop)
            self._update()
            totals[4] = float(signals.requested() is not None)
            totals = self._sum(totals)
            self._require_finite(totals.tolist(), f"in epoch {epoch + 1}, step {step + 1}")
            if totals[4] and step + 1 < n_steps:  # else the test is next, and the state is saved
                raise signals.Interrupted(
                    f"ended by {signals.requested() or 'a signal to another process'}: {epoch} of "
                    f"{recipe.ft.N_EPOCHS} epochs are saved; the same command continues from here"
                )
            sums += totals[:4]
            progress.update(size)
        return sums.tolist()

    def test(self, images: ImageList) -> tuple[list[float], torch.Tensor]:
        """Return sums over the test images as :meth:`_train_epoch`, and :attr:`Epochs.predictions`."""
        recipe, size = self.recipe, self.recipe.n_processes
        if size > 1:
            for buffer in self.network.buffers():  # the running statistics of each process are its own
                dist.broadcast(buffer, 0)
        first, stop = (len(images) * number // size for number in (self._rank, self._rank + 1))
        decoder = Decoder(images.rows(slice(first, stop)), recipe.preprocess, self._fill)
        starts = range(0, stop - first, recipe.per_pass)
        spans = [(start, min(start + recipe.per_pass, stop - first)) for start in starts]
        sums, predictions = torch.zeros(4, dtype=torch.float64), torch.zeros(len(images), dtype=torch.int64)
        self.network.eval()
        for (start, _), (pixels, labels) in zip(spans, self._labelled(decoder, spans), strict=True):
            with torch.inference_mode():
                logits = self.network(to_input(pixels, *self._normalizer)).float().cpu()
            good = labels != _NO_LABEL
            metrics.add_batch(sums[:3], logits[good], labels[good])
            sums[3] += good.sum()
            predictions[first + start :][: len(labels)] = torch.where(good, logits.argmax(1), -1)
        return self._sum(sums).tolist(), self._sum(predictions)

    def _labelled(
        self, decoder: Decoder, spans: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        n_failed, images, pin_memory = 0, decoder.images, self.device.type == "cuda"
        made = decoded(decoder, spans, n_workers=self._n_workers, pin_memory=pin_memory)
        for (first, stop), piece in zip(spans, made, strict=True):
            labels = torch.tensor(images.labels[first:stop])
            for row, reason in piece.failures:
                labels[row - first], n_failed = _NO_LABEL, n_failed + 1
                logger.warning("%s cannot be decoded: %s", images.file(row), reason)
                self._require_few(n_failed, f"{images.file(row)}: {reason}")
            yield piece.pixels, labels

    def _one_pass(self, pixels: torch.Tensor, labels: torch.Tensor, *, is_last: bool) -> torch.Tensor:
        """Add the gradients of a pass to those of the step, and return loss, hits and number of images."""
        dtype, y = _AUTOCAST.get(self.recipe.precision), labels.to(self.device, non_blocking=True)
        with self._shared.no_sync() if self._shared and not is_last else contextlib.nullcontext():
            with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
                logits = (self._shared or self.network)(to_input(pixels, *self._normalizer))
            logits, good = logits.float(), y != _NO_LABEL
            loss = nn.functional.cross_entropy(logits, y, ignore_index=_NO_LABEL, reduction="sum")
            self._scaler.scale(loss / good.sum().clamp(min=1) / self.recipe.n_passes).backward()
        with torch.no_grad():
            rank = metrics.true_class_rank(logits, y.clamp(min=0))[good]
            return torch.stack([loss.double(), (rank < 1).sum(), (rank < 5).sum(), good.sum()])

    def _update(self) -> None:
        if self.recipe.ft.CLIP_NORM:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.ft.CLIP_NORM)
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        if self.recipe.n_processes > 1:
            dist.all_reduce(values := values.to(self.device))
        return values.cpu()

    def _save(self, path: Path, done: Epochs) -> None:
        with files.atomic_write(path) as handle:
            states = {name: each.state_dict() for name, each in self._parts.items()}
            torch.save(states | {"done": vars(done)}, handle)

    def _load(self, path: Path) -> Epochs:
        state: dict[str, Any] = load_torch(path)
        for name, each in self._parts.items():
            each.load_state_dict(state[name])
        logger.info("going on after epoch %d (%s)", state["done"]["n"], path)
        return Epochs(**state["done"])

    def _require_few(self, n: int, which: str) -> None:
        if n > self._allowed:
            todo = f"fix them, or accept up to N with --allow_failures N (now {self._allowed})"
            raise FailedImagesError(f"{n} images cannot be decoded ({which}); {todo}")

    def _require_finite(self, sums: Sequence[float], when: str) -> None:
        if not np.isfinite(sums).all():
            todo = "lower FINETUNE.LR, or use FINETUNE.PRECISION fp32"
            raise CogError(f"the loss is not finite {when}: training diverged; {todo}")
