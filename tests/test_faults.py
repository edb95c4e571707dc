"""Storage that fails in the middle of anything: full, read-only, gone.

Each time: one clear line, exit code 2, and the same command goes on to the same bytes when it is mended.
"""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from pathlib import Path

import pytest
from test_kill import NAMES, Bench, code_of, differing, snapshot, start

PAGE = 4096

OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name != "run"]


@pytest.fixture
def disk(tmp_path):
    """A file system of 4 MB, mounted at ``tmp_path / "disk"``."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "cog-test", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def error_of(log: Path) -> str:
    """Return the lines of errors: one, or one for each extraction that failed."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
    assert lines and "Traceback" not in log.read_text(), log.read_text()
    assert len(lines) == 1 or "extractions failed" in lines[-1], log.read_text()
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["run", *OTHERS])
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(tmp_path, disk, name):
    """With ever more room: at each point of the work the disk is full once."""
    bench = Bench(tmp_path)
    bench.out, command, failed = disk / "out", bench.commands[name], 0  # records name places
    expected, *_ = bench.undisturbed(name)
    for pages in (0, 1, 2, 4, 7, 11, 16, 24, 36, 54, 80, 120, 180, 270, 400, 600):
        command.fresh(bench.out)
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
        (disk / "filler").write_bytes(bytes(max(0, free - pages * PAGE)))
        code = code_of(start(command, bench.out, bench.log))
        (disk / "filler").unlink()
        if code:
            failed += 1
            message = error_of(bench.log)
            assert code == 2 and ("No space left on device" in message or "disk full" in message), message
            assert code_of(start(command, bench.out, bench.log)) == 0, bench.log.read_text()
        assert differing(snapshot(bench.out), expected) == []
        if not code:
            break
    assert failed >= 3 and not code


@pytest.mark.parametrize(
    "code", [errno.EROFS, *(pytest.param(code, marks=pytest.mark.slow) for code in (errno.EIO, errno.ESTALE))]
)
@pytest.mark.parametrize("name", ["run", *OTHERS])
def test_storage_that_begins_to_fail_is_one_line(tmp_path, name, code, request):
    bench = Bench(tmp_path)
    expected, n_operations, _ = bench.undisturbed(name)
    n = 8 if request.config.getoption("--slow") else 2
    for first in itertools.islice(range(1, n_operations, 1 + n_operations // n), n):

        def fail(number: int, first: int = first) -> None:
            if number >= first:
                raise OSError(code, os.strerror(code), "a file")

        bench.commands[name].fresh(bench.out)
        ended = code_of(start(bench.commands[name], bench.out, bench.log, fail))
        if ended:  # errors of clearing up change nothing
            assert ended == 2 and os.strerror(code) in error_of(bench.log), first
        assert code_of(start(bench.commands[name], bench.out, bench.log)) == 0, bench.log.read_text()
        assert differing(snapshot(bench.out), expected) == []
