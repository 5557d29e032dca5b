"""Transformer encoders and recurrent networks over sequences."""

from __future__ import annotations

from tpugraphs_polynormer.hlo.module import Instruction, Module
from tpugraphs_polynormer.simulator import wide_integers
from tpugraphs_polynormer.simulator.array_shapes import F32, S32, S64, U32
from tpugraphs_polynormer.simulator.draw import Draw
from tpugraphs_polynormer.simulator.families.loops import lstm
from tpugraphs_polynormer.simulator.layers import Layers
from tpugraphs_polynormer.simulator.wide_integers import Words


def transformer(draw: Draw) -> Module:
    """An encoder of self-attention and feed-forward layers over embedded tokens, in inference or a training step.

    Activations are [batch, length, width], and heads are dimensions of the weights, as in the real graphs; or rows are
    flattened to [batch * length, width], and heads are split by reshapes.
    """
    batch, layers = draw.pick(draw.size.batch), draw.layers()
    heads, head_dim = draw.pick((2, 3, 4, 6, 8, 12)), draw.pick((32, 64))
    width, length = heads * head_dim, draw.pick(draw.size.sequence)
    net = draw.network(f"bert_A-{heads}_S-{length}", batch=batch, blocks=layers, width=width, train=0.5)
    flat, vocabulary = draw.chance(0.3), draw.pick((8_000, 30_522, 32_000))
    value = _embed(net, vocabulary, (batch, length, width))
    bias = None if draw.chance(0.3) else _attention_bias(net, (batch, heads, length, length))
    if flat:
        value = net.reshape(value, (batch * length, width))
    value = net.layer_norm(value)
    expansion = draw.pick((2, 4))
    dropout = 0.1 if draw.chance(0.4) else 0.0
    for _ in range(layers):
        mixed = _attention(net, value, bias, batch=batch, heads=heads)
        value = net.layer_norm(net.add(value, net.dropout(mixed, dropout) if dropout else mixed))
        inner = net.dense(net.gelu(net.dense(value, expansion * width)), width)
        value = net.layer_norm(net.add(value, inner))
    first = net.slice(net.reshape(value, (batch, length, width)), 1, 0, 1)
    logits = net.dense(net.reshape(first, (batch, width)), draw.pick((2, 3, 768)))
    if not net.form.train and draw.chance(0.7):
        _add_metrics(net, logits)
    return net.classify(logits)


def _embed(net: Layers, vocabulary: int, dims: tuple[int, int, int]) -> Instruction:
    """Rows of a table by token, plus a weight by position, plus one of two weights by segment."""
    batch, length, width = dims
    table = net.weight((vocabulary, width))
    tokens = net.hlo.reshape(net.input((batch, length), S32), (batch * length,))
    value = net.reshape(net.lookup(table, tokens), dims)
    position = net.slice(net.weight((max(512, length), width)), 0, 0, length)
    spread = net.hlo.broadcast(position, dims, (1, 2))
    spread = net.record(spread, (position,), lambda grad: (net.hlo.reduce(grad, (0,)),))
    value = net.add(value, spread)
    pairs = (batch * length, 2)
    segments = net.hlo.reshape(net.input((batch, length), S32), pairs[:1])
    one_hot = net.hlo.compare("EQ", net.hlo.broadcast(segments, pairs, (0,)), net.hlo.iota(pairs, 1))
    chosen = net.product(net.hlo.convert(one_hot, net.compute_type), net.weight((2, width)), ((1,), (0,)))
    return net.add(value, net.reshape(chosen, dims))


def _attention_bias(net: Layers, dims: tuple[int, ...]) -> Instruction:
    """Minus a large number where a token is padding: 0 or 1 per token, broadcast to all heads and queries."""
    hlo, kind = net.hlo, net.compute_type
    present = hlo.convert(net.input((dims[0], dims[3]), S32), kind)
    absent = hlo.binary("subtract", hlo.full(present.shape.dimensions, kind, 1), present)
    return hlo.broadcast(hlo.scaled(absent, -1e4), dims, (0, 3))


def _attention(net: Layers, value: Instruction, bias: Instruction | None, *, batch: int, heads: int) -> Instruction:
    """Multi-head self-attention: the shape of the value, [batch, length, width] or [batch * length, width]."""
    dims = value.shape.dimensions
    width, length = dims[-1], dims[1] if len(dims) == 3 else dims[0] // batch
    split = (batch, length, heads, width // heads)

    def project() -> Instruction:
        if len(dims) == 3:
            return net.dense(value, split[2:])
        return net.reshape(net.dense(value, width), split)

    query, key, values = (project() for _ in range(3))
    over, paired = ((3,), (3,)), ((0, 2), (0, 2))
    scaled = net.hlo.scaled(query, split[3] ** -0.5)
    query = net.record(scaled, (query,), lambda grad: (net.hlo.scaled(grad, split[3] ** -0.5),))
    weights = net.product(key, query, over, paired)  # [batch, heads, keys, queries]
    weights = net.transpose(weights, (0, 1, 3, 2))
    if bias is not None:
        biased = net.hlo.binary("add", weights, bias)
        weights = net.record(biased, (weights,), lambda grad: (grad,))
    mixed = net.product(net.softmax(weights), values, ((3,), (1,)), ((0, 1), (0, 2)))
    mixed = net.transpose(mixed, (0, 2, 1, 3))  # [batch, length, heads, head_dim]
    if len(dims) == 3:
        return net.dense(mixed, width, contract=2)
    return net.dense(net.reshape(mixed, dims), width)


def _add_metrics(net: Layers, logits: Instruction) -> None:
    """Counts and sums of 64-bit labels, which real evaluation programs return beside their logits."""
    hlo, dims = net.hlo, logits.shape.dimensions
    batch, lowered = dims[:1], net.form.lowered
    labels = wide_integers.split(hlo, net.input(batch, S64), lowered=lowered)
    number = wide_integers.to_float(hlo, labels)
    best = hlo.convert(hlo.reduce(logits, (1,), "maximum"), F32)
    zero = hlo.full(batch, F32, 0)
    hits = [hlo.compare("GT", best, zero), hlo.compare("GT", number, zero)]
    counted = [*hits, hlo.binary("and", *hits), hlo.binary("or", *hits)]
    sums = []
    for mask in counted:
        one = hlo.convert(mask, U32 if lowered else S64)
        high = hlo.full(batch, U32, 0) if lowered else None
        sums.append(wide_integers.to_float(hlo, wide_integers.total(hlo, Words(one, high))))
    share = hlo.binary("divide", sums[2], hlo.binary("maximum", sums[3], hlo.constant(F32, 1)))
    net.metrics += [share, *sums[:2]]


def recurrent(draw: Draw) -> Module:
    """Stacked LSTM layers, each a while loop over the sequence, and a dense head."""
    batch, layers, width = draw.pick(draw.size.batch), draw.blocks(), draw.width()
    length = draw.pick(draw.size.sequence)
    net = draw.network(f"lstm_S-{length}", batch=batch, blocks=layers, width=width)
    value = net.image((length, batch, width))
    for _ in range(layers):
        value = lstm(net, value, width)
    value = net.reshape(net.slice(value, 0, length - 1, length), (batch, width))
    for _ in range(draw.between(1, 3)):
        value = net.dropout(net.relu(net.dense(value, 2 * width)), 0.2)
    return net.classify(net.dense(value, draw.pick((10, 1000, 10_000))))
