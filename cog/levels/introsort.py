"""The order in which numpy's classic argsort leaves equal values.

The published levels were cut from a ranking with many ties (335 different similarities among 5,146
concepts), sorted by the ``argsort`` of a numpy of 2020: an introsort, which is not stable. Today's numpy
picks other algorithms according to the CPU, so this module implements the classic one. On values without
ties the result equals that of any other sort.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Partitions that span at most this much beyond their start are finished by insertion sort.
_SMALL = 15


def argsort_introsort(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the positions that sort ``values`` ascending, ties in the order of numpy's introsort.

    The algorithm is an iterative quicksort: median of three, Hoare's scans with strict comparisons, the smaller part
    first. Past a depth of ``2 * (bit_length(n) - 1)`` a part is heap-sorted.

    Args:
        values: n floats without NaN.

    Returns:
        int64 of shape (n,).
    """
    v = [float(value) for value in values]
    order = list(range(len(v)))
    low, high, depth_left = 0, len(v) - 1, 2 * (len(v).bit_length() - 1)
    waiting: list[tuple[int, int, int]] = []
    while True:
        if depth_left < 0:
            order[low : high + 1] = _heapsorted(v, order[low : high + 1])
        else:
            while high - low > _SMALL:
                pivot_at = _partition(v, order, low, high)
                depth_left -= 1
                if pivot_at - low < high - pivot_at:
                    waiting.append((pivot_at + 1, high, depth_left))
                    high = pivot_at - 1
                else:
                    waiting.append((low, pivot_at - 1, depth_left))
                    low = pivot_at + 1
            _insertion_sort(v, order, low, high)
        if not waiting:
            return np.array(order, dtype=np.int64)
        low, high, depth_left = waiting.pop()


def _partition(v: list[float], order: list[int], low: int, high: int) -> int:
    """Partition ``order[low:high + 1]`` around the median of three, and return the final position of the pivot."""
    middle = low + ((high - low) >> 1)
    for first, second in ((low, middle), (middle, high), (low, middle)):
        if v[order[second]] < v[order[first]]:
            order[first], order[second] = order[second], order[first]
    pivot = v[order[middle]]
    left, right = low, high - 1
    order[middle], order[right] = order[right], order[middle]
    while True:
        left += 1
        while v[order[left]] < pivot:
            left += 1
        right -= 1
        while pivot < v[order[right]]:
            right -= 1
        if left >= right:
            break
        order[left], order[right] = order[right], order[left]
    order[left], order[high - 1] = order[high - 1], order[left]
    return left


def _insertion_sort(v: list[float], order: list[int], low: int, high: int) -> None:
    for position in range(low + 1, high + 1):
        item = order[position]
        hole = position
        while hole > low and v[item] < v[order[hole - 1]]:
            order[hole] = order[hole - 1]
            hole -= 1
        order[hole] = item


def _heapsorted(v: list[float], items: list[int]) -> list[int]:
    """Return ``items`` sorted by a max-heap that is built from the last parent to the root."""
    heap = list(items)

    def sink(item: int, root: int, size: int) -> None:
        hole = root
        while (child := 2 * hole + 1) < size:
            if child + 1 < size and v[heap[child]] < v[heap[child + 1]]:
                child += 1
            if not v[item] < v[heap[child]]:
                break
            heap[hole] = heap[child]
            hole = child
        heap[hole] = item

    for root in range(len(heap) // 2 - 1, -1, -1):
        sink(heap[root], root, len(heap))
    for size in range(len(heap) - 1, 0, -1):
        last = heap[size]
        heap[size] = heap[0]
        sink(last, 0, size)
    return heap
