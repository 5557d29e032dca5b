"""Restored runs, ensembles, prediction files, and resuming."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking_data import ranking_datasets, small_config
from tests.small_datasets import LAYOUT, TILE
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.config.schema import NodeConfig
from tpugraphs_polynormer.ranking.evaluate import evaluate_runs, format_csv, format_evaluations
from tpugraphs_polynormer.ranking.metrics import rank_candidates, summarize
from tpugraphs_polynormer.ranking.predict import average_scores, plan_predictions, predict
from tpugraphs_polynormer.ranking.runs import expand_runs, group_runs, label_runs, load_ranker
from tpugraphs_polynormer.ranking.scorer import choose_candidates, evaluate_split
from tpugraphs_polynormer.ranking.submission import expected_rows, prediction_path, read_prediction, read_rankings
from tpugraphs_polynormer.ranking.task import train_ranking
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Trained runs that tests share and must not change."""
    return make_trained()


def test_restored_ranker_has_the_logged_validation_metrics(trained: Trained) -> None:
    task = load_ranker(trained.layout, trained.data)
    assert task.phase == "global"
    valid = task.collection.split("valid")
    graphs = evaluate_split(
        task.make_scorer(), valid, collection=LAYOUT, candidates=choose_candidates(valid, most=1000)
    )
    logged = RunDirectory.open(trained.layout).read_json("result.json")["best"]["metrics"]["valid"]
    assert summarize(graphs)["overall"] == pytest.approx(logged, abs=1e-6)


@pytest.mark.slow
def test_a_run_that_ended_in_the_warm_up_is_restored_in_its_phase(tmp_path) -> None:
    """The phase is that of the best checkpoint's epoch, not the default of the model."""
    config = small_config(LAYOUT, "training.local_epochs=1", "training.epochs=1", "training.steps_per_epoch=1")
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    train_ranking(config, ranking_datasets(), tmp_path, strategy=strategy)
    assert load_ranker(tmp_path, ranking_datasets()).phase == "global"
    best = tmp_path / "checkpoints" / "best"
    for path in best.glob("ckpt-2.*"):
        path.rename(best / path.name.replace("ckpt-2", "ckpt-1"))
    (best / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\n')
    assert load_ranker(tmp_path, ranking_datasets()).phase == "local"


@pytest.mark.parametrize("missing", ["checkpoints", "config.yaml"])
def test_incomplete_runs_are_refused(trained: Trained, tmp_path, missing: str) -> None:
    run = shutil.copytree(trained.layout, tmp_path / "run")
    target = run / missing
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    with pytest.raises(RunError, match="tpugraphs train"):
        load_ranker(run, trained.data)


def test_a_checkpoint_of_another_model_is_refused(trained: Trained, tmp_path) -> None:
    run = shutil.copytree(trained.layout, tmp_path / "run")
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("hidden_dim: 8", "hidden_dim: 16"))
    with pytest.raises(RunError, match="train again"):
        load_ranker(run, trained.data)


def test_runs_of_another_task_are_refused(tmp_path) -> None:
    RunDirectory.start(tmp_path, NodeConfig())
    with pytest.raises(RunError, match="expected ranking"):
        group_runs([tmp_path])


def test_a_folder_of_seeds_stands_for_its_runs(trained: Trained, tmp_path) -> None:
    for seed in (10, 2):
        shutil.copytree(trained.layout, tmp_path / f"seed-{seed}")
    assert expand_runs([tmp_path, trained.tile]) == [tmp_path / "seed-2", tmp_path / "seed-10", trained.tile]
    with pytest.raises(RunError, match="more than once"):
        expand_runs([tmp_path, tmp_path / "seed-2"])


def test_labels_name_the_parent_only_where_needed(tmp_path) -> None:
    paths = [tmp_path / "a" / "seed-0", tmp_path / "b" / "seed-0", tmp_path / "tile"]
    assert label_runs(paths) == ["a-seed-0", "b-seed-0", "tile"]


def test_averages_by_hand() -> None:
    scores = [np.array([1.0, 2.0, 3.0]), np.array([100.0, 0.0, 100.0])]
    assert average_scores(scores[:1], "rank").tolist() == [1.0, 2.0, 3.0]
    assert average_scores(scores, "rank").tolist() == [(1 + 2.5) / 2, (2 + 1) / 2, (3 + 2.5) / 2]
    first, second = np.sqrt(1.5), 1 / np.sqrt(2)  # standardized: (-first, 0, first) and (second, -2 second, second)
    expected = [(second - first) / 2, -second, (second + first) / 2]
    assert average_scores(scores, "score") == pytest.approx(expected)
    assert average_scores([np.ones(3), np.array([3.0, 1.0, 2.0])], "score").argmax() == 0


