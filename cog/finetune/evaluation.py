"""Testing a network with the benchmark's preprocessing of test images."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass

import torch
from torch import nn

from cog.data.image_lists import ImageList
from cog.data.loader import Decoder, batches
from cog.data.pixels import normalizer, to_input
from cog.finetune.parallel import Group
from cog.finetune.recipe import FineTuneRecipe
from cog.logreg.metrics import true_class_rank
from cog.runtime.device import exact_float32
from cog.runtime.signals import requested

# As in extraction: larger passes cost more on a CPU (see cog.features.extract), and a GPU has room for these without
# gradients.
_CPU_PIXELS = 4 * 224 * 224
_MOST_CPU_IMAGES = 64


@dataclass(frozen=True, eq=False)
class TestScore:
    """Of a network on the test images that could be decoded.

    Attributes:
        loss: mean cross-entropy, in nats.
        top1: accuracy in percent.
        top5: accuracy in percent; the true class among the min(5, C) best.
        predictions: int64 ``(n,)``, one class per test image; -1 where it could not be decoded.
        failures: ``(file, reason)`` of those images that this process was given.
        n_failed: number of those images, of all processes.
        interrupted: whether the work was ended by a signal, in any process; the numbers then mean nothing.
    """

    __test__ = False  # not a test of pytest's

    loss: float
    top1: float
    top5: float
    predictions: torch.Tensor
    failures: list[tuple[str, str]]
    n_failed: int
    interrupted: bool


def evaluate(
    network: nn.Module,
    images: ImageList,
    recipe: FineTuneRecipe,
    group: Group,
    *,
    n_workers: int,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> TestScore:
    """Score a network in float32; each process takes its share of the images.

    Args:
        network: images ``(B, 3, H, W)`` to logits ``(B, C)``.
        images: the test images.
        recipe: says how they are resized and normalised.
        group: the processes.
        n_workers: decoding threads.
        memory_format: of the network's input.
    """
    device = group.device
    first, last = (len(images) * rank // group.size for rank in (group.rank, group.rank + 1))
    share = dataclasses.replace(images, files=images.files[first:last], labels=images.labels[first:last])
    decoder = Decoder(share, resize=recipe.resize, crop=recipe.crop, load_truncated=recipe.load_truncated)
    mean, std = normalizer(recipe.mean, recipe.std, device)
    sums = torch.zeros(
        5, dtype=torch.float64, device=device
    )  # loss, top-1, top-5, failed images, interrupted
    predictions = torch.zeros(len(images), dtype=torch.int64, device=device)
    failures: list[tuple[str, str]] = []
    size = recipe.per_pass
    if device.type == "cpu":
        size = min(size, max(1, _CPU_PIXELS // recipe.crop**2), _MOST_CPU_IMAGES)
    training = network.training
    network.eval()
    with (
        exact_float32(),
        torch.inference_mode(),
        contextlib.closing(
            batches(decoder, batch_size=size, n_workers=n_workers, pin_memory=device.type == "cuda")
        ) as stream,
    ):
        for batch in stream:
            if requested():
                sums[4] = 1
                break
            logits = network(to_input(batch.pixels, mean, std, memory_format=memory_format))
            rows = torch.from_numpy(batch.rows)
            kept = logits[(rows - batch.first).to(device)].float()
            labels = torch.from_numpy(share.labels)[rows].to(device)
            if len(rows):
                rank = true_class_rank(kept, labels)
                sums[0] += torch.nn.functional.cross_entropy(kept, labels, reduction="sum")
                sums[1] += (rank < 1).sum()
                sums[2] += (rank < 5).sum()
                predictions[(first + rows).to(device)] = kept.argmax(1)
            for row, reason in batch.failures:
                predictions[first + row] = -1
                failures.append((share.file(row), reason))
            sums[3] += len(batch.failures)
    network.train(training)
    group.sum_(sums)
    group.sum_(predictions)
    loss, top1, top5, n_failed, interrupted = sums.tolist()
    n = max(len(images) - int(n_failed), 1)
    return TestScore(
        loss=loss / n,
        top1=100 * top1 / n,
        top5=100 * top5 / n,
        predictions=predictions.cpu(),
        failures=failures,
        n_failed=int(n_failed),
        interrupted=interrupted > 0,
    )
