"""The HLO reader and writer: round trips, wrapper messages, and random bytes."""

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.hlo.programs import modules, small_cnn
from tests.hlo.tuning_files import serialize_layout_tuning
from tpugraphs_polynormer.archives.featurize import featurize_bytes
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.messages import MESSAGES
from tpugraphs_polynormer.hlo.module import Computation, Instruction, Module, Shape
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.tuning import (
    LayoutTuning,
    TuningRun,
    detect_kind,
    parse_layout_tuning,
    parse_tile_tuning,
)
from tpugraphs_polynormer.hlo.writer import serialize_module


def varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 128:
        parts.append(value % 128 + 128)
        value //= 128
    return bytes([*parts, value])


def field(number: int, payload: bytes | int) -> bytes:
    if isinstance(payload, int):
        return varint(number * 8) + varint(payload % (1 << 64))
    return varint(number * 8 + 2) + varint(len(payload)) + payload


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(modules())
def test_every_module_survives_the_round_trip(module):
    data = serialize_module(module)
    assert parse_module(data) == module
    assert parse_module(field(1, data)) == module  # an HloProto
    assert serialize_module(parse_module(data)) == data


def test_bytes_written_by_hand():
    shape = field(2, 11) + field(3, varint(4) + varint(5)) + field(5, field(1, 1) + field(1, 0))  # packed and not
    first = field(1, b"p") + field(2, b"parameter") + field(3, shape) + field(35, 3) + field(9, -2)
    second = field(2, b"add") + field(3, shape) + field(35, 4) + field(36, 3) + field(36, varint(3)) + field(60, 1)
    computation = field(1, b"main") + field(2, first) + field(2, second) + field(5, 9) + field(6, 4)
    data = field(1, b"jit_f") + field(3, computation) + field(6, 9) + field(99, b"unknown")
    plain = Shape(11, (4, 5), (), (1, 0))
    expected = Module(
        "jit_f",
        (
            Computation(
                9,
                "main",
                4,
                (
                    Instruction(3, "parameter", plain, "p", parameter_number=-2),
                    Instruction(4, "add", plain, operand_ids=(3, 3), is_stable=True),
                ),
            ),
        ),
        9,
    )
    assert parse_module(data) == expected


def test_a_repeated_singular_message_is_merged():
    shape = field(3, field(3, 4)) + field(3, field(3, 5) + field(2, 11))
    computation = field(2, field(2, b"add") + shape)
    assert parse_module(field(3, computation)).computations[0].instructions[0].shape == Shape(11, (4, 5))


def test_an_hlo_proto_with_buffer_assignment_is_a_module():
    buffers = field(1, field(1, 7)) + field(2, b"") + field(3, field(1, 7))
    assert detect_kind(field(1, serialize_module(small_cnn())) + field(3, buffers)) == "module"


@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 64])
def test_other_bytes_are_refused(data):
    for read in (parse_module, parse_layout_tuning, parse_tile_tuning, detect_kind):
        with pytest.raises(HloError, match="not a"):
            read(data)


def test_text_is_a_module_but_no_protobuf():
    data = b"HloModule jit_f, entry_computation_layout={()->f32[]}\n"
    assert detect_kind(data) == "module"
    with pytest.raises(HloError, match="not an HLO module: found HLO text"):
        parse_module(data)


def test_deep_nesting_is_refused():
    shape = b""
    for _ in range(20_000):
        shape = field(4, shape)
        if len(shape) > 60_000:
            break
    with pytest.raises(HloError):
        parse_module(field(3, field(2, field(2, b"add") + field(3, shape))))


def test_lengths_beyond_the_end_are_refused():
    with pytest.raises(HloError):
        parse_module(b"\x1a\xff\xff\xff\xff\x07" + b"a")


def test_invalid_utf8_in_a_name_is_kept_readable():
    computation = field(2, field(1, b"\xff") + field(2, b"add"))
    assert parse_module(field(3, computation)).computations[0].instructions[0].name == "\ufffd"


def test_a_run_with_too_few_nodes_is_named():
    layouts = np.full((1, 18), -1, dtype=np.int32)
    tuning = LayoutTuning(small_cnn(), (3, 5), (TuningRun(layouts, 5, False, True),))
    with pytest.raises(HloError, match=r"run 0 .* 1 nodes, expected 2"):
        parse_layout_tuning(serialize_layout_tuning(tuning))


def test_numbers_that_do_not_fit_cannot_be_written():
    with pytest.raises(HloError, match="cannot write"):
        serialize_module(Module("m", (Computation(1, "c", 1 << 63, ()),)))


def _arrays_or_error(data: bytes) -> None:
    try:
        archives = featurize_bytes(data)
    except HloError:
        return
    assert archives and all(isinstance(each["node_feat"], np.ndarray) for each in archives)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
