"""Tile kernels: a fused subgraph cut out of a program, as the TPU compiler makes them, and its tile candidates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import numpy as np

from tpugraphs_polynormer.hlo.layout_flow import ELEMENTWISE
from tpugraphs_polynormer.hlo.module import ConvolutionDimensions, Instruction, Module, Shape
from tpugraphs_polynormer.hlo.opcodes import OPCODE_IDS
from tpugraphs_polynormer.simulator.builder import ModuleBuilder, array_shape
from tpugraphs_polynormer.simulator.hardware import TPU_V3
from tpugraphs_polynormer.simulator.tile_costs import TileCosts, bounds_features

_CHEAP = frozenset(("broadcast", "constant", "iota"))  # always computed inside the kernel that uses them
_SEED_WEIGHTS = {"convolution": 4.0, "dot": 4.0, "reduce": 2.0, "reduce-window": 1.0, "transpose": 1.0}
_NEAR_BEST = 1.3  # times the best cost: the compiler's default is at most this slow
_HOPELESS = 10.0  # times the best cost: the compiler's cost model excludes slower tiles


def cut_kernel(module: Module, rng: np.random.Generator, max_nodes: int) -> Module:
    """A kernel of about `max_nodes` nodes at most, fused from a random neighbourhood of the entry computation."""
    entry = module.computations[-1].instructions
    by_id = {each.id: each for each in entry}
    consumers: dict[int, list[Instruction]] = {each.id: [] for each in entry}
    for each in entry:
        for operand in dict.fromkeys(each.operand_ids):
            consumers[operand].append(each)
    seed = _pick_seed(entry, rng)
    limit = int(rng.integers(3, max(4, max_nodes // 2)))
    region = {seed.id}
    root = seed
    while len(region) < limit and len(consumers[root.id]) == 1 and rng.random() < 0.9:
        follower = consumers[root.id][0]
        if OPCODE_IDS[follower.opcode] not in ELEMENTWISE and follower.opcode != "reduce":
            break
        region.add(follower.id)
        root = follower
    _absorb_producers(region, by_id, limit, rng)
    return _fusion_module(module, [each for each in entry if each.id in region], root)


def _pick_seed(entry: Iterable[Instruction], rng: np.random.Generator) -> Instruction:
    seeds = [each for each in entry if _seed_weight(each) > 0]
    weights = np.array([_seed_weight(each) for each in seeds])
    return seeds[int(rng.choice(len(seeds), p=weights / weights.sum()))]


def _seed_weight(instruction: Instruction) -> float:
    rank = len(instruction.shape.dimensions)
    if rank == 0 or (instruction.opcode == "dot" and rank != 2):
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
            elementwise = OPCODE_IDS[opcode] in ELEMENTWISE and len(region) < limit and rng.random() < 0.9
            if opcode in _CHEAP or elementwise:
                region.add(operand)


def _fusion_module(module: Module, region: list[Instruction], root: Instruction) -> Module:
    """A module whose entry calls the region as a fused computation; outside operands become parameters."""
    by_id = {each.id: each for each in module.computations[-1].instructions}
    inside = {each.id for each in region}
    outside = list(dict.fromkeys(each for item in region for each in item.operand_ids if each not in inside))
    builder = ModuleBuilder(module.name)
    body, entry = builder.computation("fused_computation"), builder.computation("entry")
    parameters = [
        Instruction(0, "parameter", _assigned_layout(by_id[each].shape), parameter_number=number)
        for number, each in enumerate(outside)
    ]
    made = {each: body.copy(parameter, ()) for each, parameter in zip(outside, parameters, strict=True)}
    for each in region:
        called = [_copy_scalar(module, builder, callee) for callee in each.called_computation_ids]
        changed = replace(_as_convolution(each, by_id), shape=_assigned_layout(each.shape))
        made[each.id] = body.copy(changed, [made[operand] for operand in each.operand_ids], called)
    fused = body.finish(made[root.id])
    arguments = [entry.copy(parameter, ()) for parameter in parameters]
    entry.finish(entry.copy(Instruction(0, "fusion", made[root.id].shape), arguments, [fused]))
    return builder.build()


def _copy_scalar(module: Module, builder: ModuleBuilder, identifier: int) -> int:
    """The id of a copy, in another module, of a scalar computation."""
    computation = next(each for each in module.computations if each.id == identifier)
    opcode = next(each.opcode for each in computation.instructions if each.id == computation.root_id)
    return builder.scalar_computation(opcode, computation.instructions[0].shape.element_type)


def _as_convolution(instruction: Instruction, by_id: dict[int, Instruction]) -> Instruction:
    """A dot of matrices as the convolution without a window that the TPU compiler replaces it by."""
    if instruction.opcode != "dot":
        return instruction
    first, second = (by_id[operand].shape.dimensions for operand in instruction.operand_ids)
    rows, columns = instruction.shape.dimensions
    batch = 0 if first[0] == rows else 1
    feature = 1 if second[1] == columns else 0
    numbers = ConvolutionDimensions(batch, 1 - batch, (), 1 - feature, feature, (), output_batch=0, output_feature=1)
    return replace(instruction, opcode="convolution", convolution=numbers, feature_group_count=1, batch_group_count=1)


def _assigned_layout(shape: Shape) -> Shape:
    """The shape after layout assignment: an image [batch, rows, columns, features] has minor dims features, batch."""
    dims = shape.dimensions
    if len(dims) == 4 and dims[1] == dims[2]:
        return replace(array_shape(dims, shape.element_type), minor_to_major=(3, 0, 2, 1))
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
