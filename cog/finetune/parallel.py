"""Several processes that fine-tune one network together: what they tell each other, and starting them.

Processes come from torchrun (or a scheduler that sets the same variables: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
MASTER_PORT), or from :func:`launch`, which passes signals on and keeps the exit codes that torchrun turns into 1.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeVar

from cog.errors import CogError
from cog.runtime import ranks
from cog.runtime.ranks import Rank

T = TypeVar("T")

#: Exit code of a process that only lost the others: what one of those says is the reason.
_LOST = 70

#: Seconds that the other processes get to end by themselves when one has failed.
_GRACE_SECONDS = 10.0


class LostProcessError(CogError):
    """Another process is gone."""

    exit_code = _LOST


class SharedError(CogError):
    """Something that every process finds at the same time: process 0 says it."""


def place() -> Rank:
    """Return this process's place, from the variables of torchrun.

    Raises:
        CogError: variables that contradict each other.
    """
    return ranks.of_torchrun(os.environ) or Rank()


class Group:
    """The processes of a run; of a single one, everything is trivially agreed.

    Args:
        rank: number of this process among them.
        device: holds its tensors.
    """

    def __init__(self, rank: Rank, device: Any) -> None:
        self.rank = rank.number
        self.size = rank.size
        self.device = device

    def sum_(self, tensor: Any) -> Any:
        """Replace ``tensor`` by the sum over all processes; returns it."""
        return self._reduce(tensor, "SUM")

    def max_(self, tensor: Any) -> Any:
        """Replace ``tensor`` by the maximum over all processes; returns it."""
        return self._reduce(tensor, "MAX")

    def _reduce(self, tensor: Any, operation: str) -> Any:
        if self.size > 1:
            import torch.distributed as dist

            with _others_may_be_gone():
                dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation))
        return tensor

    def agree(self, decide: Callable[[], T]) -> T:
        """Return what process 0 decides; when that fails, all fail, and only process 0 says why.

        Args:
            decide: called in process 0 only; returns something small that can be pickled.

        Raises:
            CogError: of ``decide``, in process 0.
            SystemExit: in the others.
        """
        if self.size == 1:
            return decide()
        import torch.distributed as dist

        answer: list[Any] = [None, 0]
        error: CogError | None = None
        if self.rank == 0:
            try:
                answer[0] = decide()
            except CogError as problem:
                error = problem
                answer[1] = problem.exit_code
        with _others_may_be_gone():
            dist.broadcast_object_list(answer, src=0, device=self.device)
        if error is not None:
            raise error
        if answer[1]:
            raise SystemExit(answer[1])
        return answer[0]


@contextlib.contextmanager
def _others_may_be_gone() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise LostProcessError(f"lost the connection to another process ({first[:200]})") from error


@contextlib.contextmanager
def joined(rank: Rank, device: Any) -> Iterator[Group]:
    """Meet the other processes.

    Args:
        rank: number of this process among them.
        device: a CPU communicates through gloo, a GPU through NCCL.

    Raises:
        CogError: when they cannot be reached.
    """
    if rank.size == 1:
        yield Group(rank, device)
        return
    import torch.distributed as dist

    try:
        if device.type == "cuda":
            dist.init_process_group("nccl", rank=rank.number, world_size=rank.size, device_id=device)
        else:
            dist.init_process_group("gloo", rank=rank.number, world_size=rank.size)
    except (RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise CogError(f"process {rank.number} of {rank.size} cannot join the others: {first}") from error
    try:
        yield Group(rank, device)
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def leave(code: int) -> NoReturn:
    """End this process without taking the interpreter apart.

    PyTorch's communication threads now and then abort a process that ends in the usual way ("terminate called without
    an active exception", 1 of 8 runs with two processes), which torchrun takes for a failure of the run.
    """
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def launch(command: Sequence[str], n_processes: int) -> int:
    """Run the same command in several processes on this machine.

    SIGTERM and SIGUSR1 are passed on, so that they save what they have. When one fails, the others are ended.

    Args:
        command: to run; each process gets the variables that torchrun sets.
        n_processes: how many.

    Returns:
        0, or the exit code of the process that failed (of several, the first by rank).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = os.environ | {
        "WORLD_SIZE": str(n_processes),
        "LOCAL_WORLD_SIZE": str(n_processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    shared.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: the processes share the processors
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            with contextlib.suppress(OSError):
                child.send_signal(number)

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        for rank in range(n_processes):
            children.append(
                subprocess.Popen(list(command), env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            )
        return _wait(children)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> int:
    deadline: float | None = None
    while any(child.poll() is None for child in children):
        failed = any(child.poll() not in (None, 0) for child in children)
        if failed and deadline is None:
            deadline = time.monotonic() + _GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            for child in children:
                if child.poll() is None:
                    child.terminate()
            deadline = time.monotonic() + _GRACE_SECONDS
            while any(child.poll() is None for child in children) and time.monotonic() < deadline:
                time.sleep(0.05)
            for child in children:
                if child.poll() is None:
                    child.kill()
        time.sleep(0.05)
    codes = [child.returncode for child in children if child.returncode]
    if not codes:
        return 0
    code = next((code for code in codes if code not in (_LOST, -signal.SIGTERM, -signal.SIGKILL)), codes[0])
    return code if code > 0 else 128 - code
