"""A few lines of the crash matrix; ``python tests/crash_matrix.py`` prints all of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import crash_matrix
import pytest
from marks import first_quick


@pytest.mark.parametrize(
    ("what", "number", "n"),
    first_quick(
        2,
        [
            ("extraction", signal.SIGKILL, 1),
            ("logreg", signal.SIGTERM, 1),
            ("levels", signal.SIGTERM, 2),
            ("extraction", signal.SIGKILL, 3),
            ("extraction --overwrite", signal.SIGKILL, 2),
            ("logreg", signal.SIGKILL, 3),
            ("finetune", signal.SIGKILL, 1),
            ("kmeans", signal.SIGKILL, 1),
        ],
    ),
)
def test_killed_and_restarted(tmp_path, what, number, n):
    crash_matrix.import_everything()
    task = crash_matrix.tasks(tmp_path)[what]
    rows = crash_matrix.matrix(task, tmp_path, n=n, number=number, rng=random.Random(what))
    assert [(row.when, row.state, row.problem) for row in rows if row.problem] == []
    assert len(rows) == n


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


_LATE = """
import importlib, os, runpy, signal, sys
from cog.runtime import locks
script, module, name = sys.argv[1:4]
locks._boot = lambda: "of another machine"
owner = importlib.import_module(module)
*path, last = name.split(".")
for part in path:
    owner = getattr(owner, part)
function, stopped = getattr(owner, last), []
def wrapper(*args, **kwargs):
    if not stopped:
        stopped.append(True)
        os.kill(os.getpid(), signal.SIGSTOP)
    return function(*args, **kwargs)
setattr(owner, last, wrapper)
sys.argv[:] = [script, *sys.argv[4:]]
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("finetune", "cog.finetune.state:save"),
        ("finetune", "cog.finetune.output:write"),
        ("extraction", "cog.features.shards:Shards.save"),
        ("logreg", "cog.runtime.resume_dir:ResumeFolder.begin_session"),
        ("logreg", "cog.logreg.jobs:begin"),
        ("kmeans", "cog.analysis.state_file:StateFile.save"),
        ("kmeans", "cog.results.analysis_records:write"),
    ],
)
@pytest.mark.slow
def test_woken_after_a_takeover(tmp_path, repository, what, where):
    """A process stands still; another one takes over and finishes. The late one says so, and leaves nothing behind."""
    task = crash_matrix.tasks(tmp_path)[what]
    script = str(repository / task.script)
    late = subprocess.Popen(
        [sys.executable, "-c", _LATE, script, *where.split(":"), *task.argv], cwd=repository, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert os.WIFSTOPPED(os.waitpid(late.pid, os.WUNTRACED)[1])
        os.utime(task.output / ".lock", (1, 1))
        other = subprocess.Popen(
            [sys.executable, script, *task.argv], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        _, errors = other.communicate(timeout=120)
        assert other.returncode == 0, errors
        assert (task.output / task.marker).is_file()
        before = crash_matrix.snapshot(task.output)
        late.send_signal(signal.SIGCONT)
        _, errors = late.communicate(timeout=120)
    finally:
        late.kill()
    assert late.returncode == 2
    last = errors.strip().splitlines()[-1]
    assert "was taken over by" in last and f"process {other.pid}, since" in last
    assert "Traceback" not in errors
    assert crash_matrix.snapshot(task.output) == before
