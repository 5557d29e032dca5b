"""The local layer: numbers computed by hand, invariances, and the checks of every layer."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import padded, random_edges, random_states
from tests.layers.layer_checks import assert_close, check_layer, projection, run
from tpugraphs_polynormer.layers.convolutions import GraphAttention, GraphConvolution, SageConvolution
from tpugraphs_polynormer.layers.edge_index import build_edge_index
from tpugraphs_polynormer.layers.gate import Gate
from tpugraphs_polynormer.layers.local_attention import LocalAttention
from tpugraphs_polynormer.layers.neighbours import Graphs

NODES, DIM, HEADS, HEAD_DIM = 11, 5, 3, 2
EDGES = random_edges(NODES, 20)
SETTINGS = [
    {},
    {"conv": "gcn", "beta": 0.9, "learn_beta": False, "post_norm": True},
    {"beta": 0.4, "pre_norm": True, "relu": False, "recompute": True},
]


def create(**settings) -> LocalAttention:
    return LocalAttention(num_heads=HEADS, head_dim=HEAD_DIM, **settings)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", [(NODES, DIM), (NODES, 3, DIM)])
def test_layer_checks(settings: dict, shape: tuple[int, ...]) -> None:
    check_layer(lambda: create(**settings), random_states(*shape), EDGES)


@pytest.mark.parametrize("convolution", [
    lambda: GraphAttention(num_heads=HEADS, head_dim=HEAD_DIM),
    lambda: GraphConvolution(units=6),
    lambda: SageConvolution(units=6),
])  # fmt: skip
def test_convolutions_pass_the_layer_checks(convolution) -> None:
    check_layer(convolution, random_states(NODES, 2, DIM), EDGES)


def test_two_nodes_by_hand() -> None:
    """The edge 0 -> 1 and self-loops, one head of width 1, every weight 1, every bias 0."""
    layer = LocalAttention(num_heads=1, head_dim=1, beta=0.25, learn_beta=False)
    edges = build_edge_index(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    states = np.array([[1.0], [2.0]], np.float32)
    layer(states, edges)
    for weight in layer.trainable_weights:
        weight.assign(tf.zeros_like(weight) if "bias" in weight.name else tf.ones_like(weight))
    # Node 1 receives from node 0 with logit 1 + 2 = 3, and from itself with logit 2 + 2 = 4.
    heard = (np.exp(3) * 1 + np.exp(4) * 2) / (np.exp(3) + np.exp(4))
    mixed = np.array([[1.0 + 1.0], [heard + 2.0]])
    # A layer norm over one number returns its offset, here 1.
    expected = 0.75 * 1.0 + 0.25 * mixed
    np.testing.assert_allclose(layer(states, edges), expected, rtol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS)
def test_padding_changes_nothing(settings: dict) -> None:
    layer, states = create(**settings), random_states(NODES, DIM)
    plain = [layer(states, EDGES, training=True), *run_masked(layer, states, EDGES, None)]
    junk_states, edges, mask = padded(states, EDGES)
    found = [layer(junk_states, edges, graphs=Graphs(mask=mask), training=True)[:NODES]]
    found += run_masked(layer, junk_states, edges, mask)
    assert_close(found, plain, 1e-5)


def run_masked(layer: LocalAttention, states: np.ndarray, edges, mask: np.ndarray | None) -> list[tf.Tensor]:
    """The gradients of a loss on the nodes without padding, with batch statistics."""
    with tf.GradientTape() as tape:
        out = layer(states, edges, graphs=Graphs(mask=mask), training=True)[:NODES]
        loss = tf.reduce_sum(out * random_states(*out.shape, seed=3))
    return tape.gradient(loss, layer.trainable_weights)


def test_order_of_nodes_does_not_matter() -> None:
    layer, states = create(), random_states(NODES, DIM)
    order = np.random.default_rng(0).permutation(NODES)
    place = np.argsort(order)
    moved = build_edge_index(place[EDGES.source], place[EDGES.target], NODES)
    expected, gradients = run(layer, tf.constant(states), EDGES)
    np.testing.assert_allclose(layer(states[order], moved), expected.numpy()[order], atol=1e-5)
    with tf.GradientTape() as tape:
        weights = projection(expected.shape)[order]
        loss = tf.reduce_sum(layer(states[order], moved) * weights)
    assert_close(tape.gradient(loss, layer.trainable_weights), gradients[1:], 1e-5)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("formulation", ["fused", "segments", "unsorted"])
def test_candidates_equal_separate_runs(settings: dict, formulation: str) -> None:
    layer, states = create(**settings, formulation=formulation), random_states(NODES, 4, DIM)
    together, gradients = run(layer, tf.constant(states), EDGES)
    apart = np.stack([layer(states[:, k], EDGES).numpy() for k in range(4)], 1)
    np.testing.assert_allclose(together, apart, atol=1e-5)
    weights = projection(together.shape)
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(layer(states[:, k], EDGES) * weights[:, k]) for k in range(4)])
    assert_close([tf.convert_to_tensor(g) for g in tape.gradient(loss, layer.trainable_weights)], gradients[1:], 1e-5)


def test_batch_norm_moves_its_averages_by_real_nodes_only() -> None:
    layer, states = create(post_norm=True), random_states(NODES, DIM)
    layer(states, EDGES, training=True)
    expected = [layer.norm_after.moving_mean.numpy(), layer.norm_after.moving_variance.numpy()]
    layer.norm_after.moving_mean.assign(tf.zeros(6))
    layer.norm_after.moving_variance.assign(tf.ones(6))
    junk_states, edges, mask = padded(states, EDGES)
    layer(junk_states, edges, graphs=Graphs(mask=mask), training=True)
    assert_close([layer.norm_after.moving_mean, layer.norm_after.moving_variance], expected, 1e-5)


def test_gates() -> None:
    states = tf.zeros([4, 3])
    learned = Gate(beta=-1.0)
    learned(states)
    learned.weight.assign([0.0, 1.0, -1.0])
    np.testing.assert_allclose(learned(states), 1 / (1 + np.exp([-0.0, -1.0, 1.0])), rtol=1e-6)
    assert Gate(beta=0.4)(states).numpy().tolist() == pytest.approx([0.4] * 3)
    fixed = Gate(beta=0.4, learn_beta=False)
    fiedler = np.array([1.0, -1.0, 0.5, 0.0], np.float32)
    np.testing.assert_allclose(fixed(states, fiedler=fiedler), np.outer(fiedler, [0.4] * 3), rtol=1e-6)
    assert not fixed.trainable_weights
    with pytest.raises(ValueError, match="learn_beta is False"):
        Gate(beta=-1.0, learn_beta=False)


def test_unknown_convolution_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown conv 'cheb', expected one of gat, gcn"):
        create(conv="cheb")
