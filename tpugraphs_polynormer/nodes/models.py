"""From a config to the node classifier it describes, and what node classification cannot do with a config."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import Config, ModelConfig
from tpugraphs_polynormer.models.encoder_registry import build_encoder
from tpugraphs_polynormer.models.node_classifier import NodeClassifier

# The authors' recipe, which has no schedule; any other value would be silently ignored, so it is refused.
_REQUIRED = {
    "optimizer": "adam",
    "schedule": "constant",
    "warmup_steps": 0,
    "clip_norm": 0.0,
    "patience": 0,
    "precision": "float32",
    "jit_compile": False,
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
    if config.model.encoder == "mlp":
        raise ConfigError("model.encoder: found mlp, expected polynormer, polynormer-local, gcn, graphsage or gat")
    if config.training.epochs + config.training.local_epochs == 0:
        raise ConfigError("training.epochs and training.local_epochs are both 0: nothing to train")


def build_classifier(config: ModelConfig, *, feature_dim: int, num_classes: int, seed: int) -> NodeClassifier:
    """The classifier of a config with its first weights, both phases' layers built; it starts in the local phase."""
    tf.keras.utils.set_random_seed(seed)
    model = NodeClassifier(
        encoder=build_encoder(config),
        num_classes=num_classes,
        input_dim=None if config.parametrization == "large" else config.hidden_dim,
        input_dropout_rate=config.input_dropout_rate,
        dropout_rate=config.dropout_rate,
    )
    model.build([None, feature_dim])
    return model
