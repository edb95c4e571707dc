"""Fine-tuning: a backbone with a new classifier, SGD steps that processes share, a test after each epoch."""

from __future__ import annotations

import contextlib
import logging
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

from cog.data.images import ImageList
from cog.data.loader import Decoder, decoded
from cog.data.pixels import normalizer, to_input
from cog.errors import CogError, FailedImagesError, first_line, some
from cog.finetune.recipe import Recipe, TrainingDecoder
from cog.logreg import metrics
from cog.models.backbone import Backbone
from cog.runtime import files, memory, signals
from cog.runtime.log import Progress
from cog.runtime.safe_load import load_torch

logger = logging.getLogger(__name__)

#: File with the state of the training after an epoch.
STATE_FILE = "state.pth"

#: Standard deviation of the classifier's initial weights; its bias starts at 0.
_INIT_STD = 0.01

# Label of an image that could not be decoded, which PyTorch's losses leave out.
_NO_LABEL = -100

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class FineTuned(nn.Module):
    """A backbone with a linear classifier, from images ``(B, 3, H, W)`` to logits ``(B, C)``."""

    def __init__(self, backbone: Backbone, head: nn.Linear, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.backbone, self.head, self.memory_format = backbone, head, memory_format

    def train(self, mode: bool = True) -> FineTuned:
        """Set training mode, also in the network of the backbone (a ``Backbone`` itself stays in eval mode)."""
        super().train(mode)
        self.backbone.network.train(mode)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of images."""
        return self.head(self.backbone(x))


def build(backbone: Backbone, recipe: Recipe, *, n_classes: int, device: torch.device) -> FineTuned:
    """Return a backbone, on ``device`` already, with a new classifier, to be trained together.

    One backward pass shows the width of the features, the parameters that affect them (others stay as they are,
    such as those of a classifier that features bypass), and whether the network works with the channels innermost,
    which is faster for convolutions.
    """
    side = recipe.preprocess.size
    x = torch.zeros((2, 3, side, side), device=device)
    buffers = {name: buffer.clone() for name, buffer in backbone.named_buffers()}
    backbone.requires_grad_(True)
    backbone.network.train()
    failure = Exception()
    for memory_format in (torch.channels_last, torch.contiguous_format):
        backbone.to(memory_format=memory_format)
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                y = backbone(x.contiguous(memory_format=memory_format))
                if y.requires_grad:
                    y.float().sum().backward()
            break
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            failure = error  # a network that uses x.view(...) cannot work on the first layout
    else:
        reason = f"{type(failure).__name__}: {first_line(failure)}"
        raise CogError(
            f"model {backbone.name} cannot be trained on images of {side} x {side}: {reason}"
        ) from failure
    parameters = dict(backbone.named_parameters())
    unused = [name for name, parameter in parameters.items() if parameter.grad is None]
    if len(unused) == len(parameters):
        raise CogError(f"model {backbone.name}: no parameter affects its features, nothing can be fine-tuned")
    if unused:
        logger.info("%s: not part of the features and not trained: %s", backbone.name, some(unused))
    for name in unused:
        parameters[name].requires_grad_(False)
    backbone.zero_grad(set_to_none=True)
    head = nn.Linear(y.shape[1], n_classes)
    with torch.no_grad():
        for name, buffer in backbone.named_buffers():
            buffer.copy_(buffers[name])
        head.weight.normal_(0, _INIT_STD, generator=torch.Generator().manual_seed(recipe.seed("head")))
        head.bias.zero_()
    return FineTuned(backbone, head, memory_format).to(device).eval()


@dataclass
class Epochs:
    """The epochs that are done.

    Attributes:
        n: their number.
        logs: one value per epoch, see :func:`cog.logreg.metrics.new_logs`.
        n_failed: training and test images that could not be decoded, the most of an epoch.
        seconds: duration of the work, over all attempts.
        predictions: class of each test image after the last epoch, int64 ``(n,)``; -1: it could not be decoded.
        images_per_second: speed of the last training, without tests.
    """

    n: int = 0
    logs: metrics.Logs = field(default_factory=metrics.new_logs)
    n_failed: list[int] = field(default_factory=lambda: [0, 0])
    seconds: float = 0.0
    predictions: torch.Tensor | None = None
    images_per_second: float = 0.0


class Training:
    """The training of a network in this process, which is number ``rank`` of those of the recipe.

    On a CPU, the result is the same bit for bit given the recipe (and the number of threads of PyTorch), with or
    without an interruption, for any number of workers.

    Args:
        allowed: largest number of images that cannot be decoded.
    """

    def __init__(
        self,
        network: FineTuned,
        recipe: Recipe,
        device: torch.device,
        *,
        rank: int,
        n_workers: int,
        allowed: int,
    ) -> None:
        self.network, self.recipe, self.device = network, recipe, device
        self._rank, self._n_workers, self._allowed = rank, n_workers, allowed
        self._fill = recipe.cfg.FT_EXTRACT.LOAD_TRUNCATED_IMAGES
        self._normalizer = normalizer(recipe.preprocess.mean, recipe.preprocess.std, device)
        self._shared = DistributedDataParallel(network) if recipe.n_processes > 1 else None
        trained, ft = [p for p in network.parameters() if p.requires_grad], recipe.ft
        self._optimizer = torch.optim.SGD(trained, ft.LR, momentum=ft.MOMENTUM, weight_decay=ft.WEIGHT_DECAY)
        self._scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")

    def run(self, train: ImageList, test: ImageList, state: Path) -> Epochs:
        """Train all epochs, going on from the saved state, if there is one."""
        recipe, ft = self.recipe, self.recipe.ft
        done = self._load(state) if state.exists() else Epochs()
        start = time.monotonic() - done.seconds
        n_steps = recipe.steps_per_epoch(len(train))
        n_images = n_steps * ft.BATCH_SIZE
        progress = Progress((ft.N_EPOCHS - done.n) * n_images, "fine-tuning")
        with torch.random.fork_rng(devices=[]), progress:
            while done.n < ft.N_EPOCHS:
                begun = time.monotonic()
                sums = self._train_epoch(train, done.n, progress)
                done.images_per_second = n_images / max(time.monotonic() - begun, 1e-9)
                scores, done.predictions = self.test(test)
                self._require_finite(scores, f"in the test after epoch {done.n + 1}")
                n_failed = [n_images - int(sums[3]), len(test) - int(scores[3])]
                self._require_few(sum(n_failed), "see above")
                done.n_failed = list(map(max, done.n_failed, n_failed))
                of_train, of_test = (metrics.to_scores(v[:3], max(int(v[3]), 1)) for v in (sums, scores))
                lr = recipe.lr_at((done.n + 1) * n_steps - 1, n_steps)
                metrics.append_epoch(done.logs, of_train, of_test, lr)
                done.n, done.seconds = done.n + 1, time.monotonic() - start
                if self._rank == 0:
                    self._save(state, done)
                logger.info("%s", metrics.describe_last_epoch(done.logs, ft.N_EPOCHS))
        return done

    def _train_epoch(self, images: ImageList, epoch: int, progress: Progress) -> list[float]:
        """Return the sums over all steps and processes: loss, top-1 hits, top-5 hits, decoded images."""
        recipe, ft = self.recipe, self.recipe.ft
        order, n_steps = recipe.order(epoch, len(images)), recipe.steps_per_epoch(len(images))
        extra: dict[str, Any] = {"recipe": recipe, "epoch": epoch, "order": order}
        decoder = TrainingDecoder(images.rows(order), recipe.preprocess, self._fill, **extra)
        first = self._rank * recipe.n_passes * recipe.per_pass
        starts = [
            step * ft.BATCH_SIZE + first + number * recipe.per_pass
            for step in range(n_steps)
            for number in range(recipe.n_passes)
        ]
        passes = self._labelled(decoder, [(start, start + recipe.per_pass) for start in starts])
        sums = torch.zeros(4, dtype=torch.float64)
        self.network.train()
        for step in range(n_steps):
            for group in self._optimizer.param_groups:
                group["lr"] = recipe.lr_at(epoch * n_steps + step, n_steps)
            self._optimizer.zero_grad(set_to_none=True)
            totals = torch.zeros(5, dtype=torch.float64, device=self.device)
            for number in range(recipe.n_passes):
                # Dropout and similar layers draw from PyTorch's own generators.
                seed = recipe.seed("pass", epoch, step, self._rank * recipe.n_passes + number)
                is_last = number + 1 == recipe.n_passes
                with self._memory_explained():
                    totals[:4] += self._one_pass(*next(passes), seed, is_last=is_last)
            self._update()
            totals[4] = float(signals.requested() is not None)
            totals = self._sum(totals)
            self._require_finite(totals.tolist(), f"in epoch {epoch + 1}, step {step + 1}")
            if totals[4] and step + 1 < n_steps:  # else the test is next, and the state is saved
                raise signals.Interrupted(
                    f"ended by {signals.requested() or 'a signal to another process'}: {epoch} of {ft.N_EPOCHS} "
                    "epochs are saved; the same command continues from here"
                )
            sums += totals[:4]
            progress.update(ft.BATCH_SIZE)
        return sums.tolist()

    def test(self, images: ImageList) -> tuple[list[float], torch.Tensor]:
        """Test the network in float32 with the benchmark's preprocessing; processes share the images.

        Returns:
            Sums over the images that could be decoded: loss, top-1 hits, top-5 hits, number; and the predicted
            class of each image, int64 ``(n,)``; -1: it could not be decoded.
        """
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
            with torch.inference_mode(), self._memory_explained():
                logits = self.network(self._input(pixels)).float().cpu()
            good = labels != _NO_LABEL
            metrics.add_batch(sums[:3], logits[good], labels[good])
            sums[3] += good.sum()
            predictions[first + start :][: len(labels)] = torch.where(good, logits.argmax(1), -1)
        return self._sum(sums).tolist(), self._sum(predictions)

    def _labelled(
        self, decoder: Decoder, spans: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pixels and labels of spans of rows."""
        n_failed, pieces = 0, [(0, first, stop) for first, stop in spans]
        pin_memory = self.device.type == "cuda"
        made = decoded([decoder], pieces, n_workers=self._n_workers, pin_memory=pin_memory)
        for (first, stop), piece in zip(spans, made, strict=True):
            labels = torch.tensor(decoder.images.labels[first:stop])
            for row, reason in piece.failures:
                labels[row - first], n_failed = _NO_LABEL, n_failed + 1
                logger.warning("%s cannot be decoded: %s", decoder.images.file(row), reason)
                self._require_few(n_failed, f"{decoder.images.file(row)}: {reason}")
            yield piece.pixels, labels

    def _input(self, pixels: torch.Tensor) -> torch.Tensor:
        return to_input(pixels, *self._normalizer, memory_format=self.network.memory_format)

    def _one_pass(
        self, pixels: torch.Tensor, labels: torch.Tensor, seed: int, *, is_last: bool
    ) -> torch.Tensor:
        """Add the gradients of a pass to those of the step, and return loss, hits and number of images."""
        dtype, y = _AUTOCAST.get(self.recipe.precision), labels.to(self.device, non_blocking=True)
        torch.manual_seed(seed)
        alone = self._shared.no_sync() if self._shared and not is_last else contextlib.nullcontext()
        with alone:
            with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
                logits = (self._shared or self.network)(self._input(pixels))
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
        """Return the sum of values over all processes."""
        if self.recipe.n_processes > 1:
            dist.all_reduce(values := values.to(self.device))
        return values.cpu()

    def _save(self, path: Path, done: Epochs) -> None:
        state = {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}
        with files.atomic_write(path) as handle:
            torch.save(state | {"scaler": self._scaler.state_dict(), "done": vars(done)}, handle)

    def _load(self, path: Path) -> Epochs:
        try:
            state: dict[str, Any] = load_torch(path)
            self.network.load_state_dict(state["network"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._scaler.load_state_dict(state["scaler"])
            done = Epochs(**state["done"])
        except (CogError, KeyError, TypeError, ValueError, RuntimeError) as error:
            fault = f"is no readable state of this run ({first_line(error)[:200]})"
            raise CogError(f"{path} {fault}; remove the file to start again") from error
        logger.info("going on after epoch %d of %d (%s)", done.n, self.recipe.ft.N_EPOCHS, path)
        return done

    def _require_few(self, n: int, which: str) -> None:
        if n > self._allowed:
            raise FailedImagesError(
                f"{n} images cannot be decoded ({which}); fix them, or accept the loss of up to N images with "
                f"--allow_failures N (now {self._allowed})"
            )

    def _require_finite(self, sums: Sequence[float], when: str) -> None:
        if not np.isfinite(sums).all():
            todo = "" if self.recipe.precision == "fp32" else " (or use FINETUNE.PRECISION fp32)"
            raise CogError(f"the loss is not finite {when}: training diverged; lower FINETUNE.LR{todo}")

    def _memory_explained(self) -> contextlib.AbstractContextManager[None]:
        per_pass, side = self.recipe.per_pass, self.recipe.preprocess.size
        task = f"training with passes of {per_pass} images of {side} x {side}"
        todo = "lower FINETUNE.BATCH_PER_DEVICE (FINETUNE.BATCH_SIZE, and the learning rate, can stay)"
        return memory.exhaustion_explained(task, todo)
