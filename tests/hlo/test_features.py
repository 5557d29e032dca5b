"""Node features, edges and splits, compared with rows computed by hand and with a slow implementation in numpy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.hlo.programs import array, modules, program, small_cnn
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.features import (
    CONVOLUTION_DIMENSIONS,
    DIMENSIONS,
    ELEMENT_TYPE,
    ELEMENT_TYPE_NAMES,
    ELEMENT_TYPE_ORDER,
    MINOR_TO_MAJOR,
    SHAPE_DIMENSIONS,
    WINDOW_SIZE,
    featurize_module,
)
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

EMPTY_PRODUCTS = [44, 52, 60, 68, 76, 84, 112, 116, 120, 124, 128, 132]


def _lead_names(name: str, count: int) -> list[str]:
    return [f"{name}_{index}" for index in range(count)]


def _seq_names(name: str, count: int) -> list[str]:
    return [*_lead_names(name, count), f"{name}_sum", f"{name}_product"]


# What each column holds.
COLUMNS: tuple[str, ...] = (
    "is_root",
    "element_size_in_bits",
    *(f"element_type_is_{ELEMENT_TYPE_NAMES[number]}" for number in ELEMENT_TYPE_ORDER),
    *_seq_names("shape_dimensions", 6),
    "shape_tuple_shapes_count",
    "parameter_number",
    *_lead_names("dimensions", 6),
    *_seq_names("window_size", 6),
    *_seq_names("window_stride", 6),
    *_seq_names("window_padding_low", 6),
    *_seq_names("window_padding_high", 6),
    *_seq_names("window_window_dilation", 6),
    *_seq_names("window_base_dilation", 6),
    *_lead_names("window_reversal", 6),
    "window_reversal_true_count",
    "window_reversal_false_count",
    "convolution_input_batch",
    "convolution_input_feature",
    *_lead_names("convolution_input_spatial", 4),
    "convolution_kernel_input_feature",
    "convolution_kernel_output_feature",
    *_lead_names("convolution_kernel_spatial", 4),
    "convolution_output_batch",
    "convolution_output_feature",
    "feature_group_count",
    "batch_group_count",
    *_seq_names("slice_start", 2),
    *_seq_names("slice_stride", 2),
    *_seq_names("slice_limit", 2),
    *_seq_names("dynamic_slice_size", 2),
    *_seq_names("padding_low", 2),
    *_seq_names("padding_high", 2),
    "is_stable",
    *_lead_names("minor_to_major", 6),
)


def row_of(instruction: Instruction) -> dict[int, float]:
    """The columns in which an instruction differs from one without fields."""
    expected_nothing = np.zeros(140, np.float32)
    expected_nothing[[28, *EMPTY_PRODUCTS]] = 1
    row = featurize_module(program(instruction)).node_feat[0]
    row[0] -= 1  # the feature of a root
    different = np.flatnonzero(row != expected_nothing)
    return {int(column): float(row[column]) for column in different}


def test_an_instruction_without_fields_has_only_the_empty_products():
    assert row_of(Instruction(5, "add", Shape(element_type=99))) == {}


@pytest.mark.parametrize(("place", "number"), list(enumerate(ELEMENT_TYPE_ORDER)))
def test_element_types_are_one_hot(place, number):
    assert row_of(Instruction(1, "add", Shape(number))) == {2 + place: 1}


def test_shape_columns():
    found = row_of(Instruction(1, "add", Shape(11, (2, 3, 5), (), (2, 0, 1))))
    assert found == {13: 1, 21: 2, 22: 3, 23: 5, 27: 10, 28: 30, 134: 2, 136: 1}


def test_dims_beyond_the_sixth_count_in_sum_and_product_only():
    found = row_of(Instruction(1, "add", Shape(99, (2,) * 8, (), tuple(range(7, -1, -1)))))
    assert found == {
        **dict.fromkeys(range(21, 27), 2), 27: 16, 28: 256, 134: 7, 135: 6, 136: 5, 137: 4, 138: 3, 139: 2,
    }  # fmt: skip


def test_tuple_counts_its_top_level_only():
    inner = Shape(13, (), (array(2), array(3), array(4)))
    assert row_of(Instruction(1, "tuple", Shape(13, (), (inner, array(7))))) == {18: 1, 29: 2}


def test_scalar_fields():
    instruction = Instruction(
        1, "sort", Shape(99), parameter_number=7, dimensions=(3, 1), feature_group_count=4, batch_group_count=5,
        is_stable=True,
    )  # fmt: skip
    assert row_of(instruction) == {30: 7, 31: 3, 32: 1, 107: 4, 108: 5, 133: 1}


def test_window_columns():
    window = (WindowDimension(3, 2, -1, 4, 1, 6, True), WindowDimension(5, 1, -2, 0, 1, 1, False))
    found = row_of(Instruction(1, "reduce-window", Shape(99), window=window))
    assert found == {
        37: 3, 38: 5, 43: 8, 44: 15,
        45: 2, 46: 1, 51: 3, 52: 2,
        53: -1, 54: -2, 59: -3, 60: 2,
        61: 4, 67: 4, 68: 0,
        69: 1, 70: 1, 75: 2,
        77: 6, 78: 1, 83: 7, 84: 6,
        85: 1, 91: 1, 92: 1,
    }  # fmt: skip


def test_convolution_columns():
    numbers = ConvolutionDimensions(1, 2, (3, 4, 5, 6, 7), 8, 9, (10, 11), 12, 13, (14, 15))
    found = row_of(Instruction(1, "convolution", Shape(99), convolution=numbers))
    expected = [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 0, 0, 12, 13]
    assert found == {93 + place: value for place, value in enumerate(expected) if value}


def test_slice_and_padding_columns():
    found = row_of(
        Instruction(
            1,
            "slice",
            Shape(99),
            slice_dimensions=(SliceDimension(1, 9, 2), SliceDimension(3, 8, 1), SliceDimension(5, 7, 4)),
            dynamic_slice_sizes=(6,),
            padding=(PaddingDimension(-1, 2, 9),),
        )
    )
    assert found == {
        109: 1, 110: 3, 111: 9, 112: 15,
        113: 2, 114: 1, 115: 7, 116: 8,
        117: 9, 118: 8, 119: 24, 120: 504,
        121: 6, 123: 6, 124: 6,
        125: -1, 127: -1, 128: -1,
        129: 2, 131: 2, 132: 2,
    }  # fmt: skip


def test_sums_and_products_wrap_like_int64():
    big = 1 << 62
    found = row_of(Instruction(1, "add", Shape(99, (big, big, 2))))
    assert found[27] == -float(1 << 63)
    assert found[28] == 0
    with np.errstate(over="ignore"):
        product = np.int64(3_037_000_500) * np.int64(3_037_000_500)
    assert row_of(Instruction(1, "add", Shape(99, (3_037_000_500,) * 2)))[28] == np.float32(product) < 0


def test_one_rounding_to_float32():
    value = (1 << 60) + (1 << 36) + 1  # float64 would round it to a tie, which float32 rounds down
    assert row_of(Instruction(1, "add", Shape(99, (value,))))[21] == float((1 << 60) + (1 << 37))


def test_column_names():
    assert len(set(COLUMNS)) == 140
    assert COLUMNS[0] == "is_root"
    assert COLUMNS[15] == "element_type_is_bf16"
    assert COLUMNS[28] == "shape_dimensions_product"
    assert COLUMNS[92] == "window_reversal_false_count"
    assert COLUMNS[93] == "convolution_input_batch"
    assert COLUMNS[117] == "slice_limit_0"
    assert COLUMNS[139] == "minor_to_major_5"


@pytest.mark.parametrize(
    ("columns", "name", "count"),
    [
        (ELEMENT_TYPE, "element_type_is_", 19),
        (SHAPE_DIMENSIONS, "shape_dimensions_", 6),
        (DIMENSIONS, "dimensions_", 6),
        (WINDOW_SIZE, "window_size_", 6),
        (CONVOLUTION_DIMENSIONS, "convolution_", 14),
        (MINOR_TO_MAJOR, "minor_to_major_", 6),
    ],
)
def test_slices_are_of_the_columns_that_they_name(columns, name, count):
    assert len(COLUMNS[columns]) == count
    assert all(each.startswith(name) for each in COLUMNS[columns])


def test_edges_are_sorted_unique_and_follow_calls():
    body = Computation(
        7,
        "while_body.3",
        20,
        (Instruction(10, "parameter", array(2)), Instruction(20, "tuple", array(2), "t", (10, 10))),
    )
    main = Computation(
        8,
        "main",
        33,
        (
            Instruction(31, "parameter", array(2)),
            Instruction(32, "while", array(2), "w", (31,), called_computation_ids=(7, 7)),
            Instruction(33, "add", array(2), "a", (32, 31, 32, 33)),
        ),
    )
    found = featurize_module(Module("m", (body, main)))
    assert found.edge_index.tolist() == [[1, 0], [3, 1], [3, 2], [4, 2], [4, 3]]
    assert found.edge_index.dtype == np.int64
    assert found.node_splits.tolist() == [0, 2, 5]
    assert found.positions == {10: 0, 20: 1, 31: 2, 32: 3, 33: 4}
    assert found.node_feat[:, 0].tolist() == [0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b"], [0, 2]),
        (["a", "my_cond"], [0, 2]),
        (["cluster", "b"], [0, 1, 2]),
        (["while", "x.cluster.1", "z"], [0, 1, 2, 3]),
    ],
)
def test_node_splits(names, expected):
    computations = tuple(
        Computation(place, name, place, (Instruction(place, "parameter", array()),)) for place, name in enumerate(names)
    )
    assert featurize_module(Module("m", computations)).node_splits.tolist() == expected


def test_ids_that_do_not_fit_are_named():
    with pytest.raises(HloError, match="id 4 occurs twice"):
        featurize_module(program(Instruction(4, "add", array()), Instruction(4, "add", array())))
    with pytest.raises(HloError, match="refers to instruction id 9"):
        featurize_module(program(Instruction(4, "add", array(), operand_ids=(9,))))
    with pytest.raises(HloError, match="calls computation 9"):
        featurize_module(program(Instruction(4, "call", array(), called_computation_ids=(9,))))
    with pytest.raises(HloError, match="64 bits"):
        featurize_module(program(Instruction(4, "add", array(), parameter_number=1 << 63)))


def test_a_module_without_instructions_is_empty():
    found = featurize_module(Module("m", ()))
    assert found.node_feat.shape == (0, 140)
    assert found.edge_index.shape == (0, 2)
    assert found.node_splits.tolist() == [0]


def test_more_rows_than_a_block():
    instructions = tuple(Instruction(each, "add", array(each % 97 + 1)) for each in range(5000))
    found = featurize_module(program(*instructions)).node_feat
    assert np.array_equal(found[:, 21], np.arange(5000) % 97 + 1)


def _slow_sequence(values, count) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = np.array(values, dtype=np.int64)
        padded = np.zeros(count, np.int64)
        padded[: min(count, len(values))] = values[:count]
        return np.concatenate([padded, [values.sum(dtype=np.int64)], [values.prod(dtype=np.int64)]])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(modules())
def test_sequences_agree_with_numpy_int64(module):
    found = featurize_module(module)
    instructions = [each for computation in module.computations for each in computation.instructions]
    for row, each in zip(found.node_feat, instructions, strict=True):
        parts = {
            21: (each.shape.dimensions, 6),
            37: ([w.size for w in each.window], 6),
            77: ([w.base_dilation for w in each.window], 6),
            113: ([s.stride for s in each.slice_dimensions], 2),
            121: (each.dynamic_slice_sizes, 2),
            129: ([p.high for p in each.padding], 2),
        }
        for start, (values, count) in parts.items():
            expected = _slow_sequence(values, count).astype(np.float32)
            assert np.array_equal(row[start : start + count + 2], expected)


def test_small_program_opcodes():
    assert featurize_module(small_cnn()).node_opcode.tolist() == [63, 63, 63, 26, 96, 75, 34]
