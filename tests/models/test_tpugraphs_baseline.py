"""The encoders of the official baselines, compared with sums in numpy over every node for every candidate."""

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import random_pairs, random_states
from tests.layers.layer_checks import check_layer
from tests.ranking_data import LAYOUT, TILE, built_model, first_batch, small_config
from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_index
from tpugraphs_polynormer.layers.normalization import l2_normalize
from tpugraphs_polynormer.models.ranking.batch import Batch, unpack_batch
from tpugraphs_polynormer.models.tpugraphs_baseline import TpuGraphsLayoutBaseline, TpuGraphsTileBaseline

RAW = ("model.encoder=graphsage", "model.fusion=early", "model.features=raw", "model.readout=sum")


def leaky(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, 0.2 * values)


def adjacency(batch: Batch) -> np.ndarray:
    """[n, n]: 1 for two ops with an edge, and on the diagonal."""
    matrix = np.eye(len(batch.features))
    matrix[batch.consumers, batch.producers] = matrix[batch.producers, batch.consumers] = 1
    return matrix


def node_inputs(model, batch: Batch) -> np.ndarray:
    return np.concatenate([batch.features.numpy(), model.node_features.opcodes.numpy()[batch.opcodes.numpy()]], -1)


def read_out(model, states: np.ndarray, batch: Batch) -> np.ndarray:
    """Scores [G, k] of states [n, k, dim]: sums over a graph, divided by the root of its size, or official readout."""
    graphs, official = batch.op_graph_ids.numpy(), model.config.readout == "official"
    sums = np.stack([states[graphs == g].sum(0) for g in range(batch.num_graphs)])
    sizes = np.bincount(graphs, minlength=batch.num_graphs)[:, np.newaxis, np.newaxis]
    if not official:
        pooled = sums / np.sqrt(sizes)
    elif model.kind == "tile":
        pooled = sums
    else:
        decided, of = states[batch.nconfig_ops.numpy()], batch.nconfig_graph_ids.numpy()
        of_config = np.stack([decided[of == g].sum(0) for g in range(batch.num_graphs)])
        pooled = np.concatenate([sums / sizes, unit(sums), unit(of_config)], -1)
    for hidden in model.hidden_layers:
        mixed = pooled @ hidden.kernel.numpy() + (hidden.bias.numpy() if hidden.use_bias else 0)
        pooled = leaky(mixed) if official else np.maximum(mixed, 0)
    assert len(model.hidden_layers) == (2 if official and model.kind == "tile" else 1)
    return -(pooled @ model.output_layer.kernel.numpy())[..., 0]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def score_layouts(model, batch: Batch) -> np.ndarray:
    """Scores [G, k]; in every layer, the state of each op is concatenated with the entries of the candidate."""
    encoder, dim = model.encoder, model.config.hidden_dim
    num_ops, k = len(batch.features), batch.codes.shape[1]
    entries = np.zeros([num_ops, k, 18])
    entries[batch.nconfig_ops.numpy()] = 100 * batch.config_values.numpy()[batch.codes.numpy()]
    nodes = np.repeat(node_inputs(model, batch)[:, np.newaxis], k, 1)
    of_entries = np.split(model.config_value_projection.kernel.numpy(), 1 + encoder.num_layers, -1)
    weight = np.concatenate([of_entries[0], model.node_projection.kernel.numpy()])
    states = leaky(np.concatenate([entries, nodes], -1) @ weight + model.node_projection.bias.numpy())
    states = leaky(states @ encoder.prenet.kernel.numpy() + encoder.prenet.bias.numpy())
    matrix = adjacency(batch)
    root = 1 / np.sqrt(matrix.sum(1))
    normalized = root[:, np.newaxis] * matrix * root
    for layer in range(encoder.num_layers):
        convolution, dense = encoder.convolutions[layer], encoder.dense[layer]
        mixed = np.einsum("ij,jkd->ikd", normalized, np.concatenate([entries, states], -1))
        weight = np.concatenate([of_entries[1 + layer], convolution.linear.kernel.numpy()])
        assert weight.shape == (18 + dim, dim)
        mixed = leaky(mixed @ weight + convolution.bias.numpy())
        states = states + leaky(mixed @ dense.kernel.numpy() + dense.bias.numpy())
    return read_out(model, states, batch)


