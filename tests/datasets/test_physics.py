"""What the cost model knows of stored candidates: as priced from the archive, bounded, of each candidate alone."""

import logging
import pickle

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests.simulated_data import simulated, simulated_archive
from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import LAYOUT, TILE, preprocess_here
from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.datasets.physics import (
    NUM_CANDIDATE_PHYSICS,
    NUM_NODE_PHYSICS,
    GraphPhysics,
    PhysicsCache,
    StoredGraph,
    physics_shapes,
)
from tpugraphs_polynormer.simulator.costs import layout_seconds
from tpugraphs_polynormer.simulator.tile_costs import TileCosts

NAMES = (LAYOUT, TILE)


def all_codes(split, number: int) -> np.ndarray:
    return split.read_codes(number, np.arange(split.graphs[number].num_candidates))


def priced_archive(name: str, split: str, graph: str) -> np.ndarray:
    """The seconds of an archive's candidates, without datasets."""
    archive = read_archive(simulated_archive(name, split, graph))
    arrays = archive.node_feat, archive.node_opcode, archive.edge_index
    if name == TILE:
        return TileCosts(*arrays).seconds(archive.config_feat)
    return layout_seconds(*arrays, archive.node_config_ids, candidates=archive.node_config_feat)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", ["train", "valid"])
