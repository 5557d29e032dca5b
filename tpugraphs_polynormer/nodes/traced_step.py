"""A node classifier's training step on the whole graph as an HLO module, made without the data set."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.catalog import find_benchmark
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import NodeConfig
from tpugraphs_polynormer.nodes.datasets import NodeDataset, NodeSplit
from tpugraphs_polynormer.nodes.task import NodeInputs, NodeTask
from tpugraphs_polynormer.training.traced_step import trace_training_step


def trace_node_step(config: NodeConfig, *, num_replicas: int = 1) -> bytes:
    """The HLO module of a config's training step, in the last phase that it trains, at its data set's size."""
    if config.training.nodes_per_batch:
        raise ConfigError("training.nodes_per_batch: a TPU needs static shapes; set training.nodes_per_batch=0")
    inputs = NodeInputs.make(_blank_dataset(config.data.benchmark), config)

    def make_task() -> NodeTask:
        task = NodeTask(config, inputs, 0)
        task.enter_phase(task.phases[-1].name)
        return task

    batch = next(iter(make_task().make_dataset(0, tf.distribute.InputContext())))
    return trace_training_step(make_task, batch, num_replicas=num_replicas)


def _blank_dataset(name: str) -> NodeDataset:
    """Zeros in the shapes of a benchmark; a ring of nodes, with each edge as often as it takes."""
    sizes = find_benchmark(name)
    source = np.arange(sizes.num_edges) % sizes.num_nodes
    target = (source + 1) % sizes.num_nodes
    loops = np.arange(sizes.num_nodes)
    pairs = np.concatenate([np.stack(ends, 1) for ends in ((source, target), (target, source), (loops, loops))])
    is_along = np.concatenate([np.ones(len(source), bool), np.zeros(len(source), bool), np.ones(len(loops), bool)])
    nodes = np.arange(1)
    return NodeDataset(
        name=name,
        features=np.zeros((sizes.num_nodes, sizes.num_features), np.float32),
        labels=np.zeros(sizes.num_nodes, np.int64),
        edges=pairs,
        splits=(NodeSplit(nodes, nodes, nodes),),
        num_classes=sizes.num_classes,
        metric=sizes.metric,
        is_along=is_along,
    )
