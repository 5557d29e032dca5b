"""64-bit integers and random bits, spelled as the TPU compiler spells them: in 32-bit words.

A TPU has no 64-bit integers. Its compiler replaces one by two unsigned words (custom calls split arguments and join
results), so that real graphs contain dozens of bit operations for one conversion of the step counter to a float.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpugraphs_polynormer.hlo.module import Instruction, Shape
from tpugraphs_polynormer.simulator.array_shapes import F32, S32, S64, TUPLE, U32, array_shape
from tpugraphs_polynormer.simulator.builder import ComputationBuilder

_ONES = (1 << 32) - 1


@dataclass(frozen=True)
class Words:
    """A 64-bit integer as its low and high word, or, in programs that are not lowered, as itself (`high` is None)."""

    low: Instruction
    high: Instruction | None


def split(hlo: ComputationBuilder, value: Instruction, *, lowered: bool) -> Words:
    """The words of an s64 value."""
    if not lowered:
        return Words(value, None)
    dims = value.shape.dimensions
    low, high = (hlo.custom_call(f"X64Split{part}", dims, (value,), U32) for part in ("Low", "High"))
    return Words(low, high)


def join(hlo: ComputationBuilder, words: Words) -> Instruction:
    """The s64 value of two words."""
    if words.high is None:
        return words.low
    return hlo.custom_call("X64Combine", words.low.shape.dimensions, (words.low, words.high), S64)


def increment(hlo: ComputationBuilder, words: Words) -> Words:
    """The next integer: the high word grows if the low one overflows."""
    if words.high is None:
        return Words(hlo.shifted(words.low, 1), None)
    low, carried = hlo.shifted(words.low, 1), hlo.shifted(words.high, 1)
    return Words(low, hlo.select(hlo.compare("LT", low, words.low), carried, words.high))


def total(hlo: ComputationBuilder, words: Words) -> Words:
    """The sum of integers [n]: in words, a reduce of pairs whose low words carry into the high ones."""
    dims = words.low.shape.dimensions
    if words.high is None:
        return Words(hlo.reduce(words.low, range(len(dims))), None)
    body = hlo.module.computation("add_words")
    low, high, other_low, other_high = (body.parameter((), U32) for _ in range(4))
    sum_low, sum_high = body.binary("add", low, other_low), body.binary("add", high, other_high)
    carried = body.select(body.compare("LT", sum_low, low), body.shifted(sum_high, 1), sum_high)
    called = (body.finish(body.tuple([sum_low, carried])),)
    zero = hlo.constant(U32, 0)
    shape = Shape(TUPLE, tuple_shapes=(array_shape((), U32),) * 2)
    fields = {"dimensions": tuple(range(len(dims))), "called_computation_ids": called}
    made = hlo.make("reduce", shape, (words.low, words.high, zero, zero), **fields)
    return Words(hlo.element(made, 0), hlo.element(made, 1))


def to_float(hlo: ComputationBuilder, words: Words) -> Instruction:
    """The integer as f32: its magnitude, normalized by its leading zeros, then the exponent and the sign."""
    if words.high is None:
        return hlo.convert(words.low, F32)
    low, high, dims = words.low, words.high, words.low.shape.dimensions

    def number(value: int) -> Instruction:
        return hlo.full(dims, U32, value)

    negative = hlo.compare("LT", hlo.convert(high, S32, "bitcast-convert"), hlo.full(dims, S32, 0))
    minus_low = hlo.binary("subtract", number(0), low)
    borrowed = hlo.select(hlo.compare("NE", minus_low, number(0)), hlo.shifted(high, 1), high)
    high = hlo.select(negative, hlo.binary("subtract", number(0), borrowed), high)
    low = hlo.select(negative, minus_low, low)
    bits = hlo.binary("subtract", number(32), hlo.unary("count-leading-zeros", high))
    small = hlo.convert(low, F32)
    small = hlo.select(negative, hlo.unary("negate", small), small)
    sign = hlo.select(negative, number(1 << 31), number(0))
    shift = hlo.shifted(bits, 1)
    beyond = hlo.binary("shift-right-logical", high, hlo.shifted(bits, _ONES - 30))
    rest = hlo.binary("subtract", number(32), shift)
    joined = hlo.binary("or", hlo.binary("shift-left", high, rest), hlo.binary("shift-right-logical", low, shift))
    top = hlo.select(hlo.compare("GE", shift, number(32)), beyond, joined)
    lost = hlo.binary("and", hlo.binary("shift-right-logical", number(_ONES), rest), low)
    sticky = hlo.select(hlo.compare("NE", lost, number(0)), number(1), number(0))
    rounded = hlo.convert(hlo.convert(hlo.binary("or", top, sticky), F32), U32, "bitcast-convert")
    scaled = hlo.binary("add", rounded, hlo.binary("shift-left", shift, number(23)))
    large = hlo.convert(hlo.binary("or", sign, scaled), F32, "bitcast-convert")
    return hlo.select(hlo.compare("EQ", bits, number(0)), small, large)


def uniform(hlo: ComputationBuilder, dims: tuple[int, ...], *, key: Instruction | None) -> Instruction:
    """f32 in 0..1: drawn by the device, or, with a u32 key, hashed from a counter in the manner of threefry."""
    if key is None:
        fields = {"distribution": 1}
        return hlo.add("rng", dims, (hlo.constant(F32, 0), hlo.constant(F32, 1)), F32, **fields)
    counter = hlo.iota(dims, len(dims) - 1, U32)
    first, second = hlo.binary("add", counter, hlo.broadcast(key, dims, ())), hlo.shifted(counter, 0x1BD11BDA)
    for rotation in (13, 15, 26, 6):
        first = hlo.binary("add", first, second)
        left = hlo.binary("shift-left", second, hlo.full(dims, U32, rotation))
        right = hlo.binary("shift-right-logical", second, hlo.full(dims, U32, 32 - rotation))
        second = hlo.binary("xor", hlo.binary("or", left, right), first)
    mantissa = hlo.binary("shift-right-logical", hlo.binary("xor", first, second), hlo.full(dims, U32, 9))
    bits = hlo.binary("or", mantissa, hlo.full(dims, U32, 0x3F800000))
    return hlo.shifted(hlo.convert(bits, F32, "bitcast-convert"), -1)
