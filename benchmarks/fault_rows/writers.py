"""Two writers in one folder: one of them writes, the other is refused by one line or finds everything done."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np

from fault_rows import processes
from fault_rows.outcome import Outcome, Row
from fault_rows.stages import Inputs, Subject, judge, read_baseline

SHARED = ("download", "simulate", "preprocess", "train", "predict", "Beam scoring", "export", "benchmark", "demo")
_REFUSED = ("another process writes to this folder", "exists already", "Directory not empty")


def make_rows(inputs: Inputs, work: Path, seed: int, num_cases: int) -> list[Row]:
    """A row per stage."""
    rows = []
    for name in SHARED:
        subject = inputs.subjects()[name]

        def run(number: int, subject: Subject = subject) -> Outcome:
            random = np.random.default_rng([seed, 100 + SHARED.index(subject.name), number])
            return _run_case(subject, work, random, number)

        rows.append(Row(f"writers {name}", f"two writers: {name}", 1 if name == "demo" else num_cases, run))
    return rows


def _run_case(subject: Subject, work: Path, random: np.random.Generator, number: int) -> Outcome:
    """Starts a stage twice, the second at once (first case) or a moment later, and looks at what they wrote."""
    baseline = read_baseline(subject, work)
    folder = work / "writers"
    shutil.rmtree(folder, ignore_errors=True)
    out = folder / "out"
    out.mkdir(parents=True)
    first = processes.start(subject.arguments(out), folder / "log0.txt", prepare=subject.prepare)
    time.sleep(random.uniform(0, 0.8 * baseline["seconds"]) if number else 0.0)
    second = processes.start(subject.arguments(out), folder / "log1.txt", prepare=subject.prepare)
    ends = [(stage.wait(), stage) for stage in (first, second)]
    notes = []
    refused = [stage for code, stage in ends if code == 2]
    for stage in refused:
        told = [line for line in stage.said() if line.startswith("tpugraphs ")]
        if len(told) != 1 or not any(each in told[0] for each in _REFUSED) or _has_traceback(stage):
            notes.append(f"the refused one said {stage.said()[-1]}")
    if sorted(code if code is not None else -1 for code, _ in ends) not in ([0, 0], [0, 2]):
        notes.append(f"exit codes {[code for code, _ in ends]}: {first.said()[-1]}; {second.said()[-1]}")
    else:
        differing, extra = judge(out, baseline["digest"])
        notes += [f"{len(each)} files {what}: {', '.join(each[:4])}"
                  for each, what in ((differing, "differ"), (extra, "are left over")) if each]  # fmt: skip
    counts = {"second refused": len(refused), "nothing left to do": 2 - len(refused) - 1 if not notes else 0}
    if notes:
        shutil.move(folder, work / "failed" / f"writers-{subject.name}-{number}-{time.time_ns()}")
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(1, int(not notes), counts, tuple(notes))


def _has_traceback(stage: processes.Stage) -> bool:
    return any("Traceback" in line for line in stage.said())
