"""Aggregations compared with brute force in numpy and with each other, gradients included."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import random_pairs, random_states
from tests.layers.layer_checks import assert_close
from tpugraphs_polynormer.layers.edge_index import EdgeIndex, build_edge_index
from tpugraphs_polynormer.layers.ops import aggregation, attention
from tpugraphs_polynormer.layers.ops.aggregation import aggregate
from tpugraphs_polynormer.layers.ops.attention import attend

NODES, COLUMNS, DIM = 13, 3, 4


@pytest.fixture(params=["all real", "masked"])
def edges(request) -> EdgeIndex:
    """Directed edges, some repeated; some nodes, such as the last ones, have no incoming or no outgoing edges."""
    source, target = random_pairs(NODES - 3, 40)
    mask = np.random.default_rng(5).random(40) < 0.7 if request.param == "masked" else None
    return build_edge_index(source, target, NODES, mask=mask)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch) -> None:
    monkeypatch.setattr(attention, "CHUNK_ELEMENTS", 5 * COLUMNS * DIM)


def dense_adjacency(edges: EdgeIndex) -> np.ndarray:
    mask = np.ones(len(edges.source), bool) if edges.mask is None else edges.mask
    adjacency = np.zeros([NODES, NODES])
    np.add.at(adjacency, (edges.target[mask], edges.source[mask]), 1.0)
    return adjacency


def brute_attention(source_logits, target_logits, values, edges: EdgeIndex) -> np.ndarray:
    logits = source_logits[np.newaxis] + target_logits[:, np.newaxis]  # [target, source, columns]
    weights = np.exp(np.where(logits > 0, logits, 0.2 * logits)) * dense_adjacency(edges)[..., np.newaxis]
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-30)
    return np.einsum("ijs,jsd->isd", weights, values)


def inputs() -> list[np.ndarray]:
    return [
        random_states(NODES, COLUMNS, seed=1),
        random_states(NODES, COLUMNS, seed=2),
        random_states(NODES, COLUMNS, DIM),
    ]


def value_and_gradients(function, arrays: list[np.ndarray]) -> list[tf.Tensor]:
    tensors = [tf.convert_to_tensor(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        out = function(*tensors)
        loss = tf.reduce_sum(out * random_states(*out.shape, seed=9))
    return [out, *(tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, tensors))]


@pytest.mark.parametrize("formulation", ["fused", "segments", "unsorted"])
def test_attention_is_brute_force(edges: EdgeIndex, formulation: str) -> None:
    found = attend(*inputs(), edges, formulation=formulation)
    np.testing.assert_allclose(found, brute_attention(*inputs(), edges), atol=1e-5)


@pytest.mark.parametrize(
    ("columns", "dim"),
    [(3, 37), (3, 48), (16, DIM), (9, DIM), (11, DIM)],
    ids=["odd", "pieces", "groups", "odd groups", "a group per column"],
)
def test_slots_and_widths_past_one_product(edges: EdgeIndex, columns: int, dim: int) -> None:
    arrays = [
        random_states(NODES, columns, seed=1),
        random_states(NODES, columns, seed=2),
        random_states(NODES, columns, dim),
    ]
    fused, segments = (
        value_and_gradients(lambda *a, name=name: attend(*a, edges, formulation=name), arrays)
        for name in ("fused", "segments")
    )
    assert_close(fused, segments, 1e-5)
    np.testing.assert_allclose(fused[0], brute_attention(*arrays, edges), atol=1e-5)


@pytest.mark.parametrize("formulation", ["fused", "segments", "unsorted"])
def test_attention_gradient_is_finite_difference(edges: EdgeIndex, formulation: str) -> None:
    arrays = inputs()
    gradients = value_and_gradients(lambda *a: attend(*a, edges, formulation=formulation), arrays)[1:]
    projection = random_states(NODES, COLUMNS, DIM, seed=9).astype(np.float64)
    wide = [array.astype(np.float64) for array in arrays]
    for which, gradient in enumerate(gradients):
        step = np.random.default_rng(which).normal(size=arrays[which].shape)
        moved = [[a + sign * 1e-6 * step if i == which else a for i, a in enumerate(wide)] for sign in (1, -1)]
        up, down = (np.sum(brute_attention(*move, edges) * projection) for move in moved)
        np.testing.assert_allclose(np.sum(gradient * step), (up - down) / 2e-6, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("formulation", "few"), [("fused", NODES), ("fused", NODES - 1), ("segments", 0), ("unsorted", 0)]
)
@pytest.mark.parametrize("how", ["sum", "mean", "gcn"])
def test_aggregates_are_dense_matrices(edges: EdgeIndex, how: str, formulation: str, few: int, monkeypatch) -> None:
    monkeypatch.setattr(aggregation, "_FEW_NODES", few)
    adjacency = dense_adjacency(edges)
    degree = adjacency.sum(1)
    inverse = np.divide(1.0, degree, out=np.zeros(NODES), where=degree > 0)
    matrix = {
        "sum": adjacency,
        "mean": adjacency * inverse[:, np.newaxis],
        "gcn": adjacency * np.sqrt(np.outer(inverse, inverse)),
    }[how]
    values = random_states(NODES, COLUMNS, DIM)
    out, gradient = value_and_gradients(lambda v: aggregate(v, edges, how=how, formulation=formulation), [values])
    np.testing.assert_allclose(out, np.einsum("ij,jsd->isd", matrix, values), atol=1e-5)
    upstream = random_states(NODES, COLUMNS, DIM, seed=9)
    np.testing.assert_allclose(gradient, np.einsum("ij,isd->jsd", matrix, upstream), atol=1e-5)


def test_auto_compiles_and_equals_fused(edges: EdgeIndex) -> None:
    tensors = [tf.constant(array) for array in inputs()]
    auto = tf.function(lambda *a: value_and_gradients(lambda *b: attend(*b, edges), a), jit_compile=True)
    assert "<=" not in auto.experimental_get_compiler_ir(*tensors)(stage="hlo")
    fused = value_and_gradients(lambda *a: attend(*a, edges, formulation="fused"), tensors)
    assert_close(auto(*tensors), fused, 1e-5)


@pytest.mark.parametrize("columns", [COLUMNS, None])
@pytest.mark.parametrize("formulation", ["auto", "segments", "unsorted"])
def test_unknown_shapes_in_a_graph(edges: EdgeIndex, formulation: str, columns: int | None) -> None:
    """Only ranks and widths are static, as in batches of tf.data."""
    fields = [field for field in edges.as_tensors() if field is not None]

    def loss_gradient(logits: tf.Tensor, values: tf.Tensor, *fields: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            out = attend(logits, logits, values, EdgeIndex(*fields), formulation=formulation)
        return [out, tf.convert_to_tensor(tape.gradient(out, values))]

    specs = [tf.TensorSpec([None, columns]), tf.TensorSpec([None, columns, DIM])]
    specs += [tf.TensorSpec([None], field.dtype) for field in fields]
    logits, _, values = inputs()
    found = tf.function(loss_gradient, input_signature=specs)(logits, values, *fields)
    np.testing.assert_allclose(found[0], brute_attention(logits, logits, values, edges), atol=1e-5)
    assert_close(found, loss_gradient(logits, tf.constant(values), *fields), 1e-5)


@pytest.mark.parametrize("few", [NODES, NODES - 1])
def test_sums_choose_by_the_number_of_nodes_in_a_graph_of_unknown_shapes(
    edges: EdgeIndex, few: int, monkeypatch
) -> None:
    monkeypatch.setattr(aggregation, "_FEW_NODES", few)
    fields = [field for field in edges.as_tensors() if field is not None]

    def run(values: tf.Tensor, *fields: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            out = aggregate(values, EdgeIndex(*fields), how="sum", formulation="fused")
        return [out, tf.convert_to_tensor(tape.gradient(out, values))]

    specs = [tf.TensorSpec([None, DIM]), *(tf.TensorSpec([None], field.dtype) for field in fields)]
    values, adjacency = random_states(NODES, DIM), dense_adjacency(edges)
    out, gradient = tf.function(run, input_signature=specs)(values, *fields)
    np.testing.assert_allclose(out, adjacency @ values, atol=1e-5)
    np.testing.assert_allclose(gradient, adjacency.T @ np.ones_like(values), atol=1e-5)


@pytest.mark.parametrize("formulation", ["fused", "segments", "unsorted"])
def test_large_scores_stay_finite(edges: EdgeIndex, formulation: str) -> None:
    arrays = inputs()
    arrays[0] = arrays[0] * 1e4
    for array in value_and_gradients(lambda *a: attend(*a, edges, formulation=formulation), arrays):
        assert np.isfinite(array).all()


def test_unknown_names_are_refused(edges: EdgeIndex) -> None:
    with pytest.raises(ValueError, match="unknown formulation 'fast', expected one of auto, fused"):
        attend(*inputs(), edges, formulation="fast")
    with pytest.raises(ValueError, match="unknown aggregate 'max'"):
        aggregate(inputs()[2], edges, how="max")
