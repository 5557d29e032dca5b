"""Readers of the file formats in which the thirteen node-classification benchmarks are distributed."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.errors import UserError


class BenchmarkDataError(UserError):
    """A file of a benchmark is missing, or differs from the published format."""

    def __init__(
        self, path: Path, key: str, found: str, expected: str, advice: str = "delete the file and download it again"
    ) -> None:
        super().__init__(f"{path}: {key}: found {found}, expected {expected}; {advice}")


@dataclass(frozen=True)
class NodeSplit:
    """Node ids of one official split, each an int64 array."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class RawGraph:
    """The content of a benchmark's files: features [n, d], labels [n], edges [m, 2] as published, and splits."""

    features: np.ndarray
    labels: np.ndarray
    edges: np.ndarray
    splits: tuple[NodeSplit, ...]


def read_yandex(files: Mapping[str, Path]) -> RawGraph:
    """The graph of a heterophilous benchmark.

    An npz file: node_features, node_labels, edges [m, 2] in one direction, masks [splits, n].
    """
    arrays = _read_npz(
        files["data"], ("node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks")
    )
    masks = [arrays[key].astype(bool) for key in ("train_masks", "val_masks", "test_masks")]
    splits = _split_masks(files["data"], "train_masks, val_masks, test_masks", *masks)
    return RawGraph(arrays["node_features"], arrays["node_labels"], arrays["edges"], splits)


def read_shchur(files: Mapping[str, Path]) -> RawGraph:
    """The graph of a CSR npz (adj_*, attr_*, labels) and a split file; features are binarized, rows divided by sums."""
    path = files["data"]
    keys = [f"{part}_{field}" for part in ("adj", "attr") for field in ("data", "indices", "indptr", "shape")]
    arrays = _read_npz(path, (*keys, "labels"))
    split = _read_npz(files["split"], ("train", "valid", "test"))
    sources, targets, _ = _csr_entries(path, "adj", arrays)
    rows, columns, values = _csr_entries(path, "attr", arrays)
    features = np.zeros(tuple(arrays["attr_shape"]), np.float32)
    features[rows[values > 0], columns[values > 0]] = 1.0
    features /= np.maximum(features.sum(axis=1, keepdims=True), 1.0)
    edges = np.stack([sources, targets], axis=1)
    return RawGraph(features, arrays["labels"], edges, (NodeSplit(split["train"], split["valid"], split["test"]),))


def read_wikics(files: Mapping[str, Path]) -> RawGraph:
    """The graph of WikiCS's data.json; validation nodes are val | stopping, and all splits share one test mask."""
    path = files["data"]
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchmarkDataError(path, "file", f"unreadable JSON ({error})", "the published data.json") from error
    keys = ("features", "labels", "links", "train_masks", "val_masks", "stopping_masks", "test_mask")
    _require_keys(path, content, keys)
    train, val, stopping, test = (_json_array(path, content, key, bool) for key in keys[3:])
    if not train.shape == val.shape == stopping.shape:
        raise BenchmarkDataError(path, "masks", f"shapes {train.shape}, {val.shape}, {stopping.shape}", "equal shapes")
    splits = _split_masks(path, "masks", train, val | stopping, np.repeat(test[np.newaxis], len(train), axis=0))
    features, labels = _json_array(path, content, "features", np.float32), _json_array(path, content, "labels", int)
    return RawGraph(features, labels, _links_to_edges(path, content["links"]), splits)


def read_ogb(files: Mapping[str, Path], *, split_name: str) -> RawGraph:
    """The graph of an OGB folder.

    Files without headers: raw/{edge,node-feat,node-label}.csv.gz, split/<split_name>/{train,valid,test}.csv.gz.
    """
    folder = files["data"].parent.parent
    raw = folder / "raw"
    parts = (
        _read_csv(folder / "split" / split_name / f"{part}.csv.gz", np.int64) for part in ("train", "valid", "test")
    )
    split = NodeSplit(*(part.reshape(-1) for part in parts))
    labels = _read_csv(raw / "node-label.csv.gz", np.int64).reshape(-1)
    features = _read_csv(raw / "node-feat.csv.gz", np.float32)
    return RawGraph(features, labels, _read_csv(raw / "edge.csv.gz", np.int32), (split,))


def read_pokec(files: Mapping[str, Path]) -> RawGraph:
    """The graph of pokec.mat (edge_index [2, m], node_feat, label, num_nodes) and pokec-splits.npy (array of dicts)."""
    import scipy.io

    path = files["data"]
    keys = ("edge_index", "node_feat", "label", "num_nodes")
    try:
        content = scipy.io.loadmat(path, variable_names=keys)
    except (OSError, ValueError, TypeError, NotImplementedError, scipy.io.matlab.MatReadError) as error:
        raise BenchmarkDataError(path, "file", f"unreadable ({error})", "a MATLAB 5 file") from error
    _require_keys(path, content, keys)
    num_nodes = int(content["num_nodes"].item())
    features = np.asarray(content["node_feat"], np.float32)
    if len(features) != num_nodes:
        raise BenchmarkDataError(path, "node_feat", f"{len(features)} rows", f"num_nodes = {num_nodes} rows")
    labels, edges = (_whole_numbers(path, key, content[key]) for key in ("label", "edge_index"))
    return RawGraph(features, labels.reshape(-1), edges.T, _read_pickled_splits(files["split"]))


