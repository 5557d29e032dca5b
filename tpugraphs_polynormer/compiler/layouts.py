"""Forces the layouts of a candidate: rewrites the program that the TPU compiler dumps just before it assigns layouts.

The rewritten dump is compiled again, so all passes before layout assignment run a second time. They find little to do:
convolutions and dots stay, a few reshapes merge unless their layouts are forced, and the estimate is that of the first
compilation to a few percent (docs/labels.md). A layout is forced by a custom call `LayoutConstraint` behind the result
or before the operand of a node; the compiler removes it when it assigns layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.choices import MAX_RANK, NUM_LAYOUT_COLUMNS
from tpugraphs_polynormer.hlo.messages import build_messages
from tpugraphs_polynormer.hlo.opcodes import CONFIGURABLE_OPCODES
from tpugraphs_polynormer.hlo.protobuf import DUMP_ADVICE

Order = tuple[int, ...]  # dims from the minor-most on; () leaves a tensor to the compiler
# The fields that are changed. The protobuf package keeps those that are not declared here.
_MESSAGES = build_messages(
    "tpugraphs_polynormer.compiler",
    {
        "Layout": "1 minor_to_major int64*",
        "Shape": "2 element_type int32, 3 dimensions int64*, 4 tuple_shapes Shape*, 5 layout Layout",
        "Metadata": "2 op_name bytes, 3 source_file bytes, 4 source_line int32, 15 stack_frame_id int32",
        "Instruction": (
            "1 name bytes, 2 opcode bytes, 3 shape Shape, 7 metadata Metadata, 11 fusion_kind bytes, "
            "28 custom_call_target bytes, 35 id int64, 36 operand_ids int64*, 38 called_computation_ids int64*, "
            "40 sharding bytes, 56 constrain_layout bool, 57 operand_shapes_with_layout Shape*, "
            "77 custom_call_api_version int32"
        ),
        "Computation": "1 name bytes, 2 instructions Instruction*, 5 id int64, 6 root_id int64",
        "Module": "1 name bytes, 3 computations Computation*, 17 stack_frame_index StackFrames",
        # JAX names source lines here, by numbers from 1 on; other programs name them in each instruction's metadata.
        "FileLocation": "1 file_name_id int32, 3 line int32",
        "StackFrame": "1 file_location_id int32",
        "StackFrames": "1 file_names bytes*, 3 file_locations FileLocation*, 4 stack_frames StackFrame*",
        "HloProto": "1 module Module",
    },
)
_OPCODES = frozenset(opcode.encode() for opcode in CONFIGURABLE_OPCODES)
_X64_CALLS = (b"X64Combine", b"X64SplitLow", b"X64SplitHigh")
_HINT = b"GatherScatterIndicesBitpacked"  # the compiler's own mark of indices, which it makes again
_ORIGINAL_CUSTOM_CALL = 1  # CustomCallApiVersion: API_VERSION_ORIGINAL


@dataclass(frozen=True)
class NodeOrders:
    """The orders of the result and the operands of one config node; () leaves a tensor to the compiler."""

    output: Order
    operands: tuple[Order, ...]


@dataclass(frozen=True)
class Origin:
    """The instruction of a given program that a config node was made of; empty or 0 where its dump does not say."""

    name: str
    op_name: str = ""  # the traced op, such as jit(f)/dot_general
    source_file: str = ""
    source_line: int = 0


def prepare_module(dump: bytes) -> bytes:
    """The HloModuleProto of a program after some passes of the compiler, changed so that it can be compiled again.

    Fusions around gathers, which StableHLO cannot express, become calls, and the compiler's hints in them are removed:
    it inlines the calls and makes both again. The custom calls that split and join 64-bit numbers, which it does not
    take back, become conversions. What names the source files (metadata, stack frames) is removed, so that
    equal programs have equal bytes. The op_name of a config node becomes its name: the compiler renumbers names, and
    keeps op_names.
    """
    module = _parse(dump)
    module.ClearField("stack_frame_index")
    for computation in module.computations:
        replaced: dict[int, int] = {}
        kept = []
        for instruction in computation.instructions:
            _replace_operands(instruction, replaced)
            for name in ("metadata", "sharding"):
                instruction.ClearField(name)
            if instruction.opcode in _OPCODES:
                instruction.metadata.op_name = instruction.name
            if instruction.opcode == b"fusion":
                instruction.opcode = b"call"
                instruction.ClearField("fusion_kind")
            if instruction.custom_call_target in _X64_CALLS:
                instruction = _MESSAGES["Instruction"](
                    name=instruction.name,
                    opcode=b"convert",
                    shape=instruction.shape,
                    id=instruction.id,
                    operand_ids=instruction.operand_ids[:1],
                )
            if instruction.custom_call_target == _HINT:
                replaced[instruction.id] = instruction.operand_ids[0]
            else:
                kept.append(instruction)
        _set_instructions(computation, kept)
        computation.root_id = replaced.get(computation.root_id, computation.root_id)
    return module.SerializeToString(deterministic=True)


def read_assigned(before: bytes, after: bytes) -> dict[str, NodeOrders]:
    """The compiler's own layouts of the config nodes on which layouts can be forced: {name: orders}.

    Args:
      before: its dump before layout assignment. Nodes inside of its fusions are left out.
      after: its dump after layout assignment, where config nodes have kept their names, and copies are added.
    """
    computations = _parse(before).computations
    fused = {
        called
        for computation in computations
        for instruction in computation.instructions
        if instruction.opcode == b"fusion"
        for called in instruction.called_computation_ids
    }
    names = {
        instruction.name
        for computation in computations
        if computation.id not in fused
        for instruction in computation.instructions
        if instruction.opcode in _OPCODES
    }
    instructions = _instructions(after)
    by_id = {each.id: each for each in instructions}
    return {
        _text(each.name): NodeOrders(_order(each), tuple(_order(by_id[operand]) for operand in each.operand_ids))
        for each in instructions
        if each.opcode in _OPCODES and each.name in names
    }


def read_origins(given: bytes, before: bytes) -> dict[str, Origin]:
    """{name of a config node in the dump before layout assignment: the given instruction that it was made of}.

    The program was prepared before it was compiled, so op_names in the dump are names of given config nodes. A node
    that the compiler added to one of these has the same origin; one without an op_name has none.
    """
    module = _parse(given)
    origins = {
        each.name: Origin(_text(each.name), _text(each.metadata.op_name), *_find_source(module, each.metadata))
        for computation in module.computations
        for each in computation.instructions
        if each.opcode in _OPCODES
    }
    return {
        _text(each.name): origins[each.metadata.op_name]
        for each in _instructions(before)
        if each.opcode in _OPCODES and each.metadata.op_name in origins
    }


def _find_source(module: Any, metadata: Any) -> tuple[str, int]:
    """(file, line) that an instruction was traced from; ("", 0) if the module does not say."""
    frames = module.stack_frame_index
    if 0 < metadata.stack_frame_id <= len(frames.stack_frames):
        number = frames.stack_frames[metadata.stack_frame_id - 1].file_location_id
        if 0 < number <= len(frames.file_locations):
            place = frames.file_locations[number - 1]
            if 0 < place.file_name_id <= len(frames.file_names):
                return _text(frames.file_names[place.file_name_id - 1]), place.line
    return _text(metadata.source_file), metadata.source_line


def encode_default(opcode: str, orders: NodeOrders) -> np.ndarray:
    """int8 [18]: the compiler's layouts of a node as the choice of a candidate, in the form of hlo/choices.py.

    A convolution's choice names two dims of each tensor; a dot's default two dims of the result; a reshape's all.
    """
    kept = MAX_RANK if opcode == "reshape" else 2
    tensors = [orders.output, *orders.operands[: {"convolution": 2, "reshape": 1}.get(opcode, 0)]]
    row = np.full(NUM_LAYOUT_COLUMNS, -1, dtype=np.int8)
    for number, order in enumerate(tensors):
        if len(order) <= MAX_RANK:  # a candidate has no columns for more
            row[MAX_RANK * number : MAX_RANK * number + min(kept, len(order))] = order[:kept]
    return row


def complete_orders(choice: np.ndarray, assigned: NodeOrders) -> NodeOrders:
    """The full orders of a choice, int8 [18]: dims that it does not name follow in the compiler's own order.

    A tensor of which it names no dim is left to the compiler.
    """
    parts = [tuple(dim for dim in choice[start : start + MAX_RANK].tolist() if dim >= 0) for start in (0, 6, 12)]
    tensors = (assigned.output, *assigned.operands[:2])
    full = [_complete(part, order) for part, order in zip(parts, tensors, strict=False)]
    return NodeOrders(full[0], tuple(full[1:]))


def _complete(named: Order, order: Order) -> Order:
    return (*named, *(dim for dim in order if dim not in named)) if named else ()


def force_layouts(module: bytes, forced: Mapping[str, NodeOrders]) -> bytes:
    """A prepared snapshot with the layouts of some nodes, given by name, forced.

    Raises:
      HloError: a name is not in the module, or an order is no permutation of the tensor's dims.
    """
    message = _parse(module)
    names = {_text(each.name) for computation in message.computations for each in computation.instructions}
    unknown = sorted(forced.keys() - names)
    if unknown:
        raise HloError(f"layouts are given for {unknown[0]!r}, which the module lacks; prepare the same snapshot")
    for computation in message.computations:
        if any(_text(each.name) in forced for each in computation.instructions):
            _force_computation(computation, forced)
    return message.SerializeToString(deterministic=True)


def _force_computation(computation: Any, forced: Mapping[str, NodeOrders]) -> None:
    """Adds the constraints of one computation."""
    by_id = {each.id: each for each in computation.instructions}
    next_id = max(by_id) + 1
    replaced: dict[int, int] = {}  # result of a config node -> its constraint, for all later consumers
    instructions: list[Any] = []

    def constrain(source: Any, order: Order, node: Any) -> int:
        nonlocal next_id
        instructions.append(_constraint(source, replaced.get(source.id, source.id), order, next_id, node))
        next_id += 1
        return instructions[-1].id

    for instruction in computation.instructions:
        sources = list(instruction.operand_ids)
        orders = forced.get(_text(instruction.name))
        _replace_operands(instruction, replaced)
        if orders is not None:
            for operand, order in enumerate(orders.operands[: len(sources)]):
                if order:
                    instruction.operand_ids[operand] = constrain(by_id[sources[operand]], order, instruction)
        instructions.append(instruction)
        if orders is not None and orders.output:
            replaced[instruction.id] = constrain(instruction, orders.output, instruction)
    _set_instructions(computation, instructions)
    computation.root_id = replaced.get(computation.root_id, computation.root_id)


def _constraint(source: Any, operand: int, order: Order, number: int, node: Any) -> Any:
    if sorted(order) != list(range(len(source.shape.dimensions))):
        raise HloError(
            f"{_text(node.name)}: the order {order} was given to a tensor of rank "
            f"{len(source.shape.dimensions)}; expected each of its dims once"
        )
    constraint = _MESSAGES["Instruction"](
        name=b"layout-constraint.%d" % number,
        opcode=b"custom-call",
        custom_call_target=b"LayoutConstraint",
        id=number,
        operand_ids=[operand],
        constrain_layout=True,
        custom_call_api_version=_ORIGINAL_CUSTOM_CALL,
    )
    constraint.shape.CopyFrom(source.shape)
    constraint.shape.layout.Clear()
    constraint.shape.layout.minor_to_major.extend(order)
    constraint.operand_shapes_with_layout.add().CopyFrom(constraint.shape)
    return constraint


def _replace_operands(instruction: Any, replaced: Mapping[int, int]) -> None:
    operands = [replaced.get(each, each) for each in instruction.operand_ids]
    del instruction.operand_ids[:]
    instruction.operand_ids.extend(operands)


def _set_instructions(computation: Any, instructions: Iterable[Any]) -> None:
    copies = [_MESSAGES["Instruction"].FromString(each.SerializeToString()) for each in instructions]
    del computation.instructions[:]
    computation.instructions.extend(copies)


def _instructions(module: bytes) -> list[Any]:
    return [each for computation in _parse(module).computations for each in computation.instructions]


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _order(instruction: Any) -> Order:
    return tuple(instruction.shape.layout.minor_to_major)


def _parse(data: bytes) -> Any:
    """The Module message of an HloProto or an HloModuleProto."""
    for name in ("HloProto", "Module"):
        try:
            message = _MESSAGES[name].FromString(data)
        except DecodeError:
            continue
        module = message.module if name == "HloProto" else message
        if module.computations and module.computations[0].instructions:
            return module
    raise HloError(f"found {len(data):,} bytes that are no HLO module; {DUMP_ADVICE}")
