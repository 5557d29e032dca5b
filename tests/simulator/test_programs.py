"""Programs of every family, and kernels cut from them, are valid modules."""

import numpy as np
import pytest

from tests.hlo.programs import check_candidates
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import CONVOLUTION_DIMENSIONS, SHAPE_DIMENSIONS, featurize_module
from tpugraphs_polynormer.hlo.opcodes import CONFIGURABLE_OPCODES, OPCODE_IDS
from tpugraphs_polynormer.hlo.sampling import draw_candidates
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
        if each.opcode in ("add", "multiply", "subtract", "divide", "maximum", "select"):
            assert set(operands) == {dims}
        elif each.opcode == "reshape":
            assert np.prod(operands[0]) == np.prod(dims)
        elif each.opcode == "transpose":
            assert dims == tuple(operands[0][dim] for dim in each.dimensions)
        elif each.opcode == "dot":
            check_dot(dims, *operands)
        elif each.opcode == "convolution":
            check_convolution(each, *operands)


def check_dot(dims, first, second):
    batch = np.prod(dims[:-2])
    squared = np.prod(first) * np.prod(second) // (np.prod(dims) * batch)
    contracted = round(float(squared) ** 0.5)
    assert contracted**2 * np.prod(dims) * batch == np.prod(first) * np.prod(second)
    assert contracted in first and contracted in second


def check_convolution(instruction, value, kernel):
    numbers, dims = instruction.convolution, instruction.shape.dimensions
    assert value[numbers.input_batch] == dims[numbers.output_batch]
    assert value[numbers.input_feature] == kernel[numbers.kernel_input_feature]
    assert kernel[numbers.kernel_output_feature] == dims[numbers.output_feature]
    for index, window in enumerate(instruction.window):
        assert kernel[numbers.kernel_spatial[index]] == window.size


def test_a_training_step_holds_weight_gradient_convolutions():
    """The result of such a convolution is a kernel, with batch dim 2 as in the real alexnet."""
    for seed in range(20):
        module = draw_program("residual_cnn", SIZE, np.random.default_rng(seed))
        arrays = featurize_module(module)
        convolutions = arrays.node_opcode == OPCODE_IDS["convolution"]
        kinds = {tuple(row) for row in arrays.node_feat[convolutions][:, CONVOLUTION_DIMENSIONS][:, [0, 12]].tolist()}
        assert kinds == ({(0, 0), (3, 2)} if module.name.endswith("train") else {(0, 0)})


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
    assert arrays.node_opcode[-1] == OPCODE_IDS["fusion"] and arrays.node_feat[-1, 0] == 1
    assert OPCODE_IDS["dot"] not in arrays.node_opcode  # the compiler replaces them by convolutions
    costs = TileCosts(arrays.node_feat, arrays.node_opcode, arrays.edge_index)
    tiles = draw_tiles(costs, rng, 50)
    assert len(np.unique(tiles, axis=0)) == len(tiles) <= 50
    bounds = tiles[:, 8 : 8 + len(costs.output_units)]
    assert (bounds >= 1).all() and (bounds <= np.array(costs.output_units)).all()
    np.testing.assert_array_equal(tiles[:, 14], tiles[:, 8:14].sum(axis=1))
    assert np.isfinite(costs.seconds(tiles)).all() and (costs.seconds(tiles) > 0).all()
    assert (arrays.node_feat[:, SHAPE_DIMENSIONS] >= 0).all()
