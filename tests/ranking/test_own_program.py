"""Ranking of a user's own program with a trained run: order, novelty, printed text, errors."""

import dataclasses
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking.test_calibration import simple
from tests.ranking_data import TILE, ranking_datasets, scratch_folder, small_config
from tests.small_datasets import LAYOUT, preprocess_here
from tpugraphs_polynormer.datasets.statistics import measure_moments, summarize_moments
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo import from_tf
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.module import Computation, Instruction, Module, Shape
from tpugraphs_polynormer.hlo.text_writer import serialize_text
from tpugraphs_polynormer.ranking.calibration import CALIBRATION_NAME
from tpugraphs_polynormer.ranking.own_program import rank_program, score_layouts
from tpugraphs_polynormer.ranking.program_ranking import ProgramRanking, measure_novelty
from tpugraphs_polynormer.ranking.task import train_ranking
from tpugraphs_polynormer.simulator.write import simulate
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError


def matrix_product() -> Module:
    """A module of two parameters, their dot and its reshape."""
    instructions = (
        Instruction(id=1, opcode="parameter", name="a", shape=Shape(11, (64, 32), (), (1, 0))),
        Instruction(id=2, opcode="parameter", name="b", shape=Shape(11, (32, 256), (), (1, 0)), parameter_number=1),
        Instruction(id=3, opcode="dot", name="dot.3", shape=Shape(11, (64, 256), (), (1, 0)), operand_ids=(1, 2)),
        Instruction(id=4, opcode="reshape", name="out", shape=Shape(11, (8, 8, 256), (), (2, 1, 0)), operand_ids=(3,)),
    )
    return Module("product", (Computation(1, "main", 4, instructions),), 1)


@pytest.fixture(scope="module")
def run_dir():
    path = scratch_folder() / "run"
    train_ranking(small_config(), ranking_datasets(), path, strategy=tf.distribute.OneDeviceStrategy("CPU:0"))
    return path


@pytest.fixture(scope="module")
def calibrated(run_dir):
    """A copy of the run with a calibration made by hand."""
    path = scratch_folder() / "calibrated"
    shutil.copytree(run_dir, path)
    RunDirectory.open(path).write_json(CALIBRATION_NAME, dataclasses.asdict(simple()))
    return path


def check_ranking(ranking: ProgramRanking, most: int) -> None:
    """Asserts that each candidate occurs once, by descending score, and that scores are finite and not all equal."""
    count = len(ranking.order)
    assert count <= most and np.array_equal(np.sort(ranking.order), np.arange(count))
    assert ranking.scores.shape == (count,) and np.isfinite(ranking.scores).all()
    assert (np.diff(ranking.scores[ranking.order]) <= 0).all()
    assert len(np.unique(ranking.candidates, axis=0)) == count > 2
    assert len(np.unique(ranking.scores.round(5))) > count / 2


def test_candidates_are_ordered_by_score_and_the_default_is_placed(run_dir):
    ranking = rank_program(run_dir, matrix_product(), budget=40, seed=1, top=2)
    assert ranking.candidates.shape[1:] == (2, 18)
    check_ranking(ranking, 40)
    assert ranking.order[ranking.default_rank - 1] == 0 and not ranking.indices[0].any()
    again = rank_program(run_dir, matrix_product(), budget=40, seed=1, top=2)
    assert np.array_equal(ranking.scores, again.scores)
    text = ranking.describe()
    assert f"rank {ranking.default_rank} of {len(ranking.order)}" in text
    assert f"\n1. candidate {ranking.order[0]}: " in text and "\n3. candidate" not in text
    for each in ranking.best:
        assert each.beside_default.difference == pytest.approx(ranking.scores[each.number] - ranking.scores[0])


def test_own_candidates_are_scored_and_illegal_ones_are_named(run_dir):
    ranking = rank_program(run_dir, matrix_product(), budget=20, top=1)
    scores = score_layouts(run_dir, matrix_product(), ranking.candidates[[3, 0, 3]])
    np.testing.assert_allclose(scores, ranking.scores[[3, 0, 3]], atol=1e-4)
    wrong = ranking.candidates[:2].copy()
    wrong[1, 0, :2] = 0
    with pytest.raises(HloError, match=r"candidate 1, dot 'dot\.3': found output \{0,0\} .*, expected one of: output"):
        score_layouts(run_dir, matrix_product(), wrong)
    with pytest.raises(HloError, match=r"shape \(2, 18\), expected \(candidates, 2, 18\)"):
        score_layouts(run_dir, matrix_product(), wrong[0])


