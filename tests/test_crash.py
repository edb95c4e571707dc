"""A few lines of the crash matrix; ``python tests/crash_matrix.py`` prints all of it."""

from __future__ import annotations

import functools
import importlib
import os
import random
import signal
import subprocess
import sys

import crash_matrix
import pytest

from cog.runtime import locks


def test_killed_and_restarted(tmp_path):
    """One kill of the whole matrix, which is slow."""
    crash_matrix.import_everything()
    task = crash_matrix.tasks(tmp_path)["logreg"]
    (row,) = crash_matrix.matrix(task, tmp_path, n=1, number=signal.SIGTERM, rng=random.Random("logreg"))
    assert row.problem == "", (row.when, row.state, row.problem)


def test_differences_are_seen(tmp_path):
    """The comparison itself: a bit, a file that is missing, one too many."""
    for name in ("a", "b"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub/x.bin").write_bytes(b"\x00\x01")
        (tmp_path / name / "y.json").write_text('{"seconds": 1, "v": [{"finished": 2, "w": 3}]}')
    a = crash_matrix.snapshot(tmp_path / "a")
    assert crash_matrix.differing(a, crash_matrix.snapshot(tmp_path / "b")) == []
    (tmp_path / "b/y.json").write_text('{"seconds": 9, "v": [{"finished": 9, "w": 3}]}')
    assert crash_matrix.differing(a, crash_matrix.snapshot(tmp_path / "b")) == []
    (tmp_path / "b/y.json").write_text('{"seconds": 9, "v": [{"finished": 9, "w": 4}]}')
    (tmp_path / "b/sub/x.bin").write_bytes(b"\x00\x00")
    (tmp_path / "b/.lock").touch()
    assert crash_matrix.differing(a, crash_matrix.snapshot(tmp_path / "b")) == [
        ".lock",
        "sub/x.bin",
        "y.json",
    ]


@pytest.mark.slow
def test_whole_matrix(repository, wordnet):
    """Six kills of each command by each signal; ``python tests/crash_matrix.py`` does thirty."""
    result = subprocess.run(
        [sys.executable, repository / "tests/crash_matrix.py", "--seed", "7", "--kills", "6"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    for what in ("levels", "extraction", "logreg", "kmeans", "finetune"):
        for number in ("SIGKILL", "SIGTERM"):
            assert any(
                line.split() == f"{what}, {number} 6/6 identical".split()
                for line in result.stdout.splitlines()
            )


def _stand_still_at(where: str) -> None:
    """Let this process stop itself before the first call of a function, and be of another machine."""
    module, _, name = where.partition(":")
    locks._boot = lambda: "of another machine"
    *path, last = name.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    function, stopped = getattr(owner, last), []

    def wrapper(*args, **kwargs):
        if not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return function(*args, **kwargs)

    setattr(owner, last, wrapper)


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("finetune", "cog.finetune.trainer:Trainer.save"),
        ("finetune", "cog.finetune.job:_write"),
        ("extraction", "cog.features.shards:Shards.save"),
        ("logreg", "cog.runtime.resume_dir:ResumeFolder.begin_session"),
        ("kmeans", "cog.results.analysis_records:write"),
    ],
)
@pytest.mark.slow
def test_woken_after_a_takeover(tmp_path, what, where):
    """A process stands still; another one takes over and finishes. The late one says so, and leaves nothing behind."""
    crash_matrix.import_everything()
    task = crash_matrix.tasks(tmp_path)[what]
    crash_matrix.warm_up(task)
    log, note = tmp_path / "late.txt", tmp_path / "late operations"
    late = crash_matrix.fork(task, log, note, prepare=lambda: _stand_still_at(where))
    ended = False
    try:
        assert os.WIFSTOPPED(os.waitpid(late, os.WUNTRACED)[1]), log.read_text()
        os.utime(task.output / ".lock", (1, 1))
        other = crash_matrix.run(task, tmp_path)
        assert other.code == 0, other.log
        assert (task.output / task.marker).is_file()
        before = crash_matrix.snapshot(task.output)
        os.kill(late, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(late, 0)[1])
        ended = True
    finally:
        if not ended:
            os.kill(late, signal.SIGKILL)
            os.waitpid(late, 0)
    assert code == 2
    errors = log.read_text()
    last = errors.strip().splitlines()[-1]
    assert "taken over by a process that has ended since" in last
    assert "Traceback" not in errors
    assert crash_matrix.snapshot(task.output) == before