def _read_npz(path: Path, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            _require_keys(path, archive, keys)
            return {key: archive[key] for key in keys}
    except BenchmarkDataError:
        raise
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise BenchmarkDataError(path, "file", f"unreadable ({error})", "an npz archive of plain arrays") from error


def _require_keys(path: Path, content: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(content, Mapping):
        raise BenchmarkDataError(path, "file", type(content).__name__, f"the keys {', '.join(keys)}")
    for key in keys:
        if key not in content:
            raise BenchmarkDataError(path, key, f"only {', '.join(content) or 'nothing'}", "the key")


def _whole_numbers(path: Path, key: str, array: np.ndarray) -> np.ndarray:
    """The array as integers: MATLAB writes integers as doubles, which become int64."""
    if np.issubdtype(array.dtype, np.floating):
        if not (np.isfinite(array).all() and (array == np.rint(array)).all()):
            raise BenchmarkDataError(path, key, "fractions or NaN", "whole numbers")
        return array.astype(np.int64)
    return array


def _json_array(path: Path, content: Mapping[str, Any], key: str, dtype: type) -> np.ndarray:
    try:
        return np.asarray(content[key], dtype)
    except (ValueError, TypeError) as error:
        raise BenchmarkDataError(path, key, f"ragged or non-numeric lists ({error})", "a rectangular array") from error


def _links_to_edges(path: Path, links: list[list[int]]) -> np.ndarray:
    """Edges [m, 2] of neighbour lists, one per node."""
    try:
        sources = np.repeat(np.arange(len(links)), [len(targets) for targets in links])
        targets = np.fromiter((target for targets in links for target in targets), np.int64, len(sources))
    except (ValueError, TypeError) as error:
        raise BenchmarkDataError(path, "links", str(error), "one list of node ids per node") from error
    return np.stack([sources, targets], axis=1)


def _split_masks(path: Path, key: str, train: np.ndarray, valid: np.ndarray, test: np.ndarray) -> tuple[NodeSplit, ...]:
    """The splits of boolean masks [splits, n]."""
    if train.ndim != 2 or not train.shape == valid.shape == test.shape:
        raise BenchmarkDataError(
            path, key, f"shapes {train.shape}, {valid.shape}, {test.shape}", "[splits, nodes] each"
        )
    return tuple(NodeSplit(*map(np.flatnonzero, masks)) for masks in zip(train, valid, test, strict=True))


def _csr_entries(path: Path, part: str, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and values of a CSR matrix, after a check of its pointers and indices."""
    indices, pointers, values = (arrays[f"{part}_{field}"] for field in ("indices", "indptr", "data"))
    shape = arrays[f"{part}_shape"]
    if shape.shape != (2,):
        raise BenchmarkDataError(path, f"{part}_shape", f"shape {shape.shape}", "(2,)")
    num_rows, num_columns = shape.tolist()
    if pointers.shape != (num_rows + 1,):
        raise BenchmarkDataError(path, f"{part}_indptr", f"shape {pointers.shape}", f"({num_rows + 1},)")
    lengths = np.diff(pointers)
    if not (pointers[0] == 0 and (lengths >= 0).all() and pointers[-1] == len(indices) == len(values)):
        found = f"pointers {pointers[0]}..{pointers[-1]}"
        raise BenchmarkDataError(path, f"{part}_indptr", found, f"rising from 0 to {len(indices)}")
    if len(indices) and not (indices.min() >= 0 and indices.max() < num_columns):
        found = f"values {indices.min()}..{indices.max()}"
        raise BenchmarkDataError(path, f"{part}_indices", found, f"0..{num_columns - 1}")
    return np.repeat(np.arange(num_rows), lengths), indices, values


def _read_csv(path: Path, dtype: type) -> np.ndarray:
    """[rows, columns] of a csv.gz without header; pandas is fast enough for the tens of millions of products rows."""
    import pandas

    try:
        return pandas.read_csv(path, header=None, dtype=dtype, compression="gzip").to_numpy()
    except (OSError, EOFError, ValueError, OverflowError) as error:
        expected = f"a gzip csv of {np.dtype(dtype).name} values without header"
        raise BenchmarkDataError(path, "file", f"unreadable ({error})", expected) from error


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler of dicts, lists, strings and numpy arrays; it refuses other classes, so no code of a file runs."""

    _allowed = frozenset(
        (module, name)
        for module, names in {
            "numpy": ("ndarray", "dtype"),
            "numpy.core.multiarray": ("_reconstruct", "scalar"),
            "numpy._core.multiarray": ("_reconstruct", "scalar"),
            "numpy._core.numeric": ("_frombuffer",),
            "numpy.core.numeric": ("_frombuffer",),
            "_codecs": ("encode",),
        }.items()
        for name in names
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"refused to load {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_pickled_splits(path: Path) -> tuple[NodeSplit, ...]:
    """The splits of a LINKX file: a pickled object array of dicts with train, valid and test."""
    try:
        with path.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            read_header = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            read_header(stream)
            entries = np.asarray(_PlainUnpickler(stream, encoding="latin1").load(), dtype=object).reshape(-1)
        return tuple(
            NodeSplit(*(np.asarray(entry[part], np.int64) for part in ("train", "valid", "test"))) for entry in entries
        )
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, pickle.UnpicklingError) as error:
        expected = "an object array of dicts train, valid, test holding numpy arrays"
        raise BenchmarkDataError(path, "splits", f"unreadable ({error})", expected) from error
