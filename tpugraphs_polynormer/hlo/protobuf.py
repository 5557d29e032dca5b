"""Reads HLO protobufs: any byte string becomes a Module, or one HloError."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.messages import MESSAGES
from tpugraphs_polynormer.hlo.module import (
    Computation,
    ConvolutionDimensions,
    DotDimensions,
    GatherDimensions,
    Instruction,
    Metadata,
    Module,
    PaddingDimension,
    ScatterDimensions,
    Shape,
    SliceDimension,
    WindowDimension,
)

T = TypeVar("T")
_OPCODE_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_NO_SHAPE = Shape()
_TEXT_BYTES = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))
DUMP_ADVICE = "make it again: XLA dumps text with xla_dump_to, and protobufs with xla_dump_hlo_as_proto"


def parse_module(data: bytes) -> Module:
    """The module of an HloProto, an HloModuleProto or a ModuleTuningData; the content decides which.

    Raises:
      HloError: the bytes hold no HLO module.
    """
    message = find_module(data)
    if message is None:
        raise HloError(
            f"not an HLO module: found {describe_bytes(data)}, expected HLO text, or a serialized HloProto or "
            f"HloModuleProto with instructions; {DUMP_ADVICE}"
        )
    return to_module(message)


def describe_bytes(data: bytes) -> str:
    """What bytes that are no HLO module probably are, in words."""
    if not data:
        return "an empty file"
    start = data[:4096]
    if data.lstrip().startswith(b"HloModule"):
        return "HLO text"
    if not set(start) - _TEXT_BYTES:
        return f"{len(data):,} bytes of text"
    if data.startswith(b"PK"):
        return f"{len(data):,} bytes of a zip or npz file"
    return f"{len(data):,} bytes of a truncated or damaged protobuf, or of another kind of file"


def find_module(data: bytes) -> Any | None:
    """The Module message in an HloProto, HloModuleProto or ModuleTuningData, or None."""
    wrapped = parse_message("HloProto", data)
    if wrapped is not None and is_program(wrapped.module):
        return wrapped.module
    bare = parse_message("Module", data)
    return bare if bare is not None and is_program(bare) else None


def parse_message(name: str, data: bytes) -> Any | None:
    """The message of that name (see messages.py) that the bytes hold, or None."""
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError:
        return None


def is_program(module: Message) -> bool:
    """Whether a parsed Module message is a program: each computation starts with an instruction with an opcode."""
    opcodes = {each.instructions[0].opcode if each.instructions else b"" for each in module.computations}
    return bool(opcodes) and all(opcode and _OPCODE_CHARACTERS.issuperset(opcode) for opcode in opcodes)


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


class _Shapes(dict[bytes, Shape]):
    """A cache of shapes by their bytes: a program repeats few shapes, and parsing one is slow."""

    def __missing__(self, data: bytes) -> Shape:
        self[data] = shape = _shape(MESSAGES["Shape"].FromString(data))
        return shape


class _Sources:
    """The source locations of a module, by the numbers of its stack frames, which count from 1."""

    def __init__(self, message: Any) -> None:
        files = ["", *map(_text, message.file_names)]
        places = [("", 0)]
        for each in message.file_locations:
            is_known = 0 < each.file_name_id < len(files)
            places.append((files[each.file_name_id], each.line) if is_known else ("", 0))
        ids = [each.file_location_id for each in message.stack_frames]
        self._frames = [("", 0), *(places[each] if 0 < each < len(places) else ("", 0) for each in ids)]

    def metadata(self, message: Any) -> Metadata | None:
        """The record of a Metadata message; None if it says nothing."""
        frame, place = message.stack_frame_id, ("", 0)
        if message.source_file:
            place = _text(message.source_file), message.source_line
        elif 0 < frame < len(self._frames):
            place = self._frames[frame]
        op_name = _text(message.op_name)
        return Metadata(op_name, *place) if op_name or place[0] else None


def to_module(message: Any) -> Module:
    """The record of a Module message."""
    shapes, sources = _Shapes(), _Sources(message.stack_frame_index)
    return Module(
        name=_text(message.name),
        computations=tuple(_computation(each, shapes, sources) for each in message.computations),
        entry_computation_id=message.entry_computation_id,
    )


def _computation(message: Any, shapes: _Shapes, sources: _Sources) -> Computation:
    return Computation(
        id=message.id,
        name=_text(message.name),
        root_id=message.root_id,
        instructions=tuple(_instruction(each, shapes, sources) for each in message.instructions),
    )


def _instruction(message: Any, shapes: _Shapes, sources: _Sources) -> Instruction:
    """The record of one instruction; only present fields are read, because each access is slow."""
    fields: dict[str, Any] = {"id": 0, "opcode": "", "shape": _NO_SHAPE}
    for descriptor, value in message.ListFields():
        name = descriptor.name
        if name == "shape":
            fields[name] = shapes[value.SerializeToString()]
        else:
            fields[name] = sources.metadata(value) if name == "metadata" else _CONVERTERS[name](value)
    return Instruction(**fields)


def _shape(message: Any) -> Shape:
    return Shape(
        element_type=message.element_type,
        dimensions=tuple(message.dimensions),
        tuple_shapes=tuple(map(_shape, message.tuple_shapes)),
        minor_to_major=tuple(message.layout.minor_to_major),
    )


def _record(cls: type[T], message: Any) -> T:
    """The record of a message whose fields have the names of the record's; repeated numbers become tuples."""
    values = (getattr(message, name) for name in cls.__slots__)
    return cls(*(value if isinstance(value, int) else tuple(value) for value in values))


def _records(cls: type[T], messages: Iterable[Any]) -> tuple[T, ...]:
    return tuple(_record(cls, each) for each in messages)


_CONVERTERS = {
    "name": _text,
    "opcode": _text,
    "parameter_number": int,
    "dimensions": tuple,
    "window": lambda message: _records(WindowDimension, message.dimensions),
    "convolution": partial(_record, ConvolutionDimensions),
    "slice_dimensions": partial(_records, SliceDimension),
    "dynamic_slice_sizes": tuple,
    "padding": lambda message: _records(PaddingDimension, message.dimensions),
    "id": int,
    "operand_ids": tuple,
    "called_computation_ids": tuple,
    "feature_group_count": int,
    "batch_group_count": int,
    "is_stable": bool,
    "literal": bytes,
    "fusion_kind": _text,
    "tuple_index": int,
    "distribution": int,
    "custom_call_target": _text,
    "outfeed_shape": _shape,
    "dot": partial(_record, DotDimensions),
    "gather": partial(_record, GatherDimensions),
    "gather_slice_sizes": tuple,
    "scatter": partial(_record, ScatterDimensions),
    "comparison_direction": _text,
}
