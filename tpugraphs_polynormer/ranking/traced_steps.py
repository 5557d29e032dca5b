"""A ranking model's training and scoring steps as HLO modules of static sizes, made without data and devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.catalog import NUM_NODE_FEATURES, NUM_OPCODES, find_collection
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import RankingConfig
from tpugraphs_polynormer.datasets.batch_plan import (
    BATCH_SIZES,
    BatchSizes,
    describe_batches,
    draw_official_sizes,
    measure_graphs,
)
from tpugraphs_polynormer.datasets.input_pipeline import merge_graphs, pad_batch, parse_graph, size_constraints
from tpugraphs_polynormer.datasets.physics import blank_physics
from tpugraphs_polynormer.datasets.records import serialize_nothing
from tpugraphs_polynormer.datasets.static_graphs import GraphSizes
from tpugraphs_polynormer.datasets.statistics import FeatureStatistics
from tpugraphs_polynormer.ranking.scorer import block_size
from tpugraphs_polynormer.ranking.static_scoring import scoring_functions, scoring_specs
from tpugraphs_polynormer.ranking.task import DatasetFacts, build_ranking_model, mean_loss, open_collection
from tpugraphs_polynormer.training.losses import build_loss
from tpugraphs_polynormer.training.task import set_precision
from tpugraphs_polynormer.training.traced_step import trace_function, trace_training_step


def official_batches(config: RankingConfig) -> BatchSizes:
    """The batches of the official collections, from the quantiles in the catalog."""
    return describe_batches(_official_sizes(config), config.data, config.seed)


def _official_sizes(config: RankingConfig) -> np.ndarray:
    """[graphs, 5]: BATCH_SIZES of graphs of the config's collections; the last is the largest in every size."""
    drawn = [draw_official_sizes(find_collection(name)) for name in config.data.names]
    largest = np.max([sizes[-1] for sizes in drawn], axis=0)
    return np.concatenate([*(sizes[:-1] for sizes in drawn), largest[np.newaxis]])


def dataset_batches(config: RankingConfig, datasets: Path) -> BatchSizes:
    """The batches of a preprocessed collection."""
    return describe_batches(
        measure_graphs(open_collection(config, datasets).split("train").graphs), config.data, config.seed
    )


class _StepTask:
    """What the trainer's step needs of a task: the model, with all variables, and the loss."""

    def __init__(self, config: RankingConfig, kind: str, phase: str | None) -> None:
        if not config.model.learns:
            raise ConfigError("model.encoder: found none, the cost model, which has no step to compile; choose another")
        set_precision(config.training)
        self.config, self._phase = config, phase
        self.model = build_ranking_model(config, DatasetFacts(config.data.names[0], kind, neutral_statistics()))
        small = dict.fromkeys(BATCH_SIZES, 2)
        physics = config.model.reads_physics
        self.model(blank_batch(kind, small, 1, config.data.candidates_per_graph, physics=physics))
        self._loss = build_loss(config.loss.weights, score_spread=config.loss.score_spread)

    def loss(self, graph: tfgnn.GraphTensor, *, num_replicas: int) -> tf.Tensor:
        """As RankingTask.loss."""
        scores = self.model(graph, phase=self._phase, training=True)
        return mean_loss(self.config.data, self._loss, graph, scores, num_replicas=num_replicas)


def trace_ranking_step(
    config: RankingConfig, limits: Mapping[str, int], *, num_replicas: int = 1, phase: str | None = None
) -> bytes:
    """The HLO module of a config's training step, in the encoder's last phase by default.

    Args:
      limits: see BatchSizes. num_replicas: see `trace_training_step`.
    """
    kind = config.data.kind
    data = config.data
    physics = config.model.reads_physics
    batch = blank_batch(kind, limits, data.graphs_per_batch, data.candidates_per_graph, physics=physics)
    return trace_training_step(lambda: _StepTask(config, kind, phase), batch, num_replicas=num_replicas)


def trace_scoring_steps(
    config: RankingConfig, sizes: GraphSizes | None = None, *, num_candidates: int = 1000
) -> list[tuple[str, bytes]]:
    """(name, HLO module) of the two programs that score a graph: `encode`, and `score` of a block of candidates.

    Args:
      sizes: that graphs are padded to; by default those of the largest official graph. num_candidates: of a graph.
    """
    kind = config.data.kind
    if sizes is None:
        largest = GraphSizes(*_official_sizes(config)[-1].tolist())
        sizes = largest._replace(nodes=largest.nodes + 1, config_values=largest.config_values + 1)
    model = _StepTask(config, kind, None).model
    num_met = sizes.config_nodes if kind == "layout" else sizes.nodes
    block = block_size(config.model, sizes.nodes, num_met, num_candidates)
    graph, candidates = scoring_specs(kind, sizes, block, physics=config.model.reads_physics)
    encode, score = scoring_functions(model)
    states = tf.TensorSpec([sizes.nodes, model.node_projection.units], model.compute_dtype)
    if config.model.fusion == "late":
        states = tf.TensorSpec([sizes.nodes, config.model.hidden_dim], model.compute_dtype)
    return [("encode", trace_function(encode, *graph)), ("score", trace_function(score, states, *candidates, *graph))]


def blank_batch(
    kind: str, limits: Mapping[str, int], num_graphs: int, num_candidates: int, *, physics: bool = False
) -> tfgnn.GraphTensor:
    """A padded batch of graphs without nodes: the shapes and types of a training batch."""
    nothing = (
        tf.constant(serialize_nothing(kind)),
        tf.zeros([0, num_candidates], tf.int32),
        tf.zeros([num_candidates], tf.int64),
        tf.zeros([num_candidates], tf.bool),
        *(tf.constant(each) for each in blank_physics(kind, 0, num_candidates).flat if physics),
    )
    as_written = tf.autograph.experimental.do_not_convert
    graphs = tf.data.Dataset.from_tensors(nothing).map(as_written(lambda *fields: parse_graph(kind, *fields)))
    merged = next(iter(graphs.repeat(num_graphs).batch(num_graphs).map(as_written(merge_graphs))))
    return pad_batch(merged, size_constraints(kind, limits, num_graphs))


def neutral_statistics() -> FeatureStatistics:
    """Statistics that leave features as they are; a step's cost does not depend on them."""
    zeros, ones = (0.0,) * NUM_NODE_FEATURES, (1.0,) * NUM_NODE_FEATURES
    heavy = tuple(range(NUM_NODE_FEATURES))  # as for most columns of real programs
    return FeatureStatistics(1, zeros, ones, zeros, ones, heavy, (), (0,) * NUM_OPCODES)
