"""Public figures of one TPU v3 core."""

from __future__ import annotations

from dataclasses import dataclass

from tpugraphs_polynormer.hlo.shapes import LANES, SUBLANES

MEASUREMENT_NOISE = 2.7e-4  # relative: the median difference of one real candidate measured twice


@dataclass(frozen=True)
class TpuCore:
    """One core of a TPU v3: two 128 x 128 systolic arrays, a vector unit and half a chip's HBM."""

    clock: float = 0.94e9  # Hz
    peak_flops: float = 61.5e12  # bf16: 2 arrays x 128 x 128 x 2 x clock
    hbm_bandwidth: float = 450e9  # bytes/s
    vmem_bytes: int = 16 << 20
    # The cost of starting one tile's transfers, about 140 cycles. No figure is public; this one is fitted to the real
    # kernels, whose runtime grows by 40 to 230 ns with each further step.
    step_seconds: float = 150e-9

    @property
    def transpose_rate(self) -> float:
        """Elements per second through the cross-lane unit: one 8 x 128 register per cycle."""
        return SUBLANES * LANES * self.clock


TPU_V3 = TpuCore()
