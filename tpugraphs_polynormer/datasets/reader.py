"""A preprocessed collection on disk, for any framework: graphs and candidates as numpy arrays, without TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.archives.noise import typical_noise
from tpugraphs_polynormer.catalog import NUM_NODE_FEATURES
from tpugraphs_polynormer.checksums import compare_file
from tpugraphs_polynormer.datasets.encoding import CONFIG_VALUE_DIMS
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME, DatasetError, Manifest, ShardEntry, read_manifest
from tpugraphs_polynormer.datasets.physics import GraphPhysics, PhysicsCache, StoredGraph
from tpugraphs_polynormer.datasets.records import RECORD_FRAMING, parse_example
from tpugraphs_polynormer.datasets.split_files import (
    CODE_TYPES,
    SplitFiles,
    candidate_bytes,
    candidate_file_bytes,
    shard_files,
)
from tpugraphs_polynormer.datasets.targets import read_costs


def open_dataset(folder: Path | str) -> RankingDataset:
    """The dataset in a folder that `tpugraphs preprocess` wrote for one collection.

    Example, on a layout collection with 8 train graphs:

    >>> dataset = open_dataset("datasets/layout/xla/random")
    >>> train = dataset.split("train")
    >>> len(train)
    8
    >>> graph = train[1]
    >>> graph.name, graph.features.shape, graph.num_candidates
    ('graph1', (13, 140), 9)
    >>> drawn = graph.draw(4, seed=0)
    >>> drawn.config_values.shape  # the layouts of 4 candidates at 3 config nodes
    (4, 3, 18)
    >>> drawn.costs.shape, drawn.costs.dtype  # nanoseconds
    ((4,), dtype('int64'))

    Raises:
      DatasetError: the folder holds no finished dataset, or its files do not agree with the manifest.
    """
    return RankingDataset(folder)


@dataclass(frozen=True)
class CandidateDraw:
    """Candidates of one graph, decoded.

    Attributes:
      numbers: int64 [k], the candidates' numbers in the graph.
      rows: int32 [k], their (first) rows in the npz archive.
      codes: unsigned [k, s], for each of the s config nodes the row of its value in `RankingGraph.config_values`.
      config_values: float32 [k, s, 18] layouts, or [k, 3, 8] kernel, output and input bounds of tiles.
      costs: [k], lower is faster: int64 nanoseconds of layouts, float64 runtime over the default's runtime of tiles.
        All are 0 where runtimes are hidden.
    """

    numbers: np.ndarray
    rows: np.ndarray
    codes: np.ndarray
    config_values: np.ndarray
    costs: np.ndarray


@dataclass(frozen=True)
class RankingGraph:
    """One graph of a dataset as numpy arrays, and access to its candidates.

    Attributes:
      name: the archive's file name without `.npz`.
      features: float32 [n, 140], the raw node features.
      opcodes: int64 [n].
      operands: int64 [n], operand order and contracting dimensions (`hlo.operands.unpack_operands`); 0 if unknown.
      node_ids: int64 [n], the node's row in the archive; 0..n-1 unless the graph was pruned.
      edge_index: int64 [m, 2], rows (consumer, producer), sorted. `edge_index[:, ::-1].T` has PyTorch Geometric's form,
        (source, target) in two rows.
      nconfig_ops: int64 [s], the node that each config node of a layout graph belongs to; empty for tiles.
      config_values: float32 [v, 18], or [v, 8] for tiles: the distinct values that the config nodes take.
      num_candidates: the number of its candidates.
    """

    name: str
    features: np.ndarray
    opcodes: np.ndarray
    operands: np.ndarray
    node_ids: np.ndarray
    edge_index: np.ndarray
    nconfig_ops: np.ndarray
    config_values: np.ndarray
    num_candidates: int
    _files: SplitFiles
    _number: int

    def draw(self, k: int, seed: int) -> CandidateDraw:
        """Up to k distinct candidates, drawn uniformly, in random order; the same seed gives the same ones."""
        if k < 1:
            raise DatasetError(f"{self.name}: cannot draw {k} candidates, expected at least 1")
        random = np.random.default_rng((seed, self._number))
        return self.read_candidates(random.choice(self.num_candidates, min(k, self.num_candidates), replace=False))

    def read_candidates(self, numbers: np.ndarray) -> CandidateDraw:
        """The candidates with these numbers [k]; reads nothing else of the file."""
        numbers = np.asarray(numbers, np.int64)
        codes = self._files.read_codes(self._number, numbers)
        return CandidateDraw(
            numbers=numbers,
            rows=self._files.read_column(self._number, "rows", numbers),
            codes=codes,
            config_values=self.config_values[codes],
            costs=self.read_costs(numbers),
        )

    def read_costs(self, numbers: np.ndarray | None = None) -> np.ndarray:
        """[c]: the costs of all candidates, or of the numbered ones [k]; see `CandidateDraw.costs`."""
        return read_costs(self._files, self._number, numbers)


class RankingSplit(SplitFiles):
    """One split of a collection: a sequence of graphs, which are read when they are indexed."""

    def __init__(self, folder: Path, kind: str, shards: tuple[ShardEntry, ...], typical_noise: float) -> None:
        super().__init__(folder, kind, shards)
        self._typical_noise = typical_noise
        self._physics = PhysicsCache()

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, number: int) -> RankingGraph:
        if not -len(self) <= number < len(self):
            raise IndexError(f"graph {number} of a split of {len(self)} graphs")
        number %= len(self)
        parsed = parse_example(self.read_record(number))
        return RankingGraph(
            name=parsed["context/name"],
            features=parsed["nodes/op.features"].reshape(-1, NUM_NODE_FEATURES),
            opcodes=parsed["nodes/op.opcode"],
            operands=parsed["nodes/op.operands"],
            node_ids=parsed["nodes/op.node_id"],
            edge_index=np.stack([parsed["edges/feed.#target"], parsed["edges/feed.#source"]], axis=1),
            nconfig_ops=parsed.get("edges/config.#target", np.zeros(0, np.int64)),
            config_values=parsed["nodes/config_value.values"].reshape(-1, CONFIG_VALUE_DIMS[self.kind]),
            num_candidates=self.graphs[number].num_candidates,
            _files=self,
            _number=number,
        )

    def physics(self, number: int) -> GraphPhysics:
        """The analytic cost model of a graph, which is kept for the next call."""
        return self._physics.find(number, self._price_graph)

    def _price_graph(self, number: int) -> GraphPhysics:
        graph = self[number]
        stored = {name: getattr(graph, name) for name in StoredGraph._fields if name != "kind"}
        return GraphPhysics(
            StoredGraph(**stored, kind=self.kind), lambda candidates: self.read_codes(number, candidates)
        )

    def noise(self, number: int) -> float:
        """The measurement noise of a graph (see noise.py), or the collection's typical noise if it is unknown."""
        noise = self.graphs[number].noise
        return self._typical_noise if noise is None else noise