def test_calibrated_runs_give_percent(calibrated, run_dir):
    ranking = rank_program([calibrated], matrix_product(), budget=20, top=2)
    assert all(each.beside_default.gain is not None for each in ranking.best)
    assert ranking.members[0].origin == "unknown" and "% interval of the gain" in ranking.describe()
    both = rank_program([calibrated, run_dir], matrix_product(), budget=20, top=1)  # one of them has none
    assert both.best[0].beside_default.gain is None and str(run_dir) in both.facts["unit"]


def test_novelty_counts_unseen_opcodes_and_values_outside_the_range():
    arrays = featurize_module(matrix_product())
    statistics = summarize_moments(measure_moments(arrays.node_feat, arrays.node_opcode))
    known = measure_novelty(arrays.node_feat, arrays.node_opcode, statistics)
    assert (known.unseen_opcodes, known.unseen_share, known.outside_share) == ((), 0.0, 0.0)
    features, opcodes = arrays.node_feat.copy(), arrays.node_opcode.copy()
    features[0, 21] = 1e6
    opcodes[1] = 26
    found = measure_novelty(features, opcodes, statistics)
    assert found.unseen_opcodes == ("convolution",)
    assert (found.unseen_share, found.outside_share) == (0.25, 0.25)
    assert "25.0 %" in str(found)


def test_programs_without_choices_and_tile_runs_are_refused(run_dir, tmp_path):
    product = matrix_product()
    parameters = dataclasses.replace(product.computations[0], root_id=2)
    parameters = dataclasses.replace(parameters, instructions=parameters.instructions[:2])
    with pytest.raises(HloError, match="nothing to choose"):
        rank_program(run_dir, dataclasses.replace(product, computations=(parameters,)))
    tile = tmp_path / "tile"
    train_ranking(small_config(TILE), ranking_datasets(), tile, strategy=tf.distribute.OneDeviceStrategy("CPU:0"))
    with pytest.raises(RunError, match="needs a layout run"):
        rank_program(tile, product)


def test_the_command_prints_the_best_of_an_hlo_text_and_writes_all(calibrated, run_dir, tmp_path):
    program = tmp_path / "program.txt"
    program.write_text(serialize_text(matrix_product()))
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", "rank", str(program), "--run-dir", str(run_dir)]
    options = [str(calibrated), "--budget", "30", "--top", "3", "--output", str(tmp_path / "ranking.json")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    found = json.loads((tmp_path / "ranking.json").read_text())
    assert [each["run"] for each in found["runs"]] == [str(run_dir), str(calibrated)]
    assert [each["rank"] for each in found["best"]] == [1, 2, 3] and len(found["best"][0]["scores"]) == 2
    assert f"rank {found['default_rank']} of {found['num_candidates']}" in done.stdout
    assert f"3. candidate {found['best'][2]['candidate']}" in done.stdout
    assert "% of the program's nodes" in done.stdout and "tpugraphs evaluate" in done.stdout
    expected = rank_program([run_dir, calibrated], matrix_product(), budget=30, top=1)
    np.testing.assert_allclose(np.mean(found["best"][0]["scores"]), expected.scores.max(), atol=1e-6)
    program.write_bytes(b"\xff" * 50)
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert "program.txt" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_tf_function_goes_to_a_ranking(run_dir):
    weights = tf.random.normal([32, 128])

    def layer(inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(inputs @ weights)

    check_ranking(rank_program(run_dir, from_tf(layer, tf.zeros([8, 32])), budget=20), 20)


@pytest.fixture(scope="module")
def simulated_run():
    """A short run on the smallest simulated collection."""
    folder = scratch_folder()
    simulate(folder / "sim", "tiny", 0)
    preprocess_here(folder / "sim", folder / "data", LAYOUT)
    config = small_config(LAYOUT, "training.steps_per_epoch=10")
    train_ranking(config, folder / "data", folder / "run", strategy=tf.distribute.OneDeviceStrategy("CPU:0"))
    return folder / "run"


@pytest.mark.slow
def test_programs_go_to_a_ranking_by_a_model_of_simulated_data(simulated_run):
    pytest.importorskip("jax")
    from tests.hlo.jax_programs import small_cnn, small_transformer
    from tpugraphs_polynormer.hlo import from_jax

    modules = [from_jax(function, *args) for function, args in (small_cnn(), small_transformer())]
    modules.append(from_tf(lambda inputs: tf.nn.relu(inputs @ tf.ones([32, 128])), tf.zeros([8, 32])))
    for module in modules:
        opcodes = {each.opcode for computation in module.computations for each in computation.instructions}
        assert opcodes & {"convolution", "dot"}
        ranking = rank_program(simulated_run, module, budget=50)
        check_ranking(ranking, 50)
        assert ranking.members[0].origin == "simulated, not measured"
