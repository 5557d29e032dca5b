"""tf.data over a preprocessed collection: draws, merges, pads and masks graphs; can resume at any step.

What a training step sees is a function of (seed, step) alone: there is no state to save besides the step number.

A batch is one merged GraphTensor of G graphs (components). Besides what is stored (schema.py) it holds
  node set "nconfig", feature "codes" [num_config_nodes, k] int32: the row of each candidate's value in node set
  "config_value";
  context feature "costs" [G, k] int64: what to rank by (nanoseconds, or runtime / normalizer in units of 2^-40);
  context feature "candidate_mask" [G, k] bool: False where a graph has fewer than k candidates;
  where the model asks for physics (physics.py), float32 features "physics" of the context, [G, k, features], and for
  layouts of node set "nconfig", [num_config_nodes, k, features].
Padded to static sizes it has one more component, of padding only, whose mask is all False.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn
from google.protobuf import text_format

from tpugraphs_polynormer.config.schema import RankingDataConfig
from tpugraphs_polynormer.datasets.batch_plan import batch_limits, measure_graphs
from tpugraphs_polynormer.datasets.physics import physics_shapes
from tpugraphs_polynormer.datasets.reader import RankingDataset, RankingSplit
from tpugraphs_polynormer.datasets.sampler import CandidateSampler, fetch_candidates
from tpugraphs_polynormer.datasets.schema import schema_text

# AutoGraph would take seconds, and these functions have no Python control flow on tensors.
_as_written = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Shard:
    """This worker's part of each global step: `num_replicas` batches of the step's `num_workers * num_replicas`."""

    worker: int = 0
    num_workers: int = 1
    num_replicas: int = 1  # of this worker

    @staticmethod
    def from_context(context: tf.distribute.InputContext) -> Shard:
        """The shard of this input pipeline under tf.distribute."""
        return Shard(
            context.input_pipeline_id,
            context.num_input_pipelines,
            context.num_replicas_in_sync // context.num_input_pipelines,
        )


_WHOLE = Shard()


def make_training_dataset(
    collection: RankingDataset,
    config: RankingDataConfig,
    *,
    seed: int,
    start_step: int = 0,
    shard: Shard = _WHOLE,
    num_parallel_calls: int = tf.data.AUTOTUNE,
    physics: bool = False,
) -> tf.data.Dataset:
    """An endless dataset of merged batches from step `start_step` on, one element per replica of this worker.

    With `physics` they have what the cost model knows of their candidates.
    """
    sampler = CandidateSampler(collection.split("train"), config, seed, physics=physics)
    plan = sampler.plan_batches() if config.batch_nodes else None

    def positions_of(element: tf.Tensor) -> tf.Tensor:
        """[graphs_per_batch]: the positions of the graphs of one batch of this worker."""
        step, replica = element // shard.num_replicas, element % shard.num_replicas
        batch = (step * shard.num_workers + shard.worker) * shard.num_replicas + replica
        if plan is None:
            return batch * config.graphs_per_batch + tf.range(config.graphs_per_batch, dtype=tf.int64)
        found = tf.numpy_function(lambda number: plan.positions(int(number)), [batch], tf.int64)
        return tf.ensure_shape(found, [config.graphs_per_batch])

    elements = tf.data.Dataset.range(start_step * shard.num_replicas, np.iinfo(np.int64).max)
    positions = elements.map(_as_written(positions_of)).unbatch()
    k = config.candidates_per_graph
    kind = collection.manifest.kind
    graphs = positions.map(
        _as_written(lambda position: _draw_graph(sampler, kind, k, position, physics)),
        num_parallel_calls=num_parallel_calls,
        deterministic=True,
    )
    return _batch(graphs, config.graphs_per_batch, batch_budget(collection, config)).prefetch(2)


def batch_budget(collection: RankingDataset, config: RankingDataConfig) -> tfgnn.SizeConstraints | None:
    """Static sizes that every train batch fits into (see batch_plan.py), or None for batches of any size."""
    if not config.static_shapes:
        return None
    limits = batch_limits(measure_graphs(collection.split("train").graphs), config)
    return size_constraints(collection.manifest.kind, limits, config.graphs_per_batch)


def size_constraints(kind: str, limits: Mapping[str, int], num_graphs: int) -> tfgnn.SizeConstraints:
    """Room for `num_graphs` graphs with `limits` of BATCH_SIZES together, and one of each node for padding edges."""
    edges = {"feed": limits["edges"]}
    if kind == "layout":
        edges |= {"config": limits["config_nodes"], "meet": limits["config_edges"]}
    return tfgnn.SizeConstraints(
        total_num_components=num_graphs + 1,
        total_num_nodes={
            "op": limits["nodes"] + 1,
            "nconfig": limits["config_nodes"] + 1,
            "config_value": limits["config_values"] + 1,
        },
        total_num_edges=edges,
    )


def _draw_graph(
    sampler: CandidateSampler, kind: str, width: int, position: tf.Tensor, physics: bool
) -> tfgnn.GraphTensor:
    known = physics_shapes(kind, 0, width) if physics else []
    types = (tf.string, tf.int32, tf.int64, tf.bool, *(tf.float32 for _ in known))
    drawn = tf.numpy_function(lambda index: sampler.draw(int(index)), [position], types, stateful=False)
    shapes = [[], [None, width], [width], [width]]
    shapes += [[size or None for size in shape] for shape in known]  # the config nodes differ from graph to graph
    for tensor, shape in zip(drawn, shapes, strict=True):
        tensor.set_shape(shape)
    return parse_graph(kind, *drawn)


def graph_spec(kind: str) -> tfgnn.GraphTensorSpec:
    """The spec of one stored graph of a "layout" or "tile" dataset."""
    return tfgnn.create_graph_spec_from_schema_pb(text_format.Parse(schema_text(kind), tfgnn.GraphSchema()))


def parse_graph(
    kind: str, record: tf.Tensor, codes: tf.Tensor, costs: tf.Tensor, mask: tf.Tensor, *physics: tf.Tensor
) -> tfgnn.GraphTensor:
    """The stored graph with its drawn candidates as features, a GraphTensor of one component."""
    # The context loses the name: a TPU takes no strings.
    graph = tfgnn.parse_single_example(graph_spec(kind), record)
    graph = graph.replace_features(context={"costs": costs[None], "candidate_mask": mask[None]})
    return with_physics(with_codes(graph, codes), *physics)


def with_physics(
    graph: tfgnn.GraphTensor, candidates: tf.Tensor | None = None, nodes: tf.Tensor | None = None
) -> tfgnn.GraphTensor:
    """The graph with the fields of `Physics` that are given."""
    if candidates is None:
        return graph
    graph = graph.replace_features(context={**graph.context.features, "physics": candidates[None]})
    if nodes is None:
        return graph
    return graph.replace_features(node_sets={"nconfig": {**graph.node_sets["nconfig"].features, "physics": nodes}})


def with_codes(graph: tfgnn.GraphTensor, codes: tf.Tensor) -> tfgnn.GraphTensor:
    """The graph with the codes [num_config_nodes, k] of its candidates."""
    return graph.replace_features(node_sets={"nconfig": {**graph.node_sets["nconfig"].features, "codes": codes}})


def _batch(graphs: tf.data.Dataset, graphs_per_batch: int, budget: tfgnn.SizeConstraints | None) -> tf.data.Dataset:
    options = {"num_parallel_calls": 2, "deterministic": True}
    batches = graphs.batch(graphs_per_batch, drop_remainder=True).map(_as_written(merge_graphs), **options)
    if budget is None:
        return batches
    return batches.map(_as_written(lambda graph: pad_batch(graph, budget)), **options)


def merge_graphs(graph: tfgnn.GraphTensor) -> tfgnn.GraphTensor:
    """One graph of many components; the codes of each graph are shifted to its part of the merged config values."""
    merged = graph.merge_batch_to_components()
    starts = tf.cumsum(merged.node_sets["config_value"].sizes, exclusive=True)
    nconfigs = merged.node_sets["nconfig"]
    shifts = tf.repeat(starts, nconfigs.sizes)
    return with_codes(merged, nconfigs["codes"] + shifts[:, None])


def pad_batch(graph: tfgnn.GraphTensor, budget: tfgnn.SizeConstraints) -> tfgnn.GraphTensor:
    """The batch padded to static sizes: padding candidates are masked, padding codes are the padding config value."""
    num_config_values = tf.reduce_sum(graph.node_sets["config_value"].sizes)
    num_config_nodes = tf.reduce_sum(graph.node_sets["nconfig"].sizes)
    padded, _ = tfgnn.pad_to_total_sizes(graph, budget)
    codes = padded.node_sets["nconfig"]["codes"]
    is_real = tf.range(tf.shape(codes)[0]) < num_config_nodes
    return with_codes(padded, tf.where(is_real[:, None], codes, num_config_values))


@dataclass(frozen=True)
class CandidateBlock:
    """Stored candidates of one graph: start..stop-1 of those that were requested; padding at the end is masked."""

    kind: str
    record: bytes
    codes: np.ndarray  # [num_config_nodes, block] int32
    costs: np.ndarray  # [block] int64
    mask: np.ndarray  # [block] bool
    physics: tuple[np.ndarray, ...]  # the arrays of Physics.flat, or none
    start: int
    stop: int

    @property
    def fields(self) -> tuple[tf.Tensor, ...]:
        """The arguments of `parse_graph` after the kind."""
        return tuple(tf.constant(each) for each in (self.record, self.codes, self.costs, self.mask, *self.physics))

    @property
    def graph(self) -> tfgnn.GraphTensor:
        """The block as a GraphTensor of one component; this takes 30 ms, less than 1 ms within a tf.function."""
        return parse_graph(self.kind, *self.fields)


def iterate_blocks(
    collection: RankingDataset,
    split: RankingSplit,
    number: int,
    block: int,
    candidates: np.ndarray | None = None,
    *,
    physics: bool = False,
) -> Iterator[CandidateBlock]:
    """Yields all candidates of a graph, or those with the given numbers [c'], `block` at a time."""
    kind, record = collection.manifest.kind, split.read_record(number)
    if candidates is None:
        candidates = np.arange(split.graphs[number].num_candidates)
    for start in range(0, len(candidates), block):
        chosen = candidates[start : start + block]
        codes, costs, mask, *known = fetch_candidates(split, number, chosen, block, physics=physics)
        yield CandidateBlock(kind, record, codes, costs, mask, tuple(known), start, start + len(chosen))
