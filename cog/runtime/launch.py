"""Run a script as several processes of this machine: ``python -m cog.runtime.launch N SCRIPT ARGUMENTS...``.

The processes are numbered in the same environment variables as by ``torchrun``. Unlike ``torchrun``, this launcher
keeps exit codes (75: interrupted, 3: failed images), needs no port, and lets the other processes take over the work of
a process that dies.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from cog.runtime import cli as cli_tools
from cog.runtime import ranks, signals

_POLL_SECONDS = 0.05

#: Seconds from the failure of a process to SIGTERM for the processes that need it, and from there to SIGKILL.
_GRACE_SECONDS = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the processes and return the exit code of rank 0, which publishes (128 + signal, as in shells)."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = cli_tools.OneLineParser(prog="cog.runtime.launch", description=__doc__, add_help=False)
    if len(words) < 2 or not words[0].isdecimal() or int(words[0]) < 1:
        parser.error("expected N SCRIPT ARGUMENTS..., N being the number of processes")
    size = int(words[0])
    # Without a limit, each process would start as many threads as there are processors.
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, ranks.n_processors() // size)))
    variables = {"TORCHELASTIC_RUN_ID": secrets.token_hex(8), "OMP_NUM_THREADS": threads}
    codes = run_processes([sys.executable, *words[1:]], size, variables)
    for rank, code in enumerate(codes):
        if code < 0 and (rank == 0 or code != -signal.SIGTERM):
            print(f"rank {rank} was ended by {signal.Signals(-code).name}", file=sys.stderr)
    return codes[0] if codes[0] >= 0 else 128 - codes[0]


def run_processes(
    command: Sequence[str], size: int, variables: Mapping[str, str], *, need_each_other: bool = False
) -> list[int]:
    """Run a command in several processes, and return their exit codes by rank (minus the number of a fatal signal).

    SIGTERM and SIGUSR1 are passed on. ^C reaches all processes of a terminal; this process ignores it and waits for
    the others. When rank 0 fails, the others are ended, because only rank 0 publishes.

    Args:
        command: program and arguments.
        size: number of processes.
        variables: variables of their environment, beside those for rank and size.
        need_each_other: whether no process can continue without the others: when one fails, the others get some time
            to end by themselves, then SIGTERM, then SIGKILL.
    """
    environment = os.environ | {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)} | dict(variables)
    processes: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in signals.handled()}
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        for rank in range(size):
            numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(list(command), env=environment | numbers))
        needed = processes if need_each_other else processes[:1]
        endings = [(0.0, signal.SIGTERM)]
        if need_each_other:
            endings = [(_GRACE_SECONDS, signal.SIGTERM), (2 * _GRACE_SECONDS, signal.SIGKILL)]
        failed_since: float | None = None
        while any(process.poll() is None for process in processes):
            if failed_since is None and any(process.poll() for process in needed):
                failed_since = time.monotonic()
            while endings and failed_since is not None and time.monotonic() >= failed_since + endings[0][0]:
                forward(endings.pop(0)[1], None)
            time.sleep(_POLL_SECONDS)
        return [process.returncode for process in processes]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for process in processes:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    sys.exit(main())
