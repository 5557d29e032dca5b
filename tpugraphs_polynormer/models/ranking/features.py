"""Inputs made of nodes and config values: opcodes, scaled columns, and one shared embedding of layout entries."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.catalog import LAYOUT_MAX, LAYOUT_MIN, NUM_NODE_FEATURES, NUM_OPCODES
from tpugraphs_polynormer.hlo.features import MINOR_TO_MAJOR, SHAPE_DIMENSIONS
from tpugraphs_polynormer.hlo.operands import NUM_OPERAND_BITS
from tpugraphs_polynormer.layers.dense import build_layers
from tpugraphs_polynormer.layers.registration import Configured, register

_NUM_LAYOUT_VALUES = LAYOUT_MAX - LAYOUT_MIN + 1
_RAW_LAYOUT_SCALE = 100.0  # of the official layout baseline: node features reach 1e7, layout entries only 5
_MAX_SCALED = 10.0  # standard deviations: rare columns of unseen programs stay within what the model has met


def signed_log(values: tf.Tensor) -> tf.Tensor:
    """sign(x) log(1 + |x|), as datasets/statistics.py measures it."""
    return tf.sign(values) * tf.math.log1p(tf.abs(values))


@register
class LayoutEmbedding(Configured, tf.keras.layers.Layer):
    """Entries of minor-to-major lists, -1 (none) to 5, as small vectors: [n, p] -> [n, p * dim].

    One table serves node features and candidates. A one-hot product, not a lookup: its gradient is dense, as XLA needs.

    Args:
      dim: width of a vector.
      layout_features: `position` embeds the position of each dimension instead of the dimension at each position;
        `both` has one beside the other, [n, 2 p * dim], with a table each.
    """

    def __init__(self, *, dim: int, layout_features: str = "order", **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())

    def build(self, shape: tf.TensorShape) -> None:
        num_rows = _NUM_LAYOUT_VALUES * (2 if self.layout_features == "both" else 1)
        self.table = self.add_weight("table", [num_rows, self.dim], initializer="random_normal")
        super().build(shape)

    def call(self, entries: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(entries, tf.int32) - LAYOUT_MIN
        if self.layout_features in ("position", "both"):
            of_positions = positions_in_layouts(entries) - LAYOUT_MIN
            is_both = self.layout_features == "both"
            rows = tf.concat([rows, of_positions + _NUM_LAYOUT_VALUES], -1) if is_both else of_positions
        embedded = tf.one_hot(rows, self.table.shape[0], dtype=self.compute_dtype) @ tf.cast(
            self.table, self.compute_dtype
        )
        return tf.reshape(embedded, [tf.shape(entries)[0], rows.shape[-1] * self.dim])


def positions_in_layouts(entries: tf.Tensor) -> tf.Tensor:
    """The inverse of layouts, [n, 6 l] -> [n, 6 l] int32: the position of each dimension, -1 where it is not named."""
    layouts = tf.reshape(tf.cast(entries, tf.int32), [-1, entries.shape[-1] // 6, 6, 1])
    found = tf.where(layouts == tf.range(6), tf.range(6)[:, tf.newaxis], LAYOUT_MIN)  # [n, l, position, dimension]
    return tf.reshape(tf.reduce_max(found, 2), [-1, entries.shape[-1]])


@register
class NodeFeatures(Configured, tf.keras.layers.Layer):
    """[n, 140] features and [n] opcodes -> [n, dim] inputs of the first projection.

    `scaled`: heavy columns through the signed logarithm, all standardised by the train split's statistics, the
    minor-to-major columns embedded, with -1 instead of 0 behind the shape's rank. `raw`: as they are. With `operands`
    the bits of [n] packed operands (hlo/operands.py) are beside them.
    """

    def __init__(
        self,
        *,
        mean: list[float],
        std: list[float],
        heavy: list[int],
        opcode_dim: int,
        layout_embedding: LayoutEmbedding,
        raw: bool = False,
        operands: bool = False,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)  # features are scaled in float32, whatever the policy
        self.keep_arguments(locals())
        self.mean, self.std, self.heavy = list(mean), list(std), list(heavy)

    def build(self, shape: tf.TensorShape) -> None:
        self.opcodes = self.add_weight("opcodes", [NUM_OPCODES, self.opcode_dim], initializer="random_normal")
        if not self.raw:
            build_layers([self.layout_embedding], tf.TensorShape([None, 6]))
        super().build(shape)

    def call(self, features: tf.Tensor, opcodes: tf.Tensor, operands: tf.Tensor | None = None) -> tf.Tensor:
        one_hot = tf.one_hot(opcodes, NUM_OPCODES, dtype=self.compute_dtype)
        embedded = one_hot @ tf.cast(self.opcodes, self.compute_dtype)
        known = [tf.cast(unpack_bits(operands), self.compute_dtype)] if self.operands else []
        if self.raw:
            return tf.concat([tf.cast(features, self.compute_dtype), embedded, *known], -1)
        scaled = tf.cast(self._scale(features), self.compute_dtype)
        return tf.concat([scaled, embedded, self.layout_embedding(minor_to_major(features)), *known], -1)

    def _scale(self, features: tf.Tensor) -> tf.Tensor:
        heavy = np.isin(np.arange(NUM_NODE_FEATURES), self.heavy)
        # A constant column says nothing: its inverse deviation is 0, whatever an unseen program holds there.
        inverse = np.divide(1, self.std, out=np.zeros(NUM_NODE_FEATURES), where=np.array(self.std) > 0)
        tamed = tf.where(heavy, signed_log(features), features)
        scaled = (tamed - tf.constant(self.mean, tf.float32)) * tf.constant(inverse, tf.float32)
        scaled = tf.clip_by_value(scaled, -_MAX_SCALED, _MAX_SCALED)
        return tf.concat([scaled[:, : MINOR_TO_MAJOR.start], scaled[:, MINOR_TO_MAJOR.stop :]], -1)


def unpack_bits(operands: tf.Tensor) -> tf.Tensor:
    """[n] packed operands -> [n, NUM_OPERAND_BITS] int32 of 0 and 1: `hlo.operands.unpack_operands` of tensors."""
    packed = tf.cast(operands, tf.int32)[:, tf.newaxis]
    return tf.bitwise.bitwise_and(tf.bitwise.right_shift(packed, tf.range(NUM_OPERAND_BITS)), 1)


def shape_ranks(features: tf.Tensor) -> tf.Tensor:
    """[n, 140] -> [n] int32: how many dimensions each node's shape has."""
    return tf.reduce_sum(tf.cast(features[:, SHAPE_DIMENSIONS] > 0, tf.int32), -1)


def minor_to_major(features: tf.Tensor) -> tf.Tensor:
    """[n, 140] -> [n, 6]: a node's own layout with -1, not 0, behind its rank."""
    has_entry = tf.range(6) < shape_ranks(features)[:, tf.newaxis]
    return tf.where(has_entry, features[:, MINOR_TO_MAJOR], float(LAYOUT_MIN))


@register
class ConfigValueFeatures(Configured, tf.keras.layers.Layer):
    """The distinct config values of a batch, [v, 18] layout dims or [v, 8] tile bounds -> [v, dim]."""

    def __init__(self, *, kind: str, layout_embedding: LayoutEmbedding, raw: bool = False, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.keep_arguments(locals())

    def build(self, shape: tf.TensorShape) -> None:
        if self.kind == "layout" and not self.raw:
            build_layers([self.layout_embedding], shape)
        super().build(shape)

    def call(self, values: tf.Tensor) -> tf.Tensor:
        if self.raw:
            return tf.cast(values, self.compute_dtype) * (_RAW_LAYOUT_SCALE if self.kind == "layout" else 1.0)
        if self.kind == "layout":
            return self.layout_embedding(values)
        return tf.cast(signed_log(values), self.compute_dtype)
