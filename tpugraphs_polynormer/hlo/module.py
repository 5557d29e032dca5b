"""Records of an HLO module: the fields of the TpuGraphs features, and those that make a module valid for XLA."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """An array or tuple shape; `element_type` is the XLA PrimitiveType number."""

    element_type: int = 0
    dimensions: tuple[int, ...] = ()
    tuple_shapes: tuple[Shape, ...] = ()
    minor_to_major: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowDimension:
    """One spatial dimension of a convolution's or reduce-window's window."""

    size: int = 0
    stride: int = 0
    padding_low: int = 0
    padding_high: int = 0
    window_dilation: int = 0
    base_dilation: int = 0
    reversal: bool = False


@dataclass(frozen=True, slots=True)
class ConvolutionDimensions:
    """The roles of the dimensions of a convolution's input, kernel and output."""

    input_batch: int = 0
    input_feature: int = 0
    input_spatial: tuple[int, ...] = ()
    kernel_input_feature: int = 0
    kernel_output_feature: int = 0
    kernel_spatial: tuple[int, ...] = ()
    output_batch: int = 0
    output_feature: int = 0
    output_spatial: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SliceDimension:
    """The range that a slice takes of one dimension."""

    start: int = 0
    limit: int = 0
    stride: int = 0


@dataclass(frozen=True, slots=True)
class PaddingDimension:
    """The padding that a pad adds to one dimension."""

    low: int = 0
    high: int = 0
    interior: int = 0


@dataclass(frozen=True, slots=True)
class DotDimensions:
    """The dimensions that a dot contracts and those that it only pairs (batch), of its first and second operand."""

    first_contracting: tuple[int, ...] = ()
    second_contracting: tuple[int, ...] = ()
    first_batch: tuple[int, ...] = ()
    second_batch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GatherDimensions:
    """The roles of the dimensions of a gather's result, operand and indices."""

    offset_dims: tuple[int, ...] = ()
    collapsed_slice_dims: tuple[int, ...] = ()
    start_index_map: tuple[int, ...] = ()
    index_vector_dim: int = 0


@dataclass(frozen=True, slots=True)
class ScatterDimensions:
    """The roles of the dimensions of a scatter's updates, operand and indices."""

    update_window_dims: tuple[int, ...] = ()
    inserted_window_dims: tuple[int, ...] = ()
    scatter_dims_to_operand_dims: tuple[int, ...] = ()
    index_vector_dim: int = 0


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the framework noted about an instruction: the operation, and the line of the source that made it."""

    op_name: str = ""
    source_file: str = ""
    source_line: int = 0

    @property
    def source(self) -> str:
        """`model.py:12`; empty if the file is unknown."""
        return f"{self.source_file}:{self.source_line}" if self.source_file else ""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One HLO instruction; absent optional fields are 0 or empty, as in the protobuf.

    No feature depends on the fields from `literal` on; XLA needs them to accept the module. `literal` is a serialized
    LiteralProto, because programs with stored weights have large ones that nobody looks into. `metadata` is for people.
    """

    id: int
    opcode: str
    shape: Shape
    name: str = ""
    operand_ids: tuple[int, ...] = ()
    called_computation_ids: tuple[int, ...] = ()
    parameter_number: int = 0
    dimensions: tuple[int, ...] = ()
    window: tuple[WindowDimension, ...] = ()
    convolution: ConvolutionDimensions | None = None
    slice_dimensions: tuple[SliceDimension, ...] = ()
    dynamic_slice_sizes: tuple[int, ...] = ()
    padding: tuple[PaddingDimension, ...] = ()
    feature_group_count: int = 0
    batch_group_count: int = 0
    is_stable: bool = False
    literal: bytes = b""
    fusion_kind: str = ""
    tuple_index: int = 0
    distribution: int = 0  # of rng: 1 is uniform, 2 normal
    custom_call_target: str = ""
    outfeed_shape: Shape | None = None
    dot: DotDimensions | None = None
    gather: GatherDimensions | None = None
    gather_slice_sizes: tuple[int, ...] = ()
    scatter: ScatterDimensions | None = None
    comparison_direction: str = ""
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class Computation:
    """A list of instructions in topological order, with the id of its root."""

    id: int
    name: str
    root_id: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A whole program: its computations in stored order."""

    name: str
    computations: tuple[Computation, ...]
    entry_computation_id: int = 0
