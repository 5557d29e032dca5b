"""The reader without TensorFlow returns the arrays of the archives and of the tf.data pipeline; it names damage."""

import doctest
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import LAYOUT, TILE, preprocess_here, small_graphs, write_small_tree
from tpugraphs_polynormer.config.schema import RankingDataConfig
from tpugraphs_polynormer.datasets import reader
from tpugraphs_polynormer.datasets.input_pipeline import iterate_blocks, make_training_dataset
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.datasets.reader import RankingGraph, open_dataset
from tpugraphs_polynormer.datasets.split_files import RECORD_SUFFIX
from tpugraphs_polynormer.datasets.targets import to_training_costs

ROOT = Path(__file__).resolve().parents[2]
CANDIDATES = {LAYOUT: "node_config_feat", TILE: "config_feat"}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("reader")
    preprocess_here(write_small_tree(root / "in"), root / "datasets", LAYOUT, TILE, graphs_per_shard=3)
    return root / "datasets"


def folder_of(datasets: Path, collection: str) -> Path:
    return datasets / collection.replace(":", "/")


def check_graph(graph: RankingGraph, arrays: dict, collection: str) -> None:
    assert graph.features.dtype == np.float32 and graph.config_values.dtype == np.float32
    assert np.array_equal(graph.features, arrays["node_feat"])
    assert np.array_equal(graph.opcodes, arrays["node_opcode"])
    assert np.array_equal(graph.node_ids, np.arange(len(arrays["node_feat"])))
    assert np.array_equal(graph.edge_index, arrays["edge_index"])
    expected = arrays["node_config_ids"] if collection == LAYOUT else np.zeros(0)
    assert np.array_equal(graph.nconfig_ops, expected)
    for each in (graph.opcodes, graph.node_ids, graph.edge_index, graph.nconfig_ops):
        assert each.dtype == np.int64


@pytest.mark.parametrize("collection", [LAYOUT, TILE])
def test_every_graph_and_candidate_equals_the_archive(datasets, collection):
    dataset = open_dataset(folder_of(datasets, collection))
    for name, sources in small_graphs()[collection].items():
        split = dataset.split(name)
        assert len(split) == len(sources)
        for graph in split:
            arrays = sources.pop(graph.name)
            check_graph(graph, arrays, collection)
            found = graph.read_candidates(np.arange(graph.num_candidates))
            dense = arrays[CANDIDATES[collection]]
            assert found.config_values.shape[1:] == ((dense.shape[1], 18) if collection == LAYOUT else (3, 8))
            assert np.array_equal(found.config_values.reshape(dense[found.rows].shape), dense[found.rows])
            assert np.array_equal(graph.config_values[found.codes], found.config_values)
            assert np.array_equal(found.costs, graph.read_costs())
            if name != "train":
                assert np.array_equal(found.rows, np.arange(len(dense)))
                normalizers = arrays["config_runtime_normalizers"] if collection == TILE else 1
                assert np.array_equal(found.costs, arrays["config_runtime"] / normalizers)
        assert not sources


@pytest.mark.parametrize("collection", [LAYOUT, TILE])
def test_graphs_and_draws_equal_what_the_input_pipeline_yields(datasets, collection):
    dataset = open_dataset(folder_of(datasets, collection))
    split = dataset.split("train")
    for number in range(len(split)):
        graph = split[number]
        drawn = graph.draw(3, seed=number)
        (block,) = iterate_blocks(dataset, split, number, len(drawn.numbers), drawn.numbers)
        tensors = block.graph
        ops, feeds = tensors.node_sets["op"], tensors.edge_sets["feed"].adjacency
        assert np.array_equal(graph.features, ops["features"])
        assert np.array_equal(graph.opcodes, ops["opcode"])
        assert np.array_equal(graph.edge_index, np.stack([feeds.target, feeds.source], axis=1))
        assert np.array_equal(graph.config_values, tensors.node_sets["config_value"]["values"])
        assert np.array_equal(drawn.codes.T, tensors.node_sets["nconfig"]["codes"])
        assert np.array_equal(to_training_costs(drawn.costs), tensors.context["costs"][0])
        if collection == LAYOUT:
            assert np.array_equal(graph.nconfig_ops, tensors.edge_sets["config"].adjacency.target)


def test_a_training_batch_holds_candidates_of_the_reader(datasets):
    dataset = open_dataset(folder_of(datasets, LAYOUT))
    batches = make_training_dataset(dataset, RankingDataConfig(graphs_per_batch=1, candidates_per_graph=4), seed=2)
    graphs = list(dataset.split("train"))
    for batch in batches.take(5):
        features = batch.node_sets["op"]["features"].numpy()
        (graph,) = [each for each in graphs if np.array_equal(each.features, features)]
        everything = graph.read_candidates(np.arange(graph.num_candidates))
        for codes, cost in zip(batch.node_sets["nconfig"]["codes"].numpy().T, batch.context["costs"][0], strict=True):
            (number,) = np.flatnonzero((everything.codes == codes).all(axis=1))
            assert everything.costs[number] == cost


