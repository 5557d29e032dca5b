"""Who tells the time of a candidate: the TPU compiler, the simulated TPU, a user's command, or a table."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tpugraphs_polynormer.archives.observed import ObservedProgram
from tpugraphs_polynormer.compiler.program import CompiledProgram, read_judgement
from tpugraphs_polynormer.compiler.session import CompilerSession
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import write_text
from tpugraphs_polynormer.hlo.choices import MAX_RANK
from tpugraphs_polynormer.hlo.layout_flow import ProgramLayouts
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
from tpugraphs_polynormer.hlo.sampling import draw_indices, gather_layouts
from tpugraphs_polynormer.simulator.costs import LayoutCosts, measure

CANDIDATE_NAME, MODULE_NAME = "candidate.json", "candidate.hlo.pb"
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TIME = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([mun\u00b5]?s)?")
_NUM_REFERENCE = 512  # candidates by which the cost model's scores are scaled


@dataclass(frozen=True)
class Verdict:
    """The time of a candidate, or in one line why there is none."""

    seconds: float | None
    error: str = ""


class Judge(Protocol):
    """Tells the times of the candidates of one program."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Who judges, and with what: JSON values, `judge` among them. Judges with equal facts are one judge."""

    def judge(self, candidate: np.ndarray) -> Verdict:
        """The verdict on a candidate, given as choice numbers [nc]."""


class CompilerJudge:
    """The compiler's estimate of the program with the candidate's layouts forced, at the clock of its chip.

    Args:
      program: as the compiler sees it. session: an open compiler of the program's topology.
      versions: of the compiler.
    """

    def __init__(self, program: CompiledProgram, session: CompilerSession, versions: Mapping[str, str]) -> None:
        self._program, self._session = program, session
        self.facts = {"judge": "compiler", "topology": program.topology, "versions": dict(versions)}

    def judge(self, candidate: np.ndarray) -> Verdict:
        """The estimate, or the compiler's refusal."""
        answer = read_judgement(self._session.compile(self._program.force(candidate)), self._program.topology)
        return Verdict(None, answer.error) if answer.error else Verdict(answer.nanoseconds / 1e9)


class SimulatorJudge:
    """The simulated TPU, with its measurement noise, which is the same whenever a candidate is measured again."""

    def __init__(self, program: LayoutProgram, *, seed: int = 0) -> None:
        self._costs, self._seed = build_costs(program), seed
        self.facts = {"judge": "simulator", "noise_seed": seed}

    def judge(self, candidate: np.ndarray) -> Verdict:
        """The noisy seconds."""
        digest = hashlib.sha256(np.asarray(candidate, np.int64).tobytes()).digest()
        rng = np.random.default_rng([self._seed, int.from_bytes(digest[:8], "little")])
        return Verdict(float(measure(self._costs.seconds(np.asarray(candidate)[None]), rng)[0]) / 1e9)


