"""What the compiler says of one program: whether it compiles, the memory it takes, and the time it estimates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tpugraphs_polynormer.compiler.topologies import GIB, find_chip

FORMAT_VERSION = 1
NUM_COSTLY = 10
# An instruction of the compiled program: its name, its type, its opcode. Types have layouts such as {1,0:T(8,128)}.
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.+)$")
_OPCODE = re.compile(r"\s([a-z][\w\-]*)\(")
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_CALLED = re.compile(r"\bcalls=%?([\w.\-]+)")
_UNKNOWN = 1 << 62  # the compiler writes the largest integer where it has no estimate
_LOOP = re.compile(r"\swhile\(.*\bcondition=%?([\w.\-]+), body=%?([\w.\-]+)")
_LIMIT = re.compile(r"s32\[\]\S* constant\((\d+)\)")
_SOURCE = re.compile(r'op_name="([^"]*)"')
# What moves data or computes, and may lack an estimate. Parameters, tuples, bitcasts and the like do nothing.
_WORKING = frozenset(
    """all-gather all-reduce collective-permute copy custom-call dynamic-slice dynamic-update-slice fusion gather
    reduce-window scatter sort while""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class CostlyOp:
    """One op of the compiled program with its estimate, and the layer that it was made of."""

    name: str
    source: str  # the traced op's name, which begins with the layer; empty if the compiler made the op itself
    cycles: int


@dataclass(frozen=True)
class CompileRecord:
    """The compiler's answer for one program and topology. Where `error` is not empty, the numbers are 0.

    Memory is in bytes of one device. Cycles are the sum over ops that carry an estimate; `unestimated` counts, by
    opcode, the ops that do not: gathers, scatters and small ones.
    """

    topology: str
    num_replicas: int
    error: str = ""
    seconds: float = 0.0
    argument_bytes: int = 0
    output_bytes: int = 0
    temporary_bytes: int = 0
    code_bytes: int = 0
    cycles: int = 0
    num_estimated: int = 0
    unestimated: dict[str, int] = field(default_factory=dict)
    costly: tuple[CostlyOp, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def compiles(self) -> bool:
        """Whether the compiler made a program that fits the device."""
        return not self.error

    @property
    def total_bytes(self) -> int:
        """Arguments, outputs, temporaries and code, all in HBM at once. Variables count as arguments and outputs."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes + self.code_bytes

    @property
    def milliseconds(self) -> float:
        """The cycles at the chip's clock."""
        return self.cycles / (1000 * find_chip(self.topology).megahertz)

    @property
    def hbm_share(self) -> float:
        """The share of the device's memory."""
        return self.total_bytes / (find_chip(self.topology).hbm_gib * GIB)


def read_estimates(text: str, *, repeat_loops: bool = False) -> dict[str, Any]:
    """Fields of a CompileRecord: cycles, num_estimated, unestimated and costly, from the compiled program's text.

    With `repeat_loops` the cycles of a loop's body count once for each of its iterations, where the loop counts up to a
    constant; else, and in other loops, once.
    """
    estimated: list[CostlyOp] = []
    unestimated: dict[str, int] = {}
    repeats = _count_repeats(text) if repeat_loops else {}
    for computation, name, body in scheduled_ops(text):
        cycles, source = read_cycles(body), _SOURCE.search(body)
        if cycles is not None:
            times = repeats.get(computation, 1)
            estimated.append(CostlyOp(name, source[1] if source else "", times * cycles))
            continue
        opcode = _OPCODE.search(f" {body}")
        if opcode and opcode[1] in _WORKING:
            kind = _describe_fusion(name) if opcode[1] == "fusion" else opcode[1]
            unestimated[kind] = unestimated.get(kind, 0) + 1
    estimated.sort(key=lambda op: (-op.cycles, op.name))
    return {
        "cycles": sum(op.cycles for op in estimated),
        "num_estimated": len(estimated),
        "unestimated": dict(sorted(unestimated.items())),
        "costly": tuple(estimated[:NUM_COSTLY]),
    }


def read_cycles(body: str) -> int | None:
    """The estimate in a line of the compiled program, or None."""
    cycles = _CYCLES.search(body)
    return int(cycles[1]) if cycles and int(cycles[1]) < _UNKNOWN else None


def scheduled_ops(text: str) -> Iterator[tuple[str, str, str]]:
    """(computation, name, rest of the line) of the instructions that run by themselves, not inside of a fusion."""
    fused = set(_CALLED.findall(text))
    for computation, line in _lines(text):
        found = None if computation in fused else _INSTRUCTION.match(line)
        if found:
            yield computation, found[1], found[2]


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """(computation, line) of all instructions."""
    computation = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            computation = line.removeprefix("ENTRY ").split(" ", 1)[0].lstrip("%")
        elif line:
            yield computation, line


def _count_repeats(text: str) -> dict[str, int]:
    """How often the bodies of loops run: the number that the condition compares with, times that of outer loops."""
    limits: dict[str, list[int]] = {}
    loops: list[tuple[str, str, str]] = []  # (computation that has the loop, condition, body)
    for computation, line in _lines(text):
        limits.setdefault(computation, []).extend(map(int, _LIMIT.findall(line)))
        loops += [(computation, *found) for found in _LOOP.findall(line)]
    repeats: dict[str, int] = {}
    for _ in loops:  # enough rounds for the deepest nesting
        for computation, condition, body in loops:
            constants = limits.get(condition, [])
            own = constants[0] if len(constants) == 1 else 1
            repeats[body] = own * repeats.get(computation, 1)
    return repeats


def _describe_fusion(name: str) -> str:
    """A fusion around a gather or scatter is named after it; others are small."""
    return next((kind for kind in ("gather", "scatter") if kind in name), "fusion")
