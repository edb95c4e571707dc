"""The state of an unfinished fine-tuning run: tensors in ``.resume/state.pth``, replaced atomically."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cog.errors import CogError, first_line
from cog.logreg.metrics import Evaluation, Logs, append_epoch, new_logs
from cog.runtime import files
from cog.runtime.safe_load import load_torch

if TYPE_CHECKING:
    from cog.finetune.evaluation import TestScore

STATE_FILE = "state.pth"


@dataclass
class Position:
    """The next step of a training, and the results of the steps before it.

    Attributes:
        epoch: number of the epoch, counted from 0.
        step: number of the step in that epoch; the number of all its steps when only the test is missing.
        sums: sums over the steps of that epoch, float64 ``(4,)``: loss, top-1 hits, top-5 hits, images.
        logs: one value per finished epoch.
        failed: rows of the training images that could not be decoded.
        seconds: duration of the work so far, over all attempts.
        score: score of the test after the last finished epoch; not saved.
        images_per_second: speed of training in this attempt, without tests; not saved.
    """

    epoch: int = 0
    step: int = 0
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
        self.epoch, self.step = self.epoch + 1, 0
        self.sums = torch.zeros(4, dtype=torch.float64)


def save(
    path: Path,
    position: Position,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Save the state that the following steps depend on.

    Raises:
        CogError: when the file cannot be written.
    """
    scale = scaler.state_dict()
    state = {
        "network": {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()},
        "momentum": {
            name: optimizer.state[parameter]["momentum_buffer"].cpu()
            for name, parameter in network.named_parameters()
            if optimizer.state.get(parameter, {}).get("momentum_buffer") is not None
        },
        "scaler": torch.tensor(
            [scale["scale"], scale["_growth_tracker"]] if scale else [], dtype=torch.float64
        ),
        "position": torch.tensor([position.epoch, position.step]),
        "sums": position.sums.cpu(),
        "logs": {key: torch.tensor(values, dtype=torch.float64) for key, values in position.logs.items()},
        "failed": torch.tensor(sorted(position.failed), dtype=torch.int64),
        "seconds": torch.tensor(position.seconds, dtype=torch.float64),
    }
    with files.atomic_write(path) as handle:
        torch.save(state, handle)


def load(
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> Position:
    """Load a saved state into network, optimizer and scaler, and return the position of the training.

    Raises:
        CogError: a damaged file, or the state of another network.
    """
    parameters = dict(network.named_parameters())
    try:
        state: Any = load_torch(path)
        epoch, step = state["position"].tolist()
        position = Position(
            epoch=epoch,
            step=step,
            sums=state["sums"].double(),
            logs={key: state["logs"][key].tolist() for key in new_logs()},
            failed=set(state["failed"].tolist()),
            seconds=float(state["seconds"]),
        )
        network.load_state_dict(state["network"])
        for name, momentum in state["momentum"].items():
            parameter = parameters[name]
            optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)
        if len(state["scaler"]) and scaler.is_enabled():
            scale, growth = state["scaler"].tolist()
            scaler.load_state_dict(scaler.state_dict() | {"scale": scale, "_growth_tracker": int(growth)})
    except (CogError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CogError(
            f"{path} is not a readable state of this run ({first_line(error)[:200]}); remove the file to start again"
        ) from error
    return position
