"""Stages as processes that can be killed, and a look at what they leave running.

A stage is forked from this process, which has imported TensorFlow and Beam but has computed nothing with them. So a
stage starts in milliseconds and a kill at a random moment hits its work, not its imports. Whatever a stage starts
itself (the stages of a demo, Beam's workers) is a new interpreter, as always.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_MARK = "TPUGRAPHS_FAULTS_CASE"  # in the environment of whatever a stage starts
_MODULES = (
    "ranking.task",
    "ranking.predict",
    "ranking.export",
    "ranking.own_program",
    "ranking.evaluate",
    "ranking.report.page",
    "nodes.benchmark",
    "beam.score",
    "beam.preprocess",
    "simulator.write",
    "download.fetch",
    "training.distribution",
    "archives.featurize",
)


@dataclass(frozen=True)
class Stage:
    """A started stage; it leads a process group of its own."""

    pid: int
    log: Path
    mark: str
    started: float

    def wait(self, seconds: float = 600.0) -> int | None:
        """The exit code (negative: the signal that ended it), or None if it runs longer than that."""
        end = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                return None
            time.sleep(0.005)

    def said(self) -> list[str]:
        """The lines of its output."""
        return self.log.read_text(errors="replace").replace("\r", "\n").strip().splitlines() or ["(nothing)"]

    def descendants(self) -> list[psutil.Process]:
        """The processes that it started, and those that they started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []


def import_stages() -> None:
    """Imports what the stages import, so that they start fast."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tpugraphs_polynormer.process import import_tensorflow

    import_tensorflow()
    for name in _MODULES:
        importlib.import_module(f"tpugraphs_polynormer.{name}")


def start(arguments: Sequence[str], log: Path, *, prepare: Callable[[], None] = lambda: None) -> Stage:
    """Starts `tpugraphs <arguments>`, with its output in `log`; `prepare` is called in the new process before."""
    from tpugraphs_polynormer.cli.main import main

    log.parent.mkdir(parents=True, exist_ok=True)
    mark = f"{log}-{time.monotonic_ns()}"
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Stage(pid, log, mark, time.monotonic())
    status = 99
    try:
        os.setsid()
        os.environ |= {_MARK: mark, "TMPDIR": str(log.parent)}
        tempfile.tempdir = None
        for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
            os.dup2(os.open(path, flags, 0o644), descriptor)
        os.dup2(1, 2)
        prepare()
        status = main(list(arguments))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def compute(function: Callable[[], Any], *, gigabytes: float | None = None, seconds: int = 600) -> Any:
    """The value of a function (plain values, as JSON), computed in a process of its own within limits.

    It keeps TensorFlow out of this process, whose forks must find it unused, and a fault of the reader's C code too.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reader)
            if gigabytes is not None:
                limit = psutil.Process().memory_info().vms + int(gigabytes * (1 << 30))
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            signal.alarm(seconds)
            with os.fdopen(writer, "w") as stream:
                json.dump(function(), stream)
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise RuntimeError(f"a computation of the benchmark ended with {code}")
    return json.loads(text)


def kill(stage: Stage, whole_tree: bool) -> list[psutil.Process]:
    """Kills a stage, with all that it started or alone; returns what it had started."""
    started = stage.descendants()
    if whole_tree:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(stage.pid, signal.SIGKILL)
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    os.kill(stage.pid, signal.SIGKILL)
    stage.wait()
    return started


def wait_for_end(stage: Stage, started: Sequence[psutil.Process], seconds: float) -> tuple[float, list[str]]:
    """(how long what a stage had started lived on, the commands that lived longer than `seconds` and were killed)."""
    begin = time.monotonic()
    while True:
        alive = {process.pid: process for process in (*started, *_marked(stage.mark)) if _is_alive(process)}
        lasted = time.monotonic() - begin
        if not alive:
            return lasted, []
        if lasted > seconds:
            names = []
            for process in alive.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    names.append(" ".join(process.cmdline())[:200])
                    process.kill()
            return lasted, names
        time.sleep(0.05)


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _marked(mark: str) -> list[psutil.Process]:
    """Processes that have the mark in their environment: also those that started while their parent was killed."""
    found = []
    wanted = f"{_MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(psutil.Process(int(path.parent.name)))
    return found
