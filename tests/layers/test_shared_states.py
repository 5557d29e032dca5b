"""Shared states: early fusion has the scores and gradients of the naive computation, with every encoder."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import random_pairs
from tpugraphs_polynormer.config.schema import RankingModelConfig
from tpugraphs_polynormer.datasets.statistics import FeatureStatistics
from tpugraphs_polynormer.layers.directed_edges import build_directed_edge_tensors
from tpugraphs_polynormer.layers.edge_index import build_edge_index, build_undirected_edge_tensors, select_edges
from tpugraphs_polynormer.layers.ops.aggregation import aggregate
from tpugraphs_polynormer.layers.shared_states import SharedStates, count_hops, find_reach
from tpugraphs_polynormer.models.ranking.batch import Batch
from tpugraphs_polynormer.models.ranking.model import RankingModel

K = 3
ENCODERS = {
    "gcn": {"encoder": "gcn"},
    "graphsage": {"encoder": "graphsage"},
    "gat": {"encoder": "gat"},
    "mlp": {"encoder": "mlp"},
    "tuned": {"encoder": "gcn", "residual": True, "pre_norm": True, "post_norm": True, "jumping_sum": True},
    "local": {"encoder": "polynormer-local"},
    "local_gcn": {"encoder": "polynormer-local", "conv": "gcn", "relu": False},
    "normed": {"encoder": "polynormer-local", "pre_norm": True, "post_norm": True},
    "global": {"encoder": "polynormer", "num_global_layers": 1},
    "two_global": {"encoder": "polynormer", "num_global_layers": 2, "share_query_key": False},
}


def path_pairs(sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The edges of paths, one per graph, and of a few skips over one node."""
    pairs = []
    for first, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
        nodes = first + np.arange(size)
        pairs += [*itertools.pairwise(nodes), *zip(nodes[:-2:5], nodes[2::5], strict=True)]
    return tuple(np.array(pairs).T)


