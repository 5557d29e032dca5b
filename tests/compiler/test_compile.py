"""The real TPU compiler on small programs and on the steps of shipped configs. Needs the extra tpu-compiler."""

import json

import pytest
import tensorflow as tf

from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.compiler.compile import compile_for_tpu
from tpugraphs_polynormer.compiler.topologies import TOPOLOGIES
from tpugraphs_polynormer.config.loader import find_config
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.datasets.static_graphs import GraphSizes
from tpugraphs_polynormer.nodes.traced_step import trace_node_step
from tpugraphs_polynormer.ranking.traced_steps import trace_ranking_step, trace_scoring_steps
from tpugraphs_polynormer.training.traced_step import trace_function

pytestmark = pytest.mark.tpu_compiler

SMALL = {"nodes": 300, "edges": 500, "config_nodes": 40, "config_edges": 60, "config_values": 30}


@pytest.fixture(scope="module", autouse=True)
def _installed():
    pytest.importorskip("libtpu", reason="the extra tpu-compiler is not installed")


def test_a_product_compiles_for_every_topology_with_an_estimate():
    module = trace_function(lambda x, y: tf.nn.relu(x @ y), tf.ones([1024, 512]), tf.ones([512, 256]))
    for topology in TOPOLOGIES:
        record = compile_for_tpu(module, topology)
        assert record.compiles, record.error
        assert record.cycles > 0 and record.argument_bytes >= 4 * 512 * (1024 + 256)
        assert record.versions.keys() == {"jax", "jaxlib", "libtpu"}


def test_a_program_larger_than_the_memory_does_not_fit():
    def grow(x: tf.Tensor) -> tf.Tensor:
        wide = tf.sin(x @ x)
        return tf.reduce_sum(tf.cos(wide @ wide))

    record = compile_for_tpu(trace_function(grow, tf.TensorSpec([60_000, 60_000])), "v5e:2x2")
    assert not record.compiles and record.error.startswith("does not fit: ") and "\n" not in record.error


def test_a_time_limit_ends_the_compilation():
    module = trace_function(lambda x: x @ x, tf.ones([256, 256]))
    assert compile_for_tpu(module, "v4:2x2x1", time_limit=0.1).error.startswith("no result within 0 s")


def test_bytes_that_are_no_module_are_an_error_of_the_record():
    record = compile_for_tpu(b"\x0a\x05hello", "v4:2x2x1")
    assert not record.compiles and "\n" not in record.error


def test_answers_are_kept_by_the_hash_of_the_module(tmp_path):
    module = trace_function(lambda x: x + 1, tf.ones([8]))
    first = compile_for_tpu(module, "v4:2x2x1", cache_dir=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"seconds": 123.0}))
    assert compile_for_tpu(module, "v4:2x2x1", cache_dir=tmp_path).seconds == 123.0 != first.seconds


