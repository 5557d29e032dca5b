"""Evaluation of graphs on the candidates of the official index files, noise, and data that cannot be evaluated."""

import csv
import io

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests.archives.test_indices import write_indices
from tests.ranking_data import LAYOUT, TILE, collection
from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import preprocess_here
from tpugraphs_polynormer.archives.indices import find_indices, read_indices
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.evaluate import format_csv
from tpugraphs_polynormer.ranking.scorer import choose_candidates, evaluate_split


class TruthScorer:
    """A scorer whose scores are the negated costs, times a sign."""

    def __init__(self, sign: float = 1.0) -> None:
        self._sign = -sign

    def score_graph(self, split, number, candidates):
        ratios = split.read_column(number, "runtimes", candidates) / split.read_column(
            number, "normalizers", candidates
        )
        return self._sign * ratios


def test_official_files_on_official_archives(real_data, tmp_path):
    """The index files name seven graphs; graphs that the dataset lacks are not an error."""
    name = "layout:xla:default"
    source = real_data / "tpugraphs/official"
    if not source.is_dir():
        pytest.skip(f"{source} not found")
    (dataset,) = preprocess_here(source, tmp_path / "out", name)
    split = dataset.split("valid")
    assert dataset.split("train").noise(0) == pytest.approx(1.05e-5, rel=0.03)
    assert split.noise(0) == pytest.approx(4.4e-5, rel=0.03)
    assert dataset.split("test").graphs[0].noise is None  # hidden runtimes
    indices = find_indices(real_data / "tpugraphs/eval_indices", name)
    assert len(indices) == 7 and [graph.name for graph in split.graphs] == ["unet_3d.4x4.bf16"]
    chosen = choose_candidates(split, most=0, indices=indices)
    (metrics,) = evaluate_split(TruthScorer(), split, collection=name, candidates=chosen)
    assert metrics.num_candidates == 1000
    assert metrics.tau == pytest.approx(1) and metrics.tau_beyond_noise == 1.0


class RepeatScorer:
    """A scorer that gives both halves of the candidates the negated runtimes of the second half."""

    def score_graph(self, split, number, candidates):
        half = len(candidates) // 2
        return -np.tile(split.read_column(number, "runtimes", candidates)[half:], 2)


def test_each_graph_is_judged_by_its_own_noise(tmp_path):
    """Candidates of 1, 2 .. 12 ms, measured twice; the second time is `percent` longer, or shorter for odd ones."""
    graphs = {}
    for graph, percent in (("quiet", 0.01), ("noisy", 30.0)):
        arrays = layout_arrays(num_candidates=12)
        base = np.arange(1, 13) * 10**6
        again = np.where(np.arange(12) % 2, base / (1 + percent / 100), base * (1 + percent / 100))
        graphs[graph] = arrays | {
            "node_config_feat": np.tile(arrays["node_config_feat"], (2, 1, 1)),
            "config_runtime": np.concatenate([base, again]).round().astype(np.int64),
        }
    graphs["once"] = layout_arrays(num_candidates=8, seed=5)
    write_tree(tmp_path / "in", LAYOUT, {"train": {"a": layout_arrays()}, "valid": graphs})
    (dataset,) = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT)
    split = dataset.split("valid")
    noises = {graph.name: split.noise(number) for number, graph in enumerate(split.graphs)}
    assert noises["quiet"] == pytest.approx(1e-4, rel=1e-3)
    assert noises["noisy"] == pytest.approx(0.3, rel=1e-3)
    assert noises["once"] == pytest.approx((1e-4 + 0.3) / 2, rel=1e-3)  # the median of the collection
    assert [graph.noise for graph in split.graphs if graph.name == "once"] == [None]
    found = evaluate_split(RepeatScorer(), split, collection=LAYOUT, candidates=choose_candidates(split, most=0))
    for number, metrics in enumerate(found):
        runtimes = split.read_column(number, "runtimes").astype(float)
        scores = RepeatScorer().score_graph(split, number, np.arange(len(runtimes)))
        apart = runtimes[:, None] * (1 + split.noise(number)) < runtimes
        assert metrics.tau_beyond_noise == pytest.approx(np.sign(scores[:, None] - scores)[apart].mean())


def test_indices_choose_the_candidates_in_their_order(tmp_path):
    split = collection(LAYOUT).split("valid")
    write_indices(tmp_path, {"valid0": [7, 2, 11, 2], "elsewhere": [1]})  # one index twice, as in official files
    chosen = choose_candidates(split, most=5, indices=read_indices(tmp_path, LAYOUT))
    assert chosen[0].tolist() == [7, 2, 11, 2]
    assert len(chosen[1]) == 5, "a graph without indices: at most so many"
    metrics = evaluate_split(TruthScorer(), split, collection=LAYOUT, candidates=chosen)
    assert [graph.num_candidates for graph in metrics] == [4, 5]


def test_without_indices_the_choice_is_by_seed_or_all():
    split = collection(LAYOUT).split("valid")
    first, again, other = (choose_candidates(split, most=6, seed=seed) for seed in (0, 0, 1))
    for one, two in zip(first, again, strict=True):
        assert one.tolist() == two.tolist() == sorted(set(one.tolist())) and len(one) == 6
    assert [each.tolist() for each in other] != [each.tolist() for each in first]
    assert [len(each) for each in choose_candidates(split, most=0)] == [20, 20]


def test_indices_past_the_end_and_missing_files_are_refused(tmp_path):
    write_indices(tmp_path, {"valid0": [3, 20]})
    with pytest.raises(UserError, match=r"valid0: the index file names candidate 20, expected 0\.\.19"):
        choose_candidates(collection(LAYOUT).split("valid"), most=0, indices=read_indices(tmp_path, LAYOUT))
    with pytest.raises(UserError, match=r"nlp_random\.json"):
        read_indices(tmp_path, "layout:nlp:random")


@pytest.mark.parametrize("name", [LAYOUT, TILE])
def test_the_truth_is_perfect_and_its_opposite_the_worst(name):
    split = collection(name).split("valid")
    candidates = choose_candidates(split, most=0)
    for sign, opa, tau in ((1.0, 1.0, 1.0), (-1.0, 0.0, -1.0)):
        for graph in evaluate_split(TruthScorer(sign), split, collection=name, candidates=candidates):
            assert graph.opa == opa and graph.tau == pytest.approx(tau)


def test_csv_holds_one_line_per_graph_that_can_be_read_back():
    split = collection(LAYOUT).split("valid")
    candidates = choose_candidates(split, most=8)
    graphs = evaluate_split(TruthScorer(-1.0), split, collection=LAYOUT, candidates=candidates)
    rows = list(csv.DictReader(io.StringIO(format_csv(graphs))))
    assert [row["graph"] for row in rows] == ["valid0", "valid1"]
    for number, row in enumerate(rows):
        runtimes = split.read_column(number, "runtimes", candidates[number])
        assert float(row["tau"]) == pytest.approx(kendalltau(runtimes, -runtimes).statistic)
        assert float(row["slowdown_1"]) == pytest.approx(runtimes.max() / runtimes.min() - 1)


def test_hidden_runtimes_are_refused_by_name():
    split = collection(LAYOUT).split("test")
    with pytest.raises(DatasetError, match="layout:xla:random hidden: runtimes are hidden"):
        evaluate_split(TruthScorer(), split, collection=LAYOUT, candidates=choose_candidates(split, most=0))