def test_the_total_is_the_standardized_logarithm_of_the_archives_seconds(name, which):
    split = simulated(name).split(which)
    for number, entry in enumerate(split.graphs):
        seconds = priced_archive(name, which, entry.name)[split.read_column(number, "rows")]
        expected = (np.log(seconds) - np.log(seconds).mean()) / np.log(seconds).std()
        physics, codes = split.physics(number), all_codes(split, number)
        np.testing.assert_allclose(physics.total(codes), expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(physics.describe(codes).candidates[:, 0], physics.total(codes).astype(np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_a_candidate_gets_the_same_alone_and_in_any_order(name):
    split = simulated(name).split("train")
    codes, physics = all_codes(split, 0), split.physics(0)
    together = physics.describe(codes)
    order = np.random.default_rng(0).permutation(len(codes))
    shuffled = physics.describe(codes[order])
    np.testing.assert_array_equal(shuffled.candidates, together.candidates[order])
    alone = physics.describe(codes[3:4])
    np.testing.assert_allclose(alone.candidates[0], together.candidates[3], rtol=1e-6)
    if name == LAYOUT:
        np.testing.assert_array_equal(shuffled.nodes, together.nodes[:, order])
        np.testing.assert_allclose(alone.nodes[:, 0], together.nodes[:, 3], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_bounds(name):
    split = simulated(name).split("train")
    kind, codes = split.kind, all_codes(split, 1)
    physics = split.physics(1).describe(codes)
    assert [each.shape for each in physics.flat] == physics_shapes(kind, codes.shape[1], len(codes))
    assert physics.candidates.shape == (len(codes), NUM_CANDIDATE_PHYSICS[kind])
    assert all(each.dtype == np.float32 and np.isfinite(each).all() for each in physics.flat)
    if name == LAYOUT:
        assert physics.nodes.shape == (codes.shape[1], len(codes), NUM_NODE_PHYSICS)
        assert np.abs(physics.nodes).max() <= 8
        assert physics.nodes.std(1).max() > 0.01  # they tell candidates apart
    assert np.abs(physics.candidates[:, 1:]).max() <= 8


def test_differences_of_nodes_add_up_to_the_deviation_of_seconds():
    """Undone, the signed logarithms of the three additive differences are the total's difference in seconds."""
    split = simulated(LAYOUT).split("train")
    codes = all_codes(split, 0)
    seconds = priced_archive(LAYOUT, "train", split.graphs[0].name)[split.read_column(0, "rows")]
    logged = split.physics(0).describe(codes).nodes[:, :, -3:].astype(np.float64)
    differences = (np.sign(logged) * np.expm1(np.abs(logged))).sum((0, 2))
    np.testing.assert_allclose(differences, (seconds - seconds.mean()) / seconds.std(), atol=1e-4)


def stored(split, number: int) -> StoredGraph:
    graph = split[number]
    names = [name for name in StoredGraph._fields if name != "kind"]
    return StoredGraph(**{name: getattr(graph, name) for name in names}, kind=split.kind)


@pytest.mark.parametrize("name", NAMES)
def test_equal_candidates_get_zero(name):
    split = simulated(name).split("train")
    codes = np.repeat(all_codes(split, 0)[:1], 6, axis=0)
    physics = GraphPhysics(stored(split, 0)._replace(num_candidates=6), lambda numbers: codes[numbers])
    assert not physics.total(codes).any()
    assert not physics.describe(codes).candidates[:, 0].any()


def test_a_graph_that_cannot_be_priced_gets_zeros_and_a_warning(caplog):
    split = simulated(LAYOUT).split("train")
    codes = all_codes(split, 0)
    broken = stored(split, 0)
    broken = broken._replace(edge_index=broken.edge_index[:, ::-1], name="upside down")
    with caplog.at_level(logging.WARNING):
        physics = GraphPhysics(broken, lambda numbers: codes[numbers])
    assert "upside down: the cost model cannot read this graph" in caplog.text
    assert not any(each.any() for each in physics.describe(codes).flat)
    assert not physics.total(codes).any()


def test_a_large_graph_is_scaled_by_a_fixed_sample():
    split = simulated(LAYOUT).split("train")
    few = all_codes(split, 0)
    many = few[np.random.default_rng(0).integers(0, len(few), 5000)]
    read = []

    def read_codes(numbers):
        read.append(numbers)
        return many[numbers]

    physics = GraphPhysics(stored(split, 0)._replace(num_candidates=5000), read_codes)
    sampled = np.concatenate(read[-4:])
    assert len(np.unique(sampled)) == 1024 and sampled[0] == 0 and sampled[-1] == 4999
    total = physics.total(many[sampled])
    assert abs(total.mean()) < 1e-6 and total.std() == pytest.approx(1)


def test_cost_models_are_made_once_and_the_oldest_is_dropped():
    made = []
    cache = PhysicsCache(most=2)
    for number in (0, 1, 0, 2, 0, 1):
        cache.find(number, lambda each: made.append(each) or each)
    assert made == [0, 1, 2, 1]


def test_a_split_can_be_sent_to_another_process():
    split = simulated(LAYOUT).split("train")
    codes = all_codes(split, 0)
    expected = split.physics(0).total(codes)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(split)).physics(0).total(codes), expected)


def test_random_archives_can_be_priced(tmp_path):
    """Layouts that are no permutations, types without bytes, pruned operands: what other tests are made of."""
    graphs = {f"graph{seed}": layout_arrays(30, 5, 12, seed=seed) for seed in range(4)}
    write_tree(tmp_path / "in", LAYOUT, {"train": graphs})
    (dataset,) = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT, max_nodes=12)
    split = dataset.split("train")
    for number in range(4):
        physics = split.physics(number).describe(all_codes(split, number))
        assert all(np.isfinite(each).all() for each in physics.flat)


def test_real_archives_are_priced_through_a_dataset_as_from_the_file(real_data, tmp_path):
    found = next((real_data / "tpugraphs/official").rglob("valid/unet_3d.4x4.bf16.npz"))
    for path in (real_data / "tpugraphs/layout/alexnet_train_batch_32.npz", found):
        folder = tmp_path / path.stem / "npz/layout/xla/default/valid"
        folder.mkdir(parents=True)
        (folder / path.name).symlink_to(path)
        (dataset,) = preprocess_here(tmp_path / path.stem, tmp_path / f"{path.stem}-data", "layout:xla:default")
        split, archive = dataset.split("valid"), read_archive(path)
        total = split.physics(0).total(all_codes(split, 0))
        arrays = archive.node_feat, archive.node_opcode, archive.edge_index, archive.node_config_ids
        seconds = layout_seconds(*arrays, candidates=archive.node_config_feat)
        assert kendalltau(total, seconds).statistic > 0.9999, path.stem
        assert np.corrcoef(total, np.log(seconds))[0, 1] == pytest.approx(1)
