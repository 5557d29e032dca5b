"""The traced training step is that of the last phase that a config trains."""

from __future__ import annotations

import pytest

from tests.node_data import make_config
from tpugraphs_polynormer.nodes.traced_step import trace_node_step


@pytest.mark.parametrize("epochs", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_config_without_global_epochs_traces_the_local_phase(epochs: int) -> None:
    module = trace_node_step(make_config("training.local_epochs=1", f"training.epochs={epochs}"))
    assert (b"global_head" in module) == bool(epochs)
    assert (b"local_head" in module) == (not epochs)
