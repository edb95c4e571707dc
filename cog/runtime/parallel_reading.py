"""Parallel reading: in threads when reading waits for the file system, in processes when reading computes.

On a network file system, where every file costs a round trip, ``n`` threads read ``n`` times faster. Without waiting,
threads only pass Python's global lock around, which can take longer than the reading: long work is then divided among
processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from cog.runtime.ranks import n_processors

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_THREADS = 8
_PATIENCE = 64
_CHUNK = 64

# Least seconds of work that are divided among processes, and most processes whose results this process can take.
_WORTH_PROCESSES = 1.0
_MOST_PROCESSES = 4
# Largest number of items in a part: objects that the results of a part share are sent once.
_PART = 1024


def map_waiting(
    function: Callable[[_Item], _Result], items: Sequence[_Item], *, patience: int = _PATIENCE
) -> Iterator[_Result]:
    """Apply ``function`` to all items and yield the results in order.

    Args:
        function: function that reads an item; it has no side effects, and its results can be pickled.
        items: arguments of the function.
        patience: excess of items that took longer to wait for than to work on, over the others, from which threads take
            the rest; also the number of items from which the time of the rest is estimated.
    """
    n_done, n_waited, seconds = 0, 0, 0.0
    while n_done < len(items) and n_waited < patience:
        is_worth_it = n_done == patience and seconds / n_done * (len(items) - n_done) > _WORTH_PROCESSES
        if is_worth_it and (n_processes := _n_processes()) > 1:
            yield from _in_processes(function, items[n_done:], n_processes)
            return
        worked, start = time.thread_time(), time.perf_counter()
        result = function(items[n_done])
        taken, worked = time.perf_counter() - start, time.thread_time() - worked
        waited = taken > 2 * worked
        n_waited = max(0, n_waited + (1 if waited else -1))
        n_done, seconds = n_done + 1, seconds + worked
        yield result
    # A task per item would cost more than the item itself.
    size = max(1, min(_CHUNK, (len(items) - n_done) // _THREADS))
    chunks = [items[first : first + size] for first in range(n_done, len(items), size)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in pool.map(lambda chunk: [function(item) for item in chunk], chunks):
            yield from done


def _n_processes() -> int:
    """Return the number of processes among which this one may divide its work; 1: no division.

    A process with other threads must not fork: the fork has only the forking thread, and locks that the others hold
    stay locked forever.
    """
    is_alone = threading.active_count() == 1 and multiprocessing.parent_process() is None
    return min(n_processors(), _MOST_PROCESSES) if is_alone and sys.platform == "linux" else 1


def _in_processes(
    function: Callable[[_Item], _Result], items: Sequence[_Item], n_processes: int
) -> Iterator[_Result]:
    """Apply ``function`` to all items in forked processes and yield the results in order.

    When one of them is killed, for example for lack of memory, this process handles the remaining items.
    """
    size = max(1, min(_PART, len(items) // (8 * n_processes)))
    parts = [items[first : first + size] for first in range(0, len(items), size)]
    n_done = 0
    with ProcessPoolExecutor(
        n_processes,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_start_forked,  # its arguments are inherited, and need not be sent
        initargs=(function, parts),
    ) as pool:
        try:
            for results in pool.map(_read_part, range(len(parts))):
                yield from results
                n_done += 1
        except BrokenProcessPool:
            pass
    for part in parts[n_done:]:
        yield from map(function, part)


# In a forked process: the function, and the items of each part.
_inherited: tuple[Callable[[Any], Any], Sequence[Sequence[Any]]] | None = None


def _start_forked(function: Callable[[Any], Any], parts: Sequence[Sequence[Any]]) -> None:
    global _inherited
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles ^C and ends the forked processes
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _inherited = function, parts


def _exit_with_parent() -> None:
    """End this process when its parent is killed; otherwise it would wait for a task forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _read_part(number: int) -> list[Any]:
    assert _inherited is not None
    function, parts = _inherited
    return list(map_waiting(function, parts[number]))
