"""A builder of HLO modules: assigns ids, keeps topological order and infers shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpugraphs_polynormer.hlo.module import (
    Computation,
    ConvolutionDimensions,
    Instruction,
    Module,
    Shape,
    SliceDimension,
    WindowDimension,
)

PRED, S32, F32, TUPLE, BF16 = 1, 4, 11, 13, 16  # XLA PrimitiveType numbers


def array_shape(dims: Sequence[int], element_type: int) -> Shape:
    """An array shape with the last dimension minor."""
    return Shape(element_type, tuple(dims), minor_to_major=tuple(range(len(dims) - 1, -1, -1)))


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Low and high padding that gives ceil(size / stride) outputs."""
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return total // 2, total - total // 2


class ModuleBuilder:
    """Collects computations; a called computation must be finished before its caller, as in stored HLO."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last_id = 0
        self._computations: list[Computation] = []

    def new_id(self) -> int:
        """An id that no instruction or computation of the module has."""
        self._last_id += 1
        return self._last_id

    def computation(self, name: str) -> ComputationBuilder:
        """Starts a computation, which joins the module when it is finished."""
        return ComputationBuilder(self, f"{name}.{self.new_id()}")

    def append(self, computation: Computation) -> int:
        """Adds a finished computation and returns its id."""
        self._computations.append(computation)
        return computation.id

    def scalar_computation(self, opcode: str, element_type: int) -> int:
        """The id of a computation of two scalars, such as a reduce calls."""
        body = self.computation(f"{opcode}_computation")
        first, second = body.parameter((), element_type), body.parameter((), element_type)
        result = PRED if opcode == "compare" else element_type
        return body.finish(body.add(opcode, (), (first, second), result))

    def build(self) -> Module:
        """The module; the computation finished last is the entry."""
        return Module(self._name, tuple(self._computations), self._computations[-1].id)


class ComputationBuilder:
    """Appends instructions to one computation; each method returns the instruction it made."""

    def __init__(self, module: ModuleBuilder, name: str) -> None:
        self.module = module
        self._name = name
        self._instructions: list[Instruction] = []
        self._num_parameters = 0

    def finish(self, root: Instruction) -> int:
        """Closes the computation and returns its id."""
        computation = Computation(self.module.new_id(), self._name, root.id, tuple(self._instructions))
        return self.module.append(computation)

    def add(
        self,
        opcode: str,
        dims: Sequence[int],
        operands: Sequence[Instruction] = (),
        element_type: int | None = None,
        **fields: object,
    ) -> Instruction:
        """An instruction with an array result; the default element type is the first operand's."""
        kind = operands[0].shape.element_type if element_type is None else element_type
        return self._append(opcode, array_shape(dims, kind), operands, fields)

    def _append(self, opcode: str, shape: Shape, operands: Sequence[Instruction], fields: dict) -> Instruction:
        return self.copy(Instruction(0, opcode, shape, **fields), operands)

    def copy(
        self, instruction: Instruction, operands: Sequence[Instruction], called: Sequence[int] = ()
    ) -> Instruction:
        """A copy of an instruction, with a new id, with operands of this computation and, where given, its callees."""
        identifier = self.module.new_id()
        made = replace(
            instruction,
            id=identifier,
            name=f"{instruction.opcode}.{identifier}",
            operand_ids=tuple(each.id for each in operands),
            called_computation_ids=tuple(called) or instruction.called_computation_ids,
        )
        self._instructions.append(made)
        return made

    def parameter(self, dims: Sequence[int], element_type: int) -> Instruction:
        """The computation's next parameter."""
        self._num_parameters += 1
        return self.add("parameter", dims, (), element_type, parameter_number=self._num_parameters - 1)

    def tuple_parameter(self, shapes: Sequence[Shape]) -> Instruction:
        """A tuple as the computation's next parameter."""
        self._num_parameters += 1
        return self._append("parameter", Shape(TUPLE, tuple_shapes=tuple(shapes)), (), {})

    def tuple(self, values: Sequence[Instruction]) -> Instruction:
        """A tuple of the values."""
        return self._append("tuple", Shape(TUPLE, tuple_shapes=tuple(each.shape for each in values)), values, {})

    def loop(self, state: Instruction, condition: int, body: int) -> Instruction:
        """A while loop over a tuple state."""
        return self._append("while", state.shape, (state,), {"called_computation_ids": (body, condition)})

    def element(self, value: Instruction, index: int) -> Instruction:
        """One element of a tuple."""
        return self._append("get-tuple-element", value.shape.tuple_shapes[index], (value,), {})

    def constant(self, element_type: int) -> Instruction:
        """A scalar constant (no feature depends on its value)."""
        return self.add("constant", (), (), element_type)

    def full(self, dims: Sequence[int], element_type: int) -> Instruction:
        """A constant, broadcast to a shape."""
        return self.broadcast(self.constant(element_type), dims, ())

    def broadcast(self, value: Instruction, dims: Sequence[int], dimensions: Sequence[int]) -> Instruction:
        """A broadcast value, whose dimension i becomes dimension `dimensions[i]` of the result."""
        return self.add("broadcast", dims, (value,), dimensions=tuple(dimensions))

    def unary(self, opcode: str, value: Instruction) -> Instruction:
        """An elementwise instruction of one operand."""
        return self.add(opcode, value.shape.dimensions, (value,))

    def binary(self, opcode: str, first: Instruction, second: Instruction) -> Instruction:
        """An elementwise instruction of two operands with equal shapes."""
        if first.shape.dimensions != second.shape.dimensions:
            raise ValueError(f"{opcode}: shapes {first.shape.dimensions} and {second.shape.dimensions} differ")
        return self.add(opcode, first.shape.dimensions, (first, second))

    def scaled(self, value: Instruction) -> Instruction:
        """The value times some constant."""
        return self.binary("multiply", value, self.full(value.shape.dimensions, value.shape.element_type))

    def select_positive(self, test: Instruction, value: Instruction) -> Instruction:
        """The value where `test` is positive, zero elsewhere."""
        zero = self.full(value.shape.dimensions, value.shape.element_type)
        mask = self.add("compare", value.shape.dimensions, (test, zero), PRED)
        return self.add("select", value.shape.dimensions, (mask, value, zero), value.shape.element_type)

    def reduce(self, value: Instruction, dimensions: Sequence[int], opcode: str = "add") -> Instruction:
        """A value reduced along the dimensions."""
        kind = value.shape.element_type
        dims = [size for dim, size in enumerate(value.shape.dimensions) if dim not in dimensions]
        called = (self.module.scalar_computation(opcode, kind),)
        operands = (value, self.constant(kind))
        return self.add("reduce", dims, operands, dimensions=tuple(dimensions), called_computation_ids=called)

    def reshape(self, value: Instruction, dims: Sequence[int]) -> Instruction:
        """The same elements in another shape."""
        return self.add("reshape", dims, (value,))

    def transpose(self, value: Instruction, order: Sequence[int]) -> Instruction:
        """Dimension i of the result is dimension `order[i]` of the value."""
        dims = [value.shape.dimensions[dim] for dim in order]
        return self.add("transpose", dims, (value,), dimensions=tuple(order))

    def dot(self, first: Instruction, second: Instruction, dims: Sequence[int]) -> Instruction:
        """A dot product with a given result shape; no feature depends on the contracted dims."""
        return self.add("dot", dims, (first, second))

    def concatenate(self, values: Sequence[Instruction], dimension: int) -> Instruction:
        """The values one after another along a dimension."""
        dims = list(values[0].shape.dimensions)
        dims[dimension] = sum(each.shape.dimensions[dimension] for each in values)
        return self.add("concatenate", dims, values, dimensions=(dimension,))

    def slice(self, value: Instruction, dimension: int, start: int, limit: int) -> Instruction:
        """The range start..limit of one dimension, all of the others."""
        dims = list(value.shape.dimensions)
        ranges = [SliceDimension(0, size, 1) for size in dims]
        ranges[dimension] = SliceDimension(start, limit, 1)
        dims[dimension] = limit - start
        return self.add("slice", dims, (value,), slice_dimensions=tuple(ranges))

    def reduce_window(self, value: Instruction, size: int, opcode: str = "maximum") -> Instruction:
        """[batch, rows, columns, features], pooled over size x size windows that do not overlap."""
        batch, rows, columns, features = value.shape.dimensions
        called = (self.module.scalar_computation(opcode, value.shape.element_type),)
        operands = (value, self.constant(value.shape.element_type))
        dims = (batch, rows // size, columns // size, features)
        return self.add("reduce-window", dims, operands, window=_pool_window(size), called_computation_ids=called)

    def select_and_scatter(self, value: Instruction, source: Instruction, size: int) -> Instruction:
        """The gradient of max pooling: each pooled gradient at the maximum of its window."""
        kind = value.shape.element_type
        called = tuple(self.module.scalar_computation(opcode, kind) for opcode in ("compare", "add"))
        operands = (value, source, self.constant(kind))
        dims = value.shape.dimensions
        return self.add("select-and-scatter", dims, operands, window=_pool_window(size), called_computation_ids=called)

    def convolution(
        self,
        value: Instruction,
        kernel: Instruction,
        dims: Sequence[int],
        window: Sequence[WindowDimension],
        numbers: ConvolutionDimensions,
    ) -> Instruction:
        """A convolution with explicit result shape, window and dimension numbers."""
        fields = {"window": tuple(window), "convolution": numbers, "feature_group_count": 1, "batch_group_count": 1}
        return self.add("convolution", dims, (value, kernel), **fields)


def _pool_window(size: int) -> tuple[WindowDimension, ...]:
    return tuple(
        WindowDimension(size=each, stride=each, window_dilation=1, base_dilation=1) for each in (1, size, size, 1)
    )
