"""The metrics of a run as TensorBoard event files."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tpugraphs_polynormer.training.run_directory import RunDirectory


class EventLog:
    """The event files in `<run>/tensorboard`: the loss and the metrics of each evaluated epoch."""

    def __init__(self, run: RunDirectory) -> None:
        self._folder = str(run.path / "tensorboard")
        # The same metadata as tf.summary.scalar writes; that function would need the tensorboard package.
        self._metadata = tf.compat.v1.SummaryMetadata(data_class=1)
        self._metadata.plugin_data.plugin_name = "scalars"

    @functools.cached_property
    def _writer(self) -> tf.summary.SummaryWriter:
        """Made with the first record: a run that cannot start leaves no file."""
        return tf.summary.create_file_writer(self._folder)

    def add(self, record: Mapping[str, Any]) -> None:
        """Writes the loss and the metrics of one record of metrics.jsonl."""
        values = {"loss": record["loss"]}
        for split, metrics in record["metrics"].items():
            values |= {f"{split}/{name}": value for name, value in metrics.items() if value is not None}
        with self._writer.as_default(step=record["epoch"]):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=self._metadata)
        self._writer.flush()
