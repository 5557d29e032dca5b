"""The arrays of the official npz archives, made from tuning records."""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.archives.writer import order_members
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.features import ModuleArrays, featurize_module, pad_sum_product
from tpugraphs_polynormer.hlo.tuning import LayoutTuning, TileSizes, TileTuning


def layout_tuning_arrays(tuning: LayoutTuning, *, operands: bool = False) -> dict[str, np.ndarray]:
    """The layout archive of a tuning record: official keys, dtypes, shapes, memory and row order.

    node_feat float32 [n, 140], node_opcode uint8 [n], edge_index int64 [m, 2] in Fortran order, node_config_feat
    float32 [c, nc, 18], node_config_ids int64 [nc], config_runtime int64 [c], node_splits int64 [1, s]. A run without
    layouts, without a profile or with an error is left out. With `operands` also node_operands int64 [n].

    Raises:
      HloError: none of the runs is the compiler's default, or a config node does not exist.
    """
    if not any(run.is_default for run in tuning.runs):
        raise HloError(
            f"module {tuning.module.name!r}: none of its {len(tuning.runs)} runs is the compiler's default, so "
            "the official tool makes no archive of it; expected one run with is_default"
        )
    graph = featurize_module(tuning.module)
    kept = [
        run for run in tuning.runs if run.candidate is not None and run.runtime_ns is not None and not run.has_error
    ]
    layouts = np.zeros((len(kept), len(tuning.node_ids), 18), dtype=np.float32)
    for row, run in enumerate(kept):
        layouts[row] = run.candidate
    outside = [node for node in tuning.node_ids if not 0 <= node < len(graph.node_opcode)]
    if outside:
        raise HloError(
            f"module {tuning.module.name!r}: config_index_to_node names row {outside[0]}, expected "
            f"0..{len(graph.node_opcode) - 1}: the file is damaged"
        )
    return layout_archive(
        graph,
        node_config_ids=np.array(tuning.node_ids, dtype=np.int64),
        node_config_feat=layouts,
        config_runtime=np.array([run.runtime_ns for run in kept], dtype=np.int64),
        operands=operands,
    )


def layout_archive(
    graph: ModuleArrays,
    *,
    node_config_ids: np.ndarray,
    node_config_feat: np.ndarray,
    config_runtime: np.ndarray,
    operands: bool = False,
) -> dict[str, np.ndarray]:
    """The arrays of a layout archive of a graph and its candidates, in the official order, dtypes and memory orders.

    With `operands` also what official archives do not have: node_operands (see hlo/operands.py).
    """
    return order_members(
        {
            **graph.members(operands=operands),
            "node_config_feat": node_config_feat,
            "node_config_ids": node_config_ids,
            "config_runtime": config_runtime,
            "node_splits": graph.node_splits[None],
        }
    )


def tile_tuning_arrays(tuning: TileTuning, *, operands: bool = False) -> dict[str, np.ndarray] | None:
    """The tile archive of one kernel, or None where the official tool keeps no archive.

    node_feat, node_opcode, edge_index, config_feat float32 [c, 24], config_runtime int64 [c],
    config_runtime_normalizers int64 [c] (the runtime of the default run, in every row). A kernel is kept if it has at
    least two runs, all with tile sizes, one of them the compiler's default. With `operands` also node_operands.
    """
    if len(tuning.runs) < 2 or any(run.candidate is None for run in tuning.runs):
        return None
    # Times of 0 and 1 ns mark failed measurements.
    kept = [run for run in tuning.runs if not run.has_error and run.runtime_ns is not None and run.runtime_ns > 1]
    normalizers = [run.runtime_ns for run in kept if run.is_default]
    if not normalizers:
        return None
    graph = featurize_module(tuning.module)
    return {
        **graph.members(operands=operands),
        "config_feat": np.array([tile_features(run.candidate) for run in kept], dtype=np.int64).astype(np.float32),
        "config_runtime": np.array([run.runtime_ns for run in kept], dtype=np.int64),
        "config_runtime_normalizers": np.full(len(kept), normalizers[0], dtype=np.int64),
    }


def tile_features(tiles: TileSizes) -> list[int]:
    """The 24 columns of a tile candidate: kernel, output, input bounds, each six values, their sum and product."""
    bounds = (tiles.kernel, tiles.output, tiles.input)
    return [value for each in bounds for value in pad_sum_product(each, 6, empty_product=0)]
