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
# These take long: they are killed, continued, and killed again, before what they wrote is compared.
_KILLS_OF_ONE = {"demo": 10, "benchmark": 2, "Beam scoring": 2}


def make_rows(inputs: Inputs, work: Path, seed: int, num_kills: int) -> list[Row]:
    """A row per stage."""
    rows = []
    for name in KILLED:
        kills_each = min(_KILLS_OF_ONE.get(name, 1), num_kills)
        subject = inputs.subjects()[name]

        def run(number: int, subject: Subject = subject, kills_each: int = kills_each) -> Outcome:
            random = np.random.default_rng([seed, KILLED.index(subject.name), number])
            return _run_case(subject, work, random, kills_each, number)

        rows.append(Row(f"kill {name}", f"kill -9 of {name}", num_kills // kills_each, run))
    return rows


def _run_case(subject: Subject, work: Path, random: np.random.Generator, num_kills: int, number: int) -> Outcome:
    """Kills a stage so many times, each time continued, runs it to its end, and looks at what it wrote."""
    baseline = read_baseline(subject, work)
    folder = work / "kills"
    counts = dict.fromkeys(("of all its processes", "of the parent alone", "left running", "left over"), 0)
    notes: list[str] = []
    shutil.rmtree(folder, ignore_errors=True)
    out = folder / "out"
    out.mkdir(parents=True)
    hits, longest, moments = 0, 0.0, []
    # Every second case is killed in the work itself: reading inputs and tracing take most of a small stage's time.
    begin = baseline["begin"] if number % 2 and num_kills == 1 else 0.0
    while hits < num_kills and not notes:
        # Several kills of one are as far apart, on average, as lets it come to its end.
        moment = random.uniform(begin, baseline["seconds"] * min(1.0, 2 / num_kills))
        stage = processes.start(subject.arguments(out), folder / f"log{hits}.txt", prepare=subject.prepare)
        if (code := stage.wait(moment)) is not None:  # it was faster than the undisturbed run: nothing to kill
            if code:
                notes.append(f"ended with {code} before it was killed: {stage.said()[-1]}")
            shutil.rmtree(out)
            out.mkdir()
            continue
        whole_tree = bool((number // 2 + hits) % 2)
        started = processes.kill(stage, whole_tree)
        hits += 1
        moments.append(moment)
        counts["of all its processes" if whole_tree else "of the parent alone"] += 1
        lasted, alive = processes.wait_for_end(stage, started, _PATIENCE)
        longest = max(longest, lasted if started else 0.0)
        if lasted > _FEW_SECONDS:
            counts["left running"] += max(1, len(alive))
            notes.append(f"killed after {moment:.2f} s, {alive or 'something'} ran {lasted:.1f} s longer")
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
