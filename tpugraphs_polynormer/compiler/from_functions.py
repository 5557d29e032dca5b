"""JAX and TensorFlow functions as the TPU compiler sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tpugraphs_polynormer.compiler.jax_layouts import lower_marked, read_marks
from tpugraphs_polynormer.compiler.program import CompiledProgram, compile_program, use_session
from tpugraphs_polynormer.compiler.session import TIME_LIMIT, CompilerSession
from tpugraphs_polynormer.hlo.from_functions import lower_tf


def compile_jax(
    function: Callable[..., Any],
    *args: Any,
    topology: str = "v3:2x2",
    session: CompilerSession | None = None,
    time_limit: float = TIME_LIMIT,
) -> CompiledProgram:
    """The program of a JAX function just before the compiler of a TPU assigns layouts, with the compiler's own layouts.

    Args:
      function: a plain or jitted function of arrays.
      *args: example arguments; only their shapes and types matter (`jax.ShapeDtypeStruct` will do).
      topology, session, time_limit: see `compile_program`, which also says what is raised.
    """
    with use_session(session, topology, time_limit) as opened:
        program = compile_program(lower_marked(function, *args), topology, session=opened)
    origins = {name: read_marks(origin) for name, origin in program.origins.items()}
    return replace(program, origins=origins)


def compile_tf(
    function: Callable[..., Any],
    *args: Any,
    topology: str = "v3:2x2",
    session: CompilerSession | None = None,
    time_limit: float = TIME_LIMIT,
) -> CompiledProgram:
    """The program of a TensorFlow function of tensors, as `compile_jax` gives that of a JAX function."""
    with use_session(session, topology, time_limit) as opened:
        return compile_program(lower_tf(function, *args), topology, session=opened)
