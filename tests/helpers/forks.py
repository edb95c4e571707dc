"""Commands in forks of this process, which import nothing again."""

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def nothing(*_: Any) -> None:
    """Do nothing."""


def start(
    words: Sequence[str], log: Path, begin: Callable[[], Any] = nothing, note: Callable[[int], Any] = nothing
) -> int:
    """Start ``python -m cog`` in a fork that prints into ``log``, with calls around; returns its pid."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        # Streams that a fork of this fork drops do not close the descriptors.
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        sys.argv = ["cog", *words]
        begin()
        try:
            runpy.run_module("cog", run_name="__main__")
        except SystemExit as error:
            code = int(error.code or 0)
        sys.stdout.flush()
        note(code)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
