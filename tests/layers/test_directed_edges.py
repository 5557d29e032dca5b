"""Edges with directions: brute force in numpy, static and sorted ones, and the convolution that reads them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import random_states
from tests.layers.layer_checks import check_layer
from tpugraphs_polynormer.layers.convolutions import (
    DirectedConvolution,
    GraphAttention,
    GraphConvolution,
    SageConvolution,
)
from tpugraphs_polynormer.layers.directed_edges import build_directed_edge_tensors, build_directed_static_edges
from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_tensors
from tpugraphs_polynormer.layers.local_attention import LocalAttention

NODES = 9
# Sorted by target, then source; (1, 3) is there twice; the last two are padding of the last node.
SOURCE = np.array([0, 0, 1, 1, 2, 2, 4, 8, 8])
TARGET = np.array([1, 2, 3, 3, 3, 4, 5, 8, 8])
MASK = np.array([True] * 7 + [False] * 2)
BUILDERS = {"sorted": build_directed_edge_tensors, "static": build_directed_static_edges}
CONVOLUTIONS = {
    "gat": lambda: GraphAttention(num_heads=2, head_dim=3),
    "gcn": lambda: GraphConvolution(units=6),
    "sage": lambda: SageConvolution(units=6),
}


def edges_of(kind: str):
    return BUILDERS[kind](tf.constant(SOURCE), tf.constant(TARGET), NODES, mask=tf.constant(MASK))


def adjacency() -> np.ndarray:
    """[target, source]: 1 for a real edge, in its direction, and at each node's loop."""
    matrix = np.eye(NODES)
    matrix[TARGET[MASK], SOURCE[MASK]] = 1
    return matrix


def directed(create) -> DirectedConvolution:
    return DirectedConvolution(along=create(), against=create())


@pytest.mark.parametrize("kind", BUILDERS)
def test_each_direction_sums_its_own_edges_once(kind):
    edges, values = edges_of(kind), random_states(NODES, 4)
    matrices = {"along": adjacency(), "against": adjacency().T, "both": np.maximum(adjacency(), adjacency().T)}
    for name, matrix in matrices.items():
        found = getattr(edges, name).aggregate(tf.constant(values), how="sum").numpy()
        np.testing.assert_allclose(found[:-1], (matrix @ values)[:-1], rtol=1e-5, atol=1e-6, err_msg=name)
        degrees = getattr(edges, name).degrees().numpy()[:-1, 0]
        assert degrees.tolist() == matrix.sum(1)[:-1].tolist()
    np.testing.assert_array_equal(edges.degrees(), edges.both.degrees())


def test_opposite_edges_keep_both_directions():
    edges = build_directed_edge_tensors([1, 0], [0, 1], 2)
    for each in (edges.along, edges.against):
        assert each.aggregate(tf.constant([[1.0], [2.0]]), how="sum").numpy()[:, 0].tolist() == [3, 3]


def test_gradients_go_against_each_direction():
    edges, values = edges_of("sorted"), tf.constant(random_states(NODES, 4))
    upstream = random_states(NODES, 4, seed=5)
    upstream[-1] = 0
    for name, matrix in (("along", adjacency()), ("against", adjacency().T)):
        with tf.GradientTape() as tape:
            tape.watch(values)
            out = getattr(edges, name).aggregate(values, how="sum", formulation="segments")
        found = tape.gradient(out, values, output_gradients=tf.constant(upstream)).numpy()
        np.testing.assert_allclose(found[:-1], (matrix.T @ upstream)[:-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_a_directed_convolution_is_two_products_of_matrices(name, kind):
    tf.keras.utils.set_random_seed(0)
    layer, states = directed(CONVOLUTIONS[name]), random_states(NODES, 5)
    found = layer(tf.constant(states), edges_of(kind)).numpy()
    expected = np.zeros([NODES, 6])
    for convolution, matrix in ((layer.along, adjacency()), (layer.against, adjacency().T)):
        degrees = matrix.sum(1, keepdims=True)
        scaled = matrix / np.sqrt(degrees * degrees.T) if name == "gcn" else matrix / degrees
        linear = convolution.linear if name == "gcn" else convolution.from_neighbors
        expected += scaled @ states @ linear.kernel.numpy()
    if name == "gcn":
        expected += layer.along.bias.numpy()
    else:
        expected += states @ layer.along.from_self.kernel.numpy() + layer.along.from_self.bias.numpy()
    np.testing.assert_allclose(found[:-1], expected[:-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_layer_checks(name):
    edges = build_directed_edge_tensors(SOURCE[:7], TARGET[:7], NODES)
    check_layer(lambda: directed(CONVOLUTIONS[name]), random_states(NODES, 2, 5), edges)


@pytest.mark.parametrize("conv", ["gat", "gcn"])
def test_reversed_edges_with_swapped_weights_give_the_same(conv):
    states = tf.constant(random_states(NODES, 3, 5))
    layer = LocalAttention(num_heads=2, head_dim=3, conv=conv, directed=True)
    before = layer(states, edges_of("sorted")).numpy()
    assert np.abs(layer(states, swap(edges_of("sorted"))).numpy() - before).max() > 1e-3
    ways = layer.convolve.along, layer.convolve.against
    messages = [(each.linear.kernel, *[w for w in each.weights if "_weight" in w.name]) for each in ways]
    for one, other in zip(*messages, strict=True):
        kept = one.numpy()
        one.assign(other)
        other.assign(kept)
    np.testing.assert_allclose(layer(states, swap(edges_of("sorted"))), before, rtol=1e-4, atol=1e-5)


def swap(edges):
    return edges._replace(along=edges.against, against=edges.along)


def test_edges_without_directions_are_refused():
    plain = build_undirected_edge_tensors(SOURCE, TARGET, NODES)
    with pytest.raises(ValueError, match="EdgeIndex, whose edges have no direction; build them with"):
        directed(CONVOLUTIONS["gat"])(tf.ones([NODES, 5]), plain)
