"""Locks of output folders: who gets them, when they are stale, and races for one."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import tiny
from marks import first_quick

from cog.errors import CogError
from cog.runtime import locks
from cog.runtime.locks import LockedError, live_holder, locked


def dead_pid() -> int:
    """The number of a process that has just ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def write_lock(folder: Path, *, age: float = 0.0, name: str = ".lock", **changes) -> locks.Holder:
    """Leave the lock of a process: this one, with ``changes``."""
    folder.mkdir(exist_ok=True)
    holder = replace(locks._this_process(), **({"token": "0" * 32} | changes))
    (folder / name).write_text(json.dumps(asdict(holder)))
    then = time.time() - age
    os.utime(folder / name, (then, then))
    return holder


def leftovers(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def acquired(folder: Path) -> bool:
    try:
        with locked(folder, flag="--output_dir") as lock:
            lock.require_held()
        return True
    except LockedError:
        return False


def test_a_second_start_is_refused_until_the_lock_is_released(tmp_path):
    with locked(tmp_path, flag="--output_dir") as lock:
        assert live_holder(tmp_path) == lock.holder
        assert lock.holder.pid == os.getpid()
        with pytest.raises(LockedError) as caught, locked(tmp_path, flag="--output_dir"):
            pass
        message = str(caught.value)
        assert "\n" not in message
        for part in (str(tmp_path), lock.holder.host, str(os.getpid()), lock.holder.since):
            assert part in message
        lock.require_held()  # the second start has not harmed the first
    assert caught.value.exit_code == 2
    assert leftovers(tmp_path) == []
    assert live_holder(tmp_path) is None


def test_two_real_processes(tmp_path):
    code = (
        "import sys; from cog.runtime.locks import locked\n"
        "with locked(sys.argv[1], flag='x'):\n print('in', flush=True); sys.stdin.read()"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert first.stdout is not None and first.stdin is not None
    assert first.stdout.readline() == b"in\n"
    try:
        with pytest.raises(LockedError, match=f"process {first.pid}"), locked(tmp_path / "out", flag="x"):
            pass
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert (tmp_path / "out/.lock").exists()
        assert acquired(tmp_path / "out")  # at once
    finally:
        first.kill()
        first.communicate()
    assert leftovers(tmp_path / "out") == []


def test_folders_are_created_and_removed_again_when_empty(tmp_path):
    with locked(tmp_path / "a/b/c", flag="x"):
        assert (tmp_path / "a/b/c/.lock").is_file()
    assert leftovers(tmp_path) == []
    with locked(tmp_path / "a/b", flag="x"):
        (tmp_path / "a/b/result").touch()
    assert leftovers(tmp_path / "a/b") == ["result"]


@pytest.mark.parametrize(
    ("changes", "age", "stale"),
    [
        ({}, 0, False),
        ({}, 9999, False),  # alive: however long it has not been touched
        ({"pid": "dead"}, 0, True),
        ({"started": "1"}, 0, True),  # the number was given to another process
        ({"started": ""}, 0, False),  # unknown: the process exists
        ({"boot": "another"}, 0, False),  # perhaps a container of the same name
        ({"boot": "another", "pid": "dead"}, 0, False),
        ({"boot": "another"}, 301, True),
        ({"host": "elsewhere"}, 0, False),
        ({"host": "elsewhere", "pid": "dead"}, 290, False),
        ({"host": "elsewhere"}, 301, True),
        ({"host": "elsewhere"}, -9999, True),  # of a server whose clock was wrong
        ({"host": "elsewhere", "job": "7_3"}, 0, True),  # requeued
        ({"host": "elsewhere", "job": "7_3", "restarts": 1}, 0, False),  # this very start
        ({"host": "elsewhere", "job": "7_4"}, 0, False),
    ],
)
def test_stale_locks(tmp_path, monkeypatch, changes, age, stale):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    if changes.get("pid") == "dead":
        changes = changes | {"pid": dead_pid()}
    changes = {"job": "", "restarts": 0} | changes
    holder = write_lock(tmp_path / "out", age=age, **changes)
    assert (live_holder(tmp_path / "out") is None) == stale
    assert acquired(tmp_path / "out") == stale
    assert leftovers(tmp_path / "out") == ([] if stale else [".lock"])
    if not stale:
        assert live_holder(tmp_path / "out") == holder


@pytest.mark.parametrize(("age", "stale"), [(0, False), (301, True)])
def test_processes_hidden_by_proc_are_alive_while_they_touch_their_lock(tmp_path, monkeypatch, age, stale):
    """On login nodes, /proc often hides the processes of other users."""
    monkeypatch.setattr(locks, "_start_of", lambda pid: "")
    write_lock(tmp_path / "out", age=age)
    assert (live_holder(tmp_path / "out") is None) == stale
    assert acquired(tmp_path / "out") == stale


def test_no_lock_stays_behind_on_a_full_disk(tmp_path, monkeypatch):
    def link(*names, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with locked(tmp_path / "out", flag="x"):
        (tmp_path / "out/result").touch()
        monkeypatch.setattr(locks, "_link", link)
    assert leftovers(tmp_path / "out") == ["result"]


def test_a_release_leaves_the_lock_of_the_next_process(tmp_path, monkeypatch):
    """It comes as soon as the lock is gone, and removes the rest of it before the release does."""
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(locked(tmp_path, flag="x"))
        unlink, later = os.unlink, []

        def unlinked(path, **options):
            unlink(path, **options)
            if os.fspath(path) == str(lock.path) and not later:
                later.append(None)
                later[0] = stack.enter_context(locked(tmp_path, flag="x"))

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", unlinked)
            lock.release()
        later[0].require_held()
        assert leftovers(tmp_path) == [".lock"]
        assert not acquired(tmp_path)


def test_zombies_are_dead(tmp_path):
    child = subprocess.Popen(["true"])
    deadline = time.monotonic() + 10
    while locks._start_of(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)  # it has ended, and nobody has asked for its exit code
    write_lock(tmp_path / "out", pid=child.pid)
    assert acquired(tmp_path / "out")
    child.wait()


def test_age_is_by_the_clock_of_the_file_server(tmp_path, monkeypatch):
    """A machine whose clock runs an hour ahead must not take fresh locks for old ones."""
    write_lock(tmp_path / "out", host="elsewhere")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert not acquired(tmp_path / "out")
    assert locks._age(tmp_path / "out/.lock.gone") == 0.0  # removed at this moment: not an old one


@pytest.mark.parametrize("content", first_quick(1, [b"{", b"", b"[1, 2]", b'{"host": "x"}', b"\xff\xfe"]))
def test_damaged_lock(tmp_path, monkeypatch, content):
    monkeypatch.setattr(locks, "DAMAGED_SECONDS", 0.3)
    (tmp_path / ".lock").write_bytes(content)
    start = time.monotonic()
    assert acquired(tmp_path)
    assert time.monotonic() - start > 0.2  # it could have been in the middle of being written
    assert leftovers(tmp_path) == []


def test_lock_that_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "DAMAGED_SECONDS", 0.1)
    (tmp_path / ".lock").mkdir()
    with pytest.raises(CogError):
        with locked(tmp_path, flag="x"):
            pass


def _remove_folder(folder: Path) -> None:
    (folder / ".lock").unlink()
    folder.rmdir()


@pytest.mark.parametrize(
    ("lose", "message", "left"),
    [
        (lambda out, token: write_lock(out, host="elsewhere", token="1" * 32), "on elsewhere", [".lock"]),
        # Once a successor exists the lock is lost, though the file in its place is still the old one.
        (
            lambda out, token: write_lock(out, name=f".lock.after-{token}", host="elsewhere", token="1" * 32),
            "on elsewhere",
            [".lock", f".lock.after-{'0' * 32}"],
        ),
        (lambda out, token: (out / ".lock").unlink(), "is gone: it was removed, or taken over by", None),
        (lambda out, token: _remove_folder(out), "is gone: it was removed, or taken over by", None),
    ],
    ids=["taken over", "being taken over", "removed", "removed with its folder"],
)
def test_a_lost_lock_is_noticed_and_left_to_its_holder(tmp_path, monkeypatch, lose, message, left):
    monkeypatch.setattr(locks.secrets, "token_hex", lambda n: "0" * 2 * n)
    out = tmp_path / "out"
    with locked(out, flag="x") as lock:
        lose(out, lock.holder.token)
        before = tiny.snapshot(tmp_path)
        with pytest.raises(LockedError, match=message):
            lock.require_held()
    if left is None:
        assert leftovers(tmp_path) == []
    else:
        assert leftovers(out) == left and tiny.snapshot(tmp_path) == before


def test_the_late_one_is_told_who_took_over(tmp_path, monkeypatch):
    """The holder stands still, on another machine as it seems; another one takes over, and ends."""
    with contextlib.ExitStack() as late:
        lock = late.enter_context(locked(tmp_path, flag="x"))
        monkeypatch.setattr(locks, "_boot", lambda: "of another machine")
        monkeypatch.setattr(locks, "STALE_SECONDS", -1.0)
        with locked(tmp_path, flag="x") as second:
            with pytest.raises(LockedError, match=f"was taken over by {re.escape(str(second.holder))} while"):
                lock.require_held()
        assert leftovers(tmp_path) == []
        with pytest.raises(LockedError, match="is gone: it was removed, or taken over by"):
            lock.require_held()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"token": "../../outside"}, {"token": "a/b"}, {"token": "/etc/passwd"}, {"token": ""}, {"token": "a\0b"},
        {"token": "x" * 300}, {"token": 7}, {"token": None}, {"token": ["a"]}, {"host": {}}, {"pid": 10**30},
        {"pid": -1}, {"pid": True}, {"restarts": 1.5}, {"job": None},
    ],
    ids=repr,
)  # fmt: skip
def test_crafted_lock(tmp_path, monkeypatch, changes):
    """Not one of ours: treated as a damaged one, wherever its token points."""
    monkeypatch.setattr(locks, "DAMAGED_SECONDS", 0.1)
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    holder = asdict(locks._this_process()) | {"token": "0" * 32} | changes
    (folder / ".lock").write_text(json.dumps(holder))
    then = time.time() - 1
    os.utime(folder / ".lock", (then, then))
    assert live_holder(folder) is None
    assert acquired(folder)
    assert leftovers(folder) == [] and leftovers(tmp_path) == ["a", "outside"]
    assert outside.read_text() == "theirs"


