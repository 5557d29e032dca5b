"""The global layer: comparison with brute force, padding, batching, candidates, precision."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import random_edges, random_states
from tests.layers.layer_checks import assert_close, check_layer, projection, run
from tpugraphs_polynormer.layers.global_attention import GlobalAttention, KeySums, QueryKeyValue
from tpugraphs_polynormer.layers.joint_attention import JointAttention
from tpugraphs_polynormer.layers.neighbours import Graphs

HEADS, HEAD_DIM, DIM = 3, 2, 5
IDS = np.array([0] * 7 + [1] * 3 + [3] * 6, np.int32)  # graph 2 has no nodes
GRAPHS = Graphs(IDS, 4)


def create(**settings) -> GlobalAttention:
    """A layer with blocks of 4 nodes, so that graphs have several blocks and some blocks are not full."""
    return GlobalAttention(num_heads=HEADS, head_dim=HEAD_DIM, block_nodes=4, **settings)


def brute_force(query, key, value, ids, mask) -> np.ndarray:
    """The attended values as a quadratic sum over pairs, with heads as the last axis."""
    query, key, value = (array.reshape(len(ids), HEAD_DIM, HEADS).astype(np.float64) for array in (query, key, value))
    allowed = (ids[:, np.newaxis] == ids) & mask
    weights = np.einsum("idh,jdh->ijh", query, key) * allowed[..., np.newaxis]
    total = np.maximum(weights.sum(1), 1e-30)
    return (np.einsum("ijh,jmh->imh", weights, value) / total[:, np.newaxis]).reshape(len(ids), -1)


def test_equals_the_quadratic_sum() -> None:
    query, key = (1 / (1 + np.exp(-random_states(16, 6, seed=i))) for i in (1, 2))
    value = random_states(16, 6, seed=3)
    mask = np.arange(16) % 5 != 0
    arrays = QueryKeyValue(*(tf.constant(array) for array in (query, key, value)))
    found = create().aggregate(arrays, Graphs(IDS, 4, mask))
    np.testing.assert_allclose(found, brute_force(query, key, value, IDS, mask), atol=1e-5)
    one = create().aggregate(arrays, Graphs(mask=mask))
    np.testing.assert_allclose(one, brute_force(query, key, value, np.zeros(16), mask), atol=1e-5)
    order = np.random.default_rng(0).permutation(16)  # nodes need not be sorted by graph
    mixed = QueryKeyValue(*(tf.gather(array, order) for array in arrays))
    found = create().aggregate(mixed, Graphs(IDS[order], 4, mask[order], is_sorted=False))
    np.testing.assert_allclose(found, brute_force(query, key, value, IDS, mask)[order], atol=1e-5)


def test_sums_over_parts_of_a_graph_add_up() -> None:
    layer, states = create(), tf.constant(random_states(16, DIM))
    expected = layer(states)
    first, second = (layer.project(part) for part in tf.split(states, [6, 10]))
    sums = KeySums.plus(layer.sum_keys(first), layer.sum_keys(second))
    attended = tf.concat([layer.attend(first, sums), layer.attend(second, sums)], 0)
    np.testing.assert_allclose(layer.combine(states, attended), expected, atol=1e-5)


@pytest.mark.parametrize("graphs", [Graphs(), GRAPHS], ids=["one", "several"])
def test_one_state_attends_for_all_candidates(graphs: Graphs) -> None:
    """A query without candidates against the sums of three equals three equal queries."""
    layer, states = create(), tf.constant(random_states(16, 3, DIM))
    sums = layer.sum_keys(layer.project(states), graphs)
    shared = tf.constant(random_states(16, 1, DIM, seed=5))
    repeated = layer.attend(layer.project(tf.tile(shared, [1, 3, 1])), sums, graphs)
    np.testing.assert_allclose(layer.attend(layer.project(shared), sums, graphs), repeated, atol=1e-5)


def test_attention_weights_are_those_that_attend_uses() -> None:
    layer, states = create(share_query_key=False), tf.constant(random_states(16, DIM))
    projected = layer.project(states)
    sums = layer.sum_keys(projected)
    weights = layer.attention_weights(projected, sums)
    np.testing.assert_allclose(tf.reduce_sum(weights, 1), np.ones(16), atol=1e-5)
    # If values are equal for all heads, the mean over heads of the result is the mean attention times the values.
    values = tf.repeat(tf.constant(random_states(16, 1, seed=3)), HEADS * HEAD_DIM, 1)
    attended = layer.aggregate(projected._replace(value=values))
    np.testing.assert_allclose(tf.reduce_mean(attended, 1), tf.linalg.matvec(weights, values[:, 0]), atol=1e-5)
    some = QueryKeyValue(*(tf.gather(array, [3, 8]) for array in projected))
    np.testing.assert_allclose(layer.attention_weights(some, sums), tf.gather(weights.numpy()[[3, 8]], [3, 8], axis=1))


@pytest.mark.parametrize("settings", [{}, {"share_query_key": False, "beta": 0.9, "learn_beta": False}])
@pytest.mark.parametrize("shape", [(16, DIM), (16, 3, DIM)])
def test_layer_checks(settings: dict, shape: tuple[int, ...]) -> None:
    check_layer(lambda: create(**settings), random_states(*shape), graphs=GRAPHS)
    check_layer(lambda: create(**settings), random_states(*shape))


def test_joint_layer_checks() -> None:
    states = random_states(16, 2, DIM)
    layer = {"num_heads": HEADS, "head_dim": HEAD_DIM, "relu": False, "block_nodes": 4}
    check_layer(lambda: JointAttention(**layer), states, random_edges(16, 20), graphs=GRAPHS)


@pytest.mark.parametrize("shape", [(16, DIM), (16, 3, DIM)])
def test_a_batch_equals_its_graphs_one_by_one(shape: tuple[int, ...]) -> None:
    layer, states = create(), random_states(*shape)
    together, gradients = run(layer, tf.constant(states), graphs=GRAPHS)
    apart = [layer(states[i == IDS]) for i in (0, 1, 3)]
    np.testing.assert_allclose(together, np.concatenate(apart), atol=1e-5)
    weights = projection(together.shape)
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(layer(states[i == IDS]) * weights[i == IDS]) for i in (0, 1, 3)])
    assert_close(tape.gradient(loss, layer.trainable_weights), gradients[1:], 1e-5)


def test_padding_is_masked_from_keys_and_values() -> None:
    """The padding is part of the last graph, or a separate graph."""
    tf.keras.utils.set_random_seed(4)  # with this seed the queries of padding nodes underflow to 0
    layer, states = create(), random_states(6, DIM)
    expected = layer(states)
    junk = np.concatenate([states, np.full([9, DIM], 50.0, np.float32)])
    mask = np.arange(15) < 6
    for ids in (np.zeros(15, np.int32), np.array([0] * 6 + [1] * 9, np.int32)):
        with tf.GradientTape() as tape:
            found = layer(junk, graphs=Graphs(ids, 2, mask))
            loss = tf.reduce_sum(found[:6])
        np.testing.assert_allclose(found[:6], expected, atol=1e-5)
        assert all(np.isfinite(gradient).all() for gradient in tape.gradient(loss, layer.trainable_weights))


def test_tiny_queries_have_finite_gradients() -> None:
    """The square of a total of 1e-21 is not a float32."""
    query = tf.Variable(tf.fill([3, HEADS * HEAD_DIM], 1e-21))
    key, value = tf.Variable(tf.fill([3, HEADS * HEAD_DIM], 0.5)), tf.Variable(random_states(3, HEADS * HEAD_DIM))
    with tf.GradientTape() as tape:
        loss = 0.0 * tf.reduce_sum(create().aggregate(QueryKeyValue(query, key, value)))
    for gradient in tape.gradient(loss, [query, key, value]):
        assert np.isfinite(tf.convert_to_tensor(gradient)).all()


def test_candidates_equal_separate_runs() -> None:
    layer, states = create(), random_states(16, 4, DIM)
    together = layer(states, graphs=GRAPHS)
    for k in range(4):
        apart = layer(states[:, k], graphs=GRAPHS)
        np.testing.assert_allclose(together[:, k], apart, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_million_nodes_stay_finite(dtype: str) -> None:
    """The keys sum to half a million, beyond the range of float16; the result must still be the mean of values."""
    layer = GlobalAttention(num_heads=2, head_dim=2)
    num_nodes = 1_000_000
    key = tf.cast(tf.fill([num_nodes, 4], 0.5), dtype)
    value = tf.cast(tf.random.stateless_uniform([num_nodes, 4], [0, 1], 1.0, 3.0), dtype)
    ids = np.repeat([0, 1], num_nodes // 2).astype(np.int32)
    for graphs in (Graphs(), Graphs(ids, 2)):
        with tf.GradientTape() as tape:
            tape.watch([key, value])
            out = layer.aggregate(QueryKeyValue(key, key, value), graphs)
            loss = tf.reduce_mean(tf.cast(out, tf.float32))
        mean = tf.reduce_mean(tf.cast(value, tf.float32), 0).numpy().reshape(2, 2).mean()
        np.testing.assert_allclose(tf.reduce_mean(tf.cast(out, tf.float32)), mean, rtol=1e-2)
        assert all(np.isfinite(np.asarray(g, np.float32)).all() for g in tape.gradient(loss, [key, value]))
