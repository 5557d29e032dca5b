"""What HLO says of operands: bits set by hand, and kept from the program to the dataset."""

import numpy as np

from tests.hlo.programs import array, program, small_cnn
from tests.small_datasets import LAYOUT, preprocess_here
from tpugraphs_polynormer.archives.featurize import featurize_path, module_arrays
from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.archives.writer import MEMBERS, write_archive
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.module import DotDimensions, Instruction
from tpugraphs_polynormer.hlo.operands import NUM_OPERAND_BITS, unpack_operands
from tpugraphs_polynormer.hlo.text import parse_text
from tpugraphs_polynormer.hlo.text_writer import serialize_text

SWAPPED, REPEATED, KNOWN = 24, 25, 26


def products() -> tuple[Instruction, ...]:
    """Two parameters, a batched product of them, one with its operands swapped, one of a tensor with itself."""
    batched = DotDimensions((2,), (1,), (0,), (0,))
    return (
        Instruction(1, "parameter", array(4, 8, 16)),
        Instruction(2, "parameter", array(4, 16, 8), parameter_number=1),
        Instruction(3, "dot", array(4, 8, 8), operand_ids=(1, 2), dot=batched),
        Instruction(4, "dot", array(4, 16, 16), operand_ids=(2, 1), dot=batched),
        Instruction(5, "dot", array(8, 8), operand_ids=(3, 3), dot=DotDimensions((0, 2), (0, 1))),
        Instruction(6, "tuple", array(), operand_ids=(5, 4, 4)),
    )


def bits(*columns: int) -> list[int]:
    return [int(column in columns) for column in range(NUM_OPERAND_BITS)]


def test_bits_are_those_computed_by_hand():
    found = unpack_operands(featurize_module(program(*products())).node_operands).astype(int).tolist()
    assert found == [
        bits(KNOWN),
        bits(KNOWN),
        bits(2, 6 + 1, 12 + 0, 18 + 0, KNOWN),
        bits(2, 6 + 1, 12 + 0, 18 + 0, SWAPPED, KNOWN),
        bits(0, 2, 6 + 0, 6 + 1, REPEATED, KNOWN),
        bits(SWAPPED, REPEATED, KNOWN),
    ]


def test_a_seventh_dimension_has_no_bit():
    dot = Instruction(2, "dot", array(2), operand_ids=(1, 1), dot=DotDimensions((6,), (7,)))
    assert featurize_module(program(Instruction(1, "parameter", array(2)), dot)).node_operands.tolist() == [
        1 << KNOWN,
        1 << KNOWN | 1 << REPEATED,
    ]


def test_text_says_the_same():
    module = program(*products())
    text = serialize_text(module)
    assert "lhs_contracting_dims={0,2}, rhs_contracting_dims={0,1}" in text
    found, expected = featurize_module(parse_text(text)), featurize_module(module)
    np.testing.assert_array_equal(found.node_operands, expected.node_operands)


def test_archives_have_them_only_if_asked(tmp_path):
    assert list(module_arrays(small_cnn())) == list(MEMBERS["layout"])
    arrays = module_arrays(small_cnn(), operands=True)
    assert list(arrays) == [*MEMBERS["layout"], "node_operands"]
    write_archive(tmp_path / "one.npz", arrays)
    np.testing.assert_array_equal(read_archive(tmp_path / "one.npz").node_operands, arrays["node_operands"])
    featurize_path(tmp_path / "one.npz", tmp_path / "two.npz")  # a checked copy keeps them
    assert (tmp_path / "two.npz").read_bytes() == (tmp_path / "one.npz").read_bytes()


def test_datasets_keep_them_and_say_which_graphs_have_them(tmp_path):
    folder = tmp_path / "in/npz" / LAYOUT.replace(":", "/") / "valid"
    for name, operands in (("with", True), ("without", False)):
        write_archive(folder / f"{name}.npz", module_arrays(small_cnn(), num_candidates=3, operands=operands))
    (dataset,) = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT)
    split = dataset.split("valid")
    assert {entry.name: entry.has_operands for entry in split.graphs} == {"with": True, "without": False}
    expected = featurize_module(small_cnn()).node_operands
    found = {graph.name: graph.operands.tolist() for graph in split}
    assert found == {"with": expected.tolist(), "without": [0] * len(expected)}
