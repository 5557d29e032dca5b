"""Convolutions and pooling over any number of spatial dimensions, each with its gradient."""

from __future__ import annotations

import math
from functools import lru_cache, partial

from tpugraphs_polynormer.hlo.module import ConvolutionDimensions, Instruction, WindowDimension
from tpugraphs_polynormer.simulator.network import Network

_window = partial(WindowDimension, window_dilation=1, base_dilation=1)  # of size, stride, low and high padding


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Low and high padding that gives ceil(size / stride) outputs."""
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return total // 2, total - total // 2


@lru_cache(maxsize=16)
def convolution_numbers(rank: int, kind: str) -> ConvolutionDimensions:
    """The dimension numbers of a convolution of [batch, spatial..., features] with [spatial..., in, out].

    "forward"; "input_gradient", which exchanges the kernel's features; "kernel_gradient", which exchanges batch and
    features of the input, and whose second operand is the gradient.
    """
    last, inner, outer = rank - 1, tuple(range(1, rank - 1)), tuple(range(rank - 2))
    if kind == "kernel_gradient":
        return ConvolutionDimensions(last, 0, inner, 0, last, inner, last - 1, last, outer)
    features = (last - 1, last) if kind == "forward" else (last, last - 1)
    return ConvolutionDimensions(0, last, inner, *features, outer, 0, last, inner)


class Convolutions(Network):
    """A network with the layers that see space: values are [batch, spatial..., features]."""

    def conv(self, value: Instruction, features: int, size: int, stride: int = 1, *, same: bool = True) -> Instruction:
        """A convolution over all spatial dimensions, with padding "same" or none."""
        batch, *spatial, depth = value.shape.dimensions
        kernel = self.weight((*[size] * len(spatial), depth, features))
        padding = [same_padding(each, size, stride) if same else (0, 0) for each in spatial]
        sizes = [(each + sum(pad) - size) // stride + 1 for each, pad in zip(spatial, padding, strict=True)]
        window = [_window(size, stride, *pad) for pad in padding]
        forward, input_gradient, kernel_gradient = (
            convolution_numbers(len(spatial) + 2, kind) for kind in ("forward", "input_gradient", "kernel_gradient")
        )
        out = self.hlo.convolution(value, kernel, (batch, *sizes, features), window, forward)

        def backward(gradient: Instruction) -> tuple[Instruction, Instruction]:
            back, taps = [], []
            for each, made, (low, _) in zip(spatial, sizes, padding, strict=True):
                reach = (made - 1) * stride
                ends = (size - 1 - low, each - reach - 1 + low)
                back.append(_window(size, 1, *ends, base_dilation=stride, reversal=True))
                taps.append(_window(made, 1, low, size + reach - each - low, window_dilation=stride))
            to_value = self.hlo.convolution(gradient, kernel, value.shape.dimensions, back, input_gradient)
            operands = (self.masked(value), self.masked(gradient))
            return to_value, self.hlo.convolution(*operands, kernel.shape.dimensions, taps, kernel_gradient)

        return self.record(out, (value, kernel), backward)

    def upsample(self, value: Instruction, features: int) -> Instruction:
        """A transposed convolution of size 2 that doubles all spatial dimensions."""
        batch, *spatial, depth = value.shape.dimensions
        rank = len(spatial)
        kernel = self.weight((*[2] * rank, features, depth))
        window = [_window(2, 1, 1, 1, base_dilation=2, reversal=True)] * rank
        forward, input_gradient, kernel_gradient = (
            convolution_numbers(rank + 2, kind) for kind in ("forward", "input_gradient", "kernel_gradient")
        )
        dims = (batch, *(2 * each for each in spatial), features)
        out = self.hlo.convolution(value, kernel, dims, window, input_gradient)

        def backward(grad: Instruction) -> tuple[Instruction, Instruction]:
            window = [_window(2, 2, 0, 0)] * rank
            to_value = self.hlo.convolution(grad, kernel, value.shape.dimensions, window, forward)
            taps = [_window(each, 1, 0, 0, window_dilation=2) for each in spatial]
            operands = (self.masked(grad), self.masked(value))
            return to_value, self.hlo.convolution(*operands, kernel.shape.dimensions, taps, kernel_gradient)

        return self.record(out, (value, kernel), backward)

    def max_pool(self, value: Instruction, size: int = 2, stride: int = 2) -> Instruction:
        """The maximum of each window over the spatial dimensions."""
        hlo, kind, dims = self.hlo, value.shape.element_type, value.shape.dimensions
        sizes = [1, *[size] * (len(dims) - 2), 1]
        window = tuple(_window(each, stride if each > 1 else 1) for each in sizes)
        made = [(each - taps) // (stride if taps > 1 else 1) + 1 for each, taps in zip(dims, sizes, strict=True)]
        called = (self.module.scalar_computation("maximum", kind),)
        operands = (value, hlo.constant(kind, -math.inf))
        out = hlo.add("reduce-window", made, operands, window=window, called_computation_ids=called)

        def backward(grad: Instruction) -> tuple[Instruction]:
            called = tuple(self.module.scalar_computation(opcode, kind) for opcode in ("compare", "add"))
            operands = (value, grad, hlo.constant(kind, 0))
            fields = {"window": window, "called_computation_ids": called}
            return (hlo.add("select-and-scatter", dims, operands, **fields),)

        return self.record(out, (value,), backward)

    def mean_pool(self, value: Instruction) -> Instruction:
        """The mean over all spatial dimensions: [batch, features]."""
        hlo, dims = self.hlo, value.shape.dimensions
        last = len(dims) - 1
        share = 1 / math.prod(dims[1:last])
        out = hlo.scaled(hlo.reduce(value, range(1, last)), share)
        return self.record(out, (value,), lambda grad: (hlo.broadcast(hlo.scaled(grad, share), dims, (0, last)),))
