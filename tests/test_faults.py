"""Storage that fails in the middle of anything: full, read-only, gone, slow.

Each time: one clear line, exit code 2, the previous output as it was, and the same command goes on when it is mended.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import crash_matrix
import pytest
import tiny

from cog.commands import build_levels, extract_features, logreg, print_results
from cog.runtime import cli

MAINS = {"extract_features.py": extract_features.main, "logreg.py": logreg.main}
PAGE = 4096


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MB, mounted at ``tmp_path / "disk"``."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=400", "cog-test", str(folder)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"nothing can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def fill(disk: Path, pages_left: int) -> None:
    """Leave only so many pages of 4 KiB free."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    (disk / "filler").write_bytes(bytes(max(0, free - pages_left * PAGE)))


@pytest.fixture
def outcome(capfd):
    """Run a command's ``main`` as its script does; returns exit code and what it printed on standard error."""

    def run(main, argv) -> tuple[int, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.run(main, list(map(str, argv)))
        err = capfd.readouterr().err
        assert "Traceback" not in err
        code = int(ended.value.code or 0)
        errors = [line for line in re.split(r"[\r\n]", err) if line.startswith("error: ")]
        assert len(errors) == (1 if code else 0), err
        return code, errors[0] if errors else ""

    return run


def task_on(name: str, tmp_path: Path, output: Path) -> crash_matrix.Task:
    """A command of the crash matrix, writing to ``output``."""
    task = crash_matrix.tasks(tmp_path)[name]
    argv = tuple(str(output) if word == str(task.output) else word for word in task.argv)
    return crash_matrix.Task(task.name, task.script, argv, output, task.marker, task.prepare)


@pytest.fixture
def often(monkeypatch):
    """Let trainings save after every epoch."""
    from cog.runtime import state_file

    monkeypatch.setattr(state_file, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(state_file, "_MAX_SHARE", 1e9)


def visible(folder: Path) -> dict[str, object]:
    """What readers see of an output; hidden entries are the toolkit's own."""
    if not folder.is_dir():
        return {}
    entries = crash_matrix.snapshot(folder)
    return {name: value for name, value in entries.items() if not name.startswith(".")}


SLOW = pytest.mark.slow
OVERWRITING = [pytest.param(f"{name} --overwrite", marks=SLOW) for name in ("extraction", "logreg")]


@pytest.mark.parametrize("name", ["extraction", pytest.param("logreg", marks=SLOW), *OVERWRITING])
def test_disk_that_is_full(tmp_path, disk, outcome, often, name):
    """With ever more room: at each point of the work the disk is full once."""
    task = task_on(name, tmp_path, disk / "out")
    main = MAINS[task.script]
    task.fresh()
    assert outcome(main, task.argv)[0] == 0
    expected = crash_matrix.snapshot(task.output)
    failed = 0
    for pages in [*range(12), *range(12, 60, 4)]:
        task.fresh()
        before = visible(task.output)
        fill(disk, pages)
        code, line = outcome(main, task.argv)
        if code == 0:
            (disk / "filler").unlink()
            assert crash_matrix.differing(crash_matrix.snapshot(task.output), expected) == []
            break
        failed += 1
        assert code == 2
        assert "No space left on device" in line or "disk full" in line, line
        assert visible(task.output) == before
        (disk / "filler").unlink()
        assert outcome(main, task.argv)[0] == 0
        assert crash_matrix.differing(crash_matrix.snapshot(task.output), expected) == []
    assert failed >= 5 and code == 0


def training(models: Path) -> list[object]:
    """Return the arguments of a short training on the workshop's features below ``models``."""
    return ["--models_root_dir", models, "--model", "tiny_net", "--dataset", "birds", "--seeds", "1", "2",
            "--device", "cpu", "CLF.N_TRIALS", "2", "CLF.N_EPOCHS", "2"]  # fmt: skip


@pytest.mark.slow
def test_other_outputs_on_a_disk_that_is_full(tmp_path, disk, outcome, workshop):
    assert outcome(logreg.main, training(workshop.models))[0] == 0
    for flags in (
        ["--report", disk / "report.html"],
        ["--export", disk / "runs.json"],
        ["--figures", disk / "figures"],
    ):
        argv = ["--models_root_dir", workshop.models, *flags, "--overwrite"]
        target = Path(flags[1])
        if flags[0] != "--figures":
            target.write_text("old")
        before = tiny.snapshot(disk)
        fill(disk, 0)
        code, line = outcome(print_results.main, argv)
        assert code == 2 and "No space left on device" in line, (flags, line)
        (disk / "filler").unlink()
        assert {k: v for k, v in tiny.snapshot(disk).items() if "figures" not in k} == {
            k: v for k, v in before.items() if "figures" not in k
        }
        assert outcome(print_results.main, argv)[0] == 0
        assert target.exists()


@SLOW
def test_index_of_runs_that_cannot_be_written(tmp_path, disk, outcome, workshop):
    """The index only saves time; a models root on a full or read-only disk is read all the same."""
    shutil.copytree(workshop.models, disk / "models")
    assert outcome(logreg.main, training(disk / "models"))[0] == 0
    fill(disk, 0)
    assert outcome(print_results.main, ["--models_root_dir", disk / "models"])[0] == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert outcome(print_results.main, ["--models_root_dir", disk / "models"])[0] == 0
    code, line = outcome(logreg.main, [*training(disk / "models"), "--overwrite"])
    assert code == 2 and "Read-only file system" in line


@SLOW
def test_levels_on_a_disk_that_is_full(disk, outcome, shared_dir):
    argv = ["--similarity", "random", "--rerank", shared_dir / "miniature/cog_levels_mapping_file.pkl"]
    argv += ["--output_dir", disk / "levels"]
    for pages in (0, 1, 2):
        fill(disk, pages)
        code, line = outcome(build_levels.main, argv)
        assert code == 2 and "No space left on device" in line
        assert not (disk / "levels").exists() or os.listdir(disk / "levels") == []
        (disk / "filler").unlink()
    assert outcome(build_levels.main, argv)[0] == 0


class Faults:
    """From some operation on ``folder`` on, every change of it fails, or something happens once."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.code = 0
        self.once = None
        self._inside = os.fspath(folder)
        self._lock = threading.RLock()
        for name in ("fsync", "replace", "rename", "link", "mkdir", "open", "utime"):
            patch.setattr(os, name, self._failing(getattr(os, name), name))

    def at(self, operation: int, *, code: int = 0, once=None) -> None:
        self.left, self.code, self.once = operation, code, once

    def _failing(self, function, name):
        def call(*args, **kwargs):
            path = args[0]
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")
            writing = name != "open" or (len(args) > 1 and args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))
            if self.left >= 0 and writing and os.fsdecode(path).startswith(self._inside):
                with self._lock:
                    self.left = max(0, self.left - 1)
                    if self.left == 0 and self.once is not None:
                        once, self.once = self.once, None
                        once()
                if self.left == 0 and self.code:
                    raise OSError(self.code, os.strerror(self.code), path)
            return function(*args, **kwargs)

        return call


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("name", ["extraction", "logreg", *OVERWRITING])
def test_storage_that_begins_to_fail(tmp_path, monkeypatch, outcome, often, name, code):
    task = task_on(name, tmp_path, tmp_path / "out/put")
    main = MAINS[task.script]
    task.fresh()
    assert outcome(main, task.argv)[0] == 0
    expected = crash_matrix.snapshot(task.output)
    faults = Faults(task.output, monkeypatch)
    for operation in (1, 9, 17, 40, 60) if code == errno.EROFS else (25,):
        task.fresh()
        before = visible(task.output)
        faults.at(operation, code=code)
        got, line = outcome(main, task.argv)
        faults.at(-1)
        if got:
            assert (got, os.strerror(code) in line) == (2, True), line
            # what was being published when it happened is finished by the next start
            assert visible(task.output) == before or any(task.output.glob(".partial-*"))
        assert outcome(main, task.argv)[0] == 0
        assert crash_matrix.differing(crash_matrix.snapshot(task.output), expected) == []


@pytest.mark.parametrize("name", ["extraction", "logreg"])
def test_mount_that_vanishes(tmp_path, monkeypatch, disk, outcome, often, name):
    task = task_on(name, tmp_path, disk / "out")
    faults = Faults(disk, monkeypatch)
    for operation in (14, 40):
        task.fresh()
        twin = tmp_path / f"twin-{operation}"
        twin.mkdir()
        subprocess.run(["mount", "--bind", str(disk), str(twin)], check=True)
        try:
            faults.at(operation, once=lambda: subprocess.run(["umount", "-l", str(disk)], check=True))
            code, line = outcome(MAINS[task.script], task.argv)
            faults.at(-1)
            assert code == 2, line
            assert not (disk / "out").exists() or visible(disk / "out") == {}  # nothing goes to what is below
            assert task.marker not in visible(twin / "out")
            shutil.rmtree(disk / "out", ignore_errors=True)
            # of a process that has ended, in real life; here it is this one, which goes on
            (twin / "out/.lock").unlink(missing_ok=True)
            subprocess.run(["mount", "--bind", str(twin), str(disk)], check=True)
        finally:
            subprocess.run(["umount", "-l", str(twin)], check=False)
        assert outcome(MAINS[task.script], task.argv) == (0, "")


@pytest.mark.parametrize("name", ["extraction", pytest.param("logreg", marks=SLOW)])
def test_slow_file_server(tmp_path, monkeypatch, outcome, often, name):
    """Every change takes a while; results are the same."""
    task = task_on(name, tmp_path, tmp_path / "out/put")
    assert outcome(MAINS[task.script], task.argv) == (0, "")
    expected = crash_matrix.snapshot(task.output)
    for operation in ("replace", "link", "rename", "unlink", "mkdir"):
        real = getattr(os, operation)

        def slow(*args, _real=real, **kwargs):
            time.sleep(0.002)
            try:
                return _real(*args, **kwargs)
            finally:
                time.sleep(0.002)

        monkeypatch.setattr(os, operation, slow)
    task.fresh()
    assert outcome(MAINS[task.script], task.argv) == (0, "")
    assert crash_matrix.differing(crash_matrix.snapshot(task.output), expected) == []
