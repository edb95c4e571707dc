"""One life of an output: absent, done, skipped, refused, overwritten, killed, resumed, raced for."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import tempfile
import time
import traceback
from pathlib import Path

import pytest

from cog.errors import CogError
from cog.runtime import files, output
from cog.runtime.output import BusyError, Output, OutputError, State
from cog.runtime.signals import Interrupted

OPERATIONS = ("rename", "mkdir", "unlink", "fsync", "open", "rmdir", "replace", "pwrite")


def job(target: Path, value: str, *, overwrite: bool = False) -> int:
    """Make an output of three files in three resumable steps; returns the number of steps done here."""
    out = Output(target, {"value": value}, contents=("results.json", "a", "final", "program.log"))
    steps = 0
    if out.is_done(overwrite=overwrite):
        return steps
    with out.claimed() as work:
        if work.published:
            return steps
        state = work.folder / "state"
        first = int(state.read_text()) if state.exists() else 0
        for step in range(first, 3):
            files.write_text(state, str(step + 1))
            steps += 1
        (work.folder / "program.log").write_text("log")
        with work.publish() as stage:
            (stage / "a").write_text(value)
            (stage / "final").mkdir()
            (stage / "final/b").write_text(value)
            (stage / "results.json").write_text(json.dumps({"identity": {"value": value}}))
    return steps


def content(target: Path) -> str:
    """Return the value of a complete output, "none", or "mixed"."""
    if not target.exists():
        return "none"
    texts = {str(p.relative_to(target)): p.read_text() for p in target.rglob("*") if p.is_file()}
    if set(texts) != {"results.json", "a", "final/b", "program.log"}:
        return f"mixed: {sorted(texts)}"
    values = {texts["a"], texts["final/b"], json.loads(texts["results.json"])["identity"]["value"]}
    return values.pop() if len(values) == 1 else "mixed"


def in_child(function) -> int:
    """Fork a process that calls a function; returns its number. Exit codes: 0, 2 (an error in one line), 1."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function()
        code = 0
    except (CogError, OSError):
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_before(operation: int, function) -> int:
    """Run a function in a process that kills itself before its operation of this number; returns the exit code."""

    def counting(call):
        def wrapper(*args, **kwargs):
            nonlocal operation
            operation -= 1
            if operation == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapper

    def run():
        for name in OPERATIONS:
            setattr(os, name, counting(getattr(os, name)))
        function()

    return exit_code(in_child(run))


@pytest.fixture(params=["memory", pytest.param("disk", marks=pytest.mark.slow)])
def place(request):
    """Yield a folder in memory (tmpfs), and one on a disk."""
    parent = {"memory": "/dev/shm", "disk": "/var/tmp"}[request.param]
    with tempfile.TemporaryDirectory(dir=parent if os.path.isdir(parent) else None) as folder:
        yield Path(folder)


@pytest.fixture(params=[True, False], ids=["locks", "no locks"])
def locks(request, monkeypatch):
    """Refuse locks in one of two cases, as some network file systems do."""
    if not request.param:

        def refused(*_):
            raise OSError(errno.ENOTSUP, "no locks here")

        monkeypatch.setattr(output.fcntl, "flock", refused)
    return request.param


@pytest.mark.parametrize("old", [None, "old"])
def test_killed_before_each_operation_old_or_new_and_the_next_start_ends_it(place, locks, old):
    seen, codes = set(), []
    while 0 not in codes:
        target = place / str(len(codes)) / "seed-22"
        if old:
            job(target, old)
        codes.append(killed_before(len(codes) + 1, lambda: job(target, "new", overwrite=True)))
        seen.add(content(target))
        job(target, "new", overwrite=True)
        assert content(target) == "new"
        assert os.listdir(target.parent) == ["seed-22"], len(codes)
    assert set(codes[:-1]) == {-signal.SIGKILL} and len(codes) > 40
    assert seen == {old or "none", "new", "none"}


@pytest.mark.parametrize("left", [None, "same work", "other work", "old result"])
def test_twelve_at_once_make_one_right_result(place, locks, left, request):
    n_races = 75 if request.config.getoption("--slow") else 3
    for race in range(n_races):
        target = place / str(race) / "seed-22"
        target.parent.mkdir()
        if left == "old result":
            job(target, "old")
        elif left:
            value = "new" if left == "same work" else "other"
            killed_before(30, lambda value=value, target=target: job(target, value))
        start = time.time() + 0.05

        def run(target=target, start=start):
            while time.time() < start:
                pass
            job(target, "new", overwrite=True)

        codes = [exit_code(pid) for pid in [in_child(run) for _ in range(12)]]
        assert content(target) == "new", (race, codes)
        assert 0 in codes and set(codes) <= {0, 2}, (race, codes)
        if locks:
            assert os.listdir(target.parent) == ["seed-22"]


