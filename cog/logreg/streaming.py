"""Bringing rows to the training steps: large blocks of many steps, gathered while the steps before them run.

A :class:`Feed` fills two :class:`Slot` in turn, at fixed addresses, so that the steps over a slot can be one CUDA
graph. :class:`ResidentFeed` gathers from features on the device; :class:`HostFeed` from features that do not fit
there (:class:`HostMatrix`): a thread gathers into pinned memory and a stream of its own copies, so that gathering,
copying and training overlap. Both deliver the same bits in the same order. On the CPU everything happens in order.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from cog.logreg.matrix import FeatureMatrix

#: Pinned buffers of a :class:`HostFeed`: one being gathered, one waiting, one being copied.
_N_STAGING = 3


def on_stream(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[object]:
    """Issue work to ``stream``; None (no CUDA) changes nothing."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


class HostMatrix:
    """Features that stay in host memory, read from a device.

    Args:
        host: features on the CPU.
        device: where batches are wanted; row numbers come from there, too.
    """

    def __init__(self, host: FeatureMatrix, device: torch.device) -> None:
        self.host = host
        self.n, self.dim, self.dtype, self.nbytes = host.n, host.dim, host.dtype, host.nbytes
        self.device = device

    def batch(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See :class:`cog.logreg.matrix.FeatureMatrix`; waits for the copy."""
        x = self.host.batch(rows.cpu())
        return x.to(self.device) if out is None else out.copy_(x)

    def exact(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`cog.logreg.matrix.FeatureMatrix`; waits for the copy."""
        return self.host.exact(rows.cpu()).to(self.device)


class Slot:
    """Room for a block of rows on the device.

    Attributes:
        x: ``(m, d)`` in the working precision.
        y: int64 ``(m,)``.
        filled: CUDA event: the rows are there.
        used: CUDA event: the last steps over them are done.
    """

    def __init__(self, n_rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.x = torch.zeros(n_rows, dim, dtype=dtype, device=device)
        self.y = torch.zeros(n_rows, dtype=torch.int64, device=device)
        cuda = device.type == "cuda"
        self.filled = torch.cuda.Event() if cuda else None
        self.used = torch.cuda.Event() if cuda else None


class Feed(Protocol):
    """Delivers the rows of some epochs, block by block."""

    def next(self) -> Slot:
        """Return the next block; the current stream waits for it. The block after it is already on its way."""
        ...

    def release(self) -> None:
        """Say that all work on the block has been issued to the current stream: its slot may be filled again."""
        ...

    def close(self) -> None:
        """Stop; the slots are not written any more."""
        ...


def open_feed(
    features: FeatureMatrix,
    y: torch.Tensor,
    epochs: Iterator[torch.Tensor],
    slots: Sequence[Slot],
    stream: torch.cuda.Stream | None,
) -> Feed:
    """Start to deliver rows.

    Args:
        features: ``(n, d)``, on the device or a :class:`HostMatrix`.
        y: int64 ``(n,)``, where the features are (for a :class:`HostMatrix`, on the CPU).
        epochs: the rows of each epoch in their order: int64, on the CPU.
        slots: two, each with room for a block; an epoch ends with a shorter one.
        stream: for gathering and copying; None on the CPU.
    """
    if isinstance(features, HostMatrix):
        return HostFeed(features.host, y, epochs, slots, stream)
    return ResidentFeed(features, y, epochs, slots, stream)


class _TwoSlots:
    """What both feeds share: fill one slot while the other is in use."""

    def __init__(self, slots: Sequence[Slot], stream: torch.cuda.Stream | None) -> None:
        self._slots, self._stream = slots, stream
        self._taken = -1  # blocks handed out, minus one
        self._ready = False
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())  # which made the slots, and perhaps the features

    def _fill(self, slot: Slot) -> bool:
        """Issue the next block into a slot, on the current stream; False when there is none."""
        raise NotImplementedError

    def _prefetch(self, slot: Slot) -> None:
        with on_stream(self._stream):
            if self._stream is not None and slot.used is not None:
                self._stream.wait_event(slot.used)  # returns at once when it has not been recorded yet
            self._ready = self._fill(slot)
            if self._stream is not None and slot.filled is not None:
                slot.filled.record(self._stream)

    def next(self) -> Slot:
        """See :meth:`Feed.next`."""
        if self._taken < 0:
            self._prefetch(self._slots[0])
        assert self._ready, "more blocks wanted than there are"
        self._taken += 1
        slot, other = self._slots[self._taken % 2], self._slots[(self._taken + 1) % 2]
        if slot.filled is not None:
            torch.cuda.current_stream().wait_event(slot.filled)
        self._prefetch(other)
        return slot

    def release(self) -> None:
        """See :meth:`Feed.release`."""
        slot = self._slots[self._taken % 2]
        if slot.used is not None:
            slot.used.record(torch.cuda.current_stream())

    def close(self) -> None:
        """See :meth:`Feed.close`."""
        if self._stream is not None:
            self._stream.synchronize()


class ResidentFeed(_TwoSlots):
    """Gathers from features on the device; arguments of :func:`open_feed`."""

    def __init__(
        self,
        features: FeatureMatrix,
        y: torch.Tensor,
        epochs: Iterator[torch.Tensor],
        slots: Sequence[Slot],
        stream: torch.cuda.Stream | None,
    ) -> None:
        super().__init__(slots, stream)
        self._features = features
        self._y = y
        self._blocks = self._row_blocks(epochs, len(slots[0].y))

    def _row_blocks(self, epochs: Iterator[torch.Tensor], size: int) -> Iterator[torch.Tensor]:
        for order in epochs:
            if self._stream is not None:
                order = (
                    order.pin_memory()
                )  # else the host would wait for the copy, and so for the block before
            yield from order.to(self._features.device, non_blocking=True).split(size)

    def _fill(self, slot: Slot) -> bool:
        rows = next(self._blocks, None)
        if rows is None:
            return False
        self._features.batch(rows, out=slot.x[: len(rows)])
        torch.index_select(self._y, 0, rows, out=slot.y[: len(rows)])
        return True


@dataclass(eq=False)
class _Staging:
    """A pinned buffer on the host."""

    x: torch.Tensor
    y: torch.Tensor
    copied: torch.cuda.Event | None
    n_rows: int = 0


class HostFeed(_TwoSlots):
    """Gathers from host memory in a thread; arguments of :func:`open_feed`, features on the CPU."""

    def __init__(
        self,
        host: FeatureMatrix,
        y: torch.Tensor,
        epochs: Iterator[torch.Tensor],
        slots: Sequence[Slot],
        stream: torch.cuda.Stream | None,
    ) -> None:
        super().__init__(slots, stream)
        self._host, self._y, self._epochs = host, y, epochs
        self._free: queue.Queue[_Staging | None] = queue.Queue()
        self._gathered: queue.Queue[_Staging | BaseException | None] = queue.Queue()
        pinned = stream is not None
        size = len(slots[0].y)
        for _ in range(_N_STAGING):
            self._free.put(
                _Staging(
                    torch.empty(size, host.dim, dtype=host.dtype, pin_memory=pinned),
                    torch.empty(size, dtype=torch.int64, pin_memory=pinned),
                    torch.cuda.Event() if pinned else None,
                )
            )
        self._size = size
        self._thread = threading.Thread(target=self._gather, name="feature rows", daemon=True)
        self._thread.start()

    def _gather(self) -> None:
        try:
            for order in self._epochs:
                for rows in order.split(self._size):
                    staging = self._free.get()
                    if staging is None:
                        return
                    if staging.copied is not None:
                        staging.copied.synchronize()
                    staging.n_rows = len(rows)
                    self._host.batch(rows, out=staging.x[: len(rows)])
                    torch.index_select(self._y, 0, rows, out=staging.y[: len(rows)])
                    self._gathered.put(staging)
            self._gathered.put(None)
        except BaseException as error:
            self._gathered.put(error)  # raised where the rows are wanted

    def _fill(self, slot: Slot) -> bool:
        staging = self._gathered.get()
        if staging is None:
            return False
        if isinstance(staging, BaseException):
            raise staging
        slot.x[: staging.n_rows].copy_(staging.x[: staging.n_rows], non_blocking=True)
        slot.y[: staging.n_rows].copy_(staging.y[: staging.n_rows], non_blocking=True)
        if staging.copied is not None:
            staging.copied.record(torch.cuda.current_stream())
        self._free.put(staging)
        return True

    def close(self) -> None:
        """See :meth:`Feed.close`."""
        self._free.put(None)
        self._thread.join()
        super().close()
