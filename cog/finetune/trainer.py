"""The SGD steps of fine-tuning, whose forward passes any number of processes share, and the state after a step.

A batch can be eight passes of one process, or one pass of each of eight processes: gradients are averaged over passes
(by DistributedDataParallel over processes), and so are the running statistics of batch norm, with each pass starting
from the statistics before the step. The results then differ only by the order of sums.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from cog.data.loader import Piece
from cog.data.pixels import normalizer, to_input
from cog.errors import CogError, first_line
from cog.finetune.evaluation import TestScore
from cog.finetune.images import NO_LABEL
from cog.finetune.network import FineTuned
from cog.finetune.parallel import Group, SharedError
from cog.finetune.recipe import FineTuneRecipe
from cog.logreg.metrics import Evaluation, Logs, append_epoch, new_logs, true_class_rank
from cog.runtime import memory, signals
from cog.runtime.safe_load import load_torch
from cog.runtime.state_file import StateFile

_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Position:
    """The next epoch of a training, and the results of those before it.

    Attributes:
        epoch: number of the epoch, counted from 0.
        trained: whether all steps of that epoch are done, and only its test is missing.
        sums: sums over the steps of that epoch, float64 ``(4,)``: loss, top-1 hits, top-5 hits, images.
        logs: one value per finished epoch.
        failed: rows of the training images that could not be decoded.
        seconds: duration of the work so far, over all attempts.
        score: score of the test after the last finished epoch; not saved.
        images_per_second: speed of training in this attempt, without tests; not saved.
    """

    epoch: int = 0
    trained: bool = False
    sums: torch.Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64))
    logs: Logs = field(default_factory=new_logs)
    failed: set[int] = field(default_factory=set)
    seconds: float = 0.0
    score: TestScore | None = None
    images_per_second: float = 0.0

    def end_epoch(self, score: TestScore, *, lr: float) -> None:
        """Add an epoch to the logs after its test; ``lr``: learning rate of its last step."""
        loss, top1, top5, n = self.sums.tolist()
        n = max(n, 1.0)
        append_epoch(self.logs, Evaluation(loss / n, 100 * top1 / n, 100 * top5 / n), score, lr)
        self.score = score
        self.epoch, self.trained = self.epoch + 1, False
        self.sums = torch.zeros(4, dtype=torch.float64)


def diverged(recipe: FineTuneRecipe, when: str) -> SharedError:
    """Return the error about a training that diverged."""
    todo = "lower FINETUNE.LR"
    if recipe.precision != "fp32":
        todo += f" (or use FINETUNE.PRECISION fp32 instead of {recipe.precision})"
    return SharedError(f"the loss is not finite {when}: training diverged; {todo}")


class Trainer:
    """The SGD steps of a network on the device of the group, with optimizer and loss scale."""

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
        self, parts: list[tuple[Piece, torch.Tensor]], lr: float, epoch: int, step: int
    ) -> tuple[torch.Tensor, bool]:
        """Do one SGD step with ``parts``, the images and labels of the passes of this process.

        Returns:
            Sums over all processes, float64 ``(4,)``: loss, top-1 hits, top-5 hits and images; and whether any process
            was asked to end.
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
            raise diverged(recipe, f"in epoch {epoch + 1}, step {step + 1}")
        return totals[:4], bool(totals[4] > 0)

    def save(self, file: StateFile, position: Position) -> None:
        """Save everything that the test of a trained epoch and the following epochs depend on."""
        scale = self._scaler.state_dict()
        file.save(
            {
                "network": {name: tensor.cpu() for name, tensor in self._network.state_dict().items()},
                "momentum": {
                    name: self._optimizer.state[parameter]["momentum_buffer"].cpu()
                    for name, parameter in self._network.named_parameters()
                    if self._optimizer.state.get(parameter, {}).get("momentum_buffer") is not None
                },
                "scaler": torch.tensor(
                    [scale["scale"], scale["_growth_tracker"]] if scale else [], dtype=torch.float64
                ),
                "epoch": torch.tensor(position.epoch),
                "sums": position.sums.cpu(),
                "logs": {
                    key: torch.tensor(values, dtype=torch.float64) for key, values in position.logs.items()
                },
                "failed": torch.tensor(sorted(position.failed), dtype=torch.int64),
                "seconds": torch.tensor(position.seconds, dtype=torch.float64),
            }
        )

    def load(self, path: Path) -> Position:
        """Restore a saved state, and return the position of the training."""
        parameters = dict(self._network.named_parameters())
        try:
            state: Any = load_torch(path)
            position = Position(
                epoch=int(state["epoch"]),
                trained=True,
                sums=state["sums"].double(),
                logs={key: state["logs"][key].tolist() for key in new_logs()},
                failed=set(state["failed"].tolist()),
                seconds=float(state["seconds"]),
            )
            self._network.load_state_dict(state["network"])
            for name, momentum in state["momentum"].items():
                parameter = parameters[name]
                self._optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(
                    momentum
                )
            if len(state["scaler"]) and self._scaler.is_enabled():
                scale, growth = state["scaler"].tolist()
                changed = {"scale": scale, "_growth_tracker": int(growth)}
                self._scaler.load_state_dict(self._scaler.state_dict() | changed)
        except (CogError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CogError(
                f"{path} is not a readable state of this run ({first_line(error)[:200]}); remove the file to start "
                "again"
            ) from error
        return position

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
