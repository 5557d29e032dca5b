"""Scoring with static shapes: compiled scores are those of the host, in few programs, on one device or several."""

import functools
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking_data import LAYOUT, TILE, built_model, learnable_layout, learnable_tile, scratch_folder, small_config
from tests.small_archives import write_tree
from tests.small_datasets import preprocess_here
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.static_graphs import (
    NUM_CLASSES,
    GraphSizes,
    find_class,
    pad_codes,
    pad_graph,
    size_classes,
)
from tpugraphs_polynormer.ranking.scorer import Scorer
from tpugraphs_polynormer.ranking.static_scoring import StaticScorer, scoring_functions, scoring_specs
from tpugraphs_polynormer.ranking.task import RankingTask

ROOT = Path(__file__).resolve().parents[2]
CROSS, MLP = "model.cross_candidates=pooled", "model.encoder=mlp"
VARIANTS = {
    "layout-late": (LAYOUT, "model.fusion=late"),
    "layout-early": (LAYOUT, "model.fusion=early", "model.encoder=graphsage"),
    "tile-late": (TILE, "model.fusion=late"),
    "tile-early": (TILE, "model.fusion=early", "model.encoder=graphsage"),
    "cross": (LAYOUT, "model.fusion=late", MLP, CROSS),
}


@functools.cache
def datasets() -> Path:
    """Both collections with a valid split of several size classes; 1, 21 and 37 candidates."""
    root = scratch_folder()
    sizes = ((40, 9, 21), (7, 2, 1), (9, 2, 37))  # nodes, config nodes, candidates
    layouts = {f"g{i}": learnable_layout(*each, seed=i) for i, each in enumerate(sizes)}
    tiles = {f"t{i}": learnable_tile(nodes, candidates, seed=i) for i, (nodes, _, candidates) in enumerate(sizes)}
    write_tree(root / "in", LAYOUT, {"train": {"a": learnable_layout(12, 3, 9, seed=7)}, "valid": layouts})
    write_tree(root / "in", TILE, {"train": {"a": learnable_tile(5, 9, seed=7)}, "valid": tiles})
    preprocess_here(root / "in", root / "out", LAYOUT, TILE)
    return root / "out"


def opened(name: str) -> RankingDataset:
    return RankingDataset(datasets() / name.replace(":", "/"))


def config_of(variant: str, *overrides: str):
    return small_config(*VARIANTS[variant], "model.num_local_layers=1", *overrides)


def score_all(scorer: Scorer, split) -> list[np.ndarray]:
    return [scorer.score_graph(split, number) for number in range(len(split))]


def block_of_16(*_) -> int:
    return 16


@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_scores_are_those_of_the_host_in_one_program_per_size_class(variant, monkeypatch):
    monkeypatch.setattr("tpugraphs_polynormer.ranking.scorer.block_size", block_of_16)
    config = config_of(variant)
    model, collection = built_model(config), opened(config.data.collection)
    split = collection.split("valid")
    host = Scorer(model, collection, candidates_per_group=5)
    static = StaticScorer(model, collection)
    compiled = Scorer(model, collection, candidates_per_group=5, static=static)
    expected, found = score_all(host, split), score_all(compiled, split)
    assert [len(each) for each in found] == [21, 1, 37], "not multiples of the block, and a single one"
    assert np.ptp(expected[0]) > 1e-4
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    classes = {static.padded_sizes(split, number) for number in range(len(split))}
    assert 1 < len(classes) <= NUM_CLASSES
    assert max(static.num_traces) <= len(classes), "one program for all blocks and graphs of a class"
    chosen = np.array([20, 0, 5])
    if variant != "cross":  # there, scores depend on the group
        np.testing.assert_allclose(compiled.score_graph(split, 0, chosen), expected[0][chosen], rtol=1e-4, atol=1e-5)
        assert max(static.num_traces) <= len(classes)
    split.close()


@pytest.mark.parametrize(
    "variant", [each if each.endswith("late") else pytest.param(each, marks=pytest.mark.slow) for each in VARIANTS]
)
def test_the_scoring_step_has_no_dynamic_dimension(variant):
    model = built_model(config_of(variant))
    sizes = GraphSizes(nodes=9, edges=11, config_nodes=4, config_edges=5, config_values=6)
    if model.kind == "tile":
        sizes = sizes._replace(config_nodes=3, config_edges=0)
    graph, block = scoring_specs(model.kind, sizes, 4)
    compiled = [tf.function(each, jit_compile=True, autograph=False) for each in scoring_functions(model)]
    (states,) = compiled[0].get_concrete_function(*graph).outputs
    states = tf.TensorSpec(states.shape, states.dtype)
    assert states.shape.is_fully_defined()
    for function, specs in zip(compiled, [graph, (states, *block, *graph)], strict=True):
        hlo = function.experimental_get_compiler_ir(*specs)(stage="hlo")
        assert "HloModule" in hlo and "<=" not in hlo


