"""The thirteen node-classification benchmarks, read from their published files and made undirected with self-loops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.catalog import BENCHMARKS, find_benchmark
from tpugraphs_polynormer.nodes.files import (
    BenchmarkDataError,
    NodeSplit,
    RawGraph,
    read_ogb,
    read_pokec,
    read_shchur,
    read_wikics,
    read_yandex,
)

__all__ = ["BenchmarkDataError", "NodeDataset", "NodeSplit", "find_benchmarks", "make_undirected", "read_benchmark"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeDataset:
    """One graph with labelled nodes.

    Edges are rows [source, target], sorted by target, then source: both directions of each undirected edge once, and
    exactly one self-loop per node. A node without a label has a label below 0, and is in no split. `is_along` tells the
    published directions, if they were asked for.
    """

    name: str
    features: np.ndarray  # float32 [num_nodes, feature_dim]
    labels: np.ndarray  # int64 [num_nodes]
    edges: np.ndarray  # int64 [num_edges, 2]
    splits: tuple[NodeSplit, ...]
    num_classes: int
    metric: str  # "accuracy" or "roc_auc"
    is_along: np.ndarray | None = None  # bool [num_edges]: True for published directions and self-loops

    @property
    def num_nodes(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class _Source:
    """The reader of a benchmark, and the possible paths of its files below the data folder; the first existing wins."""

    read: Callable[[Mapping[str, Path]], RawGraph]
    paths: Mapping[str, tuple[str, ...]]


def _yandex(stem: str) -> _Source:
    return _Source(read_yandex, {"data": (f"{stem}.npz", f"{stem}/{stem}.npz", f"{stem}/raw/{stem}.npz")})


def _shchur(name: str, stem: str, torch_folder: str) -> _Source:
    data = (f"{stem}.npz", f"{name}/{stem}.npz", f"{torch_folder}/raw/{stem}.npz")
    split = (f"splits/{name}_split.npz", f"{name}_split.npz", f"{name}/{name}_split.npz")
    return _Source(read_shchur, {"data": data, "split": split})


def _ogb(short: str, split_name: str) -> _Source:
    folders = (short, f"ogbn_{short}", f"ogb/ogbn_{short}")
    paths = {"data": tuple(f"{folder}/raw/edge.csv.gz" for folder in folders)}
    return _Source(partial(read_ogb, split_name=split_name), paths)


_SOURCES: dict[str, _Source] = {
    "amazon-computer": _shchur("amazon-computer", "amazon_electronics_computers", "Amazon/Computers"),
    "amazon-photo": _shchur("amazon-photo", "amazon_electronics_photo", "Amazon/Photo"),
    "coauthor-cs": _shchur("coauthor-cs", "ms_academic_cs", "Coauthor/CS"),
    "coauthor-physics": _shchur("coauthor-physics", "ms_academic_phy", "Coauthor/Physics"),
    "wikics": _Source(read_wikics, {"data": ("wikics/data.json", "wikics/raw/data.json")}),
    "roman-empire": _yandex("roman_empire"),
    "amazon-ratings": _yandex("amazon_ratings"),
    "minesweeper": _yandex("minesweeper"),
    "tolokers": _yandex("tolokers"),
    "questions": _yandex("questions"),
    "ogbn-arxiv": _ogb("arxiv", "time"),
    "ogbn-products": _ogb("products", "sales_ranking"),
    "pokec": _Source(
        read_pokec,
        {
            "data": ("pokec/pokec.mat", "pokec.mat", "pokec/raw/pokec.mat"),
            "split": ("pokec/pokec-splits.npy", "pokec-splits.npy", "splits/pokec-splits.npy"),
        },
    ),
}


def read_benchmark(name: str, folder: Path, *, directed: bool = False) -> NodeDataset:
    """One benchmark, read from the data folder and checked, its graph undirected with self-loops.

    `directed` keeps which edges have a published direction; a file may list both directions of an edge, or one.
    """
    benchmark = find_benchmark(name)
    files = _find_files(name, folder)
    path = files["data"]
    raw = _SOURCES[name].read(files)
    _check_arrays(path, raw)
    labels = raw.labels.astype(np.int64)
    splits = tuple(_check_split(files, number, split, labels) for number, split in enumerate(raw.splits))
    features = np.ascontiguousarray(raw.features, np.float32)
    edges = make_undirected(raw.edges, len(labels))
    is_along = find_along(edges, raw.edges, len(labels)) if directed else None
    dataset = NodeDataset(name, features, labels, edges, splits, int(labels.max()) + 1, benchmark.metric, is_along)
    found = (dataset.num_nodes, features.shape[1], dataset.num_classes)
    official = (benchmark.num_nodes, benchmark.num_features, benchmark.num_classes)
    if found != official:
        _logger.warning("%s: nodes, features, classes are %s, officially %s", path, found, official)
    return dataset


def find_benchmarks(folder: Path) -> dict[str, Path | None]:
    """The data file of each benchmark below a folder, or None if one of its files is missing."""
    located = {name: _locate(name, folder) for name in BENCHMARKS}
    return {name: None if None in files.values() else files["data"] for name, files in located.items()}


def make_undirected(edges: np.ndarray, num_nodes: int) -> np.ndarray:
    """int64 [e, 2], rows [source, target]: both directions of the edges [m, 2], without duplicates, with self-loops.

    Each edge is one int64 key, target * num_nodes + source, so that one in-place sort orders and deduplicates.
    """
    first, second = edges[:, 0], edges[:, 1]
    size = len(edges)
    keys = np.empty(2 * size + num_nodes, np.int64)
    for part, targets, sources in ((keys[:size], first, second), (keys[size : 2 * size], second, first)):
        np.multiply(targets, num_nodes, out=part, dtype=np.int64, casting="unsafe")
        np.add(part, sources, out=part, casting="unsafe")
    keys[2 * size :] = np.arange(num_nodes, dtype=np.int64) * (num_nodes + 1)
    keys.sort()
    keep = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=keep[1:])
    keys = keys[keep]
    result = np.empty((len(keys), 2), np.int64)
    np.floor_divide(keys, num_nodes, out=result[:, 1])
    np.remainder(keys, num_nodes, out=result[:, 0])
    return result


def find_along(edges: np.ndarray, published: np.ndarray, num_nodes: int) -> np.ndarray:
    """bool [e]: which edges [e, 2] of `make_undirected` are in the list [m, 2] that it was made of, or are loops."""
    keys, wanted = (each[:, 1].astype(np.int64) * num_nodes + each[:, 0] for each in (edges, published))
    return np.isin(keys, wanted) | (edges[:, 0] == edges[:, 1])


def _locate(name: str, folder: Path) -> dict[str, Path | None]:
    """The first existing path of each of a benchmark's files, by its role."""
    paths = {role: [folder / path for path in paths] for role, paths in _SOURCES[name].paths.items()}
    return {role: next(filter(Path.is_file, each), None) for role, each in paths.items()}


