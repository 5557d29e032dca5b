"""A preprocessed collection on disk: shards written once, then any graph and any of its candidates read alone.

`<shard>.tfrecord` holds the GraphTensors. `<shard>.candidates` holds, per graph at its `codes_offset`, one after the
other: codes [c, num_config_nodes], then (from the next multiple of 8 bytes) runtimes [c] int64, normalizers [c] int64,
rows [c] int32 and counts [c] int32 (see encoding.Candidates). Fixed widths: a candidate is found by its number.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.archives.noise import typical_noise
from tpugraphs_polynormer.datasets.encoding import Candidates
from tpugraphs_polynormer.datasets.manifest import (
    MANIFEST_NAME,
    DatasetError,
    GraphEntry,
    Manifest,
    ShardEntry,
    read_manifest,
)
from tpugraphs_polynormer.datasets.records import RECORD_FRAMING, RECORD_HEADER
from tpugraphs_polynormer.files import hash_file

RECORD_SUFFIX, CANDIDATE_SUFFIX = ".tfrecord", ".candidates"
_CODE_TYPES = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
# What follows a graph's codes, in this order.
_COLUMNS = {
    "runtimes": np.dtype("<i8"),
    "normalizers": np.dtype("<i8"),
    "rows": np.dtype("<i4"),
    "counts": np.dtype("<i4"),
}


def write_candidates(stream, candidates: Candidates) -> None:
    """Appends one graph's candidates to an open shard file."""
    codes = np.ascontiguousarray(candidates.codes)
    stream.write(codes.data.cast("B") if codes.size else b"")
    stream.write(bytes(-codes.nbytes % 8))
    for name, dtype in _COLUMNS.items():
        stream.write(getattr(candidates, name).astype(dtype).tobytes())


def candidate_bytes(entry: GraphEntry) -> int:
    """How many bytes `write_candidates` takes for a graph."""
    row = sum(dtype.itemsize for dtype in _COLUMNS.values())
    return _codes_bytes(entry) + entry.num_candidates * row


def _codes_bytes(entry: GraphEntry) -> int:
    size = entry.num_candidates * entry.num_config_nodes * entry.code_bytes
    return size + -size % 8


