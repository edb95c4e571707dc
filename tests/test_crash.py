"""A few lines of the crash matrix; ``python tests/crash_matrix.py`` prints all of it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys

import crash_matrix
import pytest


@pytest.mark.parametrize(
    ("what", "number", "n"),
    [
        ("extraction", signal.SIGKILL, 3),
        ("extraction --overwrite", signal.SIGKILL, 2),
        ("logreg", signal.SIGKILL, 3),
        ("logreg", signal.SIGTERM, 1),
    ],
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
def test_whole_matrix(repository):
    result = subprocess.run(
        [sys.executable, repository / "tests/crash_matrix.py", "--seed", "7"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    for what in ("extraction", "logreg"):
        for number in ("SIGKILL", "SIGTERM"):
            assert any(
                line.split() == f"{what}, {number} 30/30 identical".split()
                for line in result.stdout.splitlines()
            )
