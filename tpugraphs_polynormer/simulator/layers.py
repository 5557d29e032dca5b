"""Neural-network layers on top of a network, each with its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tpugraphs_polynormer.hlo.module import (
    GatherDimensions,
    Instruction,
    Module,
    ScatterDimensions,
)
from tpugraphs_polynormer.simulator import wide_integers
from tpugraphs_polynormer.simulator.array_shapes import F32, S32, U32
from tpugraphs_polynormer.simulator.convolutions import Convolutions

Dims = Sequence[int]


class Layers(Convolutions):
    """A network with the layers that the families of programs need."""

    def product(
        self,
        first: Instruction,
        second: Instruction,
        over: tuple[Dims, Dims],
        batch: tuple[Dims, Dims] = ((), ()),
    ) -> Instruction:
        """A dot over paired dimensions, see `ComputationBuilder.dot`."""
        out = self.hlo.dot(first, second, over, batch)

        def backward(grad: Instruction) -> list[Instruction]:
            pair, num_batch = (first, second), len(batch[0])
            free = [
                [dim for dim in range(len(each.shape.dimensions)) if dim not in (*over[side], *batch[side])]
                for side, each in enumerate(pair)
            ]
            starts = (num_batch, num_batch + len(free[0]))
            gradients = []
            for side in (0, 1):
                other = 1 - side
                paired = [starts[other] + index for index in range(len(free[other]))]
                made = self.hlo.dot(grad, pair[other], (paired, free[other]), (range(num_batch), batch[other]))
                # The result has the batch dims, the free dims, and the contracted dims in the other operand's order.
                contracted = [over[side][over[other].index(dim)] for dim in sorted(over[other])]
                order = [*batch[side], *free[side], *contracted]
                gradients.append(self.hlo.transpose(made, [order.index(dim) for dim in range(len(order))]))
            return gradients

        return self.record(out, (first, second), backward)

    def dense(self, value: Instruction, features: int | Dims, *, contract: int = 1) -> Instruction:
        """The last `contract` dims of the value times a weight, plus a bias: [..., features]."""
        dims = value.shape.dimensions
        added = (features,) if isinstance(features, int) else tuple(features)
        weight = self.weight((*dims[-contract:], *added))
        over = (tuple(range(len(dims) - contract, len(dims))), tuple(range(contract)))
        return self.bias(self.product(value, weight, over), len(added))

    def bias(self, value: Instruction, rank: int = 1) -> Instruction:
        """Adds a weight with the last `rank` dims of the value."""
        dims = value.shape.dimensions
        kept = len(dims) - rank
        weight = self.weight(dims[kept:])
        out = self.hlo.binary("add", value, self.hlo.broadcast(weight, dims, range(kept, len(dims))))
        return self.record(out, (value, weight), lambda grad: (grad, self.hlo.reduce(grad, range(kept))))

    def add(self, first: Instruction, second: Instruction) -> Instruction:
        """The sum of two branches."""
        return self.record(self.hlo.binary("add", first, second), (first, second), lambda grad: (grad, grad))

    def relu(self, value: Instruction) -> Instruction:
        """max(value, 0)."""
        zero = self.hlo.full(value.shape.dimensions, value.shape.element_type, 0)
        out = self.hlo.binary("maximum", value, zero)
        return self.record(
            out, (value,), lambda grad: (self.hlo.select(self.hlo.compare("GT", out, zero), grad, zero),)
        )

    def gelu(self, value: Instruction) -> Instruction:
        """The tanh form of the Gaussian error linear unit: x/2 (1 + tanh(a (x + b x^3)))."""
        hlo = self.hlo
        square = hlo.binary("multiply", value, value)
        inner = hlo.binary("add", value, hlo.scaled(hlo.binary("multiply", value, square), 0.044715))
        tanh = hlo.unary("tanh", hlo.scaled(inner, 0.797885))
        half, gate = hlo.scaled(value, 0.5), hlo.shifted(tanh, 1)
        out = hlo.binary("multiply", half, gate)

        def backward(grad: Instruction) -> tuple[Instruction]:
            one = hlo.full(value.shape.dimensions, value.shape.element_type, 1)
            slope = hlo.binary("subtract", one, hlo.binary("multiply", tanh, tanh))
            inner = hlo.shifted(hlo.scaled(square, 0.107032), 0.797885)
            steep = hlo.binary("multiply", half, hlo.binary("multiply", slope, inner))
            return (hlo.binary("multiply", grad, hlo.binary("add", hlo.scaled(gate, 0.5), steep)),)

        return self.record(out, (value,), backward)

    def dropout(self, value: Instruction, rate: float) -> Instruction:
        """In training, zeros at random, the rest scaled up."""
        if not self.form.train:
            return value
        hlo, dims = self.hlo, value.shape.dimensions
        key = None
        if self.form.hashed_dropout:
            key = self.step.low if self.step.high is not None else hlo.convert(self.step.low, U32)
        drawn = wide_integers.uniform(hlo, dims, key=key)
        dropped = hlo.compare("LT", drawn, hlo.full(dims, F32, rate))

        def apply(each: Instruction) -> Instruction:
            zero = hlo.full(dims, each.shape.element_type, 0)
            return hlo.select(dropped, zero, hlo.scaled(each, 1 / (1 - rate)))

        return self.record(apply(value), (value,), lambda grad: (apply(grad),))

    def batch_norm(self, value: Instruction) -> Instruction:
        """Zero mean and unit variance per feature over the batch, with running statistics in training."""
        stored = [self.statistic(value.shape.dimensions[-1:]) for _ in range(2)]
        return self._normalize(value, range(len(value.shape.dimensions) - 1), stored)

    def layer_norm(self, value: Instruction) -> Instruction:
        """Zero mean and unit variance over the features of each row."""
        return self._normalize(value, (len(value.shape.dimensions) - 1,), [])

    def _normalize(self, value: Instruction, reduced: Dims, stored: Sequence[Instruction]) -> Instruction:
        """(x - mean) / sqrt(variance + epsilon), times a scale, plus a shift; in f32, as real programs do."""
        hlo, dims, kind = self.hlo, value.shape.dimensions, value.shape.element_type
        wide, last = hlo.convert(value, F32), len(dims) - 1
        kept = [dim for dim in range(len(dims)) if dim not in reduced]
        if stored and not self.form.train:
            mean, variance = stored
        else:
            mean = self.mean(hlo.reduce(self.masked(wide), reduced), dims, reduced)
            square = hlo.reduce(self.masked(hlo.binary("multiply", wide, wide)), reduced)
            variance = hlo.binary("subtract", self.mean(square, dims, reduced), hlo.binary("multiply", mean, mean))
            for old, new in zip(stored, (mean, variance), strict=bool(stored)):
                self.update_statistic(old, new)
        centred = hlo.binary("subtract", wide, hlo.broadcast(mean, dims, kept))
        inverse = hlo.broadcast(hlo.unary("rsqrt", hlo.shifted(variance, 1e-3)), dims, kept)
        unit = hlo.binary("multiply", centred, inverse)
        scale, shift = (self.weight(dims[-1:], F32) for _ in range(2))
        spread = hlo.broadcast(scale, dims, (last,))
        made = hlo.binary("add", hlo.binary("multiply", unit, spread), hlo.broadcast(shift, dims, (last,)))

        def backward(grad: Instruction) -> tuple[Instruction, ...]:
            grad = self.masked(hlo.convert(grad, F32))
            product = hlo.binary("multiply", grad, unit)
            slope = hlo.binary("multiply", grad, spread)
            level = hlo.broadcast(self.mean(hlo.reduce(slope, reduced), dims, reduced), dims, kept)
            tilt = hlo.reduce(hlo.binary("multiply", slope, unit), reduced)
            tilt = hlo.broadcast(self.mean(tilt, dims, reduced), dims, kept)
            rest = hlo.binary("subtract", hlo.binary("subtract", slope, level), hlo.binary("multiply", unit, tilt))
            to_value = hlo.convert(hlo.binary("multiply", rest, inverse), kind)
            return to_value, hlo.reduce(product, range(last)), hlo.reduce(grad, range(last))

        return self.record(hlo.convert(made, kind), (value, scale, shift), backward)

    def softmax(self, value: Instruction) -> Instruction:
        """Probabilities along the last dimension."""
        hlo, dims = self.hlo, value.shape.dimensions
        kept, last = range(len(dims) - 1), (len(dims) - 1,)
        top = hlo.broadcast(hlo.reduce(value, last, "maximum"), dims, kept)
        powers = hlo.unary("exponential", hlo.binary("subtract", value, top))
        out = hlo.binary("divide", powers, hlo.broadcast(hlo.reduce(powers, last), dims, kept))

        def backward(grad: Instruction) -> tuple[Instruction]:
            total = hlo.reduce(hlo.binary("multiply", grad, out), last)
            return (hlo.binary("multiply", out, hlo.binary("subtract", grad, hlo.broadcast(total, dims, kept))),)

        return self.record(out, (value,), backward)

    def reshape(self, value: Instruction, dims: Dims) -> Instruction:
        """The same elements in another shape."""
        out = self.hlo.reshape(value, dims)
        return out if out is value else self.record(
            out, (value,), lambda grad: (self.hlo.reshape(grad, value.shape.dimensions),)
        )  # fmt: skip

    def transpose(self, value: Instruction, order: Dims) -> Instruction:
        """Dimension i of the result is dimension `order[i]` of the value."""
        inverse = sorted(range(len(order)), key=lambda index: order[index])
        out = self.hlo.transpose(value, order)
        return self.record(out, (value,), lambda grad: (self.hlo.transpose(grad, inverse),))

    def concatenate(self, values: Sequence[Instruction], dimension: int = -1) -> Instruction:
        """The values one after another along a dimension."""
        dimension %= len(values[0].shape.dimensions)

        def backward(grad: Instruction) -> list[Instruction]:
            pieces, start = [], 0
            for each in values:
                limit = start + each.shape.dimensions[dimension]
                pieces.append(self.hlo.slice(grad, dimension, start, limit))
                start = limit
            return pieces

        return self.record(self.hlo.concatenate(values, dimension), values, backward)

    def slice(self, value: Instruction, dimension: int, start: int, limit: int) -> Instruction:
        """The range start..limit of one dimension; its gradient is padded with zeros."""
        sizes = value.shape.dimensions
        padding = [(start, size - limit) if dim == dimension else (0, 0) for dim, size in enumerate(sizes)]
        out = self.hlo.slice(value, dimension, start, limit)
        return self.record(out, (value,), lambda grad: (self.hlo.pad(grad, padding),))

    def lookup(self, table: Instruction, indices: Instruction) -> Instruction:
        """Rows of a table [rows, features] by index s32 [n]: [n, features]; lowered programs fuse it."""
        features, kind = table.shape.dimensions[1], table.shape.element_type
        count = indices.shape.dimensions[0]
        rows = {
            "gather": GatherDimensions((1,), (0,), (0,), 1),
            "gather_slice_sizes": (1, features),
        }
        out = self._fused("gather", (count, features), (table, indices), rows)

        def backward(grad: Instruction) -> tuple[Instruction]:
            zero = self.hlo.full(table.shape.dimensions, kind, 0)
            called = (self.module.scalar_computation("add", kind),)
            fields = {"scatter": ScatterDimensions((1,), (0,), (0,), 1), "called_computation_ids": called}
            return (self._fused("scatter", table.shape.dimensions, (zero, indices, grad), fields),)

        return self.record(out, (table,), backward)

    def _fused(self, opcode: str, dims: Dims, operands: Sequence[Instruction], fields: dict) -> Instruction:
        """An instruction, in lowered programs as a fusion of its own."""
        if not self.form.lowered:
            return self.hlo.add(opcode, dims, operands, **fields)
        body = self.module.computation("fused_computation")
        inner = [body.parameter(each.shape.dimensions, each.shape.element_type) for each in operands]
        called = (body.finish(body.add(opcode, dims, inner, **fields)),)
        return self.hlo.add("fusion", dims, operands, fusion_kind="kCustom", called_computation_ids=called)

    def classify(self, logits: Instruction) -> Module:
        """The complete program: in training, with softmax cross-entropy of logits [..., classes] against labels."""
        hlo, dims = self.hlo, logits.shape.dimensions
        if not self.form.train:
            return self.finish(logits, {}, logits)
        kept, last = range(len(dims) - 1), (len(dims) - 1,)
        labels = hlo.broadcast(self.input(dims[:-1], S32), dims, kept)
        wide = hlo.convert(logits, F32)
        zero, one = (hlo.full(dims, F32, each) for each in (0, 1))
        one_hot = hlo.select(hlo.compare("EQ", labels, hlo.iota(dims, last[0])), one, zero)
        shifted = hlo.binary("subtract", wide, hlo.broadcast(hlo.reduce(wide, last, "maximum"), dims, kept))
        powers = hlo.unary("exponential", shifted)
        total = hlo.reduce(powers, last)
        logs = hlo.binary("subtract", shifted, hlo.broadcast(hlo.unary("log", total), dims, kept))
        share = 1 / math.prod(dims[:-1])
        missed = hlo.binary("multiply", hlo.unary("negate", one_hot), self.masked(logs))
        loss = hlo.scaled(hlo.reduce(missed, range(len(dims))), share)
        chance = hlo.binary("divide", powers, hlo.broadcast(total, dims, kept))
        gradient = hlo.scaled(hlo.binary("subtract", chance, one_hot), share)
        return self.finish(loss, {logits.id: hlo.convert(self.masked(gradient), logits.shape.element_type)}, logits)
