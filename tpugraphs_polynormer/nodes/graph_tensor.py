"""TF-GNN GraphTensors of node-classification data sets."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.nodes.datasets import NodeDataset

NODES = "nodes"
EDGES = "edges"


def to_graph_tensor(dataset: NodeDataset, split: int) -> tfgnn.GraphTensor:
    """A scalar GraphTensor of one component, the whole graph.

    Node set "nodes": features float32 [n, d], label int64 [n], train_mask, valid_mask and test_mask bool [n] of the
    official split with number `split`. Edge set "edges": int32 indices, sorted by target.
    """
    if not 0 <= split < len(dataset.splits):
        raise UserError(f"{dataset.name}: split {split} does not exist; choose from 0..{len(dataset.splits) - 1}")
    parts = dataset.splits[split]
    node_features = {
        "features": tf.constant(dataset.features),
        "label": tf.constant(dataset.labels),
        "train_mask": tf.constant(_mask(parts.train, dataset.num_nodes)),
        "valid_mask": tf.constant(_mask(parts.valid, dataset.num_nodes)),
        "test_mask": tf.constant(_mask(parts.test, dataset.num_nodes)),
    }
    source, target = (tf.constant(dataset.edges[:, column].astype(np.int32)) for column in (0, 1))
    nodes = tfgnn.NodeSet.from_fields(sizes=tf.constant([dataset.num_nodes]), features=node_features)
    edges = tfgnn.EdgeSet.from_fields(
        sizes=tf.constant([len(dataset.edges)]),
        adjacency=tfgnn.Adjacency.from_indices((NODES, source), (NODES, target)),
        features={},
    )
    return tfgnn.GraphTensor.from_pieces(node_sets={NODES: nodes}, edge_sets={EDGES: edges})


def _mask(nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    mask = np.zeros(num_nodes, bool)
    mask[nodes] = True
    return mask
