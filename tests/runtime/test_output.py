"""One life of an output: absent, done, skipped, refused, overwritten, killed, resumed, raced for."""

import itertools
import json
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from forks import code_of

from cog.errors import CogError
from cog.runtime import files, output
from cog.runtime.output import BusyError, Output, State, state
from cog.runtime.signals import Interrupted


def job(target: Path, value: str, *, overwrite: bool = False) -> int:
    """Make an output of three files in three resumable steps; returns the number of steps done here."""
    out = Output(target, {"value": value}, contents=("results.json", "a", "final/", "program.log"))
    if out.is_done(overwrite=overwrite):
        return 0
    with out.claimed():
        if out.is_published:
            return 0
        state = out.work / "state"
        first = int(state.read_text()) if state.exists() else 0
        for step in range(first, 3):
            files.write_text(state, str(step + 1))
        (out.work / "program.log").write_text("log")
        with out.publish() as stage:
            (stage / "a").write_text(value)
            (stage / "final").mkdir()
            (stage / "final/b").write_text(value)
            (stage / "results.json").write_text(json.dumps({"identity": {"value": value}}))
    return 3 - first


def content(target: Path) -> str:
    """Return the value of a complete output, or "none"; what is not complete is an error."""
    if not target.exists():
        return "none"
    texts = {str(p.relative_to(target)): p.read_text() for p in target.rglob("*") if p.is_file()}
    # Without locks, another process that begins may remove the log, which is not a part of the result.
    assert {*texts} - {"program.log"} == {"results.json", "a", "final/b"}
    (value,) = {texts["a"], texts["final/b"], json.loads(texts["results.json"])["identity"]["value"]}
    return value


def in_child(function) -> int:
    """Fork a process that calls a function; returns its number. Exit codes: 0, 2 (one line), 1."""
    pid = os.fork()
    if pid:
        return pid
    try:
        function()
        os._exit(0)
    except (CogError, OSError):
        os._exit(2)
    finally:
        os._exit(1)


def killed_before(operation: int, function) -> int:
    """Run a function in a process that kills itself before an operation; returns the exit code."""
    numbers = itertools.count(1)

    def run():
        for name in ("rename", "mkdir", "unlink", "fsync", "open", "rmdir", "replace", "pwrite"):

            def counting(*args, _call=getattr(os, name), **kwargs):
                if next(numbers) == operation:
                    os.kill(os.getpid(), signal.SIGKILL)
                return _call(*args, **kwargs)

            setattr(os, name, counting)
        function()

    return code_of(in_child(run))


@pytest.fixture(params=["/dev/shm", pytest.param("/var/tmp", marks=pytest.mark.slow)])
def place(request):
    """Yield a folder in memory (tmpfs), and one on a disk."""
    with tempfile.TemporaryDirectory(dir=request.param if os.path.isdir(request.param) else None) as folder:
        yield Path(folder)


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["locks", "no locks"])
def locks(request, monkeypatch):
    if not request.param:  # as on some network file systems
        monkeypatch.setattr(output.fcntl, "flock", lambda *_: os.listdir("/dev/null"))
    return request.param


@pytest.mark.parametrize("old", [pytest.param(None, marks=pytest.mark.slow), "old"])
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


@pytest.mark.parametrize(
    "left", [None, *(pytest.param(each, marks=pytest.mark.slow) for each in ("same", "other", "old"))]
)
def test_twelve_at_once_make_one_right_result(place, locks, left, request):
    """With ``--slow``: 300 races in memory and 300 on a disk, with locks and without."""
    targets = [place / f"{n}/seed-22" for n in range(38 if request.config.getoption("--slow") else 3)]
    for target in targets:
        target.parent.mkdir()
        if left == "old":
            job(target, "old")
        elif left:
            killed_before(30, lambda target=target: job(target, "new" if left == "same" else "other"))
    together = multiprocessing.get_context("fork").Barrier(12, timeout=60)

    def run():
        for target in targets:
            together.wait()
            try:
                job(target, "new", overwrite=True)
                (place / f"{target.parent.name}.ended-well").touch()
            except (CogError, OSError):
                pass

    assert {code_of(pid) for pid in [in_child(run) for _ in range(12)]} == {0}
    for target in targets:
        assert content(target) == "new" and (place / f"{target.parent.name}.ended-well").exists()
        assert not locks or os.listdir(target.parent) == ["seed-22"]


