"""The files of a split: the record of any graph and any of its candidates, each read alone.

`<shard>.tfrecord` holds the GraphTensors. `<shard>.candidates` holds, for each graph from byte `codes_offset` on: codes
[c, num_config_nodes], then (from the next multiple of 8 bytes) runtimes [c] int64, normalizers [c] int64, rows [c]
int32 and counts [c] int32 (see encoding.Candidates). All widths are fixed: a candidate's number gives its position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from tpugraphs_polynormer.datasets.encoding import Candidates
from tpugraphs_polynormer.datasets.manifest import DatasetError, GraphEntry, ShardEntry
from tpugraphs_polynormer.datasets.records import RECORD_FRAMING, unframe_record

RECORD_SUFFIX, CANDIDATE_SUFFIX = ".tfrecord", ".candidates"
CODE_TYPES = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
# The columns after a graph's codes, in this order.
_COLUMNS = {
    "runtimes": np.dtype("<i8"),
    "normalizers": np.dtype("<i8"),
    "rows": np.dtype("<i4"),
    "counts": np.dtype("<i4"),
}


def write_candidates(stream: IO[bytes], candidates: Candidates) -> None:
    """Appends one graph's candidates to an open `.candidates` file."""
    codes = np.ascontiguousarray(candidates.codes)
    stream.write(codes.data.cast("B") if codes.size else b"")
    stream.write(bytes(-codes.nbytes % 8))
    for name, dtype in _COLUMNS.items():
        stream.write(getattr(candidates, name).astype(dtype).tobytes())


def candidate_bytes(entry: GraphEntry) -> int:
    """The number of bytes that `write_candidates` writes for a graph."""
    row = sum(dtype.itemsize for dtype in _COLUMNS.values())
    return _codes_bytes(entry) + entry.num_candidates * row


def _codes_bytes(entry: GraphEntry) -> int:
    size = entry.num_candidates * entry.num_config_nodes * entry.code_bytes
    return size + -size % 8


def shard_checksums(shard: ShardEntry) -> dict[str, str]:
    """{suffix: sha256} of the files of a shard."""
    return {RECORD_SUFFIX: shard.record_sha256, CANDIDATE_SUFFIX: shard.candidate_sha256}


class SplitFiles:
    """The open shard files of one split: graphs by number 0..n-1, in the order of the manifest.

    Reads are positioned (os.pread), so threads and forked processes can share one object; a pickled copy opens the
    files again.
    """

    def __init__(self, folder: Path, kind: str, shards: Sequence[ShardEntry]) -> None:
        self.kind = kind  # "layout" or "tile"
        self.graphs: list[GraphEntry] = []
        self._folder = folder
        self._shards: list[ShardEntry] = []
        self._files: dict[str, int] = {}
        for shard in shards:
            self.graphs += shard.graphs
            self._shards += [shard] * len(shard.graphs)

    def read_record(self, number: int) -> bytes:
        """The graph's serialized GraphTensor, its TFRecord checksums verified."""
        entry = self.graphs[number]
        span = (entry.record_offset, entry.record_length + RECORD_FRAMING)
        framed = self._read(number, RECORD_SUFFIX, [span])[0]
        try:
            return unframe_record(framed)
        except ValueError as fault:
            path = self._folder / (self._shards[number].name + RECORD_SUFFIX)
            where = f"{path}: the record of {entry.name} at byte {entry.record_offset} is damaged"
            raise DatasetError(f"{where} ({fault}); preprocess again") from None

    def read_codes(self, number: int, candidates: np.ndarray) -> np.ndarray:
        """[k, num_config_nodes]: the codes of the candidates with numbers [k]; reads no other bytes."""
        entry = self.graphs[number]
        self._check_candidates(entry, candidates)
        width = entry.num_config_nodes * entry.code_bytes
        spans = [(entry.codes_offset + int(candidate) * width, width) for candidate in candidates]
        data = bytearray().join(self._read(number, CANDIDATE_SUFFIX, spans))  # arrays of a bytearray are writable
        return np.frombuffer(data, CODE_TYPES[entry.code_bytes]).reshape(len(candidates), entry.num_config_nodes)

    def read_column(self, number: int, name: str, candidates: np.ndarray | None = None) -> np.ndarray:
        """[c]: "runtimes", "normalizers", "rows" or "counts" of all candidates, or of those with numbers [k]."""
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
        return np.frombuffer(bytearray().join(self._read(number, CANDIDATE_SUFFIX, spans)), dtype)

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
                os.close(opened)  # another thread opened it first
        return self._files[name]

    def close(self) -> None:
        """Closes the files; the next read opens them again."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter exits
        for file in self._files.values():
            close(file)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_files": {}}  # descriptors are valid in one process only
