"""XLA itself parses, verifies and compiles generated programs. Needs the extra tpu-compiler."""

import numpy as np
import pytest

from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.writer import serialize_module
from tpugraphs_polynormer.simulator.programs import FAMILIES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES

pytestmark = pytest.mark.tpu_compiler
SIZE = SCALES["tiny"].size


@pytest.fixture(scope="module")
def xla():
    return pytest.importorskip("jaxlib._hlo", reason="the extra tpu-compiler is not installed")


def written(family, seed, *, lowered):
    module = draw_program(family, SIZE, np.random.default_rng(seed), lowered=lowered)
    data = serialize_module(module)
    assert parse_module(data) == module
    return data


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_lowered_programs_are_read(xla, family):
    for seed in range(4):
        hlo = xla.HloModule.from_serialized_hlo_module_proto(written(family, seed, lowered=True))
        assert "ENTRY" in hlo.to_string()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_programs_are_valid_stablehlo_and_compile(xla, family):
    """StableHLO's verifier computes every shape itself and compares; the CPU compiler runs XLA's verifier."""
    jax = pytest.importorskip("jax")
    from jax._src.interpreters import mlir
    from jaxlib import _jax, xla_client
    from jaxlib.mlir import ir

    for seed in range(4):
        hlo = xla.HloModule.from_serialized_hlo_module_proto(written(family, seed, lowered=False))
        stable = _jax.mlir.hlo_to_stablehlo(hlo.as_serialized_hlo_module_proto())
        with mlir.make_ir_context():
            parsed = ir.Module.parse(stable)
            assert parsed.operation.verify()
    device = jax.devices("cpu")[0]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    device.client.compile_and_load(parsed, _jax.DeviceList((device,)), options)
