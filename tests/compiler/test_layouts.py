"""Layouts are forced by rewriting the dumped program; no compiler is needed."""

import dataclasses

import numpy as np
import pytest

from tests.hlo.programs import array, program, small_cnn
from tpugraphs_polynormer.compiler.layouts import (
    NodeOrders,
    _parse,
    complete_orders,
    encode_default,
    force_layouts,
    prepare_module,
    read_assigned,
)
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.module import Computation, Instruction, Module
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.writer import serialize_module

CONV = NodeOrders((0, 3, 2, 1), ((3, 0, 2, 1), (2, 3, 1, 0)))


def choice(*tensors: tuple[int, ...]) -> np.ndarray:
    """int8 [18] of named dims."""
    padded = [[*dims, *(-1,) * (6 - len(dims))] for dims in (*tensors, *((),) * (3 - len(tensors)))]
    return np.array(padded, dtype=np.int8).reshape(-1)


def by_name(module: Module) -> dict[str, Instruction]:
    return {each.name: each for computation in module.computations for each in computation.instructions}


def test_constraints_are_put_before_operands_and_behind_the_result():
    forced = parse_module(force_layouts(serialize_module(small_cnn()), {"conv": CONV}))
    (main,) = forced.computations
    names = [each.name for each in main.instructions]
    assert [name.split(".")[0] for name in names] == [
        *("images", "kernel", "weights", "layout-constraint", "layout-constraint", "conv", "layout-constraint"),
        *("act", "flat", "logits"),
    ]
    found = {each.id: each for each in main.instructions}
    conv, act = by_name(forced)["conv"], by_name(forced)["act"]
    operands = [found[each] for each in conv.operand_ids]
    assert [each.shape.minor_to_major for each in operands] == list(CONV.operands)
    assert [found[each.operand_ids[0]].name for each in operands] == ["images", "kernel"]
    result = found[act.operand_ids[0]]
    assert result.shape.minor_to_major == CONV.output and result.operand_ids == (conv.id,)
    assert {each.opcode for each in (*operands, result)} == {"custom-call"}
    assert result.shape.dimensions == (16, 8, 8, 16)
    assert conv.window == by_name(small_cnn())["conv"].window, "other fields are kept"


def test_a_forced_root_stays_the_root():
    forced = parse_module(force_layouts(serialize_module(small_cnn()), {"logits": NodeOrders((0, 1), ())}))
    (main,) = forced.computations
    root = next(each for each in main.instructions if each.id == main.root_id)
    assert root.opcode == "custom-call" and root.operand_ids == (7,)


def test_an_operand_of_two_nodes_gets_both_orders_and_a_chain_of_nodes_both_constraints():
    chain = program(
        Instruction(1, "parameter", array(8, 8), "x"),
        Instruction(2, "dot", array(8, 8), "first", (1, 1)),
        Instruction(3, "dot", array(8, 8), "second", (2, 1)),
    )
    orders = {
        "first": NodeOrders((0, 1), ((1, 0), (0, 1))),
        "second": NodeOrders((), ((1, 0), ())),
    }
    found = by_name(parse_module(force_layouts(serialize_module(chain), orders)))
    ids = {each.id: each for each in found.values()}
    one, two = (ids[each] for each in found["first"].operand_ids)
    assert (one.shape.minor_to_major, two.shape.minor_to_major) == ((1, 0), (0, 1))
    assert one.operand_ids == two.operand_ids == (1,)
    operand, weight = (ids[each] for each in found["second"].operand_ids)
    assert operand.shape.minor_to_major == (1, 0) and weight.name == "x"
    inner = ids[operand.operand_ids[0]]
    assert inner.shape.minor_to_major == (0, 1) and inner.operand_ids == (2,), "the result of the first is forced too"


def test_nothing_forced_changes_nothing():
    data = serialize_module(small_cnn())
    assert parse_module(force_layouts(data, {})) == small_cnn()
    assert parse_module(force_layouts(data, {"conv": NodeOrders((), ((), ()))})) == small_cnn()


@pytest.mark.parametrize(
    ("forced", "told"),
    [
        ({"conv": NodeOrders((0, 3), ())}, r"conv: the order \(0, 3\) was given to a tensor of rank 4"),
        ({"conv": NodeOrders((0, 1, 2, 2), ())}, "expected each of its dims once"),
        ({"other": NodeOrders((0, 1), ())}, "'other', which the module lacks"),
    ],
)
def test_wrong_orders_are_one_line(forced, told):
    with pytest.raises(HloError, match=told):
        force_layouts(serialize_module(small_cnn()), forced)


@pytest.mark.parametrize("data", [b"", b"words", bytes(range(256))])
def test_bytes_that_are_no_module_are_one_line(data):
    with pytest.raises(HloError, match="no HLO module"):
        force_layouts(data, {})


