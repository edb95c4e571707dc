"""Storage that fails in the middle of anything: full, read-only, gone.

Each time: one clear line, exit code 2, and the same command goes on to the same bytes when it is mended.
"""

import errno
import os
import subprocess

import pytest
from test_kill import NAMES, Bench, code_of, differing, snapshot, start

PAGE = 4096

EVERY = ["run", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name != "run")]
CODES = [errno.EROFS, *(pytest.param(code, marks=pytest.mark.slow) for code in (errno.EIO, errno.ESTALE))]


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


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("faults"))


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
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(tmp_path, disk, name):
    """With ever more room: at some points of the work the disk is full."""
    bench, failed = Bench(tmp_path), 0  # of its own: records name places
    bench.out, command = disk / "out", bench.commands[name]
    expected, *_ = bench.undisturbed(name)
    for pages in (0, 1, 3, 7, 16, 36, 80, 180, 400, 800):
        command.fresh(bench.out)
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
        (disk / "filler").write_bytes(bytes(max(0, free - pages * PAGE)))
        code = code_of(start(command, bench.out, bench.log))
        (disk / "filler").unlink()
        assert_told_and_mended(bench, name, expected, code, "No space left on device", "disk full")
        failed += bool(code)
        if not code:
            break
    assert failed >= 2 and not code


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", EVERY)
def test_storage_that_begins_to_fail_is_one_line(bench, name, code):
    expected, n_operations, _ = bench.undisturbed(name)
    for first in range(1, n_operations, 1 + n_operations // 3):

        def fail(number: int, first: int = first) -> None:
            if number >= first:
                raise OSError(code, os.strerror(code), "a file")

        bench.commands[name].fresh(bench.out)
        ended = code_of(start(bench.commands[name], bench.out, bench.log, fail))
        # Errors of clearing up change nothing.
        assert_told_and_mended(bench, name, expected, ended, os.strerror(code))
