"""Fine-tuning: SGD steps made of forward passes that any number of processes share, a test after every epoch.

What one process does with a batch in eight passes, eight processes do with one pass each: gradients are averaged over
passes (by DistributedDataParallel over processes), and so are the running statistics of batch norm, each pass starting
from those before the step. The results differ by the order of sums only.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from cog.data.image_lists import ImageList
from cog.data.pixels import normalizer, to_input
from cog.errors import CogError, FailedImagesError
from cog.finetune import loader, state, streams
from cog.finetune.evaluation import TestScore, evaluate
from cog.finetune.loader import NO_LABEL, Pass
from cog.finetune.network import FineTuned
from cog.finetune.parallel import Group, LostProcessError, SharedError
from cog.finetune.recipe import FineTuneRecipe
from cog.logreg.metrics import true_class_rank
from cog.runtime import signals
from cog.runtime.memory import is_exhausted
from cog.runtime.progress import Progress

logger = logging.getLogger(__name__)

_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, eq=False)
class Trained:
    """What training leaves, beside the network.

    Attributes:
        logs: one value per epoch, see :data:`cog.finetune.state.LOG_KEYS`.
        score: of the test after the last epoch.
        n_failed_train: training images that could not be decoded.
        seconds: of work, over all attempts.
        images_per_second: of training in this attempt, tests left out.
    """

    logs: dict[str, list[float]]
    score: TestScore
    n_failed_train: int
    seconds: float
    images_per_second: float


@dataclass(frozen=True)
class Saving:
    """When and where process 0 saves the state.

    Attributes:
        path: of the state; None: nowhere.
        every_seconds: seconds between saved states, beside those at the end of an epoch's steps.
        before: called before each is saved; may raise.
    """

    path: Path | None = None
    every_seconds: float = 600.0
    before: Callable[[], None] = lambda: None


def train(
    network: FineTuned,
    train_images: ImageList,
    test_images: ImageList,
    recipe: FineTuneRecipe,
    group: Group,
    *,
    memory_format: torch.memory_format = torch.contiguous_format,
    n_workers: int = 0,
    allow_failures: int = 0,
    saving: Saving = Saving(),
    resume: Path | None = None,
) -> Trained:
    """Fine-tune a network.

    On a CPU the result is the same bit for bit given the recipe (and the number of threads of PyTorch), whether or not
    training was interrupted, and whatever ``n_workers`` is.

    Args:
        network: on the group's device; trained in place.
        train_images: to train on.
        test_images: to test on after every epoch; nothing is chosen by these scores.
        recipe: what to do.
        group: the processes.
        memory_format: of the network's input.
        n_workers: decoding threads of each process.
        allow_failures: images that may be impossible to decode.
        saving: of the state.
        resume: a saved state to go on from.

    Raises:
        Interrupted: by a signal; the state is saved.
        FailedImagesError: more images than allowed cannot be decoded.
        CogError: out of memory, not finite, an unusable state.
    """
    steps_per_epoch = recipe.steps_per_epoch(len(train_images))
    per_process = recipe.passes_per_process(group.size)
    optimizer = torch.optim.SGD(
        [parameter for parameter in network.parameters() if parameter.requires_grad],
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    scaler = torch.amp.GradScaler(group.device.type, enabled=recipe.precision == "fp16")
    position = state.Position()
    if resume is not None:
        position = state.load(resume, network, optimizer, scaler)
    trainer = _Trainer(network, recipe, group, optimizer, scaler, memory_format)
    clock = _Clock(position.seconds)
    n_left = (
        recipe.n_epochs - position.epoch
    ) * steps_per_epoch * recipe.batch_size - position.step * recipe.batch_size
    failures = _Failures(train_images, allow_failures, position.failed)
    score: TestScore | None = None

    def save() -> None:
        position.seconds = clock.total
        if group.rank == 0 and saving.path is not None:
            saving.before()
            state.save(saving.path, position, network, optimizer, scaler)
        clock.saved = time.monotonic()

    def interrupted() -> signals.Interrupted:
        return signals.Interrupted(
            f"ended by {signals.requested() or 'a signal to another process'}: {position.epoch} of "
            f"{recipe.n_epochs} epochs and {position.step} of {steps_per_epoch} steps are saved; the same command "
            "continues from here"
        )

    training_seconds, n_trained = 0.0, 0
    with (
        torch.random.fork_rng(devices=[]),
        Progress(n_left, "fine-tuning", bar=group.rank == 0) as progress,
    ):
        while position.epoch < recipe.n_epochs:
            start = time.monotonic()
            order = _order(recipe, position.epoch, len(train_images))
            rows = _rows(
                order, recipe, group, first=position.step, last=steps_per_epoch, per_process=per_process
            )
            with contextlib.closing(
                loader.passes(
                    train_images,
                    rows,
                    recipe,
                    epoch=position.epoch,
                    n_workers=n_workers,
                    pin_memory=group.device.type == "cuda",
                )
            ) as stream:
                while position.step < steps_per_epoch:
                    lr = recipe.lr_at(position.epoch * steps_per_epoch + position.step, steps_per_epoch)
                    parts = [next(stream) for _ in range(per_process)]
                    failures.add(parts)
                    sums, stop = trainer.step(parts, lr, position.epoch, position.step)
                    position.sums += sums
                    position.step += 1
                    n_trained += recipe.batch_size
                    if group.rank == 0:
                        progress.update(recipe.batch_size)
                    if stop:
                        save()
                        raise interrupted()
                    if time.monotonic() - clock.saved > saving.every_seconds:
                        save()
            training_seconds += time.monotonic() - start
            failures.share(group)
            save()
            score = evaluate(
                network, test_images, recipe, group, n_workers=n_workers, memory_format=memory_format
            )
            if score.interrupted:
                raise interrupted()
            failures.check(score)
            _log_epoch(
                position, score, lr=recipe.lr_at((position.epoch + 1) * steps_per_epoch - 1, steps_per_epoch)
            )
            _report(position, recipe)
            position.epoch, position.step = position.epoch + 1, 0
            position.sums = torch.zeros(4, dtype=torch.float64)
    assert score is not None
    return Trained(
        logs=position.logs,
        score=score,
        n_failed_train=len(position.failed),
        seconds=clock.total,
        images_per_second=n_trained / training_seconds if n_trained else 0.0,
    )


class _Clock:
    """Seconds of work over all attempts, and when the state was saved last."""

    def __init__(self, before: float) -> None:
        self._before = before
        self._start = self.saved = time.monotonic()

    @property
    def total(self) -> float:
        return self._before + time.monotonic() - self._start


def _order(recipe: FineTuneRecipe, epoch: int, n_images: int) -> np.ndarray:
    """Return the rows of an epoch in the order of their use, int64."""
    return streams.generator(recipe.seed, "order", epoch).permutation(n_images)


def _rows(
    order: np.ndarray, recipe: FineTuneRecipe, group: Group, *, first: int, last: int, per_process: int
) -> Iterator[np.ndarray]:
    """Yield the rows of this process's passes, step by step."""
    for step in range(first, last):
        for number in range(per_process):
            start = step * recipe.batch_size + (group.rank * per_process + number) * recipe.per_pass
            yield order[start : start + recipe.per_pass]


