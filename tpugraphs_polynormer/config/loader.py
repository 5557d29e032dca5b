"""How configs are read and shown: frozen dataclasses <- YAML <- `--set a.b=c`, every mistake refused by name."""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tpugraphs_polynormer.errors import UserError

T = TypeVar("T")
# Where the shipped configs are: inside an installed package, or beside it in a clone.
_CONFIG_FOLDERS = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")


class ConfigError(UserError):
    """A config that cannot be used: names the file or option, the field, what was found and what is allowed."""


def setting(
    default: Any, text: str, *, choices: Sequence[Any] = (), low: float = -math.inf, high: float = math.inf
) -> Any:
    """A config field: its one default, its one-line description, and what values it may take (low..high inclusive)."""
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices, "low": low, "high": high})


def section(cls: type[T], text: str) -> T:
    """A field that is a config dataclass itself."""
    return dataclasses.field(default_factory=cls, metadata={"help": text})


def read_config(cls: type[T], path: Path | str | None, overrides: Sequence[str] = ()) -> T:
    """The defaults of `cls`, changed by the YAML file at `path` (if any), then by `overrides` such as "a.b=c"."""
    changes: dict[str, tuple[str, Any]] = {}
    if path is not None:
        changes.update(_flatten(cls, _read_yaml(Path(path)), str(path)))
    for override in overrides:
        changes.update(_parse_override(cls, override))
    return _build(cls, changes, "")


def peek_field(name: str, path: Path | str | None, overrides: Sequence[str] = ()) -> Any:
    """What a YAML file and overrides say of one field at their top, before it is known which class they describe."""
    value = None if path is None else _read_yaml(Path(path)).get(name)
    for override in overrides:
        field, _, text = override.partition("=")
        value = _load_yaml(text, f"--set {override}") if field.strip() == name else value
    return value


def find_config(name: Path | str) -> Path:
    """The YAML file at a path, or the shipped config of that name below configs/, with or without ".yaml"."""
    path = Path(name)
    if path.is_file():
        return path
    for folder in _CONFIG_FOLDERS:
        for candidate in (folder / path, folder / f"{path}.yaml"):
            if candidate.is_file():
                return candidate
    files = [(folder, file) for folder in _CONFIG_FOLDERS for file in folder.rglob("*.yaml")]
    shipped = [file.relative_to(folder).with_suffix("").as_posix() for folder, file in files]
    close = difflib.get_close_matches(str(path).removeprefix("configs/").removesuffix(".yaml"), shipped, n=3)
    advice = f"did you mean {' or '.join(close)}?" if close else "give a path, or a name such as demo/layout_xla_random"
    raise ConfigError(f"{name}: found no such file and no shipped config of that name; {advice}")


def dump_config(config: Any) -> str:
    """YAML of every field: `read_config` of it gives an equal object."""
    return yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)


def describe_config(config: Any, indent: str = "") -> str:
    """YAML of every field, each under a comment with its description and choices."""
    lines = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        lines.append(f"{indent}# {_describe(field)}")
        if dataclasses.is_dataclass(value):
            lines += [f"{indent}{field.name}:", describe_config(value, indent + "  ")]
        else:
            dumped = yaml.safe_dump(_plain(value), default_flow_style=True, allow_unicode=True, width=math.inf)
            lines.append(f"{indent}{field.name}: {dumped.split(chr(10))[0]}")
    return "\n".join(lines)


def config_differences(first: Any, second: Any, prefix: str = "") -> list[str]:
    """The dotted names of the fields in which two configs differ, with both values; sections of one class only."""
    differences = []
    for field in dataclasses.fields(first):
        left, right = getattr(first, field.name), getattr(second, field.name, None)
        if dataclasses.is_dataclass(left):
            if type(left) is type(right):
                differences += config_differences(left, right, f"{prefix}{field.name}.")
        elif left != right:
            differences.append(f"{prefix}{field.name}: {left!r} != {right!r}")
    return differences


def list_settings(cls: type, prefix: str = "") -> list[tuple[str, str, Any]]:
    """(dotted name, description, default) of every field, sections opened."""
    rows = []
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING:
            rows += list_settings(_section_class(cls, field), f"{prefix}{field.name}.")
        else:
            rows.append((prefix + field.name, _describe(field), field.default))
    return rows


