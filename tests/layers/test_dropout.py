"""Dropout of states and of edges: rate, scale, independence of calls and layers, saved state, XLA."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpugraphs_polynormer.layers.directed_edges import build_directed_edge_tensors
from tpugraphs_polynormer.layers.dropout import Dropout, EdgeDropout
from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_index, build_undirected_edge_tensors
from tpugraphs_polynormer.layers.static_edges import build_static_edges


def test_rate_and_scale() -> None:
    out = Dropout(rate=0.3)(tf.ones([301, 333]), training=True).numpy()
    assert sorted(set(out.ravel().tolist())) == pytest.approx([0.0, 1 / 0.7])
    assert abs((out == 0).mean() - 0.3) < 0.01
    assert np.abs((out == 0).mean(0) - 0.3).max() < 0.2


def test_calls_and_layers_differ_and_the_state_brings_a_mask_back() -> None:
    states, layer, other = tf.ones([50, 40]), Dropout(rate=0.5), Dropout(rate=0.5)
    start = layer.get_weights()
    first, second = (layer(states, training=True).numpy() for _ in range(2))
    assert (first != second).any() and (other(states, training=True).numpy() != first).any()
    other.set_weights(start)
    np.testing.assert_array_equal(other(states, training=True), first)


def test_identity_outside_training_leaves_the_state() -> None:
    layer = Dropout(rate=0.5)
    np.testing.assert_array_equal(layer(tf.ones([3, 3])), np.ones([3, 3]))
    assert layer.state.numpy()[1] == 0


def test_compiles_with_static_shapes_and_moves_on() -> None:
    layer, states = Dropout(rate=0.5), tf.ones([30, 7])
    compiled = tf.function(lambda x: layer(x, training=True), jit_compile=True)
    assert "<=" not in compiled.experimental_get_compiler_ir(states)(stage="hlo")
    assert (compiled(states).numpy() != compiled(states).numpy()).any()


def test_rate_is_checked() -> None:
    with pytest.raises(ValueError, match=r"dropout rate 1 is outside \[0, 1\)"):
        Dropout(rate=1)


def random_edges(num_nodes: int = 400, num_edges: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Edges source < target, each once, sorted by target."""
    ends = np.sort(np.random.default_rng(0).integers(0, num_nodes, [num_edges, 2]), axis=1)
    keys = np.unique(ends[ends[:, 0] < ends[:, 1]] @ [1, num_nodes])
    return keys % num_nodes, keys // num_nodes


def kept_pairs(edges) -> set[tuple[int, int]]:
    source, target, mask = (tf.convert_to_tensor(each).numpy() for each in (edges.source, edges.target, edges.mask))
    return {(int(one), int(other)) for one, other in zip(source[mask], target[mask], strict=True)}


def test_edges_go_in_both_directions_and_loops_stay() -> None:
    source, target = random_edges()
    edges = build_undirected_edge_index(source, target, 400)
    kept = kept_pairs(EdgeDropout(rate=0.3).thin(edges, training=True))
    assert kept == {(target, source) for source, target in kept}
    assert {(node, node) for node in range(400)} <= kept
    assert abs((len(kept) - 400) / (2 * len(source)) - 0.7) < 0.04


def test_edges_are_dropped_one_by_one() -> None:
    """Edges that share a node agree no more often than others: the share is the same at every node."""
    star = build_undirected_edge_index(np.zeros(500, int), np.arange(1, 501), 501)
    layer = EdgeDropout(rate=0.5)
    shares = [(len(kept_pairs(layer.thin(star, training=True))) - 501) / 1000 for _ in range(40)]
    assert abs(np.mean(shares) - 0.5) < 0.02 and abs(np.std(shares) - 0.5 / np.sqrt(500)) < 0.01
    square = build_undirected_edge_index([0, 1, 2, 3], [1, 2, 3, 0], 4)  # the sums of opposite edges' words are equal
    counts = [(len(kept_pairs(layer.thin(square, training=True))) - 4) // 2 for _ in range(400)]
    expected = 400 * np.array([1, 4, 6, 4, 1]) / 16
    assert np.abs(np.bincount(counts, minlength=5) - expected).max() < 40


def test_static_edges_drop_what_an_edge_index_drops() -> None:
    source, target = random_edges()
    mask = tf.constant(np.arange(len(source)) % 7 > 0)
    both = [
        build(tf.constant(source), tf.constant(target), 400, mask=mask)
        for build in (build_static_edges, build_undirected_edge_tensors)
    ]
    layer, other = EdgeDropout(rate=0.4), EdgeDropout(rate=0.4)
    other.set_weights(layer.get_weights())
    static, plain = (
        kept_pairs(each.thin(edges, training=True)) for each, edges in zip((layer, other), both, strict=True)
    )
    assert static == {pair for pair in plain if pair[0] != pair[1]}
    assert 0 < len(static) < 2 * mask.numpy().sum()
    np.testing.assert_array_equal(layer.state, other.state)
    assert kept_pairs(layer.thin(both[0], training=True)) != static, "the next step draws others"


def test_edges_are_left_alone_outside_training() -> None:
    edges, layer = build_undirected_edge_index([0], [1], 2), EdgeDropout(rate=0.9)
    assert layer.thin(edges, training=False) is edges and layer.state.numpy()[1] == 0
    with pytest.raises(ValueError, match=r"edge dropout rate 1 is outside \[0, 1\)"):
        EdgeDropout(rate=1)


def test_edge_dropout_compiles_with_static_shapes() -> None:
    source, target = (tf.constant(each) for each in random_edges())
    layer = EdgeDropout(rate=0.4)

    def thin(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        return layer.thin(build_static_edges(source, target, 400, mask=source >= 0), training=True).mask

    compiled = tf.function(thin, jit_compile=True, autograph=False)
    assert "<=" not in compiled.experimental_get_compiler_ir(source, target)(stage="hlo")
    first, second = (compiled(source, target).numpy() for _ in range(2))
    assert abs(first.mean() - 0.6) < 0.04 and (first != second).any()


def test_directions_lose_the_same_edges():
    directed = build_directed_edge_tensors(tf.constant([0, 1, 2, 3]), tf.constant([1, 2, 3, 0]), 4)
    kept = EdgeDropout(rate=0.5).thin(directed, training=True)
    along, against, both = (kept_pairs(each) for each in (kept.along, kept.against, kept.both))
    assert against == {(target, source) for source, target in along}
    assert both == along | against
    assert {(node, node) for node in range(4)} <= along
