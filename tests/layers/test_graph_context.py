"""Layers that read a whole graph or all candidates: brute force in numpy, masks, and the checks of every layer."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import random_states
from tests.layers.layer_checks import check_layer
from tpugraphs_polynormer.layers.graph_context import CandidateGate, SqueezeExcite
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.layers.normalization import GraphNorm

IDS, MASK = np.array([0, 0, 0, 1, 1, 2, 2], np.int32), np.array([True, True, False, True, True, False, False])
CANDIDATES = np.array([[True, True, True, False], [True] * 4, [False] * 4])
GRAPHS = Graphs(IDS, 3, MASK, candidate_mask=CANDIDATES)
LAYERS = {"norm": GraphNorm, "squeeze": SqueezeExcite, "gate": CandidateGate}


def built(create: type, dim: int = 8) -> tf.keras.layers.Layer:
    """The layer with weights off their special values."""
    tf.keras.utils.set_random_seed(0)
    layer = create()
    layer.build([None, 4, dim])
    random = np.random.default_rng(3)
    for weight in layer.trainable_weights:
        weight.assign_add(random.normal(scale=0.3, size=weight.shape).astype(np.float32))
    return layer


def of_graph(number: int) -> np.ndarray:
    return np.flatnonzero((number == IDS) & MASK)


@pytest.mark.parametrize("shape", [(40, 16), (40, 4, 16)], ids=["states", "candidates"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer_checks(name, shape):
    if name == "gate" and len(shape) == 2:
        states = tf.constant(random_states(*shape))
        assert CandidateGate()(states) is states, "there is nothing to see"
        return
    ids, mask = tf.repeat([0, 1, 2], [15, 15, 10]), tf.range(40) < 30
    graphs = Graphs(ids, 3, mask, candidate_mask=tf.constant(CANDIDATES))
    check_layer(LAYERS[name], random_states(*shape), graphs=graphs)


def test_graph_norm_is_that_of_numpy_graph_by_graph_and_candidate_by_candidate():
    layer, states = built(GraphNorm), random_states(7, 4, 8)
    states[~MASK] = 1e4
    found = layer(tf.constant(states), graphs=GRAPHS).numpy()
    shift, scale, offset = (weight.numpy() for weight in (layer.shift, layer.scale, layer.offset))
    for graph in (0, 1):
        rows = states[of_graph(graph)].astype(np.float64)
        shifted = rows - shift * rows.mean(0)
        expected = shifted / np.sqrt((shifted**2).mean(0) + 1e-5) * scale + offset
        np.testing.assert_allclose(found[of_graph(graph)], expected, rtol=1e-4, atol=1e-5)
    assert not found[~MASK].any(), "padding cannot grow from layer to layer"


def test_squeeze_excite_is_that_of_numpy():
    layer, states = built(SqueezeExcite), random_states(7, 4, 8)
    found = layer(tf.constant(states), graphs=GRAPHS).numpy()
    squeeze, excite = ([weight.numpy() for weight in each.weights] for each in (layer.squeeze, layer.excite))
    assert squeeze[0].shape == (8, 2), "four times narrower"
    for graph in (0, 1):
        mean = states[of_graph(graph)].mean(0)  # [4, 8]
        logits = np.maximum(mean @ squeeze[0] + squeeze[1], 0) @ excite[0] + excite[1]
        expected = states[of_graph(graph)] * 2 / (1 + np.exp(-logits))
        np.testing.assert_allclose(found[of_graph(graph)], expected, rtol=1e-5)


def test_candidate_gate_is_that_of_numpy_over_visible_candidates():
    layer, states = built(CandidateGate), random_states(7, 4, 8)
    found = layer(tf.constant(states), graphs=GRAPHS).numpy()
    temperature = np.exp(layer.log_temperature.numpy())
    for node in of_graph(0).tolist() + of_graph(1).tolist():
        visible = states[node, CANDIDATES[IDS[node]]]
        powers = np.exp(visible / temperature)
        expected = visible * powers / powers.mean(0)
        np.testing.assert_allclose(found[node, CANDIDATES[IDS[node]]], expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(found).all()


def test_candidates_that_agree_are_not_changed():
    states = np.repeat(random_states(7, 1, 8), 4, 1)
    found = built(CandidateGate)(tf.constant(states), graphs=GRAPHS).numpy()
    np.testing.assert_allclose(found[:2, :3], states[:2, :3], rtol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_masked_is_not_seen(name):
    layer, states = built(LAYERS[name]), random_states(7, 4, 8)
    before = layer(tf.constant(states), graphs=GRAPHS).numpy()
    seen = MASK[:, None] & (CANDIDATES[IDS] if name == "gate" else True)
    states[~np.broadcast_to(seen, [7, 4])] = 123.0
    after = layer(tf.constant(states), graphs=GRAPHS).numpy()
    np.testing.assert_allclose(after[np.broadcast_to(seen, [7, 4])], before[np.broadcast_to(seen, [7, 4])], rtol=1e-6)
