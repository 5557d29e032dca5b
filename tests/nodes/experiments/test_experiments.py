"""Small versions of the paper's experiments: their numbers, files and statements."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.node_data import make_config, make_dataset
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.nodes.experiments import circular_skip_links, heatmaps, monomials, scaling
from tpugraphs_polynormer.nodes.experiments.ablation import run_ablation, without_edges
from tpugraphs_polynormer.nodes.task import NodeInputs, NodeTask
from tpugraphs_polynormer.training.run_directory import RunDirectory
from tpugraphs_polynormer.training.trainer import Trainer


def check_files(out: Path, name: str, result: dict) -> None:
    assert json.loads((out / f"{name}.json").read_text()) == result
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_monomials_of_two_layers_are_all_held_exactly(tmp_path: Path) -> None:
    result = monomials.run_monomials(tmp_path, num_nodes=3, max_layers=2)
    check_files(tmp_path, "monomials", result)
    assert [(row["degree"], row["monomials"], row["held"]) for row in result["rows"]] == [(2, 6, 6), (4, 15, 15)]
    assert max(row["largest_relative_error"] for row in result["rows"]) < 1e-12


def test_a_wrong_monomial_is_noticed() -> None:
    (choices, node) = monomials.find_monomials(2, 1)[(1, 1)]
    inputs = np.random.default_rng(0).uniform(0.5, 1.5, [8, 2])
    assert monomials.measure_error((1, 1), choices, node, inputs) < 1e-12
    assert monomials.measure_error((2, 0), choices, node, inputs) > 0.1


def test_circular_skip_links_differ_for_version_2_only(tmp_path: Path) -> None:
    result = circular_skip_links.run_circular_skip_links(tmp_path, num_nodes=13, skips=(2, 3, 5))
    check_files(tmp_path, "circular_skip_links", result)
    assert result["colorings_of_1wl"] == 1
    assert result["largest_distance_v1"] < 1e-5
    assert result["smallest_distance_v2"] > 1e-3


def test_color_refinement_tells_a_path_from_a_ring() -> None:
    path = np.array([0, 1, 1, 2, 2, 3]), np.array([1, 0, 2, 1, 3, 2])
    # A path has two classes, ends and inner nodes; a ring has one.
    assert circular_skip_links.refine_colors(*path, 4)[-1] == (2, 2)
    assert circular_skip_links.refine_colors(*circular_skip_links.circular_skip_links(7, 2), 7)[-1] == (7,)


def test_slopes_are_exponents() -> None:
    rows = [{"nodes": n, "seconds": 3e-6 * n, "megabytes": 2e-9 * n**2} for n in (100, 1000, 5000)]
    assert scaling.fit_slope(rows, "seconds") == pytest.approx(1)
    assert scaling.fit_slope(rows, "megabytes") == pytest.approx(2)
    with pytest.raises(UserError, match="expected two or more"):
        scaling.run_scaling(Path(), sizes=[100])


@pytest.mark.slow
def test_scaling_measures_each_size_in_a_child(tmp_path: Path) -> None:
    result = scaling.run_scaling(tmp_path, sizes=(500, 8000), hidden_dim=16, num_heads=2, num_steps=1)
    check_files(tmp_path, "scaling", result)
    assert [row["nodes"] for row in result["rows"]] == [500, 8000]
    assert all(row["seconds"] > 0 for row in result["rows"])
    # The states alone need 7 layers x 8,000 nodes x 16 floats.
    assert result["rows"][1]["megabytes"] > 7 * 8000 * 16 * 4 / 2**20


def test_near_nodes_are_those_within_the_hops() -> None:
    dataset = make_dataset(num_nodes=40)
    adjacency = np.zeros([40, 40], int)
    adjacency[dataset.edges[:, 1], dataset.edges[:, 0]] = 1
    nodes = np.array([3, 17, 30, 5])
    for hops in (1, 2, 3):
        expected = np.linalg.matrix_power(adjacency, hops)[np.ix_(nodes, nodes)] > 0
        np.testing.assert_array_equal(heatmaps.find_near(dataset, nodes, hops), expected)


def test_heatmaps_weights_are_a_distribution(tmp_path: Path) -> None:
    config = make_config("training.epochs=1", "model.num_global_layers=2")
    dataset = make_dataset()
    result = heatmaps.run_heatmaps(tmp_path, dataset, config, num_nodes=15, layer=1)
    check_files(tmp_path, "heatmaps", result)
    assert result["labels"] == sorted(result["labels"])
    assert set(result["nodes"]) <= set(dataset.splits[0].test.tolist())
    weights = np.array(result["weights"])
    same = np.equal.outer(result["labels"], result["labels"])
    assert weights[same].mean() == pytest.approx(result["mean_score_same_label"])
    run = RunDirectory.start(tmp_path / "run", config)
    task = NodeTask(config, NodeInputs.make(dataset, config), 0)
    Trainer(task, run).train()  # a finished run restores the last weights, which are also the best after one epoch
    everything = heatmaps.attention_weights(task, np.arange(60), 1)
    np.testing.assert_allclose(everything.mean(1), 1, rtol=1e-5)
    np.testing.assert_allclose(everything[np.ix_(result["nodes"], result["nodes"])], weights, rtol=1e-5)
    assert np.abs(heatmaps.attention_weights(task, np.arange(60), 0) - everything).max() > 1e-3, "another layer"


def test_ablation_trains_every_scheme(tmp_path: Path) -> None:
    config = make_config("training.epochs=1", "model.num_global_layers=2", "model.pre_norm=true")
    result = run_ablation(tmp_path, make_dataset(), config)
    check_files(tmp_path, "ablation", result)
    assert list(result["schemes"]) == ["local_only", "global_only", "local_and_global", "local_to_global"]
    # The same seed and one epoch: only the scheme makes their losses differ.
    runs = [tmp_path / "runs" / scheme / "split_0" / "metrics.jsonl" for scheme in result["schemes"]]
    assert len({json.loads(run.read_text().splitlines()[-1])["loss"] for run in runs}) == 4
    with pytest.raises(UserError, match="found both"):
        run_ablation(tmp_path, make_dataset(), config, schemes=["both"])


def test_global_only_keeps_self_loops_alone() -> None:
    dataset = without_edges(make_dataset())
    assert np.array_equal(dataset.edges, np.stack([np.arange(60)] * 2, 1))
