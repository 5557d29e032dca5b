"""The fields of the experiment's config, with their defaults and descriptions; one class per task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.catalog import BENCHMARKS, COLLECTIONS, find_collection
from tpugraphs_polynormer.config.loader import ConfigError, document_settings, peek_field, read_config, section, setting

_TASKS = ("ranking", "node_classification")
_ENCODERS = ("polynormer", "polynormer-local", "graphsage", "gcn", "gat")
_WITH_HEADS = ("polynormer", "polynormer-local", "gat")


def _refuse_unread(config: Any, condition: str, holds: bool, *names: str) -> None:
    """Raises ConfigError for a field without its default that is read only under a condition, if that does not hold."""
    defaults = {field.name: field.default for field in fields(config)}
    for name in names:
        if not holds and getattr(config, name) != defaults[name]:
            found = f"{name}: found {getattr(config, name)!r}, but it is read only with {condition}"
            raise ConfigError(f"{found}; set that too, or leave {name} at {defaults[name]!r}")


def _others(config: Any, *names: str) -> list[str]:
    """The fields of a config without those of these names."""
    return [field.name for field in fields(config) if field.name not in names]


@dataclass(frozen=True)
class EncoderConfig:
    """The graph encoder. A field that the encoder does not use must have its default (see models/encoder_registry)."""

    encoder: str = setting("polynormer", "graph encoder", choices=_ENCODERS)
    hidden_dim: int = setting(64, "width of the node states, all heads together", low=1)
    num_heads: int = setting(8, "attention heads; divides hidden_dim", low=1)
    num_local_layers: int = setting(3, "local attention layers, or layers of a baseline", low=1)
    num_global_layers: int = setting(1, "global attention layers", low=1)
    dropout_rate: float = setting(0.0, "dropout in the local layers", low=0, high=0.95)
    global_dropout_rate: float = setting(0.0, "dropout in the global layers", low=0, high=0.95)
    input_dropout_rate: float = setting(0.0, "dropout on the input features", low=0, high=0.95)
    edge_dropout_rate: float = setting(
        0.0, "share of the graph's edges that a training step leaves out (DropEdge)", low=0, high=0.95
    )
    beta: float = setting(-1.0, "gate: -1 learns it through a sigmoid, else its (initial) value", low=-1, high=1)
    learn_beta: bool = setting(True, "false keeps beta constant, as in the authors' model for large graphs")
    conv: str = setting("gat", "aggregation of the local layers", choices=("gat", "gcn"))
    attention: str = setting(
        "local_to_global",
        "global attention after the local layers, or both in every layer",
        choices=("local_to_global", "local_and_global"),
    )
    pre_norm: bool = setting(False, "LayerNorm before each local layer, or each layer of a baseline")
    post_norm: bool = setting(False, "BatchNorm after each local aggregation, or each convolution of a baseline")
    post_layer_norm: bool = setting(False, "LayerNorm after each convolution of a baseline, instead of BatchNorm")
    residual: bool = setting(False, "a linear map of a layer's input is added to its convolution (baselines)")
    jumping_sum: bool = setting(False, "the sum of all layers' outputs is the result, not the last one (baselines)")
    relu: bool = setting(True, "ReLU after each layer (Polynormer-r); without it a pure polynomial")
    share_query_key: bool = setting(True, "global attention uses one projection for queries and keys")
    formulation: str = setting(
        "auto", "numeric routine of sums over edges", choices=("auto", "fused", "segments", "unsorted")
    )
    recompute: bool = setting(False, "recompute cheap activations in the backward pass: less memory, more time")

    def __post_init__(self) -> None:
        if self._has_heads() and self.hidden_dim % self.num_heads:
            raise ConfigError(f"hidden_dim: found {self.hidden_dim}, expected a multiple of num_heads {self.num_heads}")
        if self.beta < 0 and not self.learn_beta:
            raise ConfigError(f"beta: found {self.beta}, expected 0 to 1 with learn_beta=false, a constant gate")
        if self.post_norm and self.post_layer_norm:
            raise ConfigError("post_layer_norm: found True, and post_norm too; set one of the two norms")

    def _has_heads(self) -> bool:
        return self.encoder in _WITH_HEADS


@dataclass(frozen=True)
class RankingModelConfig(EncoderConfig):
    """The encoder, and how candidates are joined with the graph."""

    encoder: str = setting(
        "polynormer",
        "graph encoder; none ranks by the analytic cost model alone, without training",
        choices=(*_ENCODERS, "mlp", "none"),
    )
    fusion: str = setting(
        "late",
        "candidates are joined with the nodes before the encoder (early), or with their states after it (late)",
        choices=("early", "late"),
    )
    readout: str = setting(
        "weighted",
        "how node states become one score: sum, mean, sum weighted by a learned softmax, sum over config nodes, or as "
        "in the official baselines (early fusion)",
        choices=("sum", "mean", "weighted", "config_nodes", "official"),
    )
    segment_nodes: int = setting(
        0,
        "nodes of the random segment of each graph on which a step trains, as in the official layout baseline; 0 for "
        "all nodes",
        low=0,
    )
    features: str = setting(
        "scaled", "node features scaled and embedded, or raw as in the official baselines", choices=("scaled", "raw")
    )
    opcode_dim: int = setting(16, "width of the opcode embedding", low=1)
    layout_dim: int = setting(4, "width of the embedding of one minor-to-major entry", low=1)
    num_fusion_layers: int = setting(2, "dense layers after candidates are joined with states (late fusion)", low=1)
    num_nconfig_layers: int = setting(
        2, "layers of a second encoder over neighbouring config nodes, per candidate (late fusion); 0 for none", low=0
    )
    physics: str = setting(
        "none",
        "what the analytic cost model says of a candidate: not used, features of config nodes and candidates, or also "
        "the estimate that the scores correct (residual)",
        choices=("none", "features", "residual"),
    )
    cross_candidates: str = setting(
        "none",
        "candidates of a graph see each other: once, by attention between their vectors (pooled), or after each layer "
        "that has candidates, by a softmax over them for each node and channel (nodes)",
        choices=("none", "pooled", "nodes"),
    )
    num_groupings: int = setting(4, "random groupings that inference averages over, with cross_candidates", low=1)
    graph_norm: bool = setting(False, "norm over the nodes of a graph, per channel, before each layer")
    squeeze_excite: bool = setting(False, "after each layer, a gate per channel made of the graph's mean state")
    directed: bool = setting(False, "weights of their own along and against the edges")
    readout_sizes: bool = setting(
        False,
        "the learned softmax of the readout also reads the numbers of elements of each config node's tensors (late "
        "fusion, layout collections)",
    )
    max_readout: bool = setting(False, "the maximum over nodes beside the sum of the readout")
    layout_features: str = setting(
        "order",
        "a layout as the dimension at each position (order), the position of each dimension (position), both, or the "
        "order and, for candidates, a vector of each dimension's sizes and positions, with shared weights (dimensions)",
        choices=("order", "position", "both", "dimensions"),
    )
    size_features: str = setting(
        "log",
        "sizes in the order of a layout as logarithms, or also modulo and divided by 128 and 8 (tiles)",
        choices=("log", "tiles"),
    )
    layout_agreement: bool = setting(
        False,
        "whether a candidate's layouts equal those that the program records, and in how many pairs of neighbouring "
        "config nodes they differ",
    )
    operand_features: bool = setting(
        False,
        "operand order and the contracting and batch dimensions of dots, of archives made with --operands and of "
        "programs; unknown in official archives",
    )

    def __post_init__(self) -> None:
        _refuse_unread(self, "an encoder", self.learns, *_others(self, "encoder"))
        super().__post_init__()
        crossed, official = self.cross_candidates != "none", self.readout == "official"
        if official and (self.fusion != "early" or crossed or self.max_readout):
            raise ConfigError("readout: official needs fusion=early, cross_candidates=none and max_readout=false")
        _refuse_unread(self, "fusion=early", self.fusion == "early", "segment_nodes")
        _refuse_unread(self, "fusion=late", self.fusion == "late", "num_fusion_layers", "num_nconfig_layers")
        weighs_sizes = self.fusion == "late" and self.readout == "weighted"
        _refuse_unread(self, "fusion=late and readout=weighted", weighs_sizes, "readout_sizes")
        of_layouts = ("layout_dim", "layout_features", "size_features", "layout_agreement")
        _refuse_unread(self, "features=scaled", self.features == "scaled", *of_layouts)
        _refuse_unread(self, "cross_candidates=pooled or nodes", crossed, "num_groupings")

    @property
    def learns(self) -> bool:
        """Whether there is anything to train: the cost model alone has no weights."""
        return self.encoder != "none"

    @property
    def reads_physics(self) -> bool:
        """Whether batches must have the physics of their candidates."""
        return self.physics != "none" or not self.learns

    def _has_heads(self) -> bool:
        return self.cross_candidates == "pooled" or super()._has_heads()

    def check_kind(self, kind: str) -> None:
        """Refuses a field that models of a kind of collection, `layout` or `tile`, would ignore."""
        if kind == "tile":
            _refuse_unread(self, "layout collections", self.layout_features != "dimensions", "layout_features")
            _refuse_unread(self, "layout collections", False, "size_features", "layout_agreement", "readout_sizes")


@dataclass(frozen=True)
class NodeModelConfig(EncoderConfig):
    """The encoder, and its input."""

    project_inputs: bool = setting(True, "a linear map of the features to hidden_dim; false for large graphs")
    version: int = setting(1, "gate vector: ones (1) or Fiedler vector (2, App. J)", choices=(1, 2))
    directed: bool = setting(False, "weights of their own along and against the edges, as published")


@dataclass(frozen=True)
class RankingDataConfig:
    """The data and batches of a ranking model."""

    collection: str = setting("layout:xla:random", "TpuGraphs collection to rank", choices=tuple(COLLECTIONS))
    collections: tuple[str, ...] = setting(
        (),
        "several collections of one kind to train one model on, instead of collection: a graph is as likely as any "
        "other, and validation is the mean over collections",
        choices=tuple(COLLECTIONS),
    )
    graphs_per_batch: int = setting(4, "graphs in the training batch of one replica; with batch_nodes at most", low=1)
    batch_nodes: int = setting(
        0,
        "nodes of a batch, which is filled with the next graphs until one does not fit; at least the largest graph; 0 "
        "for graphs_per_batch graphs of any size",
        low=0,
    )
    candidates_per_graph: int = setting(32, "candidates drawn from each graph for a training step", low=2)
    max_candidates: int = setting(
        0, "candidates of each train graph, chosen once by the seed, that training draws from; 0 for all", low=0
    )
    sampling: str = setting("uniform", "how candidates are drawn", choices=("uniform", "fast"))
    fast_share: float = setting(0.5, "with sampling=fast: share drawn from the fastest candidates", low=0, high=1)
    fast_quantile: float = setting(
        0.1, "with sampling=fast: share of candidates that count as the fastest", low=0.001, high=1
    )
    static_shapes: bool = setting(
        False, "pad each batch to one size, of batch_nodes or of the largest graphs (TPU, XLA)"
    )

    def __post_init__(self) -> None:
        _refuse_unread(self, "sampling=fast", self.sampling == "fast", "fast_share", "fast_quantile")
        _refuse_unread(self, "collections=[]", not self.collections, "collection")
        if self.max_candidates == 1:
            raise ConfigError("max_candidates: found 1, expected 0 for all, or at least 2: one has nothing to rank")
        repeated = sorted({name for name in self.collections if self.collections.count(name) > 1})
        if repeated:
            raise ConfigError(f"collections: found {repeated[0]} more than once, expected each once")
        kinds = {name: find_collection(name).kind for name in self.collections}
        if len(set(kinds.values())) > 1:
            found = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
            raise ConfigError(f"collections: found {found}, expected collections of one kind: train one run per kind")

    @property
    def names(self) -> tuple[str, ...]:
        """The collections to rank: those of `collections`, or `collection`."""
        return self.collections or (self.collection,)

    @property
    def kind(self) -> str:
        """`layout` or `tile`, that of all collections."""
        return find_collection(self.names[0]).kind


@dataclass(frozen=True)
class NodeDataConfig:
    """The data set of a node classifier."""

    benchmark: str = setting("minesweeper", "data set whose nodes are classified", choices=tuple(BENCHMARKS))


@dataclass(frozen=True)
class LossConfig:
    """The weights of the ranking losses, of which one of weight 0 is not computed, and how they see scores."""

    list_mle: float = setting(0.0, "ListMLE: likelihood of the true order", low=0)
    list_mle_slowest: float = setting(
        0.0, "ListMLE with the slowest candidate first, as in the official baselines", low=0
    )
    pairwise_hinge: float = setting(0.0, "pairs: hinge with margin 1", low=0)
    pairwise_logistic: float = setting(1.0, "pairs: logistic", low=0)
    pairwise_noisy: float = setting(0.0, "pairs: logistic, with the target of equal scores within the noise", low=0)
    margin: float = setting(0.0, "pairs: margin that grows with the difference of log runtimes", low=0)
    lambda_rank: float = setting(0.0, "pairs: logistic, weighted by the change of NDCG if swapped", low=0)
    approx_ndcg: float = setting(0.0, "smooth NDCG", low=0)
    mse: float = setting(0.0, "regression on log runtimes, standardized within the graph", low=0)
    relative_error: float = setting(0.0, "pairs: error of the predicted ratio of their runtimes", low=0)
    score_spread: float = setting(
        0.0, "the losses see the scores of each graph with this standard deviation; 0: as they are", low=0
    )

    def __post_init__(self) -> None:
        scaled = [name for name in ("mse", "relative_error") if getattr(self, name)]
        if scaled and self.score_spread:
            raise ConfigError(f"{' and '.join(scaled)}: the scale of scores matters; expected score_spread=0")

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each loss, by its name."""
        return {name: weight for name, weight in asdict(self).items() if name != "score_spread"}


