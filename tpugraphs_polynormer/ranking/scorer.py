"""Scores and metrics of all candidates of a graph, in blocks of candidates; used by validation and prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.config.schema import RankingModelConfig
from tpugraphs_polynormer.datasets.input_pipeline import iterate_blocks, parse_graph
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.datasets.physics import Physics
from tpugraphs_polynormer.datasets.reader import RankingDataset, RankingSplit
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.models.ranking.batch import Batch, unpack_batch
from tpugraphs_polynormer.models.ranking.model import Encoded, RankingModel
from tpugraphs_polynormer.progress import track
from tpugraphs_polynormer.ranking.baselines import CostScorer
from tpugraphs_polynormer.ranking.metrics import GraphAccumulator, GraphMetrics, graph_metrics
from tpugraphs_polynormer.ranking.static_scoring import StaticScorer

# The largest number of per-candidate state values in a block; it limits memory.
_BLOCK_FLOATS = 16_000_000


class Scorer:
    """Scores the candidates of graphs with a model; what does not depend on candidates is computed once per graph.

    Args:
      model: the ranking model.
      collection: the dataset that the graphs come from.
      candidates_per_group: number of candidates per group, if the model's candidates attend to each other.
      phase: of the encoder; None for the last.
      seed: of the random groups.
      static: scores blocks in programs of static shape, with the same model and phase; None: in programs that take
        graphs of any size, on the host.
    """

    def __init__(
        self,
        model: RankingModel,
        collection: RankingDataset,
        *,
        candidates_per_group: int,
        phase: str | None = None,
        seed: int = 0,
        static: StaticScorer | None = None,
    ) -> None:
        self._model, self._collection, self._seed = model, collection, seed
        self._static, self._physics = static, model.config.reads_physics
        self._run = {"phase": phase, "training": False}
        self._group = candidates_per_group
        self._traces: dict[tuple, Callable] = {}

    def _trace(self, function: Callable, *arguments: Any) -> Callable:
        """The function, traced once for all sizes, so that scores do not depend on the graphs scored before."""
        specs = tf.nest.map_structure(_forget_size, arguments)
        key = (function.__name__, *tf.nest.flatten(specs))
        if key not in self._traces:
            self._traces[key] = tf.function(function, autograph=False).get_concrete_function(*specs)
        return self._traces[key]

    def _begin(self, *fields: tf.Tensor) -> tuple[Batch, Encoded]:
        """A graph with its first block of candidates, and its encoding, which does not depend on candidates."""
        graph = parse_graph(self._collection.manifest.kind, *fields)
        batch = unpack_batch(graph, directed=self._model.config.directed)
        return batch, self._model.encode(batch, **self._run)

    def _score(self, batch: Batch, encoded: Encoded) -> tf.Tensor:
        return self._model.score(batch, encoded, **self._run)

    def score_graph(self, split: RankingSplit, number: int, candidates: np.ndarray | None = None) -> np.ndarray:
        """float64 [c]: the scores of all candidates of a graph, or of those with indices `candidates` [c]."""
        entry = split.graphs[number]
        if candidates is None:
            candidates = np.arange(entry.num_candidates)
        config = self._model.config
        if config.cross_candidates != "none":
            return self._score_in_groups(split, number, candidates, config)
        return self._score_in_order(split, number, candidates, self._block_size(split, number, len(candidates)))

    def _block_size(self, split: RankingSplit, number: int, num_candidates: int) -> int:
        """The number of candidates per block; with static shapes the same for all graphs of a size class."""
        entry = split.graphs[number]
        num_nodes, num_config_nodes = entry.num_nodes, entry.num_config_nodes
        if self._static is not None:
            padded = self._static.padded_sizes(split, number)
            num_nodes, num_config_nodes = padded.nodes, padded.config_nodes
            most = max(each.num_candidates for each in split.graphs)
            num_candidates = -(-most // self._static.num_replicas)
        # After the encoder, a tile candidate is joined with every node, a layout candidate with the config nodes.
        num_met = num_config_nodes if self._collection.manifest.kind == "layout" else num_nodes
        return block_size(self._model.config, num_nodes, num_met, num_candidates)

    def _score_in_groups(
        self, split: RankingSplit, number: int, candidates: np.ndarray, config: RankingModelConfig
    ) -> np.ndarray:
        """[c]: the mean of scores over random groupings, because candidates of a group attend to each other."""
        total = np.zeros(len(candidates))
        for grouping in range(config.num_groupings):
            order = np.random.default_rng((self._seed, grouping)).permutation(len(candidates))
            total[order] += self._score_in_order(split, number, candidates[order], self._group)
        return total / config.num_groupings

    def _score_in_order(self, split: RankingSplit, number: int, candidates: np.ndarray, block: int) -> np.ndarray:
        if self._static is not None:
            return self._static.score_graph(split, number, candidates, block)
        results = GraphAccumulator(len(candidates), graph=split.graphs[number].name)
        batch = encoded = None
        for part in iterate_blocks(self._collection, split, number, block, candidates, physics=self._physics):
            if batch is None:
                fields = part.fields
                batch, encoded = self._trace(self._begin, *fields)(*fields)
                batch = batch._replace(num_graphs=1)  # the trace returned this number as a tensor
            else:
                batch = batch._replace(codes=tf.constant(part.codes), candidate_mask=tf.constant(part.mask[None]))
                if part.physics:
                    known = Physics(*part.physics)
                    nodes = None if known.nodes is None else tf.constant(known.nodes)
                    batch = batch._replace(physics=tf.constant(known.candidates[None]), nconfig_physics=nodes)
            scores = self._trace(self._score, batch, encoded)(batch, encoded)[0].numpy()
            results.add(np.arange(part.start, part.stop), scores[: part.stop - part.start])
        return results.result()


def _forget_size(each: Any) -> Any:
    """The spec of a tensor with an unknown first dimension; other values unchanged."""
    if not tf.is_tensor(each):
        return each
    return tf.TensorSpec([None, *each.shape[1:]] if each.shape.rank else [], each.dtype)


def block_size(config: RankingModelConfig, num_nodes: int, num_met: int, num_candidates: int) -> int:
    """The number of candidates per block: a power of two, so that few shapes occur.

    Args:
      config: of the model. num_nodes, num_candidates: of the graph.
      num_met: number of nodes that are joined with candidates after the encoder (late fusion only).
    """
    rows = num_nodes if config.fusion == "early" else max(num_met, 1)
    fitting = min(1024, max(16, _BLOCK_FLOATS // (rows * config.hidden_dim)))
    return min(1 << fitting.bit_length() - 1, 1 << (num_candidates - 1).bit_length())


def choose_candidates(
    split: RankingSplit, *, most: int, seed: int = 0, indices: Mapping[str, np.ndarray] | None = None
) -> list[np.ndarray]:
    """The candidate indices to evaluate, per graph of a split.

    Args:
      most: number of candidates drawn from a graph with more; 0 for all.
      seed: of the draw.
      indices: graph name -> candidate indices, which replace the draw.
    """
    chosen = []
    for number, entry in enumerate(split.graphs):
        if indices is not None and entry.name in indices:
            numbers = indices[entry.name]
            if numbers.max() >= entry.num_candidates:
                raise UserError(
                    f"{entry.name}: the index file names candidate {numbers.max()}, "
                    f"expected 0..{entry.num_candidates - 1}; is it of another collection?"
                )
        elif most and entry.num_candidates > most:
            numbers = np.sort(np.random.default_rng((seed, number)).choice(entry.num_candidates, most, replace=False))
        else:
            numbers = np.arange(entry.num_candidates)
        chosen.append(numbers)
    return chosen


def evaluate_split(
    scorer: Scorer | CostScorer,
    split: RankingSplit,
    *,
    collection: str,
    candidates: Sequence[np.ndarray],
    progress: bool = False,
) -> list[GraphMetrics]:
    """The metrics of each graph of a split.

    Args:
      scorer: of the model. collection: name of the collection.
      candidates: per graph, the indices of the candidates to evaluate.
      progress: whether to show a bar.
    """
    kind = find_collection(collection).kind
    results = []
    for number in track(range(len(split)), len(split), f"evaluate {collection}", "graph", hidden=not progress):
        entry = split.graphs[number]
        numbers = candidates[number]
        runtimes = split.read_column(number, "runtimes", numbers)
        if not runtimes.all():
            raise DatasetError(f"{collection} {entry.name}: runtimes are hidden; evaluate a split that has them")
        normalizers = split.read_column(number, "normalizers", numbers) if kind == "tile" else None
        scores = scorer.score_graph(split, number, numbers)
        names = {"collection": collection, "graph": entry.name}
        results.append(graph_metrics(kind, runtimes, scores, normalizers, noise=split.noise(number), **names))
    return results