def test_another_order_of_attributes_is_the_same_module(tmp_path):
    """TensorFlow writes the two attributes of a product in an order that changes from process to process."""
    module = trace_function(lambda x: x @ x, tf.ones([8, 8]))
    other = module.replace(b"grad_x", b"######").replace(b"grad_y", b"grad_x").replace(b"######", b"grad_y")
    assert other != module
    compile_for_tpu(module, "v4:2x2x1", cache_dir=tmp_path)
    compile_for_tpu(other, "v4:2x2x1", cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


RANKING = [
    *((f"ranking/{model}/layout_xla_random", "v3:2x2") for model in ("polynormer", "polynormer_local", "graphsage")),
    ("ranking/polynormer/layout_xla_random", "v6e:2x2"),
    ("ranking/polynormer/tile_xla", "v5e:2x2"),
    ("ranking/graphsage/tile_xla", "v4:2x2x1"),
    ("paper/polynormer/layout_nlp_random", "v4:2x2x1"),
    ("paper/graphsage/layout_nlp_random", "v5p:2x2x1"),
    ("paper/polynormer_local/tile_xla", "v4:2x2x1"),
]


@pytest.mark.parametrize(("name", "topology"), RANKING)
def test_the_training_step_of_a_shipped_config_compiles(name, topology):
    config = load_config(find_config(name), ["data.static_shapes=true", "training.precision=bfloat16"])
    record = compile_for_tpu(trace_ranking_step(config, SMALL), topology)
    assert record.compiles, record.error
    assert "sort" not in record.unestimated or "list_mle" in str(config.loss), "edges are not sorted on the device"
    assert any("ranking/" in op.source for op in record.costly), "the costliest ops name their layers"


def test_global_attention_in_bfloat16_compiles_for_v5p():
    """The compiler aborted, at these sizes too, while GlobalAttention.attend divided before its gather."""
    one_layer = [f"model.num_{each}_layers=1" for each in ("local", "global", "nconfig")]
    overrides = ["data.static_shapes=true", "training.precision=bfloat16", "data.candidates_per_graph=16", *one_layer]
    config = load_config(find_config("ranking/polynormer/layout_nlp_random"), [*overrides, "model.dropout_rate=0"])
    limits = {"nodes": 450, "edges": 800, "config_nodes": 62, "config_edges": 125, "config_values": 20}
    record = compile_for_tpu(trace_ranking_step(config, limits), "v5p:2x2x1")
    assert record.compiles, record.error


@pytest.mark.parametrize("name", ["ranking/polynormer/layout_xla_random", "paper/graphsage/tile_xla"])
def test_the_scoring_steps_compile(name):
    sizes = GraphSizes(nodes=301, edges=500, config_nodes=41, config_edges=60, config_values=31)
    if "tile" in name:
        sizes = sizes._replace(config_nodes=3, config_edges=0)
    config = load_config(find_config(name), ["data.static_shapes=true"])
    for _, module in trace_scoring_steps(config, sizes, num_candidates=64):
        record = compile_for_tpu(module, "v4:2x2x1")
        assert record.compiles, record.error


def test_four_replicas_sum_their_gradients():
    config = load_config(find_config("demo/layout_xla_random"), ["data.static_shapes=true"])
    record = compile_for_tpu(trace_ranking_step(config, SMALL, num_replicas=4), "v4:2x2x1", num_replicas=4)
    assert record.compiles, record.error
    assert record.unestimated.get("all-reduce", 0) >= 1
    too_many = compile_for_tpu(trace_ranking_step(config, SMALL, num_replicas=64), "v4:2x2x1", num_replicas=64)
    assert "64 replicas were asked for" in too_many.error


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("nodes/minesweeper", ["model.hidden_dim=64"]),
        ("nodes/minesweeper", ["model.hidden_dim=64", "training.epochs=0", "training.precision=bfloat16"]),
        ("nodes/tuned/gcn/minesweeper", ["model.directed=true", "training.entropy_weight=0.1"]),
    ],
)
def test_node_classification_compiles(name, overrides):
    config = load_config(find_config(name), overrides)
    record = compile_for_tpu(trace_node_step(config), "v4:2x2x1")
    assert record.compiles, record.error


def test_the_stage_prints_the_record_and_writes_json(capsys, tmp_path):
    output = tmp_path / "step.json"
    small = ["data.graphs_per_batch=2", "model.hidden_dim=16", "model.num_heads=2", "model.num_local_layers=2"]
    overrides = [word for each in small for word in ("--set", each)]
    command = ["compile", "--config", "demo/tile_xla", "--topology", "v4:2x2x1", "--output", str(output), *overrides]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "v4:2x2x1" in printed and "ops without an estimate" in printed and "% padding" in printed
    content = json.loads(output.read_text())
    assert content["records"][0]["cycles"] > 0 and content["batch"]["limits"]["nodes"] == 2 * 512


def test_a_config_that_does_not_fit_is_one_line_and_exit_code_two(capsys):
    large = ["data.graphs_per_batch=64", "data.batch_nodes=0", "data.candidates_per_graph=512"]
    overrides = [word for each in large for word in ("--set", each)]
    command = ["compile", "--config", "demo/tile_xla", "--topology", "v5e:2x2", *overrides]
    assert main([*command, "--set", "model.hidden_dim=256"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "v5e:2x2: does not fit: " in told and "lower data.batch_nodes" in told
