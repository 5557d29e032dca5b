"""The official validation index files: the candidates of each validation graph that the published metrics use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.errors import UserError

_FORMAT = "JSON of graph name -> list of candidate numbers"


def index_file_name(collection: str) -> str:
    """The name of a layout collection's index file: `<source>_<search>.json`."""
    return "_".join(collection.split(":")[1:]) + ".json"


def find_indices(folder: Path | str | None, collection: str) -> dict[str, np.ndarray] | None:
    """The result of `read_indices`, or None without a folder and for tiles, which have no index files."""
    has_indices = folder is not None and find_collection(collection).kind == "layout"
    return read_indices(folder, collection) if has_indices else None


def read_indices(folder: Path | str, collection: str) -> dict[str, np.ndarray]:
    """The official candidate numbers [k] per validation graph, from the collection's index file in a folder.

    A number that is in a list twice (as in unet_3d.4x4.bf16 of xla:random) counts twice, as in the official metrics.
    """
    return read_index_file(Path(folder) / index_file_name(collection))


def read_index_file(path: Path) -> dict[str, np.ndarray]:
    """The candidate numbers [k] per graph of one index file; raises UserError that says what is wrong with it."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        raise UserError(
            f"{path}: not an index file ({fault}); expected {_FORMAT}, as `tpugraphs download` fetches it"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: found a {type(content).__name__}, expected {_FORMAT}")
    for name, numbers in content.items():
        if not isinstance(numbers, list) or not numbers or any(type(number) is not int for number in numbers):
            raise UserError(f"{path}: {name}: found {numbers!r:.80}, expected a list of candidate numbers")
        if min(numbers) < 0:
            raise UserError(f"{path}: {name}: found {min(numbers)}, expected candidate numbers from 0 on")
    return {name: np.array(numbers, np.int64) for name, numbers in content.items()}
