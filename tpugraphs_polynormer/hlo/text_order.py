"""The order of a protobuf, where the text of the same module has another: instructions of a schedule, computations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tpugraphs_polynormer.hlo.module import Computation, Instruction

_NUMBER = re.compile(r"\.([0-9]{1,18})$")


def order_instructions(
    instructions: Sequence[Instruction], predecessors: Mapping[int, Sequence[int]]
) -> list[Instruction]:
    """The instructions in a protobuf's order: depth first from each one without users, operands in their order.

    Args:
      instructions: operands before their users, such as in a schedule.
      predecessors: the positions of the control predecessors of the instruction at a position.
    """
    number_of = {each.id: number for number, each in enumerate(instructions)}
    operands = [[number_of[operand] for operand in each.operand_ids] for each in instructions]
    used = {number for numbers in operands for number in numbers}
    order: list[Instruction] = []
    entered: set[int] = set()
    left: set[int] = set()
    for sink in (number for number in range(len(operands)) if number not in used):
        stack = [sink]
        while stack:
            current = stack[-1]
            if current in entered:
                stack.pop()
                if current not in left:
                    left.add(current)
                    order.append(instructions[current])
                continue
            entered.add(current)
            before = [*reversed(operands[current]), *predecessors.get(current, ())]
            stack.extend(each for each in before if each not in left)
    return order


def order_computations(computations: Sequence[Computation]) -> list[Computation]:
    """The computations by the numbers in their names, if new XLA versions have numbered them; else as they are.

    The text lists callees in the order of their calls. Protobufs of older versions do the same; those of new versions
    are in the order in which the computations were made. The names tell the two apart: new versions number computations
    and instructions apart, so a number occurs in both; older ones had one count for all. Passes add computations
    without a number; then the order is not known, and that of the text is kept.
    """
    numbers = _numbers(each.name for each in computations)
    if None in numbers or len(set(numbers)) < len(numbers):
        return list(computations)
    if not set(numbers) & set(_numbers(each.name for one in computations for each in one.instructions)):
        return list(computations)
    ordered = [computations[index] for index in sorted(range(len(numbers)), key=numbers.__getitem__)]
    known: set[int] = set()
    for computation in ordered:
        if not known.issuperset(callee for each in computation.instructions for callee in each.called_computation_ids):
            return list(computations)
        known.add(computation.id)
    return ordered


def _numbers(names: Iterable[str]) -> list[int | None]:
    found = map(_NUMBER.search, names)
    return [int(match[1]) if match else None for match in found]
