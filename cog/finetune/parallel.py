"""Several processes that fine-tune one network together: their start and their communication.

Processes are started by torchrun, or by a scheduler that sets the same variables: RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from cog.errors import CogError, first_line
from cog.runtime import ranks
from cog.runtime.ranks import Rank

T = TypeVar("T")

#: Exit code of a process that only lost the connection to the others; another process reports the reason.
_LOST = 70


class LostProcessError(CogError):
    """The connection to another process is lost."""

    exit_code = _LOST


class SharedError(CogError):
    """An error that occurs in every process at the same time; process 0 reports it."""


def place() -> Rank:
    """Return the rank of this process, from the variables of torchrun."""
    return ranks.of_torchrun(os.environ) or Rank()


class Group:
    """The processes of a run, of which this one has a rank, and its tensors on a device; one needs no communication."""

    def __init__(self, rank: Rank, device: Any) -> None:
        self.rank, self.size, self.device = rank.number, rank.size, device

    def sum_(self, tensor: Any) -> Any:
        """Replace ``tensor``, on the device, by its sum over all processes, and return it."""
        if self.size > 1:
            import torch.distributed as dist

            with self.connection_explained(always=True):
                dist.all_reduce(tensor)
        return tensor

    def agree(self, decide: Callable[[], T]) -> T:
        """Return the decision of process 0; when it fails, all processes fail, and only process 0 reports the error.

        Args:
            decide: function called in process 0 only; returns a small value that can be pickled.
        """
        if self.size == 1:
            return decide()
        import torch.distributed as dist

        answer: list[Any] = [None, 0]  # the decision and the exit code of an error
        error: CogError | None = None
        if self.rank == 0:
            try:
                answer[0] = decide()
            except CogError as problem:
                error, answer[1] = problem, problem.exit_code
        with self.connection_explained(always=True):
            dist.broadcast_object_list(answer, src=0, device=self.device)
        if answer[1]:
            raise error or SystemExit(answer[1])
        return answer[0]

    @contextlib.contextmanager
    def connection_explained(self, *, always: bool = False) -> Iterator[None]:
        """Turn the error of a broken connection in the block into one line.

        Args:
            always: whether any ``RuntimeError`` in the block means a broken connection, also without such a text.
        """
        try:
            yield
        except RuntimeError as error:
            is_connection = always or re.search(r"gloo|NCCL|[Cc]onnection|peer", str(error))
            if self.size == 1 or not is_connection:
                raise
            raise LostProcessError(
                f"lost the connection to another process ({first_line(error)[:200]})"
            ) from error


@contextlib.contextmanager
def joined(rank: Rank, device: Any) -> Iterator[Group]:
    """Connect this process with the others for the block (CPUs by gloo, GPUs by NCCL), and yield the group."""
    if rank.size == 1:
        yield Group(rank, device)
        return
    import torch.distributed as dist

    backend, options = ("nccl", {"device_id": device}) if device.type == "cuda" else ("gloo", {})
    try:
        dist.init_process_group(backend, rank=rank.number, world_size=rank.size, **options)
    except (RuntimeError, ValueError) as error:
        raise CogError(
            f"process {rank.number} of {rank.size} cannot join the others: {first_line(error)}"
        ) from error
    try:
        yield Group(rank, device)
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def leave(code: int) -> NoReturn:
    """End this process without the shutdown of the interpreter.

    PyTorch's communication threads now and then abort a process that ends in the usual way ("terminate called without
    an active exception", 1 of 8 runs with two processes), which torchrun takes for a failure of the run.
    """
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
