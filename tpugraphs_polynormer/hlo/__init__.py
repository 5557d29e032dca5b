"""HLO programs: readers, node features, layout choices, and adapters for JAX and TensorFlow functions."""

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.from_functions import from_jax, from_tf

__all__ = ["HloError", "from_jax", "from_tf"]