class CommandJudge:
    """A user's command, which gets the path of a candidate as its last argument and prints a time as its last line.

    The file is `candidate.json` (see `describe_layouts`); for a program that the TPU compiler has seen,
    `candidate.hlo.pb` beside it is the module with the layouts forced. No shell interprets the command.

    Args:
      command: the program and its arguments. folder: where the candidate's files are written.
      time_limit: seconds, after which the command and what it started are ended.

    Raises:
      UserError: there is no such program.
    """

    def __init__(self, command: Sequence[str], program: LayoutProgram, folder: Path, *, time_limit: float) -> None:
        if not command:
            raise UserError("--command: found nothing, expected a program and its arguments, as the last option")
        if shutil.which(command[0]) is None:
            raise UserError(f"--command {command[0]}: found no such program; name one that can be executed")
        self._command, self._program, self._folder, self._time_limit = list(command), program, folder, time_limit
        self.facts = {"judge": "command", "command": self._command}

    def judge(self, candidate: np.ndarray) -> Verdict:
        """The time that the command prints; an exit code, a time limit or a line without a time is a failure."""
        path = self._folder / CANDIDATE_NAME
        layouts = describe_layouts(self._program, candidate)
        if isinstance(self._program, CompiledProgram):
            (self._folder / MODULE_NAME).write_bytes(self._program.force(candidate))
            layouts["module"] = str(self._folder / MODULE_NAME)
        write_text(path, json.dumps(layouts, indent=1) + "\n")
        started = subprocess.Popen(
            [*self._command, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that what it started can be ended with it
        )
        with started as process:
            try:
                output, complaints = process.communicate(timeout=self._time_limit)
            except subprocess.TimeoutExpired:
                return Verdict(None, f"no time within {self._time_limit:,.0f} s")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            return Verdict(None, f"exit code {process.returncode}: {_last_line(complaints)!r:.200}")
        return parse_time(_last_line(output))


class TableJudge:
    """Times that are known already: the rows of an archive.

    Args:
      indices: choice numbers [c, nc], all distinct. seconds: [c].
    """

    def __init__(self, indices: np.ndarray, seconds: np.ndarray) -> None:
        keys = (row.tobytes() for row in np.asarray(indices, np.int64))
        self._seconds = dict(zip(keys, np.asarray(seconds).tolist(), strict=True))
        self.facts = {"judge": "table", "rows": len(self._seconds)}

    def judge(self, candidate: np.ndarray) -> Verdict:
        """The known time; a failure for a candidate that is not in the table."""
        found = self._seconds.get(np.asarray(candidate, np.int64).tobytes())
        return Verdict(None, "not in the table") if found is None else Verdict(found)


def parse_time(text: str) -> Verdict:
    """The verdict of a line such as `0.0123`, `12.3 ms` or `1.2e4us`; seconds without a unit."""
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if seconds > 0 and math.isfinite(seconds):
        return Verdict(seconds)
    return Verdict(None, f"printed {text!r:.80} as its last line, expected a time above 0 such as 0.0123 or 12.3 ms")


def describe_layouts(program: LayoutProgram, candidate: np.ndarray) -> dict[str, Any]:
    """A candidate as JSON values: for each config node its name, row, opcode, choice and layouts.

    A layout lists dims from the minor-most on; an empty one is left to the compiler.
    """
    rows = gather_layouts(program.choices, np.asarray(candidate)[None])[0].reshape(-1, 3, MAX_RANK)
    nodes = []
    for node, number, choice, row in zip(
        program.config_nodes, program.choices.node_ids.tolist(), np.asarray(candidate).tolist(), rows, strict=True
    ):
        output, *operands = ([dim for dim in part.tolist() if dim >= 0] for part in row)
        named = {"name": node.name, "row": number, "opcode": node.opcode, "choice": choice}
        nodes.append({**named, "output": output, "operands": operands[: len(node.operand_ids)]})
    return {"program": program.module.name, "topology": program.topology, "nodes": nodes}


def build_costs(program: LayoutProgram | ObservedProgram) -> LayoutCosts:
    """The analytic cost model of a program, with all choices of its config nodes."""
    graph, choices = program.arrays, program.choices
    spans = zip(choices.starts.tolist(), choices.counts.tolist(), strict=True)
    tables = [choices.table[start : start + count] for start, count in spans]
    return LayoutCosts(ProgramLayouts(graph.node_feat, graph.node_opcode, graph.edge_index, choices.node_ids, tables))


def score_by_cost(program: LayoutProgram | ObservedProgram, *, seed: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    """The prior of the cost model alone: choice numbers [c, nc] -> scores [1, c] in standard deviations."""
    costs = build_costs(program)
    drawn = draw_indices(program.choices, _NUM_REFERENCE, seed=seed, mode="random", tied=False)
    logs = np.log(costs.seconds(drawn))
    mean, deviation = float(logs.mean()), max(float(logs.std()), 1e-9)
    return lambda indices: (mean - np.log(costs.seconds(indices)))[None] / deviation


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
