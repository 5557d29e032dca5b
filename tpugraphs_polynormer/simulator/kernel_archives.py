"""Tile archives of the kernels that the real TPU compiler makes of a program."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence

import numpy as np

from tpugraphs_polynormer.archives.tuning import tile_features
from tpugraphs_polynormer.compiler.kernels import Kernel
from tpugraphs_polynormer.compiler.program import nanoseconds
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.simulator.tile_costs import TileCosts
from tpugraphs_polynormer.simulator.tiles import draw_tiles

_logger = logging.getLogger(__name__)


def kernel_archives(
    kernels: Sequence[Kernel], topology: str, *, num_candidates: int = 1, seed: int = 0, operands: bool = False
) -> dict[str, dict[str, np.ndarray]]:
    """{name: arrays of a tile archive} of kernels; the compiler's own tile sizes are the first candidate of each.

    The other candidates are those that the simulated TPU draws. The runtimes are 0, as in the data set's test split;
    the normalizer is the compiler's estimate of its own choice.

    Args:
      num_candidates: at most so many of each kernel; 1 for the compiler's own choice alone.
      operands: whether archives also have node_operands.
    """
    archives = {each.name: _arrays(each, topology, num_candidates, seed, operands) for each in kernels}
    alone = [name for name, arrays in archives.items() if len(arrays["config_runtime"]) == 1]
    if num_candidates > 1 and alone:
        _logger.info(
            "%d of %d kernels have no tile sizes but the compiler's own: %s",
            len(alone),
            len(archives),
            ", ".join(alone),
        )
    return archives


def _arrays(kernel: Kernel, topology: str, num_candidates: int, seed: int, operands: bool) -> dict[str, np.ndarray]:
    graph = featurize_module(kernel.module)
    candidates = np.array([tile_features(kernel.tiles)], dtype=np.float32)
    if num_candidates > 1:
        costs = TileCosts(graph.node_feat, graph.node_opcode, graph.edge_index)
        if _agrees(kernel, costs):
            rng = np.random.default_rng([seed, zlib.crc32(kernel.name.encode())])
            drawn = draw_tiles(costs, rng, num_candidates)
            candidates = np.concatenate([candidates, drawn[(drawn != candidates).any(axis=1)]])[:num_candidates]
    return {
        **graph.members(operands=operands),
        "config_feat": candidates,
        "config_runtime": np.zeros(len(candidates), dtype=np.int64),
        "config_runtime_normalizers": np.full(len(candidates), nanoseconds(kernel.cycles, topology), dtype=np.int64),
    }


def _agrees(kernel: Kernel, costs: TileCosts) -> bool:
    """Whether the compiler's tile sizes are of the tensors that the simulated TPU cuts into tiles."""
    pairs = ((kernel.tiles.output, costs.output_units), (kernel.tiles.kernel, costs.kernel_units))
    return all(
        len(bounds) == len(units) and all(bound <= unit for bound, unit in zip(bounds, units, strict=True))
        for bounds, units in pairs
    )
