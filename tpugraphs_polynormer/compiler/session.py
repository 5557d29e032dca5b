"""A child process that compiles many modules one after the other; an abort or a time limit costs one of them.

Starting the compiler takes seconds, so labelling keeps it: the parent sends one request per line, and the child answers
each with one line. A child that aborts or takes too long is replaced, and the module in question gets an error.

python -m tpugraphs_polynormer.compiler.session OWNER    # what the child runs
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from tpugraphs_polynormer.compiler.compile import describe_failure, describe_refusal
from tpugraphs_polynormer.compiler.record import read_estimates
from tpugraphs_polynormer.compiler.xla import compile_module, parse_hlo_text, set_environment
from tpugraphs_polynormer.compiler.zoo import ZooProgram, lower_zoo_program
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.process import end_with_process

COMMAND = (sys.executable, "-m", __name__)
TIME_LIMIT = 120.0  # seconds of one module
NO_RESULT = "no result within"  # how the error of a module begins that took too long


class CompilerSession:
    """A context with one compiler child at a time, for one topology.

    Args:
      topology: such as `v3:2x2`.
      time_limit: seconds of one module, after which its child is ended.
      command: how the child is started; tests give another one.
    """

    def __init__(self, topology: str, *, time_limit: float = TIME_LIMIT, command: Sequence[str] = COMMAND) -> None:
        self._topology, self._time_limit, self._command = topology, time_limit, (*command, str(os.getpid()))
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> CompilerSession:
        self._folder = tempfile.TemporaryDirectory(prefix="tpugraphs-session-")
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()
        self._folder.cleanup()

    def lower(self, program: ZooProgram) -> bytes:
        """The HloModuleProto of a program of the zoo; RuntimeError if JAX cannot make it."""
        target = Path(self._folder.name, "lowered.hlo.pb")
        answer = self._ask({"lower": asdict(program), "target": str(target)})
        if answer.get("error"):
            raise RuntimeError(f"{program.name}: {answer['error']}")
        return target.read_bytes()

    def parse_text(self, text: bytes) -> bytes:
        """The HloModuleProto of HLO text, as XLA's own reader makes it; HloError if it cannot read the text."""
        source, target = (Path(self._folder.name, name) for name in ("given.txt", "given.hlo.pb"))
        source.write_bytes(text)
        answer = self._ask({"parse": str(source), "target": str(target)})
        if answer.get("error"):
            raise HloError(f"the compiler's reader of HLO text: {answer['error']}")
        return target.read_bytes()

    def compile(self, module: bytes) -> dict[str, Any]:
        """The compiler's answer: cycles, num_estimated, unestimated (see CompileRecord), or an error of one line."""
        return self._ask(self._request(module))

    def compile_with_snapshots(self, module: bytes) -> tuple[dict[str, Any], bytes, bytes]:
        """The answer, and the compiler's dumps before and after layout assignment; empty where it failed."""
        paths = [Path(self._folder.name, name) for name in ("before.hlo.pb", "after.hlo.pb")]
        for path in paths:
            path.write_bytes(b"")
        answer = self._ask(self._request(module) | {"snapshots": [str(path) for path in paths]})
        before, after = (path.read_bytes() for path in paths)
        return answer, before, after

    def compile_to_text(self, module: bytes) -> tuple[dict[str, Any], str]:
        """The answer, and the compiled program as HLO text; empty where it failed."""
        path = Path(self._folder.name, "compiled.txt")
        path.write_bytes(b"")
        answer = self._ask(self._request(module) | {"text": str(path)})
        return answer, path.read_text()

    def _request(self, module: bytes) -> dict[str, Any]:
        path = Path(self._folder.name, "module.hlo.pb")
        path.write_bytes(module)
        return {"module": str(path), "topology": self._topology}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=self._folder.name,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return {"error": self._bury()}
        if not select.select([self._child.stdout], [], [], self._time_limit)[0]:
            self._end_child()
            return {"error": f"{NO_RESULT} {self._time_limit:,.0f} s"}
        line = self._child.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else {"error": self._bury()}

    def _bury(self) -> str:
        """What a child that ended by itself left to say."""
        code = self._child.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace")
        self._end_child()
        return describe_failure(words, code)

    def _end_child(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child.wait()
        self._child.stdin.close()
        self._child.stdout.close()
        self._errors.close()
        self._child = self._errors = None


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if "lower" in request:
            set_environment()
            Path(request["target"]).write_bytes(lower_zoo_program(ZooProgram(**request["lower"])))
            return {}
        if "parse" in request:
            Path(request["target"]).write_bytes(parse_hlo_text(Path(request["parse"]).read_text(errors="replace")))
            return {}
        snapshots = tuple(map(Path, request["snapshots"])) if "snapshots" in request else None
        module = Path(request["module"]).read_bytes()
        text, memory = compile_module(module, request["topology"], 1, snapshots=snapshots)
        if "text" in request:
            Path(request["text"]).write_text(text)
        estimates = read_estimates(text, repeat_loops=True)
        return {name: estimates[name] for name in ("cycles", "num_estimated", "unestimated")} | memory
    except (RuntimeError, ValueError) as fault:  # jax.errors.JaxRuntimeError is a RuntimeError
        # The message about a text quotes the line and marks the column below it: its first line says nothing.
        told = " ".join(str(fault).split())[:300] if "parse" in request else describe_refusal(str(fault))
        return {"error": told}


def _main(owner: str) -> None:
    end_with_process(int(owner))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libtpu prints must not be read as an answer
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
