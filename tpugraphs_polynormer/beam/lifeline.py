"""A worker of a local Beam job that ends when the process that started the job is gone.

Beam starts workers through a shell and stops them when the job ends, but nobody stops them after kill -9 of the job:
they wait for it forever, or for a minute if they were just starting. So local workers start here: the first thing that
they do is to watch the job's process, before Beam's own module connects to it.

    python -m tpugraphs_polynormer.beam.lifeline JOB_PROCESS_ID
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys

from tpugraphs_polynormer.process import end_with_process

BEAM_WORKER = "apache_beam.runners.worker.sdk_worker_main"


def worker_command() -> str:
    """The shell command of a worker that ends with this process."""
    return f"exec {shlex.quote(sys.executable)} -m {__name__} {os.getpid()}"


if __name__ == "__main__":
    end_with_process(int(sys.argv[1]))
    runpy.run_module(BEAM_WORKER, run_name="__main__", alter_sys=True)