@example(field(1, field(1, serialize_module(small_cnn()))))
def test_random_bytes_give_arrays_or_one_error(data):
    _arrays_or_error(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_modules_give_arrays_or_one_error(data):
    original = bytearray(serialize_module(small_cnn()))
    for _ in range(data.draw(st.integers(1, 6))):
        index = data.draw(st.integers(0, len(original) - 1))
        original[index] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(original)))
    _arrays_or_error(bytes(original[:end]))


def test_damaged_real_bytes_give_arrays_or_one_error(real_data):
    whole = (real_data / "tpugraphs" / "protobuf" / "module_tuning_data_layout.pb").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(12):
        data = bytearray(whole)
        for index in rng.integers(len(data), size=4):
            data[index] = rng.integers(256)
        _arrays_or_error(bytes(data[: rng.integers(len(data) // 2, len(data) + 1)]))


# Kinds of field that look the same on the wire: varints, and what has a length.
WIRE_TYPES = {FieldDescriptor.TYPE_ENUM: "varint", FieldDescriptor.TYPE_BOOL: "varint"}
WIRE_TYPES |= dict.fromkeys((FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64), "varint")
WIRE_TYPES |= dict.fromkeys((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES), "length")


def test_field_numbers_are_those_of_xla():
    """Every field has the number and the wire type of a field in XLA's messages, which TensorFlow contains."""
    hlo = pytest.importorskip("tensorflow.compiler.xla.service.hlo_pb2")
    data = pytest.importorskip("tensorflow.compiler.xla.xla_data_pb2")
    official = {
        "Layout": data.LayoutProto,
        "Shape": data.ShapeProto,
        "WindowDimension": data.WindowDimension,
        "Window": data.Window,
        "ConvolutionDimensions": data.ConvolutionDimensionNumbers,
        "SliceDimension": hlo.HloInstructionProto.SliceDimensions,
        "PaddingDimension": data.PaddingConfig.PaddingConfigDimension,
        "Padding": data.PaddingConfig,
        "DotDimensions": data.DotDimensionNumbers,
        "GatherDimensions": data.GatherDimensionNumbers,
        "ScatterDimensions": data.ScatterDimensionNumbers,
        "Literal": data.LiteralProto,
        "Metadata": data.OpMetadata,
        "FileLocation": hlo.StackFrameIndexProto.FileLocation,
        "StackFrame": hlo.StackFrameIndexProto.StackFrame,
        "StackFrames": hlo.StackFrameIndexProto,
        "ProgramShape": data.ProgramShapeProto,
        "Instruction": hlo.HloInstructionProto,
        "Computation": hlo.HloComputationProto,
        "Module": hlo.HloModuleProto,
        "HloProto": hlo.HloProto,
    }
    renamed = {
        ("Instruction", "id"): "id",
        ("WindowDimension", "reversal"): "window_reversal",
        ("ConvolutionDimensions", "input_batch"): "input_batch_dimension",
        ("ConvolutionDimensions", "input_spatial"): "input_spatial_dimensions",
        ("PaddingDimension", "low"): "edge_padding_low",
        ("PaddingDimension", "high"): "edge_padding_high",
        ("Instruction", "padding"): "padding_config",
        ("Instruction", "convolution"): "convolution_dimension_numbers",
        ("HloProto", "module"): "hlo_module",
        ("DotDimensions", "first_contracting"): "lhs_contracting",
        ("DotDimensions", "second_contracting"): "rhs_contracting",
        ("DotDimensions", "first_batch"): "lhs_batch",
        ("DotDimensions", "second_batch"): "rhs_batch",
        ("Instruction", "dot"): "dot_dimension_numbers",
        ("Instruction", "gather"): "gather_dimension_numbers",
        ("Instruction", "scatter"): "scatter_dimension_numbers",
        ("Module", "program_shape"): "host_program_shape",
    }
    for name, message in official.items():
        theirs = {each.number: each for each in message.DESCRIPTOR.fields}
        for own in MESSAGES[name].DESCRIPTOR.fields:
            other = theirs[own.number]
            expected = renamed.get((name, own.name), own.name)
            assert other.name.startswith(expected), (name, own.name, other.name)
            assert other.is_repeated == own.is_repeated
            opaque = own.name == "literal"  # bytes here, a message of the same bytes there
            same = WIRE_TYPES.get(other.type, other.type) == WIRE_TYPES.get(own.type, own.type)
            assert same or opaque, (name, own.name)


def test_xla_reads_what_is_written():
    hlo = pytest.importorskip("tensorflow.compiler.xla.service.hlo_pb2")
    module = hlo.HloModuleProto.FromString(serialize_module(small_cnn()))
    convolution = module.computations[0].instructions[3]
    assert (convolution.opcode, list(convolution.operand_ids)) == ("convolution", [1, 2])
    assert list(convolution.convolution_dimension_numbers.output_spatial_dimensions) == [1, 2]
    assert convolution.window.dimensions[1].padding_high == 1
    assert list(convolution.shape.layout.minor_to_major) == [3, 2, 1, 0]
    assert np.array_equal(
        featurize_module(parse_module(module.SerializeToString())).node_feat, featurize_module(small_cnn()).node_feat
    )
