"""The kernels of a compiled program: each op that runs by itself, with the tile sizes that the compiler chose."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tpugraphs_polynormer.compiler.layouts import prepare_module
from tpugraphs_polynormer.compiler.program import RefusedError, use_session
from tpugraphs_polynormer.compiler.record import read_cycles, scheduled_ops
from tpugraphs_polynormer.compiler.session import TIME_LIMIT, CompilerSession
from tpugraphs_polynormer.hlo.module import Computation, Instruction, Module
from tpugraphs_polynormer.hlo.text import is_text, parse_text
from tpugraphs_polynormer.hlo.tuning import TileSizes

_BOUNDS = re.compile(r'"(kernel|output)_window_bounds":\[([^\]]*)\]')


@dataclass(frozen=True)
class Kernel:
    """A fusion, or an op without one, as a module of its own: the operands are the parameters of its entry.

    `tiles` are the compiler's choice, in whole native tiles from the major dimension to the minor one. The bounds of
    the input are left out, as in the official archives, all of whose kernels have none. `cycles` is its estimate.
    """

    name: str
    module: Module
    tiles: TileSizes
    cycles: int


def compile_kernels(
    data: bytes, topology: str, *, session: CompilerSession | None = None, time_limit: float = TIME_LIMIT
) -> list[Kernel]:
    """The kernels with tile sizes of a program, HLO text or protobuf, that the compiler of a topology makes of it.

    Raises:
      RefusedError: the compiler refuses the program, or no op of the compiled program has tile sizes.
      UserError: the extra tpu-compiler is missing, or there is no such topology.
    """
    with use_session(session, topology, time_limit) as opened:
        given = opened.parse_text(data) if is_text(data) else data
        answer, text = opened.compile_to_text(prepare_module(given))
    if answer.get("error"):
        raise RefusedError(answer["error"])
    kernels = read_kernels(text)
    if not kernels:
        raise RefusedError("no op of the compiled program has tile sizes")
    return kernels


def read_kernels(text: str) -> list[Kernel]:
    """The kernels with tile sizes in the text of a compiled program, in the order of execution."""
    module = parse_text(text)
    instructions = {each.name: each for computation in module.computations for each in computation.instructions}
    shapes = {each.id: each for each in instructions.values()}
    kernels = []
    for _, name, line in scheduled_ops(text):
        bounds = {kind: tuple(map(int, re.findall(r"\d+", values))) for kind, values in _BOUNDS.findall(line)}
        if bounds.get("output"):
            own = _cut_out(module, instructions[name], [shapes[each] for each in instructions[name].operand_ids])
            kernels.append(Kernel(name, own, TileSizes(bounds["kernel"], bounds["output"]), read_cycles(line) or 0))
    return kernels


def _cut_out(module: Module, op: Instruction, operands: Iterable[Instruction]) -> Module:
    """A module of one op: the computations that it calls, and an entry whose parameters are its operands."""
    by_id = {each.id: each for each in module.computations}
    called, pending = set(), list(op.called_computation_ids)
    while pending:
        number = pending.pop()
        if number not in called:
            called.add(number)
            pending += [each for item in by_id[number].instructions for each in item.called_computation_ids]
    parameters = [
        Instruction(each.id, "parameter", each.shape, each.name, parameter_number=number)
        for number, each in enumerate({each.id: each for each in operands}.values())
    ]
    entry_id = max(by_id) + 1
    entry = Computation(entry_id, "entry", op.id, (*parameters, op))
    kept = [each for each in module.computations if each.id in called]
    return Module(op.name, (*kept, entry), entry_id)
