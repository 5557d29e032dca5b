"""The ranking model: scores do not depend on padding, batching and order, with and without XLA."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tests.ranking_data import COLLECTIONS, LAYOUT, TILE, built_model, collection, first_batch, small_config
from tpugraphs_polynormer.datasets.input_pipeline import with_codes
from tpugraphs_polynormer.models.ranking.batch import unpack_batch
from tpugraphs_polynormer.ranking.task import DatasetFacts, RankingTask, build_ranking_model
from tpugraphs_polynormer.training.losses import build_loss
from tpugraphs_polynormer.training.optimizers import build_optimizer
from tpugraphs_polynormer.training.trainer import Learner

ENCODERS = ("polynormer", "polynormer-local", "graphsage", "gcn", "gat", "mlp")
VARIANTS = [(name, fusion, encoder) for name in COLLECTIONS for fusion in ("early", "late") for encoder in ENCODERS]
STATIC = "data.static_shapes=true"
CROSS = "model.cross_candidates=pooled"


def config_of(name: str, fusion: str, encoder: str, *overrides: str):
    return small_config(name, f"model.fusion={fusion}", f"model.encoder={encoder}", *overrides)


@functools.cache
def model_of(*arguments: str):
    return built_model(config_of(*arguments))


def run(model, graph) -> tuple[np.ndarray, list[np.ndarray]]:
    """The scores of the unmasked candidates, concatenated, and the gradients of the summed loss."""
    loss = build_loss(small_config().loss.weights)
    mask = graph.context["candidate_mask"]
    with tf.GradientTape() as tape:
        scores = model(graph, training=True)
        total = tf.reduce_sum(loss(graph.context["costs"], scores, mask))
    gradients = tape.gradient(total, model.trainable_variables, unconnected_gradients="zero")
    return scores.numpy()[mask.numpy()], [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


def assert_same(found, expected) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=2e-5)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=3e-5 * max(1, np.abs(other).max()))


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_padding_changes_nothing(variant):
    model, (plain, padded) = model_of(*variant), (first_batch(config_of(*variant, *extra)) for extra in ((), (STATIC,)))
    assert padded.num_components != plain.num_components
    assert_same(run(model, padded), run(model, plain))


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_a_batch_is_its_graphs_one_at_a_time(variant):
    model = model_of(*variant)
    one = config_of(*variant, "data.graphs_per_batch=1")
    parts = [run(model, first_batch(one, step)) for step in (0, 1)]
    gradients = [sum(pair) for pair in zip(parts[0][1], parts[1][1], strict=True)]
    together = np.concatenate([parts[0][0], parts[1][0]]), gradients
    assert_same(run(model, first_batch(config_of(*variant))), together)


def reorder_candidates(graph: tfgnn.GraphTensor, order: np.ndarray) -> tfgnn.GraphTensor:
    context = {name: tf.gather(graph.context[name], order, axis=1) for name in ("costs", "candidate_mask")}
    codes = tf.gather(graph.node_sets["nconfig"]["codes"], order, axis=1)
    return with_codes(graph.replace_features(context=context), codes)


@pytest.mark.parametrize("extra", [(), (CROSS,)], ids=["alone", "cross"])
@pytest.mark.parametrize("fusion", ["early", "late"])
@pytest.mark.parametrize("name", COLLECTIONS)
def test_scores_follow_the_order_of_the_candidates(name, fusion, extra):
    variant = (name, fusion, "polynormer", *extra)
    graph, order = first_batch(config_of(*variant)), np.array([2, 0, 3, 1])
    expected = model_of(*variant)(graph).numpy()
    assert np.ptp(expected, axis=1).min() > 1e-5, "candidates are told apart"
    found = model_of(*variant)(reorder_candidates(graph, order)).numpy()
    np.testing.assert_allclose(found, expected[:, order], rtol=1e-4, atol=1e-5)


def reorder_ops(graph: tfgnn.GraphTensor, order: np.ndarray) -> tfgnn.GraphTensor:
    """The same program with its instructions in another order; edges are sorted by consumer, as in datasets."""
    places = np.argsort(order)
    ops = graph.node_sets["op"]
    features = {name: tf.gather(value, order) for name, value in ops.features.items()}
    feeds = graph.edge_sets["feed"].adjacency
    source, target = places[feeds.source.numpy()], places[feeds.target.numpy()]
    sort = np.lexsort((source, target))
    edges = {"feed": _edge_set(("op", source[sort]), ("op", target[sort]))}
    if "config" in graph.edge_sets:
        decides = graph.edge_sets["config"].adjacency
        edges["config"] = _edge_set(("nconfig", decides.source.numpy()), ("op", places[decides.target.numpy()]))
        edges["meet"] = graph.edge_sets["meet"]
    node_sets = dict(graph.node_sets) | {"op": tfgnn.NodeSet.from_fields(sizes=ops.sizes, features=features)}
    return tfgnn.GraphTensor.from_pieces(context=graph.context, node_sets=node_sets, edge_sets=edges)


def _edge_set(source: tuple, target: tuple) -> tfgnn.EdgeSet:
    ends = [(name, tf.constant(ids, tf.int32)) for name, ids in (source, target)]
    return tfgnn.EdgeSet.from_fields(sizes=tf.constant([len(source[1])]), adjacency=tfgnn.Adjacency.from_indices(*ends))


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v[2] in ("polynormer", "graphsage", "gcn")], ids="-".join)
def test_the_order_of_the_instructions_does_not_matter(variant):
    model, graph = model_of(*variant), first_batch(config_of(*variant, "data.graphs_per_batch=1"))
    order = np.random.default_rng(0).permutation(graph.node_sets["op"].total_size.numpy())
    assert_same(run(model, reorder_ops(graph, order)), run(model, graph))


@pytest.mark.parametrize("name", COLLECTIONS)
@pytest.mark.parametrize("fusion", ["early", "late"])
def test_encode_then_score_is_call(name, fusion):
    model, graph = model_of(name, fusion, "polynormer"), first_batch(config_of(name, fusion, "polynormer"))
    batch = unpack_batch(graph)
    np.testing.assert_allclose(model.score(batch, model.encode(batch)).numpy(), model(graph).numpy(), atol=1e-6)


@pytest.mark.parametrize("readout", ["mean", "weighted", "config_nodes"])
def test_other_readouts_are_padded_and_batched_exactly_too(readout):
    extra = f"model.readout={readout}"
    for fusion in ("early", "late"):
        model = model_of(LAYOUT, fusion, "gcn", extra)
        plain, padded = (first_batch(config_of(LAYOUT, fusion, "gcn", extra, *more)) for more in ((), (STATIC,)))
        assert_same(run(model, padded), run(model, plain))


def test_masked_candidates_are_unseen_and_the_others_seen_across_candidates():
    """Graphs have at most 43 candidates and the config asks for 50, so the last columns are masked."""
    variant = (LAYOUT, "late", "mlp", CROSS)
    graph = first_batch(config_of(*variant, "data.candidates_per_graph=50"))
    mask = graph.context["candidate_mask"].numpy()
    assert not mask[:, -1].any() and mask[:, 0].all()
    model = model_of(*variant)
    codes = graph.node_sets["nconfig"]["codes"].numpy()
    before = model(graph).numpy()
    for column, sees in ((49, False), (0, True)):
        changed = codes.copy()
        changed[:, column] = codes[:, 1]
        after = model(with_codes(graph, tf.constant(changed))).numpy()
        rest = mask.copy()
        rest[:, column] = False
        assert (np.abs(after - before)[rest].max() > 1e-5) == sees


def test_reload_gives_the_same_scores(tmp_path):
    variant = (LAYOUT, "late", "polynormer", CROSS)
    graph = first_batch(config_of(*variant))
    model_of(*variant).save_weights(tmp_path / "model.weights.h5")
    other = built_model(config_of(*variant), seed=1)
    expected = model_of(*variant)(graph).numpy()
    assert np.abs(other(graph).numpy() - expected).max() > 1e-3
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other(graph).numpy(), expected)


def test_bfloat16_is_finite_and_close():
    variant = (LAYOUT, "late", "polynormer")
    graph, model = first_batch(config_of(*variant)), model_of(*variant)
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        half = build_ranking_model(config_of(*variant), DatasetFacts.of(collection(LAYOUT).manifest))
        half(graph)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    half.set_weights(model.get_weights())
    scores, gradients = run(half, graph)
    expected, _ = run(model, graph)
    assert scores.dtype == np.float32
    assert half.encoder.compute_dtype == "bfloat16" and np.abs(scores - expected).max() > 0
    np.testing.assert_allclose(scores, expected, atol=0.05 * np.abs(expected).max())
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_dropout_acts_in_training_only():
    variant = (LAYOUT, "late", "polynormer", "model.dropout_rate=0.5", "model.input_dropout_rate=0.5")
    graph, model = first_batch(config_of(*variant)), model_of(*variant)
    np.testing.assert_array_equal(model(graph, training=False).numpy(), model(graph).numpy())
    first, second = (model(graph, training=True).numpy() for _ in range(2))
    assert np.abs(first - second).max() > 1e-4


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_static_batch_holds_no_string_no_ragged_and_no_unknown_size(name):
    batches = [first_batch(small_config(name, STATIC), step) for step in range(3)]
    specs = {tuple(map(str, tf.nest.flatten(batch.spec, expand_composites=True))) for batch in batches}
    assert len(specs) == 1, "every batch has the same sizes"
    for spec in tf.nest.flatten(batches[0].spec, expand_composites=True):
        assert isinstance(spec, tf.TensorSpec) and spec.dtype != tf.string and spec.shape.is_fully_defined(), spec


def learner_of(config) -> Learner:
    tf.keras.utils.set_random_seed(0)
    learner = Learner(RankingTask(config, collection(config.data.collection)), 1)
    learner.compile(optimizer=build_optimizer(config.training, 4))
    learner.optimizer.build(learner.task.model.trainable_variables)
    return learner


def train_two_steps(config, jit_compile: bool) -> tuple[list[float], list[np.ndarray], str]:
    """The losses and weights of two training steps and, if compiled, the HLO of the step."""
    learner = learner_of(config)
    batches = [first_batch(config, step) for step in (0, 1)]
    flat = [tf.nest.flatten(batch, expand_composites=True) for batch in batches]

    @tf.function(jit_compile=jit_compile)
    def step(*tensors):
        learner._mean_loss.reset_state()
        return learner.train_step(tf.nest.pack_sequence_as(batches[0].spec, tensors, expand_composites=True))["loss"]

    hlo = step.experimental_get_compiler_ir(*flat[0])(stage="hlo") if jit_compile else ""
    losses = [float(step(*tensors)) for tensors in flat]
    return losses, learner.task.model.get_weights(), hlo


XLA_VARIANTS = [
    (LAYOUT, "late", "polynormer", CROSS),
    pytest.param((LAYOUT, "early", "polynormer"), marks=pytest.mark.slow),
    pytest.param((TILE, "early", "graphsage"), marks=pytest.mark.slow),
    pytest.param((TILE, "late", "polynormer"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("variant", XLA_VARIANTS, ids="-".join)
def test_the_whole_training_step_compiles_to_static_shapes_and_learns_the_same(variant):
    check_compiled_training(variant)


def check_compiled_training(variant: tuple[str, ...]) -> None:
    """Two compiled steps have static shapes, and the losses and weights of two uncompiled ones."""
    config = config_of(*variant, STATIC, "model.num_local_layers=1", "training.learning_rate=0.001")
    losses, weights, _ = train_two_steps(config, jit_compile=False)
    compiled_losses, compiled_weights, hlo = train_two_steps(config, jit_compile=True)
    assert "<=" not in hlo and "HloModule" in hlo
    np.testing.assert_allclose(compiled_losses, losses, rtol=1e-4)
    for one, other in zip(compiled_weights, weights, strict=True):
        # Adam's first steps follow the sign of the gradient; for a gradient of 0 up to rounding, steps may be opposite.
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2.1e-3)
        assert np.mean(np.abs(one - other) > 1e-4) < 0.1
