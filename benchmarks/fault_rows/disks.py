"""A disk that fills up while a stage writes: one line, nothing that looks finished, the right bytes once there is room.

The disk is a tmpfs of a part of what the stage needs, which is then enlarged. Where this process may not mount one,
files are limited in size instead (RLIMIT_FSIZE).
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np

from fault_rows import processes
from fault_rows.outcome import Outcome, Row
from fault_rows.stages import Inputs, Subject, judge, read_baseline

_PAGE = os.sysconf("SC_PAGE_SIZE")


def make_rows(inputs: Inputs, work: Path, seed: int, num_cases: int) -> list[Row]:
    """A row per stage."""
    rows = []
    for position, subject in enumerate(inputs.subjects().values()):

        def run(number: int, subject: Subject = subject, position: int = position) -> Outcome:
            random = np.random.default_rng([seed, 200 + position, number])
            share = (number + random.random()) / (2 if subject.name == "demo" else num_cases)
            return _run_case(subject, work, share)

        count = min(2, num_cases) if subject.name == "demo" else num_cases
        rows.append(Row(f"disk {subject.name}", f"full disk: {subject.name}", count, run))
    return rows


class _Disk:
    """A small disk mounted at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._size = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=1g", "faults", str(folder)]
        self.is_mounted = subprocess.run(mount, capture_output=True).returncode == 0

    def resize(self, size: int) -> None:
        """Gives the disk that many bytes, in whole pages."""
        self._size = size
        if self.is_mounted:
            option = f"remount,size={max(1, size // _PAGE) * _PAGE}"
            subprocess.run(["mount", "-o", option, str(self.folder)], check=True, capture_output=True)

    def limit(self) -> None:
        """For the process of a stage: the limit of a disk that could not be mounted."""
        if not self.is_mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._size))

    def used(self) -> int:
        """The bytes in use."""
        if not self.is_mounted:
            return max((path.stat().st_size for path in self.folder.rglob("*") if path.is_file()), default=0)
        status = os.statvfs(self.folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def close(self) -> None:
        """Unmounts it."""
        if self.is_mounted:
            subprocess.run(["umount", str(self.folder)], check=True)


def _run_case(subject: Subject, work: Path, share: float) -> Outcome:
    """Runs a stage on a disk of a share of what it needs, then with room."""
    baseline = read_baseline(subject, work)
    folder = work / "disks"
    shutil.rmtree(folder, ignore_errors=True)
    disk = _Disk(folder / "disk")
    out = folder / "disk" / "out"
    notes, counts = [], {"told in one line": 0, "enough room": 0}
    try:
        needed = _measure(subject, disk, work, folder)
        size = max(2 * _PAGE, int(share * needed))
        disk.resize(size)

        def prepare() -> None:
            subject.prepare()
            disk.limit()

        stage = processes.start(subject.arguments(out), folder / "log0.txt", prepare=prepare)
        code = stage.wait()
        if code == 0:
            counts["enough room"] += 1
        else:
            found = _judge_failure(subject, out, stage, code)
            counts["told in one line"] += not found
            notes += [f"{each} (a disk of {size:,} of {needed:,} bytes)" for each in found]
        disk.resize(1 << 30)
        stage = processes.start(subject.arguments(out), folder / "log1.txt", prepare=subject.prepare)
        code = stage.wait()
        if code != 0 and "exists already" not in stage.said()[-1]:
            notes.append(f"with room, it ended with {code}: {stage.said()[-1]} (before: {size:,} of {needed:,} bytes)")
        else:
            differing, extra = judge(out, baseline["digest"])
            notes += [f"with room, {len(each)} files {what}: {', '.join(each[:4])} ({size:,} of {needed:,} bytes)"
                      for each, what in ((differing, "differ"), (extra, "are left over")) if each]  # fmt: skip
        if notes:
            shutil.copytree(folder, work / "failed" / f"disk-{subject.name}-{time.time_ns()}")
    finally:
        disk.close()
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(1, int(not notes), counts, tuple(notes))


def _judge_failure(subject: Subject, out: Path, stage: processes.Stage, code: int | None) -> list[str]:
    """What is wrong with the way in which a stage failed."""
    said = stage.said()
    told = [line for line in said if line.startswith("tpugraphs ")]
    faults = []
    if code != 2:
        faults.append(f"exit code {code}")
    if len(told) != 1 or told[0] != said[-1] or ": error: " not in told[0] or any("Traceback" in line for line in said):
        faults.append(f"it said: {' / '.join(said[-3:])[:600]}")
    finished = [mark for mark in subject.marks if any(out.glob(mark))]
    if subject.marks and len(finished) == len(subject.marks):
        faults.append(f"{', '.join(finished)} look finished")
    return faults


def _measure(subject: Subject, disk: _Disk, work: Path, folder: Path) -> int:
    """The most bytes that a stage has on the disk at one moment, measured once."""
    path = work / "baselines" / f"{subject.name.replace(' ', '-')}.disk"
    if not path.exists():
        stage = processes.start(subject.arguments(disk.folder / "out"), folder / "log.txt", prepare=subject.prepare)
        most, code = 0, None
        while code is None:
            code = stage.wait(0.01)
            most = max(most, disk.used())
        if code:
            raise SystemExit(f"{subject.name} failed undisturbed: {stage.said()[-1]}")
        shutil.rmtree(disk.folder / "out")
        path.write_text(str(most))
    return int(path.read_text())
