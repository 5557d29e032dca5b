"""Archives as TF-GNN GraphTensors: the schema, and the tf.Example that plain tfgnn code can parse.

Node sets: "op" (the HLO instructions), "slot" (what a candidate decides), "setting" (the distinct values of slots).
Edge sets: "feeds" (op -> op, producer to consumer), "decides" (slot -> op; layout only). Context: the graph's name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.atomic_files import replacing
from tpugraphs_polynormer.catalog import NUM_LAYOUT_FEATURES, NUM_NODE_FEATURES, NUM_TILE_FEATURES
from tpugraphs_polynormer.data.encoding import NUM_TILE_SLOTS
from tpugraphs_polynormer.data.npz import LayoutArchive, ProgramGraph

SCHEMA_NAME = "schema.pbtxt"
_HEADER = "# The GraphTensors of the .tfrecord files beside: tfgnn.read_schema, then tfgnn.parse_single_example.\n"


def setting_dim(kind: str) -> int:
    """The width of a setting: 18 layout dims, or 6 tile bounds with their sum and product."""
    return NUM_LAYOUT_FEATURES if kind == "layout" else NUM_TILE_FEATURES // NUM_TILE_SLOTS


def graph_spec(kind: str) -> tfgnn.GraphTensorSpec:
    """The spec of one stored graph of a "layout" or "tile" collection."""
    return tfgnn.create_graph_spec_from_schema_pb(build_schema(kind))


def build_schema(kind: str) -> tfgnn.GraphSchema:
    """The GraphSchema of a collection of that kind."""
    schema = tfgnn.GraphSchema()
    _add_feature(schema.context.features, "name", tf.string)
    ops = schema.node_sets["op"]
    ops.description = "HLO instructions in topological order"
    _add_feature(ops.features, "features", tf.float32, NUM_NODE_FEATURES)
    _add_feature(ops.features, "opcode", tf.int64)
    _add_feature(ops.features, "node_id", tf.int64)
    settings = schema.node_sets["setting"]
    settings.description = "the distinct values that the slots of this graph's candidates take"
    _add_feature(settings.features, "values", tf.float32, setting_dim(kind))
    schema.node_sets["slot"].description = "what a candidate decides: a configurable node, or a set of tile bounds"
    feeds = schema.edge_sets["feeds"]
    feeds.description, feeds.source, feeds.target = "producer to consumer, sorted by consumer", "op", "op"
    if kind == "layout":
        decides = schema.edge_sets["decides"]
        decides.description, decides.source, decides.target = "slot to its configurable node", "slot", "op"
    return schema


def write_schema(folder: Path, kind: str) -> None:
    """Writes schema.pbtxt beside the shards."""
    with replacing(folder / SCHEMA_NAME) as temporary:
        tfgnn.write_schema(build_schema(kind), str(temporary))
        temporary.write_text(_HEADER + temporary.read_text())


def write_example(archive: ProgramGraph, kept: np.ndarray, settings: np.ndarray, num_slots: int) -> bytes:
    """One graph as a serialized tf.Example; `kept` [n'] are the ascending positions of the nodes to keep."""
    places = np.full(len(archive.node_feat), -1, np.int64)
    places[kept] = np.arange(len(kept))
    consumers, producers = places[archive.edge_index.T]
    inside = (consumers >= 0) & (producers >= 0)
    consumers, producers = consumers[inside], producers[inside]
    order = np.lexsort((producers, consumers))
    features = {
        "context/name": _bytes([archive.name.encode()]),
        "nodes/op.#size": _ints([len(kept)]),
        "nodes/op.features": _floats(archive.node_feat[kept]),
        "nodes/op.opcode": _ints(archive.node_opcode[kept]),
        "nodes/op.node_id": _ints(kept),
        "nodes/slot.#size": _ints([num_slots]),
        "nodes/setting.#size": _ints([len(settings)]),
        "nodes/setting.values": _floats(settings),
        "edges/feeds.#size": _ints([len(order)]),
        "edges/feeds.#source": _ints(producers[order]),
        "edges/feeds.#target": _ints(consumers[order]),
    }
    if isinstance(archive, LayoutArchive):
        features |= {
            "edges/decides.#size": _ints([num_slots]),
            "edges/decides.#source": _ints(np.arange(num_slots)),
            "edges/decides.#target": _ints(places[archive.node_config_ids]),
        }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)


def keep_neighbourhood(archive: ProgramGraph, max_nodes: int, num_hops: int) -> np.ndarray:
    """The ascending positions of the nodes to keep of a graph with more than `max_nodes` (0: keep all).

    Kept are the configurable nodes and what lies within h hops of them, h the largest number up to `num_hops` for
    which that is at most `max_nodes` nodes; the configurable nodes themselves are always kept.
    """
    num_nodes = len(archive.node_feat)
    if (
        not max_nodes
        or num_nodes <= max_nodes
        or not isinstance(archive, LayoutArchive)
        or not archive.node_config_ids.size
    ):
        return np.arange(num_nodes)
    hops = count_hops(archive.edge_index, archive.node_config_ids, num_nodes, num_hops)
    reached = np.cumsum(np.bincount(hops, minlength=num_hops + 2)[: num_hops + 1])
    fitting = np.flatnonzero(reached <= max_nodes)
    return np.flatnonzero(hops <= (fitting[-1] if len(fitting) else 0))


def count_hops(edge_index: np.ndarray, starts: np.ndarray, num_nodes: int, most: int) -> np.ndarray:
    """[num_nodes] distance to the nearest start, edges taken both ways; most + 1 where it is farther."""
    hops = np.full(num_nodes, most + 1, np.int64)
    hops[starts] = 0
    both = np.concatenate([edge_index, edge_index[:, ::-1]])
    for hop in range(1, most + 1):
        reached = both[hops[both[:, 0]] == hop - 1, 1]
        reached = reached[hops[reached] > hop]
        if not len(reached):
            break
        hops[reached] = hop
    return hops


def _add_feature(features: dict, name: str, dtype: tf.DType, *shape: int) -> None:
    features[name].dtype = dtype.as_datatype_enum
    features[name].shape.CopyFrom(tf.TensorShape(shape).as_proto())


def _floats(values: np.ndarray) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=np.ravel(values)))


def _ints(values: np.ndarray | list[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(values)))


def _bytes(values: list[bytes]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
