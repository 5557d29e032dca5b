"""The files of a dataset: single graphs equal the archive and are read alone; damage is found and named."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow_gnn as tfgnn

from tests.small_archives import layout_arrays, tile_arrays, write_tree
from tests.small_datasets import LAYOUT, TILE, preprocess_here, small_graphs, write_small_tree
from tpugraphs_polynormer.datasets.input_pipeline import graph_spec
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME, DatasetError
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.split_files import CANDIDATE_SUFFIX, RECORD_SUFFIX

CUTS = {LAYOUT: "node_config_feat", TILE: "config_feat"}


@pytest.fixture(scope="module")
def collections(tmp_path_factory) -> dict[str, RankingDataset]:
    root = tmp_path_factory.mktemp("store")
    found = preprocess_here(write_small_tree(root / "in"), root / "out", LAYOUT, TILE, graphs_per_shard=3)
    return {each.manifest.collection: each for each in found}


@pytest.fixture
def damaged(collections, tmp_path) -> Path:
    """A copy of the dataset that the test may damage."""
    return Path(shutil.copytree(collections[LAYOUT].folder, tmp_path / "copy"))


def settings_of(collection: RankingDataset, split, number: int) -> np.ndarray:
    graph = tfgnn.parse_single_example(graph_spec(collection.manifest.kind), split.read_record(number))
    assert graph.context["name"].numpy()[0].decode() == split.graphs[number].name
    return graph.node_sets["config_value"]["values"].numpy()


@pytest.mark.parametrize("name", [LAYOUT, TILE])
def test_every_candidate_equals_the_archive(collections, name):
    collection = collections[name]
    for split_name, sources in small_graphs()[name].items():
        split = collection.split(split_name)
        assert [graph.name for graph in split.graphs] == sorted(sources)
        for number, entry in enumerate(split.graphs):
            arrays = sources[entry.name]
            everything = np.arange(entry.num_candidates)
            codes = split.read_codes(number, everything)
            rows = split.read_column(number, "rows")
            dense = settings_of(collection, split, number)[codes].reshape(len(codes), -1)
            assert np.array_equal(dense, arrays[CUTS[name]][rows].reshape(len(rows), -1))
            if split_name != "train":
                assert np.array_equal(rows, np.arange(len(arrays["config_runtime"])))
                assert np.array_equal(split.read_column(number, "runtimes"), arrays["config_runtime"])
                assert (split.read_column(number, "counts") == 1).all()
            if name == TILE:
                normalizers = arrays["config_runtime_normalizers"][rows]
                assert np.array_equal(split.read_column(number, "normalizers"), normalizers)


def test_train_candidates_are_distinct_with_mean_runtimes_fastest_first(collections):
    split = collections[LAYOUT].split("train")
    number = [graph.name for graph in split.graphs].index("graph3")
    arrays = small_graphs()[LAYOUT]["train"]["graph3"]
    rows, runtimes = split.read_column(number, "rows"), split.read_column(number, "runtimes")
    assert len(rows) == 8
    for row, runtime, count in zip(rows, runtimes, split.read_column(number, "counts"), strict=True):
        same = (arrays["node_config_feat"] == arrays["node_config_feat"][row]).all(axis=(1, 2))
        assert count == same.sum()
        assert runtime == int(np.floor(arrays["config_runtime"][same].mean() + 0.5))
    assert (np.diff(runtimes) >= 0).all()


def test_draws_of_any_candidates_in_any_order(collections):
    split = collections[LAYOUT].split("valid")
    chosen = np.array([7, 0, 7, 11, 3])
    assert np.array_equal(split.read_codes(1, chosen), split.read_codes(1, np.arange(12))[chosen])
    for column in ("runtimes", "normalizers", "rows", "counts"):
        assert np.array_equal(split.read_column(1, column, chosen), split.read_column(1, column)[chosen])


@pytest.mark.parametrize("outside", [-1, 12])
def test_a_candidate_that_does_not_exist_is_refused_not_made_up(collections, outside):
    split = collections[LAYOUT].split("valid")
    with pytest.raises(DatasetError, match="valid0: found candidates"):
        split.read_codes(0, np.array([0, outside]))
    with pytest.raises(DatasetError, match="valid0: found candidates"):
        split.read_column(0, "runtimes", np.array([outside, 0]))


def test_a_draw_reads_only_the_blocks_of_its_candidates_each_once(tmp_path, monkeypatch):
    write_tree(
        tmp_path / "in", LAYOUT, {"train": {"big": layout_arrays(12, 4, 30_000), "other": layout_arrays(12, 3, 50)}}
    )
    split = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT)[0].split("train")
    number = [graph.name for graph in split.graphs].index("big")
    split.read_codes(number, np.array([0]))  # reads the checksums too, once
    spans = []

    def pread(file, size, offset, read=os.pread):
        spans.append((offset // 4096, size / 4096))
        return read(file, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert split.graphs[number].code_bytes == 4  # 120,000 random values
    start = split.graphs[number].codes_offset
    width = 4 * 4

    def blocks_of(candidates) -> set[int]:
        ends = [start + candidate * width + byte for candidate in candidates for byte in (0, width - 1)]
        return {byte // 4096 for byte in ends}

    chosen = np.random.default_rng(0).permutation(30_000)[:20]
    split.read_codes(number, chosen)
    read = [block + i for block, size in spans for i in range(int(size))]
    assert len(read) == len(set(read)) and set(read) == blocks_of(chosen) and len(read) < 41
    spans.clear()
    split.read_codes(number, np.arange(1000, 3000))  # neighbours: one call
    assert len(spans) == 1 and spans[0][1] == len(blocks_of(range(1000, 3000)))
    spans.clear()
    split.read_column(number, "runtimes", np.arange(64))
    assert len(spans) == 1 and spans[0][1] <= 2


@pytest.mark.parametrize("name", [LAYOUT, TILE])
def test_no_changed_byte_of_a_candidate_file_is_read_as_a_candidate(collections, tmp_path, name):
    folder = Path(shutil.copytree(collections[name].folder, tmp_path / "copy"))
    path = folder / f"valid-00000-of-00001{CANDIDATE_SUFFIX}"
    data = path.read_bytes()
    columns = ("runtimes", "normalizers", "rows", "counts")

    def read_all() -> None:
        split = RankingDataset(folder).split("valid")
        for number, entry in enumerate(split.graphs):
            split.read_codes(number, np.arange(entry.num_candidates))
            for column in columns:
                split.read_column(number, column)
                split.read_column(number, column, np.array([1, 0]))

    read_all()
    for position in range(0, len(data), max(1, len(data) // 50)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :])
        with pytest.raises(DatasetError, match=rf"^{path}: the (candidates of \w+|checksums) from byte [\d,]+ on are"):
            read_all()
    path.write_bytes(bytes(len(data)))
    with pytest.raises(DatasetError, match="are damaged"):
        read_all()


def test_damage_elsewhere_in_a_file_does_not_stop_what_is_whole(tmp_path):
    write_tree(tmp_path / "in", LAYOUT, {"train": {"a": layout_arrays(12, 4, 3000), "b": layout_arrays(12, 3, 3000)}})
    (collection,) = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT)
    split = collection.split("train")
    path = next(collection.folder.glob(f"*{CANDIDATE_SUFFIX}"))
    before = split.read_codes(0, np.arange(10))
    with path.open("r+b") as stream:
        stream.seek(split.graphs[1].codes_offset + 5000)
        stream.write(bytes(100))
    assert np.array_equal(collection.split("train").read_codes(0, np.arange(10)), before)
    with pytest.raises(DatasetError, match="the candidates of b"):
        collection.split("train").read_codes(1, np.arange(3000))


def test_a_split_can_be_sent_to_another_process_and_closed(collections):
    split = collections[TILE].split("train")
    before = split.read_codes(2, np.array([1]))
    again = pickle.loads(pickle.dumps(split))
    assert np.array_equal(again.read_codes(2, np.array([1])), before)
    split.close()
    assert np.array_equal(split.read_codes(2, np.array([1])), before)


def test_an_unknown_split_names_those_there_are(collections):
    with pytest.raises(DatasetError, match="no split 'test', found train, valid"):
        collections[TILE].split("test")


@pytest.mark.parametrize("suffix", [RECORD_SUFFIX, CANDIDATE_SUFFIX])
def test_a_truncated_or_missing_shard_is_named(damaged, suffix):
    path = damaged / f"train-00001-of-00003{suffix}"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(DatasetError, match=f"{path}: has {len(data) - 1:,} bytes, the manifest says {len(data):,}"):
        RankingDataset(damaged)
    path.unlink()
    with pytest.raises(DatasetError, match=f"{path}: is missing"):
        RankingDataset(damaged)


@pytest.mark.parametrize("suffix", [RECORD_SUFFIX, CANDIDATE_SUFFIX])
def test_damage_after_opening_is_named_too(damaged, suffix):
    path = damaged / f"valid-00000-of-00001{suffix}"
    read = {
        RECORD_SUFFIX: lambda split: split.read_record(1),
        CANDIDATE_SUFFIX: lambda split: split.read_codes(1, np.array([11])),
    }[suffix]
    split = RankingDataset(damaged).split("valid")
    os.truncate(path, 20)
    with pytest.raises(DatasetError, match=f"{path}: ends early"):
        read(split)
    split.close()
    path.unlink()
    with pytest.raises(DatasetError, match=f"{path}: No such file"):
        read(split)


@pytest.mark.parametrize("suffix", [RECORD_SUFFIX, CANDIDATE_SUFFIX])
def test_verify_finds_one_flipped_bit(damaged, suffix):
    RankingDataset(damaged).verify()
    path = damaged / f"test-00000-of-00001{suffix}"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=f"{path}: sha256"):
        RankingDataset(damaged).verify()


def test_without_its_manifest_a_folder_is_no_dataset(damaged):
    (damaged / MANIFEST_NAME).unlink()
    with pytest.raises(DatasetError, match=MANIFEST_NAME):
        RankingDataset(damaged)


def test_no_configurable_node_and_no_edge_at_all(tmp_path):
    lonely = layout_arrays(3, 0, 4) | {"edge_index": np.zeros((0, 2), np.int64)}
    write_tree(tmp_path / "in", LAYOUT, {"train": {"lonely": lonely}, "valid": {"lonely": lonely}})
    (collection,) = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT, max_nodes=2)
    assert collection.split("train").graphs[0].num_candidates == 1
    assert collection.split("valid").read_codes(0, np.arange(4)).shape == (4, 0)
    assert collection.split("valid").graphs[0].num_nodes == 3


def test_candidates_take_a_small_part_of_the_official_size(tmp_path):
    random = np.random.default_rng(0)
    table = random.integers(-1, 6, (40, 18))
    arrays = layout_arrays(60, 50, 400)
    arrays["node_config_feat"] = table[random.integers(0, 40, (400, 50))].astype(np.float32)
    kernels = {f"k{i}": tile_arrays(5, 300, seed=i) for i in range(2)}
    write_tree(tmp_path / "in", LAYOUT, {"train": {"g": arrays}})
    write_tree(tmp_path / "in", TILE, {"train": kernels})
    layouts, tiles = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT, TILE)
    candidate_bytes = layouts.manifest.splits["train"].shards[0].candidate_bytes
    assert candidate_bytes <= arrays["node_config_feat"].nbytes / 9
    (shard,) = tiles.manifest.splits["train"].shards
    codes = sum(graph.num_candidates * graph.num_config_nodes * graph.code_bytes for graph in shard.graphs)
    assert codes <= sum(kernel["config_feat"].nbytes for kernel in kernels.values()) / 9
