"""App. J of the paper: graphs of circular skip links, which Polynormer-v2 can tell apart, but 1-WL and v1 cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_index
from tpugraphs_polynormer.models.polynormer import Polynormer
from tpugraphs_polynormer.nodes.experiments.output import make_figure, write_experiment
from tpugraphs_polynormer.nodes.fiedler import compute_fiedler

SKIPS = (2, 3, 4, 5, 6, 9, 11, 12, 13, 16)  # the ten classes of the CSL data set, whose graphs have 41 nodes


def circular_skip_links(num_nodes: int, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Source and target ids of a ring with chords of length `skip`, in both directions."""
    ring = np.arange(num_nodes)
    source, target = np.concatenate([ring, ring]), np.concatenate([ring + 1, ring + skip]) % num_nodes
    return np.concatenate([source, target]), np.concatenate([target, source])


def refine_colors(source: np.ndarray, target: np.ndarray, num_nodes: int) -> list[tuple[int, ...]]:
    """The sorted sizes of the 1-WL color classes after each round; 1-WL cannot tell graphs with equal lists apart."""
    colors = np.zeros(num_nodes, int)
    rounds = []
    for _ in range(num_nodes):
        seen = [(colors[node], *sorted(colors[source[target == node]])) for node in range(num_nodes)]
        names = {neighborhood: name for name, neighborhood in enumerate(sorted(set(seen)))}
        colors = np.array([names[neighborhood] for neighborhood in seen])
        rounds.append(tuple(sorted(np.bincount(colors).tolist())))
        if len(rounds) > 1 and rounds[-1] == rounds[-2]:
            break
    return rounds


def build_random_polynormer(version: int, seed: int) -> Polynormer:
    """A small Polynormer with random weights, in its global phase."""
    tf.keras.utils.set_random_seed(seed)
    return Polynormer(num_heads=2, head_dim=8, num_local_layers=3, num_global_layers=1, version=version)


def embed_graph(encoder: Polynormer, source: np.ndarray, target: np.ndarray, num_nodes: int) -> np.ndarray:
    """[width]: the mean node state for constant features."""
    fiedler = compute_fiedler(source, target, num_nodes) if encoder.version == 2 else None
    edges = build_undirected_edge_index(source, target, num_nodes)
    return encoder(np.ones([num_nodes, 16], np.float32), edges, fiedler=fiedler).numpy().mean(0)


def run_circular_skip_links(
    out: Path, *, num_nodes: int = 41, skips: Sequence[int] = SKIPS, seed: int = 0
) -> dict[str, Any]:
    """Distances between the embeddings of all pairs of graphs, for Polynormer-v1 and v2.

    The Fiedler eigenvalue of these graphs is double, so the Fiedler vector is one of a plane, and the embedding of v2
    can change when the nodes are renumbered. The change is measured on one random renumbering of each graph.
    """
    graphs = [circular_skip_links(num_nodes, skip) for skip in skips]
    order = np.random.default_rng(seed).permutation(num_nodes)
    colorings = {tuple(refine_colors(*graph, num_nodes)) for graph in graphs}
    distances, moved = {}, {}
    for version in (1, 2):
        encoder = build_random_polynormer(version, seed)
        embedded = np.stack([embed_graph(encoder, *graph, num_nodes) for graph in graphs])
        again = np.stack([embed_graph(encoder, order[source], order[target], num_nodes) for source, target in graphs])
        distances[version] = np.abs(embedded[:, np.newaxis] - embedded).max(-1)
        moved[version] = float(np.abs(embedded - again).max())
    apart = ~np.eye(len(skips), dtype=bool)
    result = {
        "nodes": num_nodes,
        "skips": list(skips),
        "colorings_of_1wl": len(colorings),
        "largest_distance_v1": float(distances[1].max()),
        "smallest_distance_v2": float(distances[2][apart].min()),
        "largest_move_by_renumbering_v1": moved[1],
        "largest_move_by_renumbering_v2": moved[2],
        "distances_v1": distances[1].tolist(),
        "distances_v2": distances[2].tolist(),
    }
    write_experiment(out, "circular_skip_links", result, _draw(distances, skips))
    return result


def _draw(distances: dict[int, np.ndarray], skips: Sequence[int]):
    figure = make_figure(8, 3.6)
    highest = max(array.max() for array in distances.values())
    for axes, (version, array) in zip(figure.subplots(1, 2), distances.items(), strict=True):
        image = axes.imshow(array, vmin=0, vmax=highest)
        axes.set(title=f"Polynormer-v{version}", xlabel="skip length", ylabel="skip length")
        axes.set_xticks(range(len(skips)), map(str, skips))
        axes.set_yticks(range(len(skips)), map(str, skips))
    figure.colorbar(image, label="largest difference of mean states")
    return figure
