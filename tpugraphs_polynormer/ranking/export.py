"""Exports a run as a SavedModel for TF Serving; the SavedModel does not need this package.

Signature `serving_default`: the input `examples`, string [B], contains serialized tf.Examples, each of one graph and
its candidates. The outputs are `scores`, float32 [B, k], where higher is faster, and `num_candidates`, int64 [B]. k is
the largest number of candidates in the request; the scores of smaller graphs are padded with the smallest float32.

An example is a GraphTensor of the dataset's schema.pbtxt with two additional features:
  `candidates.#size` int64 [1]: the number of candidates c;
  `candidates.codes` int64 [c * num_config_nodes]: for each candidate and config node, the row of the node's value in
  `nodes/config_value.values` (layout: 18 minor-to-major dims; tile: 6 bounds, their sum, their product);
and, for a model with `model.physics` or without encoder, what datasets/physics.py knows of the candidates:
  `candidates.physics` float [c * features], candidate by candidate;
  `candidates.node_physics` float [num_config_nodes * c * features], config node by config node (layout only).
The config nodes of a layout graph are in the order of the edge set "config"; those of a tile graph are the kernel,
output and input bounds. Memory grows with c: split the candidates of a large graph into requests of a few hundred.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.datasets.input_pipeline import graph_spec, with_codes, with_physics
from tpugraphs_polynormer.datasets.physics import physics_shapes
from tpugraphs_polynormer.files import remove_leftovers, sync, temporary_folder
from tpugraphs_polynormer.ranking.runs import load_ranker
from tpugraphs_polynormer.ranking.task import RankingTask
from tpugraphs_polynormer.training.run_directory import CONFIG_NAME, RunError

_SIZE, _CODES = "candidates.#size", "candidates.codes"
PHYSICS_NAMES = ("candidates.physics", "candidates.node_physics")  # of the arrays of Physics.flat
_FILL = np.finfo(np.float32).min  # below every score, and JSON can represent it, unlike -inf


def export_ranker(run_dir: Path | str, data_dir: Path | str, output: Path | str) -> Path:
    """Writes the best weights of a run as a SavedModel, with the config in assets.extra; returns `output`.

    The folder is renamed into place when it is complete.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunError(f"{output}: exists already; choose a new folder, such as the next version number")
    task = load_ranker(run_dir, data_dir)
    module = _Servable(task)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(output.parent, output.name)
        with temporary_folder(output) as temporary:
            model = temporary / "model"
            options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
            tf.saved_model.save(module, str(model), {"serving_default": module.serve}, options)
            (model / "assets.extra").mkdir()
            shutil.copyfile(Path(run_dir) / CONFIG_NAME, model / "assets.extra" / CONFIG_NAME)
            for path in model.rglob("*"):
                sync(path)
            os.replace(model, output)
            sync(output.parent)
    except (OSError, tf.errors.OpError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else fault.message.splitlines()[0]
        raise RunError(f"{output}: cannot be written ({reason}); choose another --output") from None
    return output


class _Servable(tf.Module):
    """The weights and the signature. A Keras model would also save a traced function for every layer."""

    def __init__(self, task: RankingTask) -> None:
        super().__init__(name="ranker")
        self._weights = list(task.model.variables)
        kind = task.collection.manifest.kind
        spec, physics = graph_spec(kind), kind if task.config.model.reads_physics else None

        def score_one(record: tf.Tensor) -> tf.Tensor:
            return task.model(_parse(spec, record, physics), phase=task.phase, training=False)[0]

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")], autograph=False)
        def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            scores = tf.map_fn(score_one, examples, fn_output_signature=tf.RaggedTensorSpec([None], tf.float32))
            return {"scores": scores.to_tensor(_FILL), "num_candidates": scores.row_lengths()}

        self.serve = serve


def _parse(spec: tfgnn.GraphTensorSpec, record: tf.Tensor, physics: str | None) -> tfgnn.GraphTensor:
    """A batch of one graph, in the format of the input pipeline; `physics` is the kind whose physics it has."""
    graph = tfgnn.parse_single_example(spec, record)
    features = {_SIZE: tf.io.FixedLenFeature([], tf.int64), _CODES: tf.io.RaggedFeature(tf.int64)}
    drawn = tf.io.parse_single_example(record, features)
    count = tf.cast(drawn[_SIZE], tf.int32)
    num_config_nodes = tf.reduce_sum(graph.node_sets["nconfig"].sizes)
    codes = tf.transpose(tf.reshape(tf.cast(drawn[_CODES], tf.int32), tf.stack([count, num_config_nodes])))
    mask = tf.fill(tf.stack([1, count]), True)
    costs = tf.zeros(tf.stack([1, count]), tf.int64)
    graph = with_codes(graph.replace_features(context={"costs": costs, "candidate_mask": mask}), codes)
    if physics is None:
        return graph
    shapes = dict(zip(PHYSICS_NAMES, physics_shapes(physics, num_config_nodes, count), strict=False))
    known = tf.io.parse_single_example(record, {name: tf.io.RaggedFeature(tf.float32) for name in shapes})
    return with_physics(graph, *(tf.reshape(known[name], shape) for name, shape in shapes.items()))
