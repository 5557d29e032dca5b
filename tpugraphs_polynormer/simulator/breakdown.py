"""Which config node a candidate's seconds belong to: the terms of LayoutCosts, shared out and gathered all at once.

A term that one node's choice decides is that node's. A copy between two nodes counts half for each. The time of a
convolution or dot, the slowest of its streams, is its own, although its operands' layouts change it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from tpugraphs_polynormer.hlo.layout_flow import FIXED, ProgramLayouts
from tpugraphs_polynormer.hlo.shapes import element_bytes
from tpugraphs_polynormer.simulator.costs import LayoutCosts

# Seconds of an operator's streams, which overlap; seconds that add up to those of the program; a share.
LAYOUT_COLUMNS = ("matrix", "hbm", "turns", "operator", "buffers", "copies", "padding")
ADDITIVE = slice(3, 6)  # of LAYOUT_COLUMNS


class _Term(NamedTuple):
    """A table of seconds, by the choices of two config nodes (or FIXED, which has one choice), and what it counts."""

    owner: int  # the config node that it counts for
    first: int
    second: int
    table: np.ndarray  # [first's choices, second's choices]
    weight: float = 1.0


class _Terms:
    """Sums of table entries by owner."""

    def __init__(self, terms: Sequence[_Term], num_config_nodes: int) -> None:
        sizes = np.array([each.table.size for each in terms], np.int64)
        self._starts = (np.cumsum(sizes) - sizes)[:, None]
        self._widths = np.array([each.table.shape[1] for each in terms], np.int64)[:, None]
        self._first = np.array([each.first for each in terms], np.int64)
        self._second = np.array([each.second for each in terms], np.int64)
        self._entries = np.concatenate([np.zeros(0), *(each.table.ravel() for each in terms)])
        places = ([each.owner for each in terms], np.arange(len(terms)))
        shape = (num_config_nodes, len(terms))
        self._sums = csr_matrix(([each.weight for each in terms], places), shape, dtype=np.float64)

    def gather(self, ids: np.ndarray) -> np.ndarray:
        """float64 [nc, c], from choice numbers [nc + 1, c] whose last row, the choice of FIXED (-1), is 0."""
        return self._sums @ self._entries[self._starts + ids[self._first] * self._widths + ids[self._second]]


class LayoutBreakdown:
    """The costs of one program's candidates by config node.

    Args:
      program: with the choices of each config node.
    """

    def __init__(self, program: ProgramLayouts) -> None:
        tables, count = LayoutCosts(program).tables, len(program.layout_choices)
        self.constant = tables.constant  # seconds that no candidate changes
        operators = tables.operators
        alone = [_Term(i, i, FIXED, each[:, None]) for i, each in enumerate(tables.buffers)]
        copies = [
            _Term(i, i, FIXED, (whole - buffers)[:, None])
            for i, (whole, buffers) in enumerate(zip(tables.unary, tables.buffers, strict=True))
        ]
        for (first, second), table in tables.pairs.items():
            copies += [_Term(owner, first, second, table, 0.5) for owner in (first, second)]
        reads = [_Term(each.index, source, FIXED, table[:, None]) for each in operators for source, table in each.reads]
        writes = [_Term(each.index, each.index, FIXED, each.write[:, None]) for each in operators]
        self._terms = {
            "matrix": _Terms([_Term(each.index, each.index, FIXED, each.matrix[:, None]) for each in operators], count),
            "hbm": _Terms(writes + reads, count),
            "turns": _Terms([_Term(each.index, each.index, *turn) for each in operators for turn in each.turns], count),
            "buffers": _Terms(alone, count),
            "copies": _Terms(copies, count),
            "padding": _Terms([_Term(i, i, FIXED, each[:, None]) for i, each in enumerate(_padding(program))], count),
        }

    def columns(self, choice_ids: np.ndarray) -> np.ndarray:
        """float64 [nc, c, 7]: LAYOUT_COLUMNS of candidates given as choice numbers [c, nc].

        The constant and the ADDITIVE columns of all config nodes add up to `LayoutCosts.seconds`.
        """
        ids = np.concatenate([choice_ids.T, np.zeros((1, len(choice_ids)), choice_ids.dtype)]).astype(np.int64)
        found = {name: terms.gather(ids) for name, terms in self._terms.items()}
        found["operator"] = np.maximum(np.maximum(found["matrix"], found["hbm"]), found["turns"])
        return np.stack([found[name] for name in LAYOUT_COLUMNS], axis=-1)

    def seconds(self, columns: np.ndarray) -> np.ndarray:
        """float64 [c]: the seconds of candidates with the columns [nc, c, 7]."""
        return self.constant + columns[:, :, ADDITIVE].sum(axis=2).sum(axis=0)


def _padding(program: ProgramLayouts) -> list[np.ndarray]:
    """By config node, [its choices]: the share of padding in the bytes of all buffers whose layout it decides."""
    used = [np.zeros(len(rows)) for rows in program.layout_choices]
    padded = [np.zeros(len(rows)) for rows in program.layout_choices]
    for node, width in enumerate(element_bytes(program.node_feat).tolist()):
        source = program.nodes[node].source
        if source != FIXED and program.dims[node]:
            used[source] += math.prod(program.dims[node]) * width
            padded[source] += program.padded(node) * width
    return [
        np.where(whole > 0, 1.0 - part / np.maximum(whole, 1.0), 0.0) for part, whole in zip(used, padded, strict=True)
    ]
