"""The child process that compiles an exported JAX function and dumps the program after every compiler pass."""

from __future__ import annotations

import re
import sys
from pathlib import Path

EXPORT_NAME = "function.jax_export"
_PASS_DUMP = re.compile(r"module_\d+\.jit_call\.(\d{4,})\.(.+)\.hlo\.pb")
_LAYOUT_ASSIGNED = ("after_layout-assignment", "after_layout_assignment")


def compile_and_dump(folder: Path) -> None:
    """Compiles the function exported to `folder`; XLA writes a dump there after every pass that changed something."""
    import jax
    from jax import export

    exported = export.deserialize(bytearray((folder / EXPORT_NAME).read_bytes()))
    leaves = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in exported.in_avals]
    args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, leaves)
    options = {"xla_dump_to": str(folder), "xla_dump_hlo_pass_re": ".*", "xla_dump_hlo_as_proto": True}

    def call(*args, **kwargs):  # XLA names the module and the dumps after this function
        return exported.call(*args, **kwargs)

    jax.jit(call).lower(*args, **kwargs).compile(compiler_options=options)


def find_snapshot(folder: Path) -> Path | None:
    """The last dump before layouts were assigned, or None."""
    dumps = sorted(
        (int(match[1]), match[2], path) for path in folder.iterdir() if (match := _PASS_DUMP.fullmatch(path.name))
    )
    snapshot = None
    for _, passes, path in dumps:
        if any(mark in passes for mark in _LAYOUT_ASSIGNED):
            break
        snapshot = path
    return snapshot


if __name__ == "__main__":
    compile_and_dump(Path(sys.argv[1]))
