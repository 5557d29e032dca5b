"""Every benchmark runs with --quick in a new process and prints its table."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REAL = {
    "box",
    "epoch_against_torch",
    "featurize",
    "nodes",
    "program_statistics",
    "real_alexnet",
    "simulation_fidelity",
    "transfer",
    "tune",
}
# Benchmark -> the beginnings of the lines of its table, without numbers.
TABLES = {
    "attention": ["| formulation |", "|---", "| fused |", "| segments |", "| unsorted |", "| xla |"],
    "epoch_against_torch": ["| | local, s | global, s |", "|---", "| ours |"],
    "faults": [
        "| fault | cases | clean |",
        "|---",
        *(
            "| kill -9 of simulate | 2 | 2 |",
            "| damaged npz archives | 100 | 100 |",
            "| mutated protobufs | 100 | 100 |",
            "| mutated HLO texts | 100 | 100 |",
        ),
        *("| malicious tars and zips |", "| two writers: simulate | 1 | 1 |", "| full disk: featurize | 1 | 1 |"),
    ],
    "featurize": ["read protobuf ", "read text ", "features ", "protobuf to arrays ", "text to arrays "],
    "large_graph": ["| phase | nodes |", "|---", "| local | 2,449 |", "| global | 2,449 |"],
    "nodes": [
        "| data set | model | test, per cent |",
        "|---",
        *("| minesweeper | Polynormer |", "| minesweeper | GCN, tuned |"),
    ],
    "preprocess": [
        "| | ours | simple way |",
        "|---",
        *("| archives read", "| prepared", "| peak memory while preparing", "| on disk", "| first batch"),
        *("| peak memory while feeding", "| draw 64 candidates"),
    ],
    "ranking_quality": [
        "| collection | model | tau |",
        "|---",
        *("| tile:xla | random order |", "| tile:xla | Polynormer |"),
        *("| layout:xla:random | random order |", "| layout:xla:random | Polynormer |", "| mean | Polynormer |"),
    ],
    "ranking_step": [
        "layout, train: 4 candidates",
        *("official", "graphsage naive", "graphsage early"),
        *("polynormer-local plain", "polynormer-local naive", "polynormer-local early"),
        *("polynormer naive", "polynormer early", "polynormer late", "the same, no config-node encoder"),
        "layout, score: 20 candidates",
        *("official", "graphsage naive", "graphsage early"),
        *("polynormer-local plain", "polynormer-local naive", "polynormer-local early"),
        *("polynormer naive", "polynormer early", "polynormer late", "the same, no config-node encoder"),
        "tile, score: 100 candidates",
        *("official", "graphsage early", "polynormer early", "polynormer late"),
    ],
    "real_alexnet": [
        "| model | tau, all |",
        "|---",
        *("| ridge on one-hot candidates |", "| ridge on pairs of them |"),
        *("| Polynormer, seed 0 |", "| Polynormer, seed 1 |", "| mean of their ranks |", "| a perfect model |"),
    ],
    "rehearsal": [
        "| collection | stage |",
        "|---",
        *(f"| layout:xla:random | {stage} |" for stage in ("simulate", "preprocess", "train", "evaluate", "predict")),
        *("| all | submit |", "| all | check |"),
        "| dataset | split |",
        "|---",
        *(f"| layout:xla:random | {split} | 1 |" for split in ("train", "valid", "test")),
    ],
    "checksums": [" unchecked:", "   checked:", "a step, checked against unchecked:"],
    "tpu_step": ["| step | chip |", "|---", "| demo/tile_xla | v4:2x2x1 | yes |"],
    "simulation_fidelity": ["real graph ", "alexnet_train_batch_32 ", "unet_3d.4x4.bf16 ", "unet3d train", "copy.24"],
    "program_statistics": [
        "| statistic | real xla |",
        "|---",
        *("| get-tuple-element |", "| constant |", "| distance of opcodes |", "| rank 5 |", "| distance of ranks |"),
        *("| bf16 |", "| distance of element types |", "|---", "| alexnet_train_batch_32 |"),
        "opcodes of the real archives: ",
    ],
    "label_fidelity": ["alexnet_b", "resnet_b", "unet2d_b", "unet3d_b", "bert_b", "lstm_b", "recommender_b"],
    "box": [
        "2 members, trained on runtimes of the simulated TPU",
        *("| simulated valid split | tau |", "|---", "| layout:xla:default |", "| layout:nlp:random |"),
        *("| real graph | tau |", "|---", "| alexnet |", "| unet_3d_random |"),
    ],
    "own_programs": ["| program | config nodes |", "|---", "| the CNN's gradients, HLO text dump |"],
    "ablation": ["| option | tau |", "|---", "| base |", "| ema |"],
    "search": [
        "| score | found by |",
        "|---",
        *("| simulator | search |", "| simulator | drawn, random |", "| simulator | search / best drawn |"),
        *("| simulator, any default | search |", "| simulator, any default | search / best drawn |"),
        *("| simulator, hidden layouts | search |", "| simulator, hidden layouts | search / best drawn |"),
        "the default: ",
    ],
    "transfer": [
        "| trained on, physics | alexnet |",
        "|---",
        *("| cost model |", "| random order |", "| simulated, none |", "| simulated, residual |"),
        "| trained on, physics | top 5 score |",
        "|---",
        *("| cost model |", "| random order |", "| simulated, none |", "| simulated, residual |"),
    ],
    "tune": [
        "alexnet_train_batch_32: 400 distinct candidates",
        "| search | until within 0.1 % |",
        "|---",
        *("| random search |", "| ridge regression |", "| tune, no prior |", "| tune, cost model |"),
        "| search, best found after |",
        "|---",
        *("| random search |", "| ridge regression |", "| tune, no prior |", "| tune, cost model |"),
    ],
}
FAST = {"epoch_against_torch", "featurize", "nodes", "program_statistics", "simulation_fidelity", "tune"}


def test_every_benchmark_is_run_here():
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    assert scripts == set(TABLES)


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TABLES]
)
def test_it_prints_its_table(name, request, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if name in ("tpu_step", "own_programs"):
        pytest.importorskip("libtpu", reason="the extra tpu-compiler is not installed")
    if name in REAL:
        environment["TPUGRAPHS_REAL_DATA"] = str(request.getfixturevalue("real_data"))
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = iter(ended.stdout.splitlines())
    for expected in TABLES[name]:
        found = next((line for line in lines if line.startswith(expected)), None)
        assert found is not None, f"no line {expected!r} where it belongs in\n{ended.stdout}\n{ended.stderr[-2000:]}"
        is_head = found.startswith(("|---", "| dataset |", "| search", TABLES[name][0]))
        assert is_head or re.search(r"\d", found.removeprefix(expected)), f"{found!r} holds no number"
    assert not list(tmp_path.iterdir()), "--quick leaves nothing behind"
