"""Layout choices and candidates: compared with real searches and with brute force; determinism."""

from itertools import permutations

import numpy as np
import pytest

from tests.hlo.programs import array, check_candidates, program, small_cnn
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.describe import describe_candidate, describe_shape
from tpugraphs_polynormer.hlo.module import Computation, ConvolutionDimensions, Instruction, Module, Shape
from tpugraphs_polynormer.hlo.opcodes import OPCODE_NAMES
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.sampling import (
    MODES,
    draw_candidates,
    draw_index_blocks,
    draw_indices,
    gather_layouts,
)


def choices_of(choices, node: int) -> list[tuple[list[int], ...]]:
    """The choices of a node as lists of dims, without -1."""
    start = choices.starts[node]
    rows = choices.table[start : start + choices.counts[node]].reshape(-1, 3, 6).tolist()
    return [tuple([dim for dim in tensor if dim >= 0] for tensor in row) for row in rows]


def reshape_choices(output: tuple[int, ...], operand: tuple[int, ...]):
    module = program(Instruction(1, "parameter", array(*operand)), Instruction(2, "reshape", array(*output), "r", (1,)))
    return choices_of(enumerate_choices(module), 0)


def ties(layouts: np.ndarray) -> list[list[int]]:
    """Groups of nodes that always change together: their choices partition the candidates in the same way."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for node in range(layouts.shape[1]):
        _, inverse = np.unique(layouts[:, node], axis=0, return_inverse=True)
        groups.setdefault(tuple(inverse.ravel().tolist()), []).append(node)
    return sorted(groups.values())


def members(groups: np.ndarray) -> list[list[int]]:
    return sorted(np.flatnonzero(groups == group).tolist() for group in np.unique(groups))


@pytest.fixture(scope="module")
def unet(real_data):
    module = parse_module((real_data / "tpugraphs" / "protobuf" / "module_tuning_data_layout.pb").read_bytes())
    with np.load(real_data / "tpugraphs" / "layout" / "unet_3d.4x4.bf16.npz", allow_pickle=False) as archive:
        return module, archive["node_config_ids"], archive["node_config_feat"].astype(np.int8)


@pytest.fixture(scope="module")
def alexnet(real_data):
    """The real alexnet. Only its arrays exist, so the order of operands is derived from the sizes of a convolution."""
    with np.load(real_data / "tpugraphs" / "layout" / "alexnet_train_batch_32.npz", allow_pickle=False) as archive:
        features, opcodes = archive["node_feat"].astype(np.int64), archive["node_opcode"]
        producers: dict[int, list[int]] = {}
        for consumer, producer in archive["edge_index"].tolist():
            producers.setdefault(consumer, []).append(producer)
        node_ids, layouts = archive["node_config_ids"], archive["node_config_feat"].astype(np.int8)
    shapes = [tuple(size for size in row[21:27].tolist() if size) for row in features]
    instructions = []
    for row, opcode in enumerate(opcodes):
        name, operands, numbers = OPCODE_NAMES[opcode], producers.get(row, []), None
        if name == "convolution":
            ib, inf, s0, s1, _, _, kin, kout, k0, k1, _, _, ob, of = features[row, 93:107].tolist()
            numbers = ConvolutionDimensions(ib, inf, (s0, s1), kin, kout, (k0, k1), ob, of)
            first, second = (shapes[each] for each in operands)
            if first[ib] != shapes[row][ob] or first[inf] != second[kin] or second[kout] != shapes[row][of]:
                operands = operands[::-1]
        instructions.append(
            Instruction(row, name, array(*shapes[row]), operand_ids=tuple(operands), convolution=numbers)
        )
    return Module("alexnet", (Computation(1, "main", 0, tuple(instructions)),)), node_ids, layouts


@pytest.mark.parametrize(("name", "wrong_defaults"), [("unet", [23, 48]), ("alexnet", [5])])
def test_real_candidates_are_among_the_choices(name, wrong_defaults, request):
    module, node_ids, layouts = request.getfixturevalue(name)
    choices = enumerate_choices(module)
    assert np.array_equal(choices.node_ids, node_ids)
    check_candidates(choices, layouts)
    default = gather_layouts(choices, np.zeros((1, len(node_ids)), np.int16))[0]
    assert np.flatnonzero((default != layouts[0]).any(axis=1)).tolist() == wrong_defaults


@pytest.mark.parametrize("name", ["unet", "alexnet"])
def test_groups_are_the_ties_of_real_searches(name, request):
    module, _, layouts = request.getfixturevalue(name)
    choices = enumerate_choices(module, default=layouts[0])
    assert members(choices.groups) == ties(layouts)
    assert np.array_equal(draw_candidates(choices, 1, seed=0)[0], layouts[0])


def test_choices_of_a_small_program():
    choices = enumerate_choices(small_cnn())
    assert choices.node_ids.tolist() == [3, 5, 6]
    assert choices.counts.tolist() == [8, 2, 9]
    # In the lanes, a batch of 16 needs less padding than 3 features, so the batch is minor.
    assert choices_of(choices, 0)[0] == ([3, 0], [0, 3], [3, 2])
    assert choices_of(choices, 1) == [([1, 0], [3, 2, 1, 0], []), ([0, 1], [0, 3, 2, 1], [])]
    assert choices_of(choices, 2)[0] == ([1, 0], [], [])
    assert choices.links.tolist() == [[1, 1, 0], [2, 1, 1]]


@pytest.mark.parametrize(
    ("output", "operand", "expected"),
    [
        ((), (1,), [([], [], []), ([], [0], [])]),
        ((1,), (), [([], [], []), ([0], [], [])]),
        ((), (), [([], [], [])]),
        ((6,), (2, 3), [([0], [1, 0], [])]),
        ((4, 1, 5), (4, 5), [([2, 1, 0], [1, 0], []), ([0, 2, 1], [0, 1], [])]),
        ((2, 12), (2, 3, 4), [([1, 0], [2, 1, 0], []), ([0, 1], [0, 2, 1], [])]),
        ((2, 0, 3), (0, 6), [([2, 1, 0], [1, 0], [])]),
        ((1,) * 7, (1,), [([], [], [])]),
        ((5,), (2, 3), [([0], [1, 0], [])]),
    ],
)
def test_reshape_choices(output, operand, expected):
    assert reshape_choices(output, operand) == expected


def element_order(shape: tuple[int, ...], layout: list[int]) -> list[int]:
    """The row-major numbers of a tensor's elements, in memory order."""
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return numbers.transpose(list(reversed(layout))).ravel().tolist()


