"""Scoring with static shapes: compiled by XLA, on the devices of a tf.distribute strategy.

A graph is padded to one of a few size classes (datasets/static_graphs.py), its candidates come in blocks of one size
per class. Each class is compiled twice: `encode`, what no candidate changes, and `score`, a block of candidates. The
host parses records and reads candidates; every tensor that it sends is numeric.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.datasets.input_pipeline import CandidateBlock, iterate_blocks
from tpugraphs_polynormer.datasets.physics import Physics, physics_shapes
from tpugraphs_polynormer.datasets.reader import RankingDataset, RankingSplit
from tpugraphs_polynormer.datasets.static_graphs import (
    GraphSizes,
    StaticGraph,
    find_class,
    graph_shapes,
    pad_codes,
    pad_graph,
    pad_physics,
    size_classes,
)
from tpugraphs_polynormer.models.ranking.batch import build_static_batch
from tpugraphs_polynormer.models.ranking.model import Encoded, RankingModel
from tpugraphs_polynormer.ranking.metrics import GraphAccumulator


def scoring_functions(model: RankingModel, *, phase: str | None = None) -> tuple[Callable, Callable]:
    """The functions (encode, score) of one padded graph, over numeric tensors of any static sizes.

    encode(*graph) -> states [n, dim], in the model's compute dtype: what no candidate changes.
    score(states, codes, mask, *physics, *graph) -> float32 [k], higher is faster; those of masked candidates mean
      nothing.

    `graph` are the tensors of `StaticGraph.flat`, `codes` [s, k] int32 the positions of each candidate's values in
    `config_values`, `mask` [k] bool; `physics` are those of `Physics.flat`, if the model reads them. `scoring_specs`
    has the specs of these arguments. Trace both functions in the same way, for instance both with
    `tf.function(..., jit_compile=True, autograph=False)`; the model must have its variables.

    Args:
      model: the ranking model.
      phase: of the encoder; None for the last.
    """
    run, directed = {"phase": phase, "training": False}, model.config.directed

    def encode(*graph: tf.Tensor) -> tf.Tensor:
        batch = build_static_batch(StaticGraph(*graph), directed=directed)
        return model.encode(batch, **run, share_states=False).states

    num_known = len(physics_shapes(model.kind, 0, 0)) if model.config.reads_physics else 0

    def score(states: tf.Tensor, codes: tf.Tensor, mask: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
        known, graph = others[:num_known], others[num_known:]
        physics = Physics(*known) if known else None
        batch = build_static_batch(StaticGraph(*graph), codes, mask, physics, directed=directed)
        return model.score(batch, Encoded(states, None, None), **run)[0]

    return encode, score


def scoring_specs(
    kind: str, sizes: GraphSizes, block: int, *, physics: bool = False
) -> tuple[tuple[tf.TensorSpec, ...], tuple[tf.TensorSpec, ...]]:
    """The specs of `graph` and of (`codes`, `mask`, *`physics`), arguments of `scoring_functions`.

    Args:
      kind: `layout` or `tile`.
      sizes: that graphs are padded to, from `size_classes`, or any with at least one padding op, config node (layout
        only) and config value.
      block: number of candidates. physics: whether the model reads it.
    """
    graph = tuple(tf.TensorSpec(*each, name=name) for name, each in graph_shapes(kind, sizes).items())
    return graph, (
        tf.TensorSpec([sizes.config_nodes, block], tf.int32, name="codes"),
        tf.TensorSpec([block], tf.bool, name="mask"),
        *(tf.TensorSpec(each, tf.float32) for each in physics_shapes(kind, sizes.config_nodes, block) if physics),
    )


class StaticScorer:
    """Scores the candidates of graphs in programs of static shape: at most two for each size class of a split.

    With several replicas each scores its own block of candidates of the same graph.

    Args:
      model: the ranking model, created in the strategy's scope.
      collection: the dataset that the graphs come from.
      phase: of the encoder; None for the last.
      jit_compile: whether XLA compiles the programs of each replica; a TPU compiles in any case.
      strategy: of tf.distribute; by default the one in scope.
    """

    def __init__(
        self,
        model: RankingModel,
        collection: RankingDataset,
        *,
        phase: str | None = None,
        jit_compile: bool = True,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        self._collection, self._kind = collection, collection.manifest.kind
        self._physics = model.config.reads_physics
        self._strategy = strategy = strategy or tf.distribute.get_strategy()
        is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        is_placed = is_tpu or strategy.num_replicas_in_sync > 1
        # The devices of this worker; None: where TensorFlow puts it.
        self._devices: Sequence[str | None] = strategy.extended.worker_devices if is_placed else (None,)
        compiles = jit_compile and not is_tpu
        self._encode, self._score = (self._trace(each, compiles) for each in scoring_functions(model, phase=phase))
        self._split: RankingSplit | None = None
        self._classes: list[GraphSizes] = []

    def _trace(self, function: Callable, jit_compile: bool) -> tf.types.experimental.PolymorphicFunction:
        inner = tf.function(function, jit_compile=True, autograph=False) if jit_compile else function
        return tf.function(lambda *arguments: self._strategy.run(inner, arguments), autograph=False)

    @property
    def num_replicas(self) -> int:
        """The number of blocks that are scored at once."""
        return len(self._devices)

    @property
    def num_traces(self) -> tuple[int, int]:
        """How often (`encode`, `score`) were traced, which is once for each size class that was met."""
        return self._encode.experimental_get_tracing_count(), self._score.experimental_get_tracing_count()

    def padded_sizes(self, split: RankingSplit, number: int) -> GraphSizes:
        """The size class of a graph; the classes are those of its split."""
        if self._split is not split:
            self._split, self._classes = split, size_classes(self._kind, split.graphs)
        return find_class(self._classes, GraphSizes.of(split.graphs[number]), self._kind)

    def score_graph(self, split: RankingSplit, number: int, candidates: np.ndarray, block: int) -> np.ndarray:
        """float64 [c]: the scores of the candidates with these indices [c], `block` at a time on each replica."""
        sizes = self.padded_sizes(split, number)
        results = GraphAccumulator(len(candidates), graph=split.graphs[number].name)
        blocks = iterate_blocks(self._collection, split, number, block, candidates, physics=self._physics)
        graph = states = None
        running: tuple[list[CandidateBlock], tf.Tensor] | None = None
        while parts := list(itertools.islice(blocks, self.num_replicas)):
            if states is None:
                flat = pad_graph(self._kind, parts[0].record, sizes).flat
                graph = self._distribute([flat] * self.num_replicas)
                # Placed, so that the blocks find the states on their device wherever `run` left them.
                encoded = self._strategy.experimental_local_results(self._encode(*graph))
                (states,) = self._distribute([(each,) for each in encoded])
            drawn = [(pad_codes(part.codes, sizes), part.mask, *pad_physics(part.physics, sizes)) for part in parts]
            idle = drawn[0][0], np.zeros(block, bool), *drawn[0][2:]
            drawn += [idle] * (self.num_replicas - len(parts))
            scores = self._score(states, *self._distribute(drawn), *graph)
            if running is not None:  # the devices compute while the host reads the next candidates
                self._collect(results, *running)
            running = parts, scores
        if running is not None:
            self._collect(results, *running)
        return results.result()

    def _collect(self, results: GraphAccumulator, parts: Sequence[CandidateBlock], scores: tf.Tensor) -> None:
        """Adds the scores [block] of each replica, without those of padding and of idle replicas, which come last."""
        for part, local in zip(parts, self._strategy.experimental_local_results(scores), strict=False):
            results.add(np.arange(part.start, part.stop), local.numpy()[: part.stop - part.start])

    def _distribute(self, arrays: Sequence[tuple[np.ndarray, ...]]) -> tuple:
        """A tuple of tensors, each on its replica, from a tuple of arrays for each replica of this worker."""

        def place(context: tf.distribute.experimental.ValueContext) -> tuple[tf.Tensor, ...]:
            replica = context.replica_id_in_sync_group % self.num_replicas
            with tf.device(self._devices[replica]):
                return tuple(tf.identity(each) for each in arrays[replica])

        return self._strategy.experimental_distribute_values_from_function(place)
