"""HLO modules: reading them, and turning them into the TpuGraphs arrays."""

from tpugraphs_polynormer.hlo.adapters import from_jax, from_tf
from tpugraphs_polynormer.hlo.errors import HloError

__all__ = ["HloError", "from_jax", "from_tf"]
