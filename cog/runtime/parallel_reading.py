"""Reading many things: in threads where the file system has to be waited for, in processes where reading is computing.

On a network file system, where every file costs a round trip, threads read as many times faster as there are of them.
Where nothing has to be waited for, they only hand Python's lock around, which can take longer than the reading: what
is worth it is divided among processes then.
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

# Where the last call had to wait, so few items more decide.
_CONFIRMED = 8
_had_to_wait = False

# Seconds of work that are divided among processes, and how many of these this process can take the results of.
_WORTH_PROCESSES = 1.0
_MOST_PROCESSES = 4
# What the results of a part have in common is sent once.
_PART = 1024


def map_waiting(
    function: Callable[[_Item], _Result], items: Sequence[_Item], *, patience: int = _PATIENCE
) -> Iterator[_Result]:
    """Apply ``function`` to all items and yield the results in order.

    Args:
        function: reads something; has no side effects, and results that can be pickled.
        items: its arguments.
        patience: when so many more items than not took longer to wait for than to work on, threads take the others;
            as many items tell how long the others will take.
    """
    global _had_to_wait
    n_done, n_waited, seconds = 0, max(0, patience - _CONFIRMED) if _had_to_wait else 0, 0.0
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
    if n_done == len(items):
        _had_to_wait = _had_to_wait and (n_waited > 0 or n_done < _CONFIRMED)
        return
    _had_to_wait = True
    # A task for every item would cost more than the item.
    size = max(1, min(_CHUNK, (len(items) - n_done) // _THREADS))
    chunks = [items[first : first + size] for first in range(n_done, len(items), size)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in pool.map(lambda chunk: [function(item) for item in chunk], chunks):
            yield from done


def _n_processes() -> int:
    """Return how many processes this one may divide its work among; 1: none.

    A fork has no other threads than the one that forks: whatever lock those hold is held for ever.
    """
    is_alone = threading.active_count() == 1 and multiprocessing.parent_process() is None
    return min(n_processors(), _MOST_PROCESSES) if is_alone and sys.platform == "linux" else 1


def _in_processes(
    function: Callable[[_Item], _Result], items: Sequence[_Item], n_processes: int
) -> Iterator[_Result]:
    """Apply ``function`` to all items in forked processes and yield the results in order.

    When a process is killed, for want of memory for example, this one reads what is left.
    """
    size = max(1, min(_PART, len(items) // (8 * n_processes)))
    parts = [items[first : first + size] for first in range(0, len(items), size)]
    n_done = 0
    with ProcessPoolExecutor(
        n_processes,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_begin,  # its arguments are inherited, and need not be sent
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


# Of a process that reads parts: the function, and the items of each part.
_inherited: tuple[Callable[[Any], Any], Sequence[Sequence[Any]]] | None = None


def _begin(function: Callable[[Any], Any], parts: Sequence[Sequence[Any]]) -> None:
    global _inherited
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the first process, which ends the others
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    _inherited = function, parts


def _end_with_the_first() -> None:
    """End this process when the first one is killed; else it would wait for a task for ever."""
    first = multiprocessing.parent_process()
    assert first is not None
    first.join()
    os._exit(1)


def _read_part(number: int) -> list[Any]:
    assert _inherited is not None
    function, parts = _inherited
    return list(map_waiting(function, parts[number]))
