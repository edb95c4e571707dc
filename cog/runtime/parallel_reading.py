"""Reading many things: in threads where the file system has to be waited for, in processes where a processor has.

On a network file system, where every file costs a round trip, threads read as many times faster as there are of them.
Where nothing has to be waited for, they only hand Python's lock around, which can take longer than the reading.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_THREADS = 8
_PATIENCE = 64
_CHUNK = 64

# Where the last call had to wait, so few items more decide.
_CONFIRMED = 8
_had_to_wait = False

_MOST_PROCESSES = 8


def map_waiting(
    function: Callable[[_Item], _Result], items: Sequence[_Item], *, patience: int = _PATIENCE
) -> Iterator[_Result]:
    """Apply ``function`` to all items and yield the results in order.

    Args:
        function: reads something.
        items: its arguments.
        patience: when so many more items than not took longer to wait for than to work on, threads take the others.
    """
    global _had_to_wait
    n_done, n_waited = 0, max(0, patience - _CONFIRMED) if _had_to_wait else 0
    while n_done < len(items) and n_waited < patience:
        worked, start = time.thread_time(), time.perf_counter()
        result = function(items[n_done])
        taken = time.perf_counter() - start
        waited = taken > 2 * (time.thread_time() - worked)
        n_waited = max(0, n_waited + (1 if waited else -1))
        n_done += 1
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


def map_in_processes(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Apply ``function`` to all items, in a process per processor, and yield the results in order.

    This process does it alone where there is one processor, or where it has threads, whose locks a fork would copy. It
    also does what a process that was killed has left.

    Args:
        function: reads something; its results can be pickled and are small beside the work.
        items: its arguments.
    """
    n = min(_n_processors(), _MOST_PROCESSES, len(items))
    if n < 2 or sys.platform != "linux" or _has_threads():
        yield from map(function, items)
        return
    import multiprocessing  # few calls need it

    context = multiprocessing.get_context("fork")
    connections: list[Connection] = []
    processes = []
    try:
        for first in range(n):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send, args=(function, items[first::n], sender), daemon=True)
            process.start()
            sender.close()  # so that the end of the process ends the pipe
            connections.append(receiver)
            processes.append(process)
        for position, item in enumerate(items):
            try:
                content = connections[position % n].recv_bytes()
            except (EOFError, OSError):
                yield function(item)
                continue
            yield pickle.loads(content)
    finally:
        for receiver in connections:
            receiver.close()
        for process in processes:
            process.terminate()
            process.join()


def _send(function: Callable[[_Item], _Result], items: Sequence[_Item], sender: Connection) -> None:
    """Send the results of a process; ends where nobody receives, or at an error, which the receiver then meets."""
    # ^C reaches all processes of a terminal; the receiver ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.disable()
    try:
        for item in items:
            sender.send_bytes(pickle.dumps(function(item), pickle.HIGHEST_PROTOCOL))
    except Exception:
        os._exit(1)


def _has_threads() -> bool:
    return threading.active_count() > 1


def _n_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
