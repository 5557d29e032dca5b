"""tf.distribute strategies by name: one device, all GPUs, a TPU, or several workers."""

from __future__ import annotations

import json
import os

import tensorflow as tf

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import divert_stderr

STRATEGIES = ("auto", "cpu", "gpu", "tpu", "multiworker")


def make_strategy(name: str, *, tpu: str = "local", num_devices: int = 0) -> tf.distribute.Strategy:
    """The tf.distribute strategy of a name. Call it before any tensor is created: TensorFlow fixes its devices then.

    Args:
      name: `auto`: all GPUs if there are any, else the CPU. `cpu`: one CPU device, or `num_devices` virtual ones to try
        a distributed run. `gpu`: MirroredStrategy over all GPUs, or the first `num_devices`. `tpu`: TPUStrategy.
        `multiworker`: MultiWorkerMirroredStrategy; the environment variable TF_CONFIG names the workers.
      tpu: name of the TPU, "local" on a TPU VM.
      num_devices: number of CPU or GPU devices; 0 for one CPU, or all GPUs.
    """
    if name not in STRATEGIES:
        raise UserError(f"--strategy {name}: expected one of {', '.join(STRATEGIES)}")
    if name == "multiworker":
        return _make_multiworker()
    if name == "tpu":
        return _make_tpu(tpu)
    with divert_stderr():  # TensorFlow prints errors on a machine without a GPU driver
        gpus = tf.config.list_physical_devices("GPU")
    if name == "gpu" and not gpus:
        raise UserError("--strategy gpu: TensorFlow sees no GPU here; install the gpu extra, or use --strategy cpu")
    if name == "gpu" or (name == "auto" and gpus):
        return _mirror("GPU", num_devices or len(gpus))
    if num_devices > 1:
        _split_cpu(num_devices)
        return _mirror("CPU", num_devices)
    return tf.distribute.OneDeviceStrategy("CPU:0")


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes the run's files: the only worker, or worker 0 of several."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type in (None, "", "chief"):
        return True
    # A cluster with a chief also has a worker 0, which does not write.
    return resolver.task_id in (None, 0) and "chief" not in resolver.cluster_spec().jobs


def wait_for_workers(strategy: tf.distribute.Strategy) -> None:
    """Waits until every worker has called this: files that worker 0 wrote before the call exist for all after it."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.ones([])), axis=None)


def _mirror(kind: str, count: int) -> tf.distribute.Strategy:
    if count == 1:
        return tf.distribute.OneDeviceStrategy(f"{kind}:0")
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(count)])


def _split_cpu(count: int) -> None:
    devices = [tf.config.LogicalDeviceConfiguration()] * count
    try:
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    except RuntimeError:  # TensorFlow has started already: accepted if the number of devices is the same
        if len(tf.config.list_logical_devices("CPU")) != count:
            raise UserError(f"TensorFlow was started with another number of CPU devices than {count}") from None


def _make_multiworker() -> tf.distribute.Strategy:
    text = os.environ.get("TF_CONFIG", "")
    try:
        cluster = json.loads(text)["cluster"]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            "--strategy multiworker: TF_CONFIG must hold JSON such as "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}, '
            f"found {text!r:.80}"
        ) from None
    if not cluster.get("worker"):
        raise UserError(f"--strategy multiworker: TF_CONFIG names no worker, found {cluster!r:.80}")
    return tf.distribute.MultiWorkerMirroredStrategy()


def _make_tpu(name: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as fault:
        reason = str(fault).splitlines()[0]
        raise UserError(f"--strategy tpu: no TPU {name!r} ({reason}); see docs/tpu.md, or use --strategy cpu") from None
    return tf.distribute.TPUStrategy(resolver)
