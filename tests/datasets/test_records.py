"""GraphTensor records: plain tfgnn code reads the content of the archive; pruning equals a breadth-first search."""

from collections import deque
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_gnn as tfgnn
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.small_archives import layout_arrays
from tests.small_datasets import LAYOUT, TILE, preprocess_here, small_graphs, write_small_tree
from tpugraphs_polynormer.archives.npz import LayoutArchive
from tpugraphs_polynormer.datasets.encoding import encode_layouts
from tpugraphs_polynormer.datasets.input_pipeline import graph_spec
from tpugraphs_polynormer.datasets.pruning import keep_neighbourhood
from tpugraphs_polynormer.datasets.records import parse_example, serialize_example, serialize_graph, write_record
from tpugraphs_polynormer.datasets.schema import SCHEMA_NAME
from tpugraphs_polynormer.datasets.split_files import RECORD_SUFFIX


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("graphs")
    found = preprocess_here(write_small_tree(root / "in"), root / "out", LAYOUT, TILE, graphs_per_shard=3)
    return {each.manifest.collection: each.folder for each in found}


def archive_of(arrays: dict, name: str = "g") -> LayoutArchive:
    own = {"node_splits": arrays["node_splits"].reshape(-1), "node_operands": arrays.get("node_operands")}
    return LayoutArchive(Path(f"{name}.npz"), **(arrays | own))


@pytest.mark.parametrize("collection", [LAYOUT, TILE])
def test_plain_tfgnn_code_reads_the_shards(folders, collection):
    folder = folders[collection]
    spec = tfgnn.create_graph_spec_from_schema_pb(tfgnn.read_schema(str(folder / SCHEMA_NAME)))
    sources = {name: arrays for split in small_graphs()[collection].values() for name, arrays in split.items()}
    files = sorted(str(path) for path in folder.glob(f"*{RECORD_SUFFIX}"))
    for record in tf.data.TFRecordDataset(files):
        graph = tfgnn.parse_single_example(spec, record)
        arrays = sources.pop(graph.context["name"].numpy()[0].decode())
        ops, feeds = graph.node_sets["op"], graph.edge_sets["feed"].adjacency
        assert np.array_equal(ops["features"], arrays["node_feat"])
        assert np.array_equal(ops["opcode"], arrays["node_opcode"])
        assert not ops["operands"].numpy().any()  # an official archive says nothing of them
        assert np.array_equal(ops["node_id"], np.arange(len(arrays["node_feat"])))
        pairs = np.stack([feeds.target, feeds.source], axis=1)  # consumer, producer, as in the archive
        assert np.array_equal(pairs, arrays["edge_index"])
        if collection == LAYOUT:
            decides = graph.edge_sets["config"].adjacency
            assert np.array_equal(decides.target, arrays["node_config_ids"])
            assert np.array_equal(decides.source, np.arange(len(arrays["node_config_ids"])))
            used = {tuple(row) for row in arrays["node_config_feat"].reshape(-1, 18).tolist()}
        else:
            used = {tuple(row) for row in arrays["config_feat"].reshape(-1, 8).tolist()}
            assert int(graph.node_sets["nconfig"].total_size) == 3
        assert {tuple(row) for row in graph.node_sets["config_value"]["values"].numpy().tolist()} == used
    assert not sources


def as_tensorflow_feature(value) -> tf.train.Feature:
    if isinstance(value, str):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
    if np.asarray(value).dtype.kind in "iu":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(value)))
    return tf.train.Feature(float_list=tf.train.FloatList(value=np.ravel(value)))


def check_parsed(parsed: dict, features: dict) -> None:
    assert list(parsed) == sorted(features)
    for name, value in features.items():
        if isinstance(value, str):
            assert parsed[name] == value
        else:
            expected = np.ravel(value)
            assert parsed[name].dtype == (np.int64 if expected.dtype.kind in "iu" else np.float32)
            assert parsed[name].tobytes() == expected.tobytes()


