"""Serializers of tuning records, the inverse of hlo/tuning.py."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpugraphs_polynormer.hlo.messages import MESSAGES
from tpugraphs_polynormer.hlo.tuning import LayoutTuning, TileTuning, TuningRun
from tpugraphs_polynormer.hlo.writer import fill_module


def serialize_layout_tuning(tuning: LayoutTuning) -> bytes:
    """The bytes of a ModuleTuningData message (a layout file)."""
    message = MESSAGES["ModuleTuning"]()
    _fill_layout_tuning(message, tuning)
    return message.SerializeToString(deterministic=True)


def serialize_tile_tuning(kernels: Sequence[TileTuning]) -> bytes:
    """The bytes of a TuningData message (a tile file)."""
    message = MESSAGES["Tuning"]()
    _fill_tile_tuning(message, kernels)
    return message.SerializeToString(deterministic=True)


def _fill_layout_tuning(message: Any, tuning: LayoutTuning) -> None:
    fill_module(message.module, tuning.module)
    message.config_index_to_node.extend(tuning.node_ids)
    for run in tuning.runs:
        target = message.runs.add()
        _fill_run(target, run)
        if run.candidate is not None:
            target.module_candidate.layout.SetInParent()
            for row in np.asarray(run.candidate):
                _fill_node_layouts(target.module_candidate.layout.nodes.add(), row)


def _fill_node_layouts(message: Any, row: np.ndarray) -> None:
    for tensor in row.reshape(3, 6):
        message.tensors.add(dims=[int(dim) for dim in tensor if dim != -1])


def _fill_tile_tuning(message: Any, kernels: Sequence[TileTuning]) -> None:
    for kernel in kernels:
        target = message.modules.add()
        fill_module(target.module, kernel.module)
        for run in kernel.runs:
            _fill_tile_run(target.runs.add(), run)


def _fill_tile_run(message: Any, run: TuningRun) -> None:
    _fill_run(message, run)
    if run.candidate is not None:
        message.op_candidate.tile_sizes.SetInParent()
        message.op_candidate.tile_sizes.kernel_bounds.extend(run.candidate.kernel)
        message.op_candidate.tile_sizes.output_bounds.extend(run.candidate.output)
        message.op_candidate.tile_sizes.input_bounds.extend(run.candidate.input)


def _fill_run(message: Any, run: TuningRun | TuningRun) -> None:
    if run.has_error:
        message.error = True
    if run.runtime_ns is not None:
        message.profile.compute_time_ns = run.runtime_ns
    if run.is_default:
        message.is_default = True
