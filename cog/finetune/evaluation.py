"""Test of a network with the benchmark's preprocessing of test images, as an extraction of its logits."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass

import torch

from cog.data.images import ImageList
from cog.data.loader import Decoder
from cog.data.pixels import Preprocess
from cog.features.extract import Extractor, stream
from cog.finetune.network import FineTuned
from cog.finetune.parallel import Group
from cog.finetune.recipe import FineTuneRecipe
from cog.logreg import metrics
from cog.runtime import signals


@dataclass(frozen=True, eq=False)
class TestScore(metrics.Evaluation):
    """The score of a network on the test images that could be decoded.

    Attributes:
        predictions: predicted class of each test image, int64 ``(n,)``; -1: the image could not be decoded.
        failures: ``(file, reason)`` of the images that this process could not decode.
        n_failed: number of images that all processes together could not decode.
    """

    __test__ = False  # not a test for pytest

    predictions: torch.Tensor
    failures: list[tuple[str, str]]
    n_failed: int


def evaluate(
    network: FineTuned, images: ImageList, recipe: FineTuneRecipe, group: Group, *, n_workers: int
) -> TestScore | None:
    """Score a network on test images in float32; each process takes its share of them.

    Returns:
        The score; None when a signal has ended the work of any process.
    """
    first, stop = (len(images) * rank // group.size for rank in (group.rank, group.rank + 1))
    share = dataclasses.replace(images, files=images.files[first:stop], labels=images.labels[first:stop])
    preprocess = Preprocess(recipe.crop, recipe.resize, tuple(recipe.mean), tuple(recipe.std))  # type: ignore[arg-type]
    extractor = Extractor(
        network,
        preprocess,
        group.device,
        batch_size=recipe.per_pass if group.device.type == "cuda" else 1,  # on a CPU, a single pass
        batch_key="FINETUNE.BATCH_PER_DEVICE",
        memory_format=network.memory_format,
    )
    sums = torch.zeros(5, dtype=torch.float64)  # loss, top-1 hits, top-5 hits, failed images, images left out
    sums[4] = len(share)
    predictions = torch.zeros(len(images), dtype=torch.int64)
    failures: list[tuple[str, str]] = []
    network.eval()
    decoder = Decoder(share, preprocess, recipe.load_truncated)
    with contextlib.closing(stream(extractor, decoder, n_workers=n_workers)) as parts:  # type: ignore[type-var]
        for batch in parts:
            rows, logits = torch.from_numpy(batch.rows), batch.x
            labels = torch.from_numpy(share.labels)[rows]
            if len(rows):
                metrics.add_batch(sums[:3], logits, labels)
                predictions[first + rows] = logits.argmax(1)
            for row, reason in batch.failures:
                predictions[first + row] = -1
                failures.append((share.file(row), reason))
            sums[3] += len(batch.failures)
            sums[4] -= len(rows) + len(batch.failures)
            if signals.requested():
                break
    network.train()
    loss, top1, top5, n_failed, left_out = group.sum_(sums.to(group.device)).tolist()
    group.sum_(predictions := predictions.to(group.device))
    if left_out:
        return None
    n = max(len(images) - int(n_failed), 1)
    return TestScore(
        loss=loss / n,
        top1=100 * top1 / n,
        top5=100 * top5 / n,
        predictions=predictions.cpu(),
        failures=failures,
        n_failed=int(n_failed),
    )