def document_settings(cls: type) -> str:
    """A Markdown page of every field: name, default, meaning."""
    rows = [
        f"| `{name}` | `{_plain(default)}` | {text.replace('|', 'or')} |" for name, text, default in list_settings(cls)
    ]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])


def _describe(field: dataclasses.Field) -> str:
    choices = field.metadata.get("choices", ())
    return field.metadata["help"] + (f" ({' | '.join(map(str, choices))})" if choices else "")


def _section_class(cls: type, field: dataclasses.Field) -> type:
    return typing.get_type_hints(cls)[field.name]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice, which plain YAML silently lets the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _load_yaml(text: str, where: str) -> Any:
    try:
        # _StrictLoader is a SafeLoader: it builds plain values only.
        return yaml.load(text, _StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as fault:
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(fault).split())}") from None


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(f"{path}: cannot read this config: {fault}") from None
    content = _load_yaml(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: found {type(content).__name__}, expected a mapping such as 'model: ...'")
    return content


def _flatten(cls: type, content: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, tuple[str, Any]]:
    """Nested mappings -> {dotted name: (where it was written, value)}, unknown names refused."""
    flat: dict[str, tuple[str, Any]] = {}
    for key, value in content.items():
        field = _find_field(cls, key, where, prefix)
        name = f"{prefix}{key}"
        if field.default is not dataclasses.MISSING:
            flat[name] = (where, value)
        elif isinstance(value, Mapping):
            flat |= _flatten(_section_class(cls, field), value, where, f"{name}.")
        elif value is not None:
            raise ConfigError(f"{where}: {name}: found {value!r}, expected a mapping of its fields")
    return flat


def _find_field(cls: type, key: Any, where: str, prefix: str) -> dataclasses.Field:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if key in fields:
        return fields[key]
    near = difflib.get_close_matches(str(key), fields, n=1, cutoff=0)
    raise ConfigError(f"{where}: unknown field {prefix}{key}; did you mean {prefix}{near[0]}?")


def _parse_override(cls: type, override: str) -> dict[str, tuple[str, Any]]:
    name, equals, text = override.partition("=")
    where = f"--set {override}"
    if not equals:
        raise ConfigError(f"{where}: expected NAME=VALUE, such as model.hidden_dim=128")
    content: Any = _load_yaml(text, where)
    for part in reversed(name.strip().split(".")):
        content = {part: content}
    return _flatten(cls, content, where)


def _build(cls: type[T], changes: Mapping[str, tuple[str, Any]], prefix: str) -> T:
    values = {}
    for field in dataclasses.fields(cls):
        name = prefix + field.name
        if field.default is dataclasses.MISSING:
            values[field.name] = _build(_section_class(cls, field), changes, f"{name}.")
        elif name in changes:
            where, value = changes[name]
            values[field.name] = _check(f"{where}: {name}", value, _section_class(cls, field), field.metadata)
    try:
        return cls(**values)
    except ConfigError as fault:  # a rule over several fields
        written = sorted({where for name, (where, _) in changes.items() if name.startswith(prefix)})
        raise ConfigError(f"{', '.join(written) or 'config'}: {prefix}{fault}") from None


def _check(where: str, value: Any, kind: Any, metadata: Mapping[str, Any]) -> Any:
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: found {value!r}, expected a list")
        return tuple(_check(where, item, typing.get_args(kind)[0], metadata) for item in value)
    value = _convert(where, value, kind)
    if metadata["choices"] and value not in metadata["choices"]:
        raise ConfigError(f"{where}: found {value!r}, expected one of {', '.join(map(str, metadata['choices']))}")
    if kind in (int, float) and not metadata["low"] <= value <= metadata["high"]:
        raise ConfigError(f"{where}: found {value!r}, expected {metadata['low']} to {metadata['high']}")
    return value


def _convert(where: str, value: Any, kind: type) -> Any:
    if kind in (int, float) and not isinstance(value, bool):
        number = _to_number(value)
        if number is not None and (kind is float or number == int(number)):
            return kind(number)
    elif type(value) is kind:
        return value
    raise ConfigError(f"{where}: found {value!r} ({type(value).__name__}), expected {kind.__name__}")


def _to_number(value: Any) -> float | int | None:
    """A finite number, or None; YAML leaves `1e-3` (no dot) a string, so strings are tried too."""
    try:
        number = value if isinstance(value, int) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
