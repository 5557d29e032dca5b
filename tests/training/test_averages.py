"""Moving averages of weights: the recursion in numpy, what is evaluated and kept, resuming, devices, XLA."""

import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.models.ranking.test_model import STATIC, config_of, learner_of
from tests.ranking_data import LAYOUT, first_batch, ranking_datasets, scratch_folder, small_config
from tests.training.test_trainer import CHEAP, DROPOUT, assert_same_bytes, logged, train_here, weights
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.datasets.batch_plan import BATCH_SIZES
from tpugraphs_polynormer.ranking.runs import load_ranker
from tpugraphs_polynormer.ranking.traced_steps import trace_ranking_step
from tpugraphs_polynormer.training.averages import WeightAverages
from tpugraphs_polynormer.training.checkpoints import Checkpoints

DECAY = 0.6
EMA = f"training.ema_decay={DECAY}"
EPOCHS = ("training.steps_per_epoch=1", "training.epochs=5", *DROPOUT)


def average(values: list[np.ndarray]) -> np.ndarray:
    """The recursion of the docstring, from the initial value on."""
    result = values[0].astype(np.float64)
    for step, value in enumerate(values[1:]):
        decay = min(DECAY, (1 + step) / (10 + step))
        result = decay * result + (1 - decay) * value
    return result


def test_the_recursion_by_hand_and_the_exchange() -> None:
    dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = tf.keras.Sequential([dense])
    model.build([None, 1])
    averages = WeightAverages(model, 0.2)
    for value in (1.0, 2.0, 3.0):
        dense.kernel.assign([[value]])
        averages.update()
    # The decays are 1/10, 2/11 and 0.2 (3/12 is above): 0.9; 2/11 0.9 + 9/11 2 = 1.8; 0.2 1.8 + 0.8 3 = 2.76.
    np.testing.assert_allclose(averages.values[0].numpy(), [[2.76]], rtol=1e-6)
    with averages.in_model():
        np.testing.assert_allclose(dense.kernel.numpy(), [[2.76]], rtol=1e-6)
        np.testing.assert_array_equal(averages.values[0].numpy(), [[3.0]])
    np.testing.assert_array_equal(dense.kernel.numpy(), [[3.0]])
    np.testing.assert_allclose(averages.values[0].numpy(), [[2.76]], rtol=1e-6)


