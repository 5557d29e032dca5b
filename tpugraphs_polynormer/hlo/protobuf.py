"""Reads HLO modules and TpuGraphs tuning files: any byte string becomes records, or one HloError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from tpugraphs_polynormer.hlo.errors import HloError
from tpugraphs_polynormer.hlo.messages import MESSAGES
from tpugraphs_polynormer.hlo.module import (
    Computation,
    ConvolutionDimensions,
    Instruction,
    Module,
    PaddingDimension,
    Shape,
    SliceDimension,
    WindowDimension,
)

NUM_TENSORS = 3
NUM_LAYOUT_DIMS = 6
_OPCODE_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_NO_SHAPE = Shape()


@dataclass(frozen=True)
class LayoutRun:
    """One measured layout candidate: `layouts` int32 [nc, 18], or None where the run has no module candidate."""

    layouts: np.ndarray | None
    runtime_ns: int | None
    has_error: bool
    is_default: bool


@dataclass(frozen=True)
class LayoutTuning:
    """A ModuleTuningData message: a program, the rows of its config nodes, its measured runs in file order."""

    module: Module
    node_ids: tuple[int, ...]
    runs: tuple[LayoutRun, ...]


@dataclass(frozen=True)
class TileSizes:
    """The tile bounds of one candidate."""

    kernel: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    input: tuple[int, ...] = ()


@dataclass(frozen=True)
class TileRun:
    """One measured tile candidate; `tiles` is None where the run has no tile candidate."""

    tiles: TileSizes | None
    runtime_ns: int | None
    has_error: bool
    is_default: bool


@dataclass(frozen=True)
class TileTuning:
    """One kernel of a TuningData message: its module and the measured runs in file order."""

    module: Module
    runs: tuple[TileRun, ...]


def detect_kind(data: bytes) -> str:
    """What the bytes hold: "layout" (ModuleTuningData), "tile" (TuningData) or "module"; HloError for anything else."""
    if _find_layout_tuning(data) is not None:
        return "layout"
    if _find_module(data) is not None:
        return "module"
    if _find_tile_tuning(data) is not None:
        return "tile"
    raise HloError(
        f"not an HLO file: in these {len(data)} bytes there is no HloProto, HloModuleProto, ModuleTuningData or "
        "TuningData with instructions; expected a serialized protobuf, not HLO text: dump it with xla_dump_hlo_as_proto"
    )


def parse_module(data: bytes) -> Module:
    """Reads an HloProto, an HloModuleProto, or the module of a ModuleTuningData; which one, the content says.

    Raises:
      HloError: the bytes hold no HLO module.
    """
    message = _find_module(data)
    if message is None:
        raise HloError(
            f"not an HLO module: {len(data)} bytes of which neither an HloProto nor an HloModuleProto with "
            "instructions can be read; expected a serialized protobuf, not HLO text: dump it with xla_dump_hlo_as_proto"
        )
    return _module(message)


def parse_layout_tuning(data: bytes) -> LayoutTuning:
    """Reads a ModuleTuningData message (a layout file); HloError where the bytes are none."""
    message = _find_layout_tuning(data)
    if message is None:
        raise HloError(
            f"not a layout tuning file: {len(data)} bytes of which no ModuleTuningData with a module, runs and "
            "config_index_to_node can be read"
        )
    nodes = tuple(message.config_index_to_node)
    runs = tuple(_layout_run(run, len(nodes), index) for index, run in enumerate(message.runs))
    return LayoutTuning(module=_module(message.module), node_ids=nodes, runs=runs)


def parse_tile_tuning(data: bytes) -> tuple[TileTuning, ...]:
    """Reads a TuningData message (a tile file): one record per kernel; HloError where the bytes are none."""
    message = _find_tile_tuning(data)
    if message is None:
        raise HloError(f"not a tile tuning file: {len(data)} bytes of which no TuningData with modules can be read")
    return tuple(
        TileTuning(module=_module(each.module), runs=tuple(_tile_run(run) for run in each.runs))
        for each in message.modules
    )


def _find_module(data: bytes) -> Any | None:
    wrapped = _parse("HloProto", data)
    if wrapped is not None and _is_program(wrapped.module):
        return wrapped.module
    bare = _parse("Module", data)
    return bare if bare is not None and _is_program(bare) else None


def _find_layout_tuning(data: bytes) -> Any | None:
    message = _parse("ModuleTuning", data)
    # An HloProto's buffer assignment has the number of the runs; only a tuning file names config nodes.
    if message is None or not message.runs or not message.config_index_to_node:
        return None
    return message if _is_program(message.module) else None


def _find_tile_tuning(data: bytes) -> Any | None:
    message = _parse("Tuning", data)
    if message is None or not message.modules:
        return None
    return message if all(_is_program(each.module) for each in message.modules) else None


def _parse(name: str, data: bytes) -> Any | None:
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError:
        return None


def _is_program(module: Message) -> bool:
    """Whether the parse makes sense: each computation starts with an instruction whose opcode is a word."""
    opcodes = {each.instructions[0].opcode if each.instructions else b"" for each in module.computations}
    return bool(opcodes) and all(opcode and _OPCODE_CHARACTERS.issuperset(opcode) for opcode in opcodes)


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


class _Shapes(dict[bytes, Shape]):
    """The shapes of one module by their bytes: programs repeat few shapes, and reading one is slow."""

    def __missing__(self, data: bytes) -> Shape:
        self[data] = shape = _shape(MESSAGES["Shape"].FromString(data))
        return shape


def _module(message: Any) -> Module:
    shapes = _Shapes()
    return Module(
        name=_text(message.name),
        computations=tuple(_computation(each, shapes) for each in message.computations),
        entry_computation_id=message.entry_computation_id,
    )


def _computation(message: Any, shapes: _Shapes) -> Computation:
    return Computation(
        id=message.id,
        name=_text(message.name),
        root_id=message.root_id,
        instructions=tuple(_instruction(each, shapes) for each in message.instructions),
    )


def _instruction(message: Any, shapes: _Shapes) -> Instruction:
    """The record of one instruction; only the fields that are present are touched, for each access has its price."""
    fields: dict[str, Any] = {"id": 0, "opcode": "", "shape": _NO_SHAPE}
    for descriptor, value in message.ListFields():
        name = descriptor.name
        fields[name] = shapes[value.SerializeToString()] if name == "shape" else _CONVERTERS[name](value)
    return Instruction(**fields)


def _shape(message: Any) -> Shape:
    return Shape(
        element_type=message.element_type,
        dimensions=tuple(message.dimensions),
        tuple_shapes=tuple(map(_shape, message.tuple_shapes)),
        minor_to_major=tuple(message.layout.minor_to_major),
    )


def _window(message: Any) -> tuple[WindowDimension, ...]:
    return tuple(
        WindowDimension(
            size=each.size,
            stride=each.stride,
            padding_low=each.padding_low,
            padding_high=each.padding_high,
            window_dilation=each.window_dilation,
            base_dilation=each.base_dilation,
            reversal=each.reversal,
        )
        for each in message.dimensions
    )


def _convolution(message: Any) -> ConvolutionDimensions:
    return ConvolutionDimensions(
        input_batch=message.input_batch,
        input_feature=message.input_feature,
        input_spatial=tuple(message.input_spatial),
        kernel_input_feature=message.kernel_input_feature,
        kernel_output_feature=message.kernel_output_feature,
        kernel_spatial=tuple(message.kernel_spatial),
        output_batch=message.output_batch,
        output_feature=message.output_feature,
        output_spatial=tuple(message.output_spatial),
    )


def _slices(messages: Any) -> tuple[SliceDimension, ...]:
    return tuple(SliceDimension(start=each.start, limit=each.limit, stride=each.stride) for each in messages)


def _padding(message: Any) -> tuple[PaddingDimension, ...]:
    return tuple(PaddingDimension(low=each.low, high=each.high, interior=each.interior) for each in message.dimensions)


_CONVERTERS = {
    "name": _text,
    "opcode": _text,
    "parameter_number": int,
    "dimensions": tuple,
    "window": _window,
    "convolution": _convolution,
    "slice_dimensions": _slices,
    "dynamic_slice_sizes": tuple,
    "padding": _padding,
    "id": int,
    "operand_ids": tuple,
    "called_computation_ids": tuple,
    "feature_group_count": int,
    "batch_group_count": int,
    "is_stable": bool,
}


def _runtime(run: Any) -> int | None:
    return run.profile.compute_time_ns if run.HasField("profile") else None


def _layout_run(run: Any, num_nodes: int, index: int) -> LayoutRun:
    layouts = None
    if run.HasField("module_candidate"):
        layouts = _layout_rows(run.module_candidate.layout.nodes, num_nodes, index)
    return LayoutRun(layouts, _runtime(run), run.error, run.is_default)


def _layout_rows(nodes: Any, num_nodes: int, index: int) -> np.ndarray:
    """int32 [nc, 18]: three tensors of six minor-to-major dims per node; what is not given is -1."""
    if len(nodes) != num_nodes:
        raise HloError(
            f"run {index} of the layout tuning file gives layouts for {len(nodes)} nodes, expected {num_nodes} "
            "(one per entry of config_index_to_node): the file is damaged"
        )
    rows = np.full((num_nodes, NUM_TENSORS, NUM_LAYOUT_DIMS), -1, dtype=np.int32)
    for node, record in enumerate(nodes):
        for tensor, layout in enumerate(record.tensors[:NUM_TENSORS]):
            dims = layout.dims[:NUM_LAYOUT_DIMS]
            rows[node, tensor, : len(dims)] = dims
    return rows.reshape(num_nodes, NUM_TENSORS * NUM_LAYOUT_DIMS)


def _tile_run(run: Any) -> TileRun:
    tiles = None
    if run.HasField("op_candidate") and run.op_candidate.HasField("tile_sizes"):
        sizes = run.op_candidate.tile_sizes
        tiles = TileSizes(tuple(sizes.kernel_bounds), tuple(sizes.output_bounds), tuple(sizes.input_bounds))
    return TileRun(tiles, _runtime(run), run.error, run.is_default)