def with_fusion() -> Module:
    """A program with a dot, and a reshape and one of the compiler's hints in a fusion."""
    inner = Computation(
        2,
        "fused",
        13,
        (
            Instruction(11, "parameter", array(8, 8), "p"),
            Instruction(12, "reshape", array(64), "inside", (11,)),
            Instruction(13, "tanh", array(64), "t", (12,)),
        ),
    )
    main = Computation(
        1,
        "main",
        3,
        (
            Instruction(1, "parameter", array(8, 8), "x"),
            Instruction(2, "dot", array(8, 8), "product", (1, 1)),
            Instruction(3, "fusion", array(64), "around", (2,), called_computation_ids=(2,)),
        ),
    )
    return Module("program", (inner, main), entry_computation_id=1)


def test_fusions_become_calls_and_their_nodes_cannot_be_chosen():
    data = serialize_module(with_fusion())
    prepared = by_name(parse_module(prepare_module(data)))
    assert prepared["around"].opcode == "call" and prepared["around"].called_computation_ids == (2,)
    assert read_assigned(data, data) == {"product": NodeOrders((1, 0), ((1, 0), (1, 0)))}


def test_calls_that_split_and_join_64_bit_numbers_become_conversions():
    wide, narrow = array(element_type=9), array(element_type=8)
    split = program(
        Instruction(1, "parameter", wide, "x"),
        Instruction(2, "custom-call", narrow, "low", (1,)),
        Instruction(3, "custom-call", narrow, "high", (1,)),
        Instruction(4, "custom-call", wide, "joined", (2, 3)),
        Instruction(5, "custom-call", wide, "other", (4,)),
    )
    message = _parse(serialize_module(split))
    targets = (b"X64SplitLow", b"X64SplitHigh", b"X64Combine", b"Sharding")
    for instruction, target in zip(message.computations[0].instructions[1:], targets, strict=True):
        instruction.custom_call_target, instruction.custom_call_api_version = target, 1
    prepared = by_name(parse_module(prepare_module(message.SerializeToString())))
    assert [prepared[name].opcode for name in ("low", "high", "joined", "other")] == [*["convert"] * 3, "custom-call"]
    assert prepared["joined"].operand_ids == (2,) and prepared["joined"].shape == wide


def test_the_layouts_of_the_compiler_are_read_where_copies_were_added():
    before = small_cnn()
    (main,) = before.computations
    images, kernel, weights, conv, *rest = main.instructions
    turned = dataclasses.replace(images.shape, minor_to_major=(3, 0, 2, 1))
    copy = Instruction(20, "copy", turned, "copy.1", (1,))
    conv = dataclasses.replace(
        conv, operand_ids=(20, 2), shape=dataclasses.replace(conv.shape, minor_to_major=(0, 3, 2, 1))
    )
    after = program(images, kernel, weights, copy, conv, *rest)
    assigned = read_assigned(serialize_module(before), serialize_module(after))
    assert assigned.keys() == {"conv", "flat", "logits"}
    assert assigned["conv"] == NodeOrders((0, 3, 2, 1), ((3, 0, 2, 1), (3, 2, 1, 0)))


def test_defaults_have_the_form_of_candidates():
    assert encode_default("convolution", CONV).tolist() == choice((0, 3), (3, 0), (2, 3)).tolist()
    dot = NodeOrders((2, 1, 0), ((2, 1, 0), (1, 2, 0)))
    assert encode_default("dot", dot).tolist() == choice((2, 1)).tolist()
    reshape = NodeOrders((1, 0), ((3, 2, 1, 0),))
    assert encode_default("reshape", reshape).tolist() == choice((1, 0), (3, 2, 1, 0)).tolist()
    too_long = NodeOrders(tuple(range(7)), ((0,),))
    assert encode_default("reshape", too_long).tolist() == choice((), (0,)).tolist()


def test_a_choice_is_completed_in_the_order_of_the_compiler():
    assert complete_orders(choice((3, 0), (0, 3), (3, 2)), CONV) == NodeOrders(
        (3, 0, 2, 1), ((0, 3, 2, 1), (3, 2, 1, 0))
    )
    assert complete_orders(choice((0, 1)), NodeOrders((1, 0), ((1, 0), (0, 1)))) == NodeOrders((0, 1), ((), ()))
    assert complete_orders(encode_default("convolution", CONV), CONV) == CONV, "its own choice is its own order"


def test_every_choice_of_a_program_can_be_forced():
    data = serialize_module(small_cnn())
    assigned = read_assigned(data, data)
    choices, instructions = enumerate_choices(small_cnn()), small_cnn().computations[0].instructions
    for row, start, count in zip(choices.node_ids, choices.starts, choices.counts, strict=True):
        name = instructions[row].name
        for each in choices.table[start : start + count]:
            assert parse_module(force_layouts(data, {name: complete_orders(each, assigned[name])}))
