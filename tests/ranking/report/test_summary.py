"""What the page concludes, against numbers computed by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tpugraphs_polynormer.datasets.split_files import SplitFiles
from tpugraphs_polynormer.ranking.metrics import graph_metrics
from tpugraphs_polynormer.ranking.report.data import GraphReport, Report, bootstrap_interval, find_default_cost
from tpugraphs_polynormer.ranking.report.summary import percent, summarize_graphs, write_headline, write_mean


def make_graph(
    name: str = "bert_1",
    *,
    collection: str = "layout:xla:random",
    slowdown: float = 0.0,
    default: float | None = None,
    score: float = 0.5,
    count: int = 300,
) -> GraphReport:
    """A graph with these numbers; the rest is of two candidates that the model orders right."""
    metrics = graph_metrics("layout", np.array([100, 110]), np.array([1.0, 0.0]), collection=collection, graph=name)
    return GraphReport(
        metrics=replace(metrics, slowdown_5=slowdown, contest_score=score, num_candidates=count),
        num_nodes=10,
        random_contest_score=0.0,
        cost_contest_score=0.5,
        regret=(slowdown,) * 7,
        chance_regret=(0.2, 0.1, 0.04, 0.0, 0.0, 0.0, 0.0),
        worst_regret=0.1,
        default_slowdown=default,
        points=np.zeros((1, 3)),
    )


def make_run(*graphs: GraphReport) -> SimpleNamespace:
    """What the sentences read of a RunReport."""
    return SimpleNamespace(graphs=list(graphs), collection=graphs[0].metrics.collection, label="run")


def test_the_headline_says_the_hand_computed_numbers() -> None:
    # Mean slowdowns: (0.2 % + 0.4 %) / 2, (10 % + 14 %) / 2. Speed-ups 1.1 / 1.002 and 1.14 / 1.004 multiply to
    # 1.24652; the root is 1.1165.
    graphs = make_graph(slowdown=0.002, default=0.10), make_graph(slowdown=0.004, default=0.14)
    assert write_headline([make_run(*graphs)]) == (
        "The best of the first five of 300 candidates is within 0.3 % of the fastest (mean over 2 graphs; 95 % "
        "interval 0.2 % to 0.4 %); the best of five in random order, within 4 %. The compiler's default is 12 % slower "
        "than the fastest: the best of the first five is 1.12 times as fast as the default."
    )


def test_the_headline_says_what_is_unknown_and_what_is_perfect() -> None:
    text = write_headline([make_run(make_graph(count=20), make_graph(count=1234))])
    assert "of 20 to 1,234 candidates is the fastest one in each of 2 graphs;" in text
    assert text.endswith("Which candidate is the compiler's default is unknown.")
    some = write_headline([make_run(make_graph(default=0.5), make_graph())])
    assert "is known (1 of 2 graphs), it is 50 % slower" in some and "1.50 times as fast" in some
    sampled = write_headline([make_run(make_graph(default=-0.11))])
    assert "The compiler's default is 11 % faster than the fastest: the best of the first five is 0.89 times" in sampled


def test_several_runs_of_a_collection_share_a_headline() -> None:
    known = make_graph(slowdown=0.01, default=0.2), make_graph(default=0.2)
    text = write_headline([make_run(known[0], make_graph(slowdown=0.03)), make_run(known[1], make_graph())])
    assert "within 1 % of the fastest (mean over 2 graphs and 2 runs; 95 % interval 0.5 % to 1.5 %)" in text
    assert "is known (1 of 2 graphs), it is 20 % slower" in text


def test_the_mean_counts_collections_alike_and_tells_the_test_score() -> None:
    runs = [make_run(make_graph(collection="tile:xla", score=1.0)), make_run(*[make_graph(score=0.5)] * 3)]
    text = write_mean(Report(runs, "valid", {"mean": (0.7, 0.125)}))
    assert "on the valid split is 0.7500 (95 % interval 0.7500 to 0.7500); that of a random order, 0.0000, " in text
    assert "and of the analytic cost model alone, 0.5000." in text
    assert "On the test split it is 0.7000; that of a random order, 0.1250." in text


def test_means_and_speedups_are_over_the_graphs_that_have_them() -> None:
    found = summarize_graphs([make_graph(default=0.21, slowdown=0.1, score=0.2), make_graph(score=0.6)])
    assert (found.num_graphs, found.num_known, found.default) == (2, 1, 0.21)
    assert found.score == pytest.approx(0.4)
    assert found.slowdown == pytest.approx(0.05)
    assert found.speedup == pytest.approx(1.1)
    assert make_graph("unet_3d.4x4").family == make_graph("unet3d").family == "unet"
    assert make_graph("23559853").family == "23559853"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (1e-5, "less than 0.01 %"), (0.003, "0.3 %"), (0.0951, "9.5 %"), (0.124, "12 %"), (12, "1,200 %")],
)
def test_percentages_are_read_easily(share: float, text: str) -> None:
    assert percent(share) == text


def test_bootstrap_intervals_of_cases_that_are_known() -> None:
    assert bootstrap_interval([[0.3, 0.3, 0.3]]) == (pytest.approx(0.3), pytest.approx(0.3))
    # Two graphs drawn again: both 0 or both 1 in a quarter of the cases each, so that each end is beyond 2.5 %.
    assert bootstrap_interval([[0.0, 1.0]]) == (0.0, 1.0)
    # The mean over two collections, one of them constant: half of that interval, moved by 1.
    assert bootstrap_interval([[0.0, 1.0], [2.0]]) == (1.0, 1.5)
    assert bootstrap_interval([[0.5, math.nan]]) == (0.5, 0.5)
    values = np.random.default_rng(1).normal(size=100)
    low, high = bootstrap_interval([values])
    error = values.std() / 10
    assert (low, high) == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.1 * error)
    assert bootstrap_interval([values]) == (low, high)
    assert bootstrap_interval([values], seed=1) != (low, high)


class Candidates(SplitFiles):
    """A split of one layout graph: which config values its candidates have, how often each was measured, runtimes."""

    def __init__(self, codes: list[int], counts: list[int], runtimes: list[int], kind: str = "layout") -> None:
        super().__init__(None, kind, ())
        self.graphs = [SimpleNamespace(num_candidates=len(codes))]
        self._codes = np.array(codes)[:, None]
        self._columns = {"counts": np.array(counts), "runtimes": np.array(runtimes)}

    def read_codes(self, number: int, candidates: np.ndarray) -> np.ndarray:
        return self._codes[candidates]

    def read_column(self, number: int, name: str, candidates: np.ndarray | None = None) -> np.ndarray:
        return self._columns[name] if candidates is None else self._columns[name][candidates]


@pytest.mark.parametrize(
    ("codes", "counts", "cost"),
    [
        ([7, 1, 7, 2, 7], [1] * 5, 30.0),  # three times, the others once: the median of 10, 30 and 50
        ([7, 1, 7, 2, 3], [1] * 5, None),  # twice is too few
        ([7, 1, 7, 1, 7], [1] * 5, None),  # another candidate is almost as frequent
        ([7, 1, 2, 3, 4], [4, 1, 1, 1, 1], 10.0),  # repeats that were collapsed count
        ([1, 2, 3, 4, 5], [4, 4, 1, 1, 1], None),
        ([1, 1, 1, 1, 1], [1] * 5, None),  # what the archive does not contain makes the difference
    ],
)
def test_the_default_is_the_candidate_that_was_measured_clearly_most_often(codes, counts, cost) -> None:
    assert find_default_cost(Candidates(codes, counts, [10, 20, 30, 40, 50]), 0) == cost


def test_a_tile_costs_one_if_it_is_the_default() -> None:
    assert find_default_cost(Candidates([1, 2], [1, 1], [10, 20], kind="tile"), 0) == 1.0
