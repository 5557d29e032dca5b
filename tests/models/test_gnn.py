"""Baseline encoders: the checks of every layer, candidates, and their use in a classifier."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import padded, random_edges, random_states
from tests.layers.layer_checks import check_layer
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.models.gnn import GAT, GCN, MLP, GraphSAGE
from tpugraphs_polynormer.models.node_classifier import NodeClassifier

EDGES = random_edges(11, 20)
ENCODERS = {
    "gcn": lambda: GCN(hidden_dim=6, num_layers=2),
    "sage": lambda: GraphSAGE(hidden_dim=6, num_layers=2),
    "gat": lambda: GAT(hidden_dim=6, num_layers=2, num_heads=3),
    "mlp": lambda: MLP(hidden_dim=6, num_layers=2),
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
