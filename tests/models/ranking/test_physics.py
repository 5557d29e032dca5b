"""Models that know the cost model: invariant as all others, and before training exactly the cost model."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.models.ranking.test_model import assert_same, reorder_ops, run
from tests.ranking_data import LAYOUT, TILE, small_config
from tests.simulated_data import simulated
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.datasets.input_pipeline import make_training_dataset
from tpugraphs_polynormer.datasets.static_graphs import GraphSizes
from tpugraphs_polynormer.ranking.baselines import CostScorer
from tpugraphs_polynormer.ranking.metrics import rank_candidates
from tpugraphs_polynormer.ranking.scorer import Scorer
from tpugraphs_polynormer.ranking.static_scoring import StaticScorer, scoring_functions, scoring_specs
from tpugraphs_polynormer.ranking.task import DatasetFacts, RankingTask, build_ranking_model
from tpugraphs_polynormer.ranking.traced_steps import blank_batch

KINDS = [(LAYOUT, "late", "polynormer"), (LAYOUT, "early", "graphsage"), (TILE, "late", "gcn"), (TILE, "early", "gcn")]
RESIDUALS = [(*each, "residual") for each in KINDS]
VARIANTS = [(*KINDS[0], "features"), *RESIDUALS]  # a residual has the features too
STATIC = "data.static_shapes=true"


def config_of(name: str, fusion: str, encoder: str, physics: str, *overrides: str):
    model = f"model.fusion={fusion}", f"model.encoder={encoder}", f"model.physics={physics}"
    return small_config(name, *model, *overrides)


@functools.cache
def batch_of(name: str, *overrides: str, step: int = 0):
    data = small_config(name, *overrides).data
    return next(iter(make_training_dataset(simulated(name), data, seed=3, start_step=step, physics=True)))


@functools.cache
def model_of(*arguments: str, moved: bool = True):
    """A model with all variables; `moved` weights are off their special values."""
    tf.keras.utils.set_random_seed(0)
    config = config_of(*arguments)
    model = build_ranking_model(config, DatasetFacts.of(simulated(arguments[0]).manifest))
    model(batch_of(arguments[0]), training=False)
    random = np.random.default_rng(0)
    for variable in model.trainable_variables if moved else ():
        variable.assign_add(random.normal(scale=0.1, size=variable.shape).astype(np.float32))
    return model


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_padding_changes_nothing(variant):
    plain, padded = batch_of(variant[0]), batch_of(variant[0], STATIC)
    assert padded.num_components != plain.num_components
    assert_same(run(model_of(*variant), padded), run(model_of(*variant), plain))


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_a_batch_is_its_graphs_one_at_a_time(variant):
    one = "data.graphs_per_batch=1"
    parts = [run(model_of(*variant), batch_of(variant[0], one, step=step)) for step in (0, 1)]
    gradients = [sum(pair) for pair in zip(parts[0][1], parts[1][1], strict=True)]
    together = np.concatenate([parts[0][0], parts[1][0]]), gradients
    assert_same(run(model_of(*variant), batch_of(variant[0])), together)


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_scores_follow_the_order_of_the_candidates(variant):
    graph, order = batch_of(variant[0]), np.array([2, 0, 3, 1])
    context = {name: tf.gather(value, order, axis=1) for name, value in graph.context.features.items()}
    nconfigs = graph.node_sets["nconfig"].features
    moved = {name: tf.gather(nconfigs[name], order, axis=1) for name in ("codes", "physics") if name in nconfigs}
    shuffled = graph.replace_features(context=context, node_sets={"nconfig": {**nconfigs, **moved}})
    expected, found = (model_of(*variant)(each).numpy() for each in (graph, shuffled))
    np.testing.assert_allclose(found, expected[:, order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", RESIDUALS, ids="-".join)
def test_the_order_of_the_instructions_does_not_matter(variant):
    graph = batch_of(variant[0], "data.graphs_per_batch=1")
    order = np.random.default_rng(0).permutation(graph.node_sets["op"].total_size.numpy())
    assert_same(run(model_of(*variant), reorder_ops(graph, order)), run(model_of(*variant), graph))


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_what_the_cost_model_says_changes_the_scores(variant):
    graph, model = batch_of(variant[0]), model_of(*variant)
    blind = graph.replace_features(context={**graph.context.features, "physics": 0 * graph.context["physics"]})
    assert np.abs(model(graph) - model(blind)).max() > 1e-3
    if variant[0] == LAYOUT:
        nconfigs = graph.node_sets["nconfig"].features
        blind = graph.replace_features(node_sets={"nconfig": {**nconfigs, "physics": 0 * nconfigs["physics"]}})
        assert np.abs(model(graph) - model(blind)).max() > 1e-5


@pytest.mark.parametrize("variant", RESIDUALS, ids="-".join)
def test_an_untrained_residual_ranks_exactly_as_the_cost_model(variant):
    model, collection = model_of(*variant, moved=False), simulated(variant[0])
    np.testing.assert_array_equal(model(batch_of(variant[0])), -batch_of(variant[0]).context["physics"][..., 0])
    split = collection.split("valid")
    for number in range(len(split)):
        found = Scorer(model, collection, candidates_per_group=4).score_graph(split, number)
        expected = CostScorer().score_graph(split, number)
        np.testing.assert_array_equal(rank_candidates(found), rank_candidates(expected.astype(np.float32)))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_scale_of_the_cost_model_is_learned_and_stays_positive():
    model = model_of(LAYOUT, "late", "polynormer", "residual", moved=False)
    _, gradients = run(model, batch_of(LAYOUT))
    by_name = dict(zip((each.name for each in model.trainable_variables), gradients, strict=True))
    (scale,) = (gradient for name, gradient in by_name.items() if "raw_scale" in name)
    assert abs(scale) > 1e-6
    (output,) = (gradient for name, gradient in by_name.items() if "output/" in name)
    assert np.abs(output).max() > 1e-6, "the correction learns although it starts at 0"
    assert float(tf.nn.softplus(model.residual.raw_scale)) == pytest.approx(1)


@pytest.mark.parametrize("variant", RESIDUALS[:3], ids="-".join)
def test_compiled_scores_are_those_of_the_host_block_by_block(variant, monkeypatch):
    monkeypatch.setattr("tpugraphs_polynormer.ranking.scorer.block_size", lambda *_: 8)
    model, collection = model_of(*variant), simulated(variant[0])
    split, group = collection.split("valid"), {"candidates_per_group": 4}
    host = Scorer(model, collection, **group)
    compiled = Scorer(model, collection, **group, static=StaticScorer(model, collection))
    for number in range(len(split)):
        expected = host.score_graph(split, number)
        assert np.ptp(expected) > 1e-4
        np.testing.assert_allclose(compiled.score_graph(split, number), expected, rtol=1e-4, atol=1e-4)
        chosen = np.array([5, 0, 3])
        np.testing.assert_allclose(host.score_graph(split, number, chosen), expected[chosen], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", RESIDUALS[::2], ids="-".join)
def test_static_steps_know_the_shapes_of_physics(variant):
    model = model_of(*variant)
    sizes = GraphSizes(nodes=9, edges=11, config_nodes=4, config_edges=5, config_values=6)
    if model.kind == "tile":
        sizes = sizes._replace(config_nodes=3, config_edges=0)
    graph, drawn = scoring_specs(model.kind, sizes, 4, physics=True)
    encode, score = (tf.function(each, jit_compile=True, autograph=False) for each in scoring_functions(model))
    (states,) = encode.get_concrete_function(*graph).outputs
    assert score.get_concrete_function(tf.TensorSpec(states.shape, states.dtype), *drawn, *graph).outputs[0].shape == [
        4
    ]
    limits = {"nodes": 9, "edges": 11, "config_nodes": 4, "config_edges": 5, "config_values": 6}
    blank = blank_batch(model.kind, limits, 2, 4, physics=True)
    real = batch_of(variant[0], STATIC)
    assert set(blank.context.features) == set(real.context.features)
    assert set(blank.node_sets["nconfig"].features) == set(real.node_sets["nconfig"].features)
    assert np.isfinite(model(blank)).all()


def test_without_physics_a_batch_has_none_and_a_model_says_what_it_misses():
    config = small_config(LAYOUT)
    plain = next(iter(make_training_dataset(simulated(LAYOUT), config.data, seed=3)))
    assert "physics" not in plain.context.features and "physics" not in plain.node_sets["nconfig"].features
    model = build_ranking_model(config, DatasetFacts.of(simulated(LAYOUT).manifest))
    model(plain)
    assert not any("physics" in each.name or "residual" in each.name for each in model.variables)
    with pytest.raises(ValueError, match="make it with physics=True"):
        model_of(LAYOUT, "late", "polynormer", "features")(plain)


def test_a_batch_draws_the_same_candidates_with_and_without_physics():
    config = small_config(LAYOUT)
    plain = next(iter(make_training_dataset(simulated(LAYOUT), config.data, seed=3)))
    np.testing.assert_array_equal(plain.context["costs"], batch_of(LAYOUT).context["costs"])
    np.testing.assert_array_equal(plain.node_sets["nconfig"]["codes"], batch_of(LAYOUT).node_sets["nconfig"]["codes"])


@pytest.mark.parametrize("name", [LAYOUT, TILE])
def test_the_model_without_encoder_is_the_cost_model(name):
    config = load_config(None, [f"data.collection={name}", "model.encoder=none"])
    task = RankingTask(config, simulated(name))
    assert not task.model.trainable_variables
    graph = batch_of(name)
    np.testing.assert_array_equal(task.model(graph), -graph.context["physics"][..., 0])
    split = simulated(name).split("valid")
    scores, costs = task.make_scorer().score_graph(split, 0), split.read_column(0, "runtimes")
    assert np.corrcoef(scores, costs)[0, 1] < -0.5, "simulated runtimes are its own, up to noise"


def test_bfloat16_keeps_the_order_of_the_cost_model():
    variant = (LAYOUT, "late", "polynormer", "residual")
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        half = build_ranking_model(config_of(*variant), DatasetFacts.of(simulated(LAYOUT).manifest))
        scores = half(batch_of(LAYOUT))
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    np.testing.assert_array_equal(scores, -batch_of(LAYOUT).context["physics"][..., 0])
