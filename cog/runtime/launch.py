"""Run a script as several processes of this machine: ``python -m cog.runtime.launch N SCRIPT ARGUMENTS...``.

The processes are numbered as ``torchrun`` does it. Unlike ``torchrun`` this keeps exit codes (75: interrupted, 3:
failed images), needs no port, and lets the others take over the work of a process that dies.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from cog.runtime import cli as cli_tools

_FORWARDED = (signal.SIGTERM, signal.SIGUSR1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the processes; returns the exit code of rank 0, which publishes (128 + signal, as shells do)."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = cli_tools.OneLineParser(prog="cog.runtime.launch", description=__doc__, add_help=False)
    if len(words) < 2 or not words[0].isdecimal() or int(words[0]) < 1:
        parser.error("expected N SCRIPT ARGUMENTS..., N being the number of processes")
    size = int(words[0])
    environment = os.environ | {
        "WORLD_SIZE": words[0],
        "LOCAL_WORLD_SIZE": words[0],
        "TORCHELASTIC_RUN_ID": secrets.token_hex(8),
    }
    # Otherwise each process would start as many threads as there are processors.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, _n_processors() // size)))
    processes: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in _FORWARDED}
    # ^C reaches all processes of a terminal; this one waits for the others.
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        for rank in range(size):
            numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen([sys.executable, *words[1:]], env=environment | numbers))
        if processes[0].wait() != 0:  # without it nothing is published
            forward(signal.SIGTERM, None)
        codes = [process.wait() for process in processes]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for process in processes:
            if process.poll() is None:
                process.kill()
    for rank, code in enumerate(codes):
        if code < 0 and (rank == 0 or code != -signal.SIGTERM):
            print(f"rank {rank} was ended by {signal.Signals(-code).name}", file=sys.stderr)
    return codes[0] if codes[0] >= 0 else 128 - codes[0]


def _n_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