def test_states_from_missing_to_done(tmp_path):
    out = Output(tmp_path / "seed-22", {"seed": 22})
    assert out.state() == State("missing")
    with pytest.raises(ZeroDivisionError), out.claimed() as work:
        assert out.state().word == "running" and f"process {os.getpid()}" in out.state().detail
        (work.folder / "state").write_text("1")
        raise ZeroDivisionError("no\x1bdata")
    assert out.state() == State("failed", "no\x1bdata")
    with pytest.raises(Interrupted), out.claimed() as work:
        assert (work.folder / "state").read_text() == "1"
        raise Interrupted("SIGTERM")
    assert out.state() == State("interrupted")
    with pytest.raises(BusyError), out.claimed():
        raise BusyError("another output of this command is at work")
    assert out.state() == State("interrupted")
    assert job(out.path, "x") == 3  # the states of another identity are not continued from
    assert out.state() == State("done")


def test_work_is_continued_by_the_same_command_alone(tmp_path):
    target = tmp_path / "seed-22"
    assert killed_before(20, lambda: job(target, "a")) == -signal.SIGKILL
    saved = int((tmp_path / ".seed-22.work/state").read_text())
    assert 0 < saved < 3
    assert job(target, "b") == 3
    assert content(target) == "b"
    assert killed_before(20, lambda: job(tmp_path / "seed-37", "a")) == -signal.SIGKILL
    assert job(tmp_path / "seed-37", "a") == 3 - saved


def test_another_result_is_named_and_kept_until_the_new_one_is_complete(tmp_path):
    target = tmp_path / "seed-22"
    job(target, "old")
    with pytest.raises(OutputError, match=r"value: old -> new.*--overwrite"):
        job(target, "new")
    with pytest.raises(ZeroDivisionError), Output(target, {"value": "new"}).claimed() as work:
        with work.publish() as stage:
            (stage / "a").write_text("new")
            raise ZeroDivisionError
    assert content(target) == "old" and not list(work.folder.glob("stage-*"))
    assert job(target, "new", overwrite=True) == 3 and content(target) == "new"
    assert job(target, "new", overwrite=True) == 0  # it is the wanted result


@pytest.mark.parametrize("contents", [(), ("results.json",)])
def test_files_of_others_are_never_replaced(tmp_path, contents):
    target = tmp_path / "home"
    target.mkdir()
    (target / "thesis.tex").touch()
    out = Output(target, {"value": "new"}, contents=contents)
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"thesis\.tex.*move them away"):
            out.is_done(overwrite=overwrite)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        Output(tmp_path / "file", {}).is_done(overwrite=True)


@pytest.mark.parametrize("record", ["{", "[]", "[" * 100_000, '{"identity": 3}', "pipe", "/dev/zero"])
def test_records_that_are_none_are_refused_in_one_line(tmp_path, record):
    target = tmp_path / "seed-22"
    job(target, "old")
    (target / "results.json").unlink()
    if record == "pipe":
        os.mkfifo(target / "results.json")
    elif record.startswith("/"):
        (target / "results.json").symlink_to(record)
    else:
        (target / "results.json").write_text(record)
    with pytest.raises(OutputError, match="--overwrite"):
        job(target, "new")
    assert job(target, "new", overwrite=True) == 3 and content(target) == "new"


def test_a_note_that_is_no_file_does_not_wait(tmp_path):
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        work = Path(tempfile.mkdtemp(dir=tmp_path)) / ".seed-22.work"
        work.mkdir()
        for name in ("failed.json", "identity.json", ".lock"):
            make(work / name)
        assert output.state(work.parent / "seed-22", "results.json").word in ("interrupted", "failed")


def test_a_second_process_is_refused_with_the_owner_named(tmp_path):
    out = Output(tmp_path / "seed-22", {"seed": 22})
    with out.claimed():
        child = in_child(lambda: contextlib.ExitStack().enter_context(out.claimed()))
        assert exit_code(child) == 2
        with pytest.raises(BusyError, match=rf"another process works on .*process {os.getpid()}\)"):
            with out.claimed():
                pass


def test_a_worker_that_outlives_its_killed_parent_does_not_keep_the_lock(tmp_path):
    out = Output(tmp_path / "seed-22", {"seed": 22})

    def parent():
        with out.claimed():
            (tmp_path / "worker").write_text(str(in_child(lambda: time.sleep(30))))
            os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(in_child(parent)) == -signal.SIGKILL
    try:
        with out.claimed():
            pass
    finally:
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)


def test_observers_do_not_see_each_other(tmp_path):
    out = Output(tmp_path / "seed-22", {"seed": 22})
    with pytest.raises(Interrupted), out.claimed():
        raise Interrupted("SIGTERM")
    with output.locked(out.work, make=False) as is_free:
        assert is_free and out.state() == State("interrupted")


def test_full_disk_is_one_line_and_keeps_the_old_result(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=60", "cog-test", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        target = disk / "seed-22"
        job(target, "old")
        failed = 0
        for n_free in range(20):
            fillers = 0
            with contextlib.suppress(OSError):
                while fillers < 100:
                    (disk / f"filler-{fillers}").touch()
                    fillers += 1
            for number in range(min(n_free, fillers)):
                (disk / f"filler-{number}").unlink()
            try:
                job(target, "new", overwrite=True)
            except CogError as error:
                failed += 1
                assert "No space left" in str(error) and content(target) == "old"
            for path in disk.glob("filler-*"):
                path.unlink()
            if content(target) == "new":
                break
        assert failed >= 5 and content(target) == "new"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
