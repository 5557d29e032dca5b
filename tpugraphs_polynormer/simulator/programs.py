"""Random programs of the kinds in TpuGraphs: vision, language, recommendation and recurrent networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.hlo.module import Instruction, Module
from tpugraphs_polynormer.simulator.builder import PRED, S32, ComputationBuilder
from tpugraphs_polynormer.simulator.network import PRECISIONS, Network


@dataclass(frozen=True)
class Size:
    """The size of the programs of a scale: inclusive ranges (low, high), or values to draw from."""

    blocks: tuple[int, int]  # residual blocks, MLP layers: they decide the length of a program
    layers: tuple[int, int]  # of an encoder
    width: tuple[int, int]  # features of the first stage, as a multiple of 8
    batch: tuple[int, ...]
    image: tuple[int, ...]
    sequence: tuple[int, ...]


class _Draw:
    """The random numbers of one program."""

    def __init__(self, rng: np.random.Generator, size: Size) -> None:
        self._rng, self.size = rng, size

    def between(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high + 1))

    def pick(self, values: tuple) -> object:
        return values[int(self._rng.integers(len(values)))]

    def flip(self) -> bool:
        return bool(self._rng.integers(2))

    def blocks(self) -> int:
        return self._log_uniform(*self.size.blocks)

    def layers(self) -> int:
        return self._log_uniform(*self.size.layers)

    def _log_uniform(self, low: int, high: int) -> int:
        """An integer with a uniform logarithm: many real programs are short, a few are very long."""
        return round(float(np.exp(self._rng.uniform(np.log(low), np.log(high)))))

    def width(self) -> int:
        return 8 * self.between(*self.size.width)

    def network(self, kind: str, train: bool, batch: int, blocks: int, width: int) -> Network:
        precision = self.pick(("f32", "bf16"))
        mode = "train" if train else "test"
        name = f"{kind}_L-{blocks}_H-{width}_batch_size_{batch}_{precision}_{mode}"
        return Network(name, element_type=PRECISIONS[precision], optimizer=self.pick(("sgd", "adam")))


def residual_cnn(draw: _Draw) -> Module:
    """Convolutions with batch normalization and skip connections, in stages that halve the image."""
    train, batch, blocks, width = draw.flip(), 2 * draw.pick(draw.size.batch), draw.blocks(), draw.width()
    side = draw.pick(draw.size.image)
    net = draw.network(f"resnet_i{side}", train, batch, blocks, width)
    value = net.input((batch, side, side, 3))
    value = net.relu(_conv_norm(net, value, width, draw.pick((3, 5, 7)), 2))
    stages = min(3, blocks)
    for block in range(blocks):
        stage = block * stages // blocks
        starts_stage = stage > 0 and (block - 1) * stages // blocks < stage
        value = _residual_block(net, value, width << stage, 2 if starts_stage else 1)
    logits = net.dense(net.mean_pool(value), draw.pick((10, 100, 1000)))
    return net.finish(logits, train=train)


def _conv_norm(net: Network, value: Instruction, features: int, size: int, stride: int = 1) -> Instruction:
    return net.normalize(net.conv(value, features, size, stride), (0, 1, 2))


def _residual_block(net: Network, value: Instruction, features: int, stride: int) -> Instruction:
    inner = net.relu(_conv_norm(net, value, features, 3, stride))
    inner = _conv_norm(net, inner, features, 3)
    if stride > 1 or value.shape.dimensions[3] != features:
        value = _conv_norm(net, value, features, 1, stride)
    return net.relu(net.add(inner, value))


def unet(draw: _Draw) -> Module:
    """An encoder that halves the image, a decoder that doubles it, joined by concatenated skips."""
    train, batch, width = draw.flip(), 2 * draw.pick(draw.size.batch), draw.width()
    depth = min(3, max(1, draw.blocks() // 2))
    repeats = max(1, draw.blocks() // (depth + 1))
    side = draw.pick(draw.size.image)
    net = draw.network(f"unet_i{side}_r{repeats}", train, batch, depth, width)
    value, skips = net.input((batch, side, side, draw.pick((1, 3, 4)))), []
    for level in range(depth):
        value = _double_conv(net, value, width << level, repeats)
        skips.append(value)
        value = net.max_pool(value)
    value = _double_conv(net, value, width << depth, repeats)
    for level in reversed(range(depth)):
        value = net.concatenate([skips[level], net.upsample(value, width << level)])
        value = _double_conv(net, value, width << level, repeats)
    return net.finish(net.bias(net.conv(value, draw.pick((2, 4, 20)), 1)), train=train)


def _double_conv(net: Network, value: Instruction, features: int, repeats: int) -> Instruction:
    for _ in range(repeats + 1):
        value = net.relu(net.bias(net.conv(value, features, 3)))
    return value


def transformer(draw: _Draw) -> Module:
    """An encoder of self-attention and feed-forward layers over embedded tokens, in inference or a training step."""
    train, batch, layers = draw.flip(), draw.pick(draw.size.batch), draw.layers()
    heads, head_dim = draw.pick((2, 3, 4, 6, 8, 12)), draw.pick((32, 64))
    width, length = heads * head_dim, draw.pick(draw.size.sequence)
    net = draw.network(f"bert_A-{heads}_S-{length}", train, batch, layers, width)
    table = net.weight((draw.pick((8_000, 30_522, 32_000)), width))
    value = net.reshape(net.lookup(table, (batch, length)), (batch * length, width))
    value = net.normalize(value, (1,))
    expansion = draw.pick((2, 4))
    for _ in range(layers):
        value = net.normalize(net.add(value, _attention(net, value, batch, heads)), (1,))
        inner = net.dense(net.gelu(net.dense(value, expansion * width)), width)
        value = net.normalize(net.add(value, inner), (1,))
    first = net.reshape(value, (batch, length * width))
    return net.finish(net.dense(first, draw.pick((2, 3, 768))), train=train)


def _attention(net: Network, value: Instruction, batch: int, heads: int) -> Instruction:
    """Multi-head self-attention: [batch * length, width] -> the same shape."""
    rows, width = value.shape.dimensions
    length, head_dim = rows // batch, width // heads

    def split(each: Instruction, order: tuple[int, ...]) -> Instruction:
        return net.transpose(net.reshape(each, (batch, length, heads, head_dim)), order)

    query, key = (split(net.dense(value, width), (0, 2, 1, 3)) for _ in range(2))
    values = split(net.dense(value, width), (0, 2, 3, 1))  # [batch, heads, head_dim, length]
    weights = net.softmax(net.matmul(query, key))
    mixed = net.transpose(net.matmul(weights, values), (0, 2, 1, 3))
    return net.dense(net.reshape(mixed, (rows, width)), width)


def recommender(draw: _Draw) -> Module:
    """Dense features through an MLP, embedded categories, their pairwise products, and an MLP on top."""
    train, batch, layers, width = draw.flip(), 8 * draw.pick(draw.size.batch), draw.blocks(), draw.width()
    tables, embedding = draw.between(3, 8), draw.pick((16, 32, 64))
    net = draw.network(f"dlrm_T-{tables}_E-{embedding}", train, batch, layers, width)
    bottom = _mlp(net, net.input((batch, draw.pick((13, 64, 256)))), [width] * max(1, layers // 2))
    bottom = net.relu(net.dense(bottom, embedding))
    columns = [bottom]
    for _ in range(tables):
        columns.append(net.lookup(net.weight((1000 * draw.between(1, 10), embedding)), (batch,)))
    stacked = net.reshape(net.concatenate(columns), (batch, tables + 1, embedding))
    products = net.matmul(stacked, stacked)
    flat = net.concatenate([bottom, net.reshape(products, (batch, (tables + 1) ** 2))])
    top = _mlp(net, flat, [2 * width] + [width] * (2 * layers))
    return net.finish(net.dense(top, draw.pick((2, 10))), train=train)


def _mlp(net: Network, value: Instruction, widths: list[int]) -> Instruction:
    for width in widths:
        value = net.relu(net.dense(value, width))
    return value


def recurrent(draw: _Draw) -> Module:
    """Stacked LSTM layers, each a while loop over the sequence, and a dense head."""
    batch, layers, width = draw.pick(draw.size.batch), draw.blocks(), draw.width()
    length, train = draw.pick(draw.size.sequence), draw.flip()
    net = draw.network(f"lstm_S-{length}", train, batch, layers, width)
    value = net.input((length, batch, width))
    for _ in range(layers):
        value = _lstm_loop(net, value, width)
    last = net.hlo.slice(value, 0, length - 1, length)
    flat = net.reshape(last, (batch, width))
    head = _mlp(net, flat, [2 * width] * draw.between(1, 3))
    return net.finish(net.dense(head, draw.pick((10, 1000, 10_000))), train=train)


def _lstm_loop(net: Network, sequence: Instruction, width: int) -> Instruction:
    """Hidden states [length, batch, width] of an LSTM over [length, batch, features]; no gradient passes the loop."""
    length, batch, features = sequence.shape.dimensions
    kind = net.element_type
    results = net.hlo.full((length, batch, width), kind)
    state = [
        net.hlo.constant(S32),
        net.hlo.full((batch, width), kind),
        net.hlo.full((batch, width), kind),
        net.hlo.parameter((features, 4 * width), kind),
        net.hlo.parameter((width, 4 * width), kind),
        sequence,
        results,
    ]
    packed = net.hlo.tuple(state)
    body = _loop_body(net, packed)
    condition = _loop_condition(net, packed)
    return net.hlo.element(net.hlo.loop(packed, condition, body), 6)


def _loop_condition(net: Network, packed: Instruction) -> int:
    hlo = net.module.computation("while_cond")
    state = hlo.tuple_parameter(packed.shape.tuple_shapes)
    step = hlo.element(state, 0)
    return hlo.finish(hlo.add("compare", (), (step, hlo.constant(S32)), PRED))


def _loop_body(net: Network, packed: Instruction) -> int:
    """The id of one time step: gates = x W + h U; c = f c + i g; h = o tanh(c)."""
    hlo = net.module.computation("while_body")
    state = hlo.tuple_parameter(packed.shape.tuple_shapes)
    step, hidden, cell, to_gates, recurrence, sequence, results = (hlo.element(state, index) for index in range(7))
    batch, width = hidden.shape.dimensions
    features = sequence.shape.dimensions[2]
    zero = hlo.constant(S32)
    sizes = {"dynamic_slice_sizes": (1, batch, features)}
    taken = hlo.add("dynamic-slice", (1, batch, features), (sequence, step, zero, zero), **sizes)
    current = hlo.reshape(taken, (batch, features))
    dims = (batch, 4 * width)
    gates = hlo.binary("add", hlo.dot(current, to_gates, dims), hlo.dot(hidden, recurrence, dims))
    cell, hidden = _lstm_step(hlo, gates, cell, width)
    row = hlo.reshape(hidden, (1, batch, width))
    results = hlo.add("dynamic-update-slice", results.shape.dimensions, (results, row, step, zero, zero))
    step = hlo.add("add", (), (step, hlo.constant(S32)))
    return hlo.finish(hlo.tuple([step, hidden, cell, to_gates, recurrence, sequence, results]))


def _lstm_step(
    hlo: ComputationBuilder, gates: Instruction, cell: Instruction, width: int
) -> tuple[Instruction, Instruction]:
    pieces = [hlo.slice(gates, 1, index * width, (index + 1) * width) for index in range(4)]
    keep, write, out = (hlo.unary("logistic", each) for each in pieces[:3])
    fresh = hlo.unary("tanh", pieces[3])
    cell = hlo.binary("add", hlo.binary("multiply", keep, cell), hlo.binary("multiply", write, fresh))
    return cell, hlo.binary("multiply", out, hlo.unary("tanh", cell))


FAMILIES: dict[str, Callable[[_Draw], Module]] = {
    family.__name__: family for family in (residual_cnn, unet, transformer, recommender, recurrent)
}
SOURCES: dict[str, tuple[str, ...]] = {
    "xla": ("residual_cnn", "unet", "recommender", "recurrent"),
    "nlp": ("transformer",),
}


def draw_program(family: str, size: Size, rng: np.random.Generator) -> Module:
    """A random program of a family; the same generator state gives the same program."""
    return FAMILIES[family](_Draw(rng, size))
