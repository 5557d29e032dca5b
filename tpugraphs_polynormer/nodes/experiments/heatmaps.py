"""Fig. 4 of the paper: global attention between nodes, compared with equal labels and with distances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import tensorflow as tf

from tpugraphs_polynormer.config.schema import NodeConfig
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.nodes.datasets import NodeDataset
from tpugraphs_polynormer.nodes.experiments.output import make_figure, write_experiment
from tpugraphs_polynormer.nodes.task import NodeInputs, NodeTask
from tpugraphs_polynormer.training.run_directory import RunDirectory
from tpugraphs_polynormer.training.trainer import Trainer


def run_heatmaps(
    out: Path,
    dataset: NodeDataset,
    config: NodeConfig,
    *,
    split: int = 0,
    num_nodes: int = 100,
    num_hops: int = 5,
    layer: int = 0,
) -> dict[str, Any]:
    """Attention weights, labels and distances of some test nodes, after training or resuming Polynormer.

    The nodes are drawn evenly from the classes of the test nodes, and sorted by label. Attention weights are normalized
    over all nodes of the graph, then multiplied by their number: uniform attention is 1.

    Args:
      out: folder of the run, the JSON file and the figure.
      dataset, config, split: the data set, experiment and number of the official split.
      num_nodes: number of test nodes.
      num_hops: nodes at this distance or less count as near.
      layer: number of the global layer.
    """
    task = NodeTask(config, NodeInputs.make(dataset, config), split)
    if task.model.global_head is None or not 0 <= layer < config.model.num_global_layers:
        raise UserError(f"heatmaps: layer {layer} of global attention does not exist in this config's model")
    trainer = Trainer(task, RunDirectory.start(out / "run", config))
    if trainer.train()["best"]["phase"] == "global":  # the best local epoch has untrained global layers
        trainer.restore_best()
    nodes = choose_nodes(dataset, split, num_nodes, config.seed)
    labels = dataset.labels[nodes]
    same = labels[:, np.newaxis] == labels
    near = find_near(dataset, nodes, num_hops)
    weights = attention_weights(task, nodes, layer)
    result = {
        "benchmark": dataset.name,
        "nodes": nodes.tolist(),
        "labels": labels.tolist(),
        "hops": num_hops,
        "layer": layer,
        "share_same_label": float(same.mean()),
        "share_same_label_and_near": float((same & near).mean()),
        "mean_score_same_label": float(weights[same].mean()),
        "mean_score_other_label": float(weights[~same].mean()) if (~same).any() else None,
        "weights": weights.tolist(),
    }
    write_experiment(out, "heatmaps", result, _draw(same, near, weights, num_hops))
    return result


def choose_nodes(dataset: NodeDataset, split: int, num_nodes: int, seed: int) -> np.ndarray:
    """Test nodes sorted by label; classes have equal numbers of nodes, as far as the split has that many."""
    rng = np.random.default_rng(seed)
    test = rng.permutation(dataset.splits[split].test)
    labels = dataset.labels[test]
    rank = np.empty(len(test), int)  # position of a node within its class
    for label in np.unique(labels):
        rank[labels == label] = np.arange((labels == label).sum())
    chosen = np.argsort(rank, kind="stable")[:num_nodes]
    return test[chosen[np.argsort(labels[chosen], kind="stable")]]


def find_near(dataset: NodeDataset, nodes: np.ndarray, num_hops: int) -> np.ndarray:
    """bool [len(nodes), len(nodes)]: whether two nodes are at most `num_hops` hops apart."""
    shape = (dataset.num_nodes, dataset.num_nodes)
    ones = np.ones(len(dataset.edges), np.float32)
    adjacency = scipy.sparse.csr_array((ones, (dataset.edges[:, 1], dataset.edges[:, 0])), shape)
    reached = np.zeros([dataset.num_nodes, len(nodes)], np.float32)
    reached[nodes, np.arange(len(nodes))] = 1
    for _ in range(num_hops):  # self-loops keep the nodes reached before
        reached = (adjacency @ reached > 0).astype(np.float32)
    return reached[nodes] > 0


def attention_weights(task: NodeTask, nodes: np.ndarray, layer: int) -> np.ndarray:
    """[len(nodes), len(nodes)]: attention of a global layer, mean over heads, times the number of the graph's nodes."""
    model, inputs = task.model, task.inputs
    encoder, graph = model.encoder, {"near": inputs.edges, "fiedler": inputs.fiedler}
    states = encoder.norm(encoder.run_local(model.begin(tf.convert_to_tensor(inputs.dataset.features)), **graph))
    states = encoder.run_global(states, num_layers=layer, **graph)
    attention = encoder.global_layers[layer]
    sums = attention.sum_keys(attention.project(states))
    weights = attention.attention_weights(attention.project(tf.gather(states, nodes)), sums)
    return weights.numpy() * len(states)


def _draw(same: np.ndarray, near: np.ndarray, weights: np.ndarray, num_hops: int):
    figure = make_figure(11, 3.8)
    panels = figure.subplots(1, 3)
    titles = (f"same label within {num_hops} hops", "same label", "global attention (1 = uniform)")
    for axes, array, title in zip(panels, (same & near, same, weights), titles, strict=True):
        image = axes.imshow(array, cmap="viridis")
        axes.set(title=title, xlabel="node, by label", ylabel="node, by label")
    figure.colorbar(image)
    return figure
