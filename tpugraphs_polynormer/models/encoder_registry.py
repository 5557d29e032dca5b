"""Encoders by config: the graph encoder that a ModelConfig names."""

from __future__ import annotations

from dataclasses import replace

from tpugraphs_polynormer.config.schema import ModelConfig
from tpugraphs_polynormer.layers.global_attention import BLOCK_NODES
from tpugraphs_polynormer.models.encoder import Encoder
from tpugraphs_polynormer.models.gnn import GAT, GCN, MLP, GraphSAGE
from tpugraphs_polynormer.models.polynormer import Polynormer
from tpugraphs_polynormer.models.tpugraphs_baseline import TpuGraphsLayoutBaseline, TpuGraphsTileBaseline

_OFFICIAL = {"layout": TpuGraphsLayoutBaseline, "tile": TpuGraphsTileBaseline}
_SLOT_BLOCK = 32  # programs have tens to hundreds of config nodes


def build_ranking_encoder(config: ModelConfig, kind: str) -> Encoder:
    """The encoder of a model that ranks layouts or tiles; `graphsage` is the official baseline of that kind."""
    if config.encoder != "graphsage":
        return build_encoder(config)
    begins_with_layer = kind == "tile"  # its `begin` is one
    return _OFFICIAL[kind](**_shared_arguments(config, "encoder", config.num_local_layers - begins_with_layer))


def build_nconfig_encoder(config: ModelConfig, kind: str) -> Encoder:
    """The same architecture for the graph of config nodes: with fewer layers."""
    if config.encoder == "graphsage":
        return _OFFICIAL[kind](**_shared_arguments(config, "nconfig_encoder", config.num_nconfig_layers))
    fewer = replace(config, num_local_layers=config.num_nconfig_layers)
    return build_encoder(fewer, name="nconfig_encoder", block_nodes=_SLOT_BLOCK)


def build_encoder(config: ModelConfig, name: str = "encoder", block_nodes: int = BLOCK_NODES) -> Encoder:
    """States [num_nodes, (candidates,) dim] -> [num_nodes, (candidates,) hidden_dim]; `block_nodes`: of Polynormer."""
    if config.encoder in ("polynormer", "polynormer-local"):
        return _build_polynormer(config, name, block_nodes)
    shared = _shared_arguments(config, name, config.num_local_layers)
    if config.encoder == "gat":
        return GAT(num_heads=config.num_heads, **shared)
    return {"gcn": GCN, "graphsage": GraphSAGE, "mlp": MLP}[config.encoder](**shared)


def _shared_arguments(config: ModelConfig, name: str, num_layers: int) -> dict:
    return {
        "hidden_dim": config.hidden_dim,
        "num_layers": num_layers,
        "dropout_rate": config.dropout_rate,
        "formulation": config.formulation,
        "name": name,
    }


def _build_polynormer(config: ModelConfig, name: str, block_nodes: int) -> Polynormer:
    is_local = config.encoder == "polynormer-local"
    is_large = config.parametrization == "large"
    return Polynormer(
        num_heads=config.num_heads,
        head_dim=config.hidden_dim // config.num_heads,
        num_local_layers=config.num_local_layers,
        num_global_layers=0 if is_local else config.num_global_layers,
        attention="local" if is_local else config.attention,
        conv=config.conv,
        beta=config.beta,
        learn_beta=not is_large,
        pre_norm=config.pre_norm,
        post_norm=config.post_norm,
        relu=config.relu,
        share_query_key=config.share_query_key,
        version=1 if config.equivariance == "v1" else 2,
        dropout_rate=config.dropout_rate,
        global_dropout_rate=config.global_dropout_rate,
        formulation=config.formulation,
        recompute=config.recompute,
        block_nodes=block_nodes,
        name=name,
    )
