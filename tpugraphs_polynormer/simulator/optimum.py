"""The layout candidate that the analytic cost model finds fastest, of all candidates of a program.

The cost of a candidate is a sum of terms over few config nodes each (costs.py). Node by node, variable elimination
replaces the terms that a node occurs in by their minimum over its choices: a term over its neighbours. The largest such
term decides the effort. If it exceeds a limit, coordinate descent from several starts gives a local optimum instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.hlo.layout_flow import FIXED
from tpugraphs_polynormer.simulator.costs import LayoutCosts, Operator

MAX_ENTRIES = 1 << 24  # of the largest table: 128 MB
_STARTS = 8  # of the descent
_MAX_DIMENSIONS = 32  # of a numpy array


@dataclass(frozen=True)
class Optimum:
    """A fastest candidate of the cost model."""

    indices: np.ndarray  # int16 [nc]: choice numbers
    seconds: float
    is_exact: bool  # False: a local optimum, which no change of one or of two linked nodes improves


@dataclass(frozen=True)
class _Factor:
    """A term of the cost: seconds by the choices of some config nodes."""

    nodes: tuple[int, ...]  # ascending
    table: np.ndarray  # [choices of each node]


def find_optimum(costs: LayoutCosts, *, max_entries: int = MAX_ENTRIES, seed: int = 0) -> Optimum:
    """The fastest candidate of a program by its cost model.

    Args:
      costs: of the program, with all choices of each config node.
      max_entries: the size of the largest table for which the exact optimum is computed.
      seed: of the starts of coordinate descent, where the exact optimum is out of reach.
    """
    counts = [len(table) for table in costs.tables.unary]
    factors = _list_factors(costs)
    order = _plan(counts, factors, max_entries)
    found = _descend(costs, counts, factors, seed) if order is None else _eliminate(counts, factors, order)
    return Optimum(found.astype(np.int16), float(costs.seconds(found[None])[0]), order is not None)


def _list_factors(costs: LayoutCosts) -> list[_Factor]:
    """The terms of the cost, without the constant."""
    tables = costs.tables
    factors = [_Factor((node,), table) for node, table in enumerate(tables.unary)]
    factors += [_align(nodes, table) for nodes, table in tables.pairs.items()]
    return factors + [_operator_factor(each) for each in tables.operators]


def _align(nodes: Sequence[int], table: np.ndarray) -> _Factor:
    """A factor with its nodes in ascending order."""
    axes = np.argsort(nodes)
    return _Factor(tuple(int(nodes[axis]) for axis in axes), table.transpose(axes))


def _operator_factor(operator: Operator) -> _Factor:
    """The slowest of the streams of an operator, by its own choice and those of its operands' sources."""
    own = operator.index
    choices = {own: len(operator.matrix)}
    choices |= {source: len(table) for source, table in operator.reads if source != FIXED}
    choices |= {source: table.shape[1] for source, table in operator.turns if source != FIXED}
    nodes = tuple(sorted(choices))
    shape = tuple(choices[node] for node in nodes)

    def spread(table: np.ndarray, *axes: int) -> np.ndarray:
        """The table of one or two nodes, some of them FIXED, as one over all nodes."""
        free = [node for node in axes if node != FIXED]
        table = table.reshape([choices[node] for node in free])
        if len(free) == 2 and free[0] == free[1]:
            free, table = free[:1], np.diagonal(table)
        factor = _align(free, table)
        return factor.table.reshape([choices[node] if node in factor.nodes else 1 for node in nodes])

    hbm = spread(operator.write, own) + sum(spread(table, source) for source, table in operator.reads)
    turned = sum(spread(table, own, source) for source, table in operator.turns)
    return _Factor(nodes, np.broadcast_to(np.maximum(np.maximum(spread(operator.matrix, own), hbm), turned), shape))


