"""One stored graph as arrays of static size, padded to one of a few size classes; without TensorFlow.

XLA compiles a program for each set of shapes. Graphs of a split have all sizes, so they are padded: with a few size
classes, each half of the next larger one, few programs are compiled and little is padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tpugraphs_polynormer.catalog import NUM_NODE_FEATURES
from tpugraphs_polynormer.datasets.encoding import CONFIG_VALUE_DIMS, NUM_TILE_BOUNDS
from tpugraphs_polynormer.datasets.manifest import GraphEntry
from tpugraphs_polynormer.datasets.records import parse_example

NUM_CLASSES = 5
_DIMS_SHAPE = (3, 6)  # of a config node: see config_graph.operand_dims


class GraphSizes(NamedTuple):
    """The sizes of a graph, or those that a graph is padded to."""

    nodes: int
    edges: int
    config_nodes: int
    config_edges: int  # pairs of config nodes whose layouts meet; 0 for tiles
    config_values: int

    @staticmethod
    def of(entry: GraphEntry) -> GraphSizes:
        """The sizes of a stored graph."""
        return GraphSizes(*(getattr(entry, f"num_{name}") for name in GraphSizes._fields))


class StaticGraph(NamedTuple):
    """A padded graph of n ops, e edges, s config nodes and v config values; the last op and value are padding.

    The fields after `counts` are None for tiles.
    """

    features: np.ndarray  # [n, 140] float32
    opcodes: np.ndarray  # [n] int32
    operands: np.ndarray  # [n] int32, see hlo/operands.py
    feed_source: np.ndarray  # [e] int32, sorted as stored, then padding at the last op
    feed_target: np.ndarray  # [e] int32
    config_values: np.ndarray  # [v, 18 or 8] float32
    counts: np.ndarray  # [4] int32: the numbers of real ops, edges, config nodes, edges between config nodes
    nconfig_ops: np.ndarray | None = None  # [s] int32, the op of each config node
    nconfig_dims: np.ndarray | None = None  # [s, 3, 6] float32, dimensions of its result and operands
    meet_source: np.ndarray | None = None  # [p] int32, among config nodes
    meet_target: np.ndarray | None = None  # [p] int32

    @property
    def flat(self) -> tuple[np.ndarray, ...]:
        """The fields that are there, in order: `StaticGraph(*graph.flat)` is the graph."""
        return tuple(each for each in self if each is not None)


def size_classes(kind: str, entries: Iterable[GraphEntry]) -> list[GraphSizes]:
    """Up to NUM_CLASSES sizes to pad to, the largest last: it fits every graph, and each is half of the next.

    Each has one op, config node and config value for padding. A tile graph always has the same config nodes, so these
    are not padded.
    """
    largest = [max(each) for each in zip(*map(GraphSizes.of, entries), strict=True)]
    classes = []
    for halvings in reversed(range(NUM_CLASSES)):
        sizes = GraphSizes(*(max(1, -(-each // 2**halvings)) for each in largest))
        of_kind = {"config_nodes": sizes.config_nodes + 1}
        if kind == "tile":
            of_kind = {"config_nodes": NUM_TILE_BOUNDS, "config_edges": 0}
        classes.append(sizes._replace(nodes=sizes.nodes + 1, config_values=sizes.config_values + 1, **of_kind))
    return list(dict.fromkeys(classes))


def find_class(classes: Sequence[GraphSizes], sizes: GraphSizes, kind: str) -> GraphSizes:
    """The smallest of the classes of `size_classes` that a graph of these sizes fits into; the graph is one of them."""
    padding = GraphSizes(nodes=1, edges=0, config_nodes=int(kind == "layout"), config_edges=0, config_values=1)
    needed = [size + extra for size, extra in zip(sizes, padding, strict=True)]
    return next(each for each in classes if all(room >= size for room, size in zip(each, needed, strict=True)))


def graph_shapes(kind: str, sizes: GraphSizes) -> dict[str, tuple[tuple[int, ...], type]]:
    """Field of StaticGraph -> shape and dtype, for graphs padded to these sizes."""
    nodes, edges, config_nodes, config_edges, config_values = sizes
    shapes = {
        "features": ((nodes, NUM_NODE_FEATURES), np.float32),
        "opcodes": ((nodes,), np.int32),
        "operands": ((nodes,), np.int32),
        "feed_source": ((edges,), np.int32),
        "feed_target": ((edges,), np.int32),
        "config_values": ((config_values, CONFIG_VALUE_DIMS[kind]), np.float32),
        "counts": ((4,), np.int32),
    }
    if kind == "layout":
        shapes |= {
            "nconfig_ops": ((config_nodes,), np.int32),
            "nconfig_dims": ((config_nodes, *_DIMS_SHAPE), np.float32),
            "meet_source": ((config_edges,), np.int32),
            "meet_target": ((config_edges,), np.int32),
        }
    return shapes


def pad_graph(kind: str, record: bytes, sizes: GraphSizes) -> StaticGraph:
    """A stored graph, padded to sizes of `size_classes`: padding edges join the last op, or the last config node."""
    parsed = parse_example(record)
    last_op, last_config_node = sizes.nodes - 1, sizes.config_nodes - 1
    stored = {
        "features": (parsed["nodes/op.features"], 0),
        "opcodes": (parsed["nodes/op.opcode"], 0),
        "operands": (parsed["nodes/op.operands"], 0),
        "feed_source": (parsed["edges/feed.#source"], last_op),
        "feed_target": (parsed["edges/feed.#target"], last_op),
        "config_values": (parsed["nodes/config_value.values"], 0),
    }
    if kind == "layout":
        stored |= {
            "nconfig_ops": (parsed["edges/config.#target"], last_op),
            "nconfig_dims": (parsed["nodes/nconfig.dims"], 0),
            "meet_source": (parsed["edges/meet.#source"], last_config_node),
            "meet_target": (parsed["edges/meet.#target"], last_config_node),
        }
    shapes = graph_shapes(kind, sizes)
    fields = {name: _pad(values, *shapes[name], fill) for name, (values, fill) in stored.items()}
    num_config_nodes = len(parsed["edges/config.#target"]) if kind == "layout" else NUM_TILE_BOUNDS
    num_config_edges = len(parsed["edges/meet.#source"]) if kind == "layout" else 0
    counts = [len(parsed["nodes/op.opcode"]), len(parsed["edges/feed.#source"]), num_config_nodes, num_config_edges]
    return StaticGraph(**fields, counts=np.array(counts, np.int32))


def pad_codes(codes: np.ndarray, sizes: GraphSizes) -> np.ndarray:
    """Codes [num_config_nodes, k] -> [config_nodes, k] int32; padding config nodes take the last (padding) value."""
    return _pad(codes, (sizes.config_nodes, codes.shape[1]), np.int32, sizes.config_values - 1)


def pad_physics(physics: Sequence[np.ndarray], sizes: GraphSizes) -> tuple[np.ndarray, ...]:
    """The arrays of `Physics.flat`, or none, with zeros at padding config nodes."""
    first, others = tuple(physics[:1]), physics[1:]
    return first + tuple(_pad(each, (sizes.config_nodes, *each.shape[1:]), np.float32, 0) for each in others)


def _pad(values: np.ndarray, shape: tuple[int, ...], dtype: type, fill: int) -> np.ndarray:
    """Values of the shape [c, *shape[1:]] in any form, as the first c rows of an array of `shape`."""
    padded = np.full(shape, fill, dtype)
    values = np.asarray(values).reshape(-1, *shape[1:])
    padded[: len(values)] = values
    return padded
