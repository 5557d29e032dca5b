"""The private parts of jaxlib that compile an HLO module for a described topology. Nothing else imports them.

JAX documents compilation for a topology that is not there (`jax.experimental.topologies`), but only of its own
functions; a module that TensorFlow made enters through two private functions of jaxlib. They were tried with the
versions of the extra `tpu-compiler`, which `check_versions` compares.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.errors import UserError

EXTRA = "pip install 'tpugraphs-polynormer[tpu-compiler]'"
_TRIED = {"jax": ((0, 10), (0, 11)), "jaxlib": ((0, 10), (0, 11)), "libtpu": ((0, 0, 50), (0, 0, 52))}  # from, below
# libtpu asks a metadata server and the hardware for these, unless they are set.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a second process at the same time fails
}
_LAYOUT_ASSIGNMENT = "layout-assignment"  # the name of the pass
_ALIASES = 8  # HloModuleProto.input_output_alias: of flattened tuples, which StableHLO cannot express


def check_versions() -> dict[str, str]:
    """The versions of jax, jaxlib and libtpu; UserError if one is missing or was not tried."""
    found = {}
    for name, (first, below) in _TRIED.items():
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise UserError(f"the TPU compiler needs {name}, which is not installed; run {EXTRA}") from None
        version = tuple(int(part) for part in re.findall(r"\d+", found[name]))
        if not first <= version < below:
            expected = f"{'.'.join(map(str, first))} to below {'.'.join(map(str, below))}"
            raise UserError(f"the TPU compiler: found {name} {found[name]}, expected {expected}; run {EXTRA}")
    return found


def set_environment() -> None:
    """Sets what libtpu and jax read when they are imported."""
    os.environ.update(_ENVIRONMENT)


def parse_hlo_text(text: str) -> bytes:
    """The serialized HloModuleProto of HLO text; ValueError or RuntimeError if XLA's own reader cannot read it."""
    set_environment()
    from jaxlib import _hlo

    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def compile_module(
    module: bytes, topology: str, num_replicas: int, *, snapshots: tuple[Path, Path] | None = None
) -> tuple[str, dict[str, Any]]:
    """(compiled program as text, memory and seconds) of a serialized HloModuleProto. May abort the process.

    `snapshots` are two files for the compiler's own dumps (HloProto) just before and after it assigns layouts.
    """
    set_environment()
    import numpy as np
    from jax._src.interpreters import mlir
    from jax.experimental import topologies
    from jaxlib import _hlo, _jax, xla_client
    from jaxlib.mlir import ir

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    if num_replicas > len(devices):
        raise ValueError(f"{topology} has {len(devices)} devices, and {num_replicas} replicas were asked for")
    hlo = _hlo.HloModule.from_serialized_hlo_module_proto(_drop_field(module, _ALIASES))
    stable = _jax.mlir.hlo_to_stablehlo(hlo.as_serialized_hlo_module_proto())
    with mlir.make_ir_context():
        parsed = ir.Module.parse(stable)
        _remove_copies(parsed, ir)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = num_replicas, 1
    assigned = devices[:num_replicas]
    ids = np.array([[device.id] for device in assigned])
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    # The compiler writes the program's text itself: jaxlib cannot read programs with parts for the SparseCores.
    with tempfile.TemporaryDirectory(prefix="tpugraphs-dump-") as folder:
        overrides = [("xla_dump_to", folder), ("xla_dump_hlo_as_text", True)]
        if snapshots:
            overrides += [("xla_dump_hlo_as_proto", True), ("xla_dump_hlo_pass_re", _LAYOUT_ASSIGNMENT)]
        options.env_option_overrides = overrides
        started = time.monotonic()
        compiled = devices[0].client.compile(parsed, _jax.DeviceList(tuple(assigned)), options)
        seconds = time.monotonic() - started
        written = [path for path in Path(folder).glob("*.after_codegen.txt") if "extracted" not in path.name]
        text = max(written, key=lambda path: path.stat().st_size).read_text()
        for when, target in zip(("before", "after"), snapshots or (), strict=False):
            dumps = Path(folder).glob(f"*.{when}_{_LAYOUT_ASSIGNMENT}*.hlo.pb")
            shutil.copyfile(max(dumps, key=lambda path: path.stat().st_size), target)
    memory = compiled.get_compiled_memory_stats()
    return text, {
        "seconds": round(seconds, 2),
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }


def _remove_copies(module: Any, ir: Any) -> None:
    """Replaces each `copy` by its operand: StableHLO has no copy, and the compiler adds those that it needs."""
    copies = []

    def collect(op: Any) -> Any:
        if op.name == "mhlo.copy":
            copies.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for op in copies:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()


def _drop_field(message: bytes, number: int) -> bytes:
    """A serialized protobuf message without one of its fields."""
    kept, position = bytearray(), 0
    while position < len(message):
        start = position
        key, position = _read_varint(message, position)
        kind = key & 7
        if kind == 0:
            _, position = _read_varint(message, position)
        elif kind == 2:
            length, position = _read_varint(message, position)
            position += length
        else:
            position += 8 if kind == 1 else 4
        if key >> 3 != number:
            kept += message[start:position]
    return bytes(kept)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position
