"""HLO modules of JAX and TensorFlow functions; each library is imported only when its function is called."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.hlo.prelayout import EXPORT_NAME, find_snapshot
from tpugraphs_polynormer.hlo.protobuf import parse_module

if TYPE_CHECKING:
    from tpugraphs_polynormer.compiler.program import CompiledProgram

_COMPILE_SECONDS = 1800


@overload
def from_jax(function: Callable[..., Any], *args: Any, before_layout: bool = False) -> Module: ...
@overload
def from_jax(function: Callable[..., Any], *args: Any, topology: str) -> CompiledProgram: ...
def from_jax(
    function: Callable[..., Any], *args: Any, before_layout: bool = False, topology: str | None = None
) -> Module | CompiledProgram:
    """The HLO module of a JAX function; with a topology, the program as the TPU compiler sees it.

    Args:
      function: a plain or jitted function of arrays.
      *args: example arguments; only their shapes and types matter (`jax.ShapeDtypeStruct` will do).
      before_layout: compile it for this machine in a child process and take the program just before layout assignment
        (inlined, simplified), which is closer to the dataset than the raw lowering.
      topology: a TPU such as `v3:2x2`: the real TPU compiler (extra tpu-compiler) takes the function to just before it
        assigns layouts, as the dataset was taken, and tells its own layouts. The result is that of
        `compiler.from_functions.compile_jax`; its `module` is the program.

    Raises:
      HloError: JAX is missing, or the child process left no snapshot.
      UserError: with a topology, see `compiler.program.compile_program`.
    """
    if topology is not None:
        # Late, because the compiler's room imports this one.
        from tpugraphs_polynormer.compiler.from_functions import compile_jax

        return compile_jax(function, *args, topology=topology)
    try:
        import jax
    except ImportError as error:
        raise HloError("from_jax needs JAX, which is not installed; install the package's jax extra") from error
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    if before_layout:
        return _snapshot_before_layout(jitted, args)
    return parse_module(jitted.lower(*args).compiler_ir("hlo").as_serialized_hlo_module_proto())


@overload
def from_tf(function: Callable[..., Any], *args: Any) -> Module: ...
@overload
def from_tf(function: Callable[..., Any], *args: Any, topology: str) -> CompiledProgram: ...
def from_tf(function: Callable[..., Any], *args: Any, topology: str | None = None) -> Module | CompiledProgram:
    """The HLO module of a TensorFlow function of tensors; with a topology, as `from_jax` gives it."""
    if topology is not None:
        from tpugraphs_polynormer.compiler.from_functions import compile_tf

        return compile_tf(function, *args, topology=topology)
    return parse_module(lower_tf(function, *args))


def lower_tf(function: Callable[..., Any], *args: Any) -> bytes:
    """The serialized HloModuleProto of a TensorFlow function, as `tf.function(jit_compile=True)` gives it to XLA."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise HloError("from_tf needs TensorFlow, which is not installed; install it") from error
    # A tf.function without jit_compile cannot return its HLO, so the Python function inside it is wrapped again.
    plain = function.python_function if hasattr(function, "python_function") else function
    compiled = tf.function(plain, jit_compile=True)
    return compiled.experimental_get_compiler_ir(*args)(stage="hlo_serialized")


def _snapshot_before_layout(jitted: Any, args: tuple[Any, ...]) -> Module:
    """The program before layout assignment, from a child process: XLA can abort while it dumps every pass."""
    from jax import export

    try:
        exported = export.export(jitted)(*args).serialize()
    except ImportError as error:
        raise HloError("before_layout=True needs the flatbuffers package; install the package's jax extra") from error
    with tempfile.TemporaryDirectory(prefix="tpugraphs-hlo-") as folder:
        Path(folder, EXPORT_NAME).write_bytes(exported)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "tpugraphs_polynormer.hlo.prelayout", folder]
        try:
            child = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise HloError(f"compiling took longer than {_COMPILE_SECONDS} s; use before_layout=False") from error
        snapshot = find_snapshot(Path(folder))
        if snapshot is None:
            last = (child.stderr.strip().splitlines() or ["no message"])[-1]
            raise HloError(
                f"the compiling child process ended with code {child.returncode} and left no snapshot before layout "
                f"assignment ({last}); use before_layout=False"
            )
        return parse_module(snapshot.read_bytes())