def test_lock_that_is_a_pipe_or_endless(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "DAMAGED_SECONDS", 0.1)
    os.mkfifo(tmp_path / ".lock")
    assert live_holder(tmp_path) is None  # who it is cannot be told
    assert acquired(tmp_path)
    (tmp_path / ".lock").write_text("[" * 10_000_000)
    assert acquired(tmp_path)
    assert leftovers(tmp_path) == []


def test_touched_while_held_and_in_spite_of_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "TOUCH_SECONDS", 0.01)
    real, calls = os.utime, []

    def utime(path, *args):
        calls.append(path)
        if len(calls) <= 3:
            raise OSError(5, "Input/output error")
        real(path, *args)

    with locked(tmp_path, flag="x"):
        real(tmp_path / ".lock", (1, 1))
        monkeypatch.setattr(os, "utime", utime)
        deadline = time.monotonic() + 10
        while os.stat(tmp_path / ".lock").st_mtime < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.stat(tmp_path / ".lock").st_mtime > 2
    assert len(calls) > 3
    assert not any(thread.name == "cog-lock" for thread in threading.enumerate())


def test_without_hard_links(tmp_path, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    write_lock(tmp_path, pid=dead_pid())
    with locked(tmp_path, flag="x") as lock:
        lock.require_held()
        assert not acquired(tmp_path)
    assert leftovers(tmp_path) == []


def test_answer_of_the_file_server_was_lost(tmp_path, monkeypatch):
    """The link was made, the answer was lost, and the repeated request says that it exists."""
    real = os.link

    def link(source, target):
        real(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", link)
    with locked(tmp_path, flag="x") as lock:
        lock.require_held()
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_named_and_keeps_no_lock(tmp_path, monkeypatch):
    def fsync(_):
        raise OSError(28, "No space left on device")

    with locked(tmp_path / "held", flag="x"):
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(CogError, match=r"^cannot write into --output_dir .*: No space left on device$"):
            with locked(tmp_path / "out", flag="--output_dir"):
                pass
    assert leftovers(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_write_permission(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(CogError, match="Permission denied"), locked(tmp_path, flag="--output_dir"):
            pass
    finally:
        tmp_path.chmod(0o755)


def test_leftovers_of_dead_processes_are_removed(tmp_path):
    write_lock(tmp_path, pid=dead_pid())
    write_lock(tmp_path, name=".lock.abcdefgh", pid=dead_pid(), token="2" * 32)
    write_lock(tmp_path, name=".lock.ijklmnop", token="3" * 32)  # of a live one: about to be linked
    write_lock(tmp_path, name=".lock.after-" + "4" * 32, pid=dead_pid(), token="5" * 32)
    (tmp_path / f".lock.{locks._mark(dead_pid())}.abcdefgh").touch()  # died before it had written anything
    (tmp_path / f".lock.{locks._mark(os.getpid())}.abcdefgh").touch()
    (tmp_path / ".lock-notes").touch()
    with locked(tmp_path, flag="x"):
        mine = f".lock.{locks._mark(os.getpid())}.abcdefgh"
        assert leftovers(tmp_path) == sorted([".lock", ".lock-notes", ".lock.ijklmnop", mine])


@pytest.mark.parametrize("signed", [False, True])  # as by earlier versions
@pytest.mark.parametrize("n_successors", [1, 2])
def test_one_who_took_over_and_died_is_succeeded(tmp_path, n_successors, signed):
    """The holder died, one that had decided to take over, and one after that one."""
    write_lock(tmp_path, pid=dead_pid(), token="0")
    if signed:
        with open(tmp_path / ".lock", "a") as handle:
            handle.write("\n{}")
    for number in range(n_successors):
        write_lock(tmp_path, name=f".lock.after-{number}", pid=dead_pid(), token=f"{number + 1}")
    with locked(tmp_path, flag="x") as lock:
        lock.require_held()
        assert leftovers(tmp_path) == [".lock"]
    assert leftovers(tmp_path) == []


def test_successor_of_a_lock_that_is_no_more(tmp_path):
    """Someone else took the stale lock over, and is done, between our look at it and our decision."""
    stale = write_lock(tmp_path, pid=dead_pid())
    chain = locks._chain(tmp_path / ".lock")
    me = locks._this_process()
    own = locks._write_holder(tmp_path / ".lock", me)
    with locked(tmp_path, flag="x") as lock:
        assert not locks._decide(tmp_path / ".lock", chain, own, me)
        lock.require_held()
        assert not (tmp_path / f".lock.after-{stale.token}").exists()
    own.unlink()


# ------------------------------------------------------------------------------------------------------------
# Races of processes


def _compete(folder: Path, seed: int, stop, die: float, report) -> None:
    """Take and give back the lock again and again; notice a second process inside; now and then die anywhere."""
    rng = random.Random(seed)

    def slow(function):
        def call(*args, **kwargs):
            time.sleep(rng.random() * 0.002 if rng.random() < 0.5 else 0)
            if rng.random() < die:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name in ("link", "replace", "unlink"):
        setattr(os, name, slow(getattr(os, name)))
    locks._entry = slow(locks._entry)
    while not stop.value:
        try:
            with locked(folder, flag="x") as lock:
                lock.require_held()
                inside = folder / "inside"
                with os.fdopen(os.open(inside, os.O_RDWR | os.O_CREAT), "r+") as handle:
                    before = handle.read().split()
                    if before and before[-1] != "out" and locks._start_of(int(before[-1])) is not None:
                        report.put(f"{os.getpid()} and {before[-1]} hold it")
                    handle.write(f"{os.getpid()}\n")
                    handle.flush()
                    time.sleep(rng.random() * 0.003)
                    lock.require_held()
                    handle.write("out\n")
            report.put("entered")
        except LockedError as error:
            if "taken over" in str(error):
                report.put(str(error))
            time.sleep(rng.random() * 0.002)


def _race(folder: Path, *, entries: int, die: float, processes: int = 6) -> list[str]:
    """Return what processes report until ``entries`` of them have had the lock."""
    context = multiprocessing.get_context("fork")
    report, stop = context.SimpleQueue(), context.RawValue("b", 0)
    deadline = time.monotonic() + 300
    found: list[str] = []
    running: list = []
    number = 0
    while len(found) < entries and time.monotonic() < deadline:
        running = [p for p in running if p.is_alive()]
        while len(running) < processes:
            number += 1
            running.append(context.Process(target=_compete, args=(folder, number, stop, die, report)))
            running[-1].start()
        while not report.empty():
            found.append(report.get())
        time.sleep(0.005)
    stop.value = 1
    for process in running:
        process.join(30)
    while not report.empty():
        found.append(report.get())
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entries", "die"),
    [(40, 0.0), (40, 0.006), (150, 0.02)],
    ids=["living", "dying", "dying often"],
)
def test_never_two_inside(tmp_path, entries, die):
    found = _race(tmp_path, entries=entries, die=die)
    assert {line for line in found if line != "entered"} == set()
    assert len(found) >= entries
    assert acquired(tmp_path)
    assert leftovers(tmp_path) == ["inside"]


def _start_together(folder: Path, barrier, release, report) -> None:
    barrier.wait()
    try:
        with locked(folder, flag="x") as lock:
            lock.require_held()
            report.put("in")
            release.wait(30)
            lock.require_held()
    except LockedError as error:
        report.put("refused" if "is being written by" in str(error) else str(error))


@pytest.mark.parametrize("n", first_quick(1, [6, 12, 12, 12, 12]))
def test_one_of_many_gets_a_stale_lock(tmp_path, n):
    write_lock(tmp_path, pid=dead_pid())
    context = multiprocessing.get_context("fork")
    barrier, release, report = context.Barrier(n), context.Event(), context.SimpleQueue()
    processes = [
        context.Process(target=_start_together, args=(tmp_path, barrier, release, report)) for _ in range(n)
    ]
    for process in processes:
        process.start()
    found = sorted(report.get() for _ in processes)
    release.set()
    for process in processes:
        process.join(30)
    assert found == ["in"] + ["refused"] * (n - 1)
    assert report.empty()
    assert leftovers(tmp_path) == []
