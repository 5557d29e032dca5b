"""Readers of the node-classification benchmarks, on real files and on small files of each format."""

import gzip
import json
import pickle

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from tpugraphs_polynormer.catalog import BENCHMARKS
from tpugraphs_polynormer.download.sources import BENCHMARK_FILES
from tpugraphs_polynormer.nodes.datasets import BenchmarkDataError, find_benchmarks, make_undirected, read_benchmark

NUM_NODES = 12
RNG = np.random.default_rng(7)
FEATURES = RNG.normal(size=(NUM_NODES, 3)).astype(np.float32)
LABELS = np.arange(NUM_NODES) % 3
# Both directions of one edge, a repeated edge and two self-loops; node 11 has no edge.
EDGES = np.array([[0, 1], [1, 0], [2, 5], [2, 5], [3, 3], [4, 4], [9, 4], [10, 0], [7, 8]])
PARTS = (np.array([5, 0, 1]), np.array([2, 3]), np.array([8, 4]))


def brute_force_edges(edges, num_nodes):
    """The set of [source, target] pairs of the undirected graph with self-loops."""
    pairs = {(int(u), int(v)) for u, v in edges} | {(int(v), int(u)) for u, v in edges}
    return {(u, v) for u, v in pairs if u != v} | {(u, u) for u in range(num_nodes)}


def assert_edges(found, edges, num_nodes=NUM_NODES):
    assert found.dtype == np.int64
    rows = [tuple(row) for row in found.tolist()]
    assert len(rows) == len(set(rows))
    assert set(rows) == brute_force_edges(edges, num_nodes)
    assert rows == sorted(rows, key=lambda row: (row[1], row[0]))


def assert_split(split, parts):
    for found, expected in zip((split.train, split.valid, split.test), parts, strict=True):
        assert found.dtype == np.int64
        assert sorted(found.tolist()) == sorted(expected.tolist())


def assert_dataset(dataset, num_splits=1):
    assert dataset.features.dtype == np.float32 and dataset.labels.dtype == np.int64
    np.testing.assert_array_equal(dataset.labels, LABELS)
    assert dataset.num_classes == 3
    assert_edges(dataset.edges, EDGES)
    assert len(dataset.splits) == num_splits
    assert_split(dataset.splits[0], PARTS)


def to_mask(nodes):
    return np.isin(np.arange(NUM_NODES), nodes)


def write_yandex(folder, stem="tolokers", **changes):
    parts = zip(("train", "val", "test"), PARTS, strict=True)
    masks = {f"{name}_masks": np.stack([to_mask(nodes)] * 2) for name, nodes in parts}
    arrays = {"node_features": FEATURES, "node_labels": LABELS, "edges": EDGES, **masks, **changes}
    arrays = {key: array for key, array in arrays.items() if array is not None}
    np.savez_compressed(folder / f"{stem}.npz", **arrays)


def write_shchur(folder, stem="ms_academic_cs", name="coauthor-cs", **changes):
    ones = np.ones(len(EDGES), np.float32)
    adjacency = scipy.sparse.csr_matrix((ones, EDGES.T), shape=(NUM_NODES, NUM_NODES))
    attributes = scipy.sparse.csr_matrix(SHCHUR_FEATURES)
    arrays = {"labels": LABELS, "class_names": np.array(["a", "b", "c"])}
    for part, matrix in (("adj", adjacency), ("attr", attributes)):
        for field in ("data", "indices", "indptr", "shape"):
            arrays[f"{part}_{field}"] = np.asarray(getattr(matrix, field))
    np.savez(folder / f"{stem}.npz", **(arrays | changes))
    (folder / "splits").mkdir()
    np.savez(folder / f"splits/{name}_split.npz", train=PARTS[0], valid=PARTS[1], test=PARTS[2])


SHCHUR_FEATURES = np.array([[2, 0, 7], [0, 0, 0], [0, 3, 0], [1, 1, 1]] * 3, np.float32)


def write_wikics(folder, **changes):
    masks = {"train_masks": PARTS[0], "val_masks": PARTS[1][:1], "stopping_masks": PARTS[1][1:]}
    content = {
        "features": FEATURES.tolist(),
        "labels": LABELS.tolist(),
        "links": [EDGES[EDGES[:, 0] == node, 1].tolist() for node in range(NUM_NODES)],
        **{key: [to_mask(nodes).tolist()] * 20 for key, nodes in masks.items()},
        "test_mask": to_mask(PARTS[2]).tolist(),
        **changes,
    }
    (folder / "wikics").mkdir()
    (folder / "wikics/data.json").write_text(json.dumps(content))


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(str(value) for value in np.atleast_1d(row).tolist()) for row in rows]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))


