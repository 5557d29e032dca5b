"""A small zoo of networks written in JAX, to be labelled by the TPU compiler: seven families with drawn sizes.

Each program is an inference or, one in three, a training step (gradients of all weights, gradient descent), in float32
or with bfloat16 activations and float32 weights. Sizes are such that the compiler takes a few seconds at most. Drawing
a program needs no JAX; lowering it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpugraphs_polynormer.errors import UserError

_LEARNING_RATE = 0.01
_TRAINING_VALUES = 2  # training steps have three times the ops: they take the first values of each size
_MOST_DRAWS = 1000  # of a program that no smaller number has
Array = Any  # jax.Array, while JAX traces
Weight = Callable[..., Array]  # the next weight of a shape


@dataclass(frozen=True)
class ZooProgram:
    """One program of the zoo: `sizes` are the numbers that its family draws."""

    family: str
    train: bool
    precision: str  # f32 or bf16
    sizes: Mapping[str, int]

    @property
    def name(self) -> str:
        """Family and sizes in one word, such as alexnet_b32_i64_w16_c10_bf16_train."""
        sizes = "_".join(f"{name}{value}" for name, value in self.sizes.items())
        return f"{self.family}_{sizes}_{self.precision}_{'train' if self.train else 'test'}"


# What each family draws: sizes, and the values that they have. b: batch, i: image side, w: width of the first layer, c:
# classes, n: layers, h: heads, s: sequence, k: kernel, t: tables, f: features of a head or table, v: vocabulary.
FAMILIES: dict[str, dict[str, tuple[int, ...]]] = {
    "alexnet": {"b": (16, 128, 8, 64), "i": (16, 24), "w": (8, 16), "k": (3, 5), "c": (10, 100)},
    "resnet": {"b": (16, 128, 8, 64), "i": (8, 16), "w": (16, 32, 64), "c": (10, 100)},
    "unet2d": {"b": (4, 64, 8, 32), "i": (8, 16), "w": (8, 16), "c": (2, 4, 20)},
    "unet3d": {"b": (2, 8, 4), "i": (4, 6), "w": (8, 12), "c": (2, 3)},
    "bert": {"b": (2, 4), "s": (16, 32), "h": (2, 4), "f": (32, 64), "v": (1000, 8000)},
    "lstm": {"b": (8, 32, 128), "s": (8, 16, 32), "w": (64, 128, 200, 256), "n": (1, 2), "c": (10, 1000)},
    "recommender": {"b": (64, 256, 512), "t": (3, 5), "f": (16, 32, 64), "w": (64, 128, 200), "n": (1, 2)},
}


def draw_zoo_program(number: int, seed: int) -> ZooProgram:
    """The program of a number: families take turns, sizes are drawn, the same seed gives the same program.

    No two numbers have the same program: one that a smaller number has is drawn again, since splits must not share any.
    """
    first, drawn = number % len(FAMILIES), set()
    family = tuple(FAMILIES)[first]
    for each in range(first, number + 1, len(FAMILIES)):
        rng = np.random.default_rng([seed, each])
        program = next((p for p in (_draw(family, rng) for _ in range(_MOST_DRAWS)) if p.name not in drawn), None)
        if program is None:
            raise UserError(
                f"the zoo has no program number {number}: found {len(drawn)} different ones of {family}; ask for at "
                f"most {each} programs"
            )
        drawn.add(program.name)
    return program


def _draw(family: str, rng: np.random.Generator) -> ZooProgram:
    train, precision = bool(rng.integers(3) == 0), ("f32", "bf16")[int(rng.integers(2))]
    sizes = {}
    for name, values in FAMILIES[family].items():
        allowed = values[:_TRAINING_VALUES] if train else values
        sizes[name] = int(allowed[int(rng.integers(len(allowed)))])
    return ZooProgram(family, train, precision, sizes)


def lower_zoo_program(program: ZooProgram) -> bytes:
    """A serialized HloModuleProto of a program, before any pass of a compiler. Imports JAX."""
    import jax
    import jax.numpy as jnp

    model = _MODELS[program.family]
    kind = {"f32": jnp.float32, "bf16": jnp.bfloat16}[program.precision]
    inputs, labels = _input_shapes(program)
    shapes: list[Any] = []

    def declare(*shape: int) -> Array:
        shapes.append(jax.ShapeDtypeStruct(shape, jnp.float32))
        return jnp.zeros(shape, kind)

    def infer(weights: Sequence[Array], *inputs: Array) -> Array:
        rest = iter(weights)
        cast = [each.astype(kind) if each.dtype == jnp.float32 else each for each in inputs]
        return model(program.sizes, lambda *shape: next(rest).astype(kind), *cast).astype(jnp.float32)

    def loss(weights: Sequence[Array], labels: Array, *inputs: Array) -> Array:
        return -jnp.mean(jax.nn.log_softmax(infer(weights, *inputs)) * labels)

    def step(weights: Sequence[Array], labels: Array, *inputs: Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, labels, *inputs)
        return [each - _LEARNING_RATE * gradient for each, gradient in zip(weights, gradients, strict=True)], value

    jax.eval_shape(lambda *given: model(program.sizes, declare, *given), *(_cast(each, kind) for each in inputs))
    traced = jax.jit(step).trace(shapes, labels, *inputs) if program.train else jax.jit(infer).trace(shapes, *inputs)
    lowered = traced.lower(lowering_platforms=("tpu",))
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def _cast(shape: Any, kind: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.ShapeDtypeStruct(shape.shape, kind) if shape.dtype == jnp.float32 else shape


def _input_shapes(program: ZooProgram) -> tuple[list[Any], Any]:
    """The shapes of the inputs, and of the labels: one row of class weights for each row of the result."""
    import jax
    import jax.numpy as jnp

    sizes, family = program.sizes, program.family
    batch, image = sizes["b"], sizes.get("i", 0)
    if family in ("alexnet", "resnet"):
        inputs, labels = [((batch, image, image, 3), jnp.float32)], (batch, sizes["c"])
    elif family == "unet2d":
        inputs, labels = [((batch, image, image, 3), jnp.float32)], (batch, image, image, sizes["c"])
    elif family == "unet3d":
        inputs, labels = [((batch, image, image, image, 1), jnp.float32)], (batch, image, image, image, sizes["c"])
    elif family == "bert":
        inputs, labels = [((batch, sizes["s"]), jnp.int32)], (batch, 2)
    elif family == "lstm":
        inputs, labels = [((sizes["s"], batch, sizes["w"]), jnp.float32)], (batch, sizes["c"])
    else:
        columns = [((batch,), jnp.int32)] * sizes["t"]
        inputs, labels = [((batch, 64), jnp.float32), *columns], (batch, 2)
    structs = [jax.ShapeDtypeStruct(*each) for each in inputs]
    return structs, jax.ShapeDtypeStruct(labels, jnp.float32)


def _conv(value: Array, weight: Weight, features: int, size: int, stride: int = 1) -> Array:
    """A convolution of one to three spatial dims with bias, padded to the same size."""
    from jax import lax

    spatial = "DHW"[-(value.ndim - 2) :]
    kernel = weight(*(size,) * len(spatial), value.shape[-1], features)
    numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    strides = (stride,) * len(spatial)
    return lax.conv_general_dilated(value, kernel, strides, "SAME", dimension_numbers=numbers) + weight(features)


def _dense(value: Array, weight: Weight, features: int) -> Array:
    return value @ weight(value.shape[-1], features) + weight(features)


def _max_pool(value: Array) -> Array:
    from jax import lax

    window = (1, *(2,) * (value.ndim - 2), 1)
    return lax.reduce_window(value, np.array(-np.inf, value.dtype), lax.max, window, window, "SAME")


def _normalize(value: Array, weight: Weight, axes: Iterable[int]) -> Array:
    """Zero mean and unit variance over axes, scaled and shifted per feature."""
    from jax import lax

    axes = tuple(axes)
    centred = value - value.mean(axes, keepdims=True)
    variance = (centred * centred).mean(axes, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * weight(value.shape[-1]) + weight(value.shape[-1])


def _alexnet(sizes: Mapping[str, int], weight: Weight, value: Array) -> Array:
    """Two convolutions, each pooled, and two dense layers."""
    import jax

    width = sizes["w"]
    value = _max_pool(jax.nn.relu(_conv(value, weight, width, sizes["k"], 2)))
    value = _max_pool(jax.nn.relu(_conv(value, weight, 2 * width, 3)))
    value = jax.nn.relu(_dense(value.reshape(len(value), -1), weight, 8 * width))
    return _dense(value, weight, sizes["c"])


def _resnet(sizes: Mapping[str, int], weight: Weight, value: Array) -> Array:
    """A first convolution and a residual block, with batch normalization, then the mean and a dense layer."""
    import jax

    width, axes = sizes["w"], range(3)
    value = jax.nn.relu(_normalize(_conv(value, weight, width, 3, 2), weight, axes))
    inner = jax.nn.relu(_normalize(_conv(value, weight, width, 3), weight, axes))
    value = jax.nn.relu(_normalize(_conv(inner, weight, width, 3), weight, axes) + value)
    return _dense(value.mean((1, 2)), weight, sizes["c"])


def _unet(sizes: Mapping[str, int], weight: Weight, value: Array) -> Array:
    """An encoder that halves the image and a decoder that doubles it, joined by a concatenated skip; 2-D or 3-D."""
    import jax
    import jax.numpy as jnp

    skip = jax.nn.relu(_conv(value, weight, sizes["w"], 3))
    value = jax.nn.relu(_conv(_max_pool(skip), weight, 2 * sizes["w"], 3))
    value = jnp.concatenate([skip, _upsample(value, weight, sizes["w"])], -1)
    return _conv(value, weight, sizes["c"], 3)


def _upsample(value: Array, weight: Weight, features: int) -> Array:
    """A transposed convolution that doubles each spatial size."""
    from jax import lax

    spatial = "DHW"[-(value.ndim - 2) :]
    kernel = weight(*(2,) * len(spatial), value.shape[-1], features)
    numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    return lax.conv_transpose(value, kernel, (2,) * len(spatial), "SAME", dimension_numbers=numbers)


def _bert(sizes: Mapping[str, int], weight: Weight, tokens: Array) -> Array:
    """Embedded tokens, one encoder layer of self-attention and a feed-forward part, a head on the first token."""
    import jax
    import jax.numpy as jnp

    heads, width = sizes["h"], sizes["h"] * sizes["f"]
    batch, length = tokens.shape
    value = jnp.take(weight(sizes["v"], width), tokens, axis=0, mode="clip") + weight(length, width)
    query, key, mixed = (
        _dense(value, weight, width).reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) for _ in range(3)
    )
    logits = query @ key.transpose(0, 1, 3, 2) * (sizes["f"] ** -0.5)
    mixed = (jax.nn.softmax(logits) @ mixed).transpose(0, 2, 1, 3).reshape(batch, length, width)
    value = _normalize(value + _dense(mixed, weight, width), weight, [-1])
    inner = _dense(jax.nn.gelu(_dense(value, weight, 2 * width)), weight, width)
    value = _normalize(value + inner, weight, [-1])
    return _dense(jnp.tanh(_dense(value[:, 0], weight, width)), weight, 2)


def _lstm(sizes: Mapping[str, int], weight: Weight, sequence: Array) -> Array:
    """LSTM layers, each a loop over the sequence, and a dense head on the last state."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    width, batch = sizes["w"], sequence.shape[1]
    for _ in range(sizes["n"]):
        gates_of = weight(width, 4 * width)
        recurrence, bias = weight(width, 4 * width), weight(4 * width)

        def advance(state: Any, value: Array, parts: tuple[Array, ...] = (gates_of, recurrence, bias)) -> Any:
            hidden, cell = state
            gates = value @ parts[0] + hidden @ parts[1] + parts[2]
            keep, write, out, fresh = jnp.split(gates, 4, axis=1)
            cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(write) * jnp.tanh(fresh)
            hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
            return (hidden, cell), hidden

        start = jnp.zeros((batch, width), sequence.dtype)
        _, sequence = lax.scan(advance, (start, start), sequence)
    return _dense(jax.nn.relu(_dense(sequence[-1], weight, 2 * width)), weight, sizes["c"])


def _recommender(sizes: Mapping[str, int], weight: Weight, dense: Array, *columns: Array) -> Array:
    """Dense features through layers, embedded columns, their pairwise products, and layers on top."""
    import jax
    import jax.numpy as jnp

    bottom = jax.nn.relu(_dense(jax.nn.relu(_dense(dense, weight, sizes["w"])), weight, sizes["f"]))
    embedded = [jnp.take(weight(1000, sizes["f"]), column, axis=0, mode="clip") for column in columns]
    stacked = jnp.stack([bottom, *embedded], axis=1)
    products = (stacked @ stacked.transpose(0, 2, 1)).reshape(len(dense), -1)
    value = jnp.concatenate([bottom, products], axis=1)
    for _ in range(sizes["n"]):
        value = jax.nn.relu(_dense(value, weight, 2 * sizes["w"]))
    return _dense(value, weight, 2)


_MODELS: dict[str, Callable[..., Array]] = {
    "alexnet": _alexnet,
    "resnet": _resnet,
    "unet2d": _unet,
    "unet3d": _unet,
    "bert": _bert,
    "lstm": _lstm,
    "recommender": _recommender,
}
