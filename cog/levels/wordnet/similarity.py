"""Similarity of synsets, for all pairs at once.

Every measure is a function of a common ancestor (a subsumer, possibly the synset itself). The graph is not
searched per pair. Instead, ancestors are visited from the least to the most specific, and each ancestor
overwrites the result of all pairs that it subsumes; the last one written is the lowest common subsumer. Rows and
columns are first sorted into tree order, so that these pairs form few rectangular blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, pairwise

import numpy as np

from cog.levels.wordnet.graph import NounGraph
from cog.levels.wordnet.ic import Taxonomy

#: Formula of each measure. All measures except ``lin`` equal NLTK's functions.
MEASURES = {
    "lin": "2 IC(s) / (IC(a) + IC(b)), s the deepest common subsumer (the published levels)",
    "lin_max_ic": "Lin with the common subsumer of maximal information content (NLTK's lin_similarity)",
    "resnik": "IC(s), s the common subsumer of maximal information content",
    "jcn": "Jiang-Conrath: 1 / (IC(a) + IC(b) - 2 IC(s)), s of maximal information content",
    "wup": "Wu-Palmer: depth of the common subsumer relative to both depths",
    "path": "1 / (1 + edges of the shortest path)",
    "lch": "Leacock-Chodorow: -log((1 + edges of the shortest path) / (2 depth of WordNet))",
}
#: Measures that depend on which concepts span the taxonomy.
NEEDS_TAXONOMY = frozenset({"lin", "lin_max_ic", "resnik", "jcn"})

_FAR = np.iinfo(np.int32).max // 4


def similarities(taxonomy: Taxonomy, rows: Sequence[int] | np.ndarray, columns: Sequence[int] | np.ndarray,
                 *, measure: str = "lin") -> np.ndarray:  # fmt: skip
    """Return the similarity of every synset of ``rows`` to every synset of ``columns``.

    Args:
        taxonomy: graph and, for the measures that use it, information content.
        rows: N node numbers.
        columns: M node numbers.
        measure: a key of ``MEASURES``.

    Returns:
        float64 of shape (N, M). The value of pairs without a common subsumer is 0. Jiang-Conrath is infinite for
        equal synsets. Only ``wup`` depends on the order of a pair (as in NLTK).

    Raises:
        CogError: the measure needs the taxonomy, and a synset is outside it.
    """
    rows, columns = (np.asarray(nodes, dtype=np.int64) for nodes in (rows, columns))
    if measure in NEEDS_TAXONOMY:
        taxonomy.require(np.concatenate([rows, columns]))
    if len(rows) == 0 or len(columns) == 0:
        return np.zeros((len(rows), len(columns)))
    return _PAIRWISE[measure](taxonomy, rows, columns)


def lowest_common_subsumers(graph: NounGraph, rows: np.ndarray, columns: np.ndarray,
                            *, importance: Callable[[list[int]], list[int]]) -> np.ndarray:  # fmt: skip
    """Return the most important common subsumer of every pair.

    Args:
        graph: the nouns.
        rows: N node numbers.
        columns: M node numbers.
        importance: function that sorts node numbers from the least to the most important.

    Returns:
        int32 of shape (N, M): node numbers; -1 for pairs without a common subsumer.
    """
    row_order, column_order = (_tree_order(graph, nodes) for nodes in (rows, columns))
    row_runs, column_runs = (
        _runs(*_closures(graph, nodes)) for nodes in (rows[row_order], columns[column_order])
    )
    result = np.full((len(rows), len(columns)), -1, dtype=np.int32)
    for node in importance(sorted(row_runs.keys() & column_runs.keys())):
        for row_run in row_runs[node]:
            for column_run in column_runs[node]:
                result[row_run, column_run] = node
    return _put_back(result, row_order, column_order)


def path_lengths(graph: NounGraph, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the number of edges of the shortest path of every pair over a common subsumer.

    Returns:
        int32 of shape (N, M); -1 for pairs without a common subsumer.
    """
    row_order, column_order = (_tree_order(graph, nodes) for nodes in (rows, columns))
    row_climbs, column_climbs = (
        _climbs_up(graph, nodes) for nodes in (rows[row_order], columns[column_order])
    )
    result = np.full((len(rows), len(columns)), _FAR, dtype=np.int32)
    for node in row_climbs.keys() & column_climbs.keys():  # any order: the minimum does not depend on it
        for row_run, row_steps in row_climbs[node]:
            for column_run, column_steps in column_climbs[node]:
                block = result[row_run, column_run]
                np.minimum(block, row_steps[:, None] + column_steps, out=block)
    result[result == _FAR] = -1
    return _put_back(result, row_order, column_order)


