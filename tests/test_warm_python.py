"""The interpreter that has imported PyTorch already: to its users it is a Python like the other one."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

COMMANDS = {
    "output and a code": [
        "-c",
        "import sys; print(sys.argv); print('!', file=sys.stderr); sys.exit(3)",
        "a b",
    ],
    "a message": ["-c", "import sys; sys.exit('no')"],
    "threads": ["-c", "import torch; print(torch.get_num_threads())"],
    "a signal": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"],
    "a module": ["-m", "cog", "--version"],
    "a script": ["print_results.py", "--no_such_flag"],
    "places": [
        "-c",
        "import cog, os, sys; print(cog.__file__, os.getcwd(), sys.path[0], os.environ['HERE'])",
    ],
    "standard input": ["-c", "print(input())"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_like_the_other_one(name, python, warm_python, repository):
    def run(program: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [program, *COMMANDS[name]], cwd=repository, input="a line\n", capture_output=True, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "2", "HERE": "there"},
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    assert run(warm_python) == run(python)


@pytest.mark.slow
def test_signals_and_death_reach_the_process(warm_python):
    code = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    for number, expected in ((signal.SIGTERM, 7), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen([warm_python, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(30) == expected
        deadline = time.monotonic() + 30
        while os.path.exists(f"/proc/{pid}"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