@dataclass(frozen=True)
class TrainingConfig:
    """The training of all tasks."""

    optimizer: str = setting("adamw", "optimizer", choices=("adam", "adamw"))
    learning_rate: float = setting(1e-3, "highest learning rate", low=0)
    weight_decay: float = setting(0.0, "decoupled with adamw, L2 in the gradient with adam", low=0)
    clip_norm: float = setting(1.0, "largest norm of the gradient; 0 for no limit", low=0)
    clip_each: bool = setting(False, "clip_norm limits the gradient of each variable, not that of all together")
    ema_decay: float = setting(
        0.0,
        "decay of an exponential moving average of the weights, which is then evaluated and kept; 0 for none",
        low=0,
        high=0.99999,
    )
    schedule: str = setting("cosine", "learning rate over time", choices=("constant", "cosine"))
    warmup_steps: int = setting(50, "steps over which the learning rate rises from 0", low=0)
    epochs: int = setting(20, "epochs of the global phase, or of a model with one phase", low=0)
    local_epochs: int = setting(0, "epochs of the local phase, which comes first (Polynormer)", low=0)
    epochs_per_evaluation: int = setting(1, "epochs between evaluations", low=1)
    patience: int = setting(0, "evaluations without a better one after which training stops; 0 for never", low=0)
    checkpoint_seconds: float = setting(0.0, "shortest time between checkpoints; 0 saves each epoch", low=0)
    steps_per_execution: int = setting(10, "steps of one call from Python", low=1)
    jit_compile: bool = setting(False, "compile the training step with XLA (needs static shapes)")
    precision: str = setting("float32", "of the layers", choices=("float32", "bfloat16"))

    def __post_init__(self) -> None:
        _refuse_unread(self, "clip_norm above 0", self.clip_norm > 0, "clip_each")
        if not self.local_epochs + self.epochs:
            raise ConfigError("epochs: found 0, and local_epochs too; expected at least one epoch")