def _find_files(name: str, folder: Path) -> dict[str, Path]:
    files = _locate(name, folder)
    for role, path in files.items():
        if path is None:
            expected = f"one of {', '.join(_SOURCES[name].paths[role])}"
            advice = f"get it with: tpugraphs download --benchmarks {name} --files {folder}"
            raise BenchmarkDataError(folder, name, f"no {role} file", expected, advice)
    return files


def _check_arrays(path: Path, raw: RawGraph) -> None:
    features, labels, edges = raw.features, raw.labels, raw.edges
    if labels.ndim != 1 or not len(labels) or not np.issubdtype(labels.dtype, np.integer):
        raise BenchmarkDataError(path, "labels", f"{labels.dtype} {labels.shape}", "integers [nodes]")
    num_nodes = len(labels)
    if features.ndim != 2 or len(features) != num_nodes or not np.issubdtype(features.dtype, np.number):
        raise BenchmarkDataError(path, "features", f"{features.dtype} {features.shape}", f"numbers [{num_nodes}, d]")
    if not np.isfinite(features).all():
        raise BenchmarkDataError(path, "features", "NaN or infinite values", "finite values")
    if edges.ndim != 2 or edges.shape[1] != 2 or not np.issubdtype(edges.dtype, np.integer):
        raise BenchmarkDataError(path, "edges", f"{edges.dtype} {edges.shape}", "integers [edges, 2]")
    if len(edges) and not (edges.min() >= 0 and edges.max() < num_nodes):
        raise BenchmarkDataError(path, "edges", f"nodes {edges.min()}..{edges.max()}", f"0..{num_nodes - 1}")
    if not raw.splits:
        raise BenchmarkDataError(path, "splits", "none", "at least one split")


def _check_split(files: Mapping[str, Path], number: int, split: NodeSplit, labels: np.ndarray) -> NodeSplit:
    """The split as int64; BenchmarkDataError unless its parts are non-empty, disjoint lists of labelled nodes."""
    path = files["split"] if "split" in files else files["data"]
    key = f"split {number}"
    parts = (split.train, split.valid, split.test)
    if not all(part.ndim == 1 and len(part) and np.issubdtype(part.dtype, np.integer) for part in parts):
        found = ", ".join(f"{part.dtype} {part.shape}" for part in parts)
        raise BenchmarkDataError(path, key, found, "integers [nodes] in train, valid and test, none empty")
    nodes = np.concatenate(parts).astype(np.int64)
    if nodes.min() < 0 or nodes.max() >= len(labels):
        raise BenchmarkDataError(path, key, f"nodes {nodes.min()}..{nodes.max()}", f"0..{len(labels) - 1}")
    if np.bincount(nodes).max() > 1:
        raise BenchmarkDataError(path, key, "a node listed twice", "disjoint train, valid and test")
    if labels[nodes].min() < 0:
        raise BenchmarkDataError(path, key, "a node without label", "labels of 0 or more")
    return NodeSplit(*(part.astype(np.int64) for part in parts))
