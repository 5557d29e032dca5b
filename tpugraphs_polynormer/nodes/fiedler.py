"""The Fiedler vector of a graph, which Polynormer-v2 (App. J) puts in place of the ones vector."""

from __future__ import annotations

import itertools

import numpy as np

# Up to this size the dense eigensolver is both faster and exact.
DENSE_NODES = 600
_KRYLOV_DIM = 60


def compute_fiedler(
    source: np.ndarray, target: np.ndarray, num_nodes: int, *, seed: int = 0, tolerance: float = 1e-6
) -> np.ndarray:
    """Eigenvector of the second smallest eigenvalue of I - D^-1/2 A D^-1/2, scaled to norm sqrt(num_nodes).

    The entry of largest magnitude is positive (ties: the first). When that eigenvalue is multiple, any vector of its
    space may come out, the same one for the same graph and seed.

    Args:
      source, target: directed edges; both directions of an undirected graph, each once. Self-loops are ignored.
      num_nodes: nodes. seed: start vector of the iteration on graphs above DENSE_NODES nodes.
      tolerance: largest residual of the eigenpair in the iteration.

    Returns:
      float32 [num_nodes]; zeros for a graph of one node.
    """
    if num_nodes < 2:
        return np.zeros(num_nodes, np.float32)
    keep = source != target
    source, target = source[keep], target[keep]
    degree = np.bincount(target, minlength=num_nodes).astype(np.float64)
    root = np.sqrt(np.divide(1.0, degree, out=np.zeros(num_nodes), where=degree > 0))
    weights = root[source] * root[target]
    trivial = np.sqrt(np.where(degree > 0, degree, 1.0))
    trivial /= np.linalg.norm(trivial)
    if num_nodes <= DENSE_NODES:
        vector = _dense(source, target, weights, num_nodes)
    else:
        vector = _lanczos(source, target, weights, trivial, seed, tolerance)
    vector *= np.sqrt(num_nodes) / np.linalg.norm(vector)
    return (vector * np.sign(vector[np.argmax(np.round(np.abs(vector), 6))])).astype(np.float32)


def compute_batch_fiedler(
    source: np.ndarray, target: np.ndarray, component_ids: np.ndarray, *, seed: int = 0
) -> np.ndarray:
    """`compute_fiedler` of each graph in a merged batch; component_ids [num_nodes] are non-decreasing."""
    bounds = np.flatnonzero(np.diff(component_ids, prepend=-1, append=component_ids[-1] + 1))
    vectors = []
    for first, last in itertools.pairwise(bounds):
        inside = (target >= first) & (target < last)
        vectors.append(compute_fiedler(source[inside] - first, target[inside] - first, last - first, seed=seed))
    return np.concatenate(vectors)


def _dense(source: np.ndarray, target: np.ndarray, weights: np.ndarray, num_nodes: int) -> np.ndarray:
    laplacian = np.eye(num_nodes)
    np.subtract.at(laplacian, (target, source), weights)
    return np.linalg.eigh(laplacian)[1][:, 1]


def _lanczos(
    source: np.ndarray, target: np.ndarray, weights: np.ndarray, trivial: np.ndarray, seed: int, tolerance: float
) -> np.ndarray:
    """Restarted Lanczos for the largest eigenvector of A' = D^-1/2 A D^-1/2 orthogonal to the trivial one."""

    def multiply(vector: np.ndarray) -> np.ndarray:
        # The shift by one makes every eigenvalue non-negative, so the wanted one is also the largest in size.
        return vector + np.bincount(target, weights * vector[source], len(vector))

    vector = np.random.default_rng(seed).standard_normal(len(trivial))
    for _ in range(200):
        vector -= trivial * (trivial @ vector)
        vector /= np.linalg.norm(vector)
        product = multiply(vector)
        if np.linalg.norm(product - vector * (vector @ product)) < tolerance:
            break
        basis = _krylov_basis(multiply, vector, trivial)
        projected = basis @ np.stack([multiply(row) for row in basis]).T
        vector = np.linalg.eigh((projected + projected.T) / 2)[1][:, -1] @ basis
    return vector


def _krylov_basis(multiply, start: np.ndarray, trivial: np.ndarray) -> np.ndarray:
    """Orthonormal rows spanning the Krylov space of `start`, all orthogonal to `trivial`."""
    rows = [start]
    for _ in range(_KRYLOV_DIM - 1):
        new = multiply(rows[-1])
        for _ in range(2):  # once more, against the rounding of the first pass
            new -= trivial * (trivial @ new)
            basis = np.stack(rows)
            new -= (basis @ new) @ basis
        size = np.linalg.norm(new)
        if size < 1e-10:
            break
        rows.append(new / size)
    return np.stack(rows)
