"""Information content and similarity of all pairs of synsets (paper, Sec. 3.2-3.3 and supplement A.2)."""

import math
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np

from cog.levels.wordnet import NounGraph


def information_content(graph: NounGraph, concepts: Iterable[int]) -> np.ndarray:
    """Return the information content of every node, float64; NaN if it is no concept or ancestor of one.

    IC(c) = -log p(c) in nats, where p(c) is the share of those synsets at or below c, each counted once.
    """
    taxonomy = sorted(set().union(*map(graph.above, concepts)))
    ancestors = np.fromiter(chain.from_iterable(map(graph.above, taxonomy)), dtype=np.int64)
    below = np.bincount(ancestors, minlength=len(graph.wnids)).tolist()
    ic = np.full(len(graph.wnids), np.nan)
    for node in taxonomy:
        # math.log does not depend on the CPU's vector units, as np.log does. "+ 0.0" turns -0.0 into 0.0.
        ic[node] = -math.log(below[node] / len(taxonomy)) + 0.0
    return ic


def common_subsumers(
    graph: NounGraph, rows: np.ndarray, columns: np.ndarray, key: Callable[[int], float]
) -> np.ndarray:
    """Return the common ancestor of largest key of every pair of nodes, int32 ``(N, M)``; -1 without one.

    Of equal ones the first by name counts, as in NLTK. Ancestors are visited from the least to the most
    important, and each overwrites the pairs that it subsumes.
    """
    in_rows, in_columns = _positions_below(graph, rows), _positions_below(graph, columns)
    best = np.full((len(rows), len(columns)), -1, dtype=np.int32)
    by_name = sorted(in_rows.keys() & in_columns.keys(), key=graph.names.__getitem__, reverse=True)
    for node in sorted(by_name, key=key):
        best[np.ix_(in_rows[node], in_columns[node])] = node
    return best


def _positions_below(graph: NounGraph, nodes: np.ndarray) -> dict[int, list[int]]:
    """Return the positions in ``nodes`` that each ancestor subsumes."""
    positions: dict[int, list[int]] = {}
    for position, node in enumerate(nodes.tolist()):
        for ancestor in graph.above(node):
            positions.setdefault(ancestor, []).append(position)
    return positions


def lin(graph: NounGraph, ic: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """2 IC(s) / (IC(a) + IC(b)), s the deepest common subsumer (the published levels)"""
    return _ratio(ic, rows, columns, common_subsumers(graph, rows, columns, graph.depth))


def lin_max_ic(graph: NounGraph, ic: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """2 IC(s) / (IC(a) + IC(b)), s of maximal information content (NLTK's lin_similarity)"""
    return _ratio(ic, rows, columns, common_subsumers(graph, rows, columns, ic.__getitem__))


def jcn(graph: NounGraph, ic: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Jiang-Conrath: 1 / (IC(a) + IC(b) - 2 IC(s)), s of maximal information content"""
    subsumers = common_subsumers(graph, rows, columns, ic.__getitem__)
    of_rows, of_columns = ic[rows][:, None], ic[columns]
    with np.errstate(divide="ignore"):
        result = 1 / (of_rows + of_columns - 2 * np.append(ic, 0.0)[subsumers])
    # As in NLTK: the similarity to a root, which has no information, is 0, that to itself is infinite.
    result[(of_rows == 0) | (of_columns == 0) | (subsumers < 0)] = 0.0
    result[rows[:, None] == columns] = np.inf
    return result


def wup(graph: NounGraph, ic: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Wu-Palmer: 2 depth(s) / (depth(a) + depth(b)), s the deepest common subsumer, a root has depth 1"""
    depths = np.array([1.0 + graph.depth(node) for node in range(len(graph.wnids))])
    return _ratio(depths, rows, columns, common_subsumers(graph, rows, columns, graph.depth))


def _ratio(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, subsumers: np.ndarray) -> np.ndarray:
    shared = 2 * np.append(values, 0.0)[subsumers]  # -1, no subsumer, selects the 0
    total = values[rows][:, None] + values[columns]
    # A total of 0: both synsets are the root of the taxonomy, so they are equal.
    return np.divide(shared, total, out=np.ones_like(total), where=total != 0)


#: Functions of graph, information content and node numbers of rows ``(N,)`` and columns ``(M,)``: similarity
#: of every pair, float64 ``(N, M)``, 0 without a subsumer. Their docstrings are formulas.
MEASURES = {function.__name__: function for function in (lin, lin_max_ic, jcn, wup)}
