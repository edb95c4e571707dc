"""Reading in threads where files have to be waited for."""

import functools
import threading
import time

from cog.runtime import parallel_reading
from cog.runtime.parallel_reading import map_waiting


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
