"""What a training step does between its two matrix products, in plain torch operations.

:mod:`cog.logreg.cuda_kernels` has the same two functions as Triton kernels, which pass over the memory once; these
here define what they compute, and serve where Triton is missing.
"""

from __future__ import annotations

import torch

from cog.logreg import metrics


def softmax_gradient(
    logits: torch.Tensor,
    bias: torch.Tensor,
    y: torch.Tensor,
    start: int,
    gradient: torch.Tensor,
    loss: torch.Tensor | None = None,
    rank: torch.Tensor | None = None,
) -> None:
    """Derive the summed cross-entropy of a batch by its logits: probabilities minus one-hot labels.

    Args:
        logits: float32 ``(b, C)`` without the bias; may be overwritten.
        bias: float32 ``(C,)``.
        y: int64 ``(m,)``; the labels of the batch are those from ``start`` on.
        start: position of the batch in ``y``, ``loss`` and ``rank``.
        gradient: ``(b, C)`` in the operand type of the matrix products, receives the result.
        loss: float32 ``(m,)``, receives the cross-entropy of each sample.
        rank: int32 ``(m,)``, receives :func:`cog.logreg.metrics.true_class_rank`; with ``loss``.
    """
    part = slice(start, start + len(logits))
    labels = y[part]
    logits.add_(bias)
    if loss is not None and rank is not None:
        torch.sub(torch.logsumexp(logits, 1), logits.gather(1, labels[:, None])[:, 0], out=loss[part])
        rank[part] = metrics.true_class_rank(logits, labels)
    probabilities = torch.softmax(logits, 1)
    probabilities.scatter_add_(1, labels[:, None], torch.full_like(probabilities[:, :1], -1.0))
    gradient.copy_(probabilities)


def update(
    weight: torch.Tensor,
    weight_velocity: torch.Tensor,
    low: torch.Tensor | None,
    weight_gradient: torch.Tensor,
    bias: torch.Tensor,
    bias_velocity: torch.Tensor,
    gradient: torch.Tensor,
    rates: torch.Tensor,
    row: int,
    momentum: float,
) -> None:
    """One step of ``torch.optim.SGD`` for one run, in place.

    Nothing here looks at other runs, so a run that diverged stays alone with its NaN.

    Args:
        weight: float32 ``(C, d)``.
        weight_velocity: float32 ``(C, d)``.
        low: ``(C, d)``, receives ``weight`` in the operand type; None in float32.
        weight_gradient: ``(C, d)``, summed over the batch.
        bias: float32 ``(C,)``.
        bias_velocity: float32 ``(C,)``.
        gradient: ``(b, C)``, of the logits; its column sums are the gradient of the bias, b scales both.
        rates: float32 ``(R, 2)``: learning rate and weight decay of all runs, on the device.
        row: of ``rates``.
        momentum: of SGD.
    """
    scale = 1 / len(gradient)
    lr, wd = rates[row]
    bias_gradient = gradient.sum(0, dtype=torch.float32)
    for parameter, velocity, summed in (
        (weight, weight_velocity, weight_gradient),
        (bias, bias_velocity, bias_gradient),
    ):
        velocity.mul_(momentum).add_(summed, alpha=scale).addcmul_(parameter, wd)
        parameter.addcmul_(velocity, lr, value=-1.0)
    if low is not None:
        low.copy_(weight)
