"""Neural-network layers on top of the HLO builder, with a tape that adds the backward graph and the weight updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tpugraphs_polynormer.hlo.module import ConvolutionDimensions, Instruction, Module, WindowDimension
from tpugraphs_polynormer.simulator.builder import BF16, F32, S32, ComputationBuilder, ModuleBuilder, same_padding

_window = partial(WindowDimension, window_dilation=1, base_dilation=1)  # of size, stride, low and high padding
Backward = Callable[[Instruction], Sequence[Instruction | None]]
_FORWARD = ConvolutionDimensions(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
_INPUT_GRADIENT = ConvolutionDimensions(0, 3, (1, 2), 3, 2, (0, 1), 0, 3, (1, 2))
_KERNEL_GRADIENT = ConvolutionDimensions(3, 0, (1, 2), 0, 3, (1, 2), 2, 3, (0, 1))


class Network:
    """One program under construction: activations are [batch, rows, columns, features] or [rows, features]."""

    def __init__(self, name: str, *, element_type: int = F32, optimizer: str = "sgd") -> None:
        self.module = ModuleBuilder(name)
        self.hlo: ComputationBuilder = self.module.computation("main")
        self.element_type = element_type
        self._optimizer = optimizer
        self._weights: list[Instruction] = []
        self._tape: list[tuple[Instruction, tuple[Instruction, ...], Backward]] = []

    def input(self, dims: Sequence[int]) -> Instruction:
        """An input of the program."""
        return self.hlo.parameter(dims, self.element_type)

    def weight(self, dims: Sequence[int]) -> Instruction:
        """A weight that training updates."""
        weight = self.hlo.parameter(dims, self.element_type)
        self._weights.append(weight)
        return weight

    def finish(self, result: Instruction, *, train: bool) -> Module:
        """The complete program; its outputs are the result, or the updated weights of a training step."""
        outputs = self._updates(result) if train else [result]
        self.hlo.finish(self.hlo.tuple(outputs))
        return self.module.build()

    def record(self, output: Instruction, inputs: Sequence[Instruction], backward: Backward) -> Instruction:
        """The output; `backward`, its gradient as a function, is recorded for the training step."""
        self._tape.append((output, tuple(inputs), backward))
        return output

    def _updates(self, result: Instruction) -> list[Instruction]:
        gradients = {result.id: self._loss_gradient(result)}
        for output, inputs, backward in reversed(self._tape):
            if output.id not in gradients:
                continue
            for each, gradient in zip(inputs, backward(gradients.pop(output.id)), strict=True):
                if gradient is not None:
                    known = gradients.get(each.id)
                    gradients[each.id] = gradient if known is None else self.hlo.binary("add", known, gradient)
        updated = [(each, gradients[each.id]) for each in self._weights if each.id in gradients]
        return [value for weight, gradient in updated for value in self._update(weight, gradient)]

    def _loss_gradient(self, logits: Instruction) -> Instruction:
        """Softmax cross-entropy against labels: probabilities minus one-hot, over the batch."""
        dims = logits.shape.dimensions
        labels = self.hlo.parameter(dims[:-1], S32)
        spread = self.hlo.broadcast(labels, dims, range(len(dims) - 1))
        indices = self.hlo.add("iota", dims, (), S32, dimensions=(len(dims) - 1,))
        one_hot = self.hlo.add(
            "convert", dims, (self.hlo.add("compare", dims, (spread, indices), 1),), self.element_type
        )
        return self.hlo.scaled(self.hlo.binary("subtract", self._softmax(logits), one_hot))

    def _update(self, weight: Instruction, gradient: Instruction) -> list[Instruction]:
        hlo = self.hlo
        if self._optimizer == "sgd":
            return [hlo.binary("subtract", weight, hlo.scaled(gradient))]
        first, second = (hlo.parameter(weight.shape.dimensions, self.element_type) for _ in range(2))
        mean = hlo.binary("add", hlo.scaled(first), hlo.scaled(gradient))
        square = hlo.binary("add", hlo.scaled(second), hlo.scaled(hlo.binary("multiply", gradient, gradient)))
        step = hlo.binary("divide", hlo.scaled(mean), hlo.unary("sqrt", hlo.scaled(square)))
        return [hlo.binary("subtract", weight, hlo.scaled(step)), mean, square]

    def conv(self, value: Instruction, features: int, size: int, stride: int = 1) -> Instruction:
        """A size x size convolution with padding "same"."""
        batch, rows, columns, depth = value.shape.dimensions
        kernel = self.weight((size, size, depth, features))
        dims = (batch, -(-rows // stride), -(-columns // stride), features)
        window = [_window(size, stride, *same_padding(each, size, stride)) for each in (rows, columns)]
        out = self.hlo.convolution(value, kernel, dims, window, _FORWARD)
        return self.record(out, (value, kernel), lambda grad: self._conv_gradients(value, kernel, grad, stride))

    def _conv_gradients(
        self, value: Instruction, kernel: Instruction, gradient: Instruction, stride: int
    ) -> tuple[Instruction, Instruction]:
        size, spatial = kernel.shape.dimensions[0], gradient.shape.dimensions[1:3]
        back = [_window(size, 1, size // 2, size - 1 - size // 2, base_dilation=stride, reversal=True)] * 2
        taps = [_window(each, 1, size // 2, size - 1 - size // 2, window_dilation=stride) for each in spatial]
        to_value = self.hlo.convolution(gradient, kernel, value.shape.dimensions, back, _INPUT_GRADIENT)
        to_kernel = self.hlo.convolution(value, gradient, kernel.shape.dimensions, taps, _KERNEL_GRADIENT)
        return to_value, to_kernel

    def upsample(self, value: Instruction, features: int) -> Instruction:
        """A 2 x 2 transposed convolution that doubles rows and columns."""
        batch, rows, columns, depth = value.shape.dimensions
        kernel = self.weight((2, 2, features, depth))
        window = [_window(2, 1, 1, 1, base_dilation=2)] * 2
        dims = (batch, 2 * rows, 2 * columns, features)
        out = self.hlo.convolution(value, kernel, dims, window, _INPUT_GRADIENT)

        def backward(grad: Instruction) -> tuple[Instruction, Instruction]:
            to_value = self.hlo.convolution(grad, kernel, value.shape.dimensions, [_window(2, 2, 0, 0)] * 2, _FORWARD)
            taps = [_window(each, 1, 0, 0, window_dilation=2) for each in (rows, columns)]
            to_kernel = self.hlo.convolution(grad, value, kernel.shape.dimensions, taps, _KERNEL_GRADIENT)
            return to_value, to_kernel

        return self.record(out, (value, kernel), backward)

    def dense(self, value: Instruction, features: int) -> Instruction:
        """[rows, depth] times a weight, plus a bias."""
        rows, depth = value.shape.dimensions
        weight = self.weight((depth, features))
        out = self.hlo.dot(value, weight, (rows, features))

        def backward(grad: Instruction) -> tuple[Instruction, Instruction]:
            return self.hlo.dot(grad, weight, (rows, depth)), self.hlo.dot(value, grad, (depth, features))

        return self.bias(self.record(out, (value, weight), backward))

    def bias(self, value: Instruction) -> Instruction:
        """Adds a weight per feature."""
        dims, last = value.shape.dimensions, len(value.shape.dimensions) - 1
        weight = self.weight(dims[-1:])
        out = self.hlo.binary("add", value, self.hlo.broadcast(weight, dims, (last,)))
        return self.record(out, (value, weight), lambda grad: (grad, self.hlo.reduce(grad, range(last))))

    def add(self, first: Instruction, second: Instruction) -> Instruction:
        """The sum of two branches."""
        return self.record(self.hlo.binary("add", first, second), (first, second), lambda grad: (grad, grad))

    def relu(self, value: Instruction) -> Instruction:
        """max(value, 0)."""
        zero = self.hlo.full(value.shape.dimensions, self.element_type)
        out = self.hlo.binary("maximum", value, zero)
        return self.record(out, (value,), lambda grad: (self.hlo.select_positive(out, grad),))

    def gelu(self, value: Instruction) -> Instruction:
        """The tanh form of the Gaussian error linear unit."""
        hlo = self.hlo
        cube = hlo.binary("multiply", hlo.binary("multiply", value, value), value)
        gate = hlo.unary("tanh", hlo.scaled(hlo.binary("add", value, hlo.scaled(cube))))
        half = hlo.scaled(value)
        out = hlo.binary("add", half, hlo.binary("multiply", half, gate))

        def backward(grad: Instruction) -> tuple[Instruction]:
            slope = hlo.binary("subtract", hlo.scaled(gate), hlo.binary("multiply", gate, gate))
            return (hlo.binary("multiply", grad, hlo.binary("add", slope, half)),)

        return self.record(out, (value,), backward)

    def max_pool(self, value: Instruction, size: int = 2) -> Instruction:
        """The maximum of each size x size window."""
        out = self.hlo.reduce_window(value, size)
        return self.record(out, (value,), lambda grad: (self.hlo.select_and_scatter(value, grad, size),))

    def mean_pool(self, value: Instruction) -> Instruction:
        """The mean over rows and columns: [batch, features]."""
        out = self.hlo.scaled(self.hlo.reduce(value, (1, 2)))
        dims = value.shape.dimensions
        return self.record(out, (value,), lambda grad: (self.hlo.broadcast(self.hlo.scaled(grad), dims, (0, 3)),))

    def normalize(self, value: Instruction, dimensions: Sequence[int]) -> Instruction:
        """Zero mean and unit variance over some dimensions, then a scale and a shift per feature.

        Batch normalization reduces all dimensions but the last, layer normalization the last alone.
        """
        hlo, dims = self.hlo, value.shape.dimensions
        kept = [dim for dim in range(len(dims)) if dim not in dimensions]
        last = len(dims) - 1
        mean = hlo.scaled(hlo.reduce(value, dimensions))
        centred = hlo.binary("subtract", value, hlo.broadcast(mean, dims, kept))
        variance = hlo.scaled(hlo.reduce(hlo.binary("multiply", centred, centred), dimensions))
        inverse = hlo.broadcast(hlo.unary("rsqrt", variance), dims, kept)
        unit = hlo.binary("multiply", centred, inverse)
        scale, shift = self.weight(dims[-1:]), self.weight(dims[-1:])
        spread = hlo.broadcast(scale, dims, (last,))
        out = hlo.binary("add", hlo.binary("multiply", unit, spread), hlo.broadcast(shift, dims, (last,)))

        def backward(grad: Instruction) -> tuple[Instruction, ...]:
            product = hlo.binary("multiply", grad, unit)
            slope = hlo.binary("multiply", grad, spread)
            bulk = hlo.broadcast(hlo.scaled(hlo.reduce(slope, dimensions)), dims, kept)
            along = hlo.broadcast(hlo.scaled(hlo.reduce(product, dimensions)), dims, kept)
            rest = hlo.binary("subtract", hlo.binary("subtract", slope, bulk), hlo.binary("multiply", unit, along))
            to_value = hlo.binary("multiply", rest, inverse)
            return to_value, hlo.reduce(product, range(last)), hlo.reduce(grad, range(last))

        return self.record(out, (value, scale, shift), backward)

    def _softmax(self, value: Instruction) -> Instruction:
        hlo, dims = self.hlo, value.shape.dimensions
        kept, last = range(len(dims) - 1), (len(dims) - 1,)
        top = hlo.broadcast(hlo.reduce(value, last, "maximum"), dims, kept)
        powers = hlo.unary("exponential", hlo.binary("subtract", value, top))
        return hlo.binary("divide", powers, hlo.broadcast(hlo.reduce(powers, last), dims, kept))

    def softmax(self, value: Instruction) -> Instruction:
        """Probabilities along the last dimension."""
        hlo, dims = self.hlo, value.shape.dimensions
        out = self._softmax(value)

        def backward(grad: Instruction) -> tuple[Instruction]:
            total = hlo.reduce(hlo.binary("multiply", grad, out), (len(dims) - 1,))
            spread = hlo.broadcast(total, dims, range(len(dims) - 1))
            return (hlo.binary("multiply", out, hlo.binary("subtract", grad, spread)),)

        return self.record(out, (value,), backward)

    def reshape(self, value: Instruction, dims: Sequence[int]) -> Instruction:
        """The same elements in another shape."""
        if math.prod(dims) != math.prod(value.shape.dimensions):
            raise ValueError(f"reshape: {value.shape.dimensions} does not hold as many elements as {tuple(dims)}")
        out = self.hlo.reshape(value, dims)
        return self.record(out, (value,), lambda grad: (self.hlo.reshape(grad, value.shape.dimensions),))

    def transpose(self, value: Instruction, order: Sequence[int]) -> Instruction:
        """Dimension i of the result is dimension `order[i]` of the value."""
        inverse = sorted(range(len(order)), key=lambda index: order[index])
        out = self.hlo.transpose(value, order)
        return self.record(out, (value,), lambda grad: (self.hlo.transpose(grad, inverse),))

    def matmul(self, first: Instruction, second: Instruction) -> Instruction:
        """[..., m, k] times [..., n, k] over the leading (batch) dims: [..., m, n]."""
        dims = (*first.shape.dimensions[:-1], second.shape.dimensions[-2])
        out = self.hlo.dot(first, second, dims)

        def backward(grad: Instruction) -> tuple[Instruction, Instruction]:
            to_first = self.hlo.dot(grad, second, first.shape.dimensions)
            return to_first, self.hlo.dot(grad, first, second.shape.dimensions)

        return self.record(out, (first, second), backward)

    def concatenate(self, values: Sequence[Instruction]) -> Instruction:
        """The values one after another along the last dimension."""
        last = len(values[0].shape.dimensions) - 1

        def backward(grad: Instruction) -> list[Instruction]:
            pieces, start = [], 0
            for each in values:
                limit = start + each.shape.dimensions[last]
                pieces.append(self.hlo.slice(grad, last, start, limit))
                start = limit
            return pieces

        return self.record(self.hlo.concatenate(values, last), values, backward)

    def lookup(self, table: Instruction, dims: Sequence[int]) -> Instruction:
        """Rows of a table by index: dims + [features]."""
        indices = self.hlo.parameter(dims, S32)
        out = self.hlo.add("gather", (*dims, table.shape.dimensions[1]), (table, indices))

        def backward(grad: Instruction) -> tuple[Instruction]:
            zero = self.hlo.full(table.shape.dimensions, self.element_type)
            called = (self.module.scalar_computation("add", self.element_type),)
            operands = (zero, indices, grad)
            return (self.hlo.add("scatter", table.shape.dimensions, operands, called_computation_ids=called),)

        return self.record(out, (table,), backward)


PRECISIONS = {"f32": F32, "bf16": BF16}
