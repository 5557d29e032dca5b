"""What the analytic cost model (simulator/costs.py, tile_costs.py) knows of stored candidates, as inputs of a model.

Everything is computed from the arrays of the record and the codes, so from any official archive, without runtimes.
A graph that was pruned in preprocessing is priced as it is stored: what was cut away counts for nothing.

Seconds are scaled by the graph itself: by the mean and deviation over a fixed sample of its candidates. The spread of
real graphs is between 1.6 % and a factor of 5, and what a candidate gets must not depend on those beside it.

It is computed when a batch is drawn, not in preprocessing: stored for every candidate it would be 40 bytes per config
node where the codes are one. On one core of a busy machine, tables and scale of a graph take at most 6 ms (167 nodes,
15 config nodes), 45 ms (the real unet_3d: 3,163 nodes, 62 config nodes) and 1.4 s (a simulated one of 45,332 nodes and
846 config nodes), once; they occupy 0.02, 0.05 and 2 MB. The features of 64 candidates then take 0.3, 0.6 and 9 ms.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tpugraphs_polynormer.hlo.layout_flow import ProgramLayouts
from tpugraphs_polynormer.simulator.breakdown import ADDITIVE, LAYOUT_COLUMNS, LayoutBreakdown
from tpugraphs_polynormer.simulator.tile_costs import TILE_STREAMS, TileCosts

NUM_REFERENCE = 1024  # candidates by which a graph's seconds are scaled
_BLOCK = 256  # candidates whose columns are in memory at once
_SHORTEST = 1e-12  # seconds: what an empty program takes, so that it has a logarithm
_LEAST_DEVIATION = 1e-9  # of log seconds: below it is rounding, and all candidates count as equal
_RESOLUTION = 1000.0  # shares of a thousandth are told apart
_MOST = 8.0  # the largest value of a scaled difference
_NUM_ADDITIVE = ADDITIVE.stop - ADDITIVE.start
# Features of a config node of a layout: LAYOUT_COLUMNS as shares of the program, and how far the additive ones are from
# their mean in the deviations of the program's seconds.
NUM_NODE_PHYSICS = len(LAYOUT_COLUMNS) + _NUM_ADDITIVE
# Of a candidate: its total, then the additive differences of all config nodes together, or the streams of a tile.
NUM_CANDIDATE_PHYSICS = {"layout": 1 + _NUM_ADDITIVE, "tile": 1 + len(TILE_STREAMS)}
_logger = logging.getLogger(__name__)


class Physics(NamedTuple):
    """The cost model's view of k candidates of one graph."""

    candidates: np.ndarray  # [k, NUM_CANDIDATE_PHYSICS] float32; column 0 is the total, higher is slower
    nodes: np.ndarray | None = None  # [s, k, NUM_NODE_PHYSICS] float32, all within 8 of 0; None for tiles

    @property
    def flat(self) -> tuple[np.ndarray, ...]:
        """The fields that are there, in order: `Physics(*physics.flat)` is the physics."""
        return (self.candidates,) if self.nodes is None else (self.candidates, self.nodes)


def physics_shapes(kind: str, num_config_nodes: int, num_candidates: int) -> list[tuple[int, ...]]:
    """The shapes of `Physics.flat` of a "layout" or "tile" graph."""
    shapes = [(num_candidates, NUM_CANDIDATE_PHYSICS[kind])]
    return [*shapes, (num_config_nodes, num_candidates, NUM_NODE_PHYSICS)] if kind == "layout" else shapes


def blank_physics(kind: str, num_config_nodes: int, num_candidates: int) -> Physics:
    """Zeros in those shapes: candidates of which the cost model knows nothing."""
    shapes = physics_shapes(kind, num_config_nodes, num_candidates)
    return Physics(*(np.zeros(shape, np.float32) for shape in shapes))


class StoredGraph(NamedTuple):
    """The stored arrays of one graph that the cost model reads."""

    name: str
    kind: str
    features: np.ndarray  # [n, 140]
    opcodes: np.ndarray  # [n]
    edge_index: np.ndarray  # [m, 2], rows (consumer, producer)
    nconfig_ops: np.ndarray  # [s]
    config_values: np.ndarray  # [v, 18 or 8]
    num_candidates: int


