"""Graphs as records: the tf.Example that plain tfgnn code parses, and the TFRecord frame around it.

Both are written and read without TensorFlow, whose import takes each worker of the preprocessing seconds and half a
gigabyte. The bytes are those that TensorFlow writes.
"""

from __future__ import annotations

import functools
import struct
from typing import IO

import google_crc32c
import numpy as np
from google.protobuf.message import Message

from tpugraphs_polynormer.archives.npz import LayoutArchive, ProgramGraph
from tpugraphs_polynormer.datasets.config_graph import Program, connect_config_nodes, operand_dims
from tpugraphs_polynormer.hlo.messages import build_messages

_HEADER = 12  # bytes before a record: its length and the checksum of the length
RECORD_FRAMING = 16  # bytes around a record: the header, and the checksum after the record

# tensorflow/core/example/example.proto on the wire: a map is a list of entries, packed floats are raw bytes.
_MESSAGES = build_messages(
    "tpugraphs_polynormer.records",
    {
        "BytesList": "1 value bytes*",
        "FloatList": "1 value bytes",
        "Int64List": "1 value int64*",
        "Feature": "1 bytes_list BytesList, 2 float_list FloatList, 3 int64_list Int64List",
        "Entry": "1 key bytes, 2 value Feature",
        "Features": "1 feature Entry*",
        "Example": "1 features Features",
    },
)
_CRC_MASK = 0xA282EAD8  # TFRecord stores checksums rotated and shifted by this constant


def serialize_graph(
    archive: ProgramGraph, kept: np.ndarray, config_values: np.ndarray, num_config_nodes: int
) -> tuple[bytes, int]:
    """One graph as a serialized tf.Example, and its number of edges between config nodes (0 for tiles).

    `kept` [n'] are the ascending positions of the nodes to keep.
    """
    positions = np.full(len(archive.node_feat), -1, np.int64)
    positions[kept] = np.arange(len(kept))
    consumers, producers = positions[archive.edge_index.T]
    inside = (consumers >= 0) & (producers >= 0)
    consumers, producers = consumers[inside], producers[inside]
    order = np.lexsort((producers, consumers))
    operands = np.zeros(len(kept), np.int64) if archive.node_operands is None else archive.node_operands[kept]
    features = {
        "context/name": archive.name,
        "nodes/op.#size": [len(kept)],
        "nodes/op.features": archive.node_feat[kept],
        "nodes/op.opcode": archive.node_opcode[kept],
        "nodes/op.operands": operands,
        "nodes/op.node_id": kept,
        "nodes/nconfig.#size": [num_config_nodes],
        "nodes/config_value.#size": [len(config_values)],
        "nodes/config_value.values": config_values,
        "edges/feed.#size": [len(order)],
        "edges/feed.#source": producers[order],
        "edges/feed.#target": consumers[order],
    }
    if not isinstance(archive, LayoutArchive):
        return serialize_example(features), 0
    config_ids = positions[archive.node_config_ids]
    program = Program(archive.node_feat[kept], archive.node_opcode[kept], producers, consumers, config_ids)
    meeting = connect_config_nodes(program)
    features |= {
        "nodes/nconfig.dims": operand_dims(program),
        "edges/config.#size": [num_config_nodes],
        "edges/config.#source": np.arange(num_config_nodes),
        "edges/config.#target": config_ids,
        "edges/meet.#size": [len(meeting)],
        "edges/meet.#source": meeting[:, 0],
        "edges/meet.#target": meeting[:, 1],
    }
    return serialize_example(features), len(meeting)


@functools.cache
def serialize_nothing(kind: str) -> bytes:
    """A graph of the kind "layout" or "tile" without nodes: it fills a batch of fewer graphs."""
    floats, integers = np.zeros(0, np.float32), np.zeros(0, np.int64)
    features: dict[str, str | list[int] | np.ndarray] = {"context/name": ""}
    features |= {f"nodes/{name}.#size": [0] for name in ("op", "nconfig", "config_value")}
    features |= {"nodes/op.features": floats}
    features |= {f"nodes/op.{name}": integers for name in ("opcode", "operands", "node_id")}
    features |= {"nodes/config_value.values": floats}
    if kind == "layout":
        features |= {"nodes/nconfig.dims": floats}
    for name in ("feed", "config", "meet") if kind == "layout" else ("feed",):
        features |= {f"edges/{name}.#size": [0], f"edges/{name}.#source": integers, f"edges/{name}.#target": integers}
    return serialize_example(features)


def serialize_example(features: dict[str, str | list[int] | np.ndarray]) -> bytes:
    """A tf.Example of one string, integers or float32 values per name, in the order of names.

    The bytes are those of TensorFlow's deterministic serialization, where no name is the beginning of another.
    """
    entries = [_MESSAGES["Entry"](key=name.encode(), value=_feature(features[name])) for name in sorted(features)]
    return _MESSAGES["Example"](features=_MESSAGES["Features"](feature=entries)).SerializeToString()


def _feature(value: str | list[int] | np.ndarray) -> Message:
    if isinstance(value, str):
        return _MESSAGES["Feature"](bytes_list=_MESSAGES["BytesList"](value=[value.encode()]))
    array = np.asarray(value)
    if array.dtype.kind in "iu":
        return _MESSAGES["Feature"](int64_list=_MESSAGES["Int64List"](value=array.ravel().tolist()))
    data = array.astype("<f4").tobytes()
    return _MESSAGES["Feature"](float_list=_MESSAGES["FloatList"](value=data or None))


def parse_example(record: bytes) -> dict[str, str | np.ndarray]:
    """{name: a string, or a flat int64 or float32 array} of a tf.Example: the inverse of `serialize_example`."""
    entries = _MESSAGES["Example"].FromString(record).features.feature
    return {entry.key.decode(): _parse_feature(entry.value) for entry in entries}


def _parse_feature(feature: Message) -> str | np.ndarray:
    if feature.HasField("bytes_list"):
        return feature.bytes_list.value[0].decode()
    if feature.HasField("float_list"):
        return np.frombuffer(feature.float_list.value, "<f4").copy()  # a copy can be written to
    return np.array(feature.int64_list.value, np.int64)


def write_record(stream: IO[bytes], record: bytes) -> None:
    """Appends one record to an open TFRecord file."""
    length = struct.pack("<Q", len(record))
    stream.write(length + _masked_crc(length))
    stream.write(record)
    stream.write(_masked_crc(record))


def unframe_record(data: bytes) -> bytes:
    """The record in its TFRecord frame; raises ValueError that says which checksum is wrong."""
    length, record = data[:8], data[_HEADER:-4]
    if data[8:_HEADER] != _masked_crc(length) or length != struct.pack("<Q", len(record)):
        raise ValueError("the length or its checksum is wrong")
    if data[-4:] != _masked_crc(record):
        raise ValueError("its checksum is wrong")
    return record


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF)
