"""Compiles HLO modules in a child process with a time limit: the TPU compiler aborts where it fails a check of its own.

python -m tpugraphs_polynormer.compiler.compile MODULE TOPOLOGY REPLICAS RESULT    # what the child runs
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.compiler.record import CompileRecord, CostlyOp, read_estimates
from tpugraphs_polynormer.compiler.topologies import find_chip
from tpugraphs_polynormer.compiler.xla import check_versions, compile_module
from tpugraphs_polynormer.files import write_text

TIME_LIMIT = 1800.0  # seconds
_ADVICE = "lower data.batch_nodes, data.graphs_per_batch or data.candidates_per_graph"  # to a training step
_FAILED_CHECK = re.compile(r"(\w+\.cc:\d+\] Check failed: .*)")
# Two forms of the compiler's message, of which the second names the memory that is there.
_NO_MEMORY = re.compile(r"Ran out of memory (?:in memory space hbm\. (Used \S+ of \S+ hbm)|on HBM, (.*?)\.(?:\s|$))")


def compile_for_tpu(
    module: bytes,
    topology: str,
    *,
    num_replicas: int = 1,
    time_limit: float = TIME_LIMIT,
    cache_dir: Path | None = None,
) -> CompileRecord:
    """The compiler's answer for a serialized HloModuleProto; an abort of the compiler is an error in the record.

    Args:
      module: as `tf.function(...).experimental_get_compiler_ir(...)(stage="hlo_serialized")` gives it.
      topology: such as `v4:2x2x1`; UserError for another form.
      num_replicas: devices that run the module, each with its own batch.
      time_limit: seconds, after which the compilation is ended.
      cache_dir: folder of earlier records, by the hash of the module; None for no cache.
    """
    find_chip(topology)
    versions = check_versions()
    key = hashlib.sha256(repr((versions, topology, num_replicas)).encode() + module).hexdigest()
    cached = cache_dir / f"{key}.json" if cache_dir else None
    if cached and cached.is_file():
        return parse_record(cached.read_text())
    record = CompileRecord(
        topology, num_replicas, versions=versions, **_run_child(module, topology, num_replicas, time_limit)
    )
    if cached and not record.error.startswith("no result within"):
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_text(cached, serialize_record(record))
    return record


def serialize_record(record: CompileRecord) -> str:
    """A record as JSON, with the derived numbers beside the measured ones."""
    derived = {"milliseconds": record.milliseconds, "total_bytes": record.total_bytes, "hbm_share": record.hbm_share}
    return json.dumps(dataclasses.asdict(record) | derived, indent=1)


def serialize_records(records: Sequence[tuple[str, CompileRecord]], facts: Mapping[str, Any]) -> str:
    """Named records, and facts of the batch that they were compiled for, as JSON."""
    content = [{"step": name} | json.loads(serialize_record(record)) for name, record in records]
    return json.dumps({"batch": dict(facts), "records": content}, indent=1)


def parse_record(text: str) -> CompileRecord:
    """The inverse of `serialize_record`."""
    names = {field.name for field in dataclasses.fields(CompileRecord)}
    content = {name: value for name, value in json.loads(text).items() if name in names}
    return CompileRecord(**content | {"costly": tuple(CostlyOp(**op) for op in content["costly"])})


def _run_child(module: bytes, topology: str, num_replicas: int, time_limit: float) -> dict:
    with tempfile.TemporaryDirectory(prefix="tpugraphs-compile-") as folder:
        source, result = Path(folder) / "module.hlo.pb", Path(folder) / "result.json"
        source.write_bytes(module)
        command = [sys.executable, "-m", __name__, str(source), topology, str(num_replicas), str(result)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=time_limit, cwd=folder, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"no result within {time_limit:,.0f} s; raise the time limit, or compile smaller batches"}
        if result.is_file():
            content = json.loads(result.read_text())
            return content | {"costly": tuple(CostlyOp(**op) for op in content.get("costly", ()))}
    return {"error": describe_failure(done.stderr.decode(errors="replace"), done.returncode)}


def describe_failure(stderr: str, code: int) -> str:
    """One line: the failed check of a compiler that aborted, or its last words."""
    check = _FAILED_CHECK.search(stderr)
    if check:
        return f"the compiler aborted: {check[1].strip()}"
    lines = [line for line in stderr.splitlines() if line.strip()] or ["no message"]
    return f"the compiler ended with code {code}: {lines[-1][:300]}"


def describe_refusal(message: str) -> str:
    """One line of the compiler's error message; a program that does not fit says by how much."""
    memory = _NO_MEMORY.search(message)
    if memory:
        return f"does not fit: {memory[1] or memory[2]}"
    return f"the compiler refused: {message.splitlines()[0][:300]}"


def _main(source: str, topology: str, num_replicas: str, result: str) -> None:
    try:
        text, memory = compile_module(Path(source).read_bytes(), topology, int(num_replicas))
        content = memory | read_estimates(text)
        content["costly"] = [dataclasses.asdict(op) for op in content["costly"]]
    except (RuntimeError, ValueError) as fault:  # jax.errors.JaxRuntimeError is a RuntimeError
        refusal = describe_refusal(str(fault))
        content = {"error": f"{refusal}; {_ADVICE}" if refusal.startswith("does not fit") else refusal}
    write_text(Path(result), json.dumps(content))


if __name__ == "__main__":
    _main(*sys.argv[1:])
