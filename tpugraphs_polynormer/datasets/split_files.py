"""The files of a split: the record of any graph and any of its candidates, each read alone.

`<shard>.tfrecord` holds the GraphTensors. `<shard>.candidates` holds, for each graph from byte `codes_offset` on: codes
[c, num_config_nodes], then (from the next multiple of 8 bytes) runtimes [c] int64, normalizers [c] int64, rows [c]
int32 and counts [c] int32 (see encoding.Candidates). All widths are fixed: a candidate's number gives its position.
At the end of the file is the crc32c (uint32) of each block of 4,096 bytes before it, and the manifest has the crc32c of
these: nothing is returned of a block or a record whose checksum is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import google_crc32c
import numpy as np

from tpugraphs_polynormer.datasets.encoding import Candidates
from tpugraphs_polynormer.datasets.manifest import DatasetError, GraphEntry, ShardEntry
from tpugraphs_polynormer.datasets.records import RECORD_FRAMING, unframe_record

RECORD_SUFFIX, CANDIDATE_SUFFIX = ".tfrecord", ".candidates"
_BLOCK = 4096  # bytes that one checksum covers: a page, which the system reads whole anyway
_CHECKSUM = np.dtype("<u4")
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


def append_checksums(path: Path) -> int:
    """Appends the crc32c of each block to a finished `.candidates` file; returns the crc32c of what was appended."""
    checksums = []
    with path.open("r+b") as stream:
        while block := stream.read(_BLOCK):
            checksums.append(google_crc32c.value(block))
        data = np.array(checksums, _CHECKSUM).tobytes()
        stream.write(data)
    return google_crc32c.value(data)


def candidate_file_bytes(graphs: Sequence[GraphEntry]) -> int:
    """The size of the `.candidates` file of these graphs: their candidates, then the checksums."""
    end = _candidates_end(graphs)
    return end + -(-end // _BLOCK) * _CHECKSUM.itemsize


def _candidates_end(graphs: Sequence[GraphEntry]) -> int:
    return max((graph.codes_offset + candidate_bytes(graph) for graph in graphs), default=0)


def candidate_bytes(entry: GraphEntry) -> int:
    """The number of bytes that `write_candidates` writes for a graph."""
    row = sum(dtype.itemsize for dtype in _COLUMNS.values())
    return _codes_bytes(entry) + entry.num_candidates * row


def _codes_bytes(entry: GraphEntry) -> int:
    size = entry.num_candidates * entry.num_config_nodes * entry.code_bytes
    return size + -size % 8


def shard_files(shard: ShardEntry) -> dict[str, tuple[int, str]]:
    """{suffix: (bytes, sha256)} of the files of a shard."""
    return {
        RECORD_SUFFIX: (shard.record_bytes, shard.record_sha256),
        CANDIDATE_SUFFIX: (shard.candidate_bytes, shard.candidate_sha256),
    }


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
        self._checksums: dict[str, tuple[int, list[int]]] = {}  # by shard, see _block_checksums
        for shard in shards:
            self.graphs += shard.graphs
            self._shards += [shard] * len(shard.graphs)

    def read_record(self, number: int) -> bytes:
        """The graph's serialized GraphTensor, its TFRecord checksums verified."""
        entry, shard = self.graphs[number], self._shards[number]
        framed = self._read(shard.name + RECORD_SUFFIX, entry.record_offset, entry.record_length + RECORD_FRAMING)
        try:
            return unframe_record(framed)
        except ValueError as fault:
            path = self._folder / (shard.name + RECORD_SUFFIX)
            where = f"{path}: the record of {entry.name} at byte {entry.record_offset} is damaged"
            raise DatasetError(f"{where} ({fault}); preprocess again") from None

    def read_codes(self, number: int, candidates: np.ndarray) -> np.ndarray:
        """[k, num_config_nodes]: the codes of the candidates with numbers [k]; reads only the blocks they are in."""
        entry = self.graphs[number]
        self._check_candidates(entry, candidates)
        width = entry.num_config_nodes * entry.code_bytes
        data = self._read_candidates(number, entry.codes_offset + np.asarray(candidates, np.int64) * width, width)
        return np.frombuffer(data, CODE_TYPES[entry.code_bytes]).reshape(len(candidates), entry.num_config_nodes)

    def read_column(self, number: int, name: str, candidates: np.ndarray | None = None) -> np.ndarray:
        """[c]: "runtimes", "normalizers", "rows" or "counts" of all candidates, or of those with numbers [k]."""
        entry = self.graphs[number]
        offset = entry.codes_offset + _codes_bytes(entry)
        for column, dtype in _COLUMNS.items():
            if column == name:
                break
            offset += entry.num_candidates * dtype.itemsize
        if candidates is None:
            data = self._read_candidates(number, np.array([offset]), entry.num_candidates * dtype.itemsize)
        else:
            self._check_candidates(entry, candidates)
            starts = offset + np.asarray(candidates, np.int64) * dtype.itemsize
            data = self._read_candidates(number, starts, dtype.itemsize)
        return np.frombuffer(data, dtype)

    @staticmethod
    def _check_candidates(entry: GraphEntry, candidates: np.ndarray) -> None:
        if len(candidates) and not 0 <= np.min(candidates) <= np.max(candidates) < entry.num_candidates:
            found = f"candidates {np.min(candidates)}..{np.max(candidates)}"
            raise DatasetError(f"{entry.name}: found {found}, expected numbers in 0..{entry.num_candidates - 1}")

    def _read_candidates(self, number: int, starts: np.ndarray, size: int) -> bytearray:
        """The `size` bytes of the candidate file from each start on, joined; their blocks are checked first."""
        if not size:
            return bytearray()
        positions = starts.tolist()  # plain numbers: for the few of a draw, numpy's calls take longer than the reads
        needed = {block for start in positions for block in range(start // _BLOCK, (start + size - 1) // _BLOCK + 1)}
        blocks = sorted(needed)
        data = self._read_blocks(number, blocks)
        # The blocks of one span are neighbours in the file, so they are neighbours in `data`.
        shifts = {block: (index - block) * _BLOCK for index, block in enumerate(blocks)}
        positions = [start + shifts[start // _BLOCK] for start in positions]
        return bytearray().join([data[start : start + size] for start in positions])  # its arrays are writable

    def _read_blocks(self, number: int, blocks: Sequence[int]) -> bytes:
        """The blocks with these ascending numbers, joined and checked; neighbours are read at once."""
        shard = self._shards[number]
        name, (end, checksums) = shard.name + CANDIDATE_SUFFIX, self._block_checksums(shard)
        parts, first = [], 0
        for index, block in enumerate(blocks, 1):
            if index == len(blocks) or blocks[index] != block + 1:
                start = blocks[first] * _BLOCK
                parts.append(self._read(name, start, min((block + 1) * _BLOCK, end) - start))
                first = index
        data = b"".join(parts)
        for index, block in enumerate(blocks):
            if google_crc32c.value(data[index * _BLOCK : (index + 1) * _BLOCK]) != checksums[block]:
                found = f"the candidates of {self.graphs[number].name} from byte {block * _BLOCK:,} on are damaged"
                raise DatasetError(f"{self._folder / name}: {found} (their checksum is wrong); preprocess again")
        return data

    def _block_checksums(self, shard: ShardEntry) -> tuple[int, list[int]]:
        """The end of the candidates in their file, and the checksums after it, compared once with the manifest."""
        if shard.name not in self._checksums:
            name, end = shard.name + CANDIDATE_SUFFIX, _candidates_end(shard.graphs)
            data = self._read(name, end, candidate_file_bytes(shard.graphs) - end)
            if google_crc32c.value(data) != shard.checksums_crc32c:
                where = f"{self._folder / name}: the checksums from byte {end:,} on are damaged"
                raise DatasetError(f"{where}; preprocess again")
            self._checksums[shard.name] = end, np.frombuffer(data, _CHECKSUM).tolist()
        return self._checksums[shard.name]

    def _read(self, name: str, offset: int, size: int) -> bytes:
        data = os.pread(self._open(name), size, offset)
        if len(data) != size:
            raise DatasetError(f"{self._folder / name}: ends early; preprocess again")
        return data

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
        self._checksums.clear()
        while self._files:
            os.close(self._files.popitem()[1])

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter exits
        for file in self._files.values():
            close(file)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_files": {}, "_checksums": {}}  # descriptors are valid in one process only
