"""Programs of every family, and kernels cut from them, are valid modules."""

from collections import Counter

import numpy as np
import pytest

from tests.hlo.programs import check_candidates
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import CONVOLUTION_DIMENSIONS, SHAPE_DIMENSIONS, featurize_module
from tpugraphs_polynormer.hlo.opcodes import CONFIGURABLE_OPCODES, ELEMENTWISE_OPCODES, OPCODE_IDS, OPCODE_NAMES
from tpugraphs_polynormer.hlo.sampling import draw_candidates
from tpugraphs_polynormer.simulator.array_shapes import F32, argument_shape
from tpugraphs_polynormer.simulator.builder import ModuleBuilder
from tpugraphs_polynormer.simulator.programs import FAMILIES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES
from tpugraphs_polynormer.simulator.tile_costs import TileCosts
from tpugraphs_polynormer.simulator.tiles import cut_kernel, draw_tiles

CASES = [(family, seed) for family in sorted(FAMILIES) for seed in range(6)]
SIZE = SCALES["tiny"].size


def instructions(module):
    return [each for computation in module.computations for each in computation.instructions]


def check_graph(arrays):
    """Asserts the properties that every official archive has."""
    consumer, producer = arrays.edge_index.T
    assert (consumer > producer).all(), "topological order"
    assert producer.min() >= 0 and consumer.max() < len(arrays.node_opcode)
    rows = arrays.edge_index.tolist()
    assert rows == sorted(rows) and len({tuple(row) for row in rows}) == len(rows)
    assert (arrays.node_opcode > 0).all(), "only opcodes that the dataset knows"
    assert arrays.node_feat.shape == (len(arrays.node_opcode), 140) and np.isfinite(arrays.node_feat).all()
    assert arrays.node_splits[0] == 0 and arrays.node_splits[-1] == len(arrays.node_opcode)


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_program_is_a_valid_graph(family, seed):
    module = draw_program(family, SIZE, np.random.default_rng(seed))
    arrays = featurize_module(module)
    check_graph(arrays)
    choices = enumerate_choices(module)
    names = [each.opcode for each in instructions(module)]
    assert choices.node_ids.tolist() == [row for row, name in enumerate(names) if name in CONFIGURABLE_OPCODES]
    check_candidates(choices, draw_candidates(choices, 20, seed=0, mode="random", tied=False))
    assert draw_program(family, SIZE, np.random.default_rng(seed)) == module
    assert draw_program(family, SIZE, np.random.default_rng(seed + 1000)) != module


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_shapes_fit_together(family, seed):
    """Elementwise operands agree, reshapes keep the elements, dots and convolutions contract equal sizes."""
    module = draw_program(family, SIZE, np.random.default_rng(seed))
    by_id = {each.id: each for each in instructions(module)}
    for each in instructions(module):
        dims = each.shape.dimensions
        operands = [by_id[operand].shape.dimensions for operand in each.operand_ids]
        if each.opcode in ELEMENTWISE_OPCODES - {"clamp"}:
            assert set(operands) == {dims}
        elif each.opcode == "reshape":
            assert np.prod(operands[0]) == np.prod(dims)
        elif each.opcode == "transpose":
            assert dims == tuple(operands[0][dim] for dim in each.dimensions)
        elif each.opcode == "dot":
            check_dot(each, *operands)
        elif each.opcode == "convolution":
            check_convolution(each, *operands)


def check_dot(instruction, first, second):
    """The dims are the batch dims, then the other dims of both operands that are not contracted."""
    numbers, dims = instruction.dot, instruction.shape.dimensions
    subscripts = [dim for dim in range(len(first))]
    others = [100 + dim for dim in range(len(second))]
    pairs = zip(
        (*numbers.first_contracting, *numbers.first_batch),
        (*numbers.second_contracting, *numbers.second_batch),
        strict=True,
    )
    for one, other in pairs:
        assert first[one] == second[other]
        others[other] = one
    free = [dim for dim in subscripts if dim not in (*numbers.first_contracting, *numbers.first_batch)]
    made = [*(first[dim] for dim in (*numbers.first_batch, *free))]
    made += [second[dim] for dim, label in enumerate(others) if label >= 100]
    assert tuple(made) == dims


def check_convolution(instruction, value, kernel):
    numbers, dims = instruction.convolution, instruction.shape.dimensions
    assert value[numbers.input_batch] == dims[numbers.output_batch]
    assert value[numbers.input_feature] == kernel[numbers.kernel_input_feature]
    assert kernel[numbers.kernel_output_feature] == dims[numbers.output_feature]
    for index, window in enumerate(instruction.window):
        assert kernel[numbers.kernel_spatial[index]] == window.size
        size = (value[numbers.input_spatial[index]] - 1) * window.base_dilation + 1
        reach = (window.size - 1) * window.window_dilation + 1
        made = (size + window.padding_low + window.padding_high - reach) // window.stride + 1
        assert made == dims[numbers.output_spatial[index]]


def test_a_training_step_holds_weight_gradient_convolutions():
    """The result of such a convolution is a kernel, with batch dim 2 as in the real alexnet."""
    for seed in range(20):
        module = draw_program("residual_cnn", SIZE, np.random.default_rng(seed))
        arrays = featurize_module(module)
        convolutions = arrays.node_opcode == OPCODE_IDS["convolution"]
        kinds = {tuple(row) for row in arrays.node_feat[convolutions][:, CONVOLUTION_DIMENSIONS][:, [0, 12]].tolist()}
        assert kinds == ({(0, 0), (3, 2)} if module.name.endswith("train") else {(0, 0)})


