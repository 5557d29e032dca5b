"""The HLO text reader beside XLA: jax prints one module as text and as protobuf, and XLA reads the samples itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hlo.test_text import assert_same_graph
from tests.hlo.text_samples import NEW, OLD
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.text import parse_text

jax = pytest.importorskip("jax")
xla = pytest.importorskip("jaxlib._hlo", reason="jaxlib 0.10 has the print options and the reader of HLO text here")

jnp, lax = jax.numpy, jax.lax


def convolution_gradients(images, kernel):
    def loss(images, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        hidden = lax.conv_general_dilated(
            images, kernel, (1, 2), "SAME", rhs_dilation=(2, 1), dimension_numbers=numbers
        )
        return lax.reduce_window(hidden, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 1, 1), "SAME").sum()

    return jax.grad(loss, (0, 1))(images, kernel)


def grouped_convolutions(images, kernel):
    numbers = {"dimension_numbers": ("NCHW", "OIHW", "NCHW")}
    by_feature = lax.conv_general_dilated(images, kernel, (1, 1), "VALID", feature_group_count=2, **numbers)
    by_batch = lax.conv_general_dilated(
        images, kernel[:, [0, 1, 0, 1]], (1, 1), "VALID", batch_group_count=2, **numbers
    )
    return by_feature, by_batch


def loop_gradients(states, weights):
    def loss(states, weights):
        step = lambda carry, each: (jnp.tanh(carry @ weights + each), carry.sum())  # noqa: E731
        return lax.scan(step, states[0], states)[1].sum() + lax.fori_loop(0, 3, lambda _, x: x * 2, states.sum())

    return jax.grad(loss, (0, 1))(states, weights)


def gather_and_scatter(table, rows):
    taken = jnp.take(table, rows, axis=1) + table.at[rows].add(1.0)[:, : len(rows)]
    return taken, lax.dynamic_slice(table, (rows[0], rows[1]), (2, 2)), lax.dynamic_update_slice(table, taken, (1, 0))


def batched_dot(left, right):
    return jnp.einsum("bij,bjk->bik", left, right), lax.dot_general(left, right, (((1,), (2,)), ((0,), (0,))))


def random_numbers(key):
    return jax.random.normal(key, (3, 4)), lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (4, 5))


def branches(flag, values):
    chosen = lax.cond(flag, lambda x: x * 2, lambda x: jnp.sort(x)[::-1], values)
    return chosen, lax.switch(jnp.int32(values[0]), [jnp.sin, jnp.cos, jnp.tan], values)


def half_precision(values):
    padded = lax.pad(values.astype(jnp.bfloat16), jnp.bfloat16(0), [(1, 2, 0), (-1, 0, 3)])
    return padded[1:3, ::2].T, values.astype(jnp.float8_e4m3fn), values.astype(jnp.int4)


def custom_calls(matrix):
    return jnp.linalg.cholesky(matrix), jnp.linalg.svd(matrix), jnp.fft.fft(matrix), lax.top_k(matrix, 2)


def many_kinds(values):
    table = jnp.arange(24).reshape(2, 3, 4) + jnp.array([[[1, -2, 3, 4]]])
    total = jnp.argmax(values, 1), lax.cumsum(values), lax.reduce_precision(values, 5, 10), lax.clamp(0.0, values, 1.0)
    return table, total, lax.optimization_barrier((values, values)), jnp.concatenate([values, values], 1)


PROGRAMS = {
    convolution_gradients: [(2, 8, 8, 3), (3, 3, 3, 4)],
    grouped_convolutions: [(4, 4, 8, 8), (6, 2, 3, 3)],
    loop_gradients: [(4, 3, 5), (5, 5)],
    gather_and_scatter: [(6, 6), ((6,), "int32")],
    batched_dot: [(2, 4, 4), (2, 4, 4)],
    random_numbers: [((2,), "uint32")],
    branches: [((), "bool"), (5,)],
    half_precision: [(4, 5)],
    custom_calls: [(4, 4)],
    many_kinds: [(2, 3)],
}


def lower(function):
    shapes = [each if each and isinstance(each[-1], str) else (each, "float32") for each in PROGRAMS[function]]
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, kind) for shape, kind in shapes))


def print_options():
    """The texts that XLA can print of a module: as dumps are, and as older versions were."""
    plain, short = xla.HloPrintOptions(), xla.HloPrintOptions.short_parsable()
    old = xla.HloPrintOptions()
    old.print_operand_shape = old.print_large_constants = True
    bare = xla.HloPrintOptions()
    bare.print_percent = bare.print_metadata = bare.print_program_shape = bare.print_backend_config = False
    return plain, short, old, bare


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_text_and_protobuf_of_a_lowered_program_are_equal(function):
    printed = lower(function).compiler_ir("hlo").get_hlo_module()
    expected = parse_module(printed.as_serialized_hlo_module_proto())
    assert_same_graph(parse_text(printed.to_string()), expected)
    for options in print_options():
        found = parse_text(printed.to_string(options))
        assert_same_graph(found, expected)
        assert [each.name for each in found.computations] == [each.name for each in expected.computations]


def test_a_text_without_layouts_has_the_other_features():
    printed = lower(half_precision).compiler_ir("hlo").get_hlo_module()
    options = xla.HloPrintOptions()
    options.include_layout_in_shapes = False
    found = featurize_module(parse_text(printed.to_string(options))).node_feat
    expected = featurize_module(parse_module(printed.as_serialized_hlo_module_proto())).node_feat
    assert (found[:, :134] == expected[:, :134]).all()
    transposed = (found != expected).any(axis=1)  # the text is silent, so the last dimension is presumed to be minor
    assert found[transposed, 134:136].tolist() == [[1, 0]] and expected[transposed, 134:136].tolist() == [[0, 1]]


def sort_computations(module: Module) -> Module:
    """The module with its computations in the order of their names."""
    return replace(module, computations=tuple(sorted(module.computations, key=lambda each: each.name)))


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_text_and_protobuf_of_a_compiled_program_are_equal_up_to_the_order_of_computations(function):
    """XLA prints computations in another order than it stores them; instructions are put into the stored order."""
    (printed,) = lower(function).compile().runtime_executable().hlo_modules()
    text = printed.to_string()
    assert "is_scheduled=true" in text
    expected = parse_module(printed.as_serialized_hlo_module_proto())
    assert_same_graph(sort_computations(parse_text(text)), sort_computations(expected))


def test_tensorflows_xla_prints_what_it_stores():
    """The XLA in TensorFlow is another version than the one in jaxlib."""
    tf = pytest.importorskip("tensorflow")

    @tf.function(jit_compile=True)
    def step(images, kernel, weights):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            hidden = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(images, kernel, 2, "SAME")), 2, 2, "VALID")
            logits = tf.reshape(hidden, [8, -1]) @ weights
            loss = (
                tf.reduce_mean(tf.nn.log_softmax(logits))
                + tf.while_loop(lambda i: i < 9.0, lambda i: i * 2.0, [1.0])[0]
            )
        return tape.gradient(loss, kernel), tf.random.stateless_uniform([3], [1, 2])

    inputs = tf.ones((8, 16, 16, 3)), tf.ones((3, 3, 3, 8)), tf.ones((128, 5))
    describe = step.experimental_get_compiler_ir(*inputs)
    lowered, compiled = (parse_text(describe(stage=stage)) for stage in ("hlo", "optimized_hlo"))
    assert_same_graph(lowered, parse_module(describe(stage="hlo_serialized")))
    stored = parse_module(describe(stage="optimized_hlo_serialized"))
    assert_same_graph(sort_computations(compiled), sort_computations(stored))


@pytest.mark.parametrize("text", [OLD, NEW], ids=["old", "new"])
def test_xla_reads_the_samples_in_the_same_way(text):
    expected = parse_module(xla.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    # XLA stores what it has read in its own order, which is that of a scheduled module
    scheduled = text.replace("HloModule ", "HloModule x, is_scheduled=true, name=", 1).replace(
        "is_scheduled=false", "a=b"
    )
    assert_same_graph(parse_text(scheduled), expected)


def test_inlined_computations_are_read_as_xla_reads_them():
    text = lower(branches).compiler_ir("hlo").get_hlo_module().to_string(xla.HloPrintOptions.canonical())
    assert "branch_computations={\n" in text
    assert_same_graph(parse_text(text), parse_module(xla.hlo_module_from_text(text).as_serialized_hlo_module_proto()))