def write_ogb(folder, split_name):
    write_csv(folder / "raw/edge.csv.gz", EDGES)
    write_csv(folder / "raw/node-feat.csv.gz", FEATURES)
    write_csv(folder / "raw/node-label.csv.gz", LABELS)
    for part, nodes in zip(("train", "valid", "test"), PARTS, strict=True):
        write_csv(folder / f"split/{split_name}/{part}.csv.gz", nodes)


def write_pokec(folder, labels=LABELS, splits=None):
    (folder / "pokec").mkdir()
    content = {"edge_index": EDGES.T, "node_feat": FEATURES, "label": labels, "num_nodes": NUM_NODES}
    scipy.io.savemat(folder / "pokec/pokec.mat", content)
    if splits is None:
        splits = [dict(zip(("train", "valid", "test"), PARTS, strict=True)) for _ in range(5)]
    np.save(folder / "pokec/pokec-splits.npy", np.array(splits, dtype=object), allow_pickle=True)


def test_real_minesweeper_has_the_official_counts(real_data):
    dataset = read_benchmark("minesweeper", real_data / "nodes")
    assert dataset.features.shape == (10_000, 7)
    assert len(dataset.edges) == 2 * 39_402 + 10_000
    assert dataset.num_classes == 2 and dataset.metric == "roc_auc"
    assert len(dataset.splits) == 10
    with np.load(real_data / "nodes/minesweeper.npz") as raw:
        np.testing.assert_array_equal(dataset.splits[3].valid, np.flatnonzero(raw["val_masks"][3]))
        assert_edges(dataset.edges, raw["edges"], 10_000)
        np.testing.assert_array_equal(dataset.features, raw["node_features"])


def test_real_photo_has_the_official_counts(real_data, caplog):
    dataset = read_benchmark("amazon-photo", real_data / "nodes")
    assert dataset.features.shape == (7_650, 745)
    assert len(dataset.edges) == 2 * 119_081 + 7_650
    assert dataset.num_classes == 8 and dataset.metric == "accuracy"
    assert [len(part) for part in vars(dataset.splits[0]).values()] == [4_590, 1_530, 1_530]
    with np.load(real_data / "nodes/amazon_electronics_photo.npz") as raw:
        matrix = scipy.sparse.csr_matrix(
            (raw["attr_data"], raw["attr_indices"], raw["attr_indptr"]), shape=raw["attr_shape"]
        )
    ones = (matrix.toarray() > 0).astype(np.float32)
    np.testing.assert_allclose(dataset.features, ones / np.maximum(ones.sum(1, keepdims=True), 1), rtol=1e-6)
    assert caplog.text == ""


def test_find_benchmarks_on_real_data(real_data):
    found = find_benchmarks(real_data / "nodes")
    assert list(found) == list(BENCHMARKS)
    assert {name for name, path in found.items() if path} == {"minesweeper", "amazon-photo", "tolokers", "coauthor-cs"}


def test_directions_are_kept_if_asked_for(tmp_path):
    write_yandex(tmp_path)
    assert read_benchmark("tolokers", tmp_path).is_along is None
    dataset = read_benchmark("tolokers", tmp_path, directed=True)
    along = {tuple(edge) for edge in dataset.edges[dataset.is_along].tolist()}
    assert along == {tuple(edge) for edge in EDGES.tolist()} | {(node, node) for node in range(NUM_NODES)}
    assert not dataset.is_along.all()


def test_yandex_format(tmp_path, caplog):
    write_yandex(tmp_path)
    dataset = read_benchmark("tolokers", tmp_path)
    assert_dataset(dataset, num_splits=2)
    np.testing.assert_array_equal(dataset.features, FEATURES)
    assert dataset.metric == "roc_auc"
    assert "officially (11758, 10, 2)" in caplog.text  # other sizes than the real data set's give a warning


def test_shchur_format_binarises_and_normalises(tmp_path):
    write_shchur(tmp_path)
    dataset = read_benchmark("coauthor-cs", tmp_path)
    assert_dataset(dataset)
    expected = np.array([[1 / 2, 0, 1 / 2], [0, 0, 0], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]] * 3, np.float32)
    np.testing.assert_allclose(dataset.features, expected, rtol=1e-6)


def test_wikics_format_validates_on_val_and_stopping(tmp_path):
    write_wikics(tmp_path)
    dataset = read_benchmark("wikics", tmp_path)
    assert_dataset(dataset, num_splits=20)
    np.testing.assert_allclose(dataset.features, FEATURES, rtol=1e-6)
    assert_split(dataset.splits[19], PARTS)


