"""Statements of the paper: monomials of degree 2^L (Theorem 3.3), and graphs that 1-WL cannot tell apart (App. J)."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_index
from tpugraphs_polynormer.models.polynormer import Polynormer
from tpugraphs_polynormer.nodes.experiments.monomials import run_base_model
from tpugraphs_polynormer.nodes.fiedler import compute_fiedler


def circular_skip_links(num_nodes: int, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """CSL(n, s): a ring with chords of length s, in both directions. 1-WL sees only degrees, which are equal."""
    ring = np.arange(num_nodes)
    source, target = np.concatenate([ring, ring]), np.concatenate([ring + 1, ring + skip]) % num_nodes
    return np.concatenate([source, target]), np.concatenate([target, source])


def embed(skip: int, version: int) -> np.ndarray:
    """The mean node state of CSL(41, skip) in a Polynormer with fixed random weights, for constant features."""
    tf.keras.utils.set_random_seed(7)
    source, target = circular_skip_links(41, skip)
    encoder = Polynormer(num_heads=2, head_dim=3, num_local_layers=3, num_global_layers=1, version=version)
    vector = compute_fiedler(source, target, 41) if version == 2 else None
    states = encoder(np.ones([41, 6], np.float32), build_undirected_edge_index(source, target, 41), fiedler=vector)
    return states.numpy().mean(0)


@pytest.mark.parametrize("skips", [(2, 3), (4, 5), (6, 9), (11, 12), (13, 16)])
def test_version_2_tells_circular_skip_links_apart(skips: tuple[int, int]) -> None:
    ones = [embed(skip, version=1) for skip in skips]
    np.testing.assert_allclose(ones[0], ones[1], atol=1e-6)
    twos = [embed(skip, version=2) for skip in skips]
    assert np.abs(twos[0] - twos[1]).max() > 1e-4


def test_version_and_fiedler_vector_go_together() -> None:
    edges = build_undirected_edge_index(*circular_skip_links(11, 2), 11)
    states = np.ones([11, 4], np.float32)
    with pytest.raises(ValueError, match="version 2 was called without a Fiedler vector"):
        Polynormer(num_heads=1, head_dim=2, num_local_layers=1, version=2)(states, edges)
    with pytest.raises(ValueError, match="version 1 was called with a Fiedler vector"):
        Polynormer(num_heads=1, head_dim=2, num_local_layers=1)(states, edges, fiedler=np.ones(11, np.float32))


def monomial_weights(factors: list[int], num_nodes: int) -> list[np.ndarray]:
    """Mixing matrices (with zero offsets) for which node factors[0] becomes the product of x over `factors`.

    In each layer, the row e_j of W at node i multiplies the value of node i with that of node j.
    """
    layers, held = [], list(factors)
    while len(held) > 1:
        mixing = np.zeros([num_nodes, num_nodes])
        for own, other in zip(held[::2], held[1::2], strict=True):
            assert not mixing[own].any() or mixing[own, other], "two different products in one node"
            mixing[own, other] = 1.0
        layers.append(mixing)
        held = held[::2]
    return layers


@pytest.mark.parametrize(
    "factors", [[0, 1], [0, 0, 1, 0], [0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 0, 1, 1, 2, 3], [3] * 16]
)
def test_base_model_represents_monomials_of_degree_two_to_the_layers(factors: list[int]) -> None:
    states = np.random.default_rng(1).uniform(-1.5, 1.5, [50, 8, 1])
    weights = monomial_weights(factors, 8)
    assert 2 ** len(weights) == len(factors)
    found = run_base_model(states, weights, [0.0] * len(weights))
    expected = np.prod(states[:, factors, 0], axis=1)
    np.testing.assert_allclose(found[:, factors[0], 0], expected, rtol=1e-10)


def test_base_model_has_no_higher_degree() -> None:
    """Along a line in input space, L layers are a polynomial of degree 2^L: the difference of order 2^L + 1 is zero."""
    rng = np.random.default_rng(2)
    start, direction = rng.normal(size=[2, 3, 2])
    states = start + np.arange(7)[:, np.newaxis, np.newaxis] * direction
    values = run_base_model(states, rng.normal(size=[2, 3, 3]), rng.normal(size=[2, 3, 2]))
    assert np.abs(np.diff(values, n=4, axis=0)).max() > 1e-3
    np.testing.assert_allclose(np.diff(values, n=5, axis=0), 0, atol=1e-8 * np.abs(values).max())
