"""Fine-tuning: SGD steps of forward passes that any number of processes share, and a test after every epoch.

A batch can be eight passes of one process, or one pass of each of eight processes: gradients are averaged over passes
(by DistributedDataParallel over processes), and so are the running statistics of batch norm, with each pass starting
from the statistics before the step. The results then differ only by the order of sums.
"""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Generator, Iterable, Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from cog.data.image_lists import ImageList
from cog.data.loader import Batch, batches
from cog.data.pixels import normalizer, to_input
from cog.errors import FailedImagesError
from cog.features.extract import NonFiniteError
from cog.finetune import state
from cog.finetune.evaluation import TestScore, evaluate
from cog.finetune.images import NO_LABEL, TrainingDecoder
from cog.finetune.network import FineTuned
from cog.finetune.parallel import Group, SharedError
from cog.finetune.recipe import FineTuneRecipe
from cog.logreg.metrics import describe_last_epoch, true_class_rank
from cog.runtime import memory, signals
from cog.runtime.progress import Progress
from cog.runtime.resume_dir import ResumeFolder

logger = logging.getLogger(__name__)

_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def train(
    network: FineTuned,
    train_images: ImageList,
    test_images: ImageList,
    recipe: FineTuneRecipe,
    group: Group,
    *,
    n_workers: int = 0,
    allow_failures: int = 0,
    resume: ResumeFolder | None = None,
    save_seconds: float = 600.0,
) -> state.Position:
    """Fine-tune a network.

    On a CPU, the result is the same bit for bit given the recipe (and the number of threads of PyTorch), with or
    without an interruption and for any ``n_workers``.

    Args:
        network: network on the device of the group, trained in place.
        train_images: training images.
        test_images: images of the test after every epoch; no choice depends on these scores.
        recipe: settings of the training.
        group: the processes.
        n_workers: decoding threads of each process.
        allow_failures: number of images that may fail to decode.
        resume: folder with the state, which process 0 saves and all processes continue from; None: nothing is saved.
        save_seconds: seconds between saved states, beside those at the end of an epoch's steps.

    Returns:
        The position after the last epoch, with its logs and score.

    Raises:
        Interrupted: by a signal; the state is saved.
        FailedImagesError: when more images than allowed cannot be decoded.
        CogError: too little memory, values that are not finite, an unusable state.
    """
    n_steps = recipe.steps_per_epoch(len(train_images))
    trainer = _Trainer(network, recipe, group)
    saved = None if resume is None else group.agree(lambda: resume.existing(state.STATE_FILE))
    if saved:
        logger.info("going on from %s", saved)
    position = state.load(saved, *trainer.state) if saved else state.Position()
    failed = _FailedImages(train_images, allow_failures, position.failed)
    seconds_before, start = position.seconds, time.monotonic()
    last_save, training_seconds, n_trained = start, 0.0, 0

    def save() -> None:
        nonlocal last_save
        position.seconds = seconds_before + time.monotonic() - start
        if group.rank == 0 and resume is not None:
            state.save(resume.file(state.STATE_FILE), position, *trainer.state)
        last_save = time.monotonic()

    def interrupted() -> signals.Interrupted:
        return signals.Interrupted(
            f"ended by {signals.requested() or 'a signal to another process'}: {position.epoch} of "
            f"{recipe.n_epochs} epochs and {position.step} of {n_steps} steps are saved; the same command continues "
            "from here"
        )

    n_left = ((recipe.n_epochs - position.epoch) * n_steps - position.step) * recipe.batch_size
    with torch.random.fork_rng(devices=[]), Progress(n_left, "fine-tuning", bar=group.rank == 0) as progress:
        while position.epoch < recipe.n_epochs:
            begun = time.monotonic()
            steps = _steps(train_images, recipe, group, position, failed, n_workers=n_workers)
            with contextlib.closing(steps):
                for parts in steps:
                    lr = recipe.lr_at(position.epoch * n_steps + position.step, n_steps)
                    sums, stop = trainer.step(parts, lr, position.epoch, position.step)
                    position.sums += sums
                    position.step += 1
                    n_trained += recipe.batch_size
                    if group.rank == 0:
                        progress.update(recipe.batch_size)
                    if stop:
                        save()
                        raise interrupted()
                    if time.monotonic() - last_save > save_seconds:
                        save()
            training_seconds += time.monotonic() - begun
            failed.share(group)
            save()
            try:
                score = evaluate(network, test_images, recipe, group, n_workers=n_workers)
            except NonFiniteError as error:
                raise _diverged(recipe, f"in the test after epoch {position.epoch + 1}") from error
            if score is None:
                raise interrupted()
            failed.check(score)
            position.end_epoch(score, lr=recipe.lr_at((position.epoch + 1) * n_steps - 1, n_steps))
            logger.info("%s", describe_last_epoch(position.logs, recipe.n_epochs))
    position.seconds = seconds_before + time.monotonic() - start
    position.images_per_second = n_trained / training_seconds if n_trained else 0.0
    return position