@pytest.mark.parametrize(
    ("name", "folder", "split"),
    [("ogbn-arxiv", "arxiv", "time"), ("ogbn-products", "ogb/ogbn_products", "sales_ranking")],
)
def test_ogb_format(tmp_path, name, folder, split):
    write_ogb(tmp_path / folder, split)
    dataset = read_benchmark(name, tmp_path)
    assert_dataset(dataset)
    np.testing.assert_allclose(dataset.features, FEATURES, rtol=1e-6)


def test_pokec_format(tmp_path):
    write_pokec(tmp_path)
    dataset = read_benchmark("pokec", tmp_path)
    assert_dataset(dataset, num_splits=5)
    np.testing.assert_array_equal(dataset.features, FEATURES)


def test_pokec_as_doubles_with_unlabelled_nodes(tmp_path):
    labels = np.where(np.arange(NUM_NODES) == 11, -1, LABELS)
    write_pokec(tmp_path, labels=labels.astype(np.float64))
    dataset = read_benchmark("pokec", tmp_path)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.num_classes == 3


class Evil:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("the pickle was executed",))


@pytest.mark.parametrize("entry", [Evil(), {"train": Evil(), "valid": [1], "test": [2]}, {"train": [0]}, 3])
def test_pokec_splits_run_no_code(tmp_path, entry):
    write_pokec(tmp_path, splits=[entry, entry])
    with pytest.raises(BenchmarkDataError, match=r"pokec-splits\.npy: splits: found unreadable"):
        read_benchmark("pokec", tmp_path)


def test_pokec_splits_of_old_numpy_pickles(tmp_path):
    """Files written before numpy 2 contain the name numpy.core; pickle protocol 2 writes bytes with _codecs.encode."""
    write_pokec(tmp_path)
    path = tmp_path / "pokec/pokec-splits.npy"
    splits = np.array([dict(zip(("train", "valid", "test"), PARTS, strict=True))], dtype=object)
    body = pickle.dumps(splits, protocol=2).replace(b"numpy._core.", b"numpy.core.")
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        stream.write(body)
    assert_dataset(read_benchmark("pokec", tmp_path))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_make_undirected_equals_brute_force(dtype):
    rng = np.random.default_rng(3)
    for num_nodes, num_edges in ((1, 0), (1, 3), (5, 40), (200, 500)):
        edges = rng.integers(0, num_nodes, size=(num_edges, 2)).astype(dtype)
        before = edges.copy()
        assert_edges(make_undirected(edges, num_nodes), edges, num_nodes)
        np.testing.assert_array_equal(edges, before)


def test_make_undirected_does_not_overflow_int32():
    num_nodes = 100_000  # its square exceeds 2^32
    edges = np.array([[99_999, 99_998], [0, 99_999]], np.int32)
    found = {tuple(row) for row in make_undirected(edges, num_nodes).tolist() if row[0] != row[1]}
    assert found == {(99_999, 99_998), (99_998, 99_999), (0, 99_999), (99_999, 0)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": None}, r"tolokers\.npz: edges: found only .*expected the key"),
        ({"edges": EDGES + 5}, r"edges: found nodes 5\.\.15, expected 0\.\.11"),
        ({"edges": EDGES - 1}, r"edges: found nodes -1\.\."),
        ({"edges": EDGES.astype(float)}, r"edges: found float64 \(9, 2\), expected integers"),
        ({"node_labels": LABELS[:-1]}, r"features: found float32 \(12, 3\), expected numbers \[11, d\]"),
        ({"node_features": np.full_like(FEATURES, np.nan)}, r"features: found NaN"),
        ({"train_masks": np.ones((2, NUM_NODES), bool)}, r"split 0: found a node listed twice"),
        ({"val_masks": np.zeros((2, NUM_NODES), bool)}, r"split 0: found int64 \(3,\), int64 \(0,\), .*none empty"),
        ({"test_masks": np.zeros((2, 5), bool)}, r"train_masks, val_masks, test_masks: found shapes"),
        ({"node_labels": np.full(NUM_NODES, -1)}, r"split 0: found a node without label"),
        ({"node_features": np.array([None, {}])}, r"tolokers\.npz: file: found unreadable \(Object arrays"),
    ],
)
def test_bad_yandex_files(tmp_path, changes, message):
    write_yandex(tmp_path, **changes)
    with pytest.raises(BenchmarkDataError, match=message):
        read_benchmark("tolokers", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attr_indices": np.full(18, 3)}, r"attr_indices: found values 3\.\.3, expected 0\.\.2"),
        (
            {"adj_indptr": np.zeros(NUM_NODES + 1, int)},
            r"adj_indptr: found pointers 0\.\.0, expected rising from 0 to 8",
        ),
        ({"adj_shape": np.array([4, 4])}, r"adj_indptr: found shape \(13,\), expected \(5,\)"),
        ({"adj_shape": np.array([4])}, r"adj_shape: found shape \(1,\), expected \(2,\)"),
        ({"adj_indptr": np.zeros(0, int)}, r"adj_indptr: found shape \(0,\)"),
    ],
)
def test_bad_shchur_files(tmp_path, changes, message):
    write_shchur(tmp_path, **changes)
    with pytest.raises(BenchmarkDataError, match=message):
        read_benchmark("coauthor-cs", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": [[1.0], [1.0, 2.0]]}, r"features: found ragged"),
        ({"stopping_masks": [[True]]}, r"masks: found shapes"),
        ({"val_masks": [[True]]}, r"masks: found shapes"),
        ({"test_mask": [True, False]}, r"masks: found shapes"),
        ({"links": [["x"]] * NUM_NODES}, r"links: found"),
        ({"links": 3}, r"links: found"),
    ],
)
def test_bad_wikics_files(tmp_path, changes, message):
    write_wikics(tmp_path, **changes)
    with pytest.raises(BenchmarkDataError, match=message):
        read_benchmark("wikics", tmp_path)


