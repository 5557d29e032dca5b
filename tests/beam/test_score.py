"""The Beam job writes the same bytes as the local command, and notices results that a runner loses."""

import dataclasses

import pytest

from tests.trained import Trained, make_trained
from tpugraphs_polynormer.beam import score
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.predict import PredictionPlan, plan_predictions, predict
from tpugraphs_polynormer.ranking.submission import prediction_path

IN_PROCESS = ["--runner=FnApiRunner"]


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Trained runs that tests share and must not change."""
    return make_trained()


def read_files(plan: PredictionPlan) -> dict[str, bytes]:
    """The bytes of every prediction by id."""
    return {task.id: prediction_path(plan.output, task.id).read_bytes() for task in plan.tasks}


@pytest.fixture(scope="module")
def plans(trained: Trained, tmp_path_factory):
    """A function that plans predictions of an ensemble and of a single run to a new folder, and the expected files."""

    def plan_into(name: str) -> PredictionPlan:
        runs = [trained.layout, trained.layout_seed_1, trained.tile]
        return plan_predictions(
            runs, trained.data, tmp_path_factory.mktemp(name) / "out", split="test", average="score"
        )

    local = plan_into("local")
    predict(local)
    return plan_into, read_files(local)


def test_same_bytes_in_one_process(plans) -> None:
    plan_into, expected = plans
    plan = plan_into("beam")
    assert score.run(plan, IN_PROCESS) == len(expected) == 6
    assert read_files(plan) == expected
    assert score.run(plan, IN_PROCESS) == 0


@pytest.mark.slow
def test_same_bytes_in_two_processes(plans) -> None:
    plan_into, expected = plans
    plan = plan_into("processes")
    first = plan.tasks[0]
    predict(dataclasses.replace(plan, tasks=(first,)))  # the job resumes after this graph
    arguments = [*IN_PROCESS, "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    assert score.run(plan, arguments) == len(expected) - 1
    assert read_files(plan) == expected


@pytest.mark.parametrize(("scored", "what"), [([0, 1, 2, 3, 4], "lost"), ([0, 1, 2, 3, 4, 5, 5], "repeated")])
def test_the_last_step_counts(plans, scored: list[int], what: str) -> None:
    plan_into, _ = plans
    plan = plan_into("counts")
    predict(plan)
    ids = [plan.tasks[place].id for place in scored]
    with pytest.raises(RuntimeError, match=rf"{what} (graphs )?\['"):
        score._count(None, plan, plan.tasks, ids)
    assert score._count(None, plan, plan.tasks, [task.id for task in plan.tasks]) == 6


def test_a_file_that_is_not_there_is_noticed(plans) -> None:
    plan_into, _ = plans
    plan = plan_into("unwritten")
    with pytest.raises(RuntimeError, match="no whole file"):
        score._count(None, plan, plan.tasks, [task.id for task in plan.tasks])


def test_a_runner_that_does_nothing_is_an_error(plans, monkeypatch) -> None:
    plan_into, _ = plans
    monkeypatch.setattr(score, "run_pipeline", lambda *arguments: None)
    with pytest.raises(UserError, match="without predictions"):
        score.run(plan_into("idle"), IN_PROCESS)
