"""The optimizer of a config, and Adam with the semantics of torch.optim.Adam."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tpugraphs_polynormer.config.schema import TrainingConfig

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class TorchAdam(tf.keras.optimizers.Optimizer):
    """Adam with the semantics of torch.optim.Adam: L2 added to the gradient, and a count of steps per variable.

    The bias correction uses the number of steps of each variable, not of the run: the layers that only the global phase
    trains have moments of zero when that phase starts. A variable without a gradient does not change. The update of a
    variable is one fused TensorFlow op.

    Args:
      learning_rate: a number or a schedule.
      l2: coefficient of the variable that is added to its (clipped) gradient.
      kwargs: of tf.keras.optimizers.Optimizer, such as global_clipnorm.
    """

    def __init__(
        self,
        learning_rate: float | tf.keras.optimizers.schedules.LearningRateSchedule,
        *,
        l2: float = 0.0,
        name: str = "torch_adam",
        **kwargs,
    ):
        super().__init__(name=name, **{**kwargs, "weight_decay": None})  # Keras would apply decoupled weight decay
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.l2 = l2

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        self._built = True
        add = self.add_variable_from_reference
        self._first = [add(variable, "first") for variable in var_list]
        self._second = [add(variable, "second") for variable in var_list]
        # Floating-point, as in torch: the trainer then restores them together with the moments of an earlier epoch.
        self._steps = [add(variable, "steps", shape=[]) for variable in var_list]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        index = self._index_dict[self._var_key(variable)]
        count = self._steps[index].assign_add(1.0)
        if self.l2:
            gradient += self.l2 * variable
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._first[index].handle,
            v=self._second[index].handle,
            beta1_power=tf.pow(tf.cast(BETAS[0], variable.dtype), count),
            beta2_power=tf.pow(tf.cast(BETAS[1], variable.dtype), count),
            lr=tf.cast(self.learning_rate, variable.dtype),
            beta1=BETAS[0],
            beta2=BETAS[1],
            epsilon=EPSILON,
            grad=gradient,
        )

    def get_config(self) -> dict:
        rate = self._serialize_hyperparameter(self._learning_rate)
        return {**super().get_config(), "learning_rate": rate, "l2": self.l2}


def build_optimizer(config: TrainingConfig, num_steps: int) -> tf.keras.optimizers.Optimizer:
    """Adam or AdamW with the config's learning-rate schedule over `num_steps` steps.

    `clip_norm` limits the norm of the gradient after its sum over replicas: of all variables together, or of each.
    """
    rate: float | tf.keras.optimizers.schedules.LearningRateSchedule = config.learning_rate
    if config.schedule == "cosine":
        rate = tf.keras.optimizers.schedules.CosineDecay(
            0.0 if config.warmup_steps else config.learning_rate,
            max(1, num_steps - config.warmup_steps),
            warmup_target=config.learning_rate if config.warmup_steps else None,
            warmup_steps=config.warmup_steps,
        )
    elif config.warmup_steps:
        rate = tf.keras.optimizers.schedules.PolynomialDecay(0.0, config.warmup_steps, config.learning_rate)
    clip = {"clipnorm" if config.clip_each else "global_clipnorm": config.clip_norm or None}
    if config.optimizer == "adam":
        return TorchAdam(rate, l2=config.weight_decay, **clip)
    return tf.keras.optimizers.AdamW(rate, weight_decay=config.weight_decay, **clip)