def _steps(
    images: ImageList,
    recipe: FineTuneRecipe,
    group: Group,
    position: state.Position,
    failed: _FailedImages,
    *,
    n_workers: int,
) -> Generator[list[tuple[Batch, torch.Tensor]], None, None]:
    """Yield images and labels of the passes of this process, for each remaining step of an epoch."""
    decoder = TrainingDecoder(images, recipe, position.epoch)
    steps = range(position.step, recipe.steps_per_epoch(len(images)))
    stream = batches(
        decoder,
        batch_size=recipe.per_pass,
        n_workers=n_workers,
        pin_memory=group.device.type == "cuda",
        ranges=_passes(recipe, group, steps),
    )
    with contextlib.closing(stream):
        for _ in steps:
            parts = [next(stream) for _ in range(recipe.passes_per_process(group.size))]
            for place, reason in (failure for part in parts for failure in part.failures):
                failed.add(int(decoder.order[place]), reason)
            yield [(part, decoder.labels(part)) for part in parts]


def _passes(recipe: FineTuneRecipe, group: Group, steps: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first place and the place after the last of each pass of this process, in the order of an epoch."""
    share = recipe.batch_size // group.size
    for step in steps:
        begin = step * recipe.batch_size + group.rank * share
        for first in range(begin, begin + share, recipe.per_pass):
            yield first, first + recipe.per_pass


def _diverged(recipe: FineTuneRecipe, when: str) -> SharedError:
    todo = "lower FINETUNE.LR"
    if recipe.precision != "fp32":
        todo += f" (or use FINETUNE.PRECISION fp32 instead of {recipe.precision})"
    return SharedError(f"the loss is not finite {when}: training diverged; {todo}")


class _FailedImages:
    """Images that cannot be decoded; they are excluded from the loss.

    Args:
        images: the training images.
        allowed: acceptable number of such images, including test images.
        rows: rows of the training images that are known to fail; further rows are added to it.
    """

    def __init__(self, images: ImageList, allowed: int, rows: set[int]) -> None:
        self._images, self._allowed, self._rows = images, allowed, rows

    def add(self, row: int, reason: str) -> None:
        """Add a training image."""
        if row not in self._rows:
            self._rows.add(row)
            file = self._images.file(row)
            logger.warning("%s cannot be decoded: %s", file, reason)
            self._require(len(self._rows), file, reason)

    def share(self, group: Group) -> None:
        """Collect the failed training images of all processes in each of them."""
        if group.size > 1:
            mask = torch.zeros(len(self._images), dtype=torch.int32)
            mask[sorted(self._rows)] = 1
            self._rows |= set(group.sum_(mask.to(group.device)).nonzero().flatten().tolist())
            if self._rows:
                self._require(len(self._rows), self._images.file(min(self._rows)), "see above")

    def check(self, score: TestScore) -> None:
        """Check the number of failed images, including those of a test."""
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
    """The SGD steps of a network.

    Attributes:
        state: network, optimizer and loss scale.
    """

    def __init__(self, network: FineTuned, recipe: FineTuneRecipe, group: Group) -> None:
        self._network, self._recipe, self._group = network, recipe, group
        self._mean, self._std = normalizer(recipe.mean, recipe.std, group.device)
        self._statistics = _RunningStatistics(network, recipe.n_passes)
        self._optimizer = torch.optim.SGD(
            [parameter for parameter in network.parameters() if parameter.requires_grad],
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self._scaler = torch.amp.GradScaler(group.device.type, enabled=recipe.precision == "fp16")
        self.state = network, self._optimizer, self._scaler
        self._parallel: nn.parallel.DistributedDataParallel | None = None
        if group.size > 1:
            # Buffers are averaged by _RunningStatistics; DistributedDataParallel would take those of process 0. The
            # warning is about a new name of the argument, which older versions lack.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                self._parallel = nn.parallel.DistributedDataParallel(
                    network,
                    device_ids=[group.device.index] if group.device.type == "cuda" else None,
                    broadcast_buffers=False,
                )

    def step(
        self, parts: list[tuple[Batch, torch.Tensor]], lr: float, epoch: int, step: int
    ) -> tuple[torch.Tensor, bool]:
        """Do one SGD step with ``parts``, the images and labels of the passes of this process.

        Returns:
            Sums over all processes, float64 ``(4,)``: loss, top-1 hits, top-5 hits and images; and whether any process
            was asked to end.

        Raises:
            CogError: too little memory, or a loss that is not finite.
        """
        recipe, group = self._recipe, self._group
        for entry in self._optimizer.param_groups:
            entry["lr"] = lr
        self._network.train()
        self._optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(5, dtype=torch.float64, device=group.device)
        self._statistics.begin()
        for number, (part, labels) in enumerate(parts):
            is_last = number + 1 == len(parts)
            alone = self._parallel.no_sync() if self._parallel and not is_last else contextlib.nullcontext()
            # Dropout and similar layers draw from PyTorch's own generators.
            torch.manual_seed(recipe.torch_seed("pass", epoch, step, group.rank * len(parts) + number))
            with alone, self._statistics.of_pass(), group.connection_explained(), self._memory_explained():
                sums[:4] += self._one_pass(part.pixels, labels)
        self._statistics.end(group)
        self._update()
        sums[4] = float(signals.requested() is not None)
        totals = group.sum_(sums).cpu()
        if not torch.isfinite(totals).all():
            raise _diverged(recipe, f"in epoch {epoch + 1}, step {step + 1}")
        return totals[:4], bool(totals[4] > 0)

    def _one_pass(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Add the gradients of a pass to those of the step, and return loss, hits and number of images."""
        device, dtype = self._group.device, _AUTOCAST[self._recipe.precision]
        x = to_input(pixels, self._mean, self._std, memory_format=self._network.memory_format)
        y = labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=dtype) if dtype is not None else contextlib.nullcontext():
            logits = (self._parallel or self._network)(x)
        logits = logits.float()
        n = (y != NO_LABEL).sum()
        loss = nn.functional.cross_entropy(logits, y, ignore_index=NO_LABEL, reduction="sum")
        weight = self._group.size / self._recipe.n_passes  # gradients are averaged over processes
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

    def _memory_explained(self) -> contextlib.AbstractContextManager[None]:
        recipe = self._recipe
        todo = "lower FINETUNE.BATCH_PER_DEVICE (FINETUNE.BATCH_SIZE, and with it the recipe, can stay)"
        if recipe.precision == "fp32":
            todo += ", use FINETUNE.PRECISION bf16"
        return memory.exhaustion_explained(
            f"training with passes of {recipe.per_pass} images of {recipe.crop} x {recipe.crop} in {recipe.precision}",
            todo,
        )


