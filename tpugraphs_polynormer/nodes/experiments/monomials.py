"""A numerical check of Theorem 3.3: a base model of L layers represents every monomial of degree 2^L exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.nodes.experiments.output import make_figure, write_experiment

Exponents = tuple[int, ...]  # a monomial: the exponent of each node's input
State = tuple[Exponents, ...]  # the monomial of each node
Partners = tuple[tuple[int, ...], ...]  # per layer and node i, the node j whose monomial is multiplied with that of i


def run_base_model(
    states: np.ndarray, mixing: Sequence[np.ndarray], offset: Sequence[np.ndarray | float]
) -> np.ndarray:
    """States [..., num_nodes, dim] after one X <- (W X) * (X + B) (Eq. 4) for each of the layers' weights.

    These are `mixing`, W [num_nodes, num_nodes], and `offset`, B [num_nodes, dim]. L layers represent polynomials of
    degree 2^L in the entries of X (Theorem 3.3).
    """
    for weight, shift in zip(mixing, offset, strict=True):
        states = (weight @ states) * (states + shift)
    return states


def find_monomials(num_nodes: int, num_layers: int) -> dict[Exponents, tuple[Partners, int]]:
    """The monomials of base models with B = 0 and W of rows of the identity, each with its partners and its node.

    Such a layer multiplies the monomial of node i with that of one node j. All choices of j are tried; equal states are
    followed once.
    """
    states: dict[State, Partners] = {tuple(map(tuple, np.eye(num_nodes, dtype=int).tolist())): ()}
    for _ in range(num_layers):
        following: dict[State, Partners] = {}
        for state, made_by in states.items():
            for partners in itertools.product(range(num_nodes), repeat=num_nodes):
                pairs = zip(state, (state[partner] for partner in partners), strict=True)
                product = tuple(tuple(map(sum, zip(*pair, strict=True))) for pair in pairs)
                following.setdefault(product, (*made_by, partners))
        states = following
    return {held: (made_by, node) for state, made_by in states.items() for node, held in enumerate(state)}


def measure_error(exponents: Exponents, choices: Partners, node: int, inputs: np.ndarray) -> float:
    """The largest relative error of the base model with these partners as the monomial, on inputs [samples, nodes]."""
    mixing = [np.eye(inputs.shape[1])[list(partners)] for partners in choices]
    found = run_base_model(inputs[..., np.newaxis], mixing, [0.0] * len(mixing))[:, node, 0]
    expected = np.prod(inputs ** np.array(exponents), axis=1)
    return float(np.max(np.abs(found - expected) / np.abs(expected)))


def run_monomials(out: Path, *, num_nodes: int = 3, max_layers: int = 3, seed: int = 0) -> dict[str, Any]:
    """For L in 1..max_layers, the number of monomials of degree 2^L that L layers represent, and the largest error."""
    inputs = np.random.default_rng(seed).uniform(0.5, 1.5, [64, num_nodes])
    rows = []
    for num_layers in range(1, max_layers + 1):
        degree = 2**num_layers
        monomials = find_monomials(num_nodes, num_layers)
        errors = [measure_error(exponents, *how, inputs) for exponents, how in monomials.items()]
        row = {"layers": num_layers, "degree": degree, "monomials": math.comb(degree + num_nodes - 1, num_nodes - 1)}
        rows.append({**row, "held": len(monomials), "largest_relative_error": max(errors)})
    result = {"nodes": num_nodes, "rows": rows, "all_held": all(row["held"] == row["monomials"] for row in rows)}
    write_experiment(out, "monomials", result, _draw(rows))
    return result


def _draw(rows: list[dict[str, Any]]):
    figure = make_figure(5, 3.2)
    axes = figure.subplots()
    degrees = [str(row["degree"]) for row in rows]
    axes.bar(degrees, [row["monomials"] for row in rows], color="lightgray", label="monomials of this degree")
    axes.bar(degrees, [row["held"] for row in rows], width=0.5, label="held exactly by L layers")
    axes.set(xlabel="degree 2^L", ylabel="monomials", title="Base model, Theorem 3.3")
    axes.legend()
    return figure