def score_tiles(model, batch: Batch) -> np.ndarray:
    """Scores [G, k]; the input of every op is concatenated with all 24 bounds of the candidate."""
    encoder, dim = model.encoder, model.config.hidden_dim
    k, graphs = batch.codes.shape[1], batch.op_graph_ids.numpy()
    chosen = batch.config_values.numpy()[batch.codes.numpy()]  # [config nodes, k, 8], three for each graph
    bounds = np.stack([np.concatenate(chosen[batch.nconfig_graph_ids == g], -1) for g in range(batch.num_graphs)])
    nodes = np.repeat(node_inputs(model, batch)[:, np.newaxis], k, 1)
    states = np.concatenate([bounds[graphs], nodes], -1)
    # [8, 3 config nodes * 2 dim] -> [24, 2 dim]
    of_bounds = (
        model.config_value_projection.kernel.numpy().reshape(8, 3, 2 * dim).transpose(1, 0, 2).reshape(24, 2 * dim)
    )
    first = np.split(np.concatenate([of_bounds, model.node_projection.kernel.numpy()]), 2, -1)
    told, bias = np.split(model.node_projection.bias.numpy(), 2)
    layers = [(*first, bias + adjacency(batch).sum(1)[:, np.newaxis, np.newaxis] * told)]
    for layer in encoder.convolutions:
        of_self = layer.from_self
        layers.append((layer.from_neighbors.kernel.numpy(), of_self.kernel.numpy(), of_self.bias.numpy()))
    assert len(layers) == model.config.num_local_layers
    for of_neighbors, of_self, bias in layers:
        summed = np.einsum("ij,jkd->ikd", adjacency(batch), states)
        states = leaky(summed @ of_neighbors + states @ of_self + bias)
        states /= np.linalg.norm(states, axis=-1, keepdims=True)
    return read_out(model, states, batch)


@pytest.mark.parametrize("readout", ["sum", "official"])
@pytest.mark.parametrize(("name", "score"), [(LAYOUT, score_layouts), (TILE, score_tiles)], ids=["layout", "tile"])
def test_scores_are_those_of_the_straightforward_sums(name, score, readout):
    config = small_config(name, *RAW, f"model.readout={readout}")
    model, batch = built_model(config), unpack_batch(first_batch(config))
    found = model.score(batch, model.encode(batch)).numpy()
    assert found.std() > 1e-3
    np.testing.assert_allclose(found, score(model, batch), rtol=2e-4, atol=1e-5 * np.abs(found).max())


def test_every_layer_sees_the_choices_again():
    config = small_config(LAYOUT, *RAW)
    model, batch = built_model(config), unpack_batch(first_batch(config))
    kernel, before = model.config_value_projection.kernel, model.score(batch, model.encode(batch)).numpy()
    for layer in range(1 + model.encoder.num_layers):
        parts = tf.split(kernel, 1 + model.encoder.num_layers, -1)
        parts[layer] = tf.zeros_like(parts[layer])
        whole = kernel.numpy()
        kernel.assign(tf.concat(parts, -1))
        assert np.abs(model.score(batch, model.encode(batch)).numpy() - before).max() > 1e-4
        kernel.assign(whole)


@pytest.mark.parametrize("shape", [(9, 6), (9, 2, 6)], ids=["nodes", "candidates"])
@pytest.mark.parametrize("encoder", [TpuGraphsLayoutBaseline, TpuGraphsTileBaseline])
def test_layer_checks(encoder, shape):
    edges = build_undirected_edge_index(*random_pairs(9, 12), 9)
    check_layer(lambda: encoder(hidden_dim=6, num_layers=2), random_states(*shape), edges)


def test_rows_get_unit_length_and_zeros_stay_with_a_finite_gradient():
    states = tf.constant([[3.0, -4.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        tape.watch(states)
        out = l2_normalize(states)
        loss = tf.reduce_sum(out * [[1.0, 2.0], [1.0, 2.0]])
    np.testing.assert_allclose(out, [[0.6, -0.8], [0, 0]], atol=1e-6)
    # d/dx of (1, 2) . x / |x| at (3, -4): ((1, 2) - (0.6, -0.8) * (0.6 - 1.6)) / 5
    np.testing.assert_allclose(tape.gradient(loss, states), [[0.32, 0.24], [0, 0]], atol=1e-6)
