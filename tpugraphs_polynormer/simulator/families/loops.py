"""While loops inside programs: an LSTM over a sequence, and a reordering of the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpugraphs_polynormer.hlo.module import Instruction, Shape
from tpugraphs_polynormer.simulator.array_shapes import PRED, S32, TUPLE
from tpugraphs_polynormer.simulator.builder import ComputationBuilder
from tpugraphs_polynormer.simulator.layers import Layers

Step = Callable[[ComputationBuilder, Instruction, list[Instruction]], list[Instruction]]


def counted_loop(net: Layers, count: int, values: Sequence[Instruction], step: Step) -> list[Instruction]:
    """The values after `count` steps; a step takes the builder, its number and the values, and returns new values."""
    packed = net.hlo.tuple([net.hlo.constant(S32, 0), *values])
    body = net.module.computation("while_body")
    state = body.shaped_parameter(packed.shape)
    number, *old = (body.element(state, index) for index in range(len(values) + 1))
    new = step(body, number, old)
    body_id = body.finish(body.tuple([body.shifted(number, 1), *new]))
    condition = net.module.computation("while_cond")
    number = condition.element(condition.shaped_parameter(packed.shape), 0)
    condition_id = condition.finish(condition.compare("LT", number, condition.constant(S32, count)))
    result = net.hlo.loop(packed, condition_id, body_id)
    return [net.hlo.element(result, index) for index in range(1, len(values) + 1)]


def _row(hlo: ComputationBuilder, value: Instruction, index: Instruction) -> Instruction:
    """[1, ...]: one row of a value."""
    dims = (1, *value.shape.dimensions[1:])
    zeros = [hlo.constant(S32, 0)] * (len(dims) - 1)
    return hlo.add("dynamic-slice", dims, (value, index, *zeros), dynamic_slice_sizes=dims)


def _with_row(hlo: ComputationBuilder, value: Instruction, row: Instruction, index: Instruction) -> Instruction:
    zeros = [hlo.constant(S32, 0)] * (len(value.shape.dimensions) - 1)
    return hlo.add("dynamic-update-slice", value.shape.dimensions, (value, row, index, *zeros))


def lstm(net: Layers, sequence: Instruction, width: int) -> Instruction:
    """Hidden states [length, batch, width] of an LSTM over [length, batch, features]; no gradient passes the loop.

    gates = x W + h U; c = f c + i g; h = o tanh(c).
    """
    length, batch, features = sequence.shape.dimensions
    kind = sequence.shape.element_type
    empty = net.hlo.full((batch, width), kind, 0)
    weights = [net.weight((rows, 4 * width)) for rows in (features, width)]
    results = net.hlo.full((length, batch, width), kind, 0)

    def step(hlo: ComputationBuilder, number: Instruction, values: list[Instruction]) -> list[Instruction]:
        hidden, cell, to_gates, recurrence, sequence, results = values
        current = hlo.reshape(_row(hlo, sequence, number), (batch, features))
        gates = hlo.binary("add", hlo.dot(current, to_gates), hlo.dot(hidden, recurrence))
        pieces = [hlo.slice(gates, 1, index * width, (index + 1) * width) for index in range(4)]
        keep, write, out = (hlo.unary("logistic", each) for each in pieces[:3])
        fresh = hlo.unary("tanh", pieces[3])
        cell = hlo.binary("add", hlo.binary("multiply", keep, cell), hlo.binary("multiply", write, fresh))
        hidden = hlo.binary("multiply", out, hlo.unary("tanh", cell))
        results = _with_row(hlo, results, hlo.reshape(hidden, (1, batch, width)), number)
        return [hidden, cell, to_gates, recurrence, sequence, results]

    return counted_loop(net, length, [empty, empty, *weights, sequence, results], step)[-1]


def flagged_first(net: Layers, value: Instruction) -> Instruction:
    """The rows of a batch, those with a positive flag first: a stable sort of the flags, then a loop that copies."""
    hlo, batch = net.hlo, value.shape.dimensions[0]
    index = hlo.iota((batch,), 0)
    flags = hlo.compare("GT", net.input((batch,), S32), hlo.full((batch,), S32, 0))
    valid = net.valid_rows((batch,))
    valid = hlo.full((batch,), PRED, 1) if valid is None else valid
    operands = (flags, index, valid)
    shape = Shape(TUPLE, tuple_shapes=tuple(each.shape for each in operands))
    fields = {"dimensions": (0,), "is_stable": True, "called_computation_ids": (_flag_order(net),)}
    ordered = hlo.make("sort", shape, operands, **fields)
    # A negative index counts from the end.
    taken = hlo.element(ordered, 1)
    sign = hlo.binary("shift-right-arithmetic", taken, hlo.full((batch,), S32, 31))
    taken = hlo.binary("add", taken, hlo.binary("and", sign, hlo.full((batch,), S32, batch)))

    def step(hlo: ComputationBuilder, number: Instruction, values: list[Instruction]) -> list[Instruction]:
        source, taken, results = values
        row = _row(hlo, source, hlo.reshape(_row(hlo, taken, number), ()))
        return [source, taken, _with_row(hlo, results, row, number)]

    empty = hlo.full(value.shape.dimensions, value.shape.element_type, 0)
    return counted_loop(net, batch, [value, taken, empty], step)[-1]


def _flag_order(net: Layers) -> int:
    """The id of a comparison of (flag, index, valid): valid rows first, then flagged ones, then by index."""
    hlo = net.module.computation("flag_order")
    kinds = (PRED, PRED, S32, S32, PRED, PRED)
    flag, other_flag, index, other_index, valid, other_valid = (hlo.parameter((), kind) for kind in kinds)
    before = [
        hlo.binary("and", one[1], hlo.binary("or", hlo.compare("GT", one[0], two[0]), hlo.unary("not", two[1])))
        for one, two in (((flag, valid), (other_flag, other_valid)), ((other_flag, other_valid), (flag, valid)))
    ]
    earlier = hlo.compare("LT", index, other_index)
    return hlo.finish(hlo.select(hlo.compare("EQ", *before), earlier, before[0]))
