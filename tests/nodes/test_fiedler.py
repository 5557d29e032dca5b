"""The Fiedler vector: numbers computed by hand, the dense solver, unconnected graphs, and determinism."""

from __future__ import annotations

import numpy as np
import pytest

from tpugraphs_polynormer.nodes import fiedler
from tpugraphs_polynormer.nodes.fiedler import compute_fiedler

Edges = tuple[np.ndarray, np.ndarray]


def both_directions(source: np.ndarray, target: np.ndarray) -> Edges:
    return np.concatenate([source, target]), np.concatenate([target, source])


def random_graph(num_nodes: int, num_edges: int) -> Edges:
    """Edges between random nodes, without duplicates."""
    pairs = np.random.default_rng(0).integers(0, num_nodes, [2, num_edges])
    return both_directions(*np.unique(pairs[:, pairs[0] < pairs[1]], axis=1))


def cliques(number: int, size: int) -> Edges:
    source, target = np.triu_indices(size, 1)
    first = size * np.arange(number)[:, np.newaxis]
    return both_directions((source + first).ravel(), (target + first).ravel())


def laplacian(source: np.ndarray, target: np.ndarray, num_nodes: int) -> np.ndarray:
    """I - D^-1/2 A D^-1/2, written as in the paper; a node without edges has the row of I."""
    adjacency = np.zeros([num_nodes, num_nodes])
    adjacency[target, source] = 1
    root = np.array([each**-0.5 if each else 0 for each in adjacency.sum(1)])
    return np.eye(num_nodes) - root[:, np.newaxis] * adjacency * root


RING = np.arange(40)
GRAPHS = {
    "random": (*random_graph(200, 600), 200),
    "random and connected": (*random_graph(200, 2000), 200),
    "ring, a double eigenvalue": (*both_directions(RING, (RING + 1) % 40), 40),
    "two pieces": (*cliques(2, 15), 30),
    "many pieces": (*cliques(20, 5), 100),
    "pieces and nodes without edges": (*random_graph(150, 120), 160),
    "one edge": (np.array([0, 1]), np.array([1, 0]), 80),
    "no edges": (np.zeros(0, int), np.zeros(0, int), 70),
    "complete": (*cliques(1, 80), 80),
    "star": (*both_directions(np.zeros(69, int), np.arange(1, 70)), 70),
}


@pytest.mark.parametrize("dense_nodes", [600, 10], ids=["dense", "iteration"])
@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_an_eigenvector_of_the_second_smallest_eigenvalue(monkeypatch, name: str, dense_nodes: int) -> None:
    source, target, num_nodes = GRAPHS[name]
    matrix = laplacian(source, target, num_nodes)
    eigenvalues = np.linalg.eigvalsh(matrix)
    monkeypatch.setattr(fiedler, "DENSE_NODES", dense_nodes)
    vector = compute_fiedler(source, target, num_nodes)
    assert np.linalg.norm(vector) == pytest.approx(np.sqrt(num_nodes), rel=1e-5)
    np.testing.assert_allclose(matrix @ vector, eigenvalues[1] * vector, atol=1e-5 * np.sqrt(num_nodes))
    assert vector[np.argmax(np.abs(vector).round(4))] > 0
    for _ in range(3):
        np.testing.assert_array_equal(compute_fiedler(source, target, num_nodes), vector)


def test_iteration_agrees_with_the_dense_solver(monkeypatch) -> None:
    """The second eigenvalue of this connected graph is simple, so the vector is unique."""
    source, target, num_nodes = GRAPHS["random and connected"]
    dense = compute_fiedler(source, target, num_nodes)
    monkeypatch.setattr(fiedler, "DENSE_NODES", 10)
    for seed in range(3):
        np.testing.assert_allclose(compute_fiedler(source, target, num_nodes, seed=seed), dense, atol=1e-3)


def test_the_vector_is_orthogonal_to_the_trivial_one_in_pieces_too(monkeypatch) -> None:
    """The eigenvalue 0 of an unconnected graph is multiple; the iteration must not return its trivial vector."""
    source, target, num_nodes = GRAPHS["two pieces"]
    monkeypatch.setattr(fiedler, "DENSE_NODES", 10)
    vector = compute_fiedler(source, target, num_nodes)
    trivial = np.sqrt(np.bincount(target))
    assert abs(vector @ trivial) < 1e-4 * np.linalg.norm(trivial) * np.sqrt(num_nodes)
    assert np.sign(vector[:15]).tolist() == (-np.sign(vector[15:])).tolist()


@pytest.mark.parametrize("num_nodes", [0, 1])
def test_graphs_without_a_second_eigenvalue_get_zeros(num_nodes: int) -> None:
    np.testing.assert_array_equal(compute_fiedler(np.zeros(0, int), np.zeros(0, int), num_nodes), np.zeros(num_nodes))


def test_two_nodes() -> None:
    np.testing.assert_allclose(compute_fiedler(np.array([0, 1]), np.array([1, 0]), 2), [1, -1], atol=1e-6)


def test_self_loops_are_ignored() -> None:
    source, target, num_nodes = GRAPHS["random"]
    loops = np.arange(num_nodes)
    found = compute_fiedler(np.concatenate([source, loops]), np.concatenate([target, loops]), num_nodes)
    np.testing.assert_array_equal(found, compute_fiedler(source, target, num_nodes))


def test_fiedler_vector_of_a_path() -> None:
    """For a path of four nodes the vector is D^1/2 cos(pi i / 3), computed by hand for the normalized Laplacian."""
    source, target = np.array([0, 1, 2, 1, 2, 3]), np.array([1, 2, 3, 0, 1, 2])
    expected = np.sqrt([1, 2, 2, 1]) * np.cos(np.pi * np.arange(4) / 3)
    expected *= 2 / np.linalg.norm(expected)
    found = compute_fiedler(source, target, 4)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-6)
    assert np.sign(found[0]) == -np.sign(found[3])
