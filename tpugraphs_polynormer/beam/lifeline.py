"""Ends the workers of a local Beam job when the process that started the job is gone.

Beam starts workers through a shell and stops them when the job ends, but nobody stops them after kill -9 of the job:
they wait for it forever. So a worker imports this module at its start. Beam's option for that (beam_plugins) does not
reach the workers of a local job, whose options are empty; they read them from the file that an environment variable
names, if there is one. A worker that starts while its job is killed first waits a minute for Beam's log server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpugraphs_polynormer.process import OWNER, end_with_process

_OPTIONS_FILE = "PIPELINE_OPTIONS_FILE"  # Beam's, see apache_beam/runners/worker/sdk_worker_main.py


@contextmanager
def workers_end_with_us() -> Iterator[None]:
    """Local workers that Beam starts in here end with this process."""
    if _OPTIONS_FILE in os.environ:
        yield
        return
    os.environ |= {OWNER: str(os.getpid()), _OPTIONS_FILE: str(Path(__file__).with_name("worker_options.json"))}
    try:
        yield
    finally:
        del os.environ[OWNER], os.environ[_OPTIONS_FILE]


if os.environ.get(OWNER, str(os.getpid())) != str(os.getpid()):
    end_with_process(int(os.environ[OWNER]))
