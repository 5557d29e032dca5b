"""A program as the TPU compiler sees it just before it assigns layouts, and its answers for forced candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tpugraphs_polynormer.compiler.layouts import (
    NodeOrders,
    Origin,
    complete_orders,
    encode_default,
    force_layouts,
    prepare_module,
    read_assigned,
    read_origins,
)
from tpugraphs_polynormer.compiler.session import TIME_LIMIT, CompilerSession
from tpugraphs_polynormer.compiler.topologies import find_chip
from tpugraphs_polynormer.compiler.xla import check_versions
from tpugraphs_polynormer.errors import HloError, UserError
from tpugraphs_polynormer.hlo.choices import Choices, enumerate_choices
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
from tpugraphs_polynormer.hlo.module import Instruction, Metadata, Module
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.sampling import gather_layouts
from tpugraphs_polynormer.hlo.text import is_text
from tpugraphs_polynormer.progress import track


class RefusedError(UserError):
    """A program that the compiler refuses, or in which no layout can be chosen; the message says why."""


@dataclass(frozen=True)
class Judgement:
    """The compiler's answer for one program with its layouts. Where `error` is not empty, the numbers are 0.

    Cycles are the sum over ops that carry an estimate; `unestimated` counts the others, by opcode.
    """

    cycles: int = 0
    nanoseconds: int = 0
    error: str = ""
    unestimated: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CompiledProgram(LayoutProgram):
    """A program just before layout assignment; choice 0 of each config node is the compiler's own layout.

    `module` has the compiler's own names. `snapshot` is the same program as a serialized HloModuleProto that can be
    compiled again. `assigned` are the compiler's own orders by node name; `origins` name, for each config node, the
    instruction of the given program that it was made of, where the compiler kept track. `unforced` is the answer for
    the program without forced layouts, as CompilerSession.compile gives it.
    """

    snapshot: bytes
    assigned: Mapping[str, NodeOrders]
    origins: Mapping[str, Origin]
    unforced: Mapping[str, Any]

    @property
    def unforced_judgement(self) -> Judgement:
        """The answer for the program without forced layouts."""
        return read_judgement(self.unforced, self.topology)

    def force(self, indices: np.ndarray) -> bytes:
        """The snapshot with the layouts of one candidate forced, as a serialized HloModuleProto.

        Args:
          indices: int [nc], the number of each config node's choice, as `hlo.sampling.draw_indices` draws them.
        """
        return force_layouts(self.snapshot, self.forced_orders(indices))

    def forced_orders(self, indices: np.ndarray) -> dict[str, NodeOrders]:
        """{name of a config node: the orders of one candidate}; `indices` as in `force`."""
        layouts = gather_layouts(self.choices, self._check(indices)[None])[0]
        return {
            node.name: complete_orders(layout, self.assigned[node.name])
            for node, layout in zip(self.config_nodes, layouts, strict=True)
        }

    def find_metadata(self, node: Instruction) -> Metadata | None:
        """The traced op and the source line of the instruction that a node was made of; the snapshot has neither."""
        origin = self.origins.get(node.name)
        return origin and Metadata(origin.op_name, origin.source_file, origin.source_line)

    def tensor_shapes(self, node: Instruction) -> tuple[tuple[int, ...], ...]:
        """The dimensions of a config node's result and operands."""
        return _tensor_shapes(self.module, node)

    def _check(self, indices: np.ndarray) -> np.ndarray:
        indices, counts = np.asarray(indices), self.choices.counts
        if indices.shape != counts.shape or ((indices < 0) | (indices >= counts)).any():
            raise HloError(
                f"a candidate has the choice numbers {indices.tolist()!s:.80}; expected one for each of the "
                f"{len(counts)} config nodes, from 0 on and less than its number of choices"
            )
        return indices


def compile_program(
    data: bytes, topology: str, *, session: CompilerSession | None = None, time_limit: float = TIME_LIMIT
) -> CompiledProgram:
    """The program as the compiler of a topology sees it just before it assigns layouts, with its own layouts.

    Args:
      data: an HloModuleProto, an HloProto or HLO text.
      topology: such as `v3:2x2`.
      session: a compiler of that topology that is open already; None opens one for this program.
      time_limit: seconds, for a session that is opened here.

    Raises:
      RefusedError: the compiler refuses the program, or nothing in it can be chosen.
      UserError: the extra tpu-compiler is missing, or there is no such topology.
    """
    with use_session(session, topology, time_limit) as opened:
        given = opened.parse_text(data) if is_text(data) else data
        answer, before, after = opened.compile_with_snapshots(prepare_module(given))
    if answer.get("error"):
        raise RefusedError(answer["error"])
    module, assigned = parse_module(before), read_assigned(before, after)
    choices = enumerate_assigned(module, assigned)
    if not len(choices.node_ids):
        raise RefusedError("the program has no convolution, dot or reshape whose layout could be chosen")
    return CompiledProgram(
        module,
        choices,
        topology,
        snapshot=prepare_module(before),
        assigned=assigned,
        origins=compare_origins(module, parse_module(given), read_origins(given, before)),
        unforced=answer,
    )


