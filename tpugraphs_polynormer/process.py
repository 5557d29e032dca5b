"""Prepares a process: no start-up messages, reuse of freed memory, and how it ends."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of <malloc.h>
_FEW_CORES = 8
_LOOK_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


@contextmanager
def divert_stderr() -> Iterator[IO[str]]:
    """A context in which file descriptor 2, which children inherit, writes to a temporary file; yields that file.

    Python's own output (logging, tqdm, tracebacks) still goes to the terminal, because sys.stderr uses a copy of it.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    python_stderr = sys.stderr
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        os.dup2(log.fileno(), 2)
        sys.stderr = os.fdopen(terminal, "w", buffering=1, errors="replace", closefd=False)
        try:
            yield log
        finally:
            sys.stderr.flush()
            sys.stderr = python_stderr
            os.dup2(terminal, 2)
            os.close(terminal)


def end_with_parent(parent: int) -> None:
    """Asks Linux to kill this process when its parent ends, however that ends; elsewhere nothing happens.

    For `subprocess.Popen(preexec_fn=...)`. It is killed, not interrupted: after an interrupt a stage may compute on for
    long (38 s were measured after kill -9 of a demo in its trainings), and stages continue after a kill anyway.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before it could be watched
            os._exit(1)


def kill_descendants() -> None:
    """Kills the processes that this one started, and those that they started; without /proc nothing happens."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, can hold anything; after it come the state and the parent.
            parents[int(path.parent.name)] = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
    found, pending = [], [os.getpid()]
    while pending:
        parent = pending.pop()
        children = [each for each, its_parent in parents.items() if its_parent == parent]
        found += children
        pending += children
    for each in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


@contextmanager
def workers_end_with_interrupt() -> Iterator[None]:
    """Kills what this process started when SIGINT or SIGTERM comes, before Python raises it.

    For Beam, which waits for its workers when it is interrupted, and they for it.
    """

    def end(number: int, frame: object) -> None:
        kill_descendants()
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    with _handling(signal.SIGINT, end), _handling(signal.SIGTERM, end):
        yield


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise Terminated in here, so that what a stage started is ended before the stage is."""

    def interrupt(number: int, frame: object) -> None:
        raise Terminated

    with _handling(signal.SIGTERM, interrupt):
        yield


@contextmanager
def _handling(number: signal.Signals, handler: Callable[[int, object], None]) -> Iterator[None]:
    """Handles a signal so in here; outside the main thread, where Python allows no handlers, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM."""


def end_with_process(owner: int) -> None:
    """Ends this process, at once and without a word, within a second after the process `owner` has ended.

    A thread looks, because the kernel's own signal (PR_SET_PDEATHSIG) comes when the parent's thread ends, and from the
    parent alone: Beam starts workers from threads, through a shell.
    """

    def watch() -> None:
        while True:
            try:
                os.kill(owner, 0)
            except ProcessLookupError:
                os._exit(1)
            except OSError:  # it is there, and not ours
                pass
            time.sleep(_LOOK_SECONDS)

    threading.Thread(target=watch, name="end-with-process", daemon=True).start()


def keep_freed_memory() -> None:
    """Makes glibc reuse freed memory, for processes that train on a CPU; does nothing without glibc.

    By default glibc maps a large tensor for each op, the kernel clears its pages, and glibc unmaps it: on 2 cores that
    took half of the time of a training step on 50,000 nodes, and more on larger graphs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)
    if (os.cpu_count() or 1) <= _FEW_CORES:
        # Arenas other than the first are limited to blocks of 64 MB. With many cores, threads would wait for one arena.
        mallopt(_M_ARENA_MAX, 1)


def import_tensorflow() -> None:
    """Imports TensorFlow and lists GPUs without its start-up messages, some of which no option disables.

    TensorFlow's C++ messages (CPU features, missing CUDA, a graph optimizer that gives up) are disabled from here on:
    a user of these commands cannot act on them, and real failures raise in Python too.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" not in sys.modules:
        with divert_stderr():
            tensorflow = importlib.import_module("tensorflow")
            tensorflow.config.list_physical_devices("GPU")
            importlib.import_module("tensorflow_gnn")