def _log_epoch(position: state.Position, score: TestScore, *, lr: float) -> None:
    loss, top1, top5, n = position.sums.tolist()
    n = max(n, 1.0)
    values = (
        loss / n,
        100 * top1 / n,
        100 * top5 / n,
        score.loss,
        score.top1,
        score.top5,
        lr,
    )
    for key, value in zip(state.LOG_KEYS, values, strict=True):
        position.logs[key].append(value)


def _report(position: state.Position, recipe: FineTuneRecipe) -> None:
    last = {key: values[-1] for key, values in position.logs.items()}
    logger.info(
        "epoch %d of %d: train loss %.4f, train top-1 %.2f, test loss %.4f, test top-1 %.2f, top-5 %.2f",
        position.epoch + 1, recipe.n_epochs, last["train/loss"], last["train/top1"], last["test/loss"],
        last["test/top1"], last["test/top5"],
    )  # fmt: skip


class _Failures:
    """Training images that cannot be decoded; they have no part in the loss."""

    def __init__(self, images: ImageList, allowed: int, rows: set[int]) -> None:
        self._images, self._allowed, self._rows = images, allowed, rows

    def add(self, parts: list[Pass]) -> None:
        for part in parts:
            for row, reason in part.failures.items():
                if row not in self._rows:
                    self._rows.add(row)
                    logger.warning("%s cannot be decoded: %s", self._images.file(row), reason)
                    self._require(len(self._rows), self._images.file(row), reason)

    def share(self, group: Group) -> None:
        """Tell the other processes."""
        if group.size == 1:
            return
        mask = torch.zeros(len(self._images), dtype=torch.uint8, device=group.device)
        if self._rows:
            mask[torch.tensor(sorted(self._rows), device=group.device)] = 1
        self._rows |= set(group.max_(mask).nonzero().flatten().tolist())
        if self._rows:
            self._require(len(self._rows), self._images.file(min(self._rows)), "see above")

    def check(self, score: TestScore) -> None:
        for file, reason in score.failures:
            logger.warning("%s cannot be decoded: %s", file, reason)
        if score.n_failed:
            file, reason = score.failures[0] if score.failures else ("a test image", "see above")
            self._require(len(self._rows) + score.n_failed, file, reason)

    def _require(self, n_failed: int, file: str, reason: str) -> None:
        if n_failed > self._allowed:
            raise FailedImagesError(
                f"{file} cannot be decoded ({reason}); fix the image, or accept the loss of up to N images with "
                f"--allow_failures N (now {self._allowed})"
            )


