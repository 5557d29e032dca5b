"""The Fiedler vector of a graph, which Polynormer-v2 (App. J) puts in place of the ones vector."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, eigsh

# Up to this size the dense eigensolver is both faster and exact.
DENSE_NODES = 600
_KRYLOV_DIM = 60
_TOLERANCE = 1e-6  # largest residual of the eigenpair that eigsh finds


def compute_fiedler(source: np.ndarray, target: np.ndarray, num_nodes: int, *, seed: int = 0) -> np.ndarray:
    """Eigenvector of the second smallest eigenvalue of I - D^-1/2 A D^-1/2, scaled to norm sqrt(num_nodes).

    The entry of largest magnitude is positive (ties: the first). When that eigenvalue is multiple, any vector of its
    space may come out, the same one for the same graph and seed.

    Args:
      source, target: directed edges; both directions of an undirected graph, each once. Self-loops are ignored.
      num_nodes: nodes. seed: start vector of the iteration on graphs above DENSE_NODES nodes.

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
    """The eigenvector of largest eigenvalue of I + `adjacency` without its `trivial` eigenvector, by eigsh."""
    if not adjacency.nnz:
        return start  # every vector is one; eigsh would take a random one, another each time
    trivial = trivial / np.linalg.norm(trivial)

    def multiply(vector: np.ndarray) -> np.ndarray:
        # `trivial` has eigenvalue 2. Moving it to 0 leaves one eigenvector to find: a Lanczos iteration may miss the
        # second vector of a double eigenvalue, which a graph of two components has.
        return vector + adjacency @ vector - 2 * trivial * (trivial @ vector)

    operator = LinearOperator(adjacency.shape, matvec=multiply, dtype=np.float64)
    # The tolerance of eigsh is relative to the eigenvalue, which is at most 2.
    return eigsh(operator, k=1, which="LA", v0=start, ncv=_KRYLOV_DIM, tol=_TOLERANCE / 2)[1][:, 0]
