"""Runtime of one fused kernel on a simulated TPU v3 core for each candidate of tile sizes, from the archive's arrays.

A kernel processes its output (or, if it ends in a reduce, what it reduces) tile by tile. Bounds count whole native
tiles: 128 in the minor dimension, 8 in the next, 1 in the others, from the major dimension to the minor one. The time
is a fixed cost per step, plus the slower of transfers and computation, which overlap, plus the first tile's transfer,
which overlaps with nothing. A tile that does not fit twice into on-chip memory spills its excess in every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpugraphs_polynormer.hlo.features import CONVOLUTION_DIMENSIONS, WINDOW_SIZE, pad_sum_product
from tpugraphs_polynormer.hlo.layout_flow import CONVOLUTION, ELEMENTWISE, REDUCE, ProgramLayouts
from tpugraphs_polynormer.hlo.opcodes import OPCODE_IDS
from tpugraphs_polynormer.hlo.shapes import LANES, SUBLANES, element_bytes, padded_elements, round_up
from tpugraphs_polynormer.simulator.costs import contraction_size, kernel_operand
from tpugraphs_polynormer.simulator.hardware import TPU_V3

_PARAMETER, _FUSION, _TUPLE = (OPCODE_IDS[name] for name in ("parameter", "fusion", "tuple"))
_UNIT = SUBLANES * LANES  # elements of a native tile
_VECTOR_SLOTS = 2  # vector operations per instruction bundle
# The parts of a kernel's time: steps, the slower of transfers and work, the first tile's transfer, and spilling; beside
# them the two that overlap.
TILE_STREAMS = ("steps", "slower", "first_transfer", "spill", "transfer", "work")
_TRANSFER_OVERHEAD = 512  # starting one contiguous run of a transfer costs as much as this many bytes


def physical_units(dims: Sequence[int], minor_to_major: Sequence[int]) -> tuple[int, ...]:
    """A buffer's extent in native tiles, major dimension first."""
    if len(dims) == 1:
        return (-(-dims[0] // _UNIT),)
    sizes = [dims[dim] for dim in reversed(minor_to_major)]
    if len(sizes) > 1:
        sizes[-2:] = [-(-sizes[-2] // SUBLANES), -(-sizes[-1] // LANES)]
    return tuple(sizes)


class TileCosts:
    """The costs of one kernel's tile candidates."""

    def __init__(self, node_feat: np.ndarray, node_opcode: np.ndarray, edge_index: np.ndarray) -> None:
        self._program = ProgramLayouts(node_feat, node_opcode, edge_index, np.zeros(0, np.int64), [])
        self._bytes = element_bytes(node_feat)
        convolutions = np.flatnonzero(node_opcode == CONVOLUTION)
        self._operator = int(convolutions[-1]) if len(convolutions) else None
        self._main = self._largest() if self._operator is None else self._operator
        self.output_units = self._units(self._main)
        self.kernel_units: tuple[int, ...] = ()
        if self._operator is not None:
            self._read_operator(self._operator)
        self._moved = self._moved_bytes()

    def _units(self, node: int) -> tuple[int, ...]:
        return physical_units(self._program.dims[node], self._program.default_layout(node))

    def _largest(self) -> int:
        sizes = [
            0 if self._program.opcode[node] in (_PARAMETER, _FUSION) else self._padded_bytes(node)
            for node in range(len(self._program.dims))
        ]
        return int(np.argmax(sizes))

    def _padded_bytes(self, node: int) -> float:
        dims = self._program.dims[node]
        return float(padded_elements(dims, self._program.default_layout(node)) * self._bytes[node]) if dims else 0.0

    def _read_operator(self, node: int) -> None:
        """Sets the physical indices of the output features in output and kernel, and the size of the contraction."""
        program = self._program
        numbers = program.node_feat[node, CONVOLUTION_DIMENSIONS].astype(int).tolist()
        operands = [each for each in program.operands[node] if program.dims[each]][-2:]
        kernel = kernel_operand(program, node)
        self._kernel = operands[-1] if kernel is None else kernel
        self._input = operands[0] if operands[0] != self._kernel else operands[-1]
        self.kernel_units = self._units(self._kernel)
        self.output_index = list(reversed(program.default_layout(node))).index(numbers[13])
        self.kernel_index = list(reversed(program.default_layout(self._kernel))).index(numbers[7])
        self.feature_scale = (
            _unit_size(self.output_units, self.output_index),
            _unit_size(self.kernel_units, self.kernel_index),
        )
        self._contraction = contraction_size(program, node, operands)
        self._taps = float(max(1, math.prod(each for each in program.node_feat[node, WINDOW_SIZE].tolist() if each)))

    def _moved_bytes(self) -> float:
        """Bytes that enter and leave the kernel: its outer parameters and what its root yields."""
        program, root = self._program, len(self._program.dims) - 1
        total = sum(self._padded_bytes(each) for each in program.operands[root] if program.opcode[each] == _PARAMETER)
        yielded = [root]
        if not program.dims[root]:
            inner = [each for each in program.operands[root] if program.opcode[each] == _TUPLE]
            yielded = program.operands[inner[0]] if inner else []
        return total + sum(self._padded_bytes(each) for each in yielded)

    def seconds(self, config_feat: np.ndarray) -> np.ndarray:
        """float64 [c]: noiseless seconds of candidates [c, 24]."""
        steps, slower, first, spill, *_ = self.streams(config_feat).T
        return steps + slower + first + spill

    def streams(self, config_feat: np.ndarray) -> np.ndarray:
        """float64 [c, 6]: the seconds of each of TILE_STREAMS for candidates [c, 24]; the first four are the whole."""
        bounds = _clip(config_feat[:, 8:14], self.output_units)
        if self._operator is None:
            return self._vector_streams(bounds)
        return self._matrix_streams(bounds, _clip(config_feat[:, :6], self.kernel_units))

    def tile_bytes(self, config_feat: np.ndarray) -> np.ndarray:
        """float64 [c]: bytes of one step's buffers, each held twice so that transfers overlap with work."""
        bounds = _clip(config_feat[:, 8:14], self.output_units)
        if self._operator is None:
            return 2.0 * self._moved * bounds.prod(axis=1) / math.prod(self.output_units)
        return 2.0 * sum(self._operator_tiles(bounds, _clip(config_feat[:, :6], self.kernel_units)))

    def _vector_streams(self, bounds: np.ndarray) -> np.ndarray:
        steps = np.ceil(np.array(self.output_units) / bounds).prod(axis=1)
        visited = steps * bounds.prod(axis=1)  # native tiles; those at ragged edges count in full
        transfer = self._moved / TPU_V3.hbm_bandwidth / self._efficiency(bounds, self.output_units)
        work = visited * self._num_vector_ops() / (_VECTOR_SLOTS * TPU_V3.clock)
        held = 2.0 * self._moved * bounds.prod(axis=1) / math.prod(self.output_units)
        return self._join(steps, transfer, work, held)

    def _num_vector_ops(self) -> int:
        """Vector operations per native tile of the kernel's largest shape."""
        program, dims = self._program, self._program.dims[self._main]
        kinds = ELEMENTWISE | {REDUCE}
        return 1 + sum(
            int(program.opcode[node]) in kinds and (program.dims[node] == dims or program.opcode[node] == REDUCE)
            for node in range(len(program.dims))
        )

    def _operator_tiles(self, bounds: np.ndarray, kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes [c] of a step's input, kernel and output tiles."""
        out = bounds.prod(axis=1) * _UNIT
        features = bounds[:, self.output_index] * self.feature_scale[0]
        depth = kernel.prod(axis=1) / kernel[:, self.kernel_index] * _UNIT / self.feature_scale[1]
        rows = out / features
        input_bytes = rows * np.maximum(1.0, depth / self._taps) * float(self._bytes[self._input])
        limit = self._padded_bytes(self._input)
        return (
            np.minimum(input_bytes, limit),
            kernel.prod(axis=1) * _UNIT * float(self._bytes[self._kernel]),
            out * float(self._bytes[self._main]),
        )

    def _matrix_streams(self, bounds: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """[c, 6]: the streams, with output tiles in the outer loop and slices of the contraction in the inner loop."""
        out_steps = np.ceil(np.array(self.output_units) / bounds)
        kernel_steps = np.ceil(np.array(self.kernel_units) / kernel)
        depth_steps = kernel_steps.prod(axis=1) / kernel_steps[:, self.kernel_index]
        feature_steps = out_steps[:, self.output_index]
        num_outputs = out_steps.prod(axis=1)
        row_steps = num_outputs / feature_steps
        steps = num_outputs * depth_steps
        tiles = self._operator_tiles(bounds, kernel)
        input_loads = np.where((depth_steps == 1) & (row_steps == 1), 1.0, steps)
        kernel_loads = np.where((depth_steps == 1) & (feature_steps == 1), 1.0, steps)
        moved = tiles[0] * input_loads + tiles[1] * kernel_loads + tiles[2] * num_outputs
        transfer = moved / TPU_V3.hbm_bandwidth / self._efficiency(kernel, self.kernel_units)
        visited = num_outputs * bounds.prod(axis=1) * _UNIT
        work = 2.0 * visited * round_up(self._contraction, LANES) / TPU_V3.peak_flops
        work = work + steps * LANES / TPU_V3.clock  # filling the systolic array with each slice of the kernel
        return self._join(steps, transfer, work, 2.0 * sum(tiles))

    def _efficiency(self, bounds: np.ndarray, units: Sequence[int]) -> np.ndarray:
        """float64 [c]: the share of the bandwidth that transfers reach; runs over whole dimensions are longer."""
        run = np.ones(len(bounds))
        whole = np.ones(len(bounds), dtype=bool)
        for index in reversed(range(len(units))):
            run = np.where(whole, run * bounds[:, index], run)
            whole &= bounds[:, index] == units[index]
        size = run * _UNIT * max(1, int(self._bytes[self._main]))
        return size / (size + _TRANSFER_OVERHEAD)

    @staticmethod
    def _join(steps: np.ndarray, transfer: np.ndarray, work: np.ndarray, held: np.ndarray) -> np.ndarray:
        """[c, 6]: the streams; `held` are the bytes of a step's buffers."""
        excess = np.maximum(0.0, held - TPU_V3.vmem_bytes)
        spill = 2.0 * steps * excess / TPU_V3.hbm_bandwidth
        slower = np.maximum(transfer, work)
        return np.stack([steps * TPU_V3.step_seconds, slower, transfer / steps, spill, transfer, work], axis=1)


def _unit_size(units: Sequence[int], index: int) -> int:
    """The number of elements in one unit of the bound at a physical index."""
    if len(units) == 1:
        return _UNIT
    return {len(units) - 1: LANES, len(units) - 2: SUBLANES}.get(index, 1)


def _clip(features: np.ndarray, units: Sequence[int]) -> np.ndarray:
    """float64 [c, rank] bounds in 1..units; an absent bound (0) means the whole dimension."""
    whole = np.array(units, dtype=np.float64)
    bounds = features[:, : len(units)].astype(np.float64)
    return np.where(bounds > 0, np.minimum(bounds, whole), whole)


def bounds_features(kernel: np.ndarray, output: np.ndarray) -> np.ndarray:
    """float32 [c, 24] from kernel and output bounds [c, rank]; bounds of the input are left out, as in real kernels."""
    rows = [
        [value for part in (a, b, ()) for value in pad_sum_product(tuple(part), 6, empty_product=0)]
        for a, b in zip(kernel.tolist(), output.tolist(), strict=True)
    ]
    return np.array(rows, dtype=np.int64).astype(np.float32)
