"""A measurement in a process of its own, whose memory and threads are those of the measurement alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.process import end_with_process


def run_child(module: str, *arguments: Any, environment: Mapping[str, str] | None = None, quiet: bool = False) -> Any:
    """What `measure(*arguments)` of a benchmark's module returns in a child process, passed as JSON both ways.

    SystemExit tells the end of its stderr if it fails; otherwise stderr is shown, unless `quiet`.
    """
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", f"import child, {module}; child.answer({module}.measure)", json.dumps(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if quiet else None,
        text=True,
        env={**os.environ, **(environment or {}), "PYTHONPATH": paths},
        check=False,
    )
    if done.returncode:
        told = (done.stderr or "see above").strip()[-2000:]
        raise SystemExit(f"{module} of {json.dumps(arguments):.300}: exit code {done.returncode}: {told}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(measure: Any) -> None:
    """The child's side: prints what a function of the arguments on the command line returns. Ends with its parent."""
    end_with_process(os.getppid())
    print(json.dumps(measure(*json.loads(sys.argv[1]))))
