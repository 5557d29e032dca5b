"""The experiment's config: every setting, its one default and its one-line description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpugraphs_polynormer.catalog import BENCHMARKS, COLLECTIONS
from tpugraphs_polynormer.settings import ConfigError, read_config, section, setting


@dataclass(frozen=True)
class DataConfig:
    """What is fed to the model."""

    collection: str = setting("layout:xla:random", "TpuGraphs collection to rank", choices=tuple(COLLECTIONS))
    benchmark: str = setting("minesweeper", "data set to classify the nodes of", choices=tuple(BENCHMARKS))
    graphs_per_batch: int = setting(4, "graphs in one replica's training batch", low=1)
    candidates_per_graph: int = setting(32, "candidates drawn of each graph for a training step", low=2)
    sampling: str = setting("uniform", "how candidates are drawn", choices=("uniform", "fast"))
    fast_share: float = setting(0.5, "with sampling=fast: share drawn among the fastest", low=0, high=1)
    fast_quantile: float = setting(0.1, "with sampling=fast: which part counts as the fastest", low=0.001, high=1)
    static_shapes: bool = setting(False, "pad each batch to the manifest's sizes (TPU, XLA)")


@dataclass(frozen=True)
class ModelConfig:
    """The trunk, and for ranking how candidates meet it."""

    trunk: str = setting(
        "polynormer",
        "graph encoder",
        choices=("polynormer", "polynormer-local", "graphsage", "gcn", "gat", "mlp"),
    )
    hidden_dim: int = setting(64, "width of the node states, all heads together", low=1)
    num_heads: int = setting(8, "attention heads; divides hidden_dim", low=1)
    num_local_layers: int = setting(3, "local attention layers, or layers of a baseline", low=1)
    num_global_layers: int = setting(1, "global attention layers", low=1)
    dropout_rate: float = setting(0.0, "dropout in the local layers", low=0, high=0.95)
    global_dropout_rate: float = setting(0.0, "dropout in the global layers", low=0, high=0.95)
    input_dropout_rate: float = setting(0.0, "dropout on the input features", low=0, high=0.95)
    beta: float = setting(-1.0, "gate: -1 learns it through a sigmoid, else its (first) value", low=-1, high=1)
    local_kind: str = setting("gat", "aggregation of the local layers", choices=("gat", "gcn"))
    parametrization: str = setting("small", "the authors' small-graph or large-graph model", choices=("small", "large"))
    scheme: str = setting(
        "local_to_global", "how local and global attention meet", choices=("local_to_global", "local_and_global")
    )
    equivariance: str = setting("v1", "gate vector: ones (v1) or Fiedler vector (v2, App. J)", choices=("v1", "v2"))
    pre_layer_norm: bool = setting(False, "LayerNorm before each local layer")
    post_batch_norm: bool = setting(False, "BatchNorm after each local aggregation")
    relu: bool = setting(True, "ReLU after each layer (Polynormer-r); without it a pure polynomial")
    shared_query_key: bool = setting(True, "global attention uses one projection for queries and keys")
    formulation: str = setting("auto", "edge kernel", choices=("auto", "segments", "chunked", "unsorted"))
    recompute: bool = setting(False, "recompute local layers in the backward pass: less memory, more time")

    def __post_init__(self) -> None:
        if self.hidden_dim % self.num_heads:
            raise ConfigError(f"hidden_dim: found {self.hidden_dim}, expected a multiple of num_heads {self.num_heads}")


@dataclass(frozen=True)
class Config:
    """One experiment."""

    task: str = setting("ranking", "what is learned", choices=("ranking", "node_classification"))
    seed: int = setting(0, "seed of everything random", low=0, high=2**31 - 1)
    data: DataConfig = section(DataConfig, "what is fed to the model")
    model: ModelConfig = section(ModelConfig, "the trunk, and how candidates meet it")


def load_config(path: Path | str | None, overrides: Sequence[str] = ()) -> Config:
    """The defaults, changed by a YAML file, then by "a.b=c" overrides."""
    return read_config(Config, path, overrides)
