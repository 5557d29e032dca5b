"""Which formulation of an aggregation runs: by name, or by where the code will run.

All formulations of `attend` and `aggregate` give the same numbers and gradients. They differ in what they materialise:

- `fused`: sparse products and sums that gather as they go, so that no [edges, width] array exists. For CPUs.
- `segments`: gather, then sorted segment ops. For GPUs.
- `unsorted`: unsorted segment ops with static shapes; the only one that compiles under XLA (TPU).

Sums are accumulated in float32 whatever the dtype of the values.
"""

from __future__ import annotations

import tensorflow as tf

# The only private TensorFlow import: no public function says whether a trace will be compiled by XLA.
from tensorflow.python.ops import control_flow_util

FORMULATIONS = ("auto", "fused", "segments", "unsorted")


def in_xla() -> bool:
    """Whether the code being traced will be compiled by XLA."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def on_cpu() -> bool:
    """Whether the code being traced will run on CPUs, op by op.

    There a product of matrices is exact to float32, and costs no more than a pass over the states.
    """
    return not in_xla() and not tf.config.list_logical_devices("GPU")


def choose_formulation(formulation: str) -> str:
    """One of FORMULATIONS but `auto`, which is `unsorted` under XLA, `segments` with a GPU, else `fused`."""
    if formulation not in FORMULATIONS:
        raise ValueError(f"unknown formulation {formulation!r}, expected one of {', '.join(FORMULATIONS)}")
    if formulation != "auto":
        return formulation
    if in_xla():
        return "unsorted"
    return "fused" if on_cpu() else "segments"


def fill_rows(rows: tf.Tensor, count: tf.Tensor | int) -> tf.Tensor:
    """Sorted segment ops stop at the last node with an edge: the nodes after it get zeros."""
    missing = count - tf.shape(rows)[0]
    return tf.pad(rows, [[0, missing]] + [[0, 0]] * (rows.shape.rank - 1))
