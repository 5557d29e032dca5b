"""The edge index: order, undirected edges, padding, and equality of numpy and TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layers.graphs import random_edges, random_pairs
from tpugraphs_polynormer.layers.edge_index import (
    EdgeIndex,
    build_edge_index,
    build_undirected_edge_index,
    build_undirected_edge_tensors,
    pad_edge_index,
    renumber_edges,
    repeat_each,
    select_edges,
)


def real_pairs(edges: EdgeIndex) -> list[tuple[int, int]]:
    mask = np.ones(len(edges.source), bool) if edges.mask is None else np.asarray(edges.mask)
    return sorted(zip(np.asarray(edges.source)[mask].tolist(), np.asarray(edges.target)[mask].tolist(), strict=True))


def test_undirected_by_hand() -> None:
    edges = build_undirected_edge_index(np.array([0, 1, 2, 2, 0]), np.array([1, 0, 2, 0, 1]), 4)
    assert edges.source.tolist() == [0, 1, 2, 0, 1, 0, 2, 3]
    assert edges.target.tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert edges.target_offsets.tolist() == [0, 3, 5, 7, 8]
    assert edges.source[edges.source_order].tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert edges.mask is None
    assert edges.num_nodes == 4


def check_orders(edges: EdgeIndex) -> None:
    """Asserts that edges are sorted by target, `source_order` sorts by source, and offsets are starts of runs."""
    source, target, by_source = (np.asarray(each) for each in (edges.source, edges.target, edges.source_order))
    assert (np.diff(target) >= 0).all() and (np.diff(source[by_source]) >= 0).all()
    assert sorted(by_source.tolist()) == list(range(len(source)))
    bounds = np.arange(edges.num_nodes + 1)
    np.testing.assert_array_equal(edges.target_offsets, np.searchsorted(target, bounds))
    np.testing.assert_array_equal(edges.source_offsets, np.searchsorted(source[by_source], bounds))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 20), st.integers(0, 1000))
def test_tensorflow_agrees_with_numpy(num_nodes: int, num_pairs: int, seed: int) -> None:
    source, target = random_pairs(num_nodes, num_pairs, seed)
    expected = build_undirected_edge_index(source, target, num_nodes)
    undirected = build_undirected_edge_tensors(source, target, num_nodes)
    assert len(undirected.source) == 2 * num_pairs + num_nodes
    assert real_pairs(undirected) == real_pairs(expected)
    check_orders(undirected)
    chosen = select_edges(undirected, undirected.mask)
    np.testing.assert_array_equal(chosen.source, expected.source)
    np.testing.assert_array_equal(chosen.target, expected.target)
    check_orders(chosen)


@pytest.mark.parametrize("size", ["unknown", "past one int32"])
def test_sizes_that_need_other_sorts_give_the_same_edges(size: str) -> None:
    source, target = (tf.constant(ids, tf.int32) for ids in random_pairs(6, 10))
    num_nodes = tf.constant(6) if size == "unknown" else 50_000
    edges = build_undirected_edge_tensors(source, target, num_nodes)
    check_orders(edges)
    loops = [(node, node) for node in range(6, 50_000)] if size != "unknown" else []
    assert real_pairs(edges) == real_pairs(build_undirected_edge_tensors(source, target, 6)) + loops


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 20), st.integers(0, 1000))
def test_renumbered_edges_join_the_same_nodes(num_nodes: int, num_pairs: int, seed: int) -> None:
    source, target = random_pairs(num_nodes, num_pairs, seed)
    edges = build_edge_index(source, target, num_nodes, mask=np.arange(num_pairs) % 3 > 0)  # some nodes without edges
    order = np.random.default_rng(seed).permutation(num_nodes).astype(np.int32)
    moved = renumber_edges(edges.as_tensors(), order, np.argsort(order).astype(np.int32))
    check_orders(moved)
    back = moved._replace(source=order[moved.source], target=order[moved.target])
    assert real_pairs(back) == real_pairs(edges)


def test_repeat_each_by_hand() -> None:
    number, time = repeat_each(tf.constant([0, 2, 0, 0, 3, 1, 0]))
    assert number.numpy().tolist() == [1, 1, 4, 4, 4, 5]
    assert time.numpy().tolist() == [0, 1, 0, 1, 2, 0]
    assert [len(each) for each in repeat_each(tf.zeros([3], tf.int32))] == [0, 0]


def test_undirected_compiles_with_static_shapes() -> None:
    source, target = (tf.constant(ids, tf.int32) for ids in random_pairs(6, 10))
    compiled = tf.function(lambda s, t: build_undirected_edge_tensors(s, t, 6), jit_compile=True)
    assert "<=" not in compiled.experimental_get_compiler_ir(source, target)(stage="hlo")
    assert real_pairs(compiled(source, target)) == real_pairs(build_undirected_edge_tensors(source, target, 6))


def test_padding_edges_are_masked_and_join_padding_nodes() -> None:
    edges = random_edges(5, 6)
    padded = pad_edge_index(edges, num_nodes=7, num_edges=len(edges.source) + 3)
    assert real_pairs(padded) == real_pairs(edges)
    assert padded.source[~padded.mask].tolist() == padded.target[~padded.mask].tolist() == [6, 6, 6]
    with pytest.raises(ValueError, match="at least one padding node"):
        pad_edge_index(edges, num_nodes=5, num_edges=len(edges.source) + 1)


def test_node_ids_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="target ids run from 1 to 3, but there are 3 nodes"):
        build_edge_index(np.array([0, 1]), np.array([1, 3]), 3)
