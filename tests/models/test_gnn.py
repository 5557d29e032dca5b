"""Baseline encoders: the checks of every layer, the definition in numpy, candidates, and their use in a classifier."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import padded, random_edges, random_states
from tests.layers.layer_checks import check_layer
from tpugraphs_polynormer.layers.convolutions import GraphConvolution, SageConvolution
from tpugraphs_polynormer.layers.edge_index import build_edge_index
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.models.gnn import GAT, GCN, MLP, GraphSAGE
from tpugraphs_polynormer.models.node_classifier import NodeClassifier
from tpugraphs_polynormer.models.tpugraphs_baseline import TpuGraphsLayoutBaseline

EDGES = random_edges(11, 20)
ENCODERS = {
    "gcn": lambda: GCN(hidden_dim=6, num_layers=2),
    "sage": lambda: GraphSAGE(hidden_dim=6, num_layers=2),
    "gat": lambda: GAT(hidden_dim=6, num_layers=2, num_heads=3),
    "mlp": lambda: MLP(hidden_dim=6, num_layers=2),
    "gcn_tuned": lambda: GCN(hidden_dim=6, num_layers=2, residual=True, post_norm=True, jumping_sum=True),
    "sage_tuned": lambda: GraphSAGE(hidden_dim=6, num_layers=2, post_layer_norm=True, pre_norm=True),
    "gat_tuned": lambda: GAT(hidden_dim=6, num_layers=2, num_heads=1, residual=True, post_layer_norm=True),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_layer_checks(name: str) -> None:
    def seeded() -> tf.keras.layers.Layer:
        tf.keras.utils.set_random_seed(1)
        return ENCODERS[name]()

    check_layer(seeded, random_states(11, 3, 5), EDGES)


@pytest.mark.parametrize("name", ENCODERS)
def test_candidates_and_padding(name: str) -> None:
    encoder, states = ENCODERS[name](), random_states(11, 3, 5)
    together = encoder(states, EDGES).numpy()
    for k in range(3):
        junk, edges, mask = padded(states[:, k], EDGES)
        np.testing.assert_allclose(encoder(junk, edges, graphs=Graphs(mask=mask))[:11], together[:, k], atol=1e-5)


@pytest.mark.parametrize("name", ENCODERS)
def test_classifier_with_a_baseline_reloads_from_config(name: str) -> None:
    model = NodeClassifier(encoder=ENCODERS[name](), num_classes=3)
    model.build([None, 5])
    copy = NodeClassifier.from_config(model.get_config())
    copy.build([None, 5])
    copy.set_weights(model.get_weights())
    states = random_states(11, 5)
    np.testing.assert_array_equal(copy(states, EDGES), model(states, EDGES))
    assert model.encoder.phases == ("local",)


def test_sage_by_hand() -> None:
    encoder = GraphSAGE(hidden_dim=1, num_layers=1)
    states = random_states(11, 1)
    encoder.build([None, 1])
    convolution = encoder.convolutions[0]
    for weight, value in ((convolution.from_neighbors.kernel, 2.0), (convolution.from_self.kernel, -1.0)):
        weight.assign([[value]])
    convolution.from_self.bias.assign([0.5])
    means = [states[EDGES.source[EDGES.target == i]].mean(0) for i in range(11)]
    expected = np.maximum(2 * np.stack(means) + 0.5 - states, 0)
    np.testing.assert_allclose(encoder(states, EDGES), expected, atol=1e-6)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="hidden_dim 6 is not a multiple of its num_heads 4"):
        GAT(hidden_dim=6, num_layers=1, num_heads=4)


# The definition in numpy, with dense matrices: convolution(x) + x W + b, norm, ReLU; x may be normalised before.


def adjacency() -> np.ndarray:
    """[11, 11]: 1 where an edge leads from column to row."""
    matrix = np.zeros([11, 11])
    matrix[EDGES.target, EDGES.source] = 1
    return matrix


def dense_convolution(layer: tf.keras.layers.Layer, states: np.ndarray) -> np.ndarray:
    """What GCN, GraphSAGE and GAT with one head compute."""
    matrix = adjacency()
    if isinstance(layer, GraphConvolution):
        root = np.diag(matrix.sum(1) ** -0.5)
        return root @ matrix @ root @ states @ layer.linear.kernel.numpy() + layer.bias.numpy()
    if isinstance(layer, SageConvolution):
        means = matrix / matrix.sum(1, keepdims=True) @ states
        own = states @ layer.from_self.kernel.numpy() + layer.from_self.bias.numpy()
        return means @ layer.from_neighbors.kernel.numpy() + own
    values = states @ layer.linear.kernel.numpy()
    logits = values @ layer.target_weight.numpy().T + (values @ layer.source_weight.numpy().T).T
    attention = np.exp(np.where(logits > 0, logits, 0.2 * logits)) * matrix
    return attention / attention.sum(1, keepdims=True) @ values


def standardize(states: np.ndarray, axis: int) -> np.ndarray:
    mean, variance = states.mean(axis, keepdims=True), states.var(axis, keepdims=True)
    return (states - mean) / np.sqrt(variance + 1e-5)


@pytest.mark.parametrize("post", ["none", "post_norm", "post_layer_norm"])
@pytest.mark.parametrize(("residual", "pre_norm", "jumping_sum"), [(1, 0, 0), (0, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("cls", [GCN, GraphSAGE, GAT])
def test_the_options_by_brute_force(cls: type, residual: int, pre_norm: int, jumping_sum: int, post: str) -> None:
    options = {"residual": bool(residual), "pre_norm": bool(pre_norm), "jumping_sum": bool(jumping_sum)}
    options |= {post: True} if post != "none" else {}
    options |= {"num_heads": 1} if cls is GAT else {}
    tf.keras.utils.set_random_seed(3)
    encoder, states = cls(hidden_dim=4, num_layers=3, **options), random_states(11, 5)
    found = encoder(states, EDGES, training=True).numpy()
    outputs = []
    for i, convolution in enumerate(encoder.convolutions):
        states = standardize(states, 1) if pre_norm else states
        mixed = dense_convolution(convolution, states)
        if residual:
            mixed = mixed + states @ encoder.residuals[i].kernel.numpy() + encoder.residuals[i].bias.numpy()
        if post != "none":
            mixed = standardize(mixed, 1 if post == "post_layer_norm" else 0)
        states = np.maximum(mixed, 0)
        outputs.append(states)
    np.testing.assert_allclose(found, sum(outputs) if jumping_sum else states, rtol=1e-3, atol=1e-4)


def test_batch_norm_counts_no_padding_and_evaluates_with_moving_statistics() -> None:
    encoder, states = ENCODERS["gcn_tuned"](), random_states(11, 5)
    junk, edges, mask = padded(states, EDGES)
    expected = encoder(states, EDGES, training=True).numpy()
    np.testing.assert_allclose(
        encoder(junk, edges, graphs=Graphs(mask=mask), training=True)[:11], expected, rtol=1e-4, atol=1e-5
    )
    norm = encoder.norms_after[0]
    assert np.abs(norm.moving_mean.numpy()).max() > 0
    before = encoder(states, EDGES).numpy()
    norm.moving_mean.assign_add(tf.ones(6))
    assert not np.allclose(encoder(states, EDGES), before)


@pytest.mark.parametrize("name", ENCODERS)
def test_another_order_of_the_nodes_gives_the_same_states(name: str) -> None:
    encoder, states = ENCODERS[name](), random_states(11, 5)
    order = np.random.default_rng(4).permutation(11)
    position = np.argsort(order)
    moved = build_edge_index(position[EDGES.source], position[EDGES.target], 11)
    expected = encoder(states, EDGES, training=True).numpy()
    np.testing.assert_allclose(encoder(states[order], moved, training=True), expected[order], rtol=1e-4, atol=1e-5)


def test_two_norms_of_one_sum_are_refused() -> None:
    with pytest.raises(ValueError, match="post_norm and post_layer_norm normalise the same sum"):
        GCN(hidden_dim=6, num_layers=1, post_norm=True, post_layer_norm=True)


@pytest.mark.parametrize("option", ["residual", "pre_norm", "post_norm", "post_layer_norm", "jumping_sum"])
def test_the_official_layers_have_no_such_options(option: str) -> None:
    with pytest.raises(ValueError, match="has the official layers: no norms, residuals or jumping_sum"):
        TpuGraphsLayoutBaseline(hidden_dim=6, num_layers=1, **{option: True})
