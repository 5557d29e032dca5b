"""Time and memory of a command and of the processes that it starts."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Usage:
    """The time and memory of a command."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int  # the largest sum of resident memory over its processes; shared pages count once per process


def run_measured(command: Sequence[str], log: Path, *, interval: float = 0.02) -> Usage:
    """The usage of a command, whose stdout and stderr go to `log`; memory is sampled every `interval` seconds."""
    log.parent.mkdir(parents=True, exist_ok=True)
    start, peak = time.perf_counter(), [0]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        threading.Thread(target=_watch, args=(process.pid, peak, interval), daemon=True).start()
        # wait4, unlike Popen.wait, returns the CPU time of the child and of its own children.
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{log.read_text()[-3000:]}")
    return Usage(wall, usage.ru_utime + usage.ru_stime, peak[0])


def _watch(pid: int, peak: list[int], interval: float) -> None:
    """Updates the largest sum of resident memory over the process tree, until its root has ended."""
    try:
        root = psutil.Process(pid)
        while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
            peak[0] = max(peak[0], sum(map(_resident, [root, *root.children(recursive=True)])))
            time.sleep(interval)
    except psutil.NoSuchProcess:
        return


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