class RankingSplit:
    """One split of a collection, opened: graphs by number 0..len-1, in the order of the manifest."""

    def __init__(self, folder: Path, shards: Sequence[ShardEntry], typical_noise: float) -> None:
        self._folder = folder
        self._typical_noise = typical_noise
        self.graphs: list[GraphEntry] = []
        self._shards: list[ShardEntry] = []
        self._files: dict[str, int] = {}
        for shard in shards:
            self.graphs += shard.graphs
            self._shards += [shard] * len(shard.graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def noise(self, number: int) -> float:
        """The graph's measurement noise (see noise.py); that of the collection where it is not known."""
        noise = self.graphs[number].noise
        return self._typical_noise if noise is None else noise

    def read_record(self, number: int) -> bytes:
        """The graph's serialized GraphTensor."""
        entry = self.graphs[number]
        offset = entry.record_offset + RECORD_HEADER
        return self._read(number, RECORD_SUFFIX, [(offset, entry.record_length)])[0]

    def read_codes(self, number: int, candidates: np.ndarray) -> np.ndarray:
        """[k] candidate numbers -> their codes [k, num_config_nodes]; reads only these, whatever the graph holds."""
        entry = self.graphs[number]
        self._check_candidates(entry, candidates)
        width = entry.num_config_nodes * entry.code_bytes
        spans = [(entry.codes_offset + int(candidate) * width, width) for candidate in candidates]
        data = b"".join(self._read(number, CANDIDATE_SUFFIX, spans))
        return np.frombuffer(data, _CODE_TYPES[entry.code_bytes]).reshape(len(candidates), entry.num_config_nodes)

    def read_column(self, number: int, name: str, candidates: np.ndarray | None = None) -> np.ndarray:
        """ "runtimes", "normalizers", "rows" or "counts" of all candidates [c], or of the [k] named ones alone."""
        entry = self.graphs[number]
        offset = entry.codes_offset + _codes_bytes(entry)
        for column, dtype in _COLUMNS.items():
            if column == name:
                break
            offset += entry.num_candidates * dtype.itemsize
        spans = [(offset, entry.num_candidates * dtype.itemsize)]
        if candidates is not None:
            self._check_candidates(entry, candidates)
            spans = [(offset + int(candidate) * dtype.itemsize, dtype.itemsize) for candidate in candidates]
        return np.frombuffer(b"".join(self._read(number, CANDIDATE_SUFFIX, spans)), dtype)

    def read_block(self, number: int, start: int, stop: int) -> np.ndarray:
        """The codes of candidates start..stop-1: [stop - start, num_config_nodes]."""
        entry = self.graphs[number]
        width = entry.num_config_nodes * entry.code_bytes
        data = self._read(number, CANDIDATE_SUFFIX, [(entry.codes_offset + start * width, (stop - start) * width)])[0]
        return np.frombuffer(data, _CODE_TYPES[entry.code_bytes]).reshape(stop - start, entry.num_config_nodes)

    @staticmethod
    def _check_candidates(entry: GraphEntry, candidates: np.ndarray) -> None:
        if len(candidates) and not 0 <= np.min(candidates) <= np.max(candidates) < entry.num_candidates:
            found = f"candidates {np.min(candidates)}..{np.max(candidates)}"
            raise DatasetError(f"{entry.name}: found {found}, expected numbers in 0..{entry.num_candidates - 1}")

    def _read(self, number: int, suffix: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        name = self._shards[number].name + suffix
        file = self._open(name)
        found = [os.pread(file, size, offset) for offset, size in spans]
        if any(len(data) != size for data, (_, size) in zip(found, spans, strict=True)):
            raise DatasetError(f"{self._folder / name}: ends early; preprocess again")
        return found

    def _open(self, name: str) -> int:
        if name not in self._files:
            try:
                opened = os.open(self._folder / name, os.O_RDONLY)
            except OSError as fault:
                raise DatasetError(f"{self._folder / name}: {fault.strerror}; preprocess again") from None
            if self._files.setdefault(name, opened) != opened:
                os.close(opened)  # another thread of the input pipeline was faster
        return self._files[name]

    def close(self) -> None:
        """Closes the files; a later read opens them again."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_files": {}}  # descriptors mean nothing in another process


class RankingDataset:
    """A preprocessed collection: `manifest`, and its splits opened on demand."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        shards = [shard for split in self.manifest.splits.values() for shard in split.shards]
        for shard in shards:
            self._check_sizes(shard)
        self._typical_noise = typical_noise(graph.noise for shard in shards for graph in shard.graphs)

    def split(self, name: str) -> RankingSplit:
        """Opens "train", "valid" or "test"."""
        if name not in self.manifest.splits:
            found = ", ".join(self.manifest.splits)
            raise DatasetError(f"{self.folder}: no split {name!r}, found {found}; preprocess it too")
        return RankingSplit(self.folder, self.manifest.splits[name].shards, self._typical_noise)

    def verify(self) -> None:
        """Reads every shard and compares its checksum; raises DatasetError that names the first bad file."""
        for split in self.manifest.splits.values():
            for shard in split.shards:
                for suffix, expected in shard_checksums(shard).items():
                    path = self.folder / (shard.name + suffix)
                    found = hash_file(path)
                    if found != expected:
                        raise DatasetError(f"{path}: sha256 {found}, expected {expected}; preprocess again")

    def _check_sizes(self, shard: ShardEntry) -> None:
        for suffix, expected in ((RECORD_SUFFIX, shard.record_bytes), (CANDIDATE_SUFFIX, shard.candidate_bytes)):
            path = self.folder / (shard.name + suffix)
            found = path.stat().st_size if path.is_file() else None
            if found != expected:
                state = "is missing" if found is None else f"has {found:,} bytes"
                raise DatasetError(f"{path}: {state}, the manifest says {expected:,} bytes; preprocess again")
        for graph in shard.graphs:
            self._check_spans(shard, graph)

    def _check_spans(self, shard: ShardEntry, graph: GraphEntry) -> None:
        spans = {
            "record_offset": (graph.record_offset, graph.record_length + RECORD_FRAMING, shard.record_bytes),
            "code_bytes": (graph.code_bytes, 0, max(_CODE_TYPES) if graph.code_bytes in _CODE_TYPES else 0),
            "codes_offset": (graph.codes_offset, candidate_bytes(graph), shard.candidate_bytes),
        }
        for field, (start, size, end) in spans.items():
            if min(start, size, *graph.sizes) < 0 or start + size > end:
                where = f"{self.folder / MANIFEST_NAME}: {shard.name}: {graph.name}.{field}"
                raise DatasetError(f"{where}: {start} and {size} bytes on do not fit in {end} bytes; preprocess again")


def shard_checksums(shard: ShardEntry) -> dict[str, str]:
    """Suffix of each shard file -> its sha256."""
    return {RECORD_SUFFIX: shard.record_sha256, CANDIDATE_SUFFIX: shard.candidate_sha256}