def test_predictions_rank_every_test_graph_and_resume(trained: Trained, tmp_path) -> None:
    runs, output = [trained.layout, trained.tile], tmp_path / "predictions"
    plan = plan_predictions(runs, trained.data, output, split="test", average="rank")
    assert predict(plan) == 6
    rows = {row.id: row for row in expected_rows(trained.tree)}
    rankings = read_rankings(output)
    assert set(rankings) == set(rows) == {task.id for task in plan.tasks}
    for row_id, ranking in rankings.items():
        assert sorted(ranking) == list(range(rows[row_id].num_candidates))
    first = prediction_path(output, plan.tasks[0].id)
    whole, untouched = first.read_bytes(), prediction_path(output, plan.tasks[1].id)
    stamp = untouched.stat().st_mtime_ns
    first.write_bytes(whole[:50])
    again = plan_predictions(runs, trained.data, output, split="test", average="rank")
    assert predict(again) == 1
    assert first.read_bytes() == whole
    assert untouched.stat().st_mtime_ns == stamp


def test_predictions_do_not_depend_on_what_was_scored_before(trained: Trained, tmp_path) -> None:
    plan = plan_predictions([trained.layout], trained.data, tmp_path / "a", split="test", average="rank")
    predict(plan)
    turned = plan_predictions([trained.layout], trained.data, tmp_path / "b", split="test", average="rank")
    predict(dataclasses.replace(turned, tasks=turned.tasks[::-1]))
    for task in plan.tasks:
        assert (
            prediction_path(plan.output, task.id).read_bytes() == prediction_path(turned.output, task.id).read_bytes()
        )


def test_an_ensemble_averages_its_members(trained: Trained, tmp_path) -> None:
    members = []
    for run in (trained.layout, trained.layout_seed_1):
        plan = plan_predictions([run], trained.data, tmp_path / run.name, split="test", average="score")
        predict(plan)
        members.append(plan)
    both = plan_predictions(
        [trained.layout, trained.layout_seed_1], trained.data, tmp_path / "both", split="test", average="score"
    )
    predict(both)
    for task in both.tasks:
        alone = [read_prediction(prediction_path(plan.output, task.id))[1].astype(np.float64) for plan in members]
        ranking, scores = read_prediction(prediction_path(both.output, task.id))
        assert scores == pytest.approx(average_scores(alone, "score"), abs=1e-4)
        assert ranking.tolist() == rank_candidates(scores).tolist()


def test_predictions_of_other_weights_are_not_mixed(trained: Trained, tmp_path) -> None:
    plan_predictions([trained.layout], trained.data, tmp_path, split="test", average="rank")
    plan_predictions([trained.layout], trained.data, tmp_path, split="test", average="score")  # one run: no average
    with pytest.raises(RunError, match="other runs"):
        plan_predictions([trained.layout_seed_1], trained.data, tmp_path, split="test", average="rank")
    with pytest.raises(RunError, match="other runs"):
        plan_predictions([trained.layout], trained.data, tmp_path, split="valid", average="rank")


def test_evaluation_writes_csv_and_summary(trained: Trained, tmp_path) -> None:
    results = evaluate_runs([trained.layout, trained.tile], trained.data, split="valid", output=tmp_path)
    for result, name, collection in zip(results, ("layout", "tile"), (LAYOUT, TILE), strict=True):
        lines = (tmp_path / name / "evaluation-valid.csv").read_text().splitlines()
        assert len(lines) == 1 + len(result.graphs) == 3
        assert lines[1].startswith(f"{collection},{result.graphs[0].graph},")
        summary = json.loads((tmp_path / name / "evaluation-valid.json").read_text())
        mean = np.mean([graph.contest_score for graph in result.graphs])
        assert summary["collections"][collection]["contest_score"] == pytest.approx(mean)
        assert summary["protocol"] == "all candidates"
    formula = dataclasses.replace(results[0].graphs[0], graph='=HYPERLINK("x")')
    assert format_csv([formula]).splitlines()[1].startswith(f"{LAYOUT},\"'=HYPERLINK(")  # text in a spreadsheet too
    table = format_evaluations(results).splitlines()
    overall = np.mean([np.mean([graph.contest_score for graph in result.graphs]) for result in results])
    (mean,) = (line for line in table if line.startswith("mean"))
    assert float(mean.split()[-1]) == pytest.approx(overall, abs=1e-4)
    assert sum(line.startswith("cost model") for line in table) == sum("random order" in line for line in table) == 3


def test_official_indices_choose_the_candidates(trained: Trained, tmp_path) -> None:
    task = load_ranker(trained.layout, trained.data)
    valid = task.collection.split("valid")
    chosen = {entry.name: [3, 1, 4] for entry in valid.graphs}
    (tmp_path / "xla_random.json").write_text(json.dumps(chosen))
    (result,) = evaluate_runs([trained.layout], trained.data, split="valid", indices_dir=tmp_path, output=tmp_path)
    assert result.protocol == "official indices"
    assert [graph.num_candidates for graph in result.graphs] == [3, 3]
