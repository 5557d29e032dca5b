"""The HLO text reader and writer: records, order, round trips, errors with line and column, damaged texts."""

import random
import re
import time

import numpy as np
import pytest

from tests.hlo.programs import array, small_cnn
from tests.hlo.text_samples import NEW, OLD
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.module import (
    Computation,
    ConvolutionDimensions,
    Instruction,
    Metadata,
    Module,
    PaddingDimension,
    Shape,
    SliceDimension,
    WindowDimension,
)
from tpugraphs_polynormer.hlo.program import parse_program
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.text import is_text, parse_text
from tpugraphs_polynormer.hlo.text_writer import serialize_text
from tpugraphs_polynormer.hlo.writer import serialize_module
from tpugraphs_polynormer.simulator.programs import FAMILIES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES


def assert_same_graph(found: Module, expected: Module) -> None:
    """Equal arrays and choices; ids may differ."""
    graphs = featurize_module(found), featurize_module(expected)
    for key in ("node_feat", "node_opcode", "edge_index", "node_splits", "node_operands"):
        assert np.array_equal(*(getattr(graph, key) for graph in graphs)), key
    choices = enumerate_choices(found), enumerate_choices(expected)
    for key in ("node_ids", "table", "starts", "counts", "groups", "links"):
        assert np.array_equal(*(getattr(each, key) for each in choices)), key


def by_name(module: Module) -> dict[str, Instruction]:
    return {each.name: each for computation in module.computations for each in computation.instructions}


def program(*lines: str, header: str = "HloModule m") -> str:
    return "\n".join([header, "ENTRY e {", *lines, "}"])


def test_a_small_text_gives_these_records():
    text = """HloModule jit_f, entry_computation_layout={(f32[4,5]{1,0})->f32[4]{0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4,5]) -> f32[4] {
  %x = f32[4,5]{0,1} parameter(0)
  %zero = f32[] constant(0)
  ROOT %sum = f32[4]{0} reduce(%x, %zero), dimensions={1}, to_apply=%add, metadata={op_name="sum"}
}
"""
    scalar = array()
    expected = Module(
        "jit_f",
        (
            Computation(
                1,
                "add",
                3,
                (
                    Instruction(1, "parameter", scalar, "a"),
                    Instruction(2, "parameter", scalar, "b", parameter_number=1),
                    Instruction(3, "add", scalar, "c", operand_ids=(1, 2)),
                ),
            ),
            Computation(
                2,
                "main",
                6,
                (
                    Instruction(4, "parameter", Shape(11, (4, 5), (), (0, 1)), "x"),
                    Instruction(5, "constant", scalar, "zero"),
                    Instruction(6, "reduce", array(4), "sum", (4, 5), (1,), dimensions=(1,), metadata=Metadata("sum")),
                ),
            ),
        ),
        entry_computation_id=2,
    )
    assert parse_text(text) == expected
    assert parse_text(text.replace("%", "")) == expected
    assert parse_text(text.replace("reduce(%x, %zero)", "reduce(f32[4,5]{0,1} %x, f32[] %zero)")) == expected
    assert parse_text(text.replace("\n", "\r\n").encode()) == expected
    assert parse_text("\ufeff// from a bug report\n/* by\nsomeone */" + text) == expected


