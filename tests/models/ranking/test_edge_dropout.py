"""Dropped edges in the ranking model: a step computes what it would without these edges, in every form of the model."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.ranking.test_model import STATIC, config_of, learner_of
from tests.ranking_data import LAYOUT, TILE, built_model, first_batch
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_tensors
from tpugraphs_polynormer.models.encoder_registry import check_encoder
from tpugraphs_polynormer.models.ranking.batch import unpack_batch

RATE = "model.edge_dropout_rate=0.5"
VARIANTS = [
    (LAYOUT, "early", "polynormer"),
    (LAYOUT, "early", "graphsage"),
    (LAYOUT, "late", "polynormer"),
    (TILE, "early", "graphsage"),
    (TILE, "late", "gat"),
]


def without_dropped(model, graph):
    """The batch, built from the edges that the model's next step keeps."""
    batch = unpack_batch(graph)
    before = model.edge_dropout.get_weights()
    kept = model.edge_dropout.thin(batch.edges, training=True)
    model.edge_dropout.set_weights(before)
    source, target = kept.source.numpy()[kept.mask], kept.target.numpy()[kept.mask]
    assert 0 < (source < target).sum() < len(batch.producers)
    one_way = source < target
    edges = build_undirected_edge_tensors(source[one_way], target[one_way], len(batch.opcodes))
    return batch._replace(edges=edges)


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_a_step_reads_the_edges_that_are_left(variant):
    config = config_of(*variant, RATE)
    model, graph = built_model(config), first_batch(config)
    plain = model(graph).numpy()
    batch = without_dropped(model, graph)
    run = {"training": True}
    expected = model.score(batch, model.encode(batch, **run), **run).numpy()
    found = model(graph, training=True).numpy()
    mask = batch.candidate_mask.numpy()
    np.testing.assert_allclose(found[mask], expected[mask], rtol=1e-4, atol=2e-5)
    assert np.abs(found - plain)[mask].max() > 5e-5
    np.testing.assert_array_equal(model(graph).numpy(), plain)
    assert np.abs(model(graph, training=True).numpy() - found)[mask].max() > 1e-6, "the next step drops others"


def test_shared_states_drop_what_naive_states_drop():
    config = config_of(LAYOUT, "early", "polynormer", RATE)
    model, graph = built_model(config), first_batch(config)
    before = model.edge_dropout.get_weights()
    shared = model(graph, training=True).numpy()
    model.edge_dropout.set_weights(before)
    model.share_states = False
    mask = graph.context["candidate_mask"].numpy()
    np.testing.assert_allclose(model(graph, training=True).numpy()[mask], shared[mask], rtol=1e-4, atol=2e-5)


def test_a_compiled_step_drops_edges_with_static_shapes():
    config = config_of(LAYOUT, "late", "polynormer-local", RATE, STATIC)
    learner, graph = learner_of(config), first_batch(config)
    step = tf.function(lambda: learner.task.loss(graph, num_replicas=1), jit_compile=True, autograph=False)
    assert "<=" not in step.experimental_get_compiler_ir()(stage="hlo")
    assert float(step()) != float(step())


def test_without_a_rate_there_is_no_layer():
    config = config_of(LAYOUT, "late", "gcn")
    assert built_model(config).edge_dropout is None


def test_an_encoder_without_edges_refuses_the_rate():
    with pytest.raises(ConfigError, match=r"model\.edge_dropout_rate: found 0\.5, but model\.encoder mlp has no such"):
        check_encoder(config_of(LAYOUT, "late", "mlp", RATE).model)
