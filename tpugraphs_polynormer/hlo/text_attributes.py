"""The attributes of HLO text that become fields of an Instruction: window, dim_labels, slice, padding and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tpugraphs_polynormer.hlo.module import (
    ConvolutionDimensions,
    DotDimensions,
    PaddingDimension,
    SliceDimension,
    WindowDimension,
)
from tpugraphs_polynormer.hlo.text_scanner import Scanner

# What XLA stores where the text is silent; custom calls may be convolutions.
DEFAULTS: dict[str, dict[str, int]] = {
    opcode: {"feature_group_count": 1, "batch_group_count": 1} for opcode in ("convolution", "custom-call")
}
# A window's sub-attributes, the fields that they set, and the values of those that are not printed.
_WINDOW_FIELDS = {
    "size": ("size", 0),
    "stride": ("stride", 1),
    "lhs_dilate": ("base_dilation", 1),
    "rhs_dilate": ("window_dilation", 1),
    "rhs_reversal": ("reversal", 0),
}
_WINDOW_PART = re.compile(r"\s*(\w+)=([-0-9x_]*)", re.ASCII)
_DIM_LABELS = re.compile(r"([0-9bf?]*)_([0-9io?]*)->([0-9bf?]*)", re.ASCII)
_SLICE = re.compile(r"\s*\[\s*(-?\d+)\s*:\s*(-?\d+)\s*(?::\s*(-?\d+)\s*)?\]\s*(,|\Z)", re.ASCII)
_PADDING = re.compile(r"(-?\d+)_(-?\d+)(?:_(-?\d+))?", re.ASCII)


def _braced(scanner: Scanner, position: int, value: str) -> str:
    if not value.startswith("{") or not value.endswith("}"):
        scanner.fail(position, f"found {value[:40]!r}, expected a list in braces, such as {{0,1}}")
    return value[1:-1]


def _integers(scanner: Scanner, position: int, value: str) -> tuple[int, ...]:
    return scanner.integers(position + 1, _braced(scanner, position, value))


def _one_dimension(scanner: Scanner, position: int, value: str) -> tuple[int, ...]:
    return (scanner.integer(position, value),)


def _flag(scanner: Scanner, position: int, value: str) -> bool:
    if value not in ("true", "false", "1", "0"):
        scanner.fail(position, f"found {value[:40]!r}, expected true or false")
    return value in ("true", "1")


def _window(scanner: Scanner, position: int, value: str) -> tuple[WindowDimension, ...]:
    """`{size=3x3 stride=2x2 pad=0_1x1_1 lhs_dilate=1x2 rhs_dilate=2x1 rhs_reversal=0x1}`."""
    inner, start = _braced(scanner, position, value).rstrip(), 0
    columns: dict[str, Sequence[int]] = {}
    while start < len(inner):
        match = _WINDOW_PART.match(inner, start)
        if match is None or (match[1] != "pad" and match[1] not in _WINDOW_FIELDS):
            where = scanner.skip_space(position + 1 + start)
            scanner.expected(where, f"one of pad, {', '.join(_WINDOW_FIELDS)} in a window")
        start, where = match.end(), position + 1 + match.start(2)
        if match[1] == "pad":
            pairs = [_pair(scanner, where, part) for part in match[2].split("x")]
            columns["padding_low"], columns["padding_high"] = ([pair[side] for pair in pairs] for side in (0, 1))
        else:
            columns[_WINDOW_FIELDS[match[1]][0]] = [scanner.integer(where, part) for part in match[2].split("x")]
    rank = len(columns.get("size", ()))
    for name, default in [*_WINDOW_FIELDS.values(), ("padding_low", 0), ("padding_high", 0)]:
        if len(columns.setdefault(name, [default] * rank)) != rank:
            scanner.fail(position, f"the window has {rank} sizes, but {len(columns[name])} of {name}: expected as many")
    columns["reversal"] = [bool(each) for each in columns["reversal"]]
    return tuple(WindowDimension(**{name: values[index] for name, values in columns.items()}) for index in range(rank))


def _pair(scanner: Scanner, position: int, part: str) -> tuple[int, int]:
    low, _, high = part.partition("_")
    return scanner.integer(position, low), scanner.integer(position, high)


def _convolution(scanner: Scanner, position: int, value: str) -> ConvolutionDimensions:
    """`b01f_01io->b01f`: the roles of the dimensions of input, kernel and output."""
    match = _DIM_LABELS.fullmatch(value)
    if match is None:
        scanner.fail(position, f"found {value[:40]!r}, expected dimension labels such as b01f_01io->b01f")
    (input_batch, input_feature, input_spatial), (kernel_input, kernel_output, kernel_spatial), output = (
        _roles(scanner, position, labels, *names)
        for labels, names in zip(match.groups(), ("bf", "io", "bf"), strict=True)
    )
    return ConvolutionDimensions(
        input_batch,
        input_feature,
        input_spatial,
        kernel_input,
        kernel_output,
        kernel_spatial,
        *output,
    )


def _roles(scanner: Scanner, position: int, labels: str, first: str, second: str) -> tuple[int, int, tuple[int, ...]]:
    """The dimensions with the two labels, and those of the spatial labels 0, 1 ... in this order."""
    spatial = sorted(label for label in labels if label.isdigit())
    known = first + second + "".join(map(str, range(len(spatial))))
    if sorted(labels.replace("?", "")) != sorted(known):
        message = f"found the dimension labels {labels[:40]!r}"
        scanner.fail(position, f"{message}, expected {first!r}, {second!r} and 0, 1 ..., each once")
    return labels.index(first), labels.index(second), tuple(labels.index(label) for label in spatial)


def _slices(scanner: Scanner, position: int, value: str) -> tuple[SliceDimension, ...]:
    """`{[0:8], [1:9:2]}`: start, limit and stride."""
    inner, start = _braced(scanner, position, value).rstrip(), 0
    found: list[SliceDimension] = []
    while start < len(inner):
        match = _SLICE.match(inner, start)
        if match is None:
            scanner.expected(position + 1 + start, "a range such as [0:8] or [0:8:2]")
        where = position + 1 + match.start(1)
        found.append(SliceDimension(*(scanner.integer(where, each or "1") for each in match.groups()[:3])))
        start = match.end()
    return tuple(found)


def _padding(scanner: Scanner, position: int, value: str) -> tuple[PaddingDimension, ...]:
    """`0_1x2_3_1`: low and high edge, and what is inserted between elements."""
    found: list[PaddingDimension] = []
    for part in value.split("x") if value else ():
        match = _PADDING.fullmatch(part)
        if match is None:
            scanner.fail(position, f"found {part[:40]!r}, expected padding such as 0_1 or 0_1_2 per dimension")
        found.append(PaddingDimension(*(scanner.integer(position, each or "0") for each in match.groups())))
        position += len(part) + 1
    return tuple(found)


# Name in the text: field of the record, and how its value is read.
_FIELDS: dict[str, tuple[str, Callable[[Scanner, int, str], Any]]] = {
    "dimensions": ("dimensions", _integers),
    "iota_dimension": ("dimensions", _one_dimension),
    "inferred_dimension": ("dimensions", _one_dimension),
    "window": ("window", _window),
    "dim_labels": ("convolution", _convolution),
    "slice": ("slice_dimensions", _slices),
    "dynamic_slice_sizes": ("dynamic_slice_sizes", _integers),
    "padding": ("padding", _padding),
    "feature_group_count": ("feature_group_count", Scanner.integer),
    "batch_group_count": ("batch_group_count", Scanner.integer),
    "is_stable": ("is_stable", _flag),
}
# The attributes of a dot, which together are one field of the record.
DOT_FIELDS = {
    "lhs_contracting_dims": "first_contracting",
    "rhs_contracting_dims": "second_contracting",
    "lhs_batch_dims": "first_batch",
    "rhs_batch_dims": "second_batch",
}


class Attributes:
    """Reads the values of attributes; a program repeats few values, so each is read once."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._known: dict[str, dict[str, Any]] = {name: {} for name in _FIELDS}

    def read(self, name: str, start: int, end: int, fields: dict[str, Any]) -> None:
        """Sets the field of attribute `name`, whose value is text[start:end]; ignores attributes without a field."""
        known = self._known.get(name)
        if known is None:
            if name in DOT_FIELDS:
                found = _integers(self._scanner, start, self._scanner.text[start:end])
                fields["dot"] = replace(fields.get("dot", DotDimensions()), **{DOT_FIELDS[name]: found})
            return
        field, convert = _FIELDS[name]
        value = self._scanner.text[start:end]
        if value not in known:
            known[value] = convert(self._scanner, start, value)
        fields[field] = known[value]
