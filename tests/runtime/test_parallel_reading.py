"""Reading in threads where files have to be waited for, in processes where it takes long."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from marks import first_quick

from cog.runtime import parallel_reading
from cog.runtime.parallel_reading import map_waiting


def test_threads_read_only_what_has_to_be_waited_for():
    threads: list[int] = []
    this = threading.get_ident()

    def read_all(items, wait, **options):
        """Read items, of which some have to be waited for, and note the threads."""

        def read(item):
            threads.append(threading.get_ident())
            time.sleep(0.001) if wait(item) else sum(range(2_000))
            return -item

        threads.clear()
        assert list(map_waiting(read, items, **options)) == [-item for item in items]

    for wait in (lambda item: False, lambda item: item % 2 == 0):
        read_all(range(200), wait, patience=20)
        assert set(threads) == {this}
    read_all(range(100), bool, patience=20)
    assert set(threads[:21]) == {this} and this not in threads[21:]
    assert len(set(threads)) > 4


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


@pytest.fixture
def two_processes(monkeypatch):
    """Two processors; the shortest reading is worth two processes."""
    monkeypatch.setattr(parallel_reading, "_WORTH_PROCESSES", 0.0)
    monkeypatch.setattr(parallel_reading, "n_processors", lambda: 2)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # but for the test runner's


@on_linux
def test_processes_read_what_takes_long(two_processes):
    numbers = range(2_000)  # what is read with need not be sent
    results = list(map_waiting(lambda item: (item + sum(numbers), os.getpid()), range(5_000), patience=20))
    assert [value - sum(numbers) for value, _ in results] == [*range(5_000)]
    own = os.getpid()
    assert {process for _, process in results[:20]} == {own}
    assert own not in {process for _, process in results[20:]}
    assert len(list(map_waiting(lambda item: item, range(20), patience=20))) == 20


@on_linux
def test_what_a_process_does_not_give_back_is_read_again(two_processes):
    own = os.getpid()

    def read(item):
        sum(range(2_000))
        if item == 77 and os.getpid() != own:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 99:
            raise ValueError(f"bad {item}")
        return item, os.getpid()

    items = [item for item in range(300) if item != 99]
    results = list(map_waiting(read, items, patience=20))
    assert [item for item, _ in results] == items
    assert dict(results)[77] == own
    with pytest.raises(ValueError, match="bad 99"):
        list(map_waiting(read, range(300), patience=20))


@pytest.mark.parametrize(
    ("n_threads", "parent", "expected"),
    [(1, None, 4 if sys.platform == "linux" else 1), (1, "a process", 1), (2, None, 1)],
)
def test_no_processes_beside_threads_or_in_a_child(monkeypatch, n_threads, parent, expected):
    monkeypatch.setattr(parallel_reading, "n_processors", lambda: 64)
    monkeypatch.setattr(threading, "active_count", lambda: n_threads)
    monkeypatch.setattr(parallel_reading.multiprocessing, "parent_process", lambda: parent)
    assert parallel_reading._n_processes() == expected


@pytest.mark.parametrize("number", first_quick(1, [signal.SIGKILL, signal.SIGINT]))
def test_no_process_outlives_the_first_one(tmp_path, number):
    script = """
import sys, time
from cog.runtime import parallel_reading
parallel_reading.n_processors = lambda: 2
parallel_reading._WORTH_PROCESSES = 0.0
def read(item):
    if item == 21:
        open(sys.argv[1], "w").close()
    if item > 20:
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
    return item
try:
    print(len(list(parallel_reading.map_waiting(read, range(5_000), patience=20))))
except KeyboardInterrupt:
    print("ended")
"""
    told = tmp_path / "begun"
    with subprocess.Popen(
        [sys.executable, "-c", script, told],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    ) as first:
        while not told.exists():
            assert first.poll() is None
            time.sleep(0.01)
        if number == signal.SIGINT:
            os.killpg(first.pid, number)  # as ^C does
        else:
            first.kill()
        said, _ = first.communicate(timeout=60)  # ends when all that could write have ended
    assert said == ("ended\n" if number == signal.SIGINT else "")
