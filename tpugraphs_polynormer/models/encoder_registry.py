"""Encoders by config: the graph encoder that an EncoderConfig names."""

from __future__ import annotations

from dataclasses import fields

from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import EncoderConfig, RankingModelConfig
from tpugraphs_polynormer.layers.global_attention import BLOCK_NODES
from tpugraphs_polynormer.layers.registration import argument_names
from tpugraphs_polynormer.models.encoder import Encoder
from tpugraphs_polynormer.models.gnn import GAT, GCN, MLP, GraphSAGE
from tpugraphs_polynormer.models.polynormer import Polynormer
from tpugraphs_polynormer.models.tpugraphs_baseline import TpuGraphsLayoutBaseline, TpuGraphsTileBaseline

_ENCODERS = {
    "polynormer": Polynormer,
    "polynormer-local": Polynormer,
    "gcn": GCN,
    "graphsage": GraphSAGE,
    "gat": GAT,
    "mlp": MLP,
}
_OFFICIAL = {"layout": TpuGraphsLayoutBaseline, "tile": TpuGraphsTileBaseline}
_NCONFIG_BLOCK = 32  # programs have tens to hundreds of config nodes
# Arguments of Polynormer that belong to layers which it has not in these forms.
_UNUSED = {
    "polynormer-local": {"attention", "num_global_layers", "global_dropout_rate", "share_query_key"},
    "local_and_global": {"num_global_layers", "global_dropout_rate", "pre_norm", "post_norm", "recompute"},
    "mlp": {"directed"},
}
# Arguments of GraphNetwork that the official baselines, `graphsage` of a ranking model, do not have.
_NOT_OFFICIAL = {"residual", "pre_norm", "post_norm", "post_layer_norm", "jumping_sum"}
_CHECKED = {field.name for field in fields(EncoderConfig)} - {"encoder", "input_dropout_rate"} | {"version", "directed"}


def build_ranking_encoder(config: RankingModelConfig, kind: str) -> Encoder:
    """The encoder of a model that ranks layouts or tiles; `graphsage` is the official baseline of that kind."""
    has_candidates = config.fusion == "early"
    if config.encoder != "graphsage":
        return build_encoder(config, has_candidates=has_candidates)
    num_layers = config.num_local_layers - (kind == "tile")  # whose `begin` is a layer
    return build_encoder(config, cls=_OFFICIAL[kind], num_layers=num_layers, has_candidates=has_candidates)


def build_nconfig_encoder(config: RankingModelConfig, kind: str) -> Encoder:
    """The same architecture for the graph of config nodes: with fewer layers."""
    cls = _OFFICIAL[kind] if config.encoder == "graphsage" else None
    changes = {"num_layers": config.num_nconfig_layers, "block_nodes": _NCONFIG_BLOCK}
    return build_encoder(config, "nconfig_encoder", cls=cls, **changes)


def build_encoder(
    config: EncoderConfig,
    name: str = "encoder",
    *,
    cls: type[Encoder] | None = None,
    num_layers: int | None = None,
    block_nodes: int = BLOCK_NODES,
    has_candidates: bool = True,
) -> Encoder:
    """The encoder of a config: states [num_nodes, (candidates,) dim] -> [num_nodes, (candidates,) hidden_dim].

    It gets those fields of the config that its constructor has; another that is not at its default is a ConfigError.

    Args:
      cls: instead of the class that the config names. num_layers: instead of its num_local_layers.
      block_nodes: see GlobalAttention. has_candidates: whether states are of candidates, which may see each other.
    """
    check_encoder(config)
    num_layers = config.num_local_layers if num_layers is None else num_layers
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    values |= {"head_dim": config.hidden_dim // config.num_heads, "block_nodes": block_nodes}
    values |= {"num_layers": num_layers, "num_local_layers": num_layers}
    values |= {} if has_candidates else {"cross_candidates": "none"}
    if config.encoder == "polynormer-local":
        values |= {"attention": "local", "num_global_layers": 0}
    cls = cls or _ENCODERS[config.encoder]
    return cls(**{argument: values[argument] for argument in set(argument_names(cls)) & values.keys()}, name=name)


def check_encoder(config: EncoderConfig) -> None:
    """Refuses a field that the config's encoder would ignore."""
    if config.encoder == "none":  # which the config itself has refused
        return
    for name, default in unread_fields(config).items():
        if getattr(config, name) != default:
            is_joint = config.encoder == "polynormer" and config.attention in _UNUSED
            form = f"attention {config.attention}" if is_joint else f"encoder {config.encoder}"
            raise ConfigError(
                f"model.{name}: found {getattr(config, name)!r}, but model.{form} has no such setting; "
                f"leave it at {default!r}, or choose another"
            )


def unread_fields(config: EncoderConfig) -> dict[str, object]:
    """The fields that the config's encoder has no use for, each with its default."""
    read = {"hidden_dim", "num_local_layers", *argument_names(_ENCODERS[config.encoder])}
    if config.encoder != "mlp":  # the model drops edges before the encoder reads them
        read.add("edge_dropout_rate")
    for form in (config.encoder, config.attention):
        read -= _UNUSED.get(form, set())
    if isinstance(config, RankingModelConfig):
        read -= _NOT_OFFICIAL if config.encoder == "graphsage" else set()
        read |= {"num_heads"} if config.cross_candidates == "pooled" else set()  # of the attention among candidates
    return {field.name: field.default for field in fields(config) if field.name in _CHECKED - read}
