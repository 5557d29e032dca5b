"""Writes modules as the protobufs that protobuf.py reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.messages import MESSAGES
from tpugraphs_polynormer.hlo.module import Computation, Instruction, Module, Shape

_NUMBERS = ("id", "parameter_number", "feature_group_count", "batch_group_count", "is_stable", "tuple_index",
            "distribution", "literal")  # fmt: skip
_LISTS = ("operand_ids", "called_computation_ids", "dimensions", "dynamic_slice_sizes", "gather_slice_sizes")
_TEXTS = ("name", "opcode", "fusion_kind", "custom_call_target", "comparison_direction")
# The field of a literal's values, by element type.
_VALUES = {1: "preds", 4: "s32s", 5: "s64s", 8: "u32s", 9: "u64s", 11: "f32s", 12: "f64s", 10: "f16s", 16: "bf16s"}
_BF16, _F16 = 16, 10
_NO_ARRAYS = (0, 13, 14, 17)  # invalid, tuple, opaque, token
_RECORDS = ("convolution", "dot", "gather", "scatter")


def serialize_module(module: Module) -> bytes:
    """The bytes of an HloModuleProto; `parse_module` gives the same records back."""
    message = MESSAGES["Module"]()
    try:
        fill_module(message, module)
    except (ValueError, TypeError) as error:
        raise HloError(
            f"cannot write this module as a protobuf: {error}; expected int64 numbers and strings"
        ) from error
    return message.SerializeToString(deterministic=True)


def fill_module(message: Any, module: Module) -> None:
    """Sets the fields of a Module message."""
    message.name = module.name.encode()
    message.entry_computation_id = module.entry_computation_id
    for computation in module.computations:
        target = message.computations.add(
            name=computation.name.encode(), id=computation.id, root_id=computation.root_id
        )
        if computation.id == module.entry_computation_id:
            message.entry_computation_name = computation.name.encode()
            _fill_program_shape(message.program_shape, computation)
        for instruction in computation.instructions:
            _fill_instruction(target.instructions.add(), instruction)


def _fill_program_shape(message: Any, entry: Computation) -> None:
    """Sets the shapes of the program's arguments and result, which XLA requires beside the instructions."""
    parameters = [each for each in entry.instructions if each.opcode == "parameter"]
    for each in sorted(parameters, key=lambda each: each.parameter_number):
        _fill_shape(message.parameters.add(), each.shape)
        message.parameter_names.append(each.name.encode())
    for each in entry.instructions:
        if each.id == entry.root_id:
            _fill_shape(message.result, each.shape)


def _fill_instruction(message: Any, instruction: Instruction) -> None:
    for name in _TEXTS:
        if value := getattr(instruction, name):
            setattr(message, name, value.encode())
    _fill_shape(message.shape, instruction.shape)
    _copy_fields(message, instruction, (*_NUMBERS, *_LISTS))
    for dimension in instruction.window:
        _copy_fields(message.window.dimensions.add(), dimension)
    for name in _RECORDS:
        if (record := getattr(instruction, name)) is not None:
            getattr(message, name).SetInParent()  # the message is present even if every number is 0
            _copy_fields(getattr(message, name), record)
    if (metadata := instruction.metadata) is not None:
        texts = {"op_name": metadata.op_name.encode(), "source_file": metadata.source_file.encode()}
        for name, value in (texts | {"source_line": metadata.source_line}).items():
            if value:
                setattr(message.metadata, name, value)
    if instruction.outfeed_shape is not None:
        _fill_shape(message.outfeed_shape, instruction.outfeed_shape)
    for dimension in instruction.slice_dimensions:
        _copy_fields(message.slice_dimensions.add(), dimension)
    for dimension in instruction.padding:
        _copy_fields(message.padding.dimensions.add(), dimension)


def _fill_shape(message: Any, shape: Shape) -> None:
    message.element_type = shape.element_type
    message.dimensions.extend(shape.dimensions)
    for part in shape.tuple_shapes:
        _fill_shape(message.tuple_shapes.add(), part)
    if shape.minor_to_major or (not shape.dimensions and shape.element_type not in _NO_ARRAYS):
        message.layout.SetInParent()  # a scalar has a layout without dimensions
        message.layout.minor_to_major.extend(shape.minor_to_major)


def _copy_fields(message: Any, record: Any, names: Sequence[str] = ()) -> None:
    """Sets the named fields, or all fields of the record, in a message of the same names."""
    for name in names or record.__slots__:
        value = getattr(record, name)
        if isinstance(value, tuple):
            getattr(message, name).extend(value)
        elif value:  # XLA leaves absent fields out
            setattr(message, name, value)


def serialize_literal(shape: Shape, values: np.ndarray) -> bytes:
    """The bytes of a LiteralProto: a constant's values [elements], the last dimension minor."""
    if shape.element_type not in _VALUES:
        raise HloError(f"no literal of element type {shape.element_type}; expected one of {sorted(_VALUES)}")
    message, values = MESSAGES["Literal"](), np.ravel(values)
    _fill_shape(message.shape, shape)
    name = _VALUES[shape.element_type]
    if shape.element_type == _BF16:
        message.bf16s = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()  # drops the low bits
    elif shape.element_type == _F16:
        message.f16s = values.astype("<f2").tobytes()
    else:
        getattr(message, name).extend(values.tolist())
    return message.SerializeToString(deterministic=True)
