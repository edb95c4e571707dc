"""Storage that fails in the middle of anything: full, read-only, gone.

Each time: one clear line, exit code 2, and the same command goes on to the same bytes when it is mended.
"""

import errno
import os
import subprocess

import pytest
from forks import code_of
from test_kill import NAMES, Bench, differing, snapshot, start

EVERY = ["run", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name != "run")]
CODES = (errno.EROFS, errno.EIO, errno.ESTALE, errno.EDQUOT)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Outputs on a file system of 4 MB, where one can be mounted."""
    bench, disk = Bench(tmp_path_factory.mktemp("faults")), tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "cog-test", str(disk)]
    subprocess.run(mount, check=False, capture_output=True)
    bench.out = disk / "out"
    yield bench
    subprocess.run(["umount", "-l", str(disk)], check=False, capture_output=True)


def assert_told_and_mended(bench, name, expected, code, *words):
    """Look at the error of a command that ended with ``code``, and repeat it."""
    if code:
        text = bench.log.read_text()
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        assert code == 2 and "Traceback" not in text and any(word in "".join(lines) for word in words), text
        assert len(lines) == 1 or "extractions failed" in lines[-1], text  # one, or one for each extraction
        assert code_of(start(bench.commands[name], bench.out, bench.log)) == 0, bench.log.read_text()
    assert differing(snapshot(bench.out), expected) == []


@pytest.mark.parametrize("name", EVERY)
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(bench, name):
    """With ever more room: at some points of the work the disk is full."""
    disk = bench.out.parent
    if not disk.is_mount():
        pytest.skip("nothing can be mounted here")
    command, (expected, _), failed = bench.commands[name], bench.undisturbed(name), 0
    for pages in (0, 2, 7, 24, 80, 250, 800):
        command.fresh(bench.out)
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
        (disk / "filler").write_bytes(bytes(max(0, free - pages * 4096)))
        code = code_of(start(command, bench.out, bench.log))
        (disk / "filler").unlink()
        assert_told_and_mended(bench, name, expected, code, "No space left on device", "disk full")
        failed += bool(code)
        if not code:
            break
    assert failed >= 2 and not code


@pytest.mark.parametrize("name", EVERY)
def test_storage_that_begins_to_fail_is_one_line(bench, name):
    expected, n_operations = bench.undisturbed(name)
    for code, first in zip(CODES, range(1, n_operations, 1 + n_operations // 4), strict=False):

        def fail(number: int, code: int = code, first: int = first) -> None:
            if number >= first:
                raise OSError(code, os.strerror(code), "a file")

        bench.commands[name].fresh(bench.out)
        ended = code_of(start(bench.commands[name], bench.out, bench.log, fail))
        # Errors of clearing up change nothing.
        assert_told_and_mended(bench, name, expected, ended, os.strerror(code))
