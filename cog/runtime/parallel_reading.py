"""Reading many things: in threads where the file system has to be waited for.

On a network file system, where every file costs a round trip, threads read as many times faster as there are of them.
Where nothing has to be waited for, they only hand Python's lock around, which can take longer than the reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_THREADS = 8
_PATIENCE = 64
_CHUNK = 64

# Where the last call had to wait, so few items more decide.
_CONFIRMED = 8
_had_to_wait = False


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