def test_a_training_loop_returns_the_state_it_takes():
    """The state of the loop has one shape everywhere; the entry splits the 64-bit step and joins it again."""
    checked = 0
    for family, seed in CASES:
        module = draw_program(family, SIZE, np.random.default_rng(seed))
        names = {each.id: each.name for each in module.computations}
        (*_, entry) = module.computations
        by_id = {each.id: each for each in instructions(module)}
        roots = {each.id: by_id[each.root_id] for each in module.computations}
        for loop in (each for each in entry.instructions if each.opcode == "while"):
            body, condition = loop.called_computation_ids
            if not names[body].startswith("train_body"):
                continue
            checked += 1
            assert [each.dimensions for each in roots[body].shape.tuple_shapes] == [
                each.dimensions for each in loop.shape.tuple_shapes
            ]
            assert roots[condition].opcode == "compare"
            opcodes = [each.opcode for each in instructions(module)]
            assert {"infeed", "outfeed", "after-all"} <= set(opcodes)
            calls = [each.custom_call_target for each in entry.instructions if each.opcode == "custom-call"]
            assert sorted(calls) == ["X64Combine", "X64SplitHigh", "X64SplitLow"]
    assert checked > 10


def test_equal_instructions_are_made_once_and_unused_ones_dropped():
    module = ModuleBuilder("shared")
    main = module.computation("main")
    value = main.parameter((4, 8), F32)
    first, second = main.scaled(value, 2.0), main.scaled(value, 2.0)
    assert first is second and main.scaled(value, 3.0) is not first
    main.unary("negate", value)
    main.reduce(value, (0,))
    main.finish(main.tuple([first]))
    built = module.build()
    assert [each.opcode for each in instructions(built)] == ["parameter", "constant", "broadcast", "multiply", "tuple"]


def test_arguments_have_the_layout_with_least_padding():
    """As in the real graphs: alexnet's [4096, 1000] is stored as {0, 1}, bert's [768, 12, 64] as {0, 2, 1}."""
    expected = {
        (4096, 1000): (0, 1), (3, 3, 3, 192, 64): (3, 4, 2, 1, 0), (768, 12, 64): (0, 2, 1), (512, 13): (0, 1),
        (3, 3, 192, 384): (3, 2, 1, 0), (11, 11, 3, 64): (3, 2, 1, 0), (64,): (0,), (): (),
    }  # fmt: skip
    assert {dims: argument_shape(dims, F32).minor_to_major for dims in expected} == expected


def test_every_opcode_of_the_real_archives_occurs(real_data):
    made = set()
    for number in range(120):
        rng = np.random.default_rng([1, number])
        family = sorted(FAMILIES)[number % len(FAMILIES)]
        module = draw_program(family, SIZE, rng)
        made |= {each.opcode for part in (module, cut_kernel(module, rng, 40)) for each in instructions(part)}
    real = set()
    for path in (real_data / "tpugraphs").rglob("*.npz"):
        with np.load(path) as arrays:
            real |= {OPCODE_NAMES[number] for number in np.unique(arrays["node_opcode"])}
    assert len(real) == 55 and real <= made


def test_programs_that_are_not_lowered_have_the_same_configurable_nodes():
    for family, seed in CASES:
        lowered, plain = (
            draw_program(family, SIZE, np.random.default_rng(seed), lowered=lowered) for lowered in (True, False)
        )
        counts = [Counter(each.opcode for each in instructions(module)) for module in (lowered, plain)]
        for opcode in ("convolution", "dot", "gather", "scatter", "all-reduce"):
            assert counts[0][opcode] == counts[1][opcode]
        assert not counts[1]["custom-call"] and not counts[1]["fusion"]


def test_a_recurrent_net_has_a_loop_and_splits():
    module = draw_program("recurrent", SIZE, np.random.default_rng(0))
    arrays = featurize_module(module)
    loops = np.flatnonzero(arrays.node_opcode == OPCODE_IDS["while"])
    assert len(loops) > 0 and len(arrays.node_splits) > 2
    for loop in loops:
        callees = arrays.edge_index[arrays.edge_index[:, 0] == loop, 1]
        assert len(callees) == 3  # the state, the body's root, the condition's root


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_kernels_are_valid_graphs_with_distinct_tiles(family, seed):
    rng = np.random.default_rng(seed)
    kernel = cut_kernel(draw_program(family, SIZE, rng), rng, 40)
    arrays = featurize_module(kernel)
    check_graph(arrays)
    assert len(arrays.node_opcode) <= 90
    last = OPCODE_NAMES[arrays.node_opcode[-1]]
    assert arrays.node_feat[-1, 0] == 1
    assert last == "fusion" or (last in ("copy", "reshape") and len(arrays.node_opcode) == 2)
    assert OPCODE_IDS["dot"] not in arrays.node_opcode  # the compiler replaces them by convolutions
    costs = TileCosts(arrays.node_feat, arrays.node_opcode, arrays.edge_index)
    tiles = draw_tiles(costs, rng, 50)
    assert len(np.unique(tiles, axis=0)) == len(tiles) <= 50
    bounds = tiles[:, 8 : 8 + len(costs.output_units)]
    assert (bounds >= 1).all() and (bounds <= np.array(costs.output_units)).all()
    np.testing.assert_array_equal(tiles[:, 14], tiles[:, 8:14].sum(axis=1))
    assert np.isfinite(costs.seconds(tiles)).all() and (costs.seconds(tiles) > 0).all()
    assert (arrays.node_feat[:, SHAPE_DIMENSIONS] >= 0).all()
