"""Where instructions come from: read from text and from protobufs, by tables or directly, and written again."""

import pytest

from tests.hlo.test_text import by_name, program
from tests.hlo.text_samples import NEW, OLD
from tpugraphs_polynormer.hlo.module import Metadata, Module
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.text import parse_text
from tpugraphs_polynormer.hlo.text_writer import serialize_text
from tpugraphs_polynormer.hlo.writer import serialize_module


def metadata_of(module: Module) -> list[Metadata | None]:
    return [each.metadata for computation in module.computations for each in computation.instructions]


def test_both_forms_of_a_source_line_are_read():
    old, new = by_name(parse_text(OLD)), by_name(parse_text(NEW))
    assert old["conv"].metadata == Metadata("net/conv{1}", "/a/b.py", 12)
    assert old["images"].metadata == Metadata('a "b" \\')
    assert old["conv"].metadata.source == "/a/b.py:12" and old["images"].metadata.source == ""
    assert new["x"].metadata == Metadata("x", "/home/user/step.py", 6)  # by stack frame, location and file
    assert new["zero"].metadata is None


@pytest.mark.parametrize(
    "value", ["{}", "{op_type=3}", "{stack_frame_id=7}", "{stack_frame_id=99999999999999}", '{op_name=""}', "5"]
)
def test_metadata_that_says_nothing_is_none(value):
    assert by_name(parse_text(program(f"a = f32[] constant(1), metadata={value}")))["a"].metadata is None


def test_writers_keep_it():
    text = program(
        r'a = f32[] constant(1), metadata={op_name="jit(f)/\"q\"\\ \n\303" source_file="/m.py" source_line=3}',
        'ROOT b = f32[] negate(a), metadata={source_file="/n.py"}',
    )
    module = parse_text(text)
    assert metadata_of(module) == [Metadata('jit(f)/"q"\\ \n\303', "/m.py", 3), Metadata("", "/n.py", 0)]
    assert metadata_of(parse_text(serialize_text(module))) == metadata_of(module)
    assert metadata_of(parse_module(serialize_module(module))) == metadata_of(module)


def test_text_and_protobuf_of_jax_name_the_same_lines():
    jax = pytest.importorskip("jax")
    lowered = jax.jit(lambda x: jax.numpy.tanh(x @ x).reshape(-1)).lower(jax.ShapeDtypeStruct((4, 4), "float32"))
    printed = lowered.compiler_ir("hlo").get_hlo_module()
    stored = parse_module(printed.as_serialized_hlo_module_proto())
    assert metadata_of(parse_text(printed.to_string())) == metadata_of(stored)
    (dot,) = [each for each in stored.computations[-1].instructions if each.opcode == "dot"]
    assert dot.metadata.source_file == __file__ and dot.metadata.source_line > 0
    assert dot.metadata.op_name.endswith("dot_general")