def test_draws_are_distinct_and_a_function_of_seed_and_graph(datasets):
    split = open_dataset(folder_of(datasets, LAYOUT)).split("train")
    graph = split[6]
    draws = [graph.draw(10, seed=seed) for seed in range(20)]
    assert graph.num_candidates == 29
    for seed, drawn in enumerate(draws):
        again = split[6].draw(10, seed=seed)
        for field in ("numbers", "rows", "codes", "config_values", "costs"):
            assert np.array_equal(getattr(drawn, field), getattr(again, field))
        assert len(set(drawn.numbers.tolist())) == 10
    assert len({tuple(drawn.numbers.tolist()) for drawn in draws}) == 20
    assert set(np.concatenate([drawn.numbers for drawn in draws]).tolist()) == set(range(29))


def test_a_draw_of_more_than_there_are_gives_all(datasets):
    graph = open_dataset(folder_of(datasets, TILE)).split("valid")[0]
    assert sorted(graph.draw(100, seed=1).numbers.tolist()) == list(range(9))
    with pytest.raises(DatasetError, match="held: cannot draw 0 candidates"):
        graph.draw(0, seed=1)


def test_indexing_is_that_of_a_sequence(datasets):
    split = open_dataset(folder_of(datasets, LAYOUT)).split("train")
    assert [graph.name for graph in split] == [entry.name for entry in split.graphs]
    assert split[-1].name == split[len(split) - 1].name == "same"
    assert np.array_equal(split[-2].draw(3, seed=1).numbers, split[6].draw(3, seed=1).numbers)
    for number in (len(split), -len(split) - 1):
        with pytest.raises(IndexError, match=f"graph {number} of a split of 8 graphs"):
            split[number]


def test_arrays_can_be_written_to_and_graphs_sent_to_other_processes(datasets):
    graph = open_dataset(folder_of(datasets, LAYOUT)).split("train")[2]
    again = pickle.loads(pickle.dumps(graph))
    drawn = graph.draw(3, seed=0)
    assert np.array_equal(again.draw(3, seed=0).config_values, drawn.config_values)
    arrays = [graph.features, graph.opcodes, graph.edge_index, graph.config_values]
    assert all(each.flags.writeable for each in (*arrays, drawn.codes, drawn.config_values, drawn.costs))


def test_a_pruned_graph_says_which_nodes_it_kept(tmp_path):
    arrays = layout_arrays(60, 2, 5, seed=3)
    write_tree(tmp_path / "in", LAYOUT, {"train": {"large": arrays}})
    (dataset,) = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT, max_nodes=20)
    graph = dataset.split("train")[0]
    assert 2 <= len(graph.node_ids) <= 20
    assert np.array_equal(graph.features, arrays["node_feat"][graph.node_ids])
    assert np.array_equal(graph.node_ids[graph.nconfig_ops], arrays["node_config_ids"])
    kept = np.isin(arrays["edge_index"], graph.node_ids).all(axis=1)
    assert np.array_equal(graph.node_ids[graph.edge_index], arrays["edge_index"][kept])


@pytest.mark.parametrize(("offset", "reason"), [(0, "length"), (9, "length"), (200, "checksum"), (-1, "checksum")])
def test_a_damaged_record_is_named(datasets, tmp_path, offset, reason):
    folder = Path(shutil.copytree(folder_of(datasets, LAYOUT), tmp_path / "copy"))
    split = open_dataset(folder).split("train")
    entry = split.graphs[4]
    path = folder / f"train-00001-of-00003{RECORD_SUFFIX}"
    data = bytearray(path.read_bytes())
    data[entry.record_offset + offset % (entry.record_length + 16)] ^= 1
    path.write_bytes(data)
    assert split[3].name == "graph3"
    message = rf"{path}: the record of graph4 at byte {entry.record_offset} is damaged \(.*{reason}.*; preprocess again"
    with pytest.raises(DatasetError, match=message):
        split[4]


def test_files_are_closed_with_the_split(datasets):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        open_dataset(folder_of(datasets, LAYOUT)).split("train")[0].draw(2, seed=0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_example_of_the_documentation(datasets, monkeypatch):
    monkeypatch.chdir(datasets.parent)
    results = doctest.testmod(reader)
    assert results.attempted >= 7 and not results.failed


def test_reading_loads_neither_tensorflow_nor_beam(datasets):
    code = f"""
import sys
from tpugraphs_polynormer.datasets.reader import open_dataset
graph = open_dataset({str(folder_of(datasets, TILE))!r}).split("train")[0]
print(graph.name, graph.draw(3, seed=0).config_values.shape)
print(sorted({{"tensorflow", "apache_beam", "tensorflow_gnn", "torch", "jax"}} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "kernel0 (3, 3, 8)\n[]\n"