def _plan(counts: Sequence[int], factors: Iterable[_Factor], max_entries: int) -> list[int] | None:
    """An order of elimination of all nodes, always the one with the smallest table next, or None: tables too large."""
    neighbours: list[set[int]] = [set() for _ in counts]
    for factor in factors:
        for node in factor.nodes:
            neighbours[node].update(factor.nodes)
    for node, around in enumerate(neighbours):
        around.discard(node)
    left, order = set(range(len(counts))), []
    sizes = [_entries(counts, node, around) for node, around in enumerate(neighbours)]
    while left:
        node = min(left, key=lambda each: (sizes[each], each))
        if sizes[node] > max_entries or len(neighbours[node]) >= _MAX_DIMENSIONS:
            return None
        left.remove(node)
        order.append(node)
        for other in neighbours[node]:
            neighbours[other] |= neighbours[node]
            neighbours[other] -= {node, other}
            sizes[other] = _entries(counts, other, neighbours[other])
    return order


def _entries(counts: Sequence[int], node: int, around: Iterable[int]) -> int:
    """The size of the table that eliminates a node."""
    return counts[node] * math.prod(counts[each] for each in around)


def _eliminate(counts: Sequence[int], factors: Iterable[_Factor], order: Sequence[int]) -> np.ndarray:
    """int64 [nc]: the choices with the least sum of all factors."""
    buckets: list[list[_Factor]] = [[] for _ in counts]  # each factor is with its node that is eliminated first
    rank = {node: number for number, node in enumerate(order)}
    for factor in factors:
        buckets[min(factor.nodes, key=rank.__getitem__)].append(factor)
    answers: list[_Factor] = []  # by step: the best choice of the node, given those of its neighbours
    for node in order:
        total = _add(counts, buckets[node])
        axis = total.nodes.index(node)
        rest = total.nodes[:axis] + total.nodes[axis + 1 :]
        answers.append(_Factor(rest, total.table.argmin(axis=axis)))
        if rest:
            buckets[min(rest, key=rank.__getitem__)].append(_Factor(rest, total.table.min(axis=axis)))
    found = np.zeros(len(counts), np.int64)
    for node, answer in zip(reversed(order), reversed(answers), strict=True):
        found[node] = answer.table[tuple(found[list(answer.nodes)])]
    return found


def _add(counts: Sequence[int], factors: Sequence[_Factor]) -> _Factor:
    """The sum of factors, over all their nodes."""
    nodes = tuple(sorted({node for factor in factors for node in factor.nodes}))
    table = np.zeros([counts[node] for node in nodes])
    for factor in factors:
        table += factor.table.reshape([counts[node] if node in factor.nodes else 1 for node in nodes])
    return _Factor(nodes, table)


def _descend(costs: LayoutCosts, counts: Sequence[int], factors: Sequence[_Factor], seed: int) -> np.ndarray:
    """int64 [nc]: the best of several local optima; the first start is the default, the others are random."""
    rng = np.random.default_rng(seed)
    of_node: list[list[_Factor]] = [[] for _ in counts]
    for factor in factors:
        for node in factor.nodes:
            of_node[node].append(factor)
    blocks = [(node,) for node in range(len(counts))]
    blocks += sorted({factor.nodes for factor in factors if len(factor.nodes) > 1})
    found = []
    for start in range(_STARTS):
        current = rng.integers(counts) if start else np.zeros(len(counts), np.int64)
        while any([_improve(current, nodes, of_node, counts) for nodes in blocks]):
            pass
        found.append(current)
    return found[int(costs.seconds(np.stack(found)).argmin())]


def _improve(
    current: np.ndarray, nodes: tuple[int, ...], of_node: Sequence[Sequence[_Factor]], counts: Sequence[int]
) -> bool:
    """Gives a few nodes their best choices, all others kept; returns whether that is better than before."""
    near = {id(factor): factor for node in nodes for factor in of_node[node]}
    parts = []
    for factor in near.values():
        kept = tuple(slice(None) if node in nodes else current[node] for node in factor.nodes)
        parts.append(_Factor(tuple(node for node in factor.nodes if node in nodes), factor.table[kept]))
    total = _add(counts, parts)
    best = np.unravel_index(total.table.argmin(), total.table.shape)
    chosen = list(total.nodes)
    before, after = total.table[tuple(current[chosen])], total.table[best]
    if not after < before * (1 - 1e-12):  # rounding must not let two equal candidates alternate
        return False
    current[chosen] = best
    return True
