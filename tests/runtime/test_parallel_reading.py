"""Reading in threads where files have to be waited for, and in processes."""

import functools
import os
import signal
import threading
import time

import pytest

from cog.runtime import parallel_reading
from cog.runtime.parallel_reading import map_in_processes, map_waiting


def test_threads_read_only_what_has_to_be_waited_for(monkeypatch):
    threads = []
    monkeypatch.setattr(parallel_reading, "_had_to_wait", False)

    def read(item, wait):
        threads.append(threading.get_ident())
        time.sleep(0.001) if wait(item) else sum(range(2_000))
        return -item

    for wait in (lambda item: False, lambda item: item % 2 == 0):
        assert list(map_waiting(functools.partial(read, wait=wait), range(200), patience=20)) == [
            *range(0, -200, -1)
        ]
        assert set(threads) == {threading.get_ident()}
    threads.clear()
    assert list(map_waiting(functools.partial(read, wait=bool), range(100), patience=20)) == [
        *range(0, -100, -1)
    ]
    assert set(threads[:21]) == {threading.get_ident()} and threading.get_ident() not in threads[21:]
    assert len(set(threads)) > 4
    threads.clear()
    # The next call needs less to be convinced, and can be convinced of the contrary.
    assert list(map_waiting(functools.partial(read, wait=bool), range(1, 50), patience=20)) == [
        *range(-1, -50, -1)
    ]
    assert set(threads[:8]) == {threading.get_ident()} and threading.get_ident() not in threads[8:]
    at_once = functools.partial(read, wait=lambda item: False)
    assert len(list(map_waiting(at_once, range(7)))) == 7 and parallel_reading._had_to_wait
    for _ in range(5):  # another process may come between a reading and its end
        list(map_waiting(at_once, range(100)))
    assert not parallel_reading._had_to_wait


has_threads = parallel_reading._has_threads


@pytest.fixture
def processors(monkeypatch):
    monkeypatch.setattr(parallel_reading, "_n_processors", lambda: 3)
    # Earlier tests may have left some, such as tqdm's.
    monkeypatch.setattr(parallel_reading, "_has_threads", lambda: False)


def where(item):
    return item, os.getpid()


def test_results_of_processes_come_in_order(processors):
    found = list(map_in_processes(where, range(20)))
    assert [item for item, _ in found] == list(range(20))
    workers = [worker for _, worker in found]
    assert workers == workers[:3] * 6 + workers[:2] and len({*workers, os.getpid()}) == 4


def test_one_processor_or_threads_take_no_process(processors, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(parallel_reading, "_n_processors", lambda: 1)
        assert {worker for _, worker in map_in_processes(where, range(5))} == {os.getpid()}
    assert {worker for _, worker in map_in_processes(where, range(1))} == {os.getpid()}
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    monkeypatch.setattr(parallel_reading, "_has_threads", has_threads)
    try:
        assert {worker for _, worker in map_in_processes(where, range(5))} == {os.getpid()}
    finally:
        done.set()
        thread.join()


def test_what_a_killed_process_has_left_is_done_here(processors):
    parent = os.getpid()

    def read(item):
        if item == 4 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return where(item)

    found = list(map_in_processes(read, range(10)))
    assert [item for item, _ in found] == list(range(10))
    assert [item for item, worker in found if worker == parent] == [4, 7]


def test_an_error_in_a_process_is_met_here(processors):
    def read(item):
        return 1 / (5 - item)

    results = map_in_processes(read, range(10))
    assert [next(results) for _ in range(5)] == [1 / (5 - item) for item in range(5)]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_no_process_stays_behind(processors):
    workers = set()
    results = map_in_processes(where, range(10_000))
    for _ in range(6):
        workers.add(next(results)[1])
    results.close()
    assert len(workers) == 3
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
