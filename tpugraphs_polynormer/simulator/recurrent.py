"""An LSTM layer as a while loop: called computations, a tuple state, dynamic slices."""

from __future__ import annotations

from tpugraphs_polynormer.hlo.module import Instruction
from tpugraphs_polynormer.simulator.builder import PRED, S32, ComputationBuilder
from tpugraphs_polynormer.simulator.network import Network


def unroll_loop(net: Network, sequence: Instruction, width: int) -> Instruction:
    """Runs an LSTM over [length, batch, features]: [length, batch, width]. Its gradient is cut at the loop."""
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
    body = _body(net, packed)
    condition = _condition(net, packed)
    return net.hlo.element(net.hlo.loop(packed, condition, body), 6)


def _condition(net: Network, packed: Instruction) -> int:
    hlo = net.module.computation("while_cond")
    state = hlo.tuple_parameter(packed.shape.tuple_shapes)
    step = hlo.element(state, 0)
    return hlo.finish(hlo.add("compare", (), (step, hlo.constant(S32)), PRED))


def _body(net: Network, packed: Instruction) -> int:
    """One time step: gates = x W + h U; c = f c + i g; h = o tanh(c)."""
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
    cell, hidden = _step(hlo, gates, cell, width)
    row = hlo.reshape(hidden, (1, batch, width))
    results = hlo.add("dynamic-update-slice", results.shape.dimensions, (results, row, step, zero, zero))
    step = hlo.add("add", (), (step, hlo.constant(S32)))
    return hlo.finish(hlo.tuple([step, hidden, cell, to_gates, recurrence, sequence, results]))


def _step(
    hlo: ComputationBuilder, gates: Instruction, cell: Instruction, width: int
) -> tuple[Instruction, Instruction]:
    pieces = [hlo.slice(gates, 1, index * width, (index + 1) * width) for index in range(4)]
    keep, write, out = (hlo.unary("logistic", each) for each in pieces[:3])
    fresh = hlo.unary("tanh", pieces[3])
    cell = hlo.binary("add", hlo.binary("multiply", keep, cell), hlo.binary("multiply", write, fresh))
    return cell, hlo.binary("multiply", out, hlo.unary("tanh", cell))