def make_batch(sizes: list[int], config_nodes: list[list[int]], num_padding: int = 0, seed: int = 0) -> Batch:
    """A batch of path-like graphs with the given sizes and config nodes; padding is one more graph."""
    random = np.random.default_rng(seed)
    total = sum(sizes) + num_padding
    graph_sizes = [*sizes, num_padding] if num_padding else sizes
    op_graphs = np.repeat(np.arange(len(graph_sizes)), graph_sizes).astype(np.int32)
    is_real = np.arange(len(graph_sizes)) < len(sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    nconfig_ops = np.concatenate([start + np.array(ops, int) for start, ops in zip(starts, config_nodes, strict=True)])
    nconfig_graphs = np.repeat(np.arange(len(sizes)), [len(ops) for ops in config_nodes])
    if num_padding:
        nconfig_ops, nconfig_graphs = np.append(nconfig_ops, total - 1), np.append(nconfig_graphs, len(sizes))
    mask = is_real[op_graphs]
    source, target = path_pairs(sizes)
    padding = np.full(num_padding, total - 1)
    source, target = np.append(source, padding), np.append(target, padding)
    features = random.normal(size=[total, 140])
    features[~mask] = 37.0
    return Batch(
        features=tf.constant(features, tf.float32),
        opcodes=tf.constant(random.integers(1, 100, total)),
        edges=build_undirected_edge_tensors(source, target, total, mask=tf.gather(mask, target)),
        producers=tf.constant(source, tf.int32),
        consumers=tf.constant(target, tf.int32),
        op_graph_ids=tf.constant(op_graphs),
        op_mask=tf.constant(mask),
        config_values=tf.constant(random.integers(-1, 6, [7, 18]), tf.float32),
        codes=tf.constant(random.integers(0, 7, [len(nconfig_ops), K]), tf.int32),
        nconfig_graph_ids=tf.constant(nconfig_graphs, tf.int32),
        nconfig_roles=tf.zeros([len(nconfig_ops)], tf.int32),
        nconfig_mask=tf.constant(is_real[nconfig_graphs]),
        nconfig_ops=tf.constant(nconfig_ops, tf.int32),
        nconfig_dims=tf.constant(random.integers(0, 300, [len(nconfig_ops), 3, 6]), tf.float32),
        nconfig_edges=build_undirected_edge_tensors([], [], len(nconfig_ops)),
        num_graphs=len(graph_sizes),
        candidate_mask=tf.constant(np.repeat(is_real[:, None], K, 1)),
    )


BATCHES = {
    "one": lambda: make_batch([40], [[3, 20, 21]]),
    "dense": lambda: make_batch([9, 4], [[1, 4, 7], [0, 1, 2, 3]]),  # every node varies after few layers
    "padded": lambda: make_batch([30, 8, 17], [[9], [], [0, 16]], num_padding=6),  # one graph without config nodes
}


def build_model(**settings) -> RankingModel:
    tf.keras.utils.set_random_seed(5)
    columns = {"mean": 0.0, "std": 1.0, "minimum": -9.0, "maximum": 9.0}
    statistics = FeatureStatistics(
        num_nodes=1, heavy=[], constant=[], opcode_counts=[], **{name: [value] * 140 for name, value in columns.items()}
    )
    heads = {} if settings["encoder"] in ("gcn", "graphsage", "mlp") else {"num_heads": 2}
    settings = {"num_local_layers": 3, "hidden_dim": 8, **heads, "fusion": "early", "readout": "sum", **settings}
    return RankingModel(kind="layout", config=RankingModelConfig(**settings), statistics=statistics)


def run(model: RankingModel, batch: Batch, *, shared: bool, training: bool = False) -> tuple[np.ndarray, dict]:
    """The scores of the graphs without padding, and the gradients of a random combination of them, by variable."""
    model.share_states = shared
    is_real = batch.candidate_mask.numpy()
    weights = np.random.default_rng(9).normal(size=is_real.shape) * is_real
    with tf.GradientTape() as tape:
        scores = model.score(batch, model.encode(batch, training=training), training=training)
        loss = tf.reduce_sum(scores * weights)
    found = tape.gradient(loss, model.trainable_variables)
    gradients = {
        variable.name: tf.convert_to_tensor(gradient).numpy()
        for variable, gradient in zip(model.trainable_variables, found, strict=True)
        if gradient is not None
    }
    return scores.numpy()[is_real], gradients


def assert_same(found: tuple[np.ndarray, dict], expected: tuple[np.ndarray, dict]) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        scale = np.abs(gradient).max() + 0.05  # some gradients are zero up to rounding
        np.testing.assert_allclose(found[1][name] / scale, gradient / scale, atol=2e-4, err_msg=name)


def naive_and_shared(model: RankingModel, batch: Batch, **arguments) -> None:
    run(model, batch, shared=False)
    # The initial weights of config values are small. With large ones, a candidate at a wrong node changes the scores.
    model.config_value_projection.kernel.assign(model.config_value_projection.kernel * 50.0)
    expected = run(model, batch, shared=False, **arguments)
    assert np.ptp(expected[0].reshape(-1, K), axis=1).max() > 5e-4  # otherwise the test could not fail
    assert_same(run(model, batch, shared=True, **arguments), expected)


CASES = [
    *((encoder, "padded") for encoder in ENCODERS),
    ("graphsage", "one"),
    ("local", "dense"),
    ("two_global", "one"),
]


@pytest.mark.parametrize(("encoder", "batch"), CASES)
def test_equals_naive(encoder: str, batch: str) -> None:
    naive_and_shared(build_model(**ENCODERS[encoder]), BATCHES[batch]())


@pytest.mark.parametrize("readout", ["mean", "weighted", "config_nodes", "official"])
@pytest.mark.parametrize("encoder", ["local", "global"])
def test_readouts_equal_naive(encoder: str, readout: str) -> None:
    naive_and_shared(build_model(**ENCODERS[encoder], readout=readout), BATCHES["padded"]())


@pytest.mark.parametrize("encoder", ["graphsage", "gat", "local_gcn", "global"])
def test_directed_edges_equal_naive(encoder: str) -> None:
    batch = BATCHES["padded"]()
    mask = tf.gather(batch.op_mask, batch.consumers)
    edges = build_directed_edge_tensors(batch.producers, batch.consumers, len(batch.features), mask=mask)
    naive_and_shared(build_model(**ENCODERS[encoder], directed=True), batch._replace(edges=edges))


@pytest.mark.parametrize("readout", ["weighted", "config_nodes"])
def test_maxima_equal_naive(readout: str) -> None:
    naive_and_shared(build_model(**ENCODERS["local"], readout=readout, max_readout=True), BATCHES["padded"]())


@pytest.mark.parametrize("settings", [{**ENCODERS["normed"], "relu": False}, ENCODERS["tuned"]], ids=["local", "gcn"])
def test_batch_norm_counts_a_shared_row_once_per_candidate(settings: dict) -> None:
    naive_and_shared(build_model(**settings), BATCHES["padded"](), training=True)


def test_where_one_layer_reaches_every_node_nothing_is_shared() -> None:
    joint = build_model(encoder="polynormer", attention="local_and_global")
    assert build_model(**ENCODERS["global"]).share_states and not joint.share_states
    for option in ({"graph_norm": True}, {"squeeze_excite": True}, {"cross_candidates": "nodes"}):
        assert not build_model(**ENCODERS["local"], **option).share_states
    scores, _ = run(joint, BATCHES["padded"](), shared=joint.share_states)
    assert np.ptp(scores.reshape(-1, K), axis=1).max() > 0


def test_under_xla_the_naive_computation_runs() -> None:
    model, batch = build_model(**ENCODERS["local"]), BATCHES["one"]()
    expected, _ = run(model, batch, shared=True)
    compiled = tf.function(lambda each: model.score(each, model.encode(each)), jit_compile=True)
    np.testing.assert_allclose(compiled(batch)[0], expected, rtol=1e-4, atol=1e-5)
    encoded = model.encode(batch)
    with pytest.raises(ValueError, match="encoded outside XLA"):
        tf.function(lambda each: model.score(each, encoded), jit_compile=True)(batch)


def test_hops_by_hand() -> None:
    # The path 0 - 1 - 2 - 3 - 4 and the isolated node 5; hops are counted from nodes 1 and 5.
    source, target = np.array([0, 1, 1, 2, 2, 3, 3, 4]), np.array([1, 0, 2, 1, 3, 2, 4, 3])
    starts = np.array([False, True, False, False, False, True])
    assert count_hops(source, target, starts, 2).numpy().tolist() == [1, 0, 1, 2, 3, 0]


def test_prefix_grows_by_one_hop_per_layer() -> None:
    batch = make_batch([20], [[0]])
    starts = tf.range(20) == 0
    shared = SharedStates(find_reach(batch.edges, starts, num_hops=3, graphs=batch.op_graphs), num_candidates=2)
    # The graph is a path with the additional edges 0 - 2, 5 - 7, 10 - 12 and 15 - 17.
    assert [int(size) for size in shared.reach.sizes] == [1, 3, 4, 5]
    assert shared.reach.order.numpy().tolist() == list(range(20))
    hops = shared.steps(4)
    assert [(int(hop.before), int(hop.after)) for hop in hops] == [(1, 3), (3, 4), (4, 5), (5, 5)]


def test_expand_copies_what_begins_to_vary() -> None:
    batch = make_batch([5], [[0]])
    shared = SharedStates(
        find_reach(batch.edges, tf.range(5) == 0, num_hops=1, graphs=batch.op_graphs), num_candidates=2
    )
    rows = tf.constant([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])  # node 0 twice, then nodes 1, 2, 3, 4
    (hop,) = shared.steps(1)
    assert hop.expand(rows).numpy()[:, 0].tolist() == [1, 2, 3, 3, 4, 4, 5, 6]
    assert hop.row_weights(None).numpy().tolist() == [1, 1, 1, 1, 1, 1, 2, 2]


def test_rows_are_connected_as_their_nodes_are() -> None:
    """Every candidate has every edge once, except edges into nodes that are still shared; both orders are valid."""
    batch, k = make_batch([9], [[4]]), 3
    shared = SharedStates(
        find_reach(batch.edges, tf.range(9) == 4, num_hops=2, graphs=batch.op_graphs), num_candidates=k
    )
    joined = set(
        zip(shared.reach.edges.source.numpy().tolist(), shared.reach.edges.target.numpy().tolist(), strict=True)
    )
    for hop in shared.steps(2):
        before, after, edges = int(hop.before), int(hop.after), hop.connect_rows()

        def row(node: int, candidate: int, varying: int) -> int:
            return node * k + candidate if node < varying else varying * k + node - varying

        expected = [
            (row(source, candidate, before), row(target, candidate, after))
            for source, target in joined
            for candidate in range(k if target < after else 1)
        ]
        found = list(zip(edges.source.numpy().tolist(), edges.target.numpy().tolist(), strict=True))
        assert sorted(found) == sorted(expected)
        assert (np.diff(edges.target) >= 0).all() and (np.diff(edges.source.numpy()[edges.source_order]) >= 0).all()
        assert sorted(edges.source_order.numpy().tolist()) == list(range(len(found)))
        rows = [(edges.target, edges.target_offsets, 9 + (k - 1) * after)]
        rows += [(edges.source, edges.source_offsets, 9 + (k - 1) * before)]
        for ids, splits, count in rows:
            np.testing.assert_array_equal(np.diff(splits), np.bincount(ids, minlength=count))


@pytest.mark.parametrize("masked", [False, True])
def test_selected_edges_sum_as_a_dense_block_does(masked: bool) -> None:
    source, target = random_pairs(12, 40)
    mask = np.arange(40) % 3 > 0 if masked else np.ones(40, bool)
    edges = build_edge_index(source, target, 12, mask=mask if masked else None)
    adjacency = np.zeros([12, 12])
    np.add.at(adjacency, (target[mask], source[mask]), 1)
    keep = (edges.source >= 3) & (edges.source < 9) & (edges.target >= 5)
    block = select_edges(edges, keep, sources=(3, 9), targets=(5, 12))
    values = tf.constant(np.random.default_rng(0).normal(size=[6, 2]), tf.float32)
    upstream = tf.constant(np.random.default_rng(1).normal(size=[7, 2]), tf.float32)
    for formulation in ("fused", "segments", "unsorted"):
        with tf.GradientTape() as tape:
            tape.watch(values)
            out = aggregate(values, block, how="sum", formulation=formulation)
        np.testing.assert_allclose(out, adjacency[5:, 3:9] @ values.numpy(), atol=1e-5)
        gradient = tape.gradient(out, values, output_gradients=upstream)
        np.testing.assert_allclose(gradient, adjacency[5:, 3:9].T @ upstream.numpy(), atol=1e-5)
