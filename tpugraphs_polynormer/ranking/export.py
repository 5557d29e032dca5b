"""A run as a SavedModel that TF Serving loads and that needs none of this package.

Signature `serving_default`: input `examples`, string [B], each a serialized tf.Example of one graph and its
candidates; outputs `scores`, float32 [B, k] (higher is faster; a graph with fewer candidates than the largest of the
request is filled up with the smallest float32), and `num_candidates`, int64 [B].

An example is a GraphTensor of the dataset's schema.pbtxt with two features more:
  `candidates.#size` int64 [1]: k, how many candidates are to be scored;
  `candidates.codes` int64 [k * num_config_nodes]: candidate by candidate, for each config node the row of its value in
  `nodes/config_value.values` (layout: 18 minor-to-major dims; tile: 6 bounds, their sum, their product).
The config nodes of a layout graph are its config nodes in the order of the edge set "config"; those of a tile graph the
kernel, output and input bounds. Memory grows with k: send large graphs in several requests of some hundred candidates.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.datasets.input_pipeline import graph_spec
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.ranking.runs import load_ranker
from tpugraphs_polynormer.ranking.task import RankingTask
from tpugraphs_polynormer.training.run_directory import CONFIG_NAME, RunError

_SIZE, _CODES = "candidates.#size", "candidates.codes"
_FILL = np.finfo(np.float32).min  # below every real score, and JSON can hold it


def export_ranker(run_dir: Path | str, data_dir: Path | str, output: Path | str) -> Path:
    """Writes the best weights of a run as a SavedModel folder, whole or not at all, its config in assets.extra."""
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunError(f"{output}: exists already; choose a new folder, such as the next version number")
    task = load_ranker(run_dir, data_dir)
    module = _Servable(task)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as temporary:
            model = Path(temporary) / "model"
            options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
            tf.saved_model.save(module, str(model), {"serving_default": module.serve}, options)
            (model / "assets.extra").mkdir()
            shutil.copyfile(Path(run_dir) / CONFIG_NAME, model / "assets.extra" / CONFIG_NAME)
            os.replace(model, output)
    except (OSError, tf.errors.OpError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else fault.message.splitlines()[0]
        raise RunError(f"{output}: cannot be written ({reason}); choose another --output") from None
    return output


def serialize_request(collection: RankingDataset, split: str, number: int, candidates: np.ndarray) -> bytes:
    """The serialized example of a stored graph with the named candidates [k]: what the signature takes."""
    opened = collection.split(split)
    example = tf.train.Example.FromString(opened.read_record(number))
    codes = opened.read_codes(number, np.asarray(candidates))
    opened.close()
    features = example.features.feature
    features[_SIZE].int64_list.value[:] = [len(codes)]
    features[_CODES].int64_list.value[:] = codes.ravel().tolist()
    return example.SerializeToString(deterministic=True)


class _Servable(tf.Module):
    """Holds the weights alone: Keras would otherwise save a trace of every layer beside the signature."""

    def __init__(self, task: RankingTask) -> None:
        super().__init__(name="ranker")
        self._weights = list(task.model.variables)
        spec = graph_spec(task.collection.manifest.kind)

        def score_one(record: tf.Tensor) -> tf.Tensor:
            return task.model(_parse(spec, record), phase=task.phase, training=False)[0]

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")], autograph=False)
        def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            scores = tf.map_fn(score_one, examples, fn_output_signature=tf.RaggedTensorSpec([None], tf.float32))
            return {"scores": scores.to_tensor(_FILL), "num_candidates": scores.row_lengths()}

        self.serve = serve


def _parse(spec: tfgnn.GraphTensorSpec, record: tf.Tensor) -> tfgnn.GraphTensor:
    """One example as a batch of one graph, as the input pipeline makes it."""
    graph = tfgnn.parse_single_example(spec, record)
    features = {_SIZE: tf.io.FixedLenFeature([], tf.int64), _CODES: tf.io.RaggedFeature(tf.int64)}
    drawn = tf.io.parse_single_example(record, features)
    count = tf.cast(drawn[_SIZE], tf.int32)
    num_config_nodes = tf.reduce_sum(graph.node_sets["nconfig"].sizes)
    codes = tf.transpose(tf.reshape(tf.cast(drawn[_CODES], tf.int32), tf.stack([count, num_config_nodes])))
    mask = tf.fill(tf.stack([1, count]), True)
    costs = tf.zeros(tf.stack([1, count]), tf.int64)
    return graph.replace_features(
        context={"costs": costs, "candidate_mask": mask}, node_sets={"nconfig": {"codes": codes}}
    )
