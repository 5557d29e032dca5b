"""Labels one program: its candidates are forced one by one, and the compiler's estimates become their runtimes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.archives.tuning import layout_archive
from tpugraphs_polynormer.compiler.program import CompiledProgram, RefusedError, compile_program, nanoseconds
from tpugraphs_polynormer.compiler.session import NO_RESULT, CompilerSession
from tpugraphs_polynormer.files import write_text
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.sampling import draw_indices, gather_layouts

# A candidate's mode of drawing for each search of the official collections: see hlo/sampling.py.
SEARCHES = {"random": {"mode": "random", "tied": False}, "default": {"mode": "default", "tied": True}}
_MIN_CANDIDATES = 2  # one alone has no rank


@dataclass(frozen=True)
class LabelOptions:
    """What decides the labels of a program besides its module."""

    topology: str
    num_candidates: int
    search: str
    seed: int
    time_limit: float
    operands: bool = False  # whether archives have node_operands


@dataclass(frozen=True)
class Labels:
    """The arrays of a program's archive, and what is known about them (JSON values)."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


class Journal:
    """The compiler's answers for one program, by the hash of the module, kept in a file while they come.

    A killed run continues with them. A file of another program or compiler is overwritten.
    """

    def __init__(self, path: Path, key: str, time_limit: float) -> None:
        self._path, self._time_limit = path, time_limit
        self._answers: dict[str, dict[str, Any]] = {}
        self._rows: set[int] = set()
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        if not whole or whole[0] != {"program": key}:
            whole = [{"program": key}]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(json.dumps(line) + "\n" for line in whole))  # a kill leaves the old one or this one
        for line in whole[1:]:
            self._rows.add(line["candidate"])
            self._answers[line["key"]] = line

    def find(self, key: str) -> dict[str, Any] | None:
        """The answer for a module, or None; a time limit is tried again if it is higher now."""
        answer = self._answers.get(key)
        if answer and answer.get("error", "").startswith(NO_RESULT) and self._time_limit > answer["time_limit"]:
            return None
        return answer

    def add(self, candidate: int, key: str, answer: Mapping[str, Any]) -> None:
        """Writes the answer of a candidate, at once and once."""
        line = {**answer, "candidate": candidate, "key": key}
        if line.get("error"):
            line["time_limit"] = self._time_limit
        if candidate not in self._rows or self._answers.get(key) != line:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        self._rows.add(candidate)
        self._answers[key] = line


def label_program(session: CompilerSession, module: bytes, journal_path: Path, options: LabelOptions) -> Labels:
    """The labels of a serialized HloModuleProto.

    The graph is the compiler's own snapshot just before layout assignment. Candidate 0 has the layouts that the
    compiler chose by itself, forced like those of the others, so that all are treated alike. Refused candidates are
    left out.

    Raises:
      RefusedError: the compiler refuses the program itself, or fewer than two candidates are left.
    """
    program = compile_program(module, options.topology, session=session)
    draw = {"seed": options.seed, **SEARCHES[options.search]}
    candidates = draw_indices(program.choices, options.num_candidates, **draw)
    journal = Journal(journal_path, _hash(options.topology.encode(), program.snapshot), options.time_limit)
    answers = []
    for number, candidate in enumerate(candidates):
        rewritten = program.force(candidate)
        key = _hash(rewritten)
        found = journal.find(key)
        answers.append(session.compile(rewritten) if found is None else found)
        journal.add(number, key, answers[-1])
    return _make_labels(program, candidates, answers, operands=options.operands)


def _make_labels(
    program: CompiledProgram, candidates: np.ndarray, answers: list[dict[str, Any]], *, operands: bool
) -> Labels:
    """The labels of candidates, int [c, nc], that have answers."""
    labelled = [row for row, answer in enumerate(answers) if not answer.get("error")]
    refused = Counter(answer["error"].split(":")[0].split(";")[0] for answer in answers if answer.get("error"))
    if len(labelled) < _MIN_CANDIDATES:
        first = next(answer["error"] for answer in answers if answer.get("error"))
        raise RefusedError(f"{len(answers) - len(labelled)} of {len(answers)} candidates are refused: {first}")
    runtimes = np.array([nanoseconds(answers[row]["cycles"], program.topology) for row in labelled], dtype=np.int64)
    arrays = layout_archive(
        featurize_module(program.module),
        node_config_ids=program.choices.node_ids,
        node_config_feat=gather_layouts(program.choices, candidates[labelled]),
        config_runtime=runtimes,
        operands=operands,
    )
    first = answers[labelled[0]]
    facts = {
        "nodes": len(arrays["node_opcode"]),
        "config_nodes": len(program.choices.node_ids),
        "candidates": len(labelled),
        "refused": dict(sorted(refused.items())),
        "has_default": labelled[0] == 0,
        "unforced_ns": program.unforced_judgement.nanoseconds,
        "first_ns": int(runtimes[0]),
        "best_ns": int(runtimes.min()),
        "worst_ns": int(runtimes.max()),
        "estimated_ops": first["num_estimated"],
        "unestimated_ops": first["unestimated"],
        "seconds": round(sum(answer.get("seconds", 0.0) for answer in answers), 1),
    }
    return Labels(arrays, facts)


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\n".join(parts)).hexdigest()