def test_old_text():
    module = parse_text(OLD)
    assert module.name == "cluster_0__XlaCompiledKernel_true_.42"
    assert [each.name for each in module.computations] == ["add_F32.7", "ge_F32.11", "body", "condition", "main.42"]
    assert module.entry_computation_id == module.computations[-1].id
    found = by_name(module)
    assert found["conv"].shape == Shape(11, (2, 4, 8, 4), (), (3, 0, 2, 1))
    assert found["conv"].window == (
        WindowDimension(3, 2, 0, 1, 1, 1, reversal=True),
        WindowDimension(3, 1, 1, 1, 1, 1, reversal=True),
    )
    assert found["conv"].convolution == ConvolutionDimensions(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    assert (found["conv"].feature_group_count, found["conv"].batch_group_count) == (1, 1)
    assert found["pool"].window[1] == WindowDimension(2, 2, 0, 0, 1, 1)
    ids = {each.name: each.id for each in module.computations}
    assert found["unpool"].called_computation_ids == (ids["ge_F32.11"], ids["add_F32.7"])
    assert found["while"].called_computation_ids == (ids["body"], ids["condition"])
    assert found["sum"].dimensions == (0, 1, 2)
    assert found["many"].operand_ids == (found["sum"].id,) * 6
    assert found["many"].shape == Shape(13, tuple_shapes=(array(4),) * 6)
    assert found["feed"].shape == Shape(13, tuple_shapes=(Shape(13, tuple_shapes=(array(2),)), Shape(17)))


def test_new_text():
    module = parse_text(NEW)
    found = by_name(module)
    assert found["x"].shape == Shape(16, (16, 32), (), (1, 0))  # the layout that XLA presumes
    assert found["eight"].shape.element_type == 20 and found["four"].shape == Shape(21, (16, 32), (), (1, 0))
    assert found["part"].dynamic_slice_sizes == (2, 8)
    assert found["range"].slice_dimensions == (SliceDimension(0, 16, 2), SliceDimension(1, 11, 1))
    assert found["padded"].padding == (PaddingDimension(0, 1), PaddingDimension(-2, 3, 1))
    assert found["steps"].dimensions == (1,)
    assert found["sorted"].is_stable and found["sorted"].dimensions == (0,)
    assert found["grouped"].feature_group_count == 2
    assert found["grouped"].convolution == ConvolutionDimensions(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))
    assert (found["call"].feature_group_count, found["call"].batch_group_count) == (1, 1)
    assert len(found["call"].called_computation_ids) == len(found["choice"].called_computation_ids) == 2
    assert found["bounded"].shape.dimensions == (4,)
    assert found["empty"] == Instruction(found["empty"].id, "tuple", Shape(13), "empty")
    assert (found["started"].opcode, found["done"].opcode) == ("async-start", "async-done")
    wrapped, inline = (
        next(each for each in module.computations if each.id == found[name].called_computation_ids[0])
        for name in ("started", "inline")
    )
    assert [each.opcode for each in wrapped.instructions] == ["parameter", "custom-call"]
    assert wrapped.instructions[1].shape == found["started"].shape.tuple_shapes[1]
    assert [each.opcode for each in inline.instructions] == ["parameter", "parameter", "maximum"]


