"""Tunes a program: measures the candidates that a tuner proposes, and keeps every measurement in a log that resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer import __version__
from tpugraphs_polynormer.archives.writer import write_npz
from tpugraphs_polynormer.compiler.program import CompiledProgram
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import replacing, write_text
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
from tpugraphs_polynormer.hlo.sampling import gather_layouts
from tpugraphs_polynormer.progress import Progress
from tpugraphs_polynormer.ranking.judges import Judge, Verdict, describe_layouts
from tpugraphs_polynormer.ranking.tuner import Measured, Tuner

LOG_NAME = "measurements.jsonl"
BEST_JSON, BEST_NPZ, BEST_MODULE = "best.json", "best.npz", "best.hlo.pb"


class TuningLog:
    """The measurements of one tuning, one line each in a file; the first line says what was tuned, and how.

    A line that a kill cut off is dropped.

    Args:
      path: of the file. facts: of the tuning; JSON values. num_config_nodes: of the program.

    Raises:
      UserError: the file is of another tuning, or is damaged.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], num_config_nodes: int) -> None:
        self._path, self._num_config_nodes = path, num_config_nodes
        self._batches: list[int] = []
        self.indices: list[list[int]] = []
        self.verdicts: list[Verdict] = []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        try:
            head, *records = [json.loads(line) for line in lines if line.endswith("\n")] or [facts]
            for record in records:
                self._remember(record)
        except (ValueError, LookupError, TypeError):
            raise UserError(f"{path}: found lines that are no measurements; choose another --output") from None
        plain = json.loads(json.dumps(facts))
        differing = sorted(key for key in {*plain, *head} if plain.get(key) != head.get(key))
        if differing:
            told = "; ".join(f"{key}: {head.get(key)!s:.60} there, {plain.get(key)!s:.60} here" for key in differing)
            raise UserError(f"{path}: the log of another tuning ({told}); choose another --output")
        self._facts = plain
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(json.dumps(line) + "\n" for line in (plain, *records)))

    def _remember(self, record: Mapping[str, Any]) -> None:
        if len(record["choices"]) != self._num_config_nodes:
            raise ValueError("a candidate of another program")
        self.indices.append(record["choices"])
        self.verdicts.append(Verdict(record["seconds"], record["error"]))
        self._batches.append(record["batch"])

    def __len__(self) -> int:
        return len(self.indices)

    def add(self, batch: int, candidate: np.ndarray, verdict: Verdict) -> None:
        """Writes a measurement, at once."""
        who = {"judge": self._facts["judge"], "versions": self._facts.get("versions", {})}
        told = {"seconds": verdict.seconds, "error": verdict.error}
        record = {"batch": batch, "choices": candidate.tolist(), **told, **who}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._remember(record)

    def measured(self, *, before: int | None = None) -> Measured:
        """The measurements, or those of the batches before one."""
        rows = [row for row, batch in enumerate(self._batches) if before is None or batch < before]
        indices = np.array([self.indices[row] for row in rows], np.int64).reshape(-1, self._num_config_nodes)
        return Measured(indices, np.array([self.verdicts[row].seconds for row in rows], np.float64))  # None: nan


def tune(
    tuner: Tuner, judge: Judge, folder: Path, facts: Mapping[str, Any], *, measurements: int, batch: int
) -> TuningLog:
    """The log of a tuning of at most so many measurements, in batches; one that was interrupted continues.

    Args:
      tuner, judge: who proposes, and who measures.
      folder: of the log. facts: what the tuning is of, besides what judge and batch size add; JSON values.

    Raises:
      UserError: the log in the folder is of another tuning, or no measurement of the first batch succeeded.
    """
    whole = {"tuning": "layouts", **facts, **judge.facts, "batch": batch}
    whole["versions"] = {"tpugraphs_polynormer": __version__, **judge.facts.get("versions", {})}
    log = TuningLog(folder / LOG_NAME, whole, tuner.num_config_nodes)
    with Progress(measurements, "tune", "measurement", done=len(log)) as progress:
        for number in range(-(-measurements // batch)):
            if len(log) >= min(measurements, (number + 1) * batch):
                continue
            proposed = tuner.propose(log.measured(before=number), batch)
            known = {tuple(each) for each in log.indices}
            for candidate in proposed[: measurements - number * batch]:
                if tuple(candidate.tolist()) not in known:
                    log.add(number, candidate, judge.judge(candidate))
                    progress.advance_to(len(log))
            _check_first(log, folder)
            if len(proposed) < batch:  # there are no more candidates
                break
    return log


def _check_first(log: TuningLog, folder: Path) -> None:
    if not any(verdict.seconds for verdict in log.verdicts):
        first = log.verdicts[0].error if log.verdicts else "there is no candidate"
        raise UserError(
            f"{folder / LOG_NAME}: none of {len(log)} measurements succeeded, the first because: {first}; "
            "mend that, remove this file, and run the same command again"
        )


def write_best(folder: Path, program: LayoutProgram, measured: Measured, judge: Judge) -> str:
    """Writes the fastest measured candidate to a folder; returns one line about it.

    `best.json` has the layouts of each config node and the times, `best.npz` the candidate as archives have it, and
    for a program that the TPU compiler has seen `best.hlo.pb` is the module with the layouts forced.
    """
    best, default = measured.best, float(measured.seconds[0])  # the default is measured first
    candidate, seconds = measured.indices[best], float(measured.seconds[best])
    gain = None if np.isnan(default) else 1 - seconds / default
    times = {"seconds": seconds, "default_seconds": None if gain is None else default, "gain": gain}
    found = {**describe_layouts(program, candidate), **times, "measurement": best + 1, **judge.facts}
    write_text(folder / BEST_JSON, json.dumps(found, indent=1) + "\n")
    layouts = gather_layouts(program.choices, candidate[None])
    arrays = {"node_config_ids": program.choices.node_ids, "node_config_feat": layouts, "choices": candidate}
    write_npz(folder / BEST_NPZ, arrays)
    if isinstance(program, CompiledProgram):
        with replacing(folder / BEST_MODULE) as temporary:
            temporary.write_bytes(program.force(candidate))
    told = f"best: {1e6 * seconds:,.3f} us, measurement {best + 1} of {len(measured.seconds)}"
    if gain is None:
        return f"{told}; the default could not be measured"
    if not candidate.any():
        return f"{told}: the default; nothing that was measured is faster"
    saved = f"{100 * gain:.2f} % less than the default's {1e6 * default:,.3f} us"
    return f"{told}: {saved}, by other layouts at {np.count_nonzero(candidate):,} nodes ({program.provenance})"