@dataclass(frozen=True)
class RankingTrainingConfig(TrainingConfig):
    """The training of a ranking model."""

    steps_per_epoch: int = setting(50, "training steps of an epoch", low=1)
    validation_candidates: int = setting(1000, "candidates of each validation graph; 0 for all", low=0)


@dataclass(frozen=True)
class NodeTrainingConfig(TrainingConfig):
    """The training of a node classifier; the defaults are those of the authors' code."""

    optimizer: str = setting("adam", "optimizer", choices=("adam", "adamw"))
    clip_norm: float = setting(0.0, "largest norm of the gradient; 0 for no limit", low=0)
    schedule: str = setting("constant", "learning rate over time", choices=("constant", "cosine"))
    warmup_steps: int = setting(0, "steps over which the learning rate rises from 0", low=0)
    steps_per_execution: int = setting(1, "steps of one call from Python", low=1)
    checkpoint_seconds: float = setting(30.0, "shortest time between checkpoints; 0 saves each epoch", low=0)
    loss: str = setting(
        "nll", "cross-entropy of the label, or of every class against the one-hot label", choices=("nll", "bce")
    )
    entropy_weight: float = setting(
        0.0, "weight of the mean entropy of predictions for all nodes outside the training split, in the loss", low=0
    )
    nodes_per_batch: int = setting(0, "nodes of a random partition per step; 0 for the whole graph", low=0)
    chunk_nodes: int = setting(0, "nodes per chunk of the evaluation, layer by layer; 0 for the whole graph", low=0)


