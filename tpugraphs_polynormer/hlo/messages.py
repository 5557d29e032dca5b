"""The protobuf messages of XLA and TpuGraphs, reduced to the fields of `module.py` and built at run time.

The protobuf package parses them in C: it limits nesting, checks lengths and merges repeated singular fields, as the
official tool does. Strings are declared as bytes (the same on the wire), so that a name that is not UTF-8 can be read.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

# Per message one line per field: number, name, type; "*" marks a repeated field. Other types are messages named here.
_FIELDS = {
    "Layout": "1 minor_to_major int64*",
    "Shape": "2 element_type int32, 3 dimensions int64*, 4 tuple_shapes Shape*, 5 layout Layout",
    "WindowDimension": (
        "1 size int64, 2 stride int64, 3 padding_low int64, 4 padding_high int64, 5 window_dilation int64, "
        "6 base_dilation int64, 7 reversal bool"
    ),
    "Window": "1 dimensions WindowDimension*",
    "ConvolutionDimensions": (
        "7 input_batch int64, 8 input_feature int64, 11 input_spatial int64*, 3 kernel_input_feature int64, "
        "4 kernel_output_feature int64, 6 kernel_spatial int64*, 9 output_batch int64, 10 output_feature int64, "
        "12 output_spatial int64*"
    ),
    "SliceDimension": "1 start int64, 2 limit int64, 3 stride int64",
    "PaddingDimension": "1 low int64, 2 high int64, 3 interior int64",
    "Padding": "1 dimensions PaddingDimension*",
    "DotDimensions": (
        "1 first_contracting int64*, 2 second_contracting int64*, 3 first_batch int64*, 4 second_batch int64*"
    ),
    "GatherDimensions": (
        "1 offset_dims int64*, 2 collapsed_slice_dims int64*, 3 start_index_map int64*, 4 index_vector_dim int64"
    ),
    "ScatterDimensions": (
        "1 update_window_dims int64*, 2 inserted_window_dims int64*, 3 scatter_dims_to_operand_dims int64*, "
        "4 index_vector_dim int64"
    ),
    # Sixteen-bit floats are bytes, two for each element.
    "Literal": (
        "1 shape Shape, 2 preds bool*, 4 s32s int32*, 5 s64s int64*, 6 u32s uint32*, 7 u64s uint64*, 8 f32s float*, "
        "9 f64s double*, 11 f16s bytes, 13 bf16s bytes"
    ),
    "Metadata": "2 op_name bytes, 3 source_file bytes, 4 source_line int32, 15 stack_frame_id int32",
    "FileLocation": "1 file_name_id int32, 3 line int32",
    "StackFrame": "1 file_location_id int32",
    # The ids count from 1; 0 is none.
    "StackFrames": "1 file_names bytes*, 3 file_locations FileLocation*, 4 stack_frames StackFrame*",
    "ProgramShape": "1 parameters Shape*, 2 result Shape, 3 parameter_names bytes*",
    # A literal is read as bytes: the same on the wire as the message, and its values are not looked at.
    "Instruction": (
        "1 name bytes, 2 opcode bytes, 3 shape Shape, 7 metadata Metadata, 8 literal bytes, 9 parameter_number int64, "
        "11 fusion_kind bytes, 13 tuple_index int64, 14 dimensions int64*, 15 window Window, "
        "16 convolution ConvolutionDimensions, "
        "17 slice_dimensions SliceDimension*, 20 dynamic_slice_sizes int64*, 21 padding Padding, "
        "23 distribution int32, 28 custom_call_target bytes, 29 outfeed_shape Shape, 30 dot DotDimensions, "
        "33 gather GatherDimensions, 34 gather_slice_sizes int64*, 35 id int64, 36 operand_ids int64*, "
        "38 called_computation_ids int64*, 48 scatter ScatterDimensions, 50 feature_group_count int64, "
        "58 batch_group_count int64, 60 is_stable bool, 63 comparison_direction bytes"
    ),
    "Computation": "1 name bytes, 2 instructions Instruction*, 5 id int64, 6 root_id int64",
    "Module": (
        "1 name bytes, 2 entry_computation_name bytes, 3 computations Computation*, 4 program_shape ProgramShape, "
        "5 id int64, 6 entry_computation_id int64, 17 stack_frame_index StackFrames"
    ),
    "HloProto": "1 module Module",
    "TileSizes": "1 kernel_bounds int64*, 2 output_bounds int64*, 3 input_bounds int64*, 4 iteration_bounds int64*",
    "OpCandidate": "1 tile_sizes TileSizes",
    "TensorLayout": "1 dims int32*",
    "NodeLayouts": "1 tensors TensorLayout*",
    "LayoutCandidate": "1 nodes NodeLayouts*",
    "ModuleCandidate": "1 layout LayoutCandidate",
    "Profile": "4 compute_time_ns int64",
    # The error field is a varint in the real files: any number but 0 means that the measurement failed.
    "Run": (
        "1 op_candidate OpCandidate, 2 module_candidate ModuleCandidate, 3 error bool, 4 profile Profile, "
        "5 is_default bool"
    ),
    "ModuleTuning": "1 module Module, 3 runs Run*, 4 config_index_to_node uint64*",
    "Tuning": "1 modules ModuleTuning*",
}


def build_messages(package: str, fields: Mapping[str, str]) -> dict[str, type[Message]]:
    """{name: class} of proto2 messages, declared as in `_FIELDS`; repeated numbers are packed.

    Their descriptor pool is private, because TensorFlow and JAX register XLA's messages in the shared pool.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for message_name, lines in fields.items():
        message = file.message_type.add(name=message_name)
        for line in lines.split(","):
            number, name, kind = line.split()
            field = message.field.add(name=name, number=int(number))
            field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in fields:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
                continue
            field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
            if field.label == field.LABEL_REPEATED and kind != "bytes":
                field.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in fields}


MESSAGES: dict[str, type[Message]] = build_messages("tpugraphs_polynormer.hlo", _FIELDS)
