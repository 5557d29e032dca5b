"""Segments of nodes for training: the nodes that are drawn, how often, and the states of the model."""

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking_data import LAYOUT, built_model, first_batch, small_config
from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_index
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.models.ranking.batch import unpack_batch
from tpugraphs_polynormer.models.ranking.segments import NodeSegments, keep_within

GRAPHS = Graphs(tf.constant([0] * 7 + [1] * 3 + [2] * 2), 3)
EARLY = ("model.fusion=early", "model.readout=official", "model.dropout_rate=0")


def test_one_segment_of_each_graph_each_equally_often() -> None:
    tf.keras.utils.set_random_seed(0)
    layer = NodeSegments(num_nodes=3)
    drawn = np.stack([layer(GRAPHS).numpy() for _ in range(300)])
    assert drawn[:, 7:10].all() and drawn[:, 10:].all()  # graphs of one segment
    first, second, last = drawn[:, :3], drawn[:, 3:6], drawn[:, 6:7]
    for segment in (first, second, last):
        assert (segment.all(1) == segment.any(1)).all()  # whole segments
        assert 70 < segment.any(1).sum() < 130
    assert (first[:, 0] + second[:, 0].astype(int) + last[:, 0] == 1).all()


def test_a_restored_layer_draws_what_the_first_would_have_drawn() -> None:
    layer, copy = NodeSegments(num_nodes=3), NodeSegments(num_nodes=3)
    layer(GRAPHS)
    copy.set_weights(layer.get_weights())
    for _ in range(10):
        np.testing.assert_array_equal(layer(GRAPHS), copy(GRAPHS))


def test_edges_that_leave_the_segment_are_masked() -> None:
    edges = build_undirected_edge_index([0, 1, 2], [1, 2, 3], num_nodes=4).as_tensors()
    kept = keep_within(edges, tf.constant([False, True, True, False]))
    pairs = set(zip(edges.source.numpy()[kept.mask], edges.target.numpy()[kept.mask], strict=True))
    assert pairs == {(1, 1), (1, 2), (2, 1), (2, 2)}
    again = keep_within(kept, tf.constant([False, False, True, True]))
    assert again.mask.numpy().sum() == 1  # the loop at node 2


@pytest.mark.parametrize("encoder", ["graphsage", "polynormer", "polynormer-local"])
def test_a_segment_as_large_as_the_graph_changes_nothing(encoder: str) -> None:
    config = small_config(LAYOUT, *EARLY, f"model.encoder={encoder}", "model.segment_nodes=10000")
    model, graph = built_model(config), first_batch(config)
    np.testing.assert_allclose(model(graph, training=True), model(graph, training=False), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("encoder", ["graphsage", "polynormer"])
def test_states_outside_the_segment_are_those_of_the_whole_graph(encoder: str) -> None:
    """The states of the segment are those of a graph that has only the segment."""
    config = small_config(LAYOUT, *EARLY, f"model.encoder={encoder}", "model.segment_nodes=4")
    model, batch = built_model(config), unpack_batch(first_batch(config))
    run = {"phase": None, "training": True}
    encoded = model.encode(batch, training=True)
    config_states = model._project_config_values(batch)
    whole = model._run_naively(batch, encoded.states, config_states, run).numpy()
    state = model.segments.state.numpy()
    selected = model.segments(batch.op_graphs).numpy()
    model.segments.state.assign(state)
    mixed = model._learn_from_segments(batch, encoded, config_states, run).numpy()
    np.testing.assert_allclose(mixed[~selected], whole[~selected], rtol=1e-4, atol=1e-4)
    assert np.abs(mixed[selected] - whole[selected]).max() > 1e-3
    cut = batch._replace(
        edges=keep_within(batch.edges, selected),
        op_mask=batch.op_mask & selected,
        nconfig_mask=batch.nconfig_mask & tf.gather(selected, batch.nconfig_ops),
    )
    alone = model._run_naively(cut, encoded.states, config_states, run).numpy()
    np.testing.assert_allclose(mixed[selected], alone[selected], rtol=1e-4, atol=1e-4)


def test_opcodes_learn_from_the_segment_only() -> None:
    """The features of the other nodes have no gradient, as in the official code."""
    config = small_config(LAYOUT, *EARLY, "model.encoder=graphsage", "model.segment_nodes=3")
    model, graph = built_model(config), first_batch(config)
    batch = unpack_batch(graph)
    # Every node has a different opcode, so that the gradient shows which nodes have a gradient.
    batch = batch._replace(opcodes=tf.range(len(batch.opcodes), dtype=batch.opcodes.dtype))
    state = model.segments.state.numpy()
    selected = model.segments(batch.op_graphs).numpy()
    model.segments.state.assign(state)
    with tf.GradientTape() as tape:
        scores = model.score(batch, model.encode(batch, training=True), training=True)
    gradient = tf.convert_to_tensor(tape.gradient(scores, model.node_features.opcodes)).numpy()
    learned = np.abs(gradient).max(1)[: len(selected)] > 0
    assert 0 < selected.sum() < len(selected)
    np.testing.assert_array_equal(learned, selected)
