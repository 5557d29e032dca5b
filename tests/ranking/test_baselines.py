"""The cost model as a ranker: in every stage, without training data, and refusing what it does not read."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.hlo.programs import small_cnn
from tests.simulated_data import simulated, simulated_archive
from tests.small_datasets import LAYOUT, TILE, preprocess_here
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.datasets.batch_plan import BATCH_SIZES
from tpugraphs_polynormer.ranking.baselines import CostScorer, RandomScorer
from tpugraphs_polynormer.ranking.calibration import read_calibration
from tpugraphs_polynormer.ranking.evaluate import evaluate_runs, format_evaluations
from tpugraphs_polynormer.ranking.export import export_ranker
from tpugraphs_polynormer.ranking.metrics import rank_candidates
from tpugraphs_polynormer.ranking.own_program import rank_program
from tpugraphs_polynormer.ranking.predict import plan_predictions, predict
from tpugraphs_polynormer.ranking.report.page import write_report
from tpugraphs_polynormer.ranking.runs import load_ranker
from tpugraphs_polynormer.ranking.submission import prediction_path, read_prediction
from tpugraphs_polynormer.ranking.task import train_ranking
from tpugraphs_polynormer.ranking.traced_steps import trace_ranking_step
from tpugraphs_polynormer.training.run_directory import RunDirectory

CPU = tf.distribute.OneDeviceStrategy("CPU:0")


def cost_config(name: str = LAYOUT, *overrides: str):
    return load_config(None, [f"data.collection={name}", "model.encoder=none", *overrides])


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Trained runs that tests share and must not change."""
    return make_trained()


@pytest.mark.parametrize("name", [LAYOUT, TILE])
def test_scores_are_the_negated_totals_in_any_blocks(name, monkeypatch):
    split = simulated(name).split("valid")
    total = split.physics(0).total(split.read_codes(0, np.arange(split.graphs[0].num_candidates)))
    np.testing.assert_array_equal(CostScorer().score_graph(split, 0), -total)
    monkeypatch.setattr("tpugraphs_polynormer.ranking.baselines._BLOCK", 3)
    np.testing.assert_allclose(CostScorer().score_graph(split, 0, np.array([4, 1, 2, 0])), -total[[4, 1, 2, 0]])
    assert RandomScorer().score_graph(split, 0).shape == total.shape


@pytest.mark.parametrize("name", [LAYOUT, TILE])
def test_every_stage_ranks_by_the_cost_model(name, trained: Trained, tmp_path):
    run = tmp_path / "run"
    result = train_ranking(cost_config(name), trained.data, run, strategy=CPU)
    assert result["epochs"] == 1 and result["best"]["loss"] == 0.0
    assert result["best"]["metrics"]["valid"]["contest_score"] > 0.8, "simulated runtimes are its own, up to noise"
    assert train_ranking(cost_config(name), trained.data, run, strategy=CPU) == result  # done before

    (evaluation,) = evaluate_runs([run], trained.data, split="valid")
    assert evaluation.graphs == evaluation.baselines["cost model"]
    assert all(graph.opa == 0.5 for graph in evaluation.baselines["random order"])
    summary = json.loads((run / "evaluation-valid.json").read_text())
    assert summary["baselines"]["cost model"] == summary["overall"]
    table = format_evaluations([evaluation]).splitlines()
    assert [line.split()[0] for line in table] == ["run", "run", "cost", "random"]
    assert table[1].split()[2:] == table[2].split()[3:]

    plan = plan_predictions([run], trained.data, tmp_path / "predictions", split="test", average="rank")
    assert predict(plan) == 3
    split = load_ranker(run, trained.data).collection.split("test")
    for number, task in enumerate(plan.tasks):
        ranking, scores = read_prediction(prediction_path(plan.output, task.id))
        expected = np.empty(len(scores))
        expected[split.read_column(number, "rows")] = CostScorer().score_graph(split, number)
        assert scores == pytest.approx(expected, abs=1e-5)
        assert ranking.tolist() == rank_candidates(scores).tolist()
    page = write_report([run], trained.data, tmp_path / "report.html").read_text()
    assert "cost model</th>" in page and "encoder: none" in page


