"""The Fiedler vector of a graph, which Polynormer-v2 (App. J) uses in place of the ones vector."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, eigsh

# Up to this number of nodes the dense eigensolver is faster, and exact.
DENSE_NODES = 600
_KRYLOV_DIM = 60
_TOLERANCE = 1e-6  # largest residual of the eigenpair that eigsh finds


def compute_fiedler(source: np.ndarray, target: np.ndarray, num_nodes: int, *, seed: int = 0) -> np.ndarray:
    """Eigenvector of the second smallest eigenvalue of I - D^-1/2 A D^-1/2, scaled to norm sqrt(num_nodes).

    The entry of largest magnitude (the first of equal ones) is positive. If the eigenvalue is multiple, the result is
    some vector of its eigenspace, the same one for the same graph and seed.

    Args:
      source, target: directed edges; both directions of an undirected graph, each once. Self-loops are ignored.
      num_nodes: number of nodes.
      seed: of the start vector of the iteration, for graphs of more than DENSE_NODES nodes.

    Returns:
      float32 [num_nodes]; zeros for a graph of one node.
    """
    if num_nodes < 2:
        return np.zeros(num_nodes, np.float32)
    keep = source != target
    source, target = source[keep], target[keep]
    degree = np.bincount(target, minlength=num_nodes).astype(np.float64)
    root = np.sqrt(np.divide(1.0, degree, out=np.zeros(num_nodes), where=degree > 0))
    adjacency = scipy.sparse.csr_array((root[source] * root[target], (target, source)), shape=(num_nodes, num_nodes))
    if num_nodes <= DENSE_NODES:
        vector = np.linalg.eigh(np.eye(num_nodes) - adjacency.toarray())[1][:, 1]
    else:
        vector = _iterate(adjacency, np.sqrt(degree), np.random.default_rng(seed).standard_normal(num_nodes))
    vector *= np.sqrt(num_nodes) / np.linalg.norm(vector)
    return (vector * np.sign(vector[np.argmax(np.round(np.abs(vector), 6))])).astype(np.float32)


def _iterate(adjacency: scipy.sparse.csr_array, trivial: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The eigenvector of the largest eigenvalue of I + `adjacency`, orthogonal to its eigenvector `trivial`."""
    if not adjacency.nnz:
        return start  # every vector is an eigenvector; eigsh would return a different random one each time
    trivial = trivial / np.linalg.norm(trivial)

    def multiply(vector: np.ndarray) -> np.ndarray:
        # `trivial` has eigenvalue 2; the last term changes it to 0, so that only one eigenvector is needed. A Lanczos
        # iteration for two can miss the second vector of a double eigenvalue, as a graph of two components has.
        return vector + adjacency @ vector - 2 * trivial * (trivial @ vector)

    operator = LinearOperator(adjacency.shape, matvec=multiply, dtype=np.float64)
    # The tolerance of eigsh is relative to the eigenvalue, which is at most 2.
    return eigsh(operator, k=1, which="LA", v0=start, ncv=_KRYLOV_DIM, tol=_TOLERANCE / 2)[1][:, 0]