class _Trainer:
    """Does SGD steps."""

    def __init__(
        self,
        network: FineTuned,
        recipe: FineTuneRecipe,
        group: Group,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        memory_format: torch.memory_format,
    ) -> None:
        self._network = network
        self._recipe = recipe
        self._group = group
        self._optimizer = optimizer
        self._scaler = scaler
        self._format = memory_format
        self._mean, self._std = normalizer(recipe.mean, recipe.std, group.device)
        self._statistics = _RunningStatistics(network, recipe.n_passes)
        self._model: nn.Module = network
        self._parallel: nn.parallel.DistributedDataParallel | None = None
        if group.size > 1:
            device = group.device
            # Buffers are averaged by _RunningStatistics; DistributedDataParallel would take those of process 0. The
            # warning is about a new name of the argument, which older versions do not know.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                self._parallel = nn.parallel.DistributedDataParallel(
                    network,
                    device_ids=[device.index] if device.type == "cuda" else None,
                    broadcast_buffers=False,
                )
            self._model = self._parallel

    def step(self, parts: list[Pass], lr: float, epoch: int, step: int) -> tuple[torch.Tensor, bool]:
        """Do one SGD step.

        Args:
            parts: the passes of this process.
            lr: learning rate.
            epoch: counted from 0.
            step: in the epoch, counted from 0.

        Returns:
            float64 ``(4,)``: loss, top-1 hits, top-5 hits and images, summed over all processes; and whether any of
            them was asked to end.

        Raises:
            CogError: out of memory, or a loss that is not finite.
        """
        recipe, group = self._recipe, self._group
        for entry in self._optimizer.param_groups:
            entry["lr"] = lr
        self._network.train()
        self._optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(5, dtype=torch.float64, device=group.device)
        self._statistics.begin()
        for number, part in enumerate(parts):
            last = number + 1 == len(parts)
            alone = (
                self._parallel.no_sync()
                if self._parallel is not None and not last
                else contextlib.nullcontext()
            )
            # Dropout and the like draw from PyTorch's own generators.
            torch.manual_seed(
                streams.torch_seed(recipe.seed, "pass", epoch, step, group.rank * len(parts) + number)
            )
            self._statistics.before_pass()
            with alone, _explained(recipe, group):
                sums[:4] += self._one_pass(part, weight=group.size / recipe.n_passes)
            self._statistics.after_pass()
        self._statistics.end(group)
        self._update()
        sums[4] = float(signals.requested() is not None)
        totals = group.sum_(sums).cpu()
        if not torch.isfinite(totals).all():
            raise SharedError(
                f"the loss is not finite in epoch {epoch + 1}, step {step + 1}: training diverged; lower FINETUNE.LR "
                f"(or use FINETUNE.PRECISION fp32 instead of {recipe.precision})"
            )
        return totals[:4], bool(totals[4] > 0)

    def _one_pass(self, part: Pass, *, weight: float) -> torch.Tensor:
        """Add the gradients of a pass, times ``weight``; returns loss, hits and number of images."""
        device, dtype = self._group.device, _AUTOCAST[self._recipe.precision]
        x = to_input(part.pixels, self._mean, self._std, memory_format=self._format)
        y = part.labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=dtype) if dtype is not None else contextlib.nullcontext():
            logits = self._model(x)
        logits = logits.float()
        n = (y != NO_LABEL).sum()
        loss = nn.functional.cross_entropy(logits, y, ignore_index=NO_LABEL, reduction="sum")
        self._scaler.scale(weight * loss / n.clamp(min=1)).backward()
        with torch.no_grad():
            rank = true_class_rank(logits, y.clamp(min=0))[y != NO_LABEL]
            return torch.stack([loss.double(), (rank < 1).sum(), (rank < 5).sum(), n])

    def _update(self) -> None:
        if self._recipe.clip_norm:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._network.parameters(), self._recipe.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()


