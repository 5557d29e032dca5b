"""Writes modules as the protobufs that protobuf.py reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.messages import MESSAGES
from tpugraphs_polynormer.hlo.module import Instruction, Module, Shape

_NUMBERS = ("id", "parameter_number", "feature_group_count", "batch_group_count", "is_stable")
_LISTS = ("operand_ids", "called_computation_ids", "dimensions", "dynamic_slice_sizes")


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
        for instruction in computation.instructions:
            _fill_instruction(target.instructions.add(), instruction)


def _fill_instruction(message: Any, instruction: Instruction) -> None:
    message.name, message.opcode = instruction.name.encode(), instruction.opcode.encode()
    _fill_shape(message.shape, instruction.shape)
    _copy_fields(message, instruction, (*_NUMBERS, *_LISTS))
    for dimension in instruction.window:
        _copy_fields(message.window.dimensions.add(), dimension)
    if instruction.convolution is not None:
        message.convolution.SetInParent()  # the message is present even if every number is 0
        _copy_fields(message.convolution, instruction.convolution)
    for dimension in instruction.slice_dimensions:
        _copy_fields(message.slice_dimensions.add(), dimension)
    for dimension in instruction.padding:
        _copy_fields(message.padding.dimensions.add(), dimension)


def _fill_shape(message: Any, shape: Shape) -> None:
    message.element_type = shape.element_type
    message.dimensions.extend(shape.dimensions)
    for part in shape.tuple_shapes:
        _fill_shape(message.tuple_shapes.add(), part)
    if shape.minor_to_major:
        message.layout.minor_to_major.extend(shape.minor_to_major)


def _copy_fields(message: Any, record: Any, names: Sequence[str] = ()) -> None:
    """Sets the named fields, or all fields of the record, in a message of the same names."""
    for name in names or record.__slots__:
        value = getattr(record, name)
        if isinstance(value, tuple):
            getattr(message, name).extend(value)
        elif value:  # XLA leaves absent fields out
            setattr(message, name, value)
