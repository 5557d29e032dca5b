"""The ranking model: a program's graph and k candidates in, one score per candidate out (lower is faster)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.config.schema import ModelConfig
from tpugraphs_polynormer.datasets.encoding import NUM_TILE_SLOTS
from tpugraphs_polynormer.datasets.statistics import FeatureStatistics
from tpugraphs_polynormer.layers.convolutions import Linear
from tpugraphs_polynormer.layers.dropout import Dropout
from tpugraphs_polynormer.layers.edge_index import Edges
from tpugraphs_polynormer.layers.ops.aggregation import in_xla
from tpugraphs_polynormer.layers.shared_states import Frontier, Reach, find_reach, split_at
from tpugraphs_polynormer.models.encoder_registry import build_ranking_trunk, build_slot_trunk
from tpugraphs_polynormer.models.polynormer import Polynormer
from tpugraphs_polynormer.models.ranking.batch import Batch, read_batch
from tpugraphs_polynormer.models.ranking.config_graph import build_slot_edges, find_origins
from tpugraphs_polynormer.models.ranking.features import LayoutEmbedding, NodeEncoder, SettingEncoder
from tpugraphs_polynormer.models.ranking.heads import (
    CandidateAttention,
    FusionHead,
    pool,
    pool_weights,
    softmax_weights,
)
from tpugraphs_polynormer.models.ranking.layout_sizes import sizes_in_order, tensor_dims
from tpugraphs_polynormer.models.shared_attention import pool_parts


class Encoded(NamedTuple):
    """What no candidate can change, computed once for all blocks of candidates."""

    states: tf.Tensor  # [n, dim]: the trunk's states (intermediate) or the first projection (early)
    reach: Reach | None  # with one, the states are in its order
    slot_dims: tf.Tensor | None  # [s, 3, 6], see layout_sizes.py; None where settings come without sizes
    slot_edges: Edges | None  # among slots; None without a trunk over them


class RankingModel(tf.keras.Model):
    """GraphTensor batch -> scores [G, k].

    `early` fusion: the settings of a candidate are added to the first state of its configurable nodes (tile: of every
    node), and the trunk runs on [n, k, dim]. `intermediate`: the trunk runs once per graph on [n, dim]; candidates then
    meet the states of the configurable nodes (tile: of every node), and a second, shorter trunk runs per candidate over
    the graph of slots (see config_graph.py). Settings are projected once per distinct setting.

    Early fusion of layouts keeps one state for nodes that no candidate has reached (see layers/shared_states.py),
    except under XLA and in trunks where each layer reaches every node; `frontier=False` never does: the naive
    computation, for tests.
    """

    def __init__(
        self, *, kind: str, config: ModelConfig, statistics: FeatureStatistics, frontier: bool = True, **kwargs
    ):
        super().__init__(**kwargs)
        self.kind = kind
        self.config = config
        reaches_all = config.trunk == "polynormer" and config.scheme == "local_and_global"
        self.frontier = frontier and kind == "layout" and not reaches_all
        raw = config.features == "raw"
        layout_embedding = LayoutEmbedding(dim=config.layout_dim, name="layout_embedding")
        self.node_encoder = NodeEncoder(
            mean=statistics.mean,
            std=statistics.std,
            heavy=statistics.heavy,
            opcode_dim=config.opcode_dim,
            layout_embedding=layout_embedding,
            raw=raw,
            name="nodes",
        )
        self.setting_encoder = SettingEncoder(kind=kind, layout_embedding=layout_embedding, raw=raw, name="settings")
        self.input_dropout = Dropout(rate=config.input_dropout_rate)
        self.trunk = build_ranking_trunk(config, kind)
        early = config.fusion == "early"
        self.choice_dim = self.trunk.join_dim * (1 + self.trunk.num_rejoins) if early else config.hidden_dim
        num_roles = 1 if kind == "layout" else NUM_TILE_SLOTS
        self.node_projection = Linear(self.trunk.join_dim, name="node_projection")
        self.setting_projection = Linear(self.choice_dim * num_roles, use_bias=False, name="setting_projection")
        self.knows_sizes = kind == "layout" and not raw
        if self.knows_sizes:
            self.size_projection = Linear(self.choice_dim, use_bias=False, name="size_projection")
        self.slot_trunk = None
        if not early:
            if config.num_slot_layers:
                self.slot_trunk = build_slot_trunk(config, kind)
            self.fusion = FusionHead(
                dim=config.hidden_dim,
                num_layers=config.num_fusion_layers,
                dropout_rate=config.dropout_rate,
                name="fusion",
            )
        if config.cross_candidates:
            self.candidate_attention = CandidateAttention(
                dim=config.hidden_dim, num_heads=config.num_heads, name="candidate_attention"
            )
        if config.readout == "weighted":
            self.readout_logits = Linear(config.hidden_dim, name="readout_logits")
        self.hidden = Linear(config.hidden_dim, activation="relu", name="hidden")
        self.output_layer = Linear(1, use_bias=False, dtype="float32", name="output")

    @property
    def phased_trunks(self) -> list[Polynormer]:
        """The trunks that have a local and a global phase."""
        trunks = (self.trunk, self.slot_trunk)
        return [trunk for trunk in trunks if isinstance(trunk, Polynormer) and trunk.global_layers]

    def call(self, graph: tfgnn.GraphTensor, training: bool | None = None) -> tf.Tensor:
        """Scores [G, k] float32; masked candidates' scores mean nothing."""
        batch = read_batch(graph)
        return self.score(batch, self.encode(batch, training=training), training=training)

    def encode(self, batch: Batch, *, training: bool | None = None) -> Encoded:
        """What no candidate can change."""
        reach, features, opcodes = None, batch.features, batch.opcodes
        if self.config.fusion == "early" and self.frontier and not in_xla():
            reach = self._find_reach(batch)
            features, opcodes = tf.gather(features, reach.order), tf.gather(opcodes, reach.order)
        inputs = self.node_encoder(features, opcodes)
        states = self.node_projection(self.input_dropout(inputs, training=training))
        if self.config.fusion != "early":
            states = self._run_trunk(batch, batch.edges, self.trunk.begin(states, batch.edges), training)
        operands = batch.producers, batch.consumers
        dims = tensor_dims(batch.features, batch.slot_ops, *operands) if self.knows_sizes else None
        return Encoded(states, reach, dims, None if self.slot_trunk is None else self._connect_slots(batch))

    def score(self, batch: Batch, encoded: Encoded, *, training: bool | None = None) -> tf.Tensor:
        """Scores of the batch's candidates, given `encode` of its graphs. Under XLA, `encode` must have been so too."""
        if encoded.reach is not None and in_xla():
            raise ValueError("the graphs were encoded outside XLA, with a frontier; encode them where they are scored")
        choices = self._project_settings(batch, encoded.slot_dims)
        if encoded.reach is not None:
            pooled = self._score_frontier(batch, encoded.states, encoded.reach, choices, training)
        elif self.config.fusion == "early":
            states = self._run_naively(batch, encoded.states, choices, training)
            weights = self._op_weights(batch, encoded.states, batch.slot_ops, batch.op_graphs, batch.op_mask)
            pooled = pool(states, weights, batch.op_graphs, batch.num_graphs)
        else:
            pooled = self._fuse(batch, encoded, choices, training)
        if self.config.cross_candidates:
            pooled = self.candidate_attention(pooled, batch.candidate_mask)
        return tf.cast(self.output_layer(self.hidden(pooled))[..., 0], tf.float32)

    def _run_trunk(
        self,
        batch: Batch,
        edges: Edges | Frontier,
        states: tf.Tensor,
        training: bool | None,
        choices: Sequence[tf.Tensor] = (),
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """`choices`: one for each of the trunk's layers that sees them again."""
        again = {"choices": list(choices)} if choices else {}
        return self.trunk(
            states,
            edges,
            component_ids=batch.op_graphs,
            num_components=batch.num_graphs,
            node_mask=batch.op_mask,
            training=training,
            **again,
        )

    def _project_settings(self, batch: Batch, slot_dims: tf.Tensor | None) -> tf.Tensor:
        """Layout: [s, k, choice_dim], what each slot is set to. Tile: [G, k, choice_dim], all bounds of a candidate."""
        projected = self.setting_projection(self.setting_encoder(batch.settings))
        if self.kind == "layout":
            choices = tf.gather(projected, batch.codes)
            if slot_dims is not None:
                sizes = sizes_in_order(slot_dims, batch.settings, batch.codes)
                choices += self.size_projection(tf.cast(sizes, choices.dtype))
            return choices
        roles = tf.minimum(batch.slot_roles, NUM_TILE_SLOTS - 1)
        table = tf.reshape(projected, [-1, self.choice_dim])  # [v * roles, choice_dim]
        chosen = tf.gather(table, batch.codes * NUM_TILE_SLOTS + roles[:, tf.newaxis])
        return tf.math.unsorted_segment_sum(chosen, batch.slot_graphs, batch.num_graphs)

    def _run_naively(self, batch: Batch, encoded: tf.Tensor, choices: tf.Tensor, training: bool | None) -> tf.Tensor:
        """Early fusion with a state of every node for every candidate: [n, k, dim]."""
        if self.kind == "tile":
            states = self.trunk.begin(encoded, batch.edges, choices, batch.op_graphs)
            return self._run_trunk(batch, batch.edges, states, training)
        # At the ops that slots decide; 0 at the others.
        placed = tf.math.unsorted_segment_sum(choices, batch.slot_ops, batch.edges.num_nodes)
        first, *others = tf.split(placed, 1 + self.trunk.num_rejoins, -1)
        states = self.trunk.activation(encoded[:, tf.newaxis] + first)
        return self._run_trunk(batch, batch.edges, states, training, others)

    def _find_reach(self, batch: Batch) -> Reach:
        decided = tf.math.unsorted_segment_sum(
            tf.cast(batch.slot_mask, tf.int32), batch.slot_ops, batch.edges.num_nodes
        )
        return find_reach(
            batch.edges, decided > 0, num_hops=self.trunk.num_hops, graphs=batch.op_graphs, node_mask=batch.op_mask
        )

    def _score_frontier(
        self, batch: Batch, encoded: tf.Tensor, reach: Reach, choices: tf.Tensor, training: bool | None
    ) -> tf.Tensor:
        """What the naive computation gives, [G, k, dim], with the states of a Frontier."""
        frontier = Frontier(reach, num_candidates=choices.shape[1] or tf.shape(choices)[1])
        num_starts = reach.sizes[0]
        slot_ops = tf.gather(reach.place, batch.slot_ops)
        placed = tf.math.unsorted_segment_sum(choices, tf.where(batch.slot_mask, slot_ops, -1), num_starts)  # -1: none
        first, *others = tf.split(placed, 1 + self.trunk.num_rejoins, -1)
        starts, rest = split_at(encoded, num_starts)
        varying = tf.reshape(starts[:, tf.newaxis] + first, [-1, encoded.shape[-1]])
        rows = self.trunk.activation(tf.concat([varying, rest], 0))
        parts = self._run_trunk(batch, frontier, rows, training, others)
        weights = self._op_weights(batch, encoded, slot_ops, reach.graphs, reach.node_mask)
        return pool_parts(parts, frontier, weights, batch.num_graphs)

    def _op_weights(
        self, batch: Batch, encoded: tf.Tensor, slot_ops: tf.Tensor, op_graphs: tf.Tensor, op_mask: tf.Tensor
    ) -> tf.Tensor:
        """[n, 1 or dim] float32, in the order of `encoded`: an op's part in its graph's vector (early fusion)."""
        if self.config.readout == "configurable" and self.kind == "layout":
            weights = pool_weights(batch.slot_graphs, batch.slot_mask, batch.num_graphs, "sum")
            return tf.math.unsorted_segment_sum(weights, slot_ops, batch.edges.num_nodes)
        return self._weigh(encoded, op_graphs, op_mask, batch.num_graphs)

    def _weigh(self, states: tf.Tensor, graphs: tf.Tensor, mask: tf.Tensor, num_graphs: int | tf.Tensor) -> tf.Tensor:
        """[s, 1 or dim] float32: what nodes with the states [s, dim], which no candidate changes, count."""
        if self.config.readout == "weighted":
            return softmax_weights(self.readout_logits(states), graphs, mask, num_graphs)
        return pool_weights(graphs, mask, num_graphs, "mean" if self.config.readout == "mean" else "sum")

    def _fuse(self, batch: Batch, encoded: Encoded, choices: tf.Tensor, training: bool | None) -> tf.Tensor:
        """The trunk's states and the choices -> [G, k, dim]."""
        if self.kind == "layout":
            slots, graphs, mask = tf.gather(encoded.states, batch.slot_ops), batch.slot_graphs, batch.slot_mask
        else:
            slots, graphs, mask = encoded.states, batch.op_graphs, batch.op_mask
            choices = tf.gather(choices, batch.op_graphs)
        states = self.fusion(slots, choices, training=training)
        if self.slot_trunk is not None:
            states += self.slot_trunk(
                states,
                encoded.slot_edges,
                component_ids=graphs,
                num_components=batch.num_graphs,
                node_mask=mask,
                training=training,
            )
        return pool(states, self._weigh(slots, graphs, mask, batch.num_graphs), graphs, batch.num_graphs)

    def _connect_slots(self, batch: Batch) -> Edges:
        """Among what meets the candidates: slots, or (tile) all ops."""
        if self.kind == "tile":
            return batch.edges
        operands = batch.producers, batch.consumers
        origins = find_origins(batch.features, batch.opcodes, *operands, batch.slot_ops, batch.slot_mask)
        return build_slot_edges(origins, *operands, batch.slot_ops.shape[0] or tf.shape(batch.slot_ops)[0])
