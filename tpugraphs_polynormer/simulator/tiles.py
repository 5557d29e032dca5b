"""Tile kernels: a fused subgraph cut out of a program, as the TPU compiler makes them, and its tile candidates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from tpugraphs_polynormer.hlo.layout_flow import ELEMENTWISE
from tpugraphs_polynormer.hlo.module import ConvolutionDimensions, Instruction, Module, Shape
from tpugraphs_polynormer.hlo.opcodes import OPCODE_IDS
from tpugraphs_polynormer.simulator.array_shapes import array_shape
from tpugraphs_polynormer.simulator.builder import ModuleBuilder
from tpugraphs_polynormer.simulator.hardware import TPU_V3
from tpugraphs_polynormer.simulator.tile_costs import TileCosts, bounds_features

_CHEAP = frozenset(("broadcast", "constant", "iota", "rng"))  # always computed inside the kernel that uses them
_SEED_WEIGHTS = {"convolution": 4.0, "dot": 4.0, "reduce": 2.0, "reduce-window": 1.0, "transpose": 1.0, "pad": 1.0}
_MOVING = 0.05  # the share of kernels that only move data: a copy to another layout, or a reshape
_NEAR_BEST = 1.3  # times the best cost: the compiler's default is at most this slow
_HOPELESS = 10.0  # times the best cost: the compiler's cost model excludes slower tiles


def cut_kernel(module: Module, rng: np.random.Generator, max_nodes: int) -> Module:
    """A kernel of about `max_nodes` nodes at most, fused from a random neighbourhood of the largest computation."""
    entry = max(module.computations, key=lambda each: len(each.instructions)).instructions
    if rng.random() < _MOVING:
        return _moving_kernel(module, entry, rng)
    by_id = {each.id: each for each in entry}
    consumers: dict[int, list[Instruction]] = {each.id: [] for each in entry}
    for each in entry:
        for operand in dict.fromkeys(each.operand_ids):
            consumers[operand].append(each)
    scalar = {each.id for each in module.computations if len(each.instructions) == 3}
    seed = _pick_seed([each for each in entry if scalar.issuperset(each.called_computation_ids)], rng)
    limit = int(rng.integers(3, max(4, max_nodes // 2)))
    region = {seed.id}
    root = seed
    while len(region) < limit and len(consumers[root.id]) == 1 and rng.random() < 0.9:
        follower = consumers[root.id][0]
        reduced = follower.opcode == "reduce" and scalar.issuperset(follower.called_computation_ids)
        if OPCODE_IDS[follower.opcode] not in ELEMENTWISE and not reduced:
            break
        region.add(follower.id)
        root = follower
    _absorb_producers(region, by_id, limit, rng)
    return _fusion_module(module, by_id, [each for each in entry if each.id in region], root)


def _moving_kernel(module: Module, entry: Sequence[Instruction], rng: np.random.Generator) -> Module:
    """A kernel of two nodes: a parameter, and its copy to another layout or, of a reshape's operand, the reshape."""
    values = [each for each in entry if len(each.shape.dimensions) > 1]
    value = values[int(rng.integers(len(values)))]
    by_id, builder = {each.id: each for each in entry}, ModuleBuilder(module.name)
    kernel = builder.computation("entry")
    if value.opcode == "reshape":
        source = kernel.shaped_parameter(by_id[value.operand_ids[0]].shape)
        kernel.finish(kernel.reshape(source, value.shape.dimensions))
        return builder.build()
    shape = _assigned_layout(value.shape)
    other = replace(shape, minor_to_major=tuple(rng.permutation(len(shape.dimensions)).tolist()))
    kernel.finish(kernel.make("copy", other, (kernel.shaped_parameter(shape),)))
    return builder.build()


def _pick_seed(entry: Iterable[Instruction], rng: np.random.Generator) -> Instruction:
    seeds = [each for each in entry if _seed_weight(each) > 0]
    weights = np.array([_seed_weight(each) for each in seeds])
    return seeds[int(rng.choice(len(seeds), p=weights / weights.sum()))]


def _seed_weight(instruction: Instruction) -> float:
    rank = len(instruction.shape.dimensions)
    operand_ranks = (
        []
        if instruction.dot is None
        else [len(each) for each in (instruction.dot.first_contracting, instruction.dot.first_batch)]
    )
    if rank == 0 or (instruction.opcode == "dot" and (rank != 2 or operand_ranks != [1, 0])):
        return 0.0
    if OPCODE_IDS[instruction.opcode] in ELEMENTWISE:
        return 0.3
    return _SEED_WEIGHTS.get(instruction.opcode, 0.0)


def _absorb_producers(region: set[int], by_id: dict[int, Instruction], limit: int, rng: np.random.Generator) -> None:
    """Adds operands to the region, last node first: cheap ones always, elementwise ones up to the limit."""
    for identifier in sorted(by_id, reverse=True):
        if identifier not in region:
            continue
        for operand in by_id[identifier].operand_ids:
            opcode = by_id[operand].opcode
            elementwise = OPCODE_IDS[opcode] in ELEMENTWISE or opcode == "reshape"
            if opcode in _CHEAP or (elementwise and len(region) < limit and rng.random() < 0.9):
                region.add(operand)


