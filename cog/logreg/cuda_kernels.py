"""The functions of :mod:`cog.logreg.kernels` as Triton kernels, one pass over the memory each; and gathering rows.

At 1000 classes and 2048 dimensions an update moves 44 MB where the plain operations move twice that: by the data sheet
of an H200 (4.8 TB/s, 990 TFLOP/s) 9 us, as long as the two matrix products of the step. The kernels use no atomic
operation: the same input gives the same bits.

Multiplications and additions are fused, which newer versions of Triton no longer do unasked.

In a training step all pointers that are passed begin an allocation, and the integers that change from step to step
are not specialised on: no kernel has to be compiled anew while a CUDA graph is being captured.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Beyond this a row of logits does not fit into the registers of a block.
MAX_CLASSES = 16384

#: Indices are 32-bit.
MAX_WEIGHTS = 2**31 - 2**16

_BLOCK = 2048  # weights per program: 16 per thread, enough loads in flight to fill the memory bus
_BLOCK_CLASSES = (
    16  # of the bias gradient: 32 bytes of bfloat16 per row, the smallest whole memory transaction
)
_BLOCK_ROWS = 256


@triton.jit(do_not_specialize=["start"])
def _softmax_gradient(
    logits, bias, y, start, gradient, loss, rank, N_CLASSES: tl.constexpr, BLOCK: tl.constexpr, RECORD: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < N_CLASSES
    at = row * N_CLASSES + column
    label = tl.load(y + start + row).to(tl.int32)
    z = tl.load(logits + at, mask=inside, other=float("-inf"))
    z = z + tl.load(bias + column, mask=inside, other=0.0)
    top = tl.max(z, 0)
    e = tl.exp(z - top)
    total = tl.sum(e, 0)
    is_label = column == label
    result = e / total - tl.where(is_label, 1.0, 0.0)
    tl.store(gradient + at, result.to(gradient.dtype.element_ty), mask=inside)
    if RECORD:
        target = tl.sum(tl.where(is_label, z, 0.0), 0)
        tl.store(loss + start + row, top + tl.log(total) - target)
        before = (z > target) | ((z == target) & (column < label))
        count = tl.sum(tl.where(before & inside, 1, 0), 0)
        finite = tl.abs(target) < float("inf")  # false for NaN
        tl.store(rank + start + row, tl.where(finite, count, N_CLASSES))


@triton.jit(do_not_specialize=["row"])
def _update(
    weight, weight_velocity, low, weight_gradient, n_weights,
    bias, bias_velocity, gradient, batch,
    rates, row, momentum, scale,
    N_CLASSES: tl.constexpr, N_BIAS: tl.constexpr, LOW: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_CLASSES: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    lr = tl.load(rates + 2 * row)
    wd = tl.load(rates + 2 * row + 1)
    if program < N_BIAS:  # first, because they take longer than the programs for the weights
        column = program * BLOCK_CLASSES + tl.arange(0, BLOCK_CLASSES)
        known = column < N_CLASSES
        total = tl.zeros([BLOCK_CLASSES], tl.float32)
        for first in range(0, batch, BLOCK_ROWS):
            sample = first + tl.arange(0, BLOCK_ROWS)
            part = tl.load(
                gradient + sample[:, None] * N_CLASSES + column[None, :],
                mask=(sample < batch)[:, None] & known[None, :],
                other=0.0,
            )
            total += tl.sum(part.to(tl.float32), 0)
        b = tl.load(bias + column, mask=known, other=0.0)
        bv = tl.load(bias_velocity + column, mask=known, other=0.0)
        bv = momentum * bv + total * scale + wd * b
        tl.store(bias_velocity + column, bv, mask=known)
        tl.store(bias + column, b - lr * bv, mask=known)
    else:
        at = (program - N_BIAS) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n_weights
        g = tl.load(weight_gradient + at, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + at, mask=inside, other=0.0)
        v = tl.load(weight_velocity + at, mask=inside, other=0.0)
        v = momentum * v + g * scale + wd * w
        w = w - lr * v
        tl.store(weight_velocity + at, v, mask=inside)
        tl.store(weight + at, w, mask=inside)
        if LOW:
            tl.store(low + at, w.to(low.dtype.element_ty), mask=inside)


@triton.jit
def _gather(source, rows, out, STRIDE: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr):
    position = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + position)
    for start in range(0, DIM, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < DIM
        values = tl.load(source + row * STRIDE + column, mask=inside)
        tl.store(out + position * DIM + column, values, mask=inside)


def gather(source: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
    """Copy the beginnings of rows: ``out[i] = source[rows[i], :d]``.

    ``torch.index_select`` divides 64-bit numbers for each element once a tensor has 2^31 of them, which would take
    a good part of the multiprocessors from the training steps.

    Args:
        source: ``(n, s)``, contiguous, of any number of elements.
        rows: int64 ``(b,)``.
        out: ``(b, d)``, contiguous, d at most s.
    """
    dim = out.shape[1]
    block = min(triton.next_power_of_2(dim), _BLOCK)
    _gather[(len(rows),)](source, rows, out, STRIDE=source.shape[1], DIM=dim, BLOCK=block, num_warps=4)


def softmax_gradient(
    logits: torch.Tensor,
    bias: torch.Tensor,
    y: torch.Tensor,
    start: int,
    gradient: torch.Tensor,
    loss: torch.Tensor | None = None,
    rank: torch.Tensor | None = None,
) -> None:
    """See :func:`cog.logreg.kernels.softmax_gradient`; all tensors contiguous, C at most :data:`MAX_CLASSES`."""
    n_rows, n_classes = logits.shape
    block = triton.next_power_of_2(n_classes)
    _softmax_gradient[(n_rows,)](
        logits, bias, y, start, gradient,
        logits if loss is None else loss, y if rank is None else rank,
        N_CLASSES=n_classes, BLOCK=block, RECORD=loss is not None,
        num_warps=4 if block <= 2048 else 8 if block <= 4096 else 16, enable_fp_fusion=True,
    )  # fmt: skip


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
    """See :func:`cog.logreg.kernels.update`; all tensors contiguous, at most :data:`MAX_WEIGHTS` weights."""
    n_classes = len(bias)
    n_bias = triton.cdiv(n_classes, _BLOCK_CLASSES)
    _update[(n_bias + triton.cdiv(weight.numel(), _BLOCK),)](
        weight, weight_velocity, weight if low is None else low, weight_gradient, weight.numel(),
        bias, bias_velocity, gradient, len(gradient),
        rates, row, float(momentum), 1 / len(gradient),
        N_CLASSES=n_classes, N_BIAS=n_bias, LOW=low is not None,
        BLOCK=_BLOCK, BLOCK_CLASSES=_BLOCK_CLASSES, BLOCK_ROWS=_BLOCK_ROWS,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
