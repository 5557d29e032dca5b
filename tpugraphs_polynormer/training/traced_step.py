"""A training step as an HLO module, for one replica or for several that sum their gradients, without the devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Private: no public op of TensorFlow lowers to an all-reduce without the devices.
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tpugraphs_polynormer.training.optimizers import build_optimizer
from tpugraphs_polynormer.training.task import Task
from tpugraphs_polynormer.training.trainer import Learner

_NUM_STEPS = 1000  # of the learning-rate schedule, which has no part in the step's cost


def trace_training_step(make_task: Callable[[], Task], batch: Any, *, num_replicas: int = 1) -> bytes:
    """The serialized HloModuleProto of the trainer's step: forward, backward, optimizer.

    Args:
      make_task: creates the task and all variables of its model; only `model`, `config` and `loss` are used.
      batch: tensors with the static shapes of the task's batches; their values do not matter.
      num_replicas: above 1, gradients and losses are summed over replicas as TPUStrategy does it.
    """
    strategy = _trace_replicas(num_replicas) if num_replicas > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        task = make_task()
        learner = Learner(task, num_replicas)
        learner.compile(optimizer=build_optimizer(task.config.training, _NUM_STEPS))
        learner.optimizer.build(task.model.trainable_variables)

    def step(*flat: tf.Tensor) -> tf.Tensor:
        together = tf.nest.pack_sequence_as(batch, flat, expand_composites=True)
        with strategy.scope(), tf.distribute.get_replica_context() or tf.distribute.ReplicaContext(strategy, 0):
            return learner.train_step(together)["loss"]

    return trace_function(step, *tf.nest.flatten(batch, expand_composites=True))


def trace_function(function: Callable[..., Any], *arguments: tf.Tensor) -> bytes:
    """The serialized HloModuleProto of a function of tensors."""
    traced = tf.function(function, jit_compile=True, autograph=False)
    return traced.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")


def _trace_replicas(count: int) -> tf.distribute.Strategy:
    """A strategy of one CPU device that traces as one of `count` replicas: sums over replicas become all-reduces.

    TPUStrategy itself needs a TPU. Its extension points are private; TPUStrategy's sum is the same all-reduce.
    """
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")

    class Extended(type(strategy.extended)):
        @property
        def _num_replicas_in_sync(self) -> int:
            return count

        def _use_merge_call(self) -> bool:
            return False

        def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
            def total(each: tf.Tensor) -> tf.Tensor:
                return gen_xla_ops.xla_all_reduce(each, [list(range(count))], "Add", "CrossReplica")

            return tf.nest.map_structure(total, value)

    strategy.extended.__class__ = Extended
    return strategy
