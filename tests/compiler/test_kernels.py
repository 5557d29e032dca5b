"""The kernels of a compiled program, read from a text as the compiler writes it."""

import json

import pytest

from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.archives.writer import write_archive
from tpugraphs_polynormer.compiler.kernels import read_kernels
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.tuning import TileSizes
from tpugraphs_polynormer.simulator.kernel_archives import kernel_archives


def config(kernel: list[str], output: list[str], cycles: int) -> str:
    """A backend_config as the compiler writes it."""
    window = {"estimated_cycles": str(cycles), "input_window_bounds": ["1", "1"]}
    window |= {"kernel_window_bounds": kernel, "output_window_bounds": output}
    return f"backend_config={json.dumps({'window_config': window}, separators=(',', ':'))}"


TEXT = f"""HloModule jit_f, is_scheduled=true, entry_computation_layout={{(f32[64,256]{{1,0}})->f32[64,256]{{1,0}}}}

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(f32[] %a, f32[] %b)
}}

%fused_computation (p: f32[64,256]) -> f32[64] {{
  %p = f32[64,256]{{1,0:T(8,128)}} parameter(0)
  %tanh = f32[64,256]{{1,0:T(8,128)}} tanh(%p)
  %zero = f32[] constant(0)
  ROOT %reduce = f32[64]{{0:T(128)}} reduce(%tanh, %zero), dimensions={{1}}, to_apply=%add
}}

ENTRY %main (x: f32[64,256]) -> (f32[64,256], f32[64]) {{
  %x = f32[64,256]{{1,0:T(8,128)}} parameter(0)
  %copy = f32[64,256]{{0,1:T(8,128)}} copy(%x), {config([], ["4", "1"], 700)}
  %double = f32[64,256]{{1,0:T(8,128)}} add(%x, %x), {config([], ["4", "2"], 600)}
  %fusion.7 = f32[64]{{0:T(128)}} fusion(%double), kind=kLoop, calls=%fused_computation, {config([], ["2", "2"], 940)}
  %small = f32[64]{{0:T(128)}} negate(%fusion.7), {config([], [], 3)}
  ROOT %result = (f32[64,256]{{1,0:T(8,128)}}, f32[64]{{0:T(128)}}) tuple(%double, %small)
}}
"""


def test_ops_with_tile_sizes_become_modules_of_their_own():
    kernels = {each.name: each for each in read_kernels(TEXT)}
    assert list(kernels) == ["copy", "double", "fusion.7"], "the order of execution, without ops that have no tiles"
    assert kernels["copy"].tiles == TileSizes((), (4, 1)) and kernels["copy"].cycles == 700
    opcodes = {
        name: [each.opcode for computation in kernel.module.computations for each in computation.instructions]
        for name, kernel in kernels.items()
    }
    assert opcodes["copy"] == ["parameter", "copy"]
    assert opcodes["double"] == ["parameter", "add"], "an operand that is read twice is one parameter"
    fused = ["parameter", "tanh", "constant", "reduce", "parameter", "fusion"]
    assert opcodes["fusion.7"] == ["parameter", "parameter", "add", *fused]
    graph = featurize_module(kernels["fusion.7"].module)
    assert len(graph.node_opcode) == 9


@pytest.mark.parametrize("count", [1, 20])
def test_archives_have_the_official_form_and_the_compilers_choice_first(tmp_path, count):
    for name, arrays in kernel_archives(read_kernels(TEXT), "v3:2x2", num_candidates=count, seed=1).items():
        write_archive(tmp_path / f"{name}.npz", arrays)
        archive = read_archive(tmp_path / f"{name}.npz")
        assert archive.kind == "tile" and archive.is_hidden
        assert archive.config_feat[0, 8:10].tolist() == {"copy": [4, 1], "double": [4, 2], "fusion.7": [2, 2]}[name]
        assert (archive.config_feat[:, 16:] == 0).all(), "no bounds of the input, as in the official archives"
        rows = {row.tobytes() for row in archive.config_feat}
        assert len(rows) == archive.num_candidates and (len(rows) == 1) == (count == 1)
    assert archive.config_runtime_normalizers[0] == 1000, "940 cycles of a v3"