class RankingDataset:
    """A preprocessed collection: its `manifest`, and its splits."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        shards = [shard for split in self.manifest.splits.values() for shard in split.shards]
        for shard in shards:
            self._check_sizes(shard)
        self._typical_noise = typical_noise(graph.noise for shard in shards for graph in shard.graphs)

    @property
    def parts(self) -> tuple[RankingDataset, ...]:
        """The datasets of single collections that this one is made of: itself."""
        return (self,)

    def split(self, name: str) -> RankingSplit:
        """The split "train", "valid" or "test", opened."""
        if name not in self.manifest.splits:
            found = ", ".join(self.manifest.splits)
            raise DatasetError(f"{self.folder}: no split {name!r}, found {found}; preprocess it too")
        if not self.manifest.splits[name].num_graphs:
            left_out = f"archives rejected in preprocessing: {self.manifest.num_rejected:,}"
            raise DatasetError(f"{self.folder}: the {name} split has no graphs ({left_out}); preprocess again")
        return RankingSplit(self.folder, self.manifest.kind, self.manifest.splits[name].shards, self._typical_noise)

    def verify(self) -> None:
        """Reads every shard file and compares its checksum; raises DatasetError that names the first bad file."""
        for split in self.manifest.splits.values():
            for shard in split.shards:
                for suffix, expected in shard_files(shard).items():
                    fault = compare_file(self.folder / (shard.name + suffix), *expected)
                    if fault:
                        raise DatasetError(f"{fault.path}: {fault.found}, expected {fault.expected}; preprocess again")

    def _check_sizes(self, shard: ShardEntry) -> None:
        for suffix, (expected, _) in shard_files(shard).items():
            path = self.folder / (shard.name + suffix)
            found = path.stat().st_size if path.is_file() else None
            if found != expected:
                state = "is missing" if found is None else f"has {found:,} bytes"
                raise DatasetError(f"{path}: {state}, the manifest says {expected:,} bytes; preprocess again")
        check_spans(self.folder, shard)


def check_spans(folder: Path, shard: ShardEntry) -> None:
    """Raises DatasetError unless the graphs of a shard are inside its files, as the manifest describes both."""
    for graph in shard.graphs:
        spans = {
            "record_offset": (graph.record_offset, graph.record_length + RECORD_FRAMING, shard.record_bytes),
            "code_bytes": (graph.code_bytes, 0, max(CODE_TYPES) if graph.code_bytes in CODE_TYPES else 0),
            "codes_offset": (graph.codes_offset, candidate_bytes(graph), shard.candidate_bytes),
        }
        for name, (start, size, end) in spans.items():
            if min(start, size, *graph.sizes) < 0 or start + size > end:
                where = f"{folder / MANIFEST_NAME}: {shard.name}: {graph.name}.{name}"
                raise DatasetError(f"{where}: {start} and {size} bytes on do not fit in {end} bytes; preprocess again")
    expected = candidate_file_bytes(shard.graphs)
    if shard.candidate_bytes != expected:
        found = f"{shard.name}.candidate_bytes: found {shard.candidate_bytes:,}, its graphs take {expected:,}"
        raise DatasetError(f"{folder / MANIFEST_NAME}: {found}; preprocess again")
