"""Writes modules and tuning records as the protobufs that `wire` reads, so that programs made here are HLO files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpugraphs_polynormer.hlo.errors import HloError
from tpugraphs_polynormer.hlo.messages import MESSAGES
from tpugraphs_polynormer.hlo.module import ConvolutionDimensions, Instruction, Module, Shape, WindowDimension
from tpugraphs_polynormer.hlo.protobuf import LayoutRun, LayoutTuning, TileRun, TileTuning

_PLAIN_FIELDS = ("id", "parameter_number", "feature_group_count", "batch_group_count", "is_stable")
_REPEATED_FIELDS = ("operand_ids", "called_computation_ids", "dimensions", "dynamic_slice_sizes")


def serialize_module(module: Module) -> bytes:
    """The bytes of an HloModuleProto; `parse_module` gives the same records back."""
    return _build(_fill_module, "Module", module)


def serialize_layout_tuning(tuning: LayoutTuning) -> bytes:
    """The bytes of a ModuleTuningData message (a layout file)."""
    return _build(_fill_layout_tuning, "ModuleTuning", tuning)


def serialize_tile_tuning(kernels: Sequence[TileTuning]) -> bytes:
    """The bytes of a TuningData message (a tile file)."""
    return _build(_fill_tile_tuning, "Tuning", kernels)


def _build(fill: Any, name: str, record: Any) -> bytes:
    message = MESSAGES[name]()
    try:
        fill(message, record)
    except (ValueError, TypeError) as error:
        raise HloError(
            f"cannot write this {name} as a protobuf: {error}; expected int64 numbers and strings"
        ) from error
    return message.SerializeToString(deterministic=True)


def _fill_module(message: Any, module: Module) -> None:
    message.name = module.name.encode()
    message.entry_computation_id = module.entry_computation_id
    for computation in module.computations:
        target = message.computations.add(
            name=computation.name.encode(), id=computation.id, root_id=computation.root_id
        )
        if computation.id == module.entry_computation_id:
            message.entry_computation_name = computation.name.encode()
        for instruction in computation.instructions:
            _fill_instruction(target.instructions.add(), instruction)


def _fill_instruction(message: Any, instruction: Instruction) -> None:
    message.name, message.opcode = instruction.name.encode(), instruction.opcode.encode()
    _fill_shape(message.shape, instruction.shape)
    for name in _PLAIN_FIELDS:
        value = getattr(instruction, name)
        if value:  # absent stays absent, as XLA writes it
            setattr(message, name, value)
    for name in _REPEATED_FIELDS:
        getattr(message, name).extend(getattr(instruction, name))
    for dimension in instruction.window:
        _copy_fields(message.window.dimensions.add(), dimension, WindowDimension.__slots__)
    if instruction.convolution is not None:
        _fill_convolution(message.convolution, instruction.convolution)
    for dimension in instruction.slice_dimensions:
        _copy_fields(message.slice_dimensions.add(), dimension, ("start", "limit", "stride"))
    for dimension in instruction.padding:
        _copy_fields(message.padding.dimensions.add(), dimension, ("low", "high", "interior"))


def _fill_shape(message: Any, shape: Shape) -> None:
    message.element_type = shape.element_type
    message.dimensions.extend(shape.dimensions)
    for part in shape.tuple_shapes:
        _fill_shape(message.tuple_shapes.add(), part)
    if shape.minor_to_major:
        message.layout.minor_to_major.extend(shape.minor_to_major)


def _fill_convolution(message: Any, convolution: ConvolutionDimensions) -> None:
    message.SetInParent()  # present even if every number is 0
    _copy_fields(message, convolution, ConvolutionDimensions.__slots__)


def _copy_fields(message: Any, record: Any, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(record, name)
        if isinstance(value, tuple):
            getattr(message, name).extend(value)
        elif value:
            setattr(message, name, value)


def _fill_layout_tuning(message: Any, tuning: LayoutTuning) -> None:
    _fill_module(message.module, tuning.module)
    message.config_index_to_node.extend(tuning.node_ids)
    for run in tuning.runs:
        target = message.runs.add()
        _fill_run(target, run)
        if run.layouts is not None:
            target.module_candidate.layout.SetInParent()
            for row in np.asarray(run.layouts):
                _fill_node_layouts(target.module_candidate.layout.nodes.add(), row)


def _fill_node_layouts(message: Any, row: np.ndarray) -> None:
    for tensor in row.reshape(3, 6):
        message.tensors.add(dims=[int(dim) for dim in tensor if dim != -1])


def _fill_tile_tuning(message: Any, kernels: Sequence[TileTuning]) -> None:
    for kernel in kernels:
        target = message.modules.add()
        _fill_module(target.module, kernel.module)
        for run in kernel.runs:
            _fill_tile_run(target.runs.add(), run)


def _fill_tile_run(message: Any, run: TileRun) -> None:
    _fill_run(message, run)
    if run.tiles is not None:
        message.op_candidate.tile_sizes.SetInParent()
        message.op_candidate.tile_sizes.kernel_bounds.extend(run.tiles.kernel)
        message.op_candidate.tile_sizes.output_bounds.extend(run.tiles.output)
        message.op_candidate.tile_sizes.input_bounds.extend(run.tiles.input)


def _fill_run(message: Any, run: LayoutRun | TileRun) -> None:
    if run.has_error:
        message.error = True
    if run.runtime_ns is not None:
        message.profile.compute_time_ns = run.runtime_ns
    if run.is_default:
        message.is_default = True
