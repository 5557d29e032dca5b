"""Kills at seeded moments: the same command, run again, must write what an undisturbed run writes."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np

from fault_rows import processes
from fault_rows.outcome import Outcome, Row
from fault_rows.stages import Inputs, Subject, judge, read_baseline

KILLED = ("preprocess", "train", "predict", "demo", "rank", "export", "benchmark", "Beam scoring", "simulate")
_FEW_SECONDS = 10.0  # what a killed stage had started must be gone by then
_PATIENCE = 90.0
_IS_COMPLETE = "exists already"  # export never replaces a model: killed after the last rename, it refuses the next run
_KILLS_PER_DEMO = 4  # a demo takes minutes: it is killed, continued, killed again


def make_rows(inputs: Inputs, work: Path, seed: int, num_kills: int) -> list[Row]:
    """A row per stage."""
    rows = []
    for name in KILLED:
        kills_each = min(_KILLS_PER_DEMO, num_kills) if name == "demo" else 1
        subject = inputs.subjects()[name]

        def run(number: int, subject: Subject = subject, kills_each: int = kills_each) -> Outcome:
            random = np.random.default_rng([seed, KILLED.index(subject.name), number])
            return _run_case(subject, work, random, kills_each, number)

        rows.append(Row(f"kill {name}", f"kill -9 of {name}", num_kills // kills_each, run))
    return rows


def _run_case(subject: Subject, work: Path, random: np.random.Generator, num_kills: int, number: int) -> Outcome:
    """Kills a stage some times at growing moments of its work, each time continued, and looks at what it wrote."""
    baseline = read_baseline(subject, work)
    folder = work / "kills"
    counts = dict.fromkeys(("of all its processes", "of the parent alone", "left running", "left over"), 0)
    notes: list[str] = []
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        out = folder / "out"
        out.mkdir(parents=True)
        # Every second case is killed in the work itself: reading inputs and tracing take most of a small stage's time.
        begin = baseline["begin"] if number % 2 and num_kills == 1 else 0.0
        moments = np.sort(random.uniform(begin, baseline["seconds"], num_kills))
        hits, longest, before = 0, 0.0, 0.0
        for kill_number, moment in enumerate(moments):
            stage = processes.start(subject.arguments(out), folder / f"log{kill_number}.txt", prepare=subject.prepare)
            if (code := stage.wait(max(0.05, moment - before))) is not None:
                if code:
                    notes.append(f"ended with {code} before it was killed: {stage.said()[-1]}")
                break  # it was faster than the undisturbed run: nothing to kill
            whole_tree = bool((number // 2 + kill_number) % 2)
            started = processes.kill(stage, whole_tree)
            hits, before = hits + 1, moment
            counts["of all its processes" if whole_tree else "of the parent alone"] += 1
            lasted, alive = processes.wait_for_end(stage, started, _PATIENCE)
            longest = max(longest, lasted if started else 0.0)
            if lasted > _FEW_SECONDS:
                counts["left running"] += max(1, len(alive))
                notes.append(f"killed after {moment:.2f} s, {alive or 'something'} ran {lasted:.1f} s longer")
        if hits or notes:
            break
    notes += _continue(subject, out, folder, baseline, counts)
    counts |= {"longest life of a child": round(longest, 1)}
    if not notes:
        shutil.rmtree(folder)
    else:
        shutil.move(folder, work / "failed" / f"{subject.name}-{number}-{time.time_ns()}")
    moments_told = ", ".join(f"{each:.2f}" for each in moments)
    told = tuple(f"{note} (killed after {moments_told} s)" for note in notes)
    return Outcome(hits, 0 if notes else hits, counts, told)


def _continue(subject: Subject, out: Path, folder: Path, baseline: dict, counts: dict[str, float]) -> list[str]:
    """Runs the stage to its end; what is wrong then."""
    stage = processes.start(subject.arguments(out), folder / "log.txt", prepare=subject.prepare)
    code = stage.wait()
    if code != 0 and _IS_COMPLETE not in stage.said()[-1]:
        if code is None:
            processes.kill(stage, True)
        return [f"continued, it ended with {code}: {stage.said()[-1]}"]
    differing, extra = judge(out, baseline["digest"])
    counts["left over"] += len(extra)
    faults = [f"{len(differing)} files differ: {', '.join(differing[:4])}"] if differing else []
    return faults + ([f"{len(extra)} files are left over: {', '.join(extra[:4])}"] if extra else [])
