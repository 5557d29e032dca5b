"""The forward pass in chunks equals one call of the model."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.node_data import make_config, make_dataset
from tpugraphs_polynormer.nodes.chunked_forward import ChunkedForward
from tpugraphs_polynormer.nodes.task import NodeInputs, build_classifier

LARGE = ["model.learn_beta=false", "model.beta=0.9", "model.project_inputs=false"]
TWO_GLOBAL_LAYERS = "model.num_global_layers=2"
VARIANTS = {
    "small": [TWO_GLOBAL_LAYERS],
    "pure": [TWO_GLOBAL_LAYERS, "model.relu=false", "model.share_query_key=false", "model.beta=0.4"],
    "large": [TWO_GLOBAL_LAYERS, *LARGE, "model.conv=gcn", "model.post_norm=true"],
    "norms": [TWO_GLOBAL_LAYERS, "model.pre_norm=true", "model.post_norm=true"],
    "v2": [TWO_GLOBAL_LAYERS, "model.version=2"],
    "joint": ["model.attention=local_and_global"],
    "local": ["model.encoder=polynormer-local"],
    "gcn": ["model.encoder=gcn"],
    "graphsage": ["model.encoder=graphsage"],
    "gat": ["model.encoder=gat"],
    "gcn_batch_norm": [
        "model.encoder=gcn",
        "model.residual=true",
        "model.post_norm=true",
        "model.project_inputs=false",
    ],
    "graphsage_sum": ["model.encoder=graphsage", "model.pre_norm=true", "model.jumping_sum=true"],
    "directed": ["model.directed=true", TWO_GLOBAL_LAYERS],
    "gcn_directed": ["model.encoder=gcn", "model.directed=true", "model.residual=true"],
    "graphsage_directed": ["model.encoder=graphsage", "model.directed=true"],
    "gat_layer_norm": ["model.encoder=gat", "model.residual=true", "model.post_layer_norm=true"],
}


@pytest.fixture
def _in_bfloat16():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    yield
    tf.keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_give_the_logits_of_the_whole_graph(variant: str) -> None:
    config = make_config("model.num_local_layers=2", *VARIANTS[variant])
    inputs = NodeInputs.make(make_dataset(), config)
    model = build_classifier(config.model, feature_dim=5, num_classes=3, seed=1)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        if "moving" in variable.name:  # with 0 and 1, a missing batch norm would change nothing
            low, high = (-0.5, 0.5) if "moving_mean" in variable.name else (0.5, 2.0)
            variable.assign(rng.uniform(low, high, variable.shape))
    features = inputs.dataset.features
    forward = ChunkedForward(model, inputs.edges, chunk_nodes=17, fiedler=inputs.fiedler)
    for phase in model.encoder.phases:
        whole = model(features, inputs.edges, fiedler=inputs.fiedler, phase=phase, training=False).numpy()
        np.testing.assert_allclose(forward(features, phase=phase), whole, rtol=2e-5, atol=2e-5)
        assert np.ptp(whole, axis=0).min() > 1e-3


@pytest.mark.usefixtures("_in_bfloat16")
@pytest.mark.parametrize("variant", ["small", "joint", "norms", "v2", "directed", "gat_layer_norm", "graphsage_sum"])
def test_chunks_give_them_in_bfloat16_to_its_precision(variant: str) -> None:
    config = make_config("model.num_local_layers=2", *VARIANTS[variant])
    inputs = NodeInputs.make(make_dataset(), config)
    model = build_classifier(config.model, feature_dim=5, num_classes=3, seed=1)
    features = inputs.dataset.features
    forward = ChunkedForward(model, inputs.edges, chunk_nodes=17, fiedler=inputs.fiedler)
    whole = model(features, inputs.edges, fiedler=inputs.fiedler, training=False).numpy()
    assert model.compute_dtype == "bfloat16" and whole.dtype == np.float32
    np.testing.assert_allclose(forward(features), whole, rtol=0.05, atol=0.05)
