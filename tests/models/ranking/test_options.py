"""Options of the ranking model: each keeps what every model keeps, in either fusion and with every encoder."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.ranking.test_model import (
    STATIC,
    assert_same,
    check_compiled_training,
    config_of,
    model_of,
    reorder_candidates,
    reorder_ops,
    run,
)
from tests.ranking_data import LAYOUT, TILE, built_model, collection, first_batch, small_config
from tests.simulated_data import simulated_datasets
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.datasets.input_pipeline import iterate_blocks, with_codes
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.models.ranking.model import RankingModel
from tpugraphs_polynormer.ranking import scorer as scoring
from tpugraphs_polynormer.ranking.scorer import Scorer
from tpugraphs_polynormer.ranking.static_scoring import StaticScorer
from tpugraphs_polynormer.ranking.task import DatasetFacts, build_ranking_model, train_ranking

NODES = "model.cross_candidates=nodes"
AGREEMENT = "model.layout_agreement=true"
OF_LAYOUTS = ("model.layout_features=dimensions", "model.size_features=tiles", AGREEMENT)
OPTIONS = (
    NODES,
    "model.graph_norm=true",
    "model.squeeze_excite=true",
    "model.directed=true",
    "model.max_readout=true",
    "model.operand_features=true",
    "model.layout_features=position",
    "model.layout_features=both",
    *OF_LAYOUTS,
)
OPERANDS = "operand_features=true"
TOGETHER = "all"  # every option that any kind and encoder can have
ALL = (NODES, "model.graph_norm=true", "model.squeeze_excite=true", "model.directed=true", "model.max_readout=true")
NAMES = [*(each.removeprefix("model.") for each in OPTIONS), TOGETHER]
# Encoders differ in how they apply options; every option meets every kind of fusion and collection.
BASES = [(LAYOUT, "late", "polynormer"), (LAYOUT, "early", "graphsage"), (TILE, "early", "polynormer-local")]
OTHERS = [(LAYOUT, "early", "polynormer"), (LAYOUT, "late", "gat"), (TILE, "late", "graphsage"), (TILE, "late", "gcn")]


def settings(name: str) -> tuple[str, ...]:
    return ALL if name == TOGETHER else (f"model.{name}",)


def is_read(base: tuple[str, str, str], name: str) -> bool:
    return base[0] == LAYOUT or f"model.{name}" not in OF_LAYOUTS


def slow(variant: tuple[str, ...]):
    return pytest.param(variant, marks=pytest.mark.slow)


# All together, and each alone among the slow tests; operands are an input of their own.
VARIANTS = [(*base, TOGETHER) for base in BASES]
VARIANTS += [(LAYOUT, "early", "graphsage", OPERANDS), (TILE, "early", "polynormer-local", OPERANDS)]
VARIANTS += [(LAYOUT, "late", "polynormer", "readout_sizes=true")]  # of late fusion and layouts only
VARIANTS += [
    slow((*base, name))
    for base in BASES
    for name in NAMES[:-1]
    if is_read(base, name) and (*base, name) not in VARIANTS
]
VARIANTS += [slow((*base, TOGETHER)) for base in OTHERS]
LAYOUT_VARIANTS = [each for each in VARIANTS if (each if isinstance(each, tuple) else each.values[0])[0] == LAYOUT]


def split_variant(variant: tuple[str, ...]) -> tuple[str, ...]:
    return (*variant[:3], *settings(variant[3]))


def batches(variant: tuple[str, ...], *extras: str):
    return first_batch(config_of(*variant, *extras))


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_padding_changes_nothing_and_the_option_something(variant):
    variant = split_variant(variant)
    model, plain = model_of(*variant), batches(variant)
    found = run(model, plain)
    assert_same(run(model, batches(variant, STATIC)), found)
    assert np.ptp(found[0]) > 1e-5 and all(np.isfinite(gradient).all() for gradient in found[1])
    default = model_of(*variant[:3])
    is_wider = [each.shape for each in model.weights] != [each.shape for each in default.weights]
    assert is_wider or variant[3] == "model.layout_features=position", "the option has weights, or another input"


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_a_batch_is_its_graphs_one_at_a_time(variant):
    variant = split_variant(variant)
    parts = [run(model_of(*variant), first_batch(config_of(*variant, "data.graphs_per_batch=1"), i)) for i in (0, 1)]
    gradients = [sum(pair) for pair in zip(parts[0][1], parts[1][1], strict=True)]
    assert_same(run(model_of(*variant), batches(variant)), (np.concatenate([parts[0][0], parts[1][0]]), gradients))


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_neither_the_order_of_candidates_nor_of_instructions_matters(variant):
    variant = split_variant(variant)
    model, graph = model_of(*variant), batches(variant, "data.graphs_per_batch=1")
    expected, order = model(graph).numpy(), np.array([2, 0, 3, 1])
    found = model(reorder_candidates(graph, order)).numpy()
    np.testing.assert_allclose(found, expected[:, order], rtol=1e-4, atol=1e-5)
    order = np.random.default_rng(0).permutation(graph.node_sets["op"].total_size.numpy())
    np.testing.assert_allclose(model(reorder_ops(graph, order)).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", LAYOUT_VARIANTS, ids="-".join)
def test_blocks_and_compiled_programs_give_the_scores_of_the_whole(variant, monkeypatch):
    """With candidates that see each other, of one group."""
    variant = split_variant(variant)
    split, crossed = collection(LAYOUT).split("valid"), NODES in variant
    total = split.graphs[0].num_candidates
    model = model_of(*variant)
    whole = next(iter(iterate_blocks(collection(LAYOUT), split, 0, total)))
    expected = model(whole.graph).numpy()[0]
    group = {"candidates_per_group": total if crossed else 7}
    monkeypatch.setattr(scoring, "block_size", lambda *_: 7)
    static = StaticScorer(model, collection(LAYOUT), jit_compile=False)
    for scorer in (
        Scorer(model, collection(LAYOUT), **group),
        Scorer(model, collection(LAYOUT), **group, static=static),
    ):
        np.testing.assert_allclose(scorer.score_graph(split, 0), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [TOGETHER, *(each[6:] for each in OF_LAYOUTS)])
def test_the_compiled_training_step_is_static_and_learns_the_same(name):
    check_compiled_training((LAYOUT, "late", "polynormer", *settings(name)))


@pytest.mark.parametrize("name", [TOGETHER, *map(slow, NAMES[:-1])])
def test_reload_gives_the_same_scores(name, tmp_path):
    variant = (LAYOUT, "late", "polynormer", *settings(name))
    graph, model = batches(variant), model_of(*variant)
    expected = model(graph).numpy()
    model.save_weights(tmp_path / "model.weights.h5")
    other = built_model(config_of(*variant), seed=1)
    assert np.abs(other(graph).numpy() - expected).max() > 1e-3
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other(graph).numpy(), expected)
    copy = RankingModel.from_config(model.get_config())
    copy(graph)
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy(graph).numpy(), expected)


@pytest.mark.parametrize("fusion", ["early", "late"])
def test_masked_candidates_are_unseen_and_the_others_seen_at_nodes(fusion):
    variant = (LAYOUT, fusion, "polynormer", NODES)
    graph = batches(variant, "data.candidates_per_graph=50")
    mask, codes = graph.context["candidate_mask"].numpy(), graph.node_sets["nconfig"]["codes"].numpy()
    assert not mask[:, -1].any() and mask[:, 0].all()
    before = model_of(*variant)(graph).numpy()
    for column, sees in ((49, False), (0, True)):
        changed = codes.copy()
        changed[:, column] = codes[:, 1]
        after = model_of(*variant)(with_codes(graph, tf.constant(changed))).numpy()
        rest = mask.copy()
        rest[:, column] = False
        assert (np.abs(after - before)[rest].max() > 1e-5) == sees


def test_all_of_them_in_joint_attention_and_in_segments():
    joint = (LAYOUT, "late", "polynormer", "model.attention=local_and_global", *ALL)
    assert_same(run(model_of(*joint), batches(joint, STATIC)), run(model_of(*joint), batches(joint)))
    segments = (LAYOUT, "early", "gcn", "model.segment_nodes=100", *ALL)
    model, graph = model_of(*segments), batches(segments)
    np.testing.assert_allclose(model(graph, training=True), model(graph), rtol=1e-4, atol=1e-5, err_msg="one segment")


@pytest.mark.parametrize("options", [(*ALL, *OF_LAYOUTS[:2]), (AGREEMENT,)], ids=["all", "agreement"])
def test_all_of_them_in_bfloat16(options):
    variant = (LAYOUT, "late", "polynormer", *options)
    model, graph = model_of(*variant), batches(variant)
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        half = build_ranking_model(config_of(*variant), DatasetFacts.of(collection(LAYOUT).manifest))
        half(graph)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    half.set_weights(model.get_weights())
    (scores, gradients), (expected, _) = run(half, graph), run(model, graph)
    np.testing.assert_allclose(scores, expected, atol=0.2 * np.abs(expected).max())
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_directed_edges_tell_a_program_from_its_reverse():
    for name in ("false", "true"):
        variant = (TILE, "late", "gcn", f"model.directed={name}")
        graph = batches(variant, "data.graphs_per_batch=1")
        feeds = graph.edge_sets["feed"].adjacency
        ends = {0: ("op", feeds.target), 1: ("op", feeds.source)}
        pieces = {"context": graph.context, "node_sets": graph.node_sets}
        edge_set = type(graph.edge_sets["feed"]).from_fields(
            sizes=graph.edge_sets["feed"].sizes, adjacency=type(feeds).from_indices(*ends.values())
        )
        turned = type(graph).from_pieces(**pieces, edge_sets=dict(graph.edge_sets) | {"feed": edge_set})
        difference = np.abs(model_of(*variant)(turned).numpy() - model_of(*variant)(graph).numpy()).max()
        assert (difference > 1e-5) == (name == "true")


@pytest.mark.parametrize(
    "overrides, words",
    [
        (("model.encoder=mlp", "model.directed=true"), "model.directed: found True, but model.encoder mlp has no such"),
        *(
            (
                ("model.encoder=graphsage", f"model.{name}=true"),
                f"model.{name}: found True, but model.encoder graphsage",
            )
            for name in ("residual", "pre_norm", "post_norm", "post_layer_norm", "jumping_sum")
        ),
        (("model.features=raw", "model.size_features=tiles"), "size_features: found 'tiles', but it is read only with"),
        (("model.features=raw", "model.layout_features=both"), "layout_features: found 'both', but it is read only"),
        (
            ("model.num_groupings=2",),
            "num_groupings: found 2, but it is read only with cross_candidates=pooled or nodes",
        ),
        (("model.fusion=early", "model.readout=official", "model.max_readout=true"), "max_readout=false"),
        (("model.fusion=early", "model.readout=official", NODES), "cross_candidates=none"),
        (("model.cross_candidates=true",), "cross_candidates"),
    ],
)
def test_combinations_that_a_model_would_ignore_are_refused(overrides, words):
    with pytest.raises(ConfigError, match=words):
        built_model(small_config(LAYOUT, *overrides))


@pytest.mark.parametrize("option", OF_LAYOUTS)
def test_tile_kernels_have_no_layouts(option):
    with pytest.raises(ConfigError, match="it is read only with layout collections"):
        built_model(small_config(TILE, option))


def test_operand_features_need_graphs_that_have_operands(tmp_path):
    config = small_config(LAYOUT, "model.operand_features=true")
    with pytest.raises(DatasetError, match="found no train graph with operands; make the arch"):
        train_ranking(config, simulated_datasets(), tmp_path, strategy=tf.distribute.get_strategy())
