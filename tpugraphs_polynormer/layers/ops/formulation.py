"""Which formulation of an aggregation runs: by name, or by where the code will run.

All formulations of `attend` and `aggregate` give the same numbers and gradients. They differ in what they materialise
and where they run. The numbers are milliseconds of one attention layer of 8 heads, forward and backward, 8 and 64 wide
each, on a graph of minesweeper's size and 2 CPU cores (benchmarks/attention.py; the table is in docs/results.md):

- `fused` (21, 134): sparse products and sums that gather as they go, so that no [edges, width] array exists. For CPUs,
  where it is the fastest and needs a quarter of the memory of `segments` at 64.
- `segments` (22, 181): gather, then sorted segment ops. For GPUs, which lack the fused sum; not measured on one.
- `unsorted` (42, 261; compiled by XLA 23, 190): unsorted segment ops with static shapes; the only one that compiles
  under XLA, so the one for TPUs.

Sums are accumulated in float32 whatever the dtype of the values.
"""

from __future__ import annotations

import tensorflow as tf

# A private import: no public function says whether a trace will be compiled by XLA.
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
