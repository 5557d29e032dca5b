"""The exported model, loaded without this package, has the scores of the run."""

import subprocess
import sys

import numpy as np
import pytest

from tests.small_datasets import LAYOUT, TILE
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.ranking.export import export_ranker
from tpugraphs_polynormer.ranking.runs import load_ranker
from tpugraphs_polynormer.training.run_directory import RunError

# A program that may import only TensorFlow: it reads requests and writes the outputs of the signature.
CLIENT = """
import sys
import numpy as np
import tensorflow as tf
folder, requests, answers = sys.argv[1:]
examples = [record.numpy() for record in tf.data.TFRecordDataset(requests)]
serve = tf.saved_model.load(folder).signatures["serving_default"]
found = serve(examples=tf.constant(examples))
np.savez(answers, **{name: value.numpy() for name, value in found.items()})
assert not any(name.startswith(("tpugraphs", "tensorflow_gnn")) for name in sys.modules), "package was imported"
"""


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Trained runs that tests share and must not change."""
    return make_trained()


def serialize_request(collection: RankingDataset, split: str, number: int, candidates: np.ndarray) -> bytes:
    """The serialized example of a graph of a dataset with the given candidates [c], as the signature expects it."""
    import tensorflow as tf

    opened = collection.split(split)
    example = tf.train.Example.FromString(opened.read_record(number))
    codes = opened.read_codes(number, np.asarray(candidates))
    opened.close()
    features = example.features.feature
    features["candidates.#size"].int64_list.value[:] = [len(codes)]
    features["candidates.codes"].int64_list.value[:] = codes.ravel().tolist()
    return example.SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", [LAYOUT, TILE])
def test_scores_without_the_package_are_the_runs(trained: Trained, tmp_path, name: str) -> None:
    import tensorflow as tf

    run = trained.layout if name == LAYOUT else trained.tile
    export_ranker(run, trained.data, tmp_path / "model" / "1")
    collection = RankingDataset(trained.data / name.replace(":", "/"))
    chosen = [(0, np.array([0, 5, 3, 3])), (2, np.array([1, 2])), (1, np.arange(5))]
    with tf.io.TFRecordWriter(str(tmp_path / "requests")) as writer:
        for number, candidates in chosen:
            writer.write(serialize_request(collection, "test", number, candidates))
    arguments = [tmp_path / "model" / "1", tmp_path / "requests", tmp_path / "answers.npz"]
    command = [sys.executable, "-c", CLIENT, *map(str, arguments)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    answers = np.load(tmp_path / "answers.npz", allow_pickle=False)
    assert answers["num_candidates"].tolist() == [4, 2, 5]
    assert answers["scores"].shape == (3, 5)
    scorer, split = load_ranker(run, trained.data).make_scorer(), collection.split("test")
    for row, (number, candidates) in zip(answers["scores"], chosen, strict=True):
        assert row[: len(candidates)] == pytest.approx(scorer.score_graph(split, number, candidates), abs=1e-5)
        assert (row[len(candidates) :] == np.finfo(np.float32).min).all()


def test_the_recipe_travels_along_and_nothing_is_overwritten(trained: Trained, tmp_path) -> None:
    folder = export_ranker(trained.layout, trained.data, tmp_path / "1")
    assert (folder / "assets.extra" / "config.yaml").read_text() == (trained.layout / "config.yaml").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    with pytest.raises(RunError, match="exists already"):
        export_ranker(trained.layout, trained.data, folder)