class GraphPhysics:
    """The cost model of one graph: tables, and the scale of its seconds.

    A graph whose arrays the cost model cannot read (a damaged archive) gets zeros, and a warning that names it.

    Args:
      graph: the stored arrays.
      read_codes: candidates' numbers [k] -> their codes [k, s].
    """

    def __init__(self, graph: StoredGraph, read_codes: Callable[[np.ndarray], np.ndarray]) -> None:
        self._kind = graph.kind
        try:
            self._price = (_PricedLayouts if graph.kind == "layout" else _PricedTiles)(graph, read_codes)
            self._measure_reference(graph.num_candidates, read_codes)
        except (LookupError, ValueError, ArithmeticError) as fault:
            _logger.warning("%s: the cost model cannot read this graph (%s); its physics is 0", graph.name, fault)
            self._price = None

    def _measure_reference(self, num_candidates: int, read_codes: Callable[[np.ndarray], np.ndarray]) -> None:
        """Prices the reference: candidates at even distances, the same ones for every caller."""
        numbers = np.linspace(0, num_candidates - 1, min(num_candidates, NUM_REFERENCE)).astype(np.int64)
        seconds, columns = [], []
        for start in range(0, len(numbers), _BLOCK):
            part = self._price(read_codes(numbers[start : start + _BLOCK]))
            seconds.append(part.seconds)
            columns.append(part.additive.sum(axis=1))
        self._mean_columns = sum(columns) / len(numbers)
        seconds = np.concatenate(seconds)
        logs = np.log(np.maximum(seconds, _SHORTEST))
        self._mean_seconds, self._deviation_seconds = float(seconds.mean()), float(seconds.std())
        self._mean, self._deviation = float(logs.mean()), float(logs.std())
        if not np.isfinite([self._mean, self._deviation, self._mean_seconds, self._deviation_seconds]).all():
            raise ValueError("seconds that are not finite")

    @property
    def spread(self) -> float:
        """The standard deviation of log seconds over the reference; 0 if the cost model cannot read the graph."""
        return 0.0 if self._price is None else self._deviation

    def total(self, codes: np.ndarray) -> np.ndarray:
        """float64 [k]: log seconds of the candidates with codes [k, s], centred and scaled by the graph's reference.

        All 0 where the deviation is 0: the cost model cannot tell the candidates apart.
        """
        if self._price is None:
            return np.zeros(len(codes))
        return self._standardize(self._price(codes).seconds)

    def describe(self, codes: np.ndarray) -> Physics:
        """The inputs of a model for the candidates with codes [k, s]."""
        kind = self._kind
        if self._price is None:
            return blank_physics(kind, codes.shape[1], len(codes))
        priced = self._price(codes)
        total = self._standardize(priced.seconds)[:, None]
        shares = self._to_shares(priced.columns)
        if kind == "tile":
            return Physics(np.concatenate([total, shares[0]], axis=1).astype(np.float32), None)
        shares[..., ADDITIVE.stop :] = priced.columns[..., ADDITIVE.stop :]  # padding is a share already
        differences = priced.additive - self._mean_columns[:, None]
        candidates = np.concatenate([total, self._to_deviations(differences.sum(axis=0))], axis=1)
        nodes = np.concatenate([shares, self._to_deviations(differences)], axis=2)
        return Physics(candidates.astype(np.float32), nodes.astype(np.float32))

    def _standardize(self, seconds: np.ndarray) -> np.ndarray:
        if self._deviation < _LEAST_DEVIATION:
            return np.zeros(len(seconds))
        return (np.log(np.maximum(seconds, _SHORTEST)) - self._mean) / self._deviation

    def _to_shares(self, seconds: np.ndarray) -> np.ndarray:
        """0 to about 1: the logarithm of what part of the program's mean time these seconds are."""
        shares = seconds / max(self._mean_seconds, _SHORTEST)
        return np.minimum(np.log1p(_RESOLUTION * shares) / np.log1p(_RESOLUTION), _MOST)

    def _to_deviations(self, seconds: np.ndarray) -> np.ndarray:
        """-8 to 8: the signed logarithm of differences in deviations of the program's seconds."""
        if self._deviation < _LEAST_DEVIATION:
            return np.zeros_like(seconds)
        ratio = seconds / self._deviation_seconds
        return np.clip(np.sign(ratio) * np.log1p(np.abs(ratio)), -_MOST, _MOST)


class _Priced(NamedTuple):
    """Candidates as the cost model sees them."""

    seconds: np.ndarray  # [k]
    columns: np.ndarray  # [s, k, columns], or [1, k, streams] of tiles

    @property
    def additive(self) -> np.ndarray:
        """[s, k, 3]: the columns of a layout that add up."""
        return self.columns[..., ADDITIVE]


class _PricedLayouts:
    """codes [k, s] -> _Priced, with tables over the choices that each config node has in this graph."""

    def __init__(self, graph: StoredGraph, read_codes: Callable[[np.ndarray], np.ndarray]) -> None:
        count = len(graph.nconfig_ops)
        met = np.zeros((count, len(graph.config_values)), bool)
        for start in range(0, graph.num_candidates, 16 * _BLOCK):
            codes = read_codes(np.arange(start, min(start + 16 * _BLOCK, graph.num_candidates)))
            met[np.arange(count), codes] = True
        self._choice_of = (np.cumsum(met, axis=1) - 1).astype(np.uint16)  # [s, v]: choices are numbered as values are
        values = graph.config_values.astype(np.int8)
        arrays = graph.features, graph.opcodes, graph.edge_index, graph.nconfig_ops
        self._breakdown = LayoutBreakdown(ProgramLayouts(*arrays, [values[row] for row in met]))

    def __call__(self, codes: np.ndarray) -> _Priced:
        columns = self._breakdown.columns(self._choice_of[np.arange(codes.shape[1]), codes])
        return _Priced(self._breakdown.seconds(columns), columns)


class _PricedTiles:
    """codes [k, 3] -> _Priced."""

    def __init__(self, graph: StoredGraph, read_codes: Callable[[np.ndarray], np.ndarray]) -> None:
        self._values = graph.config_values
        self._costs = TileCosts(graph.features, graph.opcodes, graph.edge_index)

    def __call__(self, codes: np.ndarray) -> _Priced:
        config_feat = self._values[codes].reshape(len(codes), -1)
        return _Priced(self._costs.seconds(config_feat), self._costs.streams(config_feat)[None])


class PhysicsCache:
    """The cost models of a split's graphs, made when they are first needed; the least recently used is dropped.

    Args:
      most: graphs that are kept.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._found: OrderedDict[int, GraphPhysics] = OrderedDict()
        self._lock = threading.Lock()  # tf.data reads graphs in several threads

    def find(self, number: int, make: Callable[[int], GraphPhysics]) -> GraphPhysics:
        """The cost model of a graph, which `make` makes of its number if it is not here."""
        with self._lock:
            if number in self._found:
                self._found.move_to_end(number)
                return self._found[number]
        made = make(number)
        with self._lock:
            self._found[number] = made
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return made

    def __reduce__(self) -> tuple:
        return PhysicsCache, (self._most,)  # a copy in another process starts empty
