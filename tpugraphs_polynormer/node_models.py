"""From a config to the node classifier it describes, and what node classification cannot do with a config."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.config import Config, ModelConfig
from tpugraphs_polynormer.models.baselines import GAT, GCN, GraphSAGE
from tpugraphs_polynormer.models.node_classifier import NodeClassifier, build_polynormer_classifier
from tpugraphs_polynormer.settings import ConfigError

# The authors' recipe, which has no schedule; any other value would be silently ignored, so it is refused.
_REQUIRED = {
    "optimizer": "adam",
    "schedule": "constant",
    "warmup_steps": 0,
    "clip_norm": 0.0,
    "patience": 0,
    "precision": "float32",
    "compile": False,
}


def check_node_config(config: Config) -> None:
    """Refuses a config that node classification would not obey, naming each field and the value it needs."""
    wrong = [
        f"training.{name}={needed}" for name, needed in _REQUIRED.items() if getattr(config.training, name) != needed
    ]
    if config.task != "node_classification":
        wrong.insert(0, "task=node_classification")
    if wrong:
        raise ConfigError(f"node classification needs {', '.join(wrong)}: change the config, or add --set for each")
    if config.model.trunk == "mlp":
        raise ConfigError("model.trunk: found mlp, expected polynormer, polynormer-local, gcn, graphsage or gat")
    if config.training.epochs + config.training.local_epochs == 0:
        raise ConfigError("training.epochs and training.local_epochs are both 0: nothing to train")


def build_classifier(config: ModelConfig, *, feature_dim: int, num_classes: int, seed: int) -> NodeClassifier:
    """The classifier of a config with its first weights, both phases' layers built; it starts in the local phase."""
    tf.keras.utils.set_random_seed(seed)
    model = (
        _build_polynormer(config, num_classes) if "polynormer" in config.trunk else _build_baseline(config, num_classes)
    )
    model.build([None, feature_dim])
    return model


def _build_polynormer(config: ModelConfig, num_classes: int) -> NodeClassifier:
    large = config.parametrization == "large"
    return build_polynormer_classifier(
        num_classes=num_classes,
        num_heads=config.num_heads,
        head_dim=config.hidden_dim // config.num_heads,
        large_graph=large,
        input_dropout_rate=config.input_dropout_rate,
        dropout_rate=config.dropout_rate,
        num_local_layers=config.num_local_layers,
        num_global_layers=config.num_global_layers,
        attention="local" if config.trunk == "polynormer-local" else config.scheme,
        conv=config.local_kind,
        beta=config.beta,
        learn_beta=not large,
        pre_norm=config.pre_layer_norm,
        post_norm=config.post_batch_norm,
        relu=config.relu,
        share_query_key=config.shared_query_key,
        version=2 if config.equivariance == "v2" else 1,
        global_dropout_rate=config.global_dropout_rate,
        formulation=config.formulation,
        recompute=config.recompute,
    )


def _build_baseline(config: ModelConfig, num_classes: int) -> NodeClassifier:
    layer = {"gcn": GCN, "graphsage": GraphSAGE, "gat": GAT}[config.trunk]
    own = {"num_heads": config.num_heads} if layer is GAT else {}
    trunk = layer(
        hidden_dim=config.hidden_dim,
        num_layers=config.num_local_layers,
        dropout_rate=config.dropout_rate,
        formulation=config.formulation,
        name="trunk",
        **own,
    )
    return NodeClassifier(
        trunk=trunk,
        num_classes=num_classes,
        input_dim=None if config.parametrization == "large" else config.hidden_dim,
        input_dropout_rate=config.input_dropout_rate,
        dropout_rate=config.dropout_rate,
    )
