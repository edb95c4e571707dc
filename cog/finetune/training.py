"""Fine-tuning from the first epoch, or from a saved state, to the last epoch, with a test after each."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator, Iterable, Iterator

import torch

from cog.data.images import ImageList
from cog.data.loader import Piece, decoded
from cog.errors import FailedImagesError
from cog.features.extract import NonFiniteError
from cog.finetune.evaluation import TestScore, evaluate
from cog.finetune.images import TrainingDecoder
from cog.finetune.network import FineTuned
from cog.finetune.parallel import Group
from cog.finetune.recipe import FineTuneRecipe
from cog.finetune.trainer import Position, Trainer, diverged
from cog.logreg.metrics import describe_last_epoch
from cog.runtime import signals
from cog.runtime.progress import Progress
from cog.runtime.resume_dir import ResumeFolder

logger = logging.getLogger(__name__)

#: File in ``.resume/`` with the state of the training, see :meth:`cog.finetune.trainer.Trainer.save`.
STATE_FILE = "state.pth"


def train(
    network: FineTuned,
    train_images: ImageList,
    test_images: ImageList,
    recipe: FineTuneRecipe,
    group: Group,
    *,
    n_workers: int,
    allow_failures: int,
    resume: ResumeFolder,
) -> Position:
    """Fine-tune a network.

    On a CPU, the result is the same bit for bit given the recipe (and the number of threads of PyTorch), with or
    without an interruption and for any ``n_workers``.

    Returns:
        The position after the last epoch, with its logs and score.
    """
    n_steps = recipe.steps_per_epoch(len(train_images))
    trainer = Trainer(network, recipe, group)
    saved = group.agree(lambda: resume.existing(STATE_FILE))
    if saved:
        logger.info("going on from %s", saved)
    position = trainer.load(saved) if saved else Position()
    failed = _FailedImages(train_images, allow_failures, position.failed)
    start = time.monotonic() - position.seconds  # of an equal run without interruptions
    training_seconds, n_trained = 0.0, 0

    def interrupted() -> signals.Interrupted:
        return signals.Interrupted(
            f"ended by {signals.requested() or 'a signal to another process'}: {position.epoch + position.trained} of "
            f"{recipe.n_epochs} epochs are saved; the same command continues from here"
        )

    n_left = (recipe.n_epochs - position.epoch - position.trained) * n_steps * recipe.batch_size
    with torch.random.fork_rng(devices=[]), Progress(n_left, "fine-tuning", bar=group.rank == 0) as progress:
        while position.epoch < recipe.n_epochs:
            if not position.trained:
                begun = time.monotonic()
                steps = _steps(train_images, recipe, group, position.epoch, failed, n_workers=n_workers)
                with contextlib.closing(steps):
                    for step, parts in enumerate(steps):
                        lr = recipe.lr_at(position.epoch * n_steps + step, n_steps)
                        sums, stop = trainer.step(parts, lr, position.epoch, step)
                        position.sums += sums
                        n_trained += recipe.batch_size
                        progress.update(recipe.batch_size)
                        if stop and step + 1 < n_steps:
                            raise interrupted()
                training_seconds += time.monotonic() - begun
                failed.share(group)
                position.trained, position.seconds = True, time.monotonic() - start
                if group.rank == 0:
                    trainer.save(resume.state(STATE_FILE), position)
            try:
                score = evaluate(network, test_images, recipe, group, n_workers=n_workers)
            except NonFiniteError as error:
                raise diverged(recipe, f"in the test after epoch {position.epoch + 1}") from error
            if score is None:
                raise interrupted()
            failed.check(score)
            position.end_epoch(score, lr=recipe.lr_at((position.epoch + 1) * n_steps - 1, n_steps))
            logger.info("%s", describe_last_epoch(position.logs, recipe.n_epochs))
    position.seconds = time.monotonic() - start
    position.images_per_second = n_trained / training_seconds if n_trained else 0.0
    return position


def _steps(
    images: ImageList,
    recipe: FineTuneRecipe,
    group: Group,
    epoch: int,
    failed: _FailedImages,
    *,
    n_workers: int,
) -> Generator[list[tuple[Piece, torch.Tensor]], None, None]:
    """Yield images and labels of the passes of this process, for each step of an epoch."""
    decoder = TrainingDecoder(images, recipe, epoch)
    steps = range(recipe.steps_per_epoch(len(images)))
    passes = [(0, *span) for span in _passes(recipe, group, steps)]
    stream = decoded([decoder], passes, n_workers=n_workers, pin_memory=group.device.type == "cuda")
    n = recipe.passes_per_process(group.size)
    for step in range(len(steps)):
        parts = [next(stream) for _ in range(n)]
        for place, reason in (failure for part in parts for failure in part.failures):
            failed.add(int(decoder.order[place]), reason)
        firsts = [first for _, first, _ in passes[step * n : step * n + n]]
        yield [(part, decoder.labels(first, part)) for first, part in zip(firsts, parts, strict=True)]


def _passes(recipe: FineTuneRecipe, group: Group, steps: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first place and the place after the last of each pass of this process, in the order of an epoch."""
    share = recipe.batch_size // group.size
    for step in steps:
        begin = step * recipe.batch_size + group.rank * share
        for first in range(begin, begin + share, recipe.per_pass):
            yield first, first + recipe.per_pass


class _FailedImages:
    """Images that cannot be decoded; they are excluded from the loss."""

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