@functools.cache
def plain_run() -> tuple[Path, list[dict[str, np.ndarray]]]:
    """A run without averages, and its weights before the first step and after each."""
    folder, kept = scratch_folder(), []
    train_here(folder / "none", "training.learning_rate=0", *EPOCHS[:1], "training.epochs=1", *DROPOUT)
    kept.append(weights(folder / "none"))
    save = Checkpoints.save

    def keep(self, at: int) -> None:
        save(self, at)
        if self._folder.name == "latest":
            kept.append(weights(folder / "run"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", keep)
        train_here(folder / "run", *EPOCHS)
    return folder / "run", kept


@functools.cache
def averaged_run() -> tuple[Path, dict]:
    folder = scratch_folder()
    return folder, train_here(folder, *EPOCHS, EMA)


def weights_and_averages(run_dir: Path, name: str) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """The floating-point variables of the model by name, and the averages, sorted so that both can be compared."""
    found = weights(run_dir, name)
    model = {key: each for key, each in found.items() if key.startswith("model/") and each.dtype == np.float32}
    return model, [each for key, each in found.items() if key.startswith("averages/values/")]


def as_set(arrays) -> set[bytes]:
    return {np.round(np.asarray(each, np.float32), 5).tobytes() for each in arrays}


def test_training_is_that_without_averages_and_the_averages_are_those_of_its_weights() -> None:
    (_, steps), (folder, _) = plain_run(), averaged_run()
    model, averages = weights_and_averages(folder, "latest")
    assert all(model[key].tobytes() == steps[-1][key].tobytes() for key in model), "raw weights are trained"
    expected = [average([step[key] for step in steps]) for key in model]
    assert len(averages) == len(expected) > 5
    for each in averages:
        close = [np.abs(each - other).max() for other in expected if other.shape == each.shape]
        assert min(close) < 1e-6
    moved = [key for key, each in zip(model, expected, strict=True) if np.abs(each - model[key]).max() > 1e-4]
    assert moved, "averages differ from the weights"


def test_the_best_checkpoint_and_every_user_of_it_have_the_averages() -> None:
    (_, steps), (folder, result) = plain_run(), averaged_run()
    epoch = result["best"]["epoch"]
    model, raw = weights_and_averages(folder, "best")
    for key, value in model.items():
        expected = average([step[key] for step in steps[: epoch + 2]])
        np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=key)
    assert model and as_set(raw) == as_set(steps[epoch + 1][key] for key in model), (
        "the trained weights are kept beside them"
    )
    found = load_ranker(folder, ranking_datasets()).evaluate()
    assert found == result["best"]["metrics"]


@pytest.mark.parametrize("stopped", ["latest", pytest.param("best", marks=pytest.mark.slow)])
def test_a_kill_between_two_writes_ends_with_the_same_bytes(tmp_path, monkeypatch, stopped) -> None:
    save = Checkpoints.save

    class Killed(BaseException):
        pass

    def interrupted(self, at: int) -> None:
        if at >= 3 and self._folder.name == stopped:
            raise Killed
        save(self, at)

    monkeypatch.setattr(Checkpoints, "save", interrupted)
    monkeypatch.setattr("tpugraphs_polynormer.ranking.task.RankingTask.select", lambda self, metrics: next(SCORES))
    SCORES = iter(np.arange(100.0))
    with pytest.raises(Killed):
        train_here(tmp_path / "broken", *EPOCHS, EMA)
    monkeypatch.setattr(Checkpoints, "save", save)
    train_here(tmp_path / "broken", *EPOCHS, EMA)
    train_here(tmp_path / "whole", *EPOCHS, EMA)
    for name in ("latest", "best"):
        assert_same_bytes(tmp_path / "broken", tmp_path / "whole", name)


@pytest.mark.slow
def test_the_next_phase_starts_from_the_trained_weights_of_the_best_epoch(tmp_path, monkeypatch) -> None:
    """Its averages restart their warm-up: layers that it begins to train forget their initial values."""
    phases = ("model.encoder=polynormer", "training.local_epochs=2", "training.epochs=1", EMA)
    save, kept = Checkpoints.save, {}

    def keep(self, at: int) -> None:
        save(self, at)
        kept[self._folder.name, at] = weights(tmp_path, self._folder.name)

    monkeypatch.setattr(Checkpoints, "save", keep)
    scores = iter([0.9, 0.1, 0.2])  # the first epoch is the best of the warm-up
    monkeypatch.setattr("tpugraphs_polynormer.ranking.task.RankingTask.select", lambda self, metrics: next(scores))
    train_here(tmp_path, *phases)
    first, handed_on = kept["latest", 1], kept["latest", 2]
    steps = "averages/num_steps/.ATTRIBUTES/VARIABLE_VALUE"
    assert (int(first[steps]), int(handed_on[steps]), int(kept["latest", 3][steps])) == (2, 0, 2)
    for key, value in first.items():
        if value.dtype == np.float32:
            np.testing.assert_array_equal(handed_on[key], value, err_msg=key)


def test_a_compiled_step_has_the_same_averages() -> None:
    config = config_of(LAYOUT, "late", "mlp", STATIC, EMA, "training.learning_rate=0.001")
    batch, found = first_batch(config), []
    for jit_compile in (False, True):
        learner = learner_of(config)
        step = tf.function(learner.train_step, jit_compile=jit_compile, autograph=False)
        for _ in range(2):
            step(batch)
        found.append([each.numpy() for each in learner.averages.values])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=2.1e-3)
        assert np.mean(np.abs(one - other) > 1e-4) < 0.1  # as in tests/models/ranking/test_model.py


def test_the_traced_step_has_them_too() -> None:
    limits = dict.fromkeys(BATCH_SIZES, 8)
    settings = ("model.encoder=mlp", STATIC)
    with_averages, without = (
        len(trace_ranking_step(small_config(LAYOUT, *settings, *extra), limits)) for extra in ((EMA,), ())
    )
    assert with_averages > without


def test_a_decay_of_one_would_never_learn() -> None:
    with pytest.raises(ConfigError, match=r"training\.ema_decay: found 1\.0, expected 0 to 0\.99999"):
        small_config(LAYOUT, *CHEAP, "training.ema_decay=1.0")


def test_off_leaves_no_trace() -> None:
    run, _ = plain_run()
    assert not [key for key in weights(run) if "averages" in key] and len(logged(run)) == 5