def test_needs_no_training_data(tmp_path):
    folder = tmp_path / "in/npz/layout/xla/random/valid"
    folder.mkdir(parents=True)
    for entry in simulated(LAYOUT).split("valid").graphs:
        (folder / f"{entry.name}.npz").symlink_to(simulated_archive(LAYOUT, "valid", entry.name))
    preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT)
    train_ranking(cost_config(), tmp_path / "out", tmp_path / "run", strategy=CPU)
    evaluate_runs([tmp_path / "run"], tmp_path / "out", split="valid", output=tmp_path / "elsewhere")
    run = RunDirectory.open(tmp_path / "run")
    assert read_calibration(run) is None  # only an evaluation that writes to the run does that
    (evaluation,) = evaluate_runs([tmp_path / "run"], tmp_path / "out", split="valid")
    assert evaluation.summarize()["overall"]["tau"] > 0.8
    calibration = read_calibration(run)
    assert calibration.num_graphs == len(evaluation.graphs) and calibration.collections == (LAYOUT,)
    mean, low, high = calibration.estimate(1.0, 0.1)  # the runtimes are the cost model's, with little noise
    assert mean == pytest.approx(0.1, rel=0.1) and 0 < low < mean < high
    ranking = rank_program(tmp_path / "run", small_cnn(), budget=20)
    assert len(ranking.order) == 20 and ranking.novelty.unseen_opcodes == ()
    assert ranking.best[0].beside_default.gain.percent >= 0


@pytest.mark.slow
@pytest.mark.parametrize("override", ["model.physics=residual", "model.encoder=none"])
def test_an_exported_model_takes_physics_in_its_requests(override, trained: Trained, tmp_path):
    from tests.ranking.test_export import serialize_request
    from tpugraphs_polynormer.ranking.export import PHYSICS_NAMES

    if "none" in override:
        config = cost_config()
    else:
        small = ("model.hidden_dim=8", "model.num_heads=2", "model.num_local_layers=1", "training.epochs=1")
        steps = ("training.steps_per_epoch=2", "training.steps_per_execution=1", "data.candidates_per_graph=4")
        config = load_config(None, [f"data.collection={LAYOUT}", *small, *steps, override])
    train_ranking(config, trained.data, tmp_path / "run", strategy=CPU)
    folder = export_ranker(tmp_path / "run", trained.data, tmp_path / "1")
    task = load_ranker(tmp_path / "run", trained.data)
    split, candidates = task.collection.split("test"), np.array([0, 5, 3])
    example = tf.train.Example.FromString(serialize_request(task.collection, "test", 1, candidates))
    known = split.physics(1).describe(split.read_codes(1, candidates))
    for name, values in zip(PHYSICS_NAMES, known.flat, strict=True):
        example.features.feature[name].float_list.value[:] = values.ravel().tolist()
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    found = serve(examples=tf.constant([example.SerializeToString()]))["scores"][0]
    expected = task.make_scorer().score_graph(split, 1, candidates)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.hidden_dim=32", ["model.hidden_dim", "an encoder"]),
        ("model.physics=residual", ["model.physics", "an encoder"]),
        ("model.fusion=early", ["model.fusion", "an encoder"]),
        ("training.epochs=3", ["training.epochs", "model.encoder is none"]),
        ("loss.mse=1", ["loss.mse", "model.encoder is none"]),
        ("data.candidates_per_graph=4", ["data.candidates_per_graph", "model.encoder is none"]),
    ],
)
def test_fields_that_the_cost_model_does_not_read_are_refused(override, words):
    with pytest.raises(ConfigError) as error:
        cost_config(LAYOUT, override)
    for word in words:
        assert word in str(error.value)


def test_it_has_no_step_to_compile():
    with pytest.raises(ConfigError, match="has no step to compile"):
        trace_ranking_step(cost_config(), dict.fromkeys(BATCH_SIZES, 2))


def test_fields_that_it_reads_are_taken():
    assert cost_config(TILE, "training.validation_candidates=5", "seed=3").training.validation_candidates == 5
    with pytest.raises(ConfigError, match="one of none, features, residual"):
        load_config(None, ["model.physics=some"])
