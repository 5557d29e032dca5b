"""A small node-classification data set and configs for it."""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.config.schema import NodeConfig, load_config
from tpugraphs_polynormer.nodes.datasets import NodeDataset, NodeSplit, find_along, make_undirected

RECIPE = (
    "task=node_classification",
    "training.learning_rate=0.01",
    "model.hidden_dim=8",
    "model.num_local_layers=1",
    "model.dropout_rate=0.2",
)


def make_config(*overrides: str) -> NodeConfig:
    """The config of a tiny Polynormer with the authors' defaults, or of another encoder; two heads if it has heads."""
    headless = {"model.encoder=gcn", "model.encoder=graphsage"} & set(overrides)
    return load_config(None, [*RECIPE, *([] if headless else ["model.num_heads=2"]), *overrides])


def make_dataset(
    num_nodes: int = 60, num_classes: int = 2, metric: str = "roc_auc", num_splits: int = 2, seed: int = 0
) -> NodeDataset:
    """A random data set whose edges mostly join nodes of equal label, and whose first feature grows with the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_nodes)
    pairs = rng.integers(0, num_nodes, [6 * num_nodes, 2])
    pairs = pairs[(labels[pairs[:, 0]] == labels[pairs[:, 1]]) | (rng.random(len(pairs)) < 0.2)]
    features = rng.normal(size=[num_nodes, 5]).astype(np.float32)
    features[:, 0] += labels
    splits = []
    for _ in range(num_splits):
        order = rng.permutation(num_nodes)
        half, quarter = num_nodes // 2, num_nodes // 4
        splits.append(NodeSplit(order[:half], order[half : half + quarter], order[half + quarter :]))
    edges = make_undirected(pairs, num_nodes)
    is_along = find_along(edges, pairs, num_nodes)
    return NodeDataset("toy", features, labels, edges, tuple(splits), num_classes, metric, is_along)