@pytest.mark.parametrize(
    ("output", "operand"), [((2, 3, 4), (6, 4)), ((2, 3, 4), (2, 3, 4)), ((4, 1, 3), (2, 2, 3)), ((6, 5), (2, 3, 1, 5))]
)
def test_reshape_choices_are_all_bitcasts(output, operand):
    """Both layouts have the same elements in the same memory order, and no such pair of layouts is missing."""
    found = reshape_choices(output, operand)
    for out_layout, in_layout, _ in found:
        assert element_order(output, out_layout) == element_order(operand, in_layout)
    orders = {tuple(element_order(output, list(each))) for each in permutations(range(len(output)))}
    orders &= {tuple(element_order(operand, list(each))) for each in permutations(range(len(operand)))}
    assert {tuple(element_order(output, out)) for out, _, _ in found} == orders
    assert len(found) == len(orders)


def test_dots_of_other_ranks():
    module = program(
        Instruction(1, "parameter", array(7, 4, 5)),
        Instruction(2, "parameter", array(5)),
        Instruction(3, "dot", array(7, 4), "d", (1, 2)),
        Instruction(4, "parameter", array(1, 1, 1, 1, 1, 2, 3)),
        Instruction(5, "dot", array(1, 1, 1, 1, 1, 2, 2), "e", (4, 4)),
    )
    choices = enumerate_choices(module)
    first = choices_of(choices, 0)
    assert first[0] == ([0, 1], [], [])  # 4 rows of 128 instead of 8
    assert {tuple(each[1]) for each in first} == {(), (2, 1), (1, 2)}
    assert {tuple(each[2]) for each in first} == {(), (0,)}
    assert choices_of(choices, 1) == [([], [], [])]  # a candidate cannot represent more than six dims


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tied", [True, False])
def test_candidates_are_legal_seeded_and_extendable(unet, mode, tied):
    choices = enumerate_choices(unet[0])
    found = draw_candidates(choices, 2100, seed=3, mode=mode, tied=tied)
    assert found.dtype == np.int8
    assert found.shape == (2100, 62, 18)
    check_candidates(choices, found)
    assert np.array_equal(found[0], gather_layouts(choices, np.zeros(62, np.int16)))
    assert np.array_equal(draw_candidates(choices, 5, seed=3, mode=mode, tied=tied), found[:5])
    assert not np.array_equal(draw_candidates(choices, 5, seed=4, mode=mode, tied=tied), found[:5])
    blocks = list(draw_index_blocks(choices, 2100, seed=3, mode=mode, tied=tied))
    assert [len(block) for block in blocks] == [2048, 52]
    assert np.array_equal(gather_layouts(choices, np.concatenate(blocks)), found)