class _RunningStatistics:
    """Averages batch norm's running statistics over the passes of a step, wherever those are done."""

    def __init__(self, network: nn.Module, n_passes: int) -> None:
        layers = [
            module
            for module in network.modules()
            if isinstance(module, _BatchNorm) and module.track_running_stats
        ]
        self._means = [
            tensor
            for layer in layers
            for tensor in (layer.running_mean, layer.running_var)
            if tensor is not None
        ]
        self._counts = [
            layer.num_batches_tracked for layer in layers if layer.num_batches_tracked is not None
        ]
        self._n_passes = n_passes if self._means else 1

    def begin(self) -> None:
        if self._n_passes > 1:
            self._before = [tensor.clone() for tensor in (*self._means, *self._counts)]
            self._sums: list[torch.Tensor] = []

    def before_pass(self) -> None:
        if self._n_passes > 1 and self._sums:
            for tensor, before in zip((*self._means, *self._counts), self._before, strict=True):
                tensor.copy_(before)

    def after_pass(self) -> None:
        if self._n_passes == 1:
            return
        if not self._sums:
            self._sums = [tensor.clone() for tensor in self._means]
        else:
            for total, tensor in zip(self._sums, self._means, strict=True):
                total += tensor

    def end(self, group: Group) -> None:
        if self._n_passes == 1:
            return
        flat = group.sum_(torch.cat([total.flatten() for total in self._sums])).div_(self._n_passes)
        for tensor, part in zip(
            self._means, flat.split([tensor.numel() for tensor in self._means]), strict=True
        ):
            tensor.copy_(part.view_as(tensor))


@contextlib.contextmanager
def _explained(recipe: FineTuneRecipe, group: Group) -> Iterator[None]:
    """Turn "out of memory" into a line that says what to lower, and a broken connection into one that says so."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_exhausted(error):
            text = str(error)
            if group.size > 1 and re.search(r"gloo|NCCL|[Cc]onnection|peer", text):
                raise LostProcessError(f"lost the connection to another process ({text[:200]})") from error
            raise
        raise CogError(
            f"out of memory with passes of {recipe.per_pass} images of {recipe.crop} x {recipe.crop} in "
            f"{recipe.precision}; lower FINETUNE.BATCH_PER_DEVICE (FINETUNE.BATCH_SIZE, and with it the recipe, can "
            "stay), or use FINETUNE.PRECISION bf16"
        ) from error