def test_a_scheduled_text_gets_the_order_of_the_protobuf():
    lines = (
        "  b = f32[] parameter(1)",
        "  a = f32[] parameter(0)",
        "  unused = f32[] constant(1)",
        "  first = f32[] negate(b)",
        "  early = f32[] negate(b)",
        "  second = f32[] negate(a)",
        "  ROOT sum = f32[] add(second, first), control-predecessors={early}",
    )
    module = parse_text(program(*lines, header="HloModule m, is_scheduled=true"))
    names = [each.name for each in module.computations[0].instructions]
    # `early` has no user, so it is visited on its own, with its operand b; then the root's operands in their order
    assert names == ["unused", "b", "early", "a", "second", "first", "sum"]
    plain = parse_text(program(*lines))
    assert [each.name for each in plain.computations[0].instructions] == [
        line.split(" =")[0].split()[-1] for line in lines
    ]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # new XLA: instructions are numbered in each computation, so a number occurs twice
        (("max.3", "body.4", "add.1", "cond.2"), ["add.1", "cond.2", "max.3", "body.4", "main.9"]),
        (("max.3", "body.4", "add.1", "cond"), ["max.3", "body.4", "add.1", "cond", "main.9"]),  # one has no number
        (("max.13", "body.14", "add.11", "cond.12"), ["max.13", "body.14", "add.11", "cond.12", "main.29"]),  # older
        (("max.4", "body.3", "add.1", "cond.2"), ["max.4", "body.3", "add.1", "cond.2", "main.9"]),  # not callees first
    ],
)
def test_computations_are_in_the_order_of_their_numbers(names, expected):
    first, body, second, condition = names
    text = f"""HloModule m
{first} {{ x.1 = f32[] parameter(0) }}
{body} {{ x.1 = f32[] parameter(0)
  ROOT y.2 = f32[] call(x.1), to_apply={first} }}
{second} {{ x.1 = f32[] parameter(0) }}
{condition} {{ x.1 = f32[] parameter(0)
  ROOT y.2 = f32[] call(x.1), to_apply={second} }}
ENTRY {expected[-1]} {{ x.1 = f32[] parameter(0)
  ROOT y.2 = f32[] while(x.1), body={body}, condition={condition} }}
"""
    assert [each.name for each in parse_text(text).computations] == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[]", Shape(11)),
        ("f32[2,3]", Shape(11, (2, 3), (), (1, 0))),
        ("f32[2,3]{}", Shape(11, (2, 3))),
        ("bf16[2,3]{0,1:T(8,128)(2,1)S(1)}", Shape(16, (2, 3), (), (0, 1))),
        ("pred[<=7,?]{1,0}", Shape(1, (7, -(1 << 63)), (), (1, 0))),
        ("f32[]{:T(128)}", Shape(11)),
        ("token[]", Shape(17)),
        ("()", Shape(13)),
        ("((s32[]), /*index=1*/u8[1]{0})", Shape(13, (), (Shape(13, (), (Shape(4),)), Shape(6, (1,), (), (0,))))),
        ("b(f32[4]{0})", Shape(34, (), (Shape(11, (4,), (), (0,)),))),
    ],
)
def test_shapes(shape, expected):
    found = by_name(parse_text(program(f"a = {shape} parameter(0)", f"b = {shape} copy({shape} a)")))
    assert found["a"].shape == found["b"].shape == expected
    assert found["b"].operand_ids == (found["a"].id,)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_simulators_programs_survive_the_round_trip(family):
    module = draw_program(family, SCALES["tiny"].size, np.random.default_rng(3))
    assert_same_graph(parse_text(serialize_text(module)), module)


def test_the_real_program_survives_the_round_trip(real_data):
    data = (real_data / "tpugraphs" / "protobuf" / "module_tuning_data_layout.pb").read_bytes()
    module = parse_module(data)
    text = serialize_text(module)
    assert_same_graph(parse_text(text), module)
    assert serialize_text(parse_text(text)) == text


@pytest.mark.parametrize("text", [OLD, NEW], ids=["old", "new"])
def test_the_samples_survive_the_round_trip(text):
    module = parse_text(text)
    assert_same_graph(parse_text(serialize_text(module)), module)


def test_the_writer_names_what_it_cannot_write():
    module = small_cnn()
    assert parse_text(serialize_text(module)) == Module("program", module.computations, 1)
    nameless = Module("a b", (Computation(5, "", 8, (Instruction(8, "iota", array(3), "ü", dimensions=(0,)),)),), 5)
    assert "ROOT %iota.id8 = f32[3]{0} iota(), dimensions={0}" in serialize_text(nameless)
    odd = Instruction(1, "convolution", array(1, 1), "c", convolution=ConvolutionDimensions())
    with pytest.raises(HloError, match="no permutation"):
        serialize_text(Module("m", (Computation(1, "c", 1, (odd,)),), 1))
    lost = Instruction(1, "add", array(), "c", operand_ids=(7,))
    with pytest.raises(HloError, match="id 7, which its module lacks"):
        serialize_text(Module("m", (Computation(1, "c", 1, (lost,)),), 1))


