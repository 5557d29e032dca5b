"""The ranking model: a program's graph and k candidates in, one score per candidate out (higher is faster)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.config.schema import RankingModelConfig
from tpugraphs_polynormer.datasets.encoding import NUM_TILE_BOUNDS
from tpugraphs_polynormer.datasets.statistics import FeatureStatistics
from tpugraphs_polynormer.layers.dense import Linear
from tpugraphs_polynormer.layers.dropout import Dropout, EdgeDropout
from tpugraphs_polynormer.layers.graph_context import CandidateGate
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.layers.ops.formulation import in_xla
from tpugraphs_polynormer.layers.registration import register
from tpugraphs_polynormer.layers.shared_states import Reach, SharedStates, find_reach, split_at
from tpugraphs_polynormer.models.encoder_registry import build_nconfig_encoder, build_ranking_encoder
from tpugraphs_polynormer.models.ranking.agreement import count_disagreements
from tpugraphs_polynormer.models.ranking.batch import Batch, unpack_batch
from tpugraphs_polynormer.models.ranking.dimensions import DimensionEncoder
from tpugraphs_polynormer.models.ranking.features import ConfigValueFeatures, LayoutEmbedding, NodeFeatures
from tpugraphs_polynormer.models.ranking.heads import (
    CandidateAttention,
    FusionHead,
    Pool,
    join_pools,
    pool,
    pool_max,
    pool_parts,
    pool_weights,
    softmax_weights,
)
from tpugraphs_polynormer.models.ranking.layout_sizes import count_elements, sizes_in_order
from tpugraphs_polynormer.models.ranking.physics import CostResidual, join_physics
from tpugraphs_polynormer.models.ranking.segments import NodeSegments, keep_within


class Encoded(NamedTuple):
    """What no candidate can change, computed once for all blocks of candidates."""

    states: tf.Tensor  # [n, dim]: the encoder's states (late) or the first projection (early)
    frozen: tf.Tensor | None  # [n, dim], `states` without gradients to the features: of nodes outside a segment
    reach: Reach | None  # with one, the states are in its order


@register
class RankingModel(tf.keras.Model):
    """GraphTensor batch -> scores [G, k].

    `early` fusion: the config values of a candidate are added to the first state of its config nodes (tile: of every
    node), and the encoder runs on [n, k, dim]. `late`: the encoder runs once per graph on [n, dim]; config values are
    then joined to the states of the config nodes (tile: of every node), and a second, shorter encoder runs per
    candidate over the graph of config nodes (datasets/config_graph.py). Each distinct config value is projected once.

    With `config.physics` the model knows what the analytic cost model says (datasets/physics.py): features of config
    nodes are projected and added to their config values, those of candidates join the pooled states. With `residual`
    the scores are a correction of the cost model's.

    Early fusion of layouts keeps one state for nodes that no candidate has reached (see layers/shared_states.py),
    except under XLA and in encoders where each layer reaches every node. `share_states=False` never does; tests compare
    the two.

    Args:
      kind: `layout` or `tile`.
      config: the encoder, and how candidates are joined to it.
      statistics: of the train split's node features, which scale them.
      share_states: see above.

    Example:
      >>> zeros, ones = [0.0] * 140, [1.0] * 140
      >>> statistics = tp.datasets.FeatureStatistics(
      ...     num_nodes=1, mean=zeros, std=ones, minimum=zeros, maximum=ones, heavy=[], constant=[], opcode_counts=[]
      ... )
      >>> model = tp.models.RankingModel(kind="layout", config=tp.RankingConfig().model, statistics=statistics)
      >>> model.phases  # model(batch) takes what tp.datasets.make_training_dataset yields
      ('local', 'global')
    """

    def __init__(
        self,
        *,
        kind: str,
        config: RankingModelConfig,
        statistics: FeatureStatistics,
        share_states: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.kind = kind
        self.config = config
        self._statistics, self._share_states = statistics, share_states
        config.check_kind(kind)
        raw = config.features == "raw"
        layout_embedding = LayoutEmbedding(
            dim=config.layout_dim, layout_features=config.layout_features, name="layout_embedding"
        )
        self.node_features = NodeFeatures(
            mean=statistics.mean,
            std=statistics.std,
            heavy=statistics.heavy,
            opcode_dim=config.opcode_dim,
            layout_embedding=layout_embedding,
            raw=raw,
            operands=config.operand_features,
            name="nodes",
        )
        self.config_value_features = ConfigValueFeatures(
            kind=kind, layout_embedding=layout_embedding, raw=raw, name="config_values"
        )
        # Without a rate there is no layer: its random state would change the initial weights that a seed gives.
        self.edge_dropout = EdgeDropout(rate=config.edge_dropout_rate) if config.edge_dropout_rate else None
        self.input_dropout = Dropout(rate=config.input_dropout_rate)
        self.encoder = build_ranking_encoder(config, kind)
        self.share_states = share_states and kind == "layout" and not self.encoder.needs_all_states
        early, crosses_nodes = config.fusion == "early", config.cross_candidates == "nodes"
        self.config_dim = self.encoder.join_dim * (1 + self.encoder.num_rejoins) if early else config.hidden_dim
        num_roles = 1 if kind == "layout" else NUM_TILE_BOUNDS
        self.node_projection = Linear(self.encoder.join_dim, name="node_projection")
        self.config_value_projection = Linear(
            self.config_dim * num_roles, use_bias=False, name="config_value_projection"
        )
        self.knows_sizes = kind == "layout" and not raw
        if self.knows_sizes:
            self.size_projection = Linear(self.config_dim, use_bias=False, name="size_projection")
        self.knows_node_physics = kind == "layout" and config.physics != "none"
        if self.knows_node_physics:
            self.physics_projection = Linear(self.config_dim, use_bias=False, name="physics_projection")
        self.agreement_projection = None
        if config.layout_agreement:
            self.agreement_projection = Linear(self.config_dim, use_bias=False, name="agreement_projection")
        self.residual = CostResidual(name="residual") if config.physics == "residual" else None
        self.dimension_encoder = None
        if config.layout_features == "dimensions":
            self.dimension_encoder = DimensionEncoder(
                dim=max(1, config.hidden_dim // 2), units=self.config_dim, name="dimensions"
            )
        self.nconfig_encoder = None
        if not early:
            if config.num_nconfig_layers:
                self.nconfig_encoder = build_nconfig_encoder(config, kind)
            self.fusion = FusionHead(
                dim=config.hidden_dim,
                num_layers=config.num_fusion_layers,
                dropout_rate=config.dropout_rate,
                name="fusion",
            )
        self.fusion_gate = CandidateGate(name="fusion_gate") if crosses_nodes and not early else None
        if config.cross_candidates == "pooled":
            self.candidate_attention = CandidateAttention(
                dim=config.hidden_dim, num_heads=config.num_heads, name="candidate_attention"
            )
        if config.readout == "weighted":
            self.readout_logits = Linear(config.hidden_dim, name="readout_logits")
        self.size_logits = None
        if config.readout_sizes:
            start = {"kernel_initializer": "zeros", "dtype": "float32"}
            self.size_logits = Linear(config.hidden_dim, use_bias=False, name="size_logits", **start)
        self.segments = NodeSegments(num_nodes=config.segment_nodes) if config.segment_nodes else None
        self.hidden_layers = self._create_hidden_layers()
        # A correction starts at 0: before it is trained, the model ranks as the cost model does.
        start = {"kernel_initializer": "zeros"} if self.residual is not None else {}
        self.output_layer = Linear(1, use_bias=False, dtype="float32", name="output", **start)

    def get_config(self) -> dict:
        own = {"kind": self.kind, "share_states": self._share_states}
        return {"name": self.name, **own, "config": asdict(self.config), "statistics": asdict(self._statistics)}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> RankingModel:
        made = {
            "config": RankingModelConfig(**config["config"]),
            "statistics": FeatureStatistics(**config["statistics"]),
        }
        return cls(**{**config, **made})

    def _create_hidden_layers(self) -> list[Linear]:
        """What follows the pools: one dense layer, or those of the official baseline of the kind."""
        dim = self.config.hidden_dim
        if self.config.readout != "official":
            return [Linear(dim, activation="relu", name="hidden")]
        num_layers, use_bias = (1, False) if self.kind == "layout" else (2, True)
        arguments = {"activation": tf.nn.leaky_relu, "use_bias": use_bias}
        return [Linear(dim, **arguments, name=f"hidden_{i}") for i in range(num_layers)]

    @property
    def phases(self) -> tuple[str, ...]:
        """The encoder's phases, in the order of training."""
        return self.encoder.phases

    def call(self, graph: tfgnn.GraphTensor, *, phase: str | None = None, training: bool | None = None) -> tf.Tensor:
        """Scores [G, k] float32, higher is faster; masked candidates' scores mean nothing.

        `phase` is that of the encoders, by default their last.
        """
        batch = unpack_batch(graph, directed=self.config.directed)
        if self.edge_dropout is not None:
            batch = batch._replace(edges=self.edge_dropout.thin(batch.edges, training=training))
        encoded = self.encode(batch, phase=phase, training=training)
        return self.score(batch, encoded, phase=phase, training=training)

    def encode(
        self, batch: Batch, *, phase: str | None = None, training: bool | None = None, share_states: bool = True
    ) -> Encoded:
        """What no candidate can change; with `share_states=False` only `states`, whose shape is static."""
        reach, nodes = None, (batch.features, batch.opcodes)
        if self.config.operand_features:
            nodes += (batch.operands,)
        in_segments = self.segments is not None and bool(training)
        shares = self.share_states and share_states and not in_xla() and not in_segments
        if self.config.fusion == "early" and shares:
            reach = self._find_reach(batch)
            nodes = tuple(tf.gather(each, reach.order) for each in nodes)
        inputs = self.input_dropout(self.node_features(*nodes), training=training)
        states = self.node_projection(inputs)
        frozen = self.node_projection(tf.stop_gradient(inputs)) if in_segments else None
        if self.config.fusion != "early":
            states = self.encoder(
                self.encoder.begin(states, batch.edges),
                batch.edges,
                graphs=batch.op_graphs,
                phase=phase,
                training=training,
            )
        return Encoded(states, frozen, reach)

    def score(
        self, batch: Batch, encoded: Encoded, *, phase: str | None = None, training: bool | None = None
    ) -> tf.Tensor:
        """Scores of the batch's candidates, given `encode` of its graphs. Under XLA, `encode` must have been so too."""
        if self.config.physics != "none" and batch.physics is None:
            raise ValueError("the model reads physics, which the batch does not have; make it with physics=True")
        if encoded.reach is not None and in_xla():
            raise ValueError(
                "the graphs were encoded outside XLA, with shared states; encode them where they are scored"
            )
        config_states = self._project_config_values(batch)
        run = {"phase": phase, "training": training}
        if encoded.reach is not None:
            pooled = self._run_shared(batch, encoded.states, encoded.reach, config_states, run)
        elif self.config.fusion == "early":
            if encoded.frozen is not None:
                states = self._learn_from_segments(batch, encoded, config_states, run)
            else:
                states = self._run_naively(batch, encoded.states, config_states, run)
            pools = self._pools(batch, encoded.states, batch.nconfig_ops, batch.op_graphs)
            pooled = join_pools((pool(states, each.weights, batch.op_graphs) for each in pools), pools)
            pooled = self._add_maxima(
                pooled, [states], [self._counted(batch, batch.nconfig_ops, batch.op_mask)], [batch.op_graphs]
            )
        else:
            pooled = self._fuse(batch, encoded, config_states, run)
        if self.config.cross_candidates == "pooled":
            pooled = self.candidate_attention(pooled, batch.candidate_mask)
        if self.config.physics != "none":
            pooled = join_physics(pooled, batch.physics)
        for layer in self.hidden_layers:
            pooled = layer(pooled)
        scores = -tf.cast(self.output_layer(pooled)[..., 0], tf.float32)  # the layer predicts a cost
        return scores if self.residual is None else self.residual(scores, batch.physics)

    def _project_config_values(self, batch: Batch) -> tf.Tensor:
        """Layout: [s, k, config_dim], the value of each config node. Tile: [G, k, config_dim], a candidate's bounds."""
        projected = self.config_value_projection(self.config_value_features(batch.config_values))
        if self.kind == "layout":
            config_states = tf.gather(projected, batch.codes)
            if self.knows_sizes:
                given = batch.nconfig_dims, batch.config_values, batch.codes
                sizes = sizes_in_order(*given, size_features=self.config.size_features)
                config_states += self.size_projection(tf.cast(sizes, config_states.dtype))
                if self.dimension_encoder is not None:
                    config_states += self.dimension_encoder(*given)
            if self.agreement_projection is not None:
                found = count_disagreements(batch)
                config_states += self.agreement_projection(tf.cast(found, config_states.dtype))
            if self.knows_node_physics:
                config_states += self.physics_projection(tf.cast(batch.nconfig_physics, config_states.dtype))
            return config_states
        roles = tf.minimum(batch.nconfig_roles, NUM_TILE_BOUNDS - 1)
        table = tf.reshape(projected, [-1, self.config_dim])  # [v * roles, config_dim]
        chosen = tf.gather(table, batch.codes * NUM_TILE_BOUNDS + roles[:, tf.newaxis])
        return tf.math.unsorted_segment_sum(chosen, batch.nconfig_graph_ids, batch.num_graphs)

    def _run_naively(self, batch: Batch, encoded: tf.Tensor, config_states: tf.Tensor, run: dict) -> tf.Tensor:
        """Early fusion with a state of every node for every candidate: [n, k, dim]."""
        again = {}
        if self.kind == "tile":
            states = self.encoder.begin(encoded, batch.edges, config_states, batch.op_graph_ids)
        else:
            # At the ops that config nodes decide; 0 at the others.
            deciding = tf.where(batch.nconfig_mask, batch.nconfig_ops, -1)  # -1: nowhere
            placed = tf.math.unsorted_segment_sum(config_states, deciding, batch.edges.num_nodes)
            first, again = self._split_rejoins(placed)
            states = self.encoder.activation(encoded[:, tf.newaxis] + first)
        return self.encoder(states, batch.edges, graphs=batch.op_graphs, **again, **run)

    def _learn_from_segments(self, batch: Batch, encoded: Encoded, config_states: tf.Tensor, run: dict) -> tf.Tensor:
        """States [n, k, dim]: of a drawn segment of each graph, computed without the rest, and of the others."""
        others = self._run_naively(batch, encoded.frozen, config_states, run)
        selected = self.segments(batch.op_graphs)
        segment = batch._replace(
            edges=keep_within(batch.edges, selected),
            op_mask=batch.op_mask & selected,
            nconfig_mask=batch.nconfig_mask & tf.gather(selected, batch.nconfig_ops),
        )
        states = self._run_naively(segment, encoded.states, config_states, run)
        return tf.where(selected[:, tf.newaxis, tf.newaxis], states, others)

    def _split_rejoins(self, placed: tf.Tensor) -> tuple[tf.Tensor, dict]:
        """The config states of the first states, and those that the encoder's layers see again, as its argument."""
        first, *others = tf.split(placed, 1 + self.encoder.num_rejoins, -1)
        return first, {"config_states": others} if others else {}

    def _find_reach(self, batch: Batch) -> Reach:
        decided = tf.math.unsorted_segment_sum(
            tf.cast(batch.nconfig_mask, tf.int32), batch.nconfig_ops, batch.edges.num_nodes
        )
        return find_reach(batch.edges, decided > 0, num_hops=self.encoder.num_hops, graphs=batch.op_graphs)

    def _run_shared(
        self, batch: Batch, encoded: tf.Tensor, reach: Reach, config_states: tf.Tensor, run: dict
    ) -> tf.Tensor:
        """What the naive computation gives, pooled to [G, k, dim], by way of SharedStates."""
        near = SharedStates(reach, num_candidates=config_states.shape[1] or tf.shape(config_states)[1])
        num_starts = reach.sizes[0]
        nconfig_ops = tf.gather(reach.position, batch.nconfig_ops)
        starts_of = tf.where(batch.nconfig_mask, nconfig_ops, -1)  # -1: none
        placed = tf.math.unsorted_segment_sum(config_states, starts_of, num_starts)
        first, again = self._split_rejoins(placed)
        starts, rest = split_at(encoded, num_starts)
        varying = tf.reshape(starts[:, tf.newaxis] + first, [-1, encoded.shape[-1]])
        rows = self.encoder.activation(tf.concat([varying, rest], 0))
        parts = self.encoder(rows, near, graphs=batch.op_graphs, **again, **run)
        op_graphs = Graphs(reach.graph_ids, batch.num_graphs, reach.node_mask)
        pools, part_graphs = self._pools(batch, encoded, nconfig_ops, op_graphs), near.part_graphs(batch.op_graphs)
        pooled = join_pools((pool_parts(parts, near.split_nodes(each.weights), part_graphs) for each in pools), pools)
        counted = near.split_nodes(self._counted(batch, nconfig_ops, reach.node_mask))
        return self._add_maxima(pooled, parts, counted, part_graphs)

    def _pools(self, batch: Batch, encoded: tf.Tensor, nconfig_ops: tf.Tensor, graphs: Graphs) -> list[Pool]:
        """What makes a graph's vector of its ops (early fusion); weights in the order of `encoded`."""
        is_layout = self.kind == "layout"
        if self.config.readout == "config_nodes" and is_layout:
            weights = pool_weights(batch.nconfig_graphs, "sum")
            return [Pool(tf.math.unsorted_segment_sum(weights, nconfig_ops, batch.edges.num_nodes))]
        if self.config.readout != "official":
            return [Pool(self._weigh(encoded, graphs))]
        real = tf.cast(graphs.mask, tf.float32)[:, tf.newaxis]
        if not is_layout:
            return [Pool(real)]
        decides = tf.cast(batch.nconfig_mask, tf.float32)[:, tf.newaxis]
        decided = tf.math.unsorted_segment_sum(decides, nconfig_ops, batch.edges.num_nodes)
        return [Pool(pool_weights(graphs, "mean")), Pool(real, unit_length=True), Pool(decided, unit_length=True)]

    def _counted(self, batch: Batch, nconfig_ops: tf.Tensor, op_mask: tf.Tensor) -> tf.Tensor:
        """[n] bool: the ops that the readout is over (early fusion), in the order of `op_mask`."""
        if self.config.readout != "config_nodes" or self.kind != "layout":
            return op_mask
        decides = tf.cast(batch.nconfig_mask, tf.int32)
        return tf.math.unsorted_segment_sum(decides, nconfig_ops, batch.edges.num_nodes) > 0

    def _add_maxima(self, pooled: tf.Tensor, parts: Sequence, counted: Sequence, graphs: Sequence) -> tf.Tensor:
        """The pooled states, with `max_readout` beside them the maxima of `pool_max`: [G, k, dim or 2 dim]."""
        if not self.config.max_readout:
            return pooled
        return tf.concat([pooled, pool_max(parts, counted, graphs)], -1)

    def _weigh(self, states: tf.Tensor, graphs: Graphs, dims: tf.Tensor | None = None) -> tf.Tensor:
        """[s, 1 or dim] float32: what nodes with the states [s, dim], which no candidate changes, count.

        `dims` [s, 3, 6] are those of their tensors, which `readout_sizes` reads.
        """
        if self.config.readout == "weighted":
            logits = tf.cast(self.readout_logits(states), tf.float32)
            return softmax_weights(logits if dims is None else logits + self.size_logits(count_elements(dims)), graphs)
        return pool_weights(graphs, "mean" if self.config.readout == "mean" else "sum")

    def _fuse(self, batch: Batch, encoded: Encoded, config_states: tf.Tensor, run: dict) -> tf.Tensor:
        """The encoder's states and the config_states -> [G, k, dim]."""
        if self.kind == "layout":
            nodes, graphs, edges = (
                tf.gather(encoded.states, batch.nconfig_ops),
                batch.nconfig_graphs,
                batch.nconfig_edges,
            )
        else:
            nodes, graphs, edges = encoded.states, batch.op_graphs, batch.edges
            config_states = tf.gather(config_states, graphs.ids)
        states = self.fusion(nodes, config_states, training=run["training"])
        if self.fusion_gate is not None:
            states = self.fusion_gate(states, graphs=graphs)
        if self.nconfig_encoder is not None:
            states += self.nconfig_encoder(states, edges, graphs=graphs, **run)
        dims = None if self.size_logits is None else batch.nconfig_dims
        pooled = pool(states, self._weigh(nodes, graphs, dims), graphs)
        return self._add_maxima(pooled, [states], [graphs.mask], [graphs])