@pytest.mark.parametrize("content", ["3", "[]", '"features"'])
def test_wikics_json_of_another_kind(tmp_path, content):
    (tmp_path / "wikics").mkdir()
    (tmp_path / "wikics/data.json").write_text(content)
    with pytest.raises(BenchmarkDataError, match=r"data\.json: file: found .*expected the keys features"):
        read_benchmark("wikics", tmp_path)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tolokers", "tolokers.npz"),
        ("coauthor-cs", "ms_academic_cs.npz"),
        ("coauthor-cs", "splits/coauthor-cs_split.npz"),
        ("wikics", "wikics/data.json"),
        ("ogbn-arxiv", "arxiv/raw/edge.csv.gz"),
        ("ogbn-arxiv", "arxiv/raw/node-feat.csv.gz"),
        ("ogbn-arxiv", "arxiv/split/time/valid.csv.gz"),
        ("pokec", "pokec/pokec.mat"),
        ("pokec", "pokec/pokec-splits.npy"),
    ],
)
@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty"])
def test_damaged_files_are_named(tmp_path, name, path, damage):
    write_yandex(tmp_path)
    write_shchur(tmp_path)
    write_wikics(tmp_path)
    write_ogb(tmp_path / "arxiv", "time")
    write_pokec(tmp_path)
    content = (tmp_path / path).read_bytes()
    damaged = {"truncated": content[: len(content) // 2], "garbage": b"\x00garbage\xff" * 100, "empty": b""}[damage]
    (tmp_path / path).write_bytes(damaged)
    with pytest.raises(BenchmarkDataError, match=path.rsplit("/", 1)[-1]):
        read_benchmark(name, tmp_path)


def test_bad_split_names_the_split_file(tmp_path):
    write_pokec(tmp_path, splits=[{"train": [0, 1], "valid": [2], "test": [NUM_NODES]}] * 2)
    with pytest.raises(BenchmarkDataError, match=r"pokec-splits\.npy: split 0: found nodes 0\.\.12, expected 0\.\.11"):
        read_benchmark("pokec", tmp_path)


def test_missing_files_name_the_command(tmp_path):
    write_shchur(tmp_path)
    (tmp_path / "splits/coauthor-cs_split.npz").unlink()
    assert find_benchmarks(tmp_path)["coauthor-cs"] is None
    with pytest.raises(
        BenchmarkDataError, match=r"coauthor-cs_split\.npz.*tpugraphs download --benchmarks coauthor-cs"
    ):
        read_benchmark("coauthor-cs", tmp_path)
    (tmp_path / "arxiv/raw").mkdir(parents=True)
    write_csv(tmp_path / "arxiv/raw/edge.csv.gz", EDGES)
    with pytest.raises(BenchmarkDataError, match=r"train\.csv\.gz"):
        read_benchmark("ogbn-arxiv", tmp_path)


def test_downloaded_files_land_where_the_loaders_look(tmp_path):
    for name, files in BENCHMARK_FILES.items():
        for file in files:
            path = tmp_path / file.path
            path = path.with_suffix("") / "raw/edge.csv.gz" if file.is_archive else path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        assert find_benchmarks(tmp_path)[name] is not None
