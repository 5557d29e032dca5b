"""A batch's GraphTensor as the plain tensors that the ranking model computes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.datasets.encoding import NUM_TILE_BOUNDS
from tpugraphs_polynormer.datasets.physics import Physics
from tpugraphs_polynormer.datasets.static_graphs import StaticGraph
from tpugraphs_polynormer.layers.directed_edges import (
    DirectedEdges,
    Edges,
    build_directed_edge_tensors,
    build_directed_static_edges,
)
from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_tensors
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.layers.ops.formulation import in_xla
from tpugraphs_polynormer.layers.static_edges import build_static_edges
from tpugraphs_polynormer.models.graph_update import locate_nodes


class Meetings(NamedTuple):
    """Pairs of config nodes whose tensors meet (datasets/config_graph.py), each once, the earlier node first."""

    first: tf.Tensor  # [p] int32
    second: tf.Tensor  # [p] int32
    mask: tf.Tensor  # [p] bool


class Batch(NamedTuple):
    """G graphs (components) with n ops, s config nodes, v config values, k candidates each; padding has False masks."""

    features: tf.Tensor  # [n, 140]
    opcodes: tf.Tensor  # [n]
    edges: Edges | DirectedEdges  # among ops: both directions and self-loops
    producers: tf.Tensor  # [e] int32, the op behind each operand; padding joins padding ops
    consumers: tf.Tensor  # [e] int32, the op that reads it
    op_graph_ids: tf.Tensor  # [n] int32, the graph of each op
    op_mask: tf.Tensor  # [n] bool
    config_values: tf.Tensor  # [v, 18 or 8]
    codes: tf.Tensor  # [s, k] int32, positions in `config_values`
    nconfig_graph_ids: tf.Tensor  # [s] int32
    nconfig_roles: tf.Tensor  # [s] int32, the position of a config node within its graph
    nconfig_mask: tf.Tensor  # [s] bool
    nconfig_ops: tf.Tensor | None  # [s] int32, the op of each config node; None for tiles
    nconfig_dims: tf.Tensor | None  # [s, 3, 6], dimensions of result and operands; None for tiles
    nconfig_edges: Edges | DirectedEdges | None  # among config nodes: both directions and self-loops; None for tiles
    num_graphs: int | tf.Tensor  # G
    candidate_mask: tf.Tensor  # [G, k] bool
    physics: tf.Tensor | None = None  # [G, k, features], of each candidate (datasets/physics.py); None without it
    nconfig_physics: tf.Tensor | None = None  # [s, k, features]; None without it, and for tiles
    meetings: Meetings | None = None  # what `nconfig_edges` are made of; None for tiles
    operands: tf.Tensor | None = None  # [n], see hlo/operands.py; 0 where unknown

    @property
    def op_graphs(self) -> Graphs:
        """The graphs of the ops."""
        return Graphs(self.op_graph_ids, self.num_graphs, self.op_mask, candidate_mask=self.candidate_mask)

    @property
    def nconfig_graphs(self) -> Graphs:
        """The graphs of the config nodes."""
        return Graphs(self.nconfig_graph_ids, self.num_graphs, self.nconfig_mask, candidate_mask=self.candidate_mask)


def unpack_batch(graph: tfgnn.GraphTensor, *, directed: bool = False) -> Batch:
    """Reads a merged (and perhaps padded) graph; every shape stays static where the graph's is, as under XLA.

    Args:
      directed: whether edges know their direction; for config nodes, from the earlier one in the program to the later.
    """
    connect = _connect(directed)
    mask = graph.context["candidate_mask"]
    num_graphs = mask.shape[0] if mask.shape[0] is not None else tf.shape(mask)[0]
    is_real = tf.reduce_any(mask, 1)
    op_graph_ids, _ = _locate(graph.node_sets["op"])
    nconfig_graph_ids, nconfig_roles = _locate(graph.node_sets["nconfig"])
    op_mask, nconfig_mask = tf.gather(is_real, op_graph_ids), tf.gather(is_real, nconfig_graph_ids)
    feeds = graph.edge_sets["feed"].adjacency
    num_ops = op_graph_ids.shape[0] if op_graph_ids.shape[0] is not None else tf.shape(op_graph_ids)[0]
    edges = connect(feeds.source, feeds.target, num_ops, mask=tf.gather(op_mask, feeds.target))
    of_layouts = {"nconfig_ops": None, "nconfig_dims": None, "nconfig_edges": None, "meetings": None}
    if "config" in graph.edge_sets:
        meet, num_config_nodes = graph.edge_sets["meet"].adjacency, nconfig_mask.shape[0]
        is_meeting = tf.gather(nconfig_mask, meet.target)
        of_layouts = {
            "nconfig_ops": _nconfig_ops(graph.edge_sets["config"].adjacency, nconfig_mask, num_ops),
            "nconfig_dims": graph.node_sets["nconfig"]["dims"],
            "nconfig_edges": connect(
                meet.source,
                meet.target,
                num_config_nodes if num_config_nodes is not None else tf.shape(nconfig_mask)[0],
                mask=is_meeting,
            ),
            "meetings": Meetings(tf.cast(meet.source, tf.int32), tf.cast(meet.target, tf.int32), is_meeting),
        }
    return Batch(
        features=graph.node_sets["op"]["features"],
        opcodes=graph.node_sets["op"]["opcode"],
        edges=edges,
        producers=tf.cast(feeds.source, tf.int32),
        consumers=tf.cast(feeds.target, tf.int32),
        op_graph_ids=op_graph_ids,
        op_mask=op_mask,
        config_values=graph.node_sets["config_value"]["values"],
        codes=graph.node_sets["nconfig"]["codes"],
        nconfig_graph_ids=nconfig_graph_ids,
        nconfig_roles=nconfig_roles,
        nconfig_mask=nconfig_mask,
        **of_layouts,
        num_graphs=num_graphs,
        candidate_mask=mask,
        physics=graph.context.features.get("physics"),
        nconfig_physics=graph.node_sets["nconfig"].features.get("physics"),
        operands=graph.node_sets["op"]["operands"],
    )


def build_static_batch(
    graph: StaticGraph,
    codes: tf.Tensor | None = None,
    candidate_mask: tf.Tensor | None = None,
    physics: Physics | None = None,
    *,
    directed: bool = False,
) -> Batch:
    """One padded graph as a batch with G = 1; all shapes are static.

    Args:
      graph: tensors of static shape in the fields of a StaticGraph.
      codes: [s, k] int32. candidate_mask: [k] bool. physics: tensors in the fields of a Physics. `RankingModel.encode`
        reads none of them.
      directed: see `unpack_batch`.
    """
    connect = _connect(directed)
    num_ops, num_edges = graph.features.shape[0], graph.feed_source.shape[0]
    num_config_nodes = NUM_TILE_BOUNDS if graph.nconfig_ops is None else graph.nconfig_ops.shape[0]
    is_op, is_edge = tf.range(num_ops) < graph.counts[0], tf.range(num_edges) < graph.counts[1]
    is_config_node = tf.range(num_config_nodes) < graph.counts[2]
    nconfig_edges = meetings = None
    if graph.meet_source is not None:
        is_meeting = tf.range(graph.meet_source.shape[0]) < graph.counts[3]
        nconfig_edges = connect(graph.meet_source, graph.meet_target, num_config_nodes, mask=is_meeting)
        meetings = Meetings(graph.meet_source, graph.meet_target, is_meeting)
    return Batch(
        features=graph.features,
        opcodes=graph.opcodes,
        edges=connect(graph.feed_source, graph.feed_target, num_ops, mask=is_edge),
        producers=graph.feed_source,
        consumers=graph.feed_target,
        op_graph_ids=tf.zeros([num_ops], tf.int32),
        op_mask=is_op,
        config_values=graph.config_values,
        codes=codes,
        nconfig_graph_ids=tf.zeros([num_config_nodes], tf.int32),
        nconfig_roles=tf.range(num_config_nodes),
        nconfig_mask=is_config_node,
        nconfig_ops=graph.nconfig_ops,
        nconfig_dims=graph.nconfig_dims,
        nconfig_edges=nconfig_edges,
        meetings=meetings,
        num_graphs=1,
        candidate_mask=None if candidate_mask is None else candidate_mask[tf.newaxis],
        physics=None if physics is None else physics.candidates[tf.newaxis],
        nconfig_physics=None if physics is None else physics.nodes,
        operands=graph.operands,
    )


def _connect(directed: bool) -> Callable[..., Edges | DirectedEdges]:
    """What builds the edges, where this code runs."""
    if in_xla():
        return build_directed_static_edges if directed else build_static_edges
    return build_directed_edge_tensors if directed else build_undirected_edge_tensors


def _locate(nodes: tfgnn.NodeSet) -> tuple[tf.Tensor, tf.Tensor]:
    """Each node's graph and its position in it."""
    feature = next(iter(nodes.features.values()))
    return locate_nodes(nodes.sizes, feature.shape[0] if feature.shape[0] is not None else tf.shape(feature)[0])


def _nconfig_ops(adjacency: tfgnn.Adjacency, nconfig_mask: tf.Tensor, num_ops: int | tf.Tensor) -> tf.Tensor:
    """[s]: the op of each config node, from one edge each, in order; padding beyond them gets the last (padding) op."""
    targets = tf.cast(adjacency.target, tf.int32)
    num_config_nodes = nconfig_mask.shape[0] if nconfig_mask.shape[0] is not None else tf.shape(nconfig_mask)[0]
    num_edges = targets.shape[0] if targets.shape[0] is not None else tf.shape(targets)[0]
    return tf.pad(targets, [[0, num_config_nodes - num_edges]], constant_values=num_ops - 1)
