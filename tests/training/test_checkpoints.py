"""Run directories after kills between two writes, after moves, and with other configs."""

import gc
import json
import shutil
import tempfile

import pytest
import tensorflow as tf

from tests.ranking_data import small_config
from tpugraphs_polynormer.training.checkpoints import Checkpoints
from tpugraphs_polynormer.training.event_log import EventLog
from tpugraphs_polynormer.training.run_directory import CONFIG_NAME, METRICS_NAME, RunDirectory, RunError

RECORDS = [{"epoch": epoch, "loss": 1.0 / (epoch + 1)} for epoch in range(3)]


def started(path) -> RunDirectory:
    run = RunDirectory.start(path / "run", small_config())
    for record in RECORDS:
        run.append_metrics(record)
    return run


def test_a_run_is_reopened_with_its_config(tmp_path):
    run = started(tmp_path)
    assert RunDirectory.open(run.path).config == small_config() == RunDirectory.start(run.path, small_config()).config


def test_another_config_is_refused_by_field(tmp_path):
    run = started(tmp_path)
    before = (run.path / CONFIG_NAME).read_text()
    with pytest.raises(RunError, match=r"model\.hidden_dim: 8 != 16.*training\.epochs: 2 != 3") as caught:
        RunDirectory.start(run.path, small_config("tile:xla", "model.hidden_dim=16", "training.epochs=3"))
    assert "data.collection: 'layout:xla:random' != 'tile:xla'" in str(caught.value)
    assert (run.path / CONFIG_NAME).read_text() == before


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"no config\.yaml"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_metrics_line_cut_short_is_left_out(tmp_path, cut):
    run = started(tmp_path)
    path = run.path / METRICS_NAME
    path.write_text(path.read_text()[: -1 - cut])
    assert run.read_metrics() == RECORDS[:2]
    run.keep_metrics(2)
    run.append_metrics({"epoch": 9})
    assert run.read_metrics() == [*RECORDS[:2], {"epoch": 9}]


def test_a_run_of_an_older_version_says_to_train_again(tmp_path):
    (tmp_path / "config.yaml").write_text("model:\n  trunk: polynormer\n")
    for use in (RunDirectory.open, lambda path: RunDirectory.start(path, small_config())):
        with pytest.raises(RunError, match=r"model\.trunk.*train again in a new run directory: tpugraphs train"):
            use(tmp_path)


def test_metrics_after_the_checkpoint_are_dropped(tmp_path):
    run = started(tmp_path)
    run.keep_metrics(1)
    assert run.read_metrics() == RECORDS[:1]
    assert RunDirectory(tmp_path / "empty", small_config()).read_metrics() == []


def test_json_is_written_whole_and_a_missing_file_is_named(tmp_path):
    run = started(tmp_path)
    run.write_json("result.json", {"a": 1})
    assert run.read_json("result.json") == {"a": 1}
    assert not list(run.path.glob(".*.tmp"))
    with pytest.raises(RunError, match=r"other\.json: not found"):
        run.read_json("other.json")


def counter(value: float = 0.0) -> tf.Module:
    module = tf.Module()
    module.value = tf.Variable(value)
    return module


def test_only_the_newest_checkpoint_is_kept_and_it_survives_a_move(tmp_path):
    run, module = started(tmp_path), counter()
    saver = Checkpoints(run, "latest", module=module)
    assert not saver.exists
    for number in (1, 2, 3):
        module.value.assign(10.0 * number)
        saver.save(number)
    assert [path.name for path in (run.path / "checkpoints/latest").glob("*.index")] == ["ckpt-3.index"]
    shutil.move(run.path, tmp_path / "moved")
    other = counter()
    assert Checkpoints(RunDirectory.open(tmp_path / "moved"), "latest", module=other).restore() == 3
    assert float(other.value) == 30.0


@pytest.mark.parametrize("left", ["ckpt-2_temp/part-00000-of-00001.index", "ckpt-2.data-00000-of-00001"])
def test_a_kill_within_a_save_leaves_the_older_checkpoint(tmp_path, left):
    run, module = started(tmp_path), counter(5.0)
    Checkpoints(run, "latest", module=module).save(1)
    half = run.path / "checkpoints/latest" / left
    half.parent.mkdir(exist_ok=True)
    half.write_bytes(b"half")
    module.value.assign(7.0)
    again = Checkpoints(run, "latest", module=module)
    assert again.restore() == 1 and float(module.value) == 5.0
    module.value.assign(8.0)
    again.save(2)
    module.value.assign(0.0)
    assert again.restore() == 2 and float(module.value) == 8.0


def test_a_worker_that_does_not_write_reads_the_writers(tmp_path, monkeypatch):
    run, elsewhere = started(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    Checkpoints(run, "latest", module=counter(4.0)).save(1)
    module = counter(9.0)
    reader = Checkpoints(run, "latest", writes=False, module=module)
    reader.save(2)
    assert reader.restore() == 1 and float(module.value) == 4.0
    assert list(elsewhere.rglob("ckpt-2.index"))
    del reader
    gc.collect()
    assert not list(elsewhere.iterdir()), "thrown away with its worker"


def test_a_foreign_or_broken_checkpoint_is_named(tmp_path):
    run = started(tmp_path)
    Checkpoints(run, "latest", module=counter()).save(1)
    other = counter()
    other.more = tf.Variable([1.0, 2.0])
    with pytest.raises(RunError, match=r"latest/ckpt-1: not a checkpoint of this model"):
        Checkpoints(run, "latest", module=other).restore()
    (run.path / "checkpoints/latest/ckpt-1.index").write_bytes(b"")
    with pytest.raises(RunError, match=r"latest"):
        Checkpoints(run, "latest", module=counter()).restore()
    with pytest.raises(RunError, match=r"best: no checkpoint"):
        Checkpoints(run, "best", module=counter()).restore()


def test_events_hold_the_loss_and_the_metrics_of_each_epoch(tmp_path):
    run = started(tmp_path)
    log = EventLog(run)
    for epoch in range(2):
        log.add({"epoch": epoch, "loss": 0.5 - epoch, "metrics": {"valid": {"tau": 0.25, "opa": None}}})
    assert read_events(run.path) == [
        ("loss", 0, 0.5),
        ("valid/tau", 0, 0.25),
        ("loss", 1, -0.5),
        ("valid/tau", 1, 0.25),
    ]


def read_events(run_dir) -> list[tuple[str, int, float]]:
    """(tag, step, value) of every scalar in a run's event files."""
    found = []
    for path in sorted((run_dir / "tensorboard").iterdir()):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found.append((value.tag, event.step, float(tf.make_ndarray(value.tensor))))
    return found


def test_records_are_plain_json_lines(tmp_path):
    lines = (started(tmp_path).path / METRICS_NAME).read_text().splitlines()
    assert [json.loads(line) for line in lines] == RECORDS
