"""HLO modules of JAX and TensorFlow functions; both libraries are optional."""

import sys

import numpy as np
import pytest

from tests.hlo.programs import check_candidates
from tpugraphs_polynormer.hlo import HloError, from_jax, from_tf
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.prelayout import find_snapshot
from tpugraphs_polynormer.hlo.sampling import draw_candidates


def opcodes(module) -> list[str]:
    return [each.opcode for computation in module.computations for each in computation.instructions]


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(HloError, match="needs JAX"):
        from_jax(abs, 1)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(HloError, match="needs TensorFlow"):
        from_tf(abs, 1)


def test_the_last_dump_before_layout_assignment_is_found(tmp_path):
    names = [
        "module_0000.jit_call.before_optimizations.hlo.pb",
        "module_0000.jit_call.0002.simplification.after_algsimp.before_cse.hlo.pb",
        "module_0000.jit_call.0011.HLO_passes_through_layout_assignment.after_cse.before_x.hlo.pb",
        "module_0000.jit_call.0012.HLO_passes_through_layout_assignment.after_layout-assignment.before_y.hlo.pb",
        "module_0000.jit_call.0013.HLO_passes_after_layout_assignment.after_fusion.before_z.hlo.pb",
        "module_0001.jit_other.0011.through.after_cse.before_x.hlo.pb",
    ]
    for name in names:
        (tmp_path / name).touch()
    assert find_snapshot(tmp_path).name == names[2]
    for name in names[1:3]:
        (tmp_path / name).unlink()
    assert find_snapshot(tmp_path) is None


def test_a_tf_function_becomes_a_module():
    tf = pytest.importorskip("tensorflow")

    @tf.function
    def dense(inputs, weights):
        return tf.nn.relu(tf.linalg.matmul(inputs, weights))

    for function in (dense, dense.python_function):
        module = from_tf(function, tf.ones((4, 5)), tf.ones((5, 6)))
        assert "dot" in opcodes(module)
        graph = featurize_module(module)
        dot = graph.node_feat[graph.node_opcode == 34][0]
        assert dot[21:29].tolist() == [4, 6, 0, 0, 0, 0, 10, 24]


@pytest.mark.parametrize("before_layout", [False, True])
def test_a_jax_training_step_becomes_a_module(before_layout):
    jax = pytest.importorskip("jax")
    if before_layout:
        pytest.importorskip("flatbuffers")

    def loss(parameters, images):
        numbers = ("NHWC", "HWIO", "NHWC")
        hidden = jax.lax.conv_general_dilated(images, parameters["kernel"], (1, 1), "SAME", dimension_numbers=numbers)
        return (jax.nn.relu(hidden).reshape(8, -1) @ parameters["weights"]).sum()

    parameters = {"kernel": np.ones((3, 3, 3, 16), np.float32), "weights": np.ones((1024, 5), np.float32)}
    images = np.ones((8, 8, 8, 3), np.float32)
    module = from_jax(jax.grad(loss), parameters, images, before_layout=before_layout)
    found = opcodes(module)
    assert found.count("convolution") == 2  # the forward pass, and the gradient of the kernel
    assert "call" not in found or not before_layout
    graph = featurize_module(module)
    assert (graph.edge_index[:, 0] > graph.edge_index[:, 1]).all()
    choices = enumerate_choices(module)
    check_candidates(choices, draw_candidates(choices, 30, seed=0, mode="consistent"))


def test_a_function_that_cannot_be_compiled_is_named(monkeypatch):
    jax = pytest.importorskip("jax")
    pytest.importorskip("flatbuffers")
    monkeypatch.setattr("tpugraphs_polynormer.hlo.from_functions.EXPORT_NAME", "somewhere_else")
    with pytest.raises(HloError, match="left no snapshot"):
        from_jax(jax.numpy.sin, np.ones(3, np.float32), before_layout=True)