@dataclass(frozen=True)
class RankingConfig:
    """An experiment that ranks candidates.

    Example:
      >>> tp.RankingConfig().model.fusion
      'late'
    """

    task: str = setting("ranking", "what is learned", choices=_TASKS)
    seed: int = setting(0, "seed of everything random", low=0, high=2**31 - 1)
    data: RankingDataConfig = section(RankingDataConfig, "data and batches")
    model: RankingModelConfig = section(RankingModelConfig, "the encoder, and how candidates are joined with the graph")
    loss: LossConfig = section(LossConfig, "weights of the ranking losses")
    training: RankingTrainingConfig = section(RankingTrainingConfig, "training")

    def __post_init__(self) -> None:
        if not self.model.learns:
            self._refuse_training()
        if self.training.jit_compile and not self.data.static_shapes:
            raise ConfigError("training.jit_compile: XLA needs static shapes; set data.static_shapes=true too")

    def _refuse_training(self) -> None:
        """Refuses every field of batches, loss and training: the cost model reads none."""
        read = {"data": ("collection", "collections"), "loss": (), "training": ("validation_candidates",)}
        for name, names in read.items():
            part = getattr(self, name)
            try:
                _refuse_unread(part, "an encoder, and model.encoder is none", False, *_others(part, *names))
            except ConfigError as fault:
                raise ConfigError(f"{name}.{fault}") from None


