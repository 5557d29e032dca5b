"""The global layer: brute force, padding, batching, candidates, precision."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import random_edges, random_states
from tests.layers.layer_checks import assert_close, check_layer, projection, run
from tpugraphs_polynormer.layers import global_attention
from tpugraphs_polynormer.layers.global_attention import GlobalAttention, linear_attention
from tpugraphs_polynormer.layers.joint_attention import JointAttention

HEADS, HEAD_DIM, DIM = 3, 2, 5
IDS = np.array([0] * 7 + [1] * 3 + [3] * 6, np.int32)  # graph 2 has no nodes


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch) -> None:
    monkeypatch.setattr(global_attention, "BLOCK_NODES", 4)


def create(**settings) -> GlobalAttention:
    return GlobalAttention(num_heads=HEADS, head_dim=HEAD_DIM, **settings)


def brute_force(query, key, value, ids, mask) -> np.ndarray:
    """The quadratic sum over pairs, heads last."""
    query, key, value = (array.reshape(len(ids), HEAD_DIM, HEADS).astype(np.float64) for array in (query, key, value))
    allowed = (ids[:, np.newaxis] == ids) & mask
    weights = np.einsum("idh,jdh->ijh", query, key) * allowed[..., np.newaxis]
    total = np.maximum(weights.sum(1), 1e-30)
    return (np.einsum("ijh,jmh->imh", weights, value) / total[:, np.newaxis]).reshape(len(ids), -1)


def test_equals_the_quadratic_sum() -> None:
    query, key = (1 / (1 + np.exp(-random_states(16, 6, seed=i))) for i in (1, 2))
    value = random_states(16, 6, seed=3)
    mask = np.arange(16) % 5 != 0
    arrays = [tf.constant(array) for array in (query, key, value)]
    found = linear_attention(*arrays, num_heads=HEADS, component_ids=IDS, num_components=4, node_mask=mask)
    np.testing.assert_allclose(found, brute_force(query, key, value, IDS, mask), atol=1e-5)
    one = linear_attention(*arrays, num_heads=HEADS, node_mask=mask)
    np.testing.assert_allclose(one, brute_force(query, key, value, np.zeros(16), mask), atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"share_query_key": False, "beta": 0.9, "learn_beta": False}])
@pytest.mark.parametrize("shape", [(16, DIM), (16, 3, DIM)])
def test_layer_checks(settings: dict, shape: tuple[int, ...]) -> None:
    check_layer(lambda: create(**settings), random_states(*shape), component_ids=IDS, num_components=4)
    check_layer(lambda: create(**settings), random_states(*shape))


def test_joint_layer_checks() -> None:
    states = random_states(16, 2, DIM)
    layer = {"num_heads": HEADS, "head_dim": HEAD_DIM, "relu": False}
    check_layer(lambda: JointAttention(**layer), states, random_edges(16, 20), component_ids=IDS, num_components=4)


@pytest.mark.parametrize("shape", [(16, DIM), (16, 3, DIM)])
def test_a_batch_equals_its_graphs_one_by_one(shape: tuple[int, ...]) -> None:
    layer, states = create(), random_states(*shape)
    together, gradients = run(layer, tf.constant(states), component_ids=IDS, num_components=4)
    apart = [layer(states[i == IDS]) for i in (0, 1, 3)]
    np.testing.assert_allclose(together, np.concatenate(apart), atol=1e-5)
    weights = projection(together.shape)
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(layer(states[i == IDS]) * weights[i == IDS]) for i in (0, 1, 3)])
    assert_close(tape.gradient(loss, layer.trainable_weights), gradients[1:], 1e-5)


def test_padding_is_masked_from_keys_and_values() -> None:
    """As padding within the last graph, and as a graph of its own."""
    layer, states = create(), random_states(6, DIM)
    expected = layer(states)
    junk = np.concatenate([states, np.full([9, DIM], 50.0, np.float32)])
    mask = np.arange(15) < 6
    for ids in (np.zeros(15, np.int32), np.array([0] * 6 + [1] * 9, np.int32)):
        with tf.GradientTape() as tape:
            found = layer(junk, component_ids=ids, num_components=2, node_mask=mask)
            loss = tf.reduce_sum(found[:6])
        np.testing.assert_allclose(found[:6], expected, atol=1e-5)
        assert all(np.isfinite(gradient).all() for gradient in tape.gradient(loss, layer.trainable_weights))


def test_candidates_equal_separate_runs() -> None:
    layer, states = create(), random_states(16, 4, DIM)
    together = layer(states, component_ids=IDS, num_components=4)
    for k in range(4):
        apart = layer(states[:, k], component_ids=IDS, num_components=4)
        np.testing.assert_allclose(together[:, k], apart, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_million_nodes_stay_finite(monkeypatch, dtype: str) -> None:
    """Keys sum to half a million, beyond float16; the mean of the values must come out all the same."""
    monkeypatch.setattr(global_attention, "BLOCK_NODES", 256)
    num_nodes = 1_000_000
    key = tf.cast(tf.fill([num_nodes, 4], 0.5), dtype)
    value = tf.cast(tf.random.stateless_uniform([num_nodes, 4], [0, 1], 1.0, 3.0), dtype)
    ids = np.repeat([0, 1], num_nodes // 2).astype(np.int32)
    for arguments in ({}, {"component_ids": ids, "num_components": 2}):
        with tf.GradientTape() as tape:
            tape.watch([key, value])
            out = linear_attention(key, key, value, num_heads=2, **arguments)
            loss = tf.reduce_mean(tf.cast(out, tf.float32))
        mean = tf.reduce_mean(tf.cast(value, tf.float32), 0).numpy().reshape(2, 2).mean()
        np.testing.assert_allclose(tf.reduce_mean(tf.cast(out, tf.float32)), mean, rtol=1e-2)
        assert all(np.isfinite(np.asarray(g, np.float32)).all() for g in tape.gradient(loss, [key, value]))