def _lin(taxonomy: Taxonomy, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    graph = taxonomy.graph
    subsumers = lowest_common_subsumers(graph, rows, columns, importance=_by_depth(graph, graph.max_depths))
    return _lin_ratio(taxonomy, rows, columns, subsumers)


def _lin_max_ic(taxonomy: Taxonomy, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return _lin_ratio(taxonomy, rows, columns, _most_informative(taxonomy, rows, columns))


def _lin_ratio(
    taxonomy: Taxonomy, rows: np.ndarray, columns: np.ndarray, subsumers: np.ndarray
) -> np.ndarray:
    shared = _with_default(taxonomy.information, 0.0)[subsumers]
    total = taxonomy.information[rows][:, None] + taxonomy.information[columns]
    # A sum of 0 means that both synsets are the root of the taxonomy: they are equal, so their similarity is 1.
    root_pairs = total == 0
    total[root_pairs] = 1.0
    shared *= 2.0
    shared /= total
    shared[root_pairs] = 1.0
    return shared


def _resnik(taxonomy: Taxonomy, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return _with_default(taxonomy.information, 0.0)[_most_informative(taxonomy, rows, columns)]


def _jiang_conrath(taxonomy: Taxonomy, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    subsumers = _most_informative(taxonomy, rows, columns)
    row_information, column_information = taxonomy.information[rows][:, None], taxonomy.information[columns]
    distance = row_information + column_information - 2 * _with_default(taxonomy.information, 0.0)[subsumers]
    with np.errstate(divide="ignore"):
        result = 1.0 / distance
    # As in NLTK, the similarity to a root, which has no information, is 0, and that of a synset to itself is infinite.
    result[(row_information == 0) | (column_information == 0) | (subsumers < 0)] = 0.0
    result[rows[:, None] == columns] = np.inf
    return result


def _wu_palmer(taxonomy: Taxonomy, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    # As in NLTK, the subsumer is chosen by its shortest path to the root, but its longest path enters the formula.
    graph = taxonomy.graph
    min_depths = graph.min_depths
    subsumers = lowest_common_subsumers(graph, rows, columns, importance=_by_depth(graph, min_depths))
    columns_below: dict[int, list[int]] = {}
    for position, node in enumerate(columns.tolist()):
        for subsumer in graph.subsumers(node):
            columns_below.setdefault(subsumer, []).append(position)
    # Among equally deep subsumers NLTK prefers the first synset itself.
    for position, node in enumerate(rows.tolist()):
        below = np.array(columns_below.get(node, []), dtype=np.int64)
        equal = below[min_depths[subsumers[position, below]] == min_depths[node]]
        subsumers[position, equal] = node
    depths = _with_default(graph.max_depths + 1.0, 1.0)[subsumers]
    lengths = _lengths_to(graph, rows, subsumers) + _lengths_to(graph, columns, subsumers.T).T
    return np.where(subsumers < 0, 0.0, 2.0 * depths / (lengths + 2.0 * depths))


def _lengths_to(graph: NounGraph, nodes: np.ndarray, subsumers: np.ndarray) -> np.ndarray:
    """Return the path length from ``nodes[i]`` to ``subsumers[i, j]`` (int32 of the shape of ``subsumers``)."""
    used = np.zeros(len(graph) + 1, dtype=bool)
    used[subsumers] = True  # -1, no subsumer, marks the last entry
    distinct = np.flatnonzero(used[:-1])
    number = np.zeros(len(graph) + 1, dtype=np.int32)
    number[distinct] = np.arange(len(distinct))
    if not distinct.size:
        return np.zeros(subsumers.shape, dtype=np.int32)
    table = np.maximum(path_lengths(graph, nodes, distinct), 0)
    return np.take_along_axis(table, number[subsumers], axis=1)


def _path(taxonomy: Taxonomy, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    lengths = path_lengths(taxonomy.graph, rows, columns)
    return np.where(lengths < 0, 0.0, 1.0 / (np.maximum(lengths, 0) + 1))


def _leacock_chodorow(taxonomy: Taxonomy, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    lengths = path_lengths(taxonomy.graph, rows, columns)
    depth = int(taxonomy.graph.max_depths.max())  # depth of all nouns, as in NLTK: 19 in WordNet 3.0
    if depth == 0:
        return np.zeros(lengths.shape)
    value = {n: -math.log((n + 1) / (2.0 * depth)) for n in range(int(lengths.max()) + 1)}
    return np.array([*value.values(), 0.0])[lengths]  # -1, no path, selects the last entry


_PAIRWISE: dict[str, Callable[[Taxonomy, np.ndarray, np.ndarray], np.ndarray]] = {
    "lin": _lin,
    "lin_max_ic": _lin_max_ic,
    "resnik": _resnik,
    "jcn": _jiang_conrath,
    "wup": _wu_palmer,
    "path": _path,
    "lch": _leacock_chodorow,
}


def _most_informative(taxonomy: Taxonomy, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    information = taxonomy.information
    return lowest_common_subsumers(
        taxonomy.graph, rows, columns, importance=lambda nodes: sorted(nodes, key=information.__getitem__)
    )


def _by_depth(graph: NounGraph, depths: np.ndarray) -> Callable[[list[int]], list[int]]:
    """Return a function that sorts by depth; the first of equally deep subsumers by name is most important (NLTK)."""

    def importance(nodes: list[int]) -> list[int]:
        return sorted(sorted(nodes, key=graph.name, reverse=True), key=depths.__getitem__)

    return importance


def _with_default(values: np.ndarray, default: float) -> np.ndarray:
    """Append ``default``, so that it is the value of node number -1 (no subsumer)."""
    return np.append(values, default)


def _tree_order(graph: NounGraph, nodes: np.ndarray) -> np.ndarray:
    """Return positions that sort ``nodes`` by their path from the root along first parents."""
    paths: dict[int, tuple[int, ...]] = {}

    def path(node: int) -> tuple[int, ...]:
        chain = []
        top: int | None = node
        while top is not None and top not in paths:
            chain.append(top)
            parents = graph.parents(top)
            top = parents[0] if parents else None
        known = paths[top] if top is not None else ()
        for link in reversed(chain):
            known = (*known, link)
            paths[link] = known
        return known

    return np.array(
        sorted(range(len(nodes)), key=lambda position: path(int(nodes[position]))), dtype=np.int64
    )


def _put_back(values: np.ndarray, row_order: np.ndarray, column_order: np.ndarray) -> np.ndarray:
    """Return values ``(N, M)`` with rows and columns in their original order."""
    return values.take(np.argsort(row_order), axis=0).take(np.argsort(column_order), axis=1)


def _closures(graph: NounGraph, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs (subsumer, position in ``nodes``), sorted, as two int64 arrays."""
    closures = [graph.subsumers(node) for node in nodes.tolist()]
    sizes = np.fromiter(map(len, closures), dtype=np.int64, count=len(closures))
    subsumers = np.fromiter(chain.from_iterable(closures), dtype=np.int64, count=int(sizes.sum()))
    positions = np.repeat(np.arange(len(nodes)), sizes)
    order = np.argsort(subsumers, kind="stable")
    return subsumers[order], positions[order]


def _run_bounds(subsumers: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the starts of runs of consecutive positions below one subsumer, and the end of the last run (int64)."""
    inside = (np.diff(subsumers) == 0) & (np.diff(positions) == 1)
    return np.concatenate([[0], np.flatnonzero(~inside) + 1, [len(positions)]])


def _runs(subsumers: np.ndarray, positions: np.ndarray) -> dict[int, list[slice]]:
    """Return the runs of positions below every subsumer, by subsumer."""
    bounds = _run_bounds(subsumers, positions)
    starts, stops = bounds[:-1], bounds[1:]
    runs: dict[int, list[slice]] = {}
    firsts, lasts = positions[starts].tolist(), positions[stops - 1].tolist()
    for subsumer, first, last in zip(subsumers[starts].tolist(), firsts, lasts, strict=True):
        runs.setdefault(subsumer, []).append(slice(first, last + 1))
    return runs


def _climbs_up(graph: NounGraph, nodes: np.ndarray) -> dict[int, list[tuple[slice, np.ndarray]]]:
    """Return the runs of positions below every subsumer, each with the fewest steps up to the subsumer (int32)."""
    climbed: list[tuple[int, int, int]] = []
    for position, node in enumerate(nodes.tolist()):
        distances = {node: 0}
        queue = [node]
        for here in queue:  # breadth first: the first visit has the fewest steps
            for parent in graph.parents(here):
                if parent not in distances:
                    distances[parent] = distances[here] + 1
                    queue.append(parent)
        climbed += [(subsumer, position, distance) for subsumer, distance in distances.items()]
    subsumers, positions, steps = np.array(sorted(climbed), dtype=np.int64).T
    climbs: dict[int, list[tuple[slice, np.ndarray]]] = {}
    for start, stop in pairwise(_run_bounds(subsumers, positions).tolist()):
        run = slice(int(positions[start]), int(positions[stop - 1]) + 1)
        climbs.setdefault(int(subsumers[start]), []).append((run, steps[start:stop].astype(np.int32)))
    return climbs