def test_the_content_decides_what_a_file_is():
    assert is_text(b"HloModule m") and is_text(b"// c\n\n/* ** */ ENTRY e {") and is_text(b"%add (a: f32[]) -> f32[] {")
    for data in (b"", b"hello", b"PK\x03\x04", b'{"a": 1}', b"HloModules", serialize_module(small_cnn())):
        assert not is_text(data)
    named_like_text = serialize_module(Module("HloModule", small_cnn().computations, 1))
    assert named_like_text.startswith(b"\n\tHloModule") and parse_program(named_like_text).name == "HloModule"
    assert_same_graph(parse_program(serialize_text(small_cnn()).encode()), small_cnn())


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("HloModule m\n", 2, 1, "the text ends here, expected a computation"),
        (program("a = f32[] parameter(0)") + "\n  what", 5, 3, "found 'what', expected a computation"),
        (program(), 3, 1, "this computation has none"),
        (program("a = f32[] parameter(0)")[:-1], 4, 1, "the text ends here, expected an instruction"),
        (program("a = f32[] parameter(0)", "  a = f32[] copy(a)"), 4, 3, "the name 'a' occurs twice"),
        (program("a = q32[2] parameter(0)"), 3, 5, "the element type 'q32' is unknown"),
        (program("a = f32[2,x] parameter(0)"), 3, 11, "the dimension 'x' is none"),
        (program("a = f32[2,3]{1,1} parameter(0)"), 3, 5, "the layout {1,1} does not fit the shape [2,3]"),
        (program("a = f32[2,3]{1\n} parameter(0)"), 3, 5, "the layout {1 } does not fit the shape [2,3]"),
        (program("a = f32[2]{9999999999999999999} parameter(0)"), 3, 12, "a number of at most 64 bits"),
        (program("a = (f32[2] f32[2]) parameter(0)"), 3, 13, "expected ',' or ')' in the shape of a tuple"),
        (program("a = add(x)"), 3, 5, "found 'add(x)', expected a shape"),
        (program("a = f32[] Add(x)"), 3, 11, "found 'Add(x)', expected an opcode"),
        (program("a = f32[] parameter(x)"), 3, 21, "found 'x', expected a number"),
        (program("a = f32[] parameter(0)", "b = f32[] add(a, c)"), 4, 18, "the operand 'c' is not defined"),
        (program("a = f32[] parameter(0)", "b = f32[] add(a, )"), 4, 18, "expected the name of an operand"),
        (program("a = f32[] parameter(0)", "b = f32[] add(a a)"), 4, 15, "expected the name of an operand"),
        (program("a = f32[] constant((1}, 2))"), 3, 22, "found '}', which closes no bracket of its kind"),
        (program('a = f32[] constant(1), metadata={op_name="x}'), 3, 42, "the string is not closed"),
        (program("a = f32[] constant(1), sharding={{"), 3, 33, "the '{' is not closed"),
        (program("a = f32[] constant(1) /* open"), 3, 23, "the comment is not closed"),
        (program("a = f32[] constant(1), dimensions=3"), 3, 35, "expected a list in braces"),
        (program("a = f32[] constant(1), dimensions={1,b}"), 3, 38, "found 'b', expected a number"),
        (program("a = f32[] constant(1), window={size=3 shape=1}"), 3, 39, "expected one of pad, size"),
        (program("a = f32[] constant(1), window={size=3x3 stride=2}"), 3, 31, "2 sizes, but 1 of stride"),
        (program("a = f32[] constant(1), dim_labels=b01f"), 3, 35, "found 'b01f', expected dimension labels"),
        (program("a = f32[] constant(1), dim_labels=b0_io->b0f"), 3, 35, "found the dimension labels 'b0'"),
        (program("a = f32[] constant(1), slice={[0:1], 5}"), 3, 38, "found '5}', expected a range"),
        (program("a = f32[] constant(1), padding=0_1x3"), 3, 36, "found '3', expected padding"),
        (program("a = f32[] constant(1), is_stable=yes"), 3, 34, "expected true or false"),
        (program("a = f32[] call(), to_apply=lost"), 3, 28, "the computation 'lost' is not in the text"),
        (program("a = f32[] call(), to_apply=[x]"), 3, 28, "expected a computation's name"),
        (program("ROOT a = f32[] iota()", "ROOT b = f32[] iota()"), 4, 1, "a second ROOT"),
        (program("a = f32[] iota()") + "\n ENTRY f { b = f32[] iota() }", 5, 2, "a second ENTRY"),
        ("HloModule m\nc { a = f32[] iota() }\nc { a = f32[] iota() }", 3, 1, "the computation 'c' occurs twice"),
        ("HloModule m\nc { a = f32[] iota() }\nd { a = f32[] iota() }", 3, 23, "expected an ENTRY computation"),
        ("HloModule m\nc (x: f32[]) { a = f32[] iota() }", 2, 14, "expected -> and the shape"),
        (program("a = f32[] iota()", "b = f32[] foo-start(a)"), 4, 1, "foo-start without a tuple"),
        (program("a = f32[] iota(), control-predecessors={b}"), 3, 40, "the control predecessor 'b' is not defined"),
        (program("a = " + "(" * 300 + ")" * 300 + " iota()"), 3, 106, "nested deeper than 100 levels"),
        (program("a = f32[] call(), to_apply={ " * 300), 3, 2929, "nested deeper than 100 levels"),
    ],
)  # fmt: skip
def test_errors_have_line_and_column(text, line, column, words):
    with pytest.raises(HloError) as error:
        parse_text(text)
    assert str(error.value).startswith(f"HLO text, line {line}, column {column}: ")
    assert words in str(error.value)


