"""Reads TpuGraphs tuning files: a program with its measured layouts, or kernels with their measured tile sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.hlo.protobuf import (
    DUMP_ADVICE,
    describe_bytes,
    find_module,
    is_program,
    parse_message,
    to_module,
)
from tpugraphs_polynormer.hlo.text import is_text

_NUM_TENSORS = 3
_NUM_LAYOUT_DIMS = 6


@dataclass(frozen=True)
class TileSizes:
    """The tile bounds of one candidate."""

    kernel: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    input: tuple[int, ...] = ()


@dataclass(frozen=True)
class TuningRun:
    """One measured candidate: layouts int32 [nc, 18] or tile sizes; None if the run has no candidate of its kind."""

    candidate: np.ndarray | TileSizes | None
    runtime_ns: int | None
    has_error: bool
    is_default: bool


@dataclass(frozen=True)
class LayoutTuning:
    """A ModuleTuningData message: a program, the rows of its config nodes, its measured runs in file order."""

    module: Module
    node_ids: tuple[int, ...]
    runs: tuple[TuningRun, ...]


@dataclass(frozen=True)
class TileTuning:
    """One kernel of a TuningData message: its module and the measured runs in file order."""

    module: Module
    runs: tuple[TuningRun, ...]


def detect_kind(data: bytes) -> str:
    """The kind of the bytes: "layout" (ModuleTuningData), "tile" (TuningData) or "module", which may be HLO text."""
    if is_text(data):
        return "module"
    if _find_layout_tuning(data) is not None:
        return "layout"
    if find_module(data) is not None:
        return "module"
    if _find_tile_tuning(data) is not None:
        return "tile"
    raise HloError(
        f"not an HLO file: found {describe_bytes(data)}, expected HLO text (HloModule ...), or a serialized HloProto, "
        f"HloModuleProto, ModuleTuningData or TuningData with instructions; {DUMP_ADVICE}"
    )


def parse_layout_tuning(data: bytes) -> LayoutTuning:
    """The record of a ModuleTuningData message (a layout file); raises HloError if the bytes are none."""
    message = _find_layout_tuning(data)
    if message is None:
        raise HloError(
            f"not a layout tuning file: {len(data)} bytes of which no ModuleTuningData with a module, runs and "
            "config_index_to_node can be read"
        )
    nodes = tuple(message.config_index_to_node)
    runs = tuple(_layout_run(run, len(nodes), index) for index, run in enumerate(message.runs))
    return LayoutTuning(module=to_module(message.module), node_ids=nodes, runs=runs)


def parse_tile_tuning(data: bytes) -> tuple[TileTuning, ...]:
    """The records of a TuningData message (a tile file), one per kernel; raises HloError if the bytes are none."""
    message = _find_tile_tuning(data)
    if message is None:
        raise HloError(f"not a tile tuning file: {len(data)} bytes of which no TuningData with modules can be read")
    return tuple(
        TileTuning(module=to_module(each.module), runs=tuple(_tile_run(run) for run in each.runs))
        for each in message.modules
    )


def _find_layout_tuning(data: bytes) -> Any | None:
    message = parse_message("ModuleTuning", data)
    # The buffer assignment of an HloProto has the field number of `runs`; only a tuning file has config_index_to_node.
    if message is None or not message.runs or not message.config_index_to_node:
        return None
    return message if is_program(message.module) else None


def _find_tile_tuning(data: bytes) -> Any | None:
    message = parse_message("Tuning", data)
    if message is None or not message.modules:
        return None
    return message if all(is_program(each.module) for each in message.modules) else None


def _measured(run: Any, candidate: np.ndarray | TileSizes | None) -> TuningRun:
    runtime = run.profile.compute_time_ns if run.HasField("profile") else None
    return TuningRun(candidate, runtime, run.error, run.is_default)


def _layout_run(run: Any, num_nodes: int, index: int) -> TuningRun:
    layouts = None
    if run.HasField("module_candidate"):
        layouts = _layout_rows(run.module_candidate.layout.nodes, num_nodes, index)
    return _measured(run, layouts)


def _layout_rows(nodes: Any, num_nodes: int, index: int) -> np.ndarray:
    """int32 [nc, 18]: three tensors of six minor-to-major dims per node; missing dims are -1."""
    if len(nodes) != num_nodes:
        raise HloError(
            f"run {index} of the layout tuning file gives layouts for {len(nodes)} nodes, expected {num_nodes} "
            "(one per entry of config_index_to_node): the file is damaged"
        )
    rows = np.full((num_nodes, _NUM_TENSORS, _NUM_LAYOUT_DIMS), -1, dtype=np.int32)
    for node, record in enumerate(nodes):
        for tensor, layout in enumerate(record.tensors[:_NUM_TENSORS]):
            dims = layout.dims[:_NUM_LAYOUT_DIMS]
            rows[node, tensor, : len(dims)] = dims
    return rows.reshape(num_nodes, _NUM_TENSORS * _NUM_LAYOUT_DIMS)


def _tile_run(run: Any) -> TuningRun:
    tiles = None
    if run.HasField("op_candidate") and run.op_candidate.HasField("tile_sizes"):
        sizes = run.op_candidate.tile_sizes
        tiles = TileSizes(tuple(sizes.kernel_bounds), tuple(sizes.output_bounds), tuple(sizes.input_bounds))
    return _measured(run, tiles)
