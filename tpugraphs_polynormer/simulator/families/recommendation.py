"""Recommenders: dense features, embedded categories and their pairwise products."""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.hlo.module import Instruction, Module
from tpugraphs_polynormer.simulator.array_shapes import PRED, S32
from tpugraphs_polynormer.simulator.draw import Draw
from tpugraphs_polynormer.simulator.layers import Layers


def recommender(draw: Draw) -> Module:
    """Dense features through an MLP, embedded categories, their pairwise products, and an MLP on top."""
    batch, layers, width = 8 * draw.pick(draw.size.batch), draw.blocks(), draw.width()
    tables, embedding = draw.between(3, 13), draw.pick((16, 32, 64, 128))
    net = draw.network(f"dlrm_T-{tables}_E-{embedding}", batch=batch, blocks=layers, width=width)
    bottom = _mlp(net, net.image((batch, draw.pick((13, 64, 256)))), [width] * max(1, layers // 2))
    bottom = net.relu(net.dense(bottom, embedding))
    categories = _categories(net, draw, (batch, tables, embedding))
    columns = net.concatenate([net.reshape(bottom, (batch, 1, embedding)), categories], 1)
    products = net.product(columns, columns, ((2,), (2,)), ((0,), (0,)))
    flat = net.concatenate([bottom, net.reshape(_lower_triangle(net, products), (batch, (tables + 1) ** 2))])
    top = _mlp(net, flat, [2 * width] + [width] * (2 * layers))
    return net.classify(net.dense(top, draw.pick((2, 10))))


def _mlp(net: Layers, value: Instruction, widths: list[int]) -> Instruction:
    for width in widths:
        value = net.relu(net.dense(value, width))
    return value


def _categories(net: Layers, draw: Draw, dims: tuple[int, int, int]) -> Instruction:
    """[batch, tables, embedding]: all tables in one, each at its offset, or a lookup for each table."""
    batch, tables, embedding = dims
    if draw.chance(0.5):
        sizes = [1000 * draw.between(1, 10) for _ in range(tables)]
        offsets = np.broadcast_to(np.cumsum([0, *sizes[:-1]]), (batch, tables))
        indices = net.hlo.binary("add", net.input((batch, tables), S32), net.hlo.array_constant(offsets, S32))
        table = net.weight((sum(sizes), embedding))
        rows = net.lookup(table, net.hlo.reshape(indices, (batch * tables,)))
        return net.reshape(rows, (batch, tables, embedding))
    columns = []
    for _ in range(tables):
        table = net.weight((1000 * draw.between(1, 10), embedding))
        columns.append(net.lookup(table, net.input((batch,), S32)))
    return net.reshape(net.concatenate(columns), (batch, tables, embedding))


def _lower_triangle(net: Layers, products: Instruction) -> Instruction:
    """The products of a pair once: zeros above the diagonal."""
    hlo, dims = net.hlo, products.shape.dimensions
    mask = hlo.array_constant(np.broadcast_to(np.tri(dims[1], dtype=bool), dims), PRED)

    def apply(value: Instruction) -> Instruction:
        return hlo.select(mask, value, hlo.full(dims, value.shape.element_type, 0))

    return net.record(apply(products), (products,), lambda grad: (apply(grad),))