class _RunningStatistics:
    """The average of batch norm's running statistics over the passes of a step in all processes."""

    def __init__(self, network: nn.Module, n_passes: int) -> None:
        layers = [
            module
            for module in network.modules()
            if isinstance(module, _BatchNorm) and module.track_running_stats
        ]
        pairs = [(layer.running_mean, layer.running_var) for layer in layers]
        self._means = [tensor for pair in pairs for tensor in pair if tensor is not None]
        self._counts = [count for layer in layers if (count := layer.num_batches_tracked) is not None]
        self._n_passes = n_passes if self._means else 1

    def begin(self) -> None:
        """Keep a copy of the statistics before a step."""
        if self._n_passes > 1:
            self._before = [tensor.clone() for tensor in (*self._means, *self._counts)]
            self._sum: torch.Tensor | float = 0.0

    @contextlib.contextmanager
    def of_pass(self) -> Iterator[None]:
        """Start the pass in the block from the statistics before the step, and sum up its own statistics."""
        if self._n_passes > 1:
            for tensor, before in zip((*self._means, *self._counts), self._before, strict=True):
                tensor.copy_(before)
        yield
        if self._n_passes > 1:
            self._sum = self._sum + torch.cat([tensor.flatten() for tensor in self._means])

    def end(self, group: Group) -> None:
        """Set the statistics to their average over the passes of all processes."""
        if self._n_passes > 1:
            average = group.sum_(self._sum).div_(self._n_passes)
            parts = average.split([tensor.numel() for tensor in self._means])
            for tensor, part in zip(self._means, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
