"""The end of every command: exit code 0, or one line about an error and its code."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from cog.errors import CogError, first_line
from cog.runtime import memory
from cog.runtime.log import logger, set_up_logging


def run(main: Callable[[Sequence[str] | None], int | None], argv: Sequence[str] | None = None) -> NoReturn:
    """Run the ``main`` of a script and exit: with code 0, or that of an error after its one line."""
    set_up_logging()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may contain bytes that are not text
    try:
        code = main(argv) or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        logger.error("interrupted; the same command goes on")
        code = 130
    except BrokenPipeError:  # the reader (`| head`) has closed the pipe: no message, as of other tools
        code = 141
    except (CogError, MemoryError, RuntimeError, OSError) as error:
        explained = _explain(error)
        if os.environ.get("COG_DEBUG") == "1":
            traceback.print_exc()
        logger.error("%s", explained)
        code = explained.exit_code
        _requeue(str(explained))
    try:
        sys.stdout.flush()
    except OSError:  # Python flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _explain(error: Exception) -> CogError:
    """Return an error as a ``CogError`` of one line; raise it again when it is a fault of the program."""
    if isinstance(error, CogError):
        return error
    if memory.is_exhausted(error):
        todo = "lower FT_EXTRACT.BATCH_SIZE, CLF.BATCH_SIZE or FINETUNE.BATCH_PER_DEVICE, or do less at once"
        return CogError(f"out of memory ({first_line(error)[:200]}); {todo}")
    if not isinstance(error, OSError):
        raise error
    # Without a check of their own: permissions, circular links, full disks.
    failed = f"cannot access {error.filename}" if error.filename else "input or output failed"
    return CogError(f"{failed}: {error.strerror or error}")


def _requeue(message: str) -> None:
    """Queue this task of a SLURM array again if, by its message, SIGUSR1 (the time limit) ended it."""
    task, n_restarts = os.environ.get("SLURM_ARRAY_TASK_ID"), os.environ.get("SLURM_RESTART_COUNT") or 0
    if message.startswith("ended by SIGUSR1") and task and int(n_restarts) < 100:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{task}"  # the number alone can mean the whole array
        try:
            subprocess.run(["scontrol", "requeue", job], check=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            logger.error("job %s could not be queued again (%s); submit again", job, error)
