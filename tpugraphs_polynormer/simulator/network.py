"""A program under construction: its arguments, the tape of its backward pass, the optimizer and the training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpugraphs_polynormer.hlo.module import Instruction, Module, Shape
from tpugraphs_polynormer.simulator import wide_integers
from tpugraphs_polynormer.simulator.array_shapes import BF16, F32, S32, S64, U32, argument_shape, array_shape
from tpugraphs_polynormer.simulator.builder import ComputationBuilder, GrowingTuple, ModuleBuilder
from tpugraphs_polynormer.simulator.wide_integers import Words

PRECISIONS = {"f32": F32, "bf16": BF16}
OPTIMIZERS = ("sgd", "momentum", "adam")
Backward = Callable[[Instruction], Sequence[Instruction | None]]


@dataclass(frozen=True)
class Form:
    """How a program is written, apart from its network.

    Real programs take one tuple of arguments apart; most training programs are a loop over steps that reads its batch
    from the host (infeed) and sends the loss back (outfeed); gradients are summed over replicas.
    """

    train: bool
    compute_type: int  # of activations; weights and optimizer are f32
    optimizer: str = "sgd"
    tuple_arguments: bool = True  # one tuple of arguments, else flat parameters
    loop: bool = False  # steps in a while loop
    replicas: bool = False  # gradients are summed by all-reduce
    masked: bool = False  # the batch may be incomplete: rows beyond a given number do not count
    hashed_dropout: bool = False  # random bits from a hash instead of the device's generator
    clip: bool = False  # gradients are clamped
    lowered: bool = True  # as before layout assignment: 64-bit integers in words, lookups fused


class Network:
    """One program under construction: activations are [batch, ..., features]."""

    def __init__(self, name: str, form: Form) -> None:
        self.module = ModuleBuilder(name)
        self.form = form
        self.compute_type = form.compute_type
        self.hlo: ComputationBuilder = self.module.computation("train_body" if form.loop else "main")
        self._tuple: GrowingTuple | None = None
        if form.tuple_arguments or form.loop:
            self._tuple = self.hlo.tuple_parameter()
        self._feed = self.hlo.infeed() if form.loop else None
        self._state: list[Instruction] = []  # elements of the loop's tuple
        self._updated: dict[int, Instruction] = {}  # by id of the old value, in the order of the outputs
        self._weights: list[tuple[Instruction, Instruction]] = []  # what is stored, and what the layers see
        self._tape: list[tuple[Instruction, tuple[Instruction, ...], Backward]] = []
        self._counter = self._argument(array_shape((), S32)) if form.loop else None
        self.metrics: list[Instruction] = []  # what inference returns beside its result
        self._step: Words | None = None
        self._num_rows: Instruction | None = None

    def input(self, dims: Sequence[int], element_type: int = F32) -> Instruction:
        """An input of the program, as it arrives."""
        dims = tuple(dims)
        if self._feed is None:
            return self._argument(argument_shape(dims, element_type))
        shape = argument_shape(dims, element_type)
        if len(dims) > 3:  # the host sends images with minor dims batch, features
            last = len(dims) - 1
            shape = replace(shape, minor_to_major=(0, last, *range(last - 1, 0, -1)))
        return self._feed.add(shape)

    def image(self, dims: Sequence[int]) -> Instruction:
        """An input in the type that layers compute in."""
        return self.hlo.convert(self.input(dims), self.compute_type)

    def weight(self, dims: Sequence[int], element_type: int | None = None) -> Instruction:
        """A weight that training updates, converted to the type that layers compute in, unless another is given."""
        stored = self._argument(argument_shape(tuple(dims), F32))
        used = self.hlo.convert(stored, self.compute_type if element_type is None else element_type)
        self._weights.append((stored, used))
        return used

    def statistic(self, dims: Sequence[int]) -> Instruction:
        """A stored value that a training step updates by `update_statistic`."""
        return self._argument(argument_shape(tuple(dims), F32))

    def update_statistic(self, old: Instruction, new: Instruction) -> None:
        """Moves a stored value a hundredth of the way to a new one."""
        change = self.hlo.scaled(self.hlo.binary("subtract", old, new), 0.01)
        self._updated[old.id] = self.hlo.binary("subtract", old, change)

    def _argument(self, shape: Shape) -> Instruction:
        value = self.hlo.shaped_parameter(shape) if self._tuple is None else self._tuple.add(shape)
        self._state.append(value)
        return value

    @property
    def step(self) -> Words:
        """The number of the training step, a 64-bit integer that training increments."""
        if self._step is None:
            if self.form.loop and self.form.lowered:  # the entry computation splits it
                self._step = Words(*(self._argument(array_shape((), U32)) for _ in range(2)))
            else:
                stored = self._argument(array_shape((), S64))
                self._step = wide_integers.split(self.hlo, stored, lowered=self.form.lowered)
        return self._step

    def record(self, output: Instruction, inputs: Sequence[Instruction], backward: Backward) -> Instruction:
        """The output; `backward`, its gradient as a function, is recorded for the training step."""
        self._tape.append((output, tuple(inputs), backward))
        return output

    def finish(self, loss: Instruction, gradients: dict[int, Instruction], result: Instruction) -> Module:
        """The complete program: its outputs are the result, or the loss and the updated state of a training step.

        Args:
          loss: a scalar.
          gradients: of the loss, by id of the values where the backward pass starts.
          result: what inference returns.
        """
        if not self.form.train:
            self.hlo.finish(self.hlo.tuple([self.hlo.convert(result, F32), *self.metrics]))
            return self.module.build()
        self._update_weights(self._backward(gradients))
        self._advance_step()
        if not self.form.loop:
            self.hlo.finish(self.hlo.tuple([loss, *self._updated.values()]))
            return self.module.build()
        self.hlo.outfeed([self.hlo.reshape(loss, (1,))])
        return self._training_loop()

    def _backward(self, gradients: dict[int, Instruction]) -> dict[int, Instruction]:
        """The gradients of all values that the tape reaches, by id."""
        for output, inputs, backward in reversed(self._tape):
            if output.id not in gradients:
                continue
            for each, gradient in zip(inputs, backward(gradients.pop(output.id)), strict=True):
                if gradient is not None:
                    known = gradients.get(each.id)
                    gradients[each.id] = gradient if known is None else self.hlo.binary("add", known, gradient)
        return gradients

    def _update_weights(self, gradients: dict[int, Instruction]) -> None:
        hlo, rate = self.hlo, None
        for stored, used in self._weights:
            if used.id not in gradients:
                continue
            rate = self._learning_rate() if rate is None else rate
            gradient = hlo.convert(gradients[used.id], F32)
            if self.form.replicas:
                gradient = hlo.all_reduce(gradient)
            if self.form.clip:
                low, high = hlo.constant(F32, -1), hlo.constant(F32, 1)
                gradient = hlo.add("clamp", gradient.shape.dimensions, (low, gradient, high), F32)
            change = self._change(stored, gradient, hlo.broadcast(rate, stored.shape.dimensions, ()))
            # The updated weight has the layout in which the program returns it.
            self._updated[stored.id] = hlo.make("subtract", stored.shape, (stored, change))

    def _change(self, stored: Instruction, gradient: Instruction, rate: Instruction) -> Instruction:
        """What is subtracted from a weight."""
        hlo = self.hlo
        if self.form.optimizer == "sgd":
            return hlo.binary("multiply", rate, gradient)
        first = self._argument(stored.shape)
        if self.form.optimizer == "momentum":
            self._updated[first.id] = sum_ = hlo.binary("add", hlo.scaled(first, 0.9), gradient)
            return hlo.binary("multiply", rate, sum_)
        mean = hlo.binary("add", first, hlo.scaled(hlo.binary("subtract", gradient, first), 0.1))
        second = self._argument(stored.shape)
        square = hlo.binary("subtract", hlo.binary("multiply", gradient, gradient), second)
        square = hlo.binary("add", second, hlo.scaled(square, 1e-3))
        self._updated |= {first.id: mean, second.id: square}
        scale = hlo.shifted(hlo.unary("sqrt", square), 1e-7)
        return hlo.binary("divide", hlo.binary("multiply", mean, rate), scale)

    def _learning_rate(self) -> Instruction:
        """A scalar: exponential decay of the step, or a linear one, with Adam's correction of its moments."""
        hlo = self.hlo
        step = wide_integers.to_float(hlo, self.step)
        if self.form.optimizer == "sgd":
            decay = hlo.binary("power", hlo.constant(F32, 0.94), hlo.scaled(step, 1e-4))
            return hlo.scaled(decay, 0.01)
        reached = hlo.scaled(hlo.binary("minimum", step, hlo.constant(F32, 20_500)), 1 / 20_500)
        rate = hlo.scaled(hlo.binary("subtract", hlo.constant(F32, 1), reached), 1e-3)
        if self.form.optimizer == "momentum":
            return rate
        following = wide_integers.to_float(hlo, wide_integers.increment(hlo, self.step))
        left = [
            hlo.binary("subtract", hlo.constant(F32, 1), hlo.binary("power", hlo.constant(F32, beta), following))
            for beta in (0.999, 0.9)
        ]
        return hlo.binary("divide", hlo.binary("multiply", rate, hlo.unary("sqrt", left[0])), left[1])

    def _advance_step(self) -> None:
        hlo, step = self.hlo, self.step
        after = wide_integers.increment(hlo, step)
        if self.form.loop:
            pairs = ((step.low, after.low), (step.high, after.high), (self._counter, hlo.shifted(self._counter, 1)))
            self._updated |= {old.id: new for old, new in pairs if old is not None}
        else:
            self._updated[step.low.id] = wide_integers.join(hlo, after)

    def _training_loop(self) -> Module:
        """The program around the loop's body: it packs the state, runs the steps, and returns the state."""
        shapes = [each.shape for each in self._state]
        body = self.hlo.finish(self.hlo.tuple([self._updated.get(each.id, each) for each in self._state]))
        condition = self.module.computation("train_cond")
        state = condition.tuple_parameter()
        counter, *_ = [state.add(shape) for shape in shapes]
        condition = condition.finish(condition.compare("LT", counter, condition.constant(S32, 100)))
        entry = self.module.computation("main")
        arguments, step = entry.tuple_parameter(), self.step
        values: list[Instruction] = []
        for each in self._state:
            if each is self._counter:
                values.append(entry.constant(S32, 0))
            elif each is step.low and step.high is not None:
                words = wide_integers.split(entry, arguments.add(array_shape((), S64)), lowered=True)
                values.extend((words.low, words.high))
            elif each is not step.high:
                values.append(arguments.add(each.shape))
        result = entry.loop(entry.tuple(values), condition, body)
        outputs = [entry.element(result, index) for index in range(len(shapes))]
        low, high = (self._position(each) for each in (step.low, step.high))
        if high is not None:
            outputs[low] = wide_integers.join(entry, Words(outputs[low], outputs[high]))
            del outputs[high]
        entry.finish(entry.tuple(outputs[1:]))
        return self.module.build()

    def _position(self, value: Instruction | None) -> int | None:
        return None if value is None else next(i for i, each in enumerate(self._state) if each is value)

    def valid_rows(self, dims: Sequence[int]) -> Instruction | None:
        """A mask of the rows that count, or None if the batch is complete."""
        if not self.form.masked:
            return None
        if self._num_rows is None:
            self._num_rows = self.input((), S32)
        hlo = self.hlo
        return hlo.compare("LT", hlo.iota(dims, 0), hlo.broadcast(self._num_rows, dims, ()))

    def masked(self, value: Instruction) -> Instruction:
        """The value with zeros in the rows that do not count."""
        dims = value.shape.dimensions
        mask = self.valid_rows(dims)
        if mask is None:
            return value
        return self.hlo.select(mask, value, self.hlo.full(dims, value.shape.element_type, 0))

    def mean(self, total: Instruction, dims: Sequence[int], reduced: Sequence[int]) -> Instruction:
        """A sum over some of the dimensions `dims` as a mean; rows that do not count are not counted."""
        hlo, out = self.hlo, total.shape.dimensions
        count = math.prod(dims[dim] for dim in reduced)
        if not (self.form.masked and 0 in reduced):
            return hlo.scaled(total, 1 / count)
        self.valid_rows(dims)
        rows = hlo.binary("multiply", self._num_rows, hlo.constant(S32, count // dims[0]))
        number = hlo.convert(rows, total.shape.element_type)
        return hlo.binary("divide", total, hlo.broadcast(number, out, ()) if out else number)