def test_states_from_missing_to_done(tmp_path):
    out = Output(tmp_path / "seed-22", {"seed": 22})
    assert state(out.path, out.record) == State("missing")
    with pytest.raises(ZeroDivisionError), out.claimed():
        running = state(out.path, out.record)
        assert running.word == "running" and f"process {os.getpid()}" in running.detail
        with pytest.raises(BusyError, match=rf"another process works on .*{os.getpid()}\)"), out.claimed():
            pass
        (out.work / "state").write_text("1")
        raise ZeroDivisionError("no data")
    assert state(out.path, out.record) == State("failed", "no data")
    for error in (Interrupted("SIGTERM"), BusyError("another output of this command is at work")):
        with pytest.raises(type(error)), out.claimed():
            assert (out.work / "state").read_text() == "1"
            raise error
        assert state(out.path, out.record) == State("interrupted")
    with open(out.work / ".lock", "rb") as lock:  # observers do not see each other
        output.fcntl.flock(lock, output.fcntl.LOCK_SH)
        assert state(out.path, out.record) == State("interrupted")
    assert job(out.path, "x") == 3  # the states of another identity are not continued from
    assert state(out.path, out.record) == State("done")
    with pytest.raises(FileExistsError), output.locked(out.path / "results.json"):
        pass


def test_work_is_continued_by_the_same_command_alone(tmp_path):
    for value, target in (("a", tmp_path / "seed-22"), ("b", tmp_path / "seed-37")):
        assert killed_before(20, lambda target=target: job(target, "a")) == -signal.SIGKILL
        saved = int((tmp_path / f".{target.name}.work/state").read_text())
        assert saved > 0 and job(target, value) == (3 - saved if value == "a" else 3)


def test_another_result_is_named_and_kept_until_the_new_one_is_complete(tmp_path):
    target = tmp_path / "seed-22"
    job(target, "old")
    with pytest.raises(CogError, match=r"value: old -> new.*--overwrite"):
        job(target, "new")
    out = Output(target, {"value": "new"})
    with pytest.raises(ZeroDivisionError), out.claimed():
        with out.publish() as stage:
            (stage / "a").write_text("new")
            raise ZeroDivisionError
    assert content(target) == "old"
    assert job(target, "new", overwrite=True) == 3 and content(target) == "new"
    assert (target / "program.log").read_text() == "log"


@pytest.mark.parametrize("contents", [(), ("results.json", "a", "final/", "program.log")])
def test_files_of_others_are_never_replaced(tmp_path, contents):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").touch()
    for overwrite in (False, True):
        with pytest.raises(CogError, match=r"thesis\.tex.*move them away"):
            Output(tmp_path / "home", {}, contents=contents).is_done(overwrite=overwrite)
    for name in ("results.json", "a"):  # a folder with the name of a file
        target = tmp_path / name / "seed-22"
        job(target, "old")
        (target / name).unlink()
        (target / name).mkdir()
        with pytest.raises(CogError, match="files of others"):
            Output(target, {"value": "new"}, contents=contents).is_done(overwrite=True)


@pytest.mark.parametrize("record", ["{", "[]", '{"identity": 3}', "/dev/zero"])
def test_records_that_are_none_are_refused_in_one_line(tmp_path, record):
    target, work = tmp_path / "seed-22", tmp_path / ".seed-37.work"
    job(target, "old")
    work.mkdir()
    (target / "results.json").unlink()
    for path in (target / "results.json", work / "failed.json", work / "identity.json"):
        if record.startswith("/"):
            path.symlink_to(record)
        else:
            path.write_text(record)
    with pytest.raises(CogError, match="--overwrite"):
        job(target, "new")
    assert job(target, "new", overwrite=True) == 3 and content(target) == "new"
    assert state(tmp_path / "seed-37", "results.json").word in ("interrupted", "failed")
    assert job(tmp_path / "seed-37", "new") == 3


def test_a_worker_that_outlives_its_killed_parent_does_not_keep_the_lock(tmp_path):
    out = Output(tmp_path / "seed-22", {"seed": 22})

    def parent():
        with out.claimed():
            (tmp_path / "worker").write_text(str(in_child(lambda: time.sleep(30))))
            os.kill(os.getpid(), signal.SIGKILL)

    assert code_of(in_child(parent)) == -signal.SIGKILL
    try:
        with out.claimed():
            pass
    finally:
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)
