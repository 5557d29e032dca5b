"""The encoder and the node classifier: variants, invariances, phases, saving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import merge, padded, random_edges, random_states
from tests.layers.layer_checks import assert_close, check_layer
from tpugraphs_polynormer.layers.edge_index import build_edge_index
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.models.node_classifier import NodeClassifier, build_polynormer_classifier
from tpugraphs_polynormer.models.polynormer import Polynormer

DIM = 5
GRAPHS = (random_edges(9, 14, seed=1), random_edges(5, 6, seed=2), random_edges(12, 15, seed=3))
BATCH = merge(*GRAPHS)
IDS = np.repeat([0, 1, 2], [9, 5, 12]).astype(np.int32)
GRAPH_ARGUMENTS = {"graphs": Graphs(IDS, 3)}
VARIANTS = {
    "global": {},
    "local only": {"attention": "local", "num_global_layers": 0},
    "joint": {"attention": "local_and_global", "num_global_layers": 0},
    "large": {"conv": "gcn", "beta": 0.9, "learn_beta": False, "post_norm": True},
    "polynomial": {"relu": False, "beta": 0.3, "pre_norm": True, "share_query_key": False},
}


def create(**settings) -> Polynormer:
    arguments = {"num_heads": 3, "head_dim": 2, "num_local_layers": 2, "num_global_layers": 2}
    return Polynormer(**{**arguments, **settings})


def output_and_gradients(layer, states, edges, rows=slice(None), weights=None, **kwargs) -> list:
    """The output of the rows, and the gradients of a projection of it with respect to the weights."""
    with tf.GradientTape() as tape:
        out = tf.gather(layer(states, edges, **kwargs), np.arange(len(states))[rows])
        weights = random_states(*out.shape, seed=8) if weights is None else weights
        loss = tf.reduce_sum(out * weights)
    gradients = tape.gradient(loss, layer.trainable_weights)
    return [out, *(None if g is None else tf.convert_to_tensor(g) for g in gradients)]


@pytest.mark.parametrize("variant", ["global", "joint"])
def test_layer_checks(variant: str) -> None:
    def seeded() -> Polynormer:
        tf.keras.utils.set_random_seed(3)
        # Without ReLU, because the checks refuse zero gradients, which a unit that is never active has.
        return create(**VARIANTS[variant], relu=False)

    check_layer(seeded, random_states(26, 2, DIM), BATCH, tolerance=2e-4, **GRAPH_ARGUMENTS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_changes_nothing(variant: str) -> None:
    layer, states = create(**VARIANTS[variant]), random_states(26, DIM)
    expected = output_and_gradients(layer, states, BATCH, training=True, **GRAPH_ARGUMENTS)
    junk, edges, mask = padded(states, BATCH)
    ids = np.concatenate([IDS, [3] * 4]).astype(np.int32)
    found = output_and_gradients(layer, junk, edges, slice(26), graphs=Graphs(ids, 4, mask), training=True)
    assert_close(found, expected, 2e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_order_of_nodes_does_not_matter(variant: str) -> None:
    layer, states, edges = create(**VARIANTS[variant]), random_states(12, DIM), GRAPHS[2]
    expected = output_and_gradients(layer, states, edges)
    order = np.random.default_rng(0).permutation(12)
    place = np.argsort(order)
    moved = build_edge_index(place[edges.source], place[edges.target], 12)
    weights = random_states(*expected[0].shape, seed=8)[order]
    found = output_and_gradients(layer, states[order], moved, weights=weights)
    found[0] = tf.gather(found[0], place)
    assert_close(found, expected, 2e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_equals_its_graphs_one_by_one(variant: str) -> None:
    layer, states = create(**VARIANTS[variant]), random_states(26, DIM)
    together = output_and_gradients(layer, states, BATCH, **GRAPH_ARGUMENTS)
    weights = random_states(*together[0].shape, seed=8)
    apart = [
        output_and_gradients(layer, states[i == IDS], edges, weights=weights[i == IDS])
        for i, edges in enumerate(GRAPHS)
    ]
    expected = [np.concatenate([one[0] for one in apart])]
    expected += [
        None if grads[0] is None else tf.add_n(grads) for grads in zip(*(one[1:] for one in apart), strict=True)
    ]
    assert_close(together, expected, 2e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_candidates_equal_separate_runs(variant: str) -> None:
    layer, states = create(**VARIANTS[variant]), random_states(26, 3, DIM)
    together = layer(states, BATCH, **GRAPH_ARGUMENTS).numpy()
    for k in range(3):
        apart = layer(states[:, k], BATCH, **GRAPH_ARGUMENTS).numpy()
        assert_close([together[:, k]], [apart], 2e-4)


def test_local_result_is_the_sum_of_the_layers() -> None:
    layer, states = create(), random_states(26, DIM)
    layer.build([None, DIM])
    first = layer.local_layers[0](states, BATCH)
    expected = first + layer.local_layers[1](first, BATCH)
    np.testing.assert_allclose(layer(states, BATCH, phase="local"), expected, atol=1e-6)


def test_one_projection_is_shared_by_all_global_layers() -> None:
    shallow, deep = create(num_global_layers=1), create(num_global_layers=3)
    for layer in (shallow, deep):
        layer.build([None, DIM])
    per_layer = 3 * 2 * (6 * 6 + 6) // 2 + 6 * 2 + 6  # factor, key, value; norm; beta
    assert deep.count_params() - shallow.count_params() == 2 * per_layer


def test_phases_are_checked() -> None:
    layer, states = create(), random_states(26, DIM)
    assert layer.phases == ("local", "global")
    np.testing.assert_array_equal(layer(states, BATCH), layer(states, BATCH, phase="global"))
    assert np.abs(layer(states, BATCH) - layer(states, BATCH, phase="local")).max() > 1e-3
    with pytest.raises(ValueError, match="no phase 'warm-up', expected local or global"):
        layer(states, BATCH, phase="warm-up")
    with pytest.raises(ValueError, match="no phase 'global', expected local"):
        create(attention="local", num_global_layers=0)(states, BATCH, phase="global")


def build_classifier(**settings) -> NodeClassifier:
    arguments = {"num_classes": 4, "num_heads": 3, "head_dim": 2, "num_local_layers": 2, "num_global_layers": 1}
    model = build_polynormer_classifier(**{**arguments, **settings})
    model.build([None, DIM])
    return model


@pytest.mark.parametrize("how", ["weights.h5", "checkpoint"])
@pytest.mark.parametrize("phase", ["local", "global"])
def test_reload_keeps_numbers(tmp_path: Path, how: str, phase: str) -> None:
    model, fresh = build_classifier(post_norm=True), build_classifier(post_norm=True)
    model(random_states(26, DIM), BATCH, training=True)
    if how == "checkpoint":
        path = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
        tf.train.Checkpoint(model=fresh).read(path).assert_consumed()
    else:
        model.save_weights(tmp_path / "model.weights.h5")
        fresh.load_weights(tmp_path / "model.weights.h5")
    expected = model(random_states(26, DIM), BATCH, phase=phase)
    np.testing.assert_array_equal(fresh(random_states(26, DIM), BATCH, phase=phase), expected)


def test_config_keeps_the_encoder() -> None:
    model = build_classifier(beta=0.3, dropout_rate=0.2, input_dropout_rate=0.1)
    copy = NodeClassifier.from_config(model.get_config())
    copy.build([None, DIM])
    copy.set_weights(model.get_weights())
    assert copy.get_config() == model.get_config()
    np.testing.assert_array_equal(copy(random_states(26, DIM), BATCH), model(random_states(26, DIM), BATCH))


@pytest.mark.parametrize("recompute", [False, True])
def test_training_lowers_the_loss_in_both_phases(recompute: bool) -> None:
    tf.keras.utils.set_random_seed(0)
    model = build_classifier(dropout_rate=0.1, recompute=recompute, num_heads=4, head_dim=4)
    features, edges = random_states(26, DIM), BATCH.as_tensors()
    labels = features[:, :4].argmax(1)
    optimizer = tf.keras.optimizers.Adam(0.02)
    for phase in ("local", "global"):

        @tf.function
        def step(phase: str = phase) -> tf.Tensor:
            with tf.GradientTape() as tape:
                logits = model(features, edges, phase=phase, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, model.trainable_weights)
            pairs = [pair for pair in zip(gradients, model.trainable_weights, strict=True) if pair[0] is not None]
            optimizer.apply_gradients(pairs)
            return loss

        optimizer.build(model.trainable_weights)
        losses = [float(step()) for _ in range(60)]
        assert np.mean(losses[-5:]) < 0.85 * losses[0], (phase, losses[0], losses[-5:])


def test_a_restored_model_drops_what_the_first_would_have_dropped(tmp_path: Path) -> None:
    model, fresh = build_classifier(dropout_rate=0.5), build_classifier(dropout_rate=0.5)
    features = random_states(26, DIM)
    model(features, BATCH, training=True)
    model.save_weights(tmp_path / "model.weights.h5")
    fresh.load_weights(tmp_path / "model.weights.h5")
    first, second = (model(features, BATCH, training=True).numpy() for _ in range(2))
    np.testing.assert_array_equal(fresh(features, BATCH, training=True), first)
    assert np.abs(first - second).max() > 1e-3


def test_recomputation_changes_no_gradient() -> None:
    model, other = create(), create(recompute=True)
    states = random_states(26, DIM)
    for layer in (model, other):
        layer.build([None, DIM])
    other.set_weights(model.get_weights())
    assert_close(output_and_gradients(other, states, BATCH), output_and_gradients(model, states, BATCH), 1e-6)
