"""Dumps of the real TPU compiler after each pass, as text and as protobuf. Needs the extra tpu-compiler."""

import subprocess
import sys

import pytest

from tests.hlo.test_text import assert_same_graph
from tests.hlo.test_text_against_xla import sort_computations
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.text import parse_text

pytestmark = pytest.mark.tpu_compiler

COMPILE = """
import os
import sys

from tpugraphs_polynormer.compiler import xla

os.environ.update(xla._ENVIRONMENT)
import numpy as np
from jax.experimental import topologies
from jaxlib import _jax, xla_client

from tests.hlo.test_text_against_xla import convolution_gradients, loop_gradients, lower

device = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
for function in (convolution_gradients, loop_gradients):
    options = xla_client.CompileOptions()
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    dumps = {"to": sys.argv[1], "hlo_as_text": True, "hlo_as_proto": True, "hlo_pass_re": ".*"}
    options.env_option_overrides = [(f"xla_dump_{name}", value) for name, value in dumps.items()]
    device.client.compile(lower(function).compiler_ir("stablehlo"), _jax.DeviceList((device,)), options)
"""


def test_text_and_protobuf_of_every_pass_are_equal_up_to_the_order_of_computations(tmp_path):
    pytest.importorskip("libtpu", reason="the extra tpu-compiler is not installed")
    subprocess.run([sys.executable, "-c", COMPILE, str(tmp_path)], check=True, capture_output=True, timeout=300)
    protobufs = sorted(tmp_path.glob("*.hlo.pb"))
    texts = [path.with_name(path.name.removesuffix(".hlo.pb") + ".txt").read_text() for path in protobufs]
    assert len(texts) > 100 and any(":T(8,128)" in text for text in texts) and "S(1)" in "".join(texts)
    for path, text in zip(protobufs, texts, strict=True):
        stored = parse_module(path.read_bytes())
        assert_same_graph(sort_computations(parse_text(text)), sort_computations(stored))
