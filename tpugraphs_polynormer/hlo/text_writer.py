"""Writes modules as the HLO text that text.py reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.module import ConvolutionDimensions, Instruction, Module, Shape, WindowDimension
from tpugraphs_polynormer.hlo.text_attributes import DEFAULTS, DOT_FIELDS
from tpugraphs_polynormer.hlo.text_metadata import format_metadata
from tpugraphs_polynormer.hlo.text_scanner import BUFFER, TUPLE, TYPE_NUMBERS, UNBOUNDED

_TYPE_NAMES = {number: name for name, number in TYPE_NUMBERS.items()}
_VALID_NAME = re.compile(r"[A-Za-z_][\w.\-]*", re.ASCII)
_CALLS = {
    "while": ("body", "condition"),
    "select-and-scatter": ("select", "scatter"),
    "fusion": ("calls",),
    "async-start": ("calls",),
}
_LISTS = {"conditional": "branch_computations", "custom-call": "called_computations"}


def serialize_text(module: Module) -> str:
    """The HLO text of a module, without literals, of which the records have only the bytes.

    A name that HLO text cannot contain, or that occurs twice, is replaced by the opcode and the id.
    """
    names = _unique_names([(each.id, each.name, "computation") for each in module.computations])
    lines = [f"HloModule {module.name if _VALID_NAME.fullmatch(module.name) else 'module'}"]
    for computation in module.computations:
        entry = "ENTRY " if computation.id == module.entry_computation_id else ""
        own = _unique_names([(each.id, each.name, each.opcode) for each in computation.instructions])
        lines += ["", f"{entry}%{names[computation.id]} {{"]
        for instruction in computation.instructions:
            root = "ROOT " if instruction.id == computation.root_id else ""
            lines.append(f"  {root}{_line(instruction, own, names)}")
        lines.append("}")
    return "\n".join([*lines, ""])


def _unique_names(items: Sequence[tuple[int, str, str]]) -> dict[int, str]:
    """{id: name}; `items` are ids, names, and what is put in the place of a name that cannot be used."""
    found: dict[str, int] = {}
    for identifier, name, other in items:
        usable = _VALID_NAME.fullmatch(name) is not None and name not in found
        found[name if usable else f"{other}.id{identifier}"] = identifier
    return {identifier: name for name, identifier in found.items()}


def _line(instruction: Instruction, names: dict[int, str], computations: dict[int, str]) -> str:
    try:
        operands = ", ".join(f"%{names[each]}" for each in instruction.operand_ids)
        called = [f"%{computations[each]}" for each in instruction.called_computation_ids]
    except KeyError as error:
        raise HloError(f"instruction {instruction.name!r} refers to id {error}, which its module lacks") from None
    if instruction.opcode == "parameter":
        operands = str(instruction.parameter_number)
    elif instruction.opcode == "constant":
        operands = "{...}"
    attributes = "".join(f", {each}" for each in _attributes(instruction, called))
    shape = _shape(instruction.shape)
    return f"%{names[instruction.id]} = {shape} {instruction.opcode}({operands}){attributes}"


def _shape(shape: Shape) -> str:
    """A shape with its layouts; `{}` marks an array without one."""
    if shape.element_type in (TUPLE, BUFFER):
        return f"{'b' if shape.element_type == BUFFER else ''}({', '.join(map(_shape, shape.tuple_shapes))})"
    if shape.element_type not in _TYPE_NAMES:
        raise HloError(f"element type {shape.element_type} has no name in HLO text; expected 0..{BUFFER}")
    layout = _joined(shape.minor_to_major) if shape.dimensions else ""
    sizes = ("?" if size == UNBOUNDED else str(size) for size in shape.dimensions)
    return f"{_TYPE_NAMES[shape.element_type]}[{','.join(sizes)}]{layout}"


def _joined(values: Sequence[int]) -> str:
    return f"{{{','.join(map(str, values))}}}"


def _attributes(instruction: Instruction, called: list[str]) -> list[str]:
    found: list[str] = []
    if instruction.window:
        found.append(f"window={{{' '.join(_window(instruction.window))}}}")
    if instruction.convolution is not None:
        found.append(f"dim_labels={_labels(instruction.convolution)}")
    if instruction.dot is not None:
        numbers = {name: getattr(instruction.dot, field) for name, field in DOT_FIELDS.items()}
        found += [f"{name}={_joined(dimensions)}" for name, dimensions in numbers.items() if dimensions]
    if instruction.dimensions:
        found.append(f"dimensions={_joined(instruction.dimensions)}")
    if instruction.slice_dimensions:
        ranges = (f"[{each.start}:{each.limit}:{each.stride}]" for each in instruction.slice_dimensions)
        found.append(f"slice={{{', '.join(ranges)}}}")
    if instruction.dynamic_slice_sizes:
        found.append(f"dynamic_slice_sizes={_joined(instruction.dynamic_slice_sizes)}")
    if instruction.padding:
        found.append("padding=" + "x".join(f"{each.low}_{each.high}_{each.interior}" for each in instruction.padding))
    for name in ("feature_group_count", "batch_group_count"):
        if getattr(instruction, name) != DEFAULTS.get(instruction.opcode, {}).get(name, 0):
            found.append(f"{name}={getattr(instruction, name)}")
    if instruction.is_stable:
        found.append("is_stable=true")
    keys = _CALLS.get(instruction.opcode, ("to_apply",))
    if called and (instruction.opcode in _LISTS or len(called) != len(keys)):
        found.append(f"{_LISTS.get(instruction.opcode, 'called_computations')}={{{', '.join(called)}}}")
    elif called:
        found += [f"{key}={name}" for key, name in zip(keys, called, strict=True)]
    if instruction.metadata is not None:
        found.append(f"metadata={format_metadata(instruction.metadata)}")
    return found


def _window(window: Sequence[WindowDimension]) -> list[str]:
    columns = {
        "size": [each.size for each in window],
        "stride": [each.stride for each in window],
        "pad": [f"{each.padding_low}_{each.padding_high}" for each in window],
        "lhs_dilate": [each.base_dilation for each in window],
        "rhs_dilate": [each.window_dilation for each in window],
        "rhs_reversal": [int(each.reversal) for each in window],
    }
    return [f"{name}={'x'.join(map(str, values))}" for name, values in columns.items()]


def _labels(numbers: ConvolutionDimensions) -> str:
    """`b01f_01io->b01f`; raises HloError for numbers that are no permutation."""
    tensors = (
        ("bf", numbers.input_batch, numbers.input_feature, numbers.input_spatial),
        ("io", numbers.kernel_input_feature, numbers.kernel_output_feature, numbers.kernel_spatial),
        ("bf", numbers.output_batch, numbers.output_feature, numbers.output_spatial),
    )
    found = []
    for letters, first, second, spatial in tensors:
        roles = {first: letters[0], second: letters[1]} | {dim: str(number) for number, dim in enumerate(spatial)}
        if sorted(roles) != list(range(len(spatial) + 2)) or len(spatial) > 10:
            raise HloError(f"convolution dimension numbers {numbers} are no permutation: HLO text cannot express them")
        found.append("".join(roles[dim] for dim in sorted(roles)))
    return f"{found[0]}_{found[1]}->{found[2]}"
