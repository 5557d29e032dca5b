"""Small programs for the tests of the HLO package, and hypothesis strategies for arbitrary ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.choices import NUM_LAYOUT_COLUMNS, Choices
from tpugraphs_polynormer.hlo.module import (
    Computation,
    ConvolutionDimensions,
    Instruction,
    Module,
    PaddingDimension,
    Shape,
    SliceDimension,
    WindowDimension,
)

F32 = 11
INT64 = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)
INT64S = st.lists(INT64, max_size=9).map(tuple)


def array(*dimensions: int, element_type: int = F32) -> Shape:
    return Shape(element_type, dimensions, (), tuple(reversed(range(len(dimensions)))))


def program(*instructions: Instruction, name: str = "main") -> Module:
    """A module of one computation, whose root is the last instruction."""
    return Module("program", (Computation(1, name, instructions[-1].id, instructions),), entry_computation_id=1)


def small_cnn() -> Module:
    """A classifier of sixteen 8 x 8 x 3 images: convolution, activation, reshape and dot."""
    numbers = ConvolutionDimensions(
        input_batch=0,
        input_feature=3,
        input_spatial=(1, 2),
        kernel_input_feature=2,
        kernel_output_feature=3,
        kernel_spatial=(0, 1),
        output_batch=0,
        output_feature=3,
        output_spatial=(1, 2),
    )
    window = (WindowDimension(3, 1, 1, 1, 1, 1), WindowDimension(3, 1, 1, 1, 1, 1))
    return program(
        Instruction(1, "parameter", array(16, 8, 8, 3), "images"),
        Instruction(2, "parameter", array(3, 3, 3, 16), "kernel", parameter_number=1),
        Instruction(3, "parameter", array(1024, 10), "weights", parameter_number=2),
        Instruction(4, "convolution", array(16, 8, 8, 16), "conv", (1, 2), window=window, convolution=numbers),
        Instruction(5, "tanh", array(16, 8, 8, 16), "act", (4,)),
        Instruction(6, "reshape", array(16, 1024), "flat", (5,)),
        Instruction(7, "dot", array(16, 10), "logits", (6, 3)),
    )


_SHAPES = st.recursive(
    st.builds(Shape, st.integers(0, 40), INT64S, st.just(()), INT64S),
    lambda parts: st.builds(Shape, st.just(13), st.just(()), st.lists(parts, max_size=3).map(tuple), st.just(())),
    max_leaves=6,
)


def _some(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(strategy, max_size=8).map(tuple)


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """A strategy for consistent modules, in which every field may be absent, empty, long, negative or large."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ids = draw(st.lists(INT64, min_size=sum(sizes), max_size=sum(sizes), unique=True))
    numbers = draw(st.lists(INT64, min_size=len(sizes), max_size=len(sizes), unique=True))
    computations, start = [], 0
    for number, size in zip(numbers, sizes, strict=True):
        own = ids[start : start + size]
        instructions = tuple(draw(_instruction(each, ids, numbers)) for each in own)
        name = draw(st.sampled_from(["main", "while_body", "region_cond", "cluster.1", "add", ""]))
        computations.append(Computation(number, name, draw(st.sampled_from(own)), instructions))
        start += size
    return Module(draw(st.text(max_size=8)), tuple(computations), draw(st.sampled_from(numbers)))


def _instruction(identifier: int, ids: list[int], computations: list[int]) -> st.SearchStrategy[Instruction]:
    return st.builds(
        Instruction,
        id=st.just(identifier),
        opcode=st.sampled_from(["add", "dot", "convolution", "reshape", "tuple", "while", "brand-new-opcode"]),
        shape=_SHAPES,
        name=st.text(max_size=5),
        operand_ids=st.lists(st.sampled_from(ids), max_size=4).map(tuple),
        called_computation_ids=st.lists(st.sampled_from(computations), max_size=2).map(tuple),
        parameter_number=INT64,
        dimensions=INT64S,
        window=_some(st.builds(WindowDimension, *[INT64] * 6, st.booleans())),
        convolution=st.none()
        | st.builds(
            ConvolutionDimensions, INT64, INT64, INT64S, INT64, INT64, INT64S, INT64, INT64, output_spatial=INT64S
        ),
        slice_dimensions=_some(st.builds(SliceDimension, INT64, INT64, INT64)),
        dynamic_slice_sizes=INT64S,
        padding=_some(st.builds(PaddingDimension, INT64, INT64, INT64)),
        feature_group_count=INT64,
        batch_group_count=INT64,
        is_stable=st.booleans(),
    )


def check_candidates(choices: Choices, layouts: np.ndarray) -> None:
    """Raises HloError unless every node's row in [c, nc, 18] is one of its choices, or all -1."""
    expected = (len(choices.node_ids), NUM_LAYOUT_COLUMNS)
    if layouts.ndim != 3 or layouts.shape[1:] != expected:
        raise HloError(f"candidates have shape {layouts.shape}, expected (count, {expected[0]}, {expected[1]})")
    for node, (start, count) in enumerate(zip(choices.starts, choices.counts, strict=True)):
        legal = np.zeros(len(layouts), dtype=bool)
        for choice in choices.table[start : start + count]:
            legal |= (layouts[:, node] == choice).all(axis=1)
        legal |= (layouts[:, node] == -1).all(axis=1)
        if not legal.all():
            row = int(np.argmin(legal))
            raise HloError(
                f"candidate {row} gives node {choices.node_ids[node]} the layouts {layouts[row, node].tolist()}, which "
                f"are none of its {count} choices; expected minor-to-major dims that the compiler accepts"
            )
