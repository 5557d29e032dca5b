"""Reads and prints configs: the defaults of frozen dataclasses, changed by a YAML file and by `--set a.b=c`.

Errors name the field and the file or option in which it is written.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tpugraphs_polynormer.config.parser import ParseError, parse_dataclass
from tpugraphs_polynormer.errors import UserError

T = TypeVar("T")
_MAX_CONFIG_BYTES, _MAX_NODES = 1 << 20, 10_000  # the largest config has 3 KB and 100 values
# The folder of the shipped configs is in the package if it is installed, and beside the package in a clone.
_CONFIG_FOLDERS = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")


class ConfigError(UserError):
    """A config cannot be used; the message names the file or option, the field, what was found and what is allowed."""


def setting(
    default: Any, text: str, *, choices: Sequence[Any] = (), low: float = -math.inf, high: float = math.inf
) -> Any:
    """A dataclass field of a config: its default, a one-line description, and its allowed values.

    Args:
      default: the value of the field if the YAML has none.
      text: the description.
      choices: the allowed values; empty for no restriction.
      low, high: the allowed range of a number, both included.
    """
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices, "low": low, "high": high})


def section(cls: type[T], text: str) -> T:
    """A dataclass field of a config that is itself a config dataclass."""
    return dataclasses.field(default_factory=cls, metadata={"help": text})


def read_config(cls: type[T], path: Path | str | None, overrides: Sequence[str] = ()) -> T:
    """The defaults of `cls`, changed by the YAML file at `path` (if any), then by `overrides` such as "a.b=c"."""
    content: dict[str, Any] = {}
    sources: dict[str, str] = {}  # dotted name of a field -> the file or option with its value
    if path is not None:
        _merge(content, sources, _read_yaml(Path(path)), str(path))
    for override in overrides:
        _merge(content, sources, _parse_override(override), f"--set {override}")

    def locate(name: str) -> str:
        field = name.partition("[")[0]
        found = {where for each, where in sources.items() if f"{each}.".startswith(f"{field}." if field else "")}
        return ", ".join(sorted(found)) or "config"

    try:
        return parse_dataclass(cls, content, locate)
    except ParseError as fault:
        raise ConfigError(str(fault)) from None


def peek_field(name: str, path: Path | str | None, overrides: Sequence[str] = ()) -> Any:
    """The value of a top-level field in a YAML file and overrides, read before the class of the config is known."""
    value = None if path is None else _read_yaml(Path(path)).get(name)
    for override in overrides:
        field, _, text = override.partition("=")
        value = _load_yaml(text, f"--set {override}") if field.strip() == name else value
    return value


def find_config(name: Path | str) -> Path:
    """The path of a YAML file, given as a path or as a name below configs/, with or without ".yaml"."""
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
    """YAML of every field; `read_config` of it returns an equal object."""
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
    """The dotted names of the fields in which two configs differ, with both values.

    Sections of different classes are not compared.
    """
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
    """(dotted name, description, default) of every field, those of sections included."""
    rows = []
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING:
            rows += list_settings(typing.get_type_hints(cls)[field.name], f"{prefix}{field.name}.")
        else:
            rows.append((prefix + field.name, _describe(field), field.default))
    return rows


def document_settings(cls: type) -> str:
    """A Markdown table of every field: name, default, meaning."""
    rows = [
        f"| `{name}` | `{_plain(default)}` | {text.replace('|', 'or')} |" for name, text, default in list_settings(cls)
    ]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])


def _describe(field: dataclasses.Field) -> str:
    choices = field.metadata.get("choices", ())
    return field.metadata["help"] + (f" ({' | '.join(map(str, choices))})" if choices else "")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value


class _StrictLoader(yaml.SafeLoader):
    """A safe YAML loader that refuses too many values as it reads, and a repeated key; PyYAML would use the last."""

    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self._where, self._num_nodes = where, 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._num_nodes += 1
        self.check_count(self._num_nodes)
        return super().compose_node(parent, index)

    def check_count(self, num_nodes: int) -> None:
        """Refuses more values than a config can have."""
        if num_nodes > _MAX_NODES:
            raise ConfigError(f"{self._where}: more than {_MAX_NODES:,} values, counting each alias; expected a config")

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r:.80} twice", node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads `1e-3` (no dot) and `1.0e3` (no sign) as strings; read them as numbers.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _load_yaml(text: str, where: str) -> Any:
    try:
        loader = _StrictLoader(text, where)  # a SafeLoader: it builds plain values only
        node = loader.get_single_node()
        if node is None:
            return None
        loader.check_count(_count_nodes(node, {}))
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as fault:
        if isinstance(fault, ConfigError):
            raise
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(fault).split()):.500}") from None


def _count_nodes(node: yaml.Node, counted: dict[int, int]) -> int:
    """How many values a YAML node has with its aliases written out; more than the limit if it holds itself."""
    if id(node) not in counted:
        counted[id(node)] = _MAX_NODES + 1  # until it is known: only an alias to a node around it is asked before
        children = [node.value] if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            children = node.value
        counted[id(node)] = 1 + sum(_count_nodes(child, counted) for pair in children for child in pair)
    return counted[id(node)]


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ConfigError(
                f"{path}: {path.stat().st_size:,} bytes, expected a config of at most {_MAX_CONFIG_BYTES:,}"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(f"{path}: cannot read this config: {fault}") from None
    content = _load_yaml(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: found {type(content).__name__}, expected a mapping such as 'model: ...'")
    return content


def _parse_override(override: str) -> dict[str, Any]:
    name, equals, text = override.partition("=")
    where = f"--set {override}"
    if not equals:
        raise ConfigError(f"{where}: expected NAME=VALUE, such as model.hidden_dim=128")
    content: Any = _load_yaml(text, where)
    for part in reversed(name.strip().split(".")):
        content = {part: content}
    return content


def _merge(
    content: dict[str, Any], sources: dict[str, str], changes: Mapping[str, Any], where: str, prefix: str = ""
) -> None:
    """Merges nested `changes` into `content`, and records `where` as the source of each changed field."""
    for key, value in changes.items():
        if isinstance(value, Mapping):
            content[key] = content[key] if isinstance(content.get(key), dict) else {}
            _merge(content[key], sources, value, where, f"{prefix}{key}.")
        else:
            content[key] = value
            sources[f"{prefix}{key}"] = where