def _fusion_module(
    module: Module, by_id: dict[int, Instruction], region: list[Instruction], root: Instruction
) -> Module:
    """A module whose entry calls the region as a fused computation; outside operands become parameters."""
    inside = {each.id for each in region}
    outside = list(dict.fromkeys(each for item in region for each in item.operand_ids if each not in inside))
    builder = ModuleBuilder(module.name)
    body, entry = builder.computation("fused_computation"), builder.computation("entry")
    parameters = [
        Instruction(0, "parameter", _assigned_layout(by_id[each].shape), parameter_number=number)
        for number, each in enumerate(outside)
    ]
    made = {each: body.copy(parameter) for each, parameter in zip(outside, parameters, strict=True)}
    for each in region:
        called = [_copy_scalar(module, builder, callee) for callee in each.called_computation_ids]
        changed = replace(_as_in_kernel(each, by_id), shape=_assigned_layout(each.shape))
        made[each.id] = body.copy(changed, [made[operand] for operand in each.operand_ids], called)
    fused = body.finish(made[root.id])
    arguments = [entry.copy(parameter) for parameter in parameters]
    fields = {"fusion_kind": "kOutput", "called_computation_ids": (fused,)}
    entry.finish(entry.make("fusion", made[root.id].shape, arguments, **fields))
    return builder.build()


def _copy_scalar(module: Module, builder: ModuleBuilder, identifier: int) -> int:
    """The id of a copy, in another module, of a scalar computation."""
    computation = next(each for each in module.computations if each.id == identifier)
    opcode = next(each.opcode for each in computation.instructions if each.id == computation.root_id)
    return builder.scalar_computation(opcode, computation.instructions[0].shape.element_type)


def _as_in_kernel(instruction: Instruction, by_id: dict[int, Instruction]) -> Instruction:
    """An instruction as the TPU compiler has it in a kernel: a product of matrices is a convolution without a window,
    a reshape a bitcast."""
    if instruction.opcode == "reshape":
        return replace(instruction, opcode="bitcast")
    if instruction.opcode != "dot":
        return instruction
    (first,), (second,) = instruction.dot.first_contracting, instruction.dot.second_contracting
    numbers = ConvolutionDimensions(1 - first, first, (), second, 1 - second, (), output_batch=0, output_feature=1)
    groups = {"feature_group_count": 1, "batch_group_count": 1}
    return replace(instruction, opcode="convolution", dot=None, convolution=numbers, **groups)


def _assigned_layout(shape: Shape) -> Shape:
    """The shape after layout assignment: an image [batch, rows, ..., features] has minor dims features, batch."""
    dims = shape.dimensions
    if len(dims) >= 4 and dims[1] == dims[2]:
        minor = (len(dims) - 1, 0, *range(len(dims) - 2, 0, -1))
        return replace(array_shape(dims, shape.element_type), minor_to_major=minor)
    return shape


def draw_tiles(costs: TileCosts, rng: np.random.Generator, max_candidates: int) -> np.ndarray:
    """float32 [c, 24]: distinct tile candidates, the compiler's default (the largest good one that fits) first."""
    output, kernel = _all_bounds(costs, rng, 4 * max_candidates)
    features = bounds_features(kernel, output)
    held = costs.tile_bytes(features)
    seconds = costs.seconds(features)
    near_best = (seconds <= _NEAR_BEST * seconds.min()) & (held <= max(held.min(), TPU_V3.vmem_bytes))
    default = int(np.argmax(np.where(near_best, held, 0.0))) if near_best.any() else int(np.argmin(seconds))
    others = np.flatnonzero(seconds <= _HOPELESS * seconds.min())
    order = np.concatenate([[default], others[others != default]])
    return features[order[:max_candidates]]


def _all_bounds(costs: TileCosts, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds [c, rank] of output and kernel: up to `count` distinct draws of even cuts of each dimension."""
    options = [_even_cuts(size) for size in (*costs.output_units, *costs.kernel_units)]
    if math.prod(len(each) for each in options) <= count:
        drawn = np.array(list(product(*options)), dtype=np.int64)
    else:
        drawn = np.stack([np.asarray(each)[rng.integers(len(each), size=count)] for each in options], axis=1)
    rank = len(costs.output_units)
    if costs.kernel_units:
        # The kernel's tile has as many output features as the output's tile.
        index = rank + costs.kernel_index
        features = drawn[:, costs.output_index] * costs.feature_scale[0]
        drawn[:, index] = np.minimum(-(-features // costs.feature_scale[1]), costs.kernel_units[costs.kernel_index])
    drawn = rng.permutation(np.unique(drawn, axis=0))
    return drawn[:, :rank], drawn[:, rank:]


def _even_cuts(size: int) -> list[int]:
    """The bounds that cut `size` into 1, 2, 3, ... steps, each once."""
    return sorted({-(-size // steps) for steps in range(1, size + 1)})
