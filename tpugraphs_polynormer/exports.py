"""Lazy public names (PEP 562): a package imports each exported name when it is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def export_lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose public names are defined in other modules.

    Args:
      package: `__name__` of the package.
      modules: public name -> the module that defines it, relative to tpugraphs_polynormer; or the module itself, if it
        has that name.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"tpugraphs_polynormer.{modules[name]}")
        value = module if modules[name].rsplit(".", 1)[-1] == name else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, list_names
