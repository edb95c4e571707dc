"""Replay of SGD steps from CUDA graphs, where it gives the same bits as issuing every kernel.

A graph saves the kernel launches of a step, which are most of its time on a fast GPU. Graphs are used only after a
check on the user's device with the real sizes: for each batch size, the first step is issued as usual (libraries do
their setup, which is not possible while a graph is captured); the next two steps are done both ways, from the same
state, and compared bit for bit. After a failure or a difference, there is one warning, and training continues without
graphs from the result of the usual step.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from cog.errors import first_line
from cog.logreg.learners import Learner, Step
from cog.logreg.precision import products

logger = logging.getLogger(__name__)

#: Environment variable that turns graphs off when it is 0.
VARIABLE = "COG_CUDA_GRAPHS"

#: Steps of each size that are done both ways.
_COMPARED = 2


class Graphs:
    """Switch for the replay of the steps of an engine, shared by all its trainings.

    Args:
        wanted: whether the device supports graphs.

    Attributes:
        enabled: whether graphs are used, or may be used after a check.
    """

    def __init__(self, *, wanted: bool) -> None:
        self.enabled = wanted and os.environ.get(VARIABLE) != "0"
        self._kept: torch.cuda.CUDAGraph | None = None

    def pool(self, device: torch.device) -> Any:
        """Return the memory pool of the graphs; to be called as graphs are captured.

        Graphs run one after the other and leave nothing in the pool, so they can share it. With a pool of its own for
        each graph, the memory of the graphs of finished trainings would stay reserved, gigabytes in a search. A pool
        lasts as long as one of its graphs, so a small one is kept.
        """
        if self._kept is None:
            self._kept = _capture(lambda: torch.zeros(1, device=device), None)
        return self._kept.pool()

    def give_up(self, reason: str, device: torch.device) -> None:
        """Switch graphs off, log a warning once, and wait for the stream: an error, when it is no longer usable."""
        if self.enabled:
            self.enabled = False
            logger.warning("CUDA graphs are not used: %s; training is correct, but slower", reason)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


class Stepper:
    """The steps of a learner, replayed from graphs that have passed their check.

    Args:
        learner: learner with all tensors that a step changes in :attr:`~Learner.tensors`.
        graphs: switch of the engine.
        precision: precision of the products, see :func:`cog.logreg.precision.products`.

    Attributes:
        n_replays: steps that were replayed after the comparison.
    """

    def __init__(self, learner: Learner, graphs: Graphs, precision: str) -> None:
        self._learner, self._graphs, self._precision = learner, graphs, precision
        # By the size of the batch:
        self._steps: dict[int, Step] = {}
        self._captured: dict[int, torch.cuda.CUDAGraph] = {}
        self._n_done: dict[int, int] = {}
        self.n_replays = 0

    def step(self, b: int) -> None:
        """Do a step on the ``b`` loaded rows."""
        n_done = self._n_done.get(b, 0)
        if n_done == 0:
            self._steps[b] = self._learner.make_step(b)
        self._n_done[b] = n_done + 1
        if not self._graphs.enabled or n_done == 0:
            self._issue(b)
        elif n_done <= _COMPARED:
            self._compare(b)
        else:
            self._replay(b)

    def _issue(self, b: int) -> None:
        with products(self._learner.device, self._precision):
            self._steps[b]()

    def _compare(self, b: int) -> None:
        """Do a step both ways; keep the state of the usual step when they differ."""
        before = self._copies()
        self._issue(b)
        after = None if before is None else self._copies()
        if before is None or after is None:
            self._graphs.give_up("there is not enough memory to check them", self._learner.device)
            return
        reason = ""
        try:
            self._restore(before)
            if b not in self._captured:
                with products(self._learner.device, self._precision):
                    self._captured[b] = _capture(self._steps[b], self._graphs.pool(self._learner.device))
            self._captured[b].replay()
            if not all(map(_same_bits, self._learner.tensors, after)):
                reason = "a replayed step does not give the same bits as an issued one"
        except RuntimeError as error:  # also when memory runs out
            reason = first_line(error)
        if reason:
            self._graphs.give_up(reason, self._learner.device)
            self._restore(after)

    def _replay(self, b: int) -> None:
        try:
            self._captured[b].replay()  # launches all kernels or none
            self.n_replays += 1
        except RuntimeError as error:
            self._graphs.give_up(first_line(error), self._learner.device)
            self._issue(b)

    def _copies(self) -> list[torch.Tensor] | None:
        try:
            return [tensor.clone() for tensor in self._learner.tensors]
        except torch.OutOfMemoryError:
            return None

    def _restore(self, values: list[torch.Tensor]) -> None:
        for tensor, value in zip(self._learner.tensors, values, strict=True):
            tensor.copy_(value)


def _capture(step: Callable[[], object], pool: Any) -> torch.cuda.CUDAGraph:
    """Return the graph of a step, which is recorded and not executed, with memory of a pool (None: a new one).

    ``torch.cuda.graph`` would collect garbage, empty the cache and wait for the device before each graph, which only
    larger graphs need for their memory. Here, garbage is merely not collected in between: that could free a graph.
    """
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            step()
        finally:
            graph.capture_end()
    finally:
        if collects:
            gc.enable()
    return graph


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are equal bit for bit, so that NaN equals NaN."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return torch.equal(a.view(kinds[a.element_size()]), b.view(kinds[b.element_size()]))
