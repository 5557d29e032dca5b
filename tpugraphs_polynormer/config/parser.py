"""Creates dataclasses from the plain values of YAML or JSON; an unknown, missing or ill-typed field is an error.

Configs and manifests use it. The type of a field may be a scalar, a tuple, a dict, a dataclass, `Any`, or a union of
one of these and None. Its metadata may have `choices`, `low` and `high` (see `loader.setting`).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tpugraphs_polynormer.errors import UserError

T = TypeVar("T")


class ParseError(UserError):
    """The dataclass does not allow a value."""


def parse_dataclass(cls: type[T], content: Any, locate: Callable[[str], str]) -> T:
    """An object of `cls`, made from nested mappings and lists.

    A field that is not in `content` has its default; without a default it is an error. A ParseError names the source
    of the value, the field, what was found and what was expected.

    Args:
      cls, content: the dataclass and its values.
      locate: function from the dotted name of a field ("" for the whole) to the source of its value, for messages.
    """
    return _parse(cls, content, "", {}, locate)


def _parse(kind: Any, value: Any, name: str, limits: Mapping[str, Any], locate: Callable[[str], str]) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (value is None and type(None) in arguments):
        return value
    if type(None) in arguments:
        return _parse(arguments[0], value, name, limits, locate)
    if dataclasses.is_dataclass(kind) and (value is None or isinstance(value, Mapping)):
        return _parse_fields(kind, value or {}, name, locate)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_parse(arguments[0], item, f"{name}[{i}]", limits, locate) for i, item in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {key: _parse(arguments[1], item, f"{name}.{key}", limits, locate) for key, item in value.items()}
    expected = {tuple: "a list", dict: "a mapping"}.get(origin, "a mapping of its fields")
    if kind in (bool, int, float, str):
        value, expected = _parse_scalar(kind, value, **limits)
        if expected is None:
            return value
    label = ": ".join(filter(None, [locate(name), name]))
    found = f"{value!r:.80}" if type(value) is kind else f"{value!r:.80} ({type(value).__name__})"
    raise ParseError(f"{label}: found {found}, expected {expected}")


def _parse_fields(cls: type, content: Mapping[str, Any], name: str, locate: Callable[[str], str]) -> Any:
    fields, prefix = _fields(cls), f"{name}." if name else ""
    for key in content:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1, cutoff=0)[0]
            raise ParseError(f"{locate(f'{prefix}{key}')}: unknown field {prefix}{key}; did you mean {prefix}{near}?")
    values = {}
    for key, (kind, limits, has_default) in fields.items():
        if key in content:
            values[key] = _parse(kind, content[key], f"{prefix}{key}", limits, locate)
        elif not has_default:
            raise ParseError(f"{locate(name)}: found no field {prefix}{key}, expected {', '.join(fields)}")
    try:
        return cls(**values)
    except UserError as fault:  # a rule over several fields
        raise ParseError(f"{locate(name)}: {prefix}{fault}") from None


@functools.cache
def _fields(cls: type) -> dict[str, tuple[Any, Mapping[str, Any], bool]]:
    """Field name -> type, limits of the value, and whether the field has a default."""
    hints, none, fields = typing.get_type_hints(cls), dataclasses.MISSING, {}
    for field in dataclasses.fields(cls):
        limits = {name: field.metadata[name] for name in ("choices", "low", "high") if name in field.metadata}
        fields[field.name] = hints[field.name], limits, (field.default, field.default_factory) != (none, none)
    return fields


def _parse_scalar(
    kind: type, value: Any, choices: tuple = (), low: float = -math.inf, high: float = math.inf
) -> tuple[Any, str | None]:
    """(value as a `kind`, None), or (value, description of what is expected) if it is not allowed.

    A float without fraction is accepted as an int, and an int as a float; a bool is neither.
    """
    if kind in (int, float) and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        value = kind(value) if kind is float or value == int(value) else value
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        return value, kind.__name__
    if choices and value not in choices:
        return value, f"one of {', '.join(map(str, choices))}"
    if kind in (int, float) and not low <= value <= high:
        return value, f"{low} to {high}"
    return value, None
