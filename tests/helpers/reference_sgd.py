"""The training loop in plain PyTorch, short enough to check by reading: the engines must agree with it."""

from __future__ import annotations

import torch

from cog.logreg import metrics, sgd
from cog.logreg.matrix import FloatMatrix
from cog.logreg.settings import Settings
from cog.logreg.sgd import TrainedClassifier, TrainSpec
from cog.runtime.random_streams import cpu_generator


class SgdTrainer:
    """One run after the other, on one device.

    Equals ``torch.nn.Linear`` trained with ``torch.optim.SGD`` and ``CrossEntropyLoss`` (paper Sec. 4.1 and
    supplement B.3); the gradient of the softmax is written out, which is as short and spares the autograd
    graph.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    @torch.no_grad()
    def fit(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        spec: TrainSpec,
        settings: Settings,
        *,
        test: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> TrainedClassifier:
        """Train one classifier on float32 ``x`` ``(n, d)`` and int64 ``y`` ``(n,)``; ``test`` makes the logs."""
        device, momentum = self.device, settings.momentum
        ((lr0, wd),) = spec.pairs
        n_classes = int(y.max()) + 1
        (layer,) = sgd.initial_layers([x.shape[1], n_classes], spec.init_seed)
        weight, bias = (tensor.to(device) for tensor in layer)
        weight_velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
        order_generator = cpu_generator(spec.order_seed)
        logs = metrics.new_logs() if test is not None else None
        predictions = None
        rows = spec.rows.to(x.device)
        n = len(rows)
        for epoch in range(settings.n_epochs):
            lr = sgd.learning_rate(lr0, epoch, settings.n_epochs)
            order = torch.randperm(n, generator=order_generator).to(x.device)
            sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, top-1, top-5 over the epoch
            for start in range(0, n, settings.batch_size):
                batch = rows[order[start : start + settings.batch_size]]
                xb, yb = x[batch].to(device), y[batch].to(device)
                log_p = torch.log_softmax(torch.addmm(bias, xb, weight.T), dim=1)  # (b, C)
                if logs is not None:
                    _add_batch(sums, log_p, yb)
                gradient = log_p.exp()
                gradient[torch.arange(len(yb), device=device), yb] -= 1
                gradient /= len(yb)
                _step(weight, weight_velocity, gradient.T @ xb, lr=lr, wd=wd, momentum=momentum)
                _step(bias, bias_velocity, gradient.sum(0), lr=lr, wd=wd, momentum=momentum)
            finite = bool(torch.isfinite(weight.sum() + bias.sum()))
            if logs is not None and test is not None:
                loss, top1, top5 = (sums / n).tolist()
                score, predictions = metrics.evaluate(
                    FloatMatrix(test[0]), test[1], TrainedClassifier([(weight, bias)]).logits
                )
                rate = sgd.logged_rate(lr0, epoch, settings.n_epochs)
                metrics.append_epoch(logs, metrics.Evaluation(loss, 100 * top1, 100 * top5), score, rate)
            if not finite:
                break
        return TrainedClassifier([(weight, bias)], diverged=not finite, logs=logs, predictions=predictions)


def _add_batch(sums: torch.Tensor, log_p: torch.Tensor, y: torch.Tensor) -> None:
    rank = metrics.true_class_rank(log_p, y)
    sums[0] -= log_p.gather(1, y[:, None]).sum()
    sums[1] += (rank < 1).sum()
    sums[2] += (rank < 5).sum()


def _step(
    parameter: torch.Tensor,
    velocity: torch.Tensor,
    gradient: torch.Tensor,
    *,
    lr: float,
    wd: float,
    momentum: float,
) -> None:
    """One update of ``torch.optim.SGD``: decay goes into the gradient, momentum without dampening."""
    velocity.mul_(momentum).add_(gradient).add_(parameter, alpha=wd)
    parameter.add_(velocity, alpha=-lr)