_TOKENS = "{ } ( ) [ ] \" \\ , = % /* */ // ROOT ENTRY <= ? ' -> x _ - 99999999999999999999999 \0 \xff \n".split(" ")  # noqa: SIM905


def damage(text: str, random_numbers: random.Random) -> str:
    for _ in range(random_numbers.randint(1, 5)):
        start = random_numbers.randrange(len(text) + 1)
        end = start + random_numbers.randint(0, 30)
        kind = random_numbers.randrange(4)
        if kind == 0:
            text = text[:start] + random_numbers.choice(_TOKENS) + text[start:]
        elif kind == 1:
            text = text[:start] + text[end:]
        elif kind == 2:
            text = text[:end] + text[start:]
        elif random_numbers.random() < 0.2:
            text = text[:start]
    return text


def assert_module_or_one_error(data: bytes) -> bool:
    try:
        module = parse_text(data)
    except HloError as error:
        assert re.match(r"HLO text, line \d+, column \d+: .", str(error)) and "\n" not in str(error)
        return False
    featurize_module(module)
    return True


@pytest.mark.parametrize("text", [OLD, NEW, serialize_text(small_cnn())], ids=["old", "new", "own"])
def test_damaged_texts_give_a_module_or_one_error(text):
    random_numbers = random.Random(f"damage {len(text)}")
    read = sum(assert_module_or_one_error(damage(text, random_numbers).encode("latin-1")) for _ in range(300))
    assert 0 < read < 300


def test_random_bytes_give_a_module_or_one_error():
    random_numbers = random.Random(5)
    starts = (b"", b"HloModule ", b"HloModule m\nENTRY e {\n", b"HloModule m\nENTRY e {\n a = f32[2] ")
    for number in range(300):
        assert_module_or_one_error(starts[number % 4] + random_numbers.randbytes(random_numbers.randrange(200)))


@pytest.mark.parametrize(
    "end",
    [
        "a = f32[] constant(0), x=" + '\\"' * 30_000,
        "a = f32[] constant(0), x={" + '"" ' * 30_000,
        "a = f32[] call(), to_apply={" + "a" * 30_000 + " = ",
        "a = f32[] call(), to_apply={" + "a, " * 30_000 + " = ",
        "a = f32[] add(" + " " * 30_000 + "!",
        " " * 30_000 + "!",
        "a = " + "(" * 30_000 + ")" * 30_000,
        "a = f32[" + "9" * 30_000 + "]",
        "/*" * 30_000,
        "a = f32[] slice(), slice={" + "[0:1]," * 10_000 + "}!",
    ],
    ids=range(10),
)
def test_no_text_takes_longer_than_its_length(end):
    start = time.process_time()
    with pytest.raises(HloError, match="line"):
        parse_text("// comments are looked for\nHloModule m\nENTRY e {\n" + end)
    assert time.process_time() - start < 3