def test_records_are_the_bytes_that_tensorflow_writes(tmp_path):
    random = np.random.default_rng(0)
    examples = [
        {"b": "name with ü", "a": random.normal(size=(7, 3)).astype(np.float32), "c/#size": [3]},
        {"z": np.array([-1, 0, 2**40, -(2**63)]), "none": np.zeros((0, 4), np.float32), "empty": np.zeros(0, np.int64)},
        {"x": np.array([np.float32(-0.0), np.float32(1e-40), np.float32(3e38)]), "y": ""},
        {},
    ]
    with (
        (tmp_path / "ours").open("wb") as ours,
        tf.io.TFRecordWriter(str(tmp_path / "theirs")) as theirs,
    ):
        for features in examples:
            record = serialize_example(features)
            theirs_features = {name: as_tensorflow_feature(value) for name, value in features.items()}
            example = tf.train.Example(features=tf.train.Features(feature=theirs_features))
            assert record == example.SerializeToString(deterministic=True)
            check_parsed(parse_example(record), features)
            write_record(ours, record)
            theirs.write(record)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_edges_are_sorted_by_consumer_whatever_their_order_in_the_archive():
    arrays = layout_arrays(seed=4)
    shuffled = arrays | {"edge_index": np.random.default_rng(0).permutation(arrays["edge_index"])}
    table, _ = encode_layouts([arrays["node_config_feat"].astype(np.int8)], 3)
    records = [serialize_graph(archive_of(each), np.arange(12), table, 3)[0] for each in (arrays, shuffled)]
    assert records[0] == records[1]


def brute_force_hops(edges: np.ndarray, starts: np.ndarray, num_nodes: int) -> list[float]:
    neighbours = [set() for _ in range(num_nodes)]
    for u, v in edges.tolist():
        neighbours[u].add(v)
        neighbours[v].add(u)
    hops = [float("inf")] * num_nodes
    queue = deque(starts.tolist())
    for start in starts.tolist():
        hops[start] = 0
    while queue:
        node = queue.popleft()
        for other in neighbours[node]:
            if hops[other] > hops[node] + 1:
                hops[other] = hops[node] + 1
                queue.append(other)
    return hops


def sparse_arrays(num_nodes: int, num_config: int, seed: int) -> dict:
    """Arrays with fewer edges than nodes, so that some nodes are far away and some are not connected."""
    arrays = layout_arrays(num_nodes, num_config, 2, seed)
    random = np.random.default_rng(seed)
    kept = random.random(len(arrays["edge_index"])) < 0.45
    return arrays | {"edge_index": arrays["edge_index"][kept]}


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 40), st.integers(0, 3), st.integers(1, 45), st.integers(0, 6), st.integers(0, 10**6))
def test_pruning_agrees_with_a_breadth_first_search(num_nodes, num_config, max_nodes, num_hops, seed):
    arrays = sparse_arrays(num_nodes, min(num_config, num_nodes), seed)
    kept = keep_neighbourhood(archive_of(arrays), max_nodes, num_hops)
    hops = brute_force_hops(arrays["edge_index"], arrays["node_config_ids"], num_nodes)
    if num_nodes <= max_nodes or not num_config:
        expected = list(range(num_nodes))
    else:
        within = [[node for node in range(num_nodes) if hops[node] <= most] for most in range(num_hops + 1)]
        expected = [nodes for nodes in within if len(nodes) <= max_nodes][-1:] or [within[0]]
        expected = expected[0]
    assert kept.tolist() == expected
    assert set(arrays["node_config_ids"].tolist()) <= set(kept.tolist())


def test_a_pruned_graph_keeps_node_ids_edges_inside_and_its_slots():
    arrays = layout_arrays(30, 2, 4, seed=8)
    arrays["node_config_ids"] = np.array([3, 28])
    arrays["edge_index"] = np.array([[i, i - 1] for i in range(1, 30)])
    archive = archive_of(arrays)
    kept = keep_neighbourhood(archive, 8, 5)
    assert kept.tolist() == [2, 3, 4, 27, 28, 29]
    record, _ = serialize_graph(archive, kept, np.zeros((1, 18), np.float32), 2)
    graph = tfgnn.parse_single_example(graph_spec("layout"), record)
    assert graph.node_sets["op"]["node_id"].numpy().tolist() == kept.tolist()
    assert np.array_equal(graph.node_sets["op"]["features"], arrays["node_feat"][kept])
    assert graph.edge_sets["config"].adjacency.target.numpy().tolist() == [1, 4]
    feeds = graph.edge_sets["feed"].adjacency
    assert list(zip(feeds.target.numpy(), feeds.source.numpy(), strict=True)) == [(1, 0), (2, 1), (4, 3), (5, 4)]


def test_pruning_is_off_by_default_and_never_touches_small_graphs():
    archive = archive_of(layout_arrays(30, 2, 4))
    assert len(keep_neighbourhood(archive, 0, 1)) == 30
    assert len(keep_neighbourhood(archive, 30, 1)) == 30
