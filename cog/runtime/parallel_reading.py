"""Reading many things: in threads where the file system has to be waited for, in processes where reading is computing.

On a network file system, where every file costs a round trip, threads read as many times faster as there are of them.
Where nothing has to be waited for, they only hand Python's lock around, which can take longer than the reading: what
is worth it is divided among processes then.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from typing import TypeVar, cast

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
# What the results of a part have in common is sent once. The numbers of all parts fit into a pipe.
_PART = 1024
_MOST_PARTS, _NUMBER_BYTES = 4096, 4


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

    What a process does not give back, because it was killed or the function raised an error, is done again here.
    """
    size = max(1, min(_PART, len(items) // (8 * n_processes)), len(items) // _MOST_PARTS)
    parts = [items[first : first + size] for first in range(0, len(items), size)]
    # Whoever is done with a part reads the number of the next. A pipe needs no lock, which a killed process would hold.
    numbers, numbers_in = os.pipe()
    os.write(numbers_in, b"".join(number.to_bytes(_NUMBER_BYTES) for number in range(len(parts))))
    os.close(numbers_in)
    context = multiprocessing.get_context("fork")
    readers: list[Connection] = []
    workers = []
    given: dict[int, list[_Result]] = {}
    n_yielded = 0
    # ^C is for this process alone, which ends the others.
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with contextlib.suppress(OSError):  # as many processes as there can be
            for _ in range(n_processes):
                reader, writer = context.Pipe(duplex=False)
                args = function, parts, numbers, writer, [*readers, reader]
                worker = context.Process(target=_work, args=args, daemon=True)
                worker.start()
                writer.close()
                workers.append(worker)
                readers.append(reader)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        while readers:
            for ready in cast(list[Connection], wait(readers)):
                try:
                    number, results = ready.recv()
                    given[number] = results
                except (EOFError, OSError):  # the latter in the middle of a part
                    readers.remove(ready)
            while n_yielded in given:
                yield from given.pop(n_yielded)
                n_yielded += 1
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        os.close(numbers)
        for worker in workers:
            worker.terminate()
            worker.join()
    for number in range(n_yielded, len(parts)):
        yield from given.pop(number, None) or map(function, parts[number])


def _work(
    function: Callable[[_Item], _Result],
    parts: Sequence[Sequence[_Item]],
    numbers: int,
    writer: Connection,
    readers: Sequence[Connection],
) -> None:
    """Send the number and the results of part after part."""
    for reader in readers:
        reader.close()  # so that writing fails when the first process is gone
    try:
        while number := os.read(numbers, _NUMBER_BYTES):
            part = int.from_bytes(number)
            writer.send((part, list(map_waiting(function, parts[part]))))
    except Exception:  # the first process will meet it again, if it was no chance
        os._exit(1)
