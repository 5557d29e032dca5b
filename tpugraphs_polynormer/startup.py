"""Keeps what C++ libraries and child processes write to stderr out of the user's terminal."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


@contextmanager
def divert_stderr() -> Iterator[IO[str]]:
    """Sends file descriptor 2, which children inherit, to a temporary file, and yields that file.

    Python's own writes (logging, tqdm, tracebacks) go on to the terminal: sys.stderr is moved to a copy of it.
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


def import_tensorflow() -> None:
    """Imports TensorFlow and looks for GPUs without its start-up lines, which no setting turns off."""
    if "tensorflow" not in sys.modules:
        with divert_stderr():
            tensorflow = importlib.import_module("tensorflow")
            tensorflow.config.list_physical_devices("GPU")
            importlib.import_module("tensorflow_gnn")
