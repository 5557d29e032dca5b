"""Training batches: they depend on (seed, step) only, workers get disjoint parts, candidates equal the archive's."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import LAYOUT, TILE, preprocess_here, repeat_rows, small_graphs, write_small_tree
from tpugraphs_polynormer.config.schema import RankingDataConfig
from tpugraphs_polynormer.datasets.input_pipeline import (
    Shard,
    batch_budget,
    iterate_blocks,
    make_training_dataset,
)
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.sampler import CandidateSampler
from tpugraphs_polynormer.datasets.targets import read_costs, to_training_costs

CONFIG = RankingDataConfig(graphs_per_batch=3, candidates_per_graph=6)
FEATURES = {LAYOUT: "node_config_feat", TILE: "config_feat"}


@pytest.fixture(scope="module")
def collections(tmp_path_factory) -> dict[str, RankingDataset]:
    root = tmp_path_factory.mktemp("input")
    found = preprocess_here(write_small_tree(root / "in"), root / "out", LAYOUT, TILE, graphs_per_shard=3)
    return {each.manifest.collection: each for each in found}


def take(collection, count, config=CONFIG, **options) -> list:
    return list(make_training_dataset(collection, config, **({"seed": 5} | options)).take(count))


def flat(graph) -> list[np.ndarray]:
    return [np.asarray(part) for part in tf.nest.flatten(graph, expand_composites=True)]


def same(first, second) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(flat(first), flat(second), strict=True))


def parts_of(graph, num_graphs: int) -> list[dict]:
    """The graphs of a batch as arrays, without padding."""
    sets = {name: np.cumsum([0, *graph.node_sets[name].sizes.numpy()]) for name in ("op", "nconfig", "config_value")}
    parts = []
    for place in range(num_graphs):
        cut = {name: slice(starts[place], starts[place + 1]) for name, starts in sets.items()}
        codes = graph.node_sets["nconfig"]["codes"].numpy()[cut["nconfig"]]
        assert ((codes >= cut["config_value"].start) & (codes < cut["config_value"].stop)).all()
        mask = graph.context["candidate_mask"].numpy()[place]
        parts.append(
            {
                "features": graph.node_sets["op"]["features"].numpy()[cut["op"]],
                "config_values": graph.node_sets["config_value"]["values"].numpy()[codes].swapaxes(0, 1)[mask],
                "costs": graph.context["costs"].numpy()[place][mask],
                "mask": mask,
            }
        )
    return parts


def identify(part: dict, sources: dict[str, dict]) -> str:
    (name,) = [name for name, arrays in sources.items() if np.array_equal(arrays["node_feat"], part["features"])]
    return name


def test_a_step_is_a_function_of_seed_and_step(collections):
    first, second = take(collections[LAYOUT], 8), take(collections[LAYOUT], 8)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    other = take(collections[LAYOUT], 8, seed=6)
    assert not all(same(a, b) for a, b in zip(first, other, strict=True) if len(flat(a)[0]) == len(flat(b)[0]))
    assert len({batch.context["costs"].numpy().tobytes() for batch in first}) == 8


@pytest.mark.parametrize("static", [False, True])
def test_resuming_equals_skipping(collections, static):
    config = dataclasses.replace(CONFIG, static_shapes=static)
    whole = take(collections[LAYOUT], 7, config)
    resumed = take(collections[LAYOUT], 3, config, start_step=4)
    assert all(same(a, b) for a, b in zip(whole[4:], resumed, strict=True))


def test_resuming_with_two_replicas_counts_steps_not_batches(collections):
    shard = Shard(worker=1, num_workers=2, num_replicas=2)
    whole = take(collections[LAYOUT], 8, shard=shard)
    resumed = take(collections[LAYOUT], 4, shard=shard, start_step=2)
    assert all(same(a, b) for a, b in zip(whole[4:], resumed, strict=True))


@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (1, 2), (2, 2)])
def test_workers_and_replicas_share_out_one_global_batch(collections, workers, replicas):
    total = 4
    small = dataclasses.replace(CONFIG, graphs_per_batch=total // (workers * replicas))
    alone = take(collections[LAYOUT], 5, dataclasses.replace(CONFIG, graphs_per_batch=total))
    shared = [
        take(collections[LAYOUT], 5 * replicas, small, shard=Shard(worker, workers, replicas))
        for worker in range(workers)
    ]
    for step in range(5):
        expected = parts_of(alone[step], total)
        found = []
        for batches in shared:
            for batch in batches[step * replicas : (step + 1) * replicas]:
                found += parts_of(batch, small.graphs_per_batch)
        for a, b in zip(found, expected, strict=True):
            assert all(np.array_equal(a[key], b[key]) for key in expected[0])


def test_the_shard_of_an_input_context():
    context = tf.distribute.InputContext(num_input_pipelines=3, input_pipeline_id=2, num_replicas_in_sync=6)
    assert Shard.from_context(context) == Shard(worker=2, num_workers=3, num_replicas=2)


def test_the_batches_of_an_epoch_hold_every_rankable_graph_once(collections):
    sources = small_graphs()[LAYOUT]["train"]
    batches = take(collections[LAYOUT], 7)  # three epochs of seven graphs
    names = [identify(part, sources) for batch in batches for part in parts_of(batch, 3)]
    for epoch in range(3):
        assert sorted(names[7 * epoch : 7 * epoch + 7]) == sorted(set(sources) - {"same"})


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", [LAYOUT, TILE])
def test_drawn_candidates_decode_to_the_archive(collections, name, static):
    sources = small_graphs()[name]["train"]
    for batch in take(collections[name], 6, dataclasses.replace(CONFIG, static_shapes=static)):
        for part in parts_of(batch, 3):
            arrays = sources[identify(part, sources)]
            dense = arrays[FEATURES[name]].reshape(len(arrays["config_runtime"]), -1)
            drawn = part["config_values"].reshape(len(part["config_values"]), -1)
            assert len(np.unique(drawn, axis=0)) == len(drawn)
            for candidate, cost in zip(drawn, part["costs"], strict=True):
                same_rows = (dense == candidate).all(axis=1)
                assert same_rows.any()
                runtime = np.floor(arrays["config_runtime"][same_rows].mean() + 0.5)
                if name == TILE:
                    runtime = np.rint(runtime / arrays["config_runtime_normalizers"][0] * 2.0**40)
                assert cost == runtime


def test_graphs_with_fewer_candidates_than_asked_for_are_masked(collections):
    config = dataclasses.replace(CONFIG, candidates_per_graph=10)
    sources = small_graphs()[LAYOUT]["train"]
    seen = Counter()
    for batch in take(collections[LAYOUT], 7, config):
        assert batch.context["costs"].shape == (3, 10)
        for part in parts_of(batch, 3):
            dense = sources[identify(part, sources)]["node_config_feat"]
            expected = min(10, len(np.unique(dense, axis=0)))
            assert part["mask"].tolist() == [True] * expected + [False] * (10 - expected)
            seen[expected] += 1
    assert set(seen) == {5, 8, 9, 10}


@pytest.mark.parametrize("name", [LAYOUT, TILE])
def test_static_shapes_hold_the_same_and_nothing_of_unknown_size(collections, name):
    static = dataclasses.replace(CONFIG, static_shapes=True)
    dataset = make_training_dataset(collections[name], static, seed=5)
    for component in tf.nest.flatten(dataset.element_spec, expand_composites=True):
        assert component.shape.is_fully_defined(), component
    for loose, padded in zip(take(collections[name], 7), dataset.take(7), strict=True):
        for a, b in zip(parts_of(loose, 3), parts_of(padded, 3), strict=True):
            assert all(np.array_equal(a[key], b[key]) for key in a)
        for edge_set in loose.edge_sets:
            a, b = loose.edge_sets[edge_set].adjacency, padded.edge_sets[edge_set].adjacency
            count = int(loose.edge_sets[edge_set].total_size)
            assert np.array_equal(a.source, b.source[:count])
            assert np.array_equal(a.target, b.target[:count])
            padding = b.target.numpy()[count:]
            assert (padding >= int(loose.node_sets[b.target_name].total_size)).all()
        assert not padded.context["candidate_mask"].numpy()[3].any()
        codes = padded.node_sets["nconfig"]["codes"].numpy()[int(loose.node_sets["nconfig"].total_size) :]
        assert (codes == int(loose.node_sets["config_value"].total_size)).all()
        assert len(codes) >= 1


def test_the_budget_fits_the_largest_graph_in_every_place(collections):
    config = dataclasses.replace(CONFIG, static_shapes=True)
    budget = batch_budget(collections[LAYOUT], config)
    train = collections[LAYOUT].split("train").graphs
    assert budget.total_num_nodes["op"] == 3 * max(graph.num_nodes for graph in train) + 1
    assert budget.total_num_nodes["config_value"] == 3 * max(graph.num_config_values for graph in train) + 1
    assert budget.total_num_edges["feed"] == 3 * max(graph.num_edges for graph in train)
    assert batch_budget(collections[LAYOUT], CONFIG) is None


def test_nothing_to_rank_is_said(tmp_path):
    write_tree(tmp_path / "in", LAYOUT, {"train": {"same": repeat_rows(layout_arrays(), [1] * 7)}})
    (collection,) = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT)
    with pytest.raises(DatasetError, match="nothing can be learned"):
        make_training_dataset(collection, CONFIG, seed=0)


@pytest.mark.parametrize("name", [LAYOUT, TILE])
@pytest.mark.parametrize("chosen", [None, [8, 0, 3, 3]])
def test_blocks_cover_the_candidates_once_in_order(collections, name, chosen):
    collection, split = collections[name], collections[name].split("valid")
    arrays = small_graphs()[name]["valid"][split.graphs[0].name]
    wanted = np.arange(split.graphs[0].num_candidates) if chosen is None else np.array(chosen)
    blocks = list(iterate_blocks(collection, split, 0, 5, None if chosen is None else wanted))
    spans = [(block.start, block.stop) for block in blocks]
    assert spans == [(start, min(start + 5, len(wanted))) for start in range(0, len(wanted), 5)]
    parts = [parts_of(block.graph, 1)[0] for block in blocks]
    assert all(part["mask"].sum() == stop - start for part, (start, stop) in zip(parts, spans, strict=True))
    config_values = np.concatenate([part["config_values"] for part in parts])
    assert np.array_equal(
        config_values.reshape(len(wanted), -1), arrays[FEATURES[name]][wanted].reshape(len(wanted), -1)
    )
    costs = np.concatenate([part["costs"] for part in parts])
    assert np.array_equal(costs, to_training_costs(read_costs(split, 0))[wanted])
    assert all(np.array_equal(part["features"], arrays["node_feat"]) for part in parts)


@pytest.mark.parametrize("name", [LAYOUT, TILE])
@pytest.mark.parametrize("static", [False, True])
def test_packed_batches_hold_each_graph_of_an_epoch_once(collections, name, static):
    collection = collections[name]
    graphs = collection.split("train").graphs
    nodes = max(graph.num_nodes for graph in graphs) + 3
    config = dataclasses.replace(CONFIG, batch_nodes=nodes, static_shapes=static)
    sampler = CandidateSampler(collection.split("train"), config, 5)
    plan = sampler.plan_batches()
    counts, seen = set(), []
    dataset = make_training_dataset(collection, config, seed=5)
    for number, batch in enumerate(dataset.take(20)):
        real = batch.context["candidate_mask"].numpy().any(1)
        positions = plan.positions(number)
        assert real[: config.graphs_per_batch].tolist() == (positions >= 0).tolist()
        assert not real[config.graphs_per_batch :].any()
        sizes = batch.node_sets["op"].sizes.numpy()[: config.graphs_per_batch]
        wanted = [graphs[sampler.graph_at(each)].num_nodes if each >= 0 else 0 for each in positions]
        assert sizes.tolist() == wanted and sum(wanted) <= nodes
        counts.add(int(real.sum()))
        seen += positions[positions >= 0].tolist()
    assert seen == list(range(len(seen))) and len(counts) > 1, "batches differ in their number of graphs"