def test_random_draws_every_choice_alike():
    choices = enumerate_choices(small_cnn())
    drawn = draw_indices(choices, 9001, seed=0, mode="random")[1:]
    for node, count in enumerate(choices.counts):
        shares = np.bincount(drawn[:, node], minlength=count) / len(drawn)
        np.testing.assert_allclose(shares, 1 / count, atol=0.02)


def test_default_mode_stays_nearer_to_the_default(unet):
    choices = enumerate_choices(unet[0])
    unchanged = {
        mode: (draw_indices(choices, 2000, seed=0, mode=mode, tied=False) == 0).mean() for mode in ("default", "random")
    }
    assert unchanged["default"] > unchanged["random"] + 0.3


def test_tied_nodes_choose_together(unet):
    choices = enumerate_choices(unet[0])
    drawn = draw_indices(choices, 500, seed=0, mode="random")
    for group in np.unique(choices.groups):
        own = drawn[:, choices.groups == group]
        assert (own == own[:, :1]).all()
    free = draw_indices(choices, 500, seed=0, mode="random", tied=False)
    assert (free[:, 4] != free[:, 5]).any()


def test_consistent_candidates_hand_layouts_on():
    choices = enumerate_choices(small_cnn())
    found = draw_candidates(choices, 400, seed=1, mode="consistent")[1:]
    feature_minor = found[:, 0, 0] == 3  # the convolution's output feeds the reshape
    assert np.array_equal(found[:, 1, 6] == 3, feature_minor)
    given = found[:, 2, 6] != -1  # the ninth choice of the dot does not fix its operands
    assert given.any() and not given.all()
    assert np.array_equal(found[given, 2, 6:8], found[given, 1, 0:2])
    assert 0.3 < feature_minor.mean() < 0.7


def test_consistent_reaches_every_choice_that_no_producer_constrains():
    choices = enumerate_choices(small_cnn())
    assert set(draw_indices(choices, 400, seed=1, mode="consistent")[:, 0].tolist()) == set(range(8))


def test_illegal_candidates_are_named():
    choices = enumerate_choices(small_cnn())
    layouts = draw_candidates(choices, 3, seed=0)
    check_candidates(choices, np.full_like(layouts, -1))  # nothing is fixed
    layouts[2, 1, :2] = [0, 0]
    with pytest.raises(HloError, match="candidate 2 gives node 5"):
        check_candidates(choices, layouts)
    with pytest.raises(HloError, match="shape"):
        check_candidates(choices, layouts[:, :2])


def test_bad_requests_are_named():
    choices = enumerate_choices(small_cnn())
    with pytest.raises(HloError, match="mode 'greedy'"):
        draw_indices(choices, 2, seed=0, mode="greedy")
    with pytest.raises(HloError, match="cannot draw 0"):
        draw_indices(choices, 0, seed=0)
    with pytest.raises(HloError, match="expected \\(3, 18\\)"):
        enumerate_choices(small_cnn(), default=np.zeros((2, 18)))


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (Instruction(2, "dot", array(2), "d", (1,)), "1 operands, expected 2"),
        (Instruction(2, "reshape", array(2), "r", (7,)), "refers to instruction id 7"),
        (Instruction(2, "convolution", array(2), "c", (1, 1)), "no dimension numbers"),
        (
            Instruction(2, "convolution", array(2), "c", (1, 1), convolution=ConvolutionDimensions(output_feature=5)),
            "do not fit a tensor of rank 1",
        ),
    ],
)
def test_broken_instructions_are_named(instruction, message):
    with pytest.raises(HloError, match=message):
        enumerate_choices(program(Instruction(1, "parameter", array(2)), instruction))


def test_a_program_with_nothing_to_choose():
    choices = enumerate_choices(program(Instruction(1, "parameter", array(2))))
    assert draw_candidates(choices, 4, seed=0, mode="random").shape == (4, 0, 18)
    assert draw_candidates(choices, 4, seed=0, mode="consistent").shape == (4, 0, 18)


def test_candidates_in_words():
    module = small_cnn()
    choices = enumerate_choices(module)
    default = draw_candidates(choices, 1, seed=0)[0]
    assert describe_candidate(module, choices, default) == [
        "conv f32[16,8,8,16]: output {3,0} input {0,3} kernel {3,2}",
        "flat f32[16,1024]: output {1,0} input {3,2,1,0}",
        "logits f32[16,10]: output {1,0} input compiler's choice kernel compiler's choice",
    ]
    changed = gather_layouts(choices, np.array([0, 1, 0]))
    assert describe_candidate(module, choices, changed, reference=default) == [
        "flat f32[16,1024]: output {0,1} input {0,3,2,1}"
    ]
    assert describe_shape(Shape(13, (), (array(2), Shape(4), Shape(77, (1,))))) == "(f32[2], s32[], type77[1])"
