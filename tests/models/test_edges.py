"""Edge structures: order, treatment, padding, numpy against TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.graphs import random_edges, random_pairs
from tpugraphs_polynormer.models.edges import (
    Edges,
    build_edges,
    build_edges_tf,
    build_undirected_edges,
    build_undirected_edges_tf,
    pad_edges,
)


def real_pairs(edges: Edges) -> list[tuple[int, int]]:
    mask = np.ones(len(edges.source), bool) if edges.mask is None else np.asarray(edges.mask)
    return sorted(zip(np.asarray(edges.source)[mask].tolist(), np.asarray(edges.target)[mask].tolist(), strict=True))


def test_undirected_by_hand() -> None:
    edges = build_undirected_edges(np.array([0, 1, 2, 2, 0]), np.array([1, 0, 2, 0, 1]), 4)
    assert edges.source.tolist() == [0, 1, 2, 0, 1, 0, 2, 3]
    assert edges.target.tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert edges.target_splits.tolist() == [0, 3, 5, 7, 8]
    assert edges.source[edges.source_order].tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert edges.source_order[edges.target_order].tolist() == list(range(8))
    assert edges.mask is None
    assert edges.num_nodes == 4


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 20), st.integers(0, 1000))
def test_tensorflow_agrees_with_numpy(num_nodes: int, num_pairs: int, seed: int) -> None:
    source, target = random_pairs(num_nodes, num_pairs, seed)
    expected = build_edges(source, target, num_nodes)
    for name, field in build_edges_tf(source, target, num_nodes)._asdict().items():
        if name != "mask":
            np.testing.assert_array_equal(field, getattr(expected, name), err_msg=name)
    undirected = build_undirected_edges_tf(source, target, num_nodes)
    assert len(undirected.source) == 2 * num_pairs + num_nodes
    assert real_pairs(undirected) == real_pairs(build_undirected_edges(source, target, num_nodes))


def test_undirected_compiles_with_static_shapes() -> None:
    source, target = (tf.constant(ids, tf.int32) for ids in random_pairs(6, 10))
    compiled = tf.function(lambda s, t: build_undirected_edges_tf(s, t, 6), jit_compile=True)
    assert "<=" not in compiled.experimental_get_compiler_ir(source, target)(stage="hlo")
    assert real_pairs(compiled(source, target)) == real_pairs(build_undirected_edges_tf(source, target, 6))


def test_padding_edges_are_masked_and_join_padding_nodes() -> None:
    edges = random_edges(5, 6)
    padded = pad_edges(edges, num_nodes=7, num_edges=len(edges.source) + 3)
    assert real_pairs(padded) == real_pairs(edges)
    assert padded.source[~padded.mask].tolist() == padded.target[~padded.mask].tolist() == [6, 6, 6]
    with pytest.raises(ValueError, match="at least one padding node"):
        pad_edges(edges, num_nodes=5, num_edges=len(edges.source) + 1)


def test_node_ids_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="target ids run from 1 to 3, but there are 3 nodes"):
        build_edges(np.array([0, 1]), np.array([1, 3]), 3)
