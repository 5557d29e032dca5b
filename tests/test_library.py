"""The package as a library: public names, examples, and use in other Keras and TF-GNN models."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_gnn as tfgnn

import tpugraphs_polynormer as tp

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("tpugraphs_polynormer", "tpugraphs_polynormer.layers", "tpugraphs_polynormer.models")
NAMES = [(package, name) for package in PACKAGES for name in importlib.import_module(package).__all__]
CLASSES = [
    (package, name) for package, name in NAMES if inspect.isclass(getattr(importlib.import_module(package), name))
]
EDGES = tp.build_undirected_edge_index([0, 1, 2, 3], [1, 2, 3, 4], num_nodes=5)
FEATURES = np.random.default_rng(0).normal(size=[5, 7]).astype(np.float32)
LABELS = np.array([0, 1, 0, 1, 0])


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("package", "name"), NAMES, ids=lambda part: part.rsplit(".", 1)[-1])
def test_every_public_name_exists_and_is_listed(package: str, name: str) -> None:
    module = importlib.import_module(package)
    assert getattr(module, name) is not None
    assert name in dir(module)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Transformer'"):
        tp.layers.Transformer  # noqa: B018


@pytest.mark.parametrize(("package", "name"), CLASSES, ids=lambda part: part.rsplit(".", 1)[-1])
def test_every_public_class_has_an_example_that_runs(package: str, name: str) -> None:
    cls = getattr(importlib.import_module(package), name)
    globs = {"tp": tp, "tf": tf, "np": np, "tfgnn": tfgnn}
    tests = doctest.DocTestFinder(recurse=False).find(cls, name, globs=globs)
    assert sum(len(test.examples) for test in tests) > 0, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_the_package_has_an_example_that_runs() -> None:
    result = doctest.testmod(tp, extraglobs={"tf": tf})
    assert result.attempted > 0 and result.failed == 0


def test_importing_is_light_and_changes_no_log_level() -> None:
    code = (
        "import logging, os, sys, tpugraphs_polynormer as tp\n"
        "assert 'tensorflow' not in sys.modules and 'apache_beam' not in sys.modules\n"
        "assert 'TF_CPP_MIN_LOG_LEVEL' not in os.environ and logging.getLogger().level == logging.WARNING\n"
        "import tensorflow as tf\n"
        "before = tf.get_logger().level\n"
        "tp.layers.LocalAttention, tp.models.RankingModel\n"
        "assert tf.get_logger().level == before and not logging.getLogger().handlers\n"
    )
    environment = "import os; os.environ.pop('TF_CPP_MIN_LOG_LEVEL', None)\n"
    done = run_python(environment + code)
    assert done.returncode == 0, done.stderr


def test_importing_after_tensorflow_works() -> None:
    code = (
        "import os; os.environ.pop('TF_USE_LEGACY_KERAS', None)\n"
        "import tensorflow as tf, tpugraphs_polynormer as tp\n"
        "edges = tp.build_undirected_edge_index([0], [1], num_nodes=2)\n"
        "print(tp.layers.LocalAttention(num_heads=1, head_dim=2)(tf.ones([2, 3]), edges).shape)\n"
    )
    assert run_python(code).stdout.strip() == "(2, 2)"


def test_after_keras_3_one_line_says_what_to_do() -> None:
    code = (
        "import os; os.environ.pop('TF_USE_LEGACY_KERAS', None)\n"
        "import tensorflow as tf; tf.keras.layers.Dense(1)\n"
        "import tpugraphs_polynormer as tp; tp.layers.LocalAttention\n"
    )
    done = run_python(code)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: tf.keras is Keras 3") and "TF_USE_LEGACY_KERAS=1" in last


def functional_model() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(0)
    features, edges = tf.keras.Input([7]), tp.layers.build_edge_inputs()
    states = features
    for _ in range(2):
        states = tp.layers.LocalAttention(num_heads=2, head_dim=4)(states, edges)
    states = tp.layers.JointAttention(num_heads=2, head_dim=4)(states, edges)
    states = tp.Polynormer(num_heads=2, head_dim=4, num_local_layers=1, num_global_layers=1)(states, edges)
    logits = tf.keras.layers.Dense(2)(tp.layers.GlobalAttention(num_heads=2, head_dim=4)(states))
    return tf.keras.Model([features, *edges[:-1]], logits)


@pytest.mark.parametrize("file_name", ["model.keras", "model_folder"])
def test_layers_in_a_functional_model_are_trained_saved_and_loaded(tmp_path: Path, file_name: str) -> None:
    model = functional_model()
    model.compile(tf.keras.optimizers.Adam(0.01), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    inputs = (FEATURES, *EDGES[:-1])
    data = tf.data.Dataset.from_tensors((inputs, LABELS)).repeat(20)
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    model.save(tmp_path / file_name)
    loaded = tf.keras.models.load_model(tmp_path / file_name)
    np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-6)
    assert np.ptp(model(inputs).numpy()) > 0.1


def test_a_model_is_its_json() -> None:
    model = functional_model()
    text = model.to_json()
    copy = tf.keras.models.model_from_json(text)
    assert json.loads(copy.to_json()) == json.loads(text)
    copy.set_weights(model.get_weights())
    inputs = (FEATURES, *EDGES[:-1])
    np.testing.assert_array_equal(copy(inputs), model(inputs))


def graph_of_two() -> tfgnn.GraphTensor:
    nodes = tfgnn.NodeSet.from_fields(sizes=[3, 2], features={"hidden_state": tf.constant(FEATURES)})
    adjacency = tfgnn.Adjacency.from_indices(("nodes", [0, 1, 3]), ("nodes", [1, 2, 4]))
    edges = tfgnn.EdgeSet.from_fields(sizes=[2, 1], adjacency=adjacency)
    return tfgnn.GraphTensor.from_pieces(node_sets={"nodes": nodes}, edge_sets={"edges": edges})


def graph_update() -> tp.PolynormerGraphUpdate:
    sizes = {"num_heads": 2, "head_dim": 4, "num_local_layers": 2, "num_global_layers": 1}
    return tp.PolynormerGraphUpdate(node_set_name="nodes", edge_set_name="edges", **sizes)


def test_graph_update_equals_the_encoder_graph_by_graph() -> None:
    update, graph = graph_update(), graph_of_two()
    found = update(graph).node_sets["nodes"]["hidden_state"]
    first = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
    second = tp.build_undirected_edge_index([0], [1], num_nodes=2)
    expected = np.concatenate([update.encoder(FEATURES[:3], first), update.encoder(FEATURES[3:], second)])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_graph_update_in_a_keras_model_ignores_padding() -> None:
    update, graph = graph_update(), graph_of_two()
    inputs = tf.keras.Input(type_spec=graph.spec.relax(num_nodes=True, num_edges=True, num_components=True))
    model = tf.keras.Model(inputs, update(inputs).node_sets["nodes"]["hidden_state"])
    sizes = tfgnn.SizeConstraints(total_num_components=3, total_num_nodes={"nodes": 9}, total_num_edges={"edges": 8})
    padded, mask = tfgnn.pad_to_total_sizes(graph, sizes)
    assert mask.numpy().tolist() == [True, True, False]
    np.testing.assert_allclose(model(padded)[:5], model(graph), atol=1e-5)


def test_graph_update_refuses_edges_to_other_nodes() -> None:
    update = tp.PolynormerGraphUpdate(
        node_set_name="elsewhere", edge_set_name="edges", num_heads=1, head_dim=2, num_local_layers=1
    )
    graph = graph_of_two()
    pieces = {"elsewhere": graph.node_sets["nodes"], "nodes": graph.node_sets["nodes"]}
    both = tfgnn.GraphTensor.from_pieces(node_sets=pieces, edge_sets=dict(graph.edge_sets))
    with pytest.raises(ValueError, match="joins 'nodes' and 'nodes', expected 'elsewhere' at both ends"):
        update(both)


def test_graph_update_reloads_from_its_config() -> None:
    update, graph = graph_update(), graph_of_two()
    update(graph)
    copy = tf.keras.layers.deserialize(json.loads(json.dumps(tf.keras.layers.serialize(update))))
    copy(graph)
    copy.set_weights(update.get_weights())
    found, expected = (layer(graph).node_sets["nodes"]["hidden_state"] for layer in (copy, update))
    np.testing.assert_array_equal(found, expected)


def test_the_library_page_runs(tmp_path: Path, monkeypatch) -> None:
    page = (ROOT / "docs" / "library.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert names["states"].shape == (5, 16) and names["weights"].shape == (5, 5)
    np.testing.assert_allclose(tf.reduce_sum(names["weights"], 1), np.ones(5), atol=1e-5)
    assert names["graph"].node_sets["nodes"]["hidden_state"].shape == (3, 8)
    assert float(names["loss"][0]) > 0


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch) -> None:
    cells = json.loads((ROOT / "notebooks" / "polynormer_layer.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in code:
        exec("".join(cell["source"]), names)
    assert names["accuracy"]["local attention"] > 0.9 > names["accuracy"]["dense layers"]
    assert names["difference"] < 1e-5