def compare_origins(module: Module, given: Module, origins: Mapping[str, Origin]) -> dict[str, Origin]:
    """The origins, of which it is known whether the compiler has changed the instruction."""
    nodes, sources = _by_name(module), _by_name(given)
    found = {}
    for name, origin in origins.items():
        node, source = nodes[name], sources[origin.name]
        same = [getattr(node, each) == getattr(source, each) for each in ("opcode", "convolution", "dot")]
        unchanged = all(same) and _tensor_shapes(module, node) == _tensor_shapes(given, source)
        found[name] = dataclasses.replace(origin, unchanged=unchanged)
    return found


def _by_name(module: Module) -> dict[str, Instruction]:
    return {each.name: each for computation in module.computations for each in computation.instructions}


def _tensor_shapes(module: Module, node: Instruction) -> tuple[tuple[int, ...], ...]:
    by_id = {each.id: each for computation in module.computations for each in computation.instructions}
    return tuple(each.shape.dimensions for each in (node, *(by_id[number] for number in node.operand_ids)))


@contextmanager
def use_session(
    session: CompilerSession | None, topology: str, time_limit: float = TIME_LIMIT
) -> Iterator[CompilerSession]:
    """A context with the given session, or with a new one; UserError if the extra or the topology is missing."""
    if session is not None:
        yield session
        return
    find_chip(topology)
    check_versions()
    with CompilerSession(topology, time_limit=time_limit) as opened:
        yield opened


def enumerate_assigned(module: Module, assigned: Mapping[str, NodeOrders]) -> Choices:
    """The choices of the nodes whose layouts the compiler told, its own first."""
    instructions = [each for computation in module.computations for each in computation.instructions]
    presumed = enumerate_choices(module)
    default = presumed.table[presumed.starts]
    kept = []
    for number, row in enumerate(presumed.node_ids.tolist()):
        node = instructions[row]
        if node.name in assigned:
            default[number] = encode_default(node.opcode, assigned[node.name])
            kept.append(number)
    choices = enumerate_choices(module, default=default)
    position = {number: index for index, number in enumerate(kept)}
    links = [
        (position[first], operand, position[second])
        for first, operand, second in choices.links.tolist()
        if first in position and second in position
    ]
    fields = {name: getattr(choices, name)[kept] for name in ("node_ids", "starts", "counts", "groups")}
    return dataclasses.replace(choices, **fields, links=np.array(links, dtype=np.int64).reshape(-1, 3))


def judge_candidates(
    program: CompiledProgram, indices: np.ndarray, session: CompilerSession | None = None
) -> list[Judgement]:
    """The compiler's answers for candidates that are forced on the program, one each; equal ones are compiled once.

    Args:
      program: as the compiler sees it.
      indices: int [c, nc], choice numbers; all 0 is the compiler's own default, forced like the others.
      session: a compiler of the program's topology that is open already; None opens one.
    """
    modules = [program.force(row) for row in np.asarray(indices)]
    answers: dict[bytes, Judgement] = {}
    with use_session(session, program.topology) as opened:
        distinct = dict.fromkeys(modules)
        for module in track(distinct, len(distinct), "judge", "candidate"):
            answers[module] = read_judgement(opened.compile(module), program.topology)
    return [answers[module] for module in modules]


def apply_to_hlo(
    program: CompiledProgram, indices: np.ndarray, session: CompilerSession | None = None
) -> tuple[bytes, str]:
    """(HloModuleProto, HLO text) of the program with the layouts of a candidate as LayoutConstraint custom calls.

    Both are the compiler's snapshot, which any XLA compiler for TPUs takes. `indices` as in `CompiledProgram.force`.
    """
    module = program.force(indices)
    with use_session(session, program.topology) as opened:
        return module, opened.print_module(module)


def read_judgement(answer: Mapping[str, Any], topology: str) -> Judgement:
    """The judgement in an answer of CompilerSession.compile."""
    if answer.get("error"):
        return Judgement(error=answer["error"])
    cycles = answer["cycles"]
    return Judgement(cycles, nanoseconds(cycles, topology), unestimated=answer["unestimated"])


def nanoseconds(cycles: int, topology: str) -> int:
    """Cycles at the clock of a topology's chip, at least 1."""
    return max(1, round(1000 * cycles / find_chip(topology).megahertz))
