"""Strategies by name: errors, and the worker that writes."""

import json
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.training.distribution import is_chief, make_strategy, wait_for_workers


def strategy_of(task_type, task_id, **jobs):
    spec = tf.train.ClusterSpec({name: [f"host{i}:1" for i in range(count)] for name, count in jobs.items()})
    resolver = SimpleNamespace(task_type=task_type, task_id=task_id, cluster_spec=lambda: spec)
    return SimpleNamespace(cluster_resolver=resolver)


@pytest.mark.parametrize(
    "task_type, task_id, jobs, expected",
    [
        ("worker", 0, {"worker": 2}, True),
        ("worker", 1, {"worker": 2}, False),
        ("chief", 0, {"chief": 1, "worker": 2}, True),
        ("worker", 0, {"chief": 1, "worker": 2}, False),
        (None, None, {}, True),
        ("", 0, {}, True),
    ],
)
def test_exactly_one_worker_writes(task_type, task_id, jobs, expected):
    assert is_chief(strategy_of(task_type, task_id, **jobs)) is expected


def test_one_process_is_its_own_chief_and_waits_for_nobody():
    strategy = make_strategy("cpu")
    assert is_chief(strategy) and strategy.num_replicas_in_sync == 1
    wait_for_workers(strategy)


def test_auto_takes_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert isinstance(make_strategy("auto"), tf.distribute.OneDeviceStrategy)
    with pytest.raises(UserError, match="no GPU here"):
        make_strategy("gpu")


def test_an_unknown_name_is_refused():
    with pytest.raises(UserError, match="--strategy nothing: expected one of auto, cpu"):
        make_strategy("nothing")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", json.dumps({"cluster": {"worker": []}}), '{"cluster": {"ps": ["a"]}}']
)
def test_multiworker_without_workers_is_refused(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match="TF_CONFIG"):
        make_strategy("multiworker")
