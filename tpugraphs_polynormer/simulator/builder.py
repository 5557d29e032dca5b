"""A builder of HLO modules: assigns ids, keeps topological order, infers shapes and shares equal instructions.

Equal instructions are made once, and those that nothing uses are dropped when a computation is finished, as XLA's own
passes do: real programs share their constants and broadcasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tpugraphs_polynormer.hlo.module import (
    Computation,
    ConvolutionDimensions,
    DotDimensions,
    Instruction,
    Module,
    PaddingDimension,
    Shape,
    SliceDimension,
    WindowDimension,
)
from tpugraphs_polynormer.hlo.writer import serialize_literal
from tpugraphs_polynormer.simulator.array_shapes import PRED, S32, TOKEN, TUPLE, array_shape

_EFFECTS = frozenset(("parameter", "infeed", "outfeed"))  # kept although nothing uses them
_NEVER_EQUAL = _EFFECTS | {"rng", "after-all", "while", "custom-call"}


@lru_cache(maxsize=4096)
def _scalar_literal(element_type: int, value: float) -> bytes:
    return serialize_literal(array_shape((), element_type), np.array([value]))


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
        """The id of a new computation of two scalars, such as a reduce calls; "compare" compares for "at least"."""
        body = self.computation(f"{opcode}_computation")
        first, second = body.parameter((), element_type), body.parameter((), element_type)
        result = body.compare("GE", first, second) if opcode == "compare" else body.binary(opcode, first, second)
        return body.finish(result)

    def build(self) -> Module:
        """The module; the computation finished last is the entry. Computations that nothing calls are left out."""
        called = {self._computations[-1].id}
        for computation in reversed(self._computations):
            if computation.id in called:
                called.update(each for item in computation.instructions for each in item.called_computation_ids)
        kept = tuple(each for each in self._computations if each.id in called)
        return Module(self._name, kept, kept[-1].id)


class GrowingTuple:
    """A tuple-shaped instruction whose elements are declared one by one while its computation is built."""

    def __init__(self, builder: ComputationBuilder, holder: Instruction) -> None:
        self._builder, self._holder = builder, holder
        self.shapes: list[Shape] = []

    @property
    def shape(self) -> Shape:
        """The tuple of all elements declared so far."""
        return Shape(TUPLE, tuple_shapes=tuple(self.shapes))

    def add(self, shape: Shape) -> Instruction:
        """The next element."""
        self.shapes.append(shape)
        index = len(self.shapes) - 1
        return self._builder.make("get-tuple-element", shape, (self._holder,), tuple_index=index)


class ComputationBuilder:
    """Appends instructions to one computation; each method returns the instruction it made."""

    def __init__(self, module: ModuleBuilder, name: str) -> None:
        self.module = module
        self._name = name
        self._instructions: list[Instruction] = []
        self._made: dict[tuple, Instruction] = {}
        self._late_shapes: dict[int, Callable[[], Shape]] = {}  # by id: shapes that are known at the end
        self._num_parameters = 0

    def finish(self, root: Instruction) -> int:
        """Closes the computation, without the instructions that its result does not need, and returns its id."""
        used, kept = {root.id}, []
        for each in reversed(self._instructions):
            if each.id in used or each.opcode in _EFFECTS:
                used.update(each.operand_ids)
                late = self._late_shapes.get(each.id)
                kept.append(each if late is None else replace(each, shape=late()))
        return self.module.append(Computation(self.module.new_id(), self._name, root.id, tuple(reversed(kept))))

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
        return self.make(opcode, array_shape(tuple(dims), kind), operands, **fields)

    def make(self, opcode: str, shape: Shape, operands: Sequence[Instruction] = (), **fields: object) -> Instruction:
        """An instruction of any shape, or the equal one that exists."""
        operand_ids = tuple([each.id for each in operands])
        key = (opcode, shape, operand_ids, tuple(fields.items()))
        if opcode not in _NEVER_EQUAL and (equal := self._made.get(key)) is not None:
            return equal
        identifier = self.module.new_id()
        made = Instruction(identifier, opcode, shape, f"{opcode}.{identifier}", operand_ids, **fields)
        self._instructions.append(made)
        self._made[key] = made
        return made

    def copy(
        self, instruction: Instruction, operands: Sequence[Instruction] = (), called: Sequence[int] = ()
    ) -> Instruction:
        """A copy of an instruction of any module, with operands of this computation and its own callees."""
        identifier = self.module.new_id()
        made = replace(
            instruction,
            id=identifier,
            name=f"{instruction.opcode}.{identifier}",
            operand_ids=tuple(each.id for each in operands),
            called_computation_ids=tuple(called),
        )
        self._instructions.append(made)
        return made

    def parameter(self, dims: Sequence[int], element_type: int) -> Instruction:
        """The computation's next parameter."""
        return self.shaped_parameter(array_shape(tuple(dims), element_type))

    def shaped_parameter(self, shape: Shape) -> Instruction:
        """The computation's next parameter, an array with its own layout or a tuple."""
        self._num_parameters += 1
        return self.make("parameter", shape, parameter_number=self._num_parameters - 1)

    def tuple_parameter(self) -> GrowingTuple:
        """The computation's next parameter, a tuple whose elements are declared one by one."""
        parameter = self.shaped_parameter(Shape(TUPLE))
        growing = GrowingTuple(self, parameter)
        self._late_shapes[parameter.id] = lambda: growing.shape
        return growing

    def infeed(self) -> GrowingTuple:
        """A tuple from the host, whose elements are declared one by one."""
        token = self.make("after-all", TOKEN)
        infeed = self.make("infeed", Shape(TUPLE), (token,))
        data = self.make("get-tuple-element", Shape(TUPLE), (infeed,))
        growing = GrowingTuple(self, data)
        self._late_shapes[data.id] = lambda: growing.shape
        self._late_shapes[infeed.id] = lambda: Shape(TUPLE, tuple_shapes=(growing.shape, TOKEN))
        return growing

    def outfeed(self, values: Sequence[Instruction]) -> Instruction:
        """Sends values to the host."""
        token, packed = self.make("after-all", TOKEN), self.tuple(values)
        return self.make("outfeed", TOKEN, (packed, token), outfeed_shape=packed.shape)

    def tuple(self, values: Sequence[Instruction]) -> Instruction:
        """A tuple of the values."""
        shapes = tuple(each.shape for each in values)
        return self.make("tuple", Shape(TUPLE, tuple_shapes=shapes), values)

    def loop(self, state: Instruction, condition: int, body: int) -> Instruction:
        """A while loop over a tuple state."""
        return self.make("while", state.shape, (state,), called_computation_ids=(body, condition))

    def element(self, value: Instruction, index: int) -> Instruction:
        """One element of a tuple."""
        shape = value.shape.tuple_shapes[index]
        return self.make("get-tuple-element", shape, (value,), tuple_index=index)

    def constant(self, element_type: int, value: float) -> Instruction:
        """A scalar constant."""
        return self.add("constant", (), (), element_type, literal=_scalar_literal(element_type, value))

    def array_constant(self, values: np.ndarray, element_type: int) -> Instruction:
        """A constant array."""
        literal = serialize_literal(array_shape(values.shape, element_type), values)
        return self.add("constant", values.shape, (), element_type, literal=literal)

    def full(self, dims: Sequence[int], element_type: int, value: float) -> Instruction:
        """A constant, broadcast to a shape."""
        constant = self.constant(element_type, value)
        return self.broadcast(constant, dims, ()) if len(dims) else constant

    def broadcast(self, value: Instruction, dims: Sequence[int], dimensions: Sequence[int]) -> Instruction:
        """A broadcast value, whose dimension i becomes dimension `dimensions[i]` of the result."""
        return self.add("broadcast", dims, (value,), dimensions=tuple(dimensions))

    def iota(self, dims: Sequence[int], dimension: int, element_type: int = S32) -> Instruction:
        """The index along one dimension."""
        return self.add("iota", dims, (), element_type, dimensions=(dimension,))

    def unary(self, opcode: str, value: Instruction) -> Instruction:
        """An elementwise instruction of one operand."""
        return self.add(opcode, value.shape.dimensions, (value,))

    def convert(self, value: Instruction, element_type: int, opcode: str = "convert") -> Instruction:
        """The value as another element type, by value or, with "bitcast-convert", by bits."""
        if value.shape.element_type == element_type:
            return value
        return self.add(opcode, value.shape.dimensions, (value,), element_type)

    def binary(self, opcode: str, first: Instruction, second: Instruction) -> Instruction:
        """An elementwise instruction of two operands with equal shapes."""
        _check_equal(opcode, first, second)
        return self.add(opcode, first.shape.dimensions, (first, second))

    def compare(self, direction: str, first: Instruction, second: Instruction) -> Instruction:
        """Where first EQ, NE, GT, GE, LT or LE second."""
        _check_equal("compare", first, second)
        return self.add("compare", first.shape.dimensions, (first, second), PRED, comparison_direction=direction)

    def select(self, mask: Instruction, first: Instruction, second: Instruction) -> Instruction:
        """The first value where the mask is true, the second elsewhere."""
        _check_equal("select", first, second)
        return self.add("select", first.shape.dimensions, (mask, first, second), first.shape.element_type)

    def scaled(self, value: Instruction, factor: float) -> Instruction:
        """The value times a constant."""
        return self.binary("multiply", value, self.full(value.shape.dimensions, value.shape.element_type, factor))

    def shifted(self, value: Instruction, term: float) -> Instruction:
        """The value plus a constant."""
        return self.binary("add", value, self.full(value.shape.dimensions, value.shape.element_type, term))

    def reduce(self, value: Instruction, dimensions: Sequence[int], opcode: str = "add") -> Instruction:
        """A value reduced along the dimensions."""
        kind = value.shape.element_type
        dims = [size for dim, size in enumerate(value.shape.dimensions) if dim not in dimensions]
        called = (self.module.scalar_computation(opcode, kind),)
        operands = (value, self.constant(kind, _neutral(opcode)))
        return self.add("reduce", dims, operands, dimensions=tuple(dimensions), called_computation_ids=called)

    def all_reduce(self, value: Instruction) -> Instruction:
        """The sum of a value over all replicas."""
        called = (self.module.scalar_computation("add", value.shape.element_type),)
        return self.add("all-reduce", value.shape.dimensions, (value,), called_computation_ids=called)

    def reshape(self, value: Instruction, dims: Sequence[int]) -> Instruction:
        """The same elements in another shape; the value itself if it has this shape."""
        if math.prod(dims) != math.prod(value.shape.dimensions):
            raise ValueError(f"reshape: {value.shape.dimensions} does not hold as many elements as {tuple(dims)}")
        return value if tuple(dims) == value.shape.dimensions else self.add("reshape", dims, (value,))

    def transpose(self, value: Instruction, order: Sequence[int]) -> Instruction:
        """Dimension i of the result is dimension `order[i]` of the value; its layout makes it a bitcast, as in XLA."""
        order = tuple(order)
        if order == tuple(range(len(order))):
            return value
        dims = tuple(value.shape.dimensions[dim] for dim in order)
        layout = tuple(order.index(dim) for dim in value.shape.minor_to_major)
        shape = Shape(value.shape.element_type, dims, minor_to_major=layout)
        return self.make("transpose", shape, (value,), dimensions=order)

    def dot(
        self,
        first: Instruction,
        second: Instruction,
        over: tuple[Sequence[int], Sequence[int]] = ((1,), (0,)),
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> Instruction:
        """The product over paired dimensions: batch dims, then the other dims of both; plain matrices by default."""
        shapes = (first.shape.dimensions, second.shape.dimensions)
        for pair in (over, batch):
            sizes = [[shape[dim] for dim in dims] for shape, dims in zip(shapes, pair, strict=True)]
            if sizes[0] != sizes[1]:
                raise ValueError(f"dot: shapes {shapes} do not agree in the dims {pair}")
        free = [
            [size for dim, size in enumerate(shape) if dim not in (*over[side], *batch[side])]
            for side, shape in enumerate(shapes)
        ]
        dims = (*(shapes[0][dim] for dim in batch[0]), *free[0], *free[1])
        numbers = DotDimensions(*(tuple(dims) for dims in (*over, *batch)))
        return self.add("dot", dims, (first, second), dot=numbers)

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

    def pad(self, value: Instruction, padding: Sequence[tuple[int, int]]) -> Instruction:
        """The value with (low, high) zeros around each dimension."""
        dims = [size + low + high for size, (low, high) in zip(value.shape.dimensions, padding, strict=True)]
        zero = self.constant(value.shape.element_type, 0)
        return self.add("pad", dims, (value, zero), padding=tuple(PaddingDimension(*each) for each in padding))

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

    def custom_call(
        self, target: str, dims: Sequence[int], operands: Sequence[Instruction], element_type: int
    ) -> Instruction:
        """A call of something that HLO has no opcode for."""
        fields = {"custom_call_target": target, "feature_group_count": 1, "batch_group_count": 1}
        return self.add("custom-call", dims, operands, element_type, **fields)


def _check_equal(opcode: str, first: Instruction, second: Instruction) -> None:
    one, other = ((each.shape.dimensions, each.shape.element_type) for each in (first, second))
    if one != other:
        raise ValueError(f"{opcode}: the shapes and element types {one} and {other} differ")


def _neutral(opcode: str) -> float:
    return {"add": 0, "maximum": -math.inf, "minimum": math.inf, "and": 1, "or": 0}[opcode]