@dataclass(frozen=True)
class NodeConfig:
    """An experiment that classifies the nodes of a graph.

    Example:
      >>> tp.NodeConfig().training.optimizer
      'adam'
    """

    task: str = setting("node_classification", "what is learned", choices=_TASKS)
    seed: int = setting(0, "seed of everything random", low=0, high=2**31 - 1)
    data: NodeDataConfig = section(NodeDataConfig, "the data set")
    model: NodeModelConfig = section(NodeModelConfig, "the encoder, and its input")
    training: NodeTrainingConfig = section(NodeTrainingConfig, "training")

    def __post_init__(self) -> None:
        if self.training.jit_compile and self.training.nodes_per_batch:
            raise ConfigError("training.jit_compile: XLA needs static shapes; set training.nodes_per_batch=0 too")
        if self.model.directed and self.training.nodes_per_batch:
            raise ConfigError("model.directed: partitions have no directions; set training.nodes_per_batch=0 too")


Config = RankingConfig | NodeConfig


def load_config(path: Path | str | None, overrides: Sequence[str] = ()) -> Config:
    """The defaults of a task, changed by a YAML file, then by "a.b=c" overrides; the field `task` selects the class."""
    is_node = peek_field("task", path, overrides) == "node_classification"
    return read_config(NodeConfig if is_node else RankingConfig, path, overrides)


def document_config() -> str:
    """The content of docs/config.md."""
    return f"""# All fields of a config

Generated by `tpugraphs config docs > docs/config.md` from the dataclasses in `tpugraphs_polynormer/config/schema.py`. A
YAML file contains only what differs from these defaults; its key `task` selects one of the two tables, and a field of
the other is an error. `--set model.hidden_dim=128` changes one field on the command line; `tpugraphs config show FILE`
prints the resolved config. A field of `model` that the encoder does not use must have its default.

## Ranking (`task: ranking`)

{document_settings(RankingConfig)}

## Node classification (`task: node_classification`)

{document_settings(NodeConfig)}
"""
