"""Pooling, compared with numbers computed by hand; fusion and candidate attention do not depend on masked inputs."""

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import random_states
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.models.ranking.heads import (
    CandidateAttention,
    FusionHead,
    pool,
    pool_max,
    pool_weights,
    softmax_weights,
)

MASK = np.array([True, True, False, True, True, False])
GRAPHS = Graphs(np.array([0, 0, 0, 1, 1, 2], np.int32), 3, MASK)


@pytest.mark.parametrize("how, power", [("sum", 0.5), ("mean", 1.0)])
def test_pool_by_hand(how, power):
    states = random_states(6, 2, 3)
    states[~MASK] = 1e6
    expected = np.stack([states[:2].sum(0) / 2**power, states[3:5].sum(0) / 2**power, np.zeros((2, 3))])
    found = pool(tf.constant(states), pool_weights(GRAPHS, how), GRAPHS).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_softmax_weights_by_hand():
    logits = random_states(6, 3)
    logits[0] += 100.0  # nothing overflows
    logits[~MASK] = 1e6
    found = softmax_weights(tf.constant(logits), GRAPHS).numpy()
    for first, last in ((0, 2), (3, 5)):
        powers = np.exp(logits[first:last] - logits[first:last].max(0))
        np.testing.assert_allclose(found[first:last], powers / powers.sum(0), rtol=1e-5, atol=1e-12)
    assert not found[~MASK].any()


def test_maxima_by_hand_in_one_part_and_in_two():
    states = random_states(6, 2, 3) - 5  # all negative: what is masked does not count as 0
    states[~MASK] = 1e6
    expected = np.stack([states[:2].max(0), states[3:5].max(0), np.zeros((2, 3))])
    found = pool_max([tf.constant(states)], [tf.constant(MASK)], [GRAPHS]).numpy()
    np.testing.assert_array_equal(found, expected)
    shared = states[1::2, :1]  # these nodes have one state for both candidates
    states[1::2] = shared
    expected = np.stack([states[:2].max(0), states[3:5].max(0), np.zeros((2, 3))])
    parts = [tf.constant(states[::2]), tf.constant(shared)]
    halves = [Graphs(GRAPHS.ids[start::2], 3, MASK[start::2]) for start in (0, 1)]
    np.testing.assert_array_equal(pool_max(parts, [each.mask for each in halves], halves).numpy(), expected)


def test_pool_sums_bfloat16_in_float32():
    """A sum of 1,024 ones and a small number; in bfloat16 the sum would stop growing at 256."""
    states, graphs = tf.ones([1024, 1, 1], tf.bfloat16), Graphs(np.zeros(1024, np.int32), 1, np.ones(1024, bool))
    found = pool(states, pool_weights(graphs, "sum"), graphs)
    assert found.dtype == tf.bfloat16 and float(found[0, 0, 0]) == 32.0


def fusion(**settings) -> FusionHead:
    tf.keras.utils.set_random_seed(0)
    return FusionHead(dim=4, num_layers=2, **settings)


def test_fusion_by_hand():
    head = fusion()
    states, config_states = random_states(3, 4), random_states(3, 5, 4, seed=2)
    found = head(tf.constant(states), tf.constant(config_states)).numpy()
    join, *layers = [[weight.numpy() for weight in layer.weights] for layer in (head.join, *head.layers)]
    expected = np.maximum((states @ join[0] + join[1])[:, None] + config_states, 0)
    for kernel, bias in layers:
        expected = expected + np.maximum(expected @ kernel + bias, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_fusion_drops_out_in_training_only():
    head = fusion(dropout_rate=0.5)
    inputs = (tf.constant(random_states(6, 4)), tf.constant(random_states(6, 5, 4)))
    np.testing.assert_array_equal(head(*inputs).numpy(), head(*inputs, training=False).numpy())
    assert np.abs(head(*inputs, training=True).numpy() - head(*inputs).numpy()).max() > 0


def test_masked_candidates_are_not_seen():
    tf.keras.utils.set_random_seed(0)
    layer = CandidateAttention(dim=4, num_heads=2)
    states, mask = random_states(2, 5, 4), np.array([[True] * 3 + [False] * 2, [True] * 5])
    before = layer(tf.constant(states), tf.constant(mask)).numpy()
    states[0, 3:] = 77.0
    after = layer(tf.constant(states), tf.constant(mask)).numpy()
    np.testing.assert_allclose(after[0, :3], before[0, :3], rtol=1e-6)
    np.testing.assert_array_equal(after[1], before[1])
    states[1, 4] = 77.0
    assert np.abs(layer(tf.constant(states), tf.constant(mask)).numpy()[1, :4] - before[1, :4]).max() > 1e-3
