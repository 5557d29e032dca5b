"""Static edges give the numbers and gradients of an EdgeIndex, uncompiled and compiled by XLA."""

import numpy as np
import pytest
import tensorflow as tf

from tpugraphs_polynormer.layers.convolutions import GraphAttention
from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_tensors
from tpugraphs_polynormer.layers.static_edges import build_static_edges

NODES = 9
# Sorted by target, then source; (1, 3) is there twice; the last two are padding of the last node.
SOURCE = np.array([0, 0, 1, 1, 2, 2, 4, 8, 8])
TARGET = np.array([1, 2, 3, 3, 3, 4, 5, 8, 8])
MASK = np.array([True] * 7 + [False] * 2)


def both_kinds():
    ends = tf.constant(SOURCE), tf.constant(TARGET)
    mask = tf.constant(MASK)
    return build_static_edges(*ends, NODES, mask=mask), build_undirected_edge_tensors(*ends, NODES, mask=mask)


def random_array(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def differentiate(function, *arrays: tf.Tensor) -> list[np.ndarray]:
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        out = function(*arrays)
    real = np.arange(NODES).reshape([-1] + [1] * (out.shape.rank - 1)) < NODES - 1
    upstream = random_array(*out.shape, seed=9) * tf.cast(real, tf.float32)
    return [out.numpy(), *(each.numpy() for each in tape.gradient(out, arrays, output_gradients=upstream))]


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Compares real nodes; the last node is padding, whose loop an EdgeIndex may mask."""
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each[:-1], wanted[:-1], rtol=1e-5, atol=1e-5)


def test_degrees_by_hand():
    static, _ = both_kinds()
    assert static.degrees().numpy()[:, 0].tolist() == [3, 3, 4, 3, 3, 2, 1, 1, 1]


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "xla"])
@pytest.mark.parametrize("how", ["sum", "mean", "gcn"])
@pytest.mark.parametrize("shape", [(5,), (3, 4)], ids=["states", "candidates"])
def test_aggregates_equal_those_of_an_edge_index(how, shape, jit):
    static, index = both_kinds()
    values = random_array(NODES, *shape)
    expected = differentiate(lambda each: index.aggregate(each, how=how), values)
    compiled = tf.function(lambda each: static.aggregate(each, how=how), jit_compile=jit)
    assert_equal(differentiate(compiled, values), expected)


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "xla"])
@pytest.mark.parametrize("repeated", [False, True], ids=["one_logit", "repeated_logits"])
@pytest.mark.parametrize("columns", [(2,), (3, 2)], ids=["states", "candidates"])
def test_attention_equals_that_of_an_edge_index(columns, repeated, jit):
    static, index = both_kinds()
    source, target = (30 * random_array(NODES, *columns, seed=seed) for seed in (1, 2))
    values = random_array(NODES, *columns, 4)
    expected = differentiate(lambda *arrays: index.attend(*arrays, formulation="fused"), source, target, values)

    def attend(source: tf.Tensor, target: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        logits = (tf.repeat(each, 4, axis=-1) if repeated else each for each in (source, target))
        return static.attend(*logits, values)

    assert_equal(differentiate(tf.function(attend, jit_compile=jit), source, target, values), expected)


@pytest.mark.parametrize("repeated", [False, True], ids=["one_logit", "repeated_logits"])
def test_attention_as_wide_as_the_lanes_keeps_candidates_apart(repeated):
    static, index = both_kinds()
    heads, dim = (64, 2) if repeated else (128, 2)  # logits of 128 numbers in both cases
    source, target = (random_array(NODES, 3, heads, seed=seed) for seed in (1, 2))
    values = random_array(NODES, 3, heads, dim)
    expected = differentiate(lambda *arrays: index.attend(*arrays, formulation="fused"), source, target, values)

    def attend(source: tf.Tensor, target: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        logits = (tf.repeat(each, dim, axis=-1) if repeated else each for each in (source, target))
        return static.attend(*logits, values)

    assert_equal(differentiate(attend, source, target, values), expected)


def test_a_node_without_edges_and_loop_gets_zeros():
    static, _ = both_kinds()
    alone = static._replace(loops=tf.concat([static.loops[:7], tf.zeros([1, 1]), static.loops[8:]], 0))
    logits, values = random_array(NODES, 2), random_array(NODES, 2, 3)
    found = differentiate(lambda *arrays: alone.attend(*arrays), logits, logits, values)
    assert not found[0][7].any() and np.isfinite(np.concatenate([each.ravel() for each in found])).all()
    np.testing.assert_allclose(found[0][6], values[6], rtol=1e-6, err_msg="only its loop")


def test_a_layer_takes_either_kind():
    static, index = both_kinds()
    layer = GraphAttention(num_heads=2, head_dim=4)
    states = random_array(NODES, 3, 8)
    expected = differentiate(lambda each: layer(each, index), states)
    assert_equal(differentiate(tf.function(lambda each: layer(each, static), jit_compile=True), states), expected)