def test_padding_of_graphs_and_blocks_changes_no_score():
    model, collection = built_model(config_of("cross")), opened(LAYOUT)
    split = collection.split("valid")
    encode, score = scoring_functions(model)
    record, codes = split.read_record(2), split.read_codes(2, np.arange(4)).T.astype(np.int32)
    tight = find_class(size_classes("layout", split.graphs[2:]), GraphSizes.of(split.graphs[2]), "layout")

    def scores_of(sizes: GraphSizes, codes: np.ndarray, fill: float) -> np.ndarray:
        padded = pad_graph("layout", record, sizes)
        padded.features[padded.counts[0] :] = fill  # whatever padding holds
        padded.config_values[split.graphs[2].num_config_values :] = 2 * fill % 6
        graph = [tf.constant(each) for each in padded.flat]
        mask = np.arange(codes.shape[1]) < 4
        return score(encode(*graph), pad_codes(codes, sizes), tf.constant(mask), *graph).numpy()[:4]

    expected = scores_of(tight, codes, 0.0)
    large = GraphSizes(*(each + 7 for each in tight))
    for others in (codes[:, :3], codes[:, ::-1]):
        found = scores_of(large, np.concatenate([codes, others], 1), 5.0)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    split.close()


def test_classes_halve_and_each_graph_takes_the_smallest_that_fits():
    entries = opened(LAYOUT).split("valid").graphs
    classes = size_classes("layout", entries)
    assert len(classes) <= NUM_CLASSES
    largest = GraphSizes(*map(max, zip(*map(GraphSizes.of, entries), strict=True)))
    assert classes[-1] == largest._replace(
        nodes=largest.nodes + 1, config_nodes=largest.config_nodes + 1, config_values=largest.config_values + 1
    )
    for small, large in itertools.pairwise(classes):
        assert all(0 <= 2 * one - other <= 2 for one, other in zip(small, large, strict=True))
    assert find_class(classes, GraphSizes.of(entries[0]), "layout") == classes[-1]
    for entry in entries[1:]:
        found = classes.index(find_class(classes, GraphSizes.of(entry), "layout"))
        room = [each - padding for each, padding in zip(classes[found - 1], (1, 0, 1, 0, 1), strict=True)]
        assert found < len(classes) - 1
        assert not found or any(size > each for size, each in zip(GraphSizes.of(entry), room, strict=True))
    kernels = opened(TILE).split("valid").graphs
    found = {find_class(size_classes("tile", kernels), GraphSizes.of(each), "tile").config_nodes for each in kernels}
    assert found == {3}, "a tile graph has no padding config node"


def test_the_task_compiles_where_training_is_compiled():
    plain, static = config_of("cross"), config_of("cross", "data.static_shapes=true")
    compiled = config_of("cross", "data.static_shapes=true", "training.jit_compile=true")
    used = [RankingTask(each, opened(LAYOUT)).make_scorer()._static is not None for each in (plain, static, compiled)]
    assert used == [False, False, True]
    task = RankingTask(compiled, opened(LAYOUT))
    host = Scorer(task.model, task.collection, candidates_per_group=4, seed=compiled.seed)
    assert task.evaluate()["valid"]["opa"] == pytest.approx(_opa(task, host), abs=1e-6)


def _opa(task: RankingTask, scorer: Scorer) -> float:
    task._scorer = scorer
    return task.evaluate()["valid"]["opa"]


_TWO_DEVICES = """
import sys
import numpy as np
import tpugraphs_polynormer
from tpugraphs_polynormer.training.distribution import make_strategy
strategy = make_strategy("cpu", num_devices=2)
from pathlib import Path
from tests.ranking import test_static_scoring as tests
from tpugraphs_polynormer.ranking import scorer as scoring
folder = Path(sys.argv[1])
tests.datasets = lambda: folder
scoring.block_size = lambda config, nodes, met, candidates: 8
for variant in ("layout-late", "layout-early", "cross"):
    config = tests.config_of(variant)
    with strategy.scope():
        task = tests.RankingTask(config, tests.opened(config.data.collection))
    random = np.random.default_rng(0)
    for variable in task.model.trainable_variables:
        variable.assign_add(random.normal(scale=0.1, size=variable.shape).astype(np.float32))
    split = task.collection.split("valid")
    settings = {"candidates_per_group": 5}
    static = tests.StaticScorer(task.model, task.collection, jit_compile=False, strategy=strategy)
    assert static.num_replicas == 2
    several = tests.score_all(tests.Scorer(task.model, task.collection, static=static, **settings), split)
    host = tests.score_all(tests.Scorer(task.model, task.collection, **settings), split)
    for one, other in zip(several, host, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert np.ptp(host[2]) > 1e-4
    assert max(static.num_traces) <= 3, static.num_traces
    print(variant, "equal")
"""


@pytest.mark.slow
def test_two_devices_give_the_scores_of_one():
    done = subprocess.run(
        [sys.executable, "-c", _TWO_DEVICES, str(datasets())], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.stdout.count("equal") == 3, done.stderr[-3000:]
