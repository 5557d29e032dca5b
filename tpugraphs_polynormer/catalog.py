"""The five TpuGraphs collections and the thirteen node-classification benchmarks: names, folders, official counts."""

from __future__ import annotations

from dataclasses import dataclass

from tpugraphs_polynormer.errors import UserError

SPLITS = ("train", "valid", "test")
NUM_NODE_FEATURES = 140
NUM_OPCODES = 121  # ids 1..120, and 0 for an opcode that is not in the table
NUM_TILE_FEATURES = 24  # kernel, output and input bounds: 6 values, their sum and their product each
NUM_LAYOUT_FEATURES = 18  # minor-to-major dims of output, input and kernel, 6 each, padded with -1
LAYOUT_MIN, LAYOUT_MAX = -1, 5  # the range of a layout feature
TILE_TOP = 5  # a row of a tile graph in a submission lists this many candidates
LAYOUT_TEST_CANDIDATES = (1000, 1001)  # the numbers of candidates of layout graphs in the official test split
# The noise (archives/noise.py) of a graph without repeated measurements. Two measurements of one candidate of the real
# alexnet_train_batch_32 differ by at most 9.8e-4 in 95 % of the cases, and by at most 2.5e-4 in half of them.
TYPICAL_NOISE = 1e-3


QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
LARGEST_CONFIG_NODES = 3143  # of the official layout graphs


@dataclass(frozen=True)
class Collection:
    """One TpuGraphs collection, with the official counts.

    `num_graphs` has the numbers of train, valid and test. `num_candidates` has, for a layout collection, the QUANTILES
    of the number of candidates per train graph (a test graph has 1,000 or 1,001), and for tiles the smallest and the
    largest number. `num_nodes` and `num_edges` have the QUANTILES over the graphs of all splits; for tiles they are the
    smallest, the median and the largest number, of which the last is assumed ("hundreds").
    """

    id: str
    kind: str  # "tile" or "layout"
    num_graphs: tuple[int, int, int]
    num_candidates: tuple[int, ...]
    num_nodes: tuple[int, ...]
    num_edges: tuple[int, ...]

    @property
    def folder(self) -> str:
        """The collection's folder below `npz/` in the official tree."""
        return self.id.replace(":", "/")

    @property
    def num_test_graphs(self) -> int:
        """The official number of test graphs, which is the number of the collection's rows in a submission."""
        return self.num_graphs[SPLITS.index("test")]


@dataclass(frozen=True)
class Benchmark:
    """One node-classification data set of the Polynormer paper; edges are undirected, without self-loops."""

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    metric: str  # "accuracy" or "roc_auc"
    paper_score: float  # Polynormer, per cent
    paper_score_relu: float  # Polynormer-r, per cent


_XLA_SIZES = (
    (372, 4_185, 5_673, 12_062, 21_196, 26_234, 43_615),
    (597, 7_209, 9_160, 20_569, 35_460, 48_094, 73_881),
)
_NLP_SIZES = (
    (876, 1_316, 1_976, 3_296, 8_701, 10_124, 21_919),
    (1_366, 2_010, 2_976, 4_966, 14_350, 16_696, 36_279),
)
COLLECTIONS: dict[str, Collection] = {
    collection.id: collection
    for collection in (
        Collection("tile:xla", "tile", (5709, 676, 844), (2, 9_900), (2, 39, 512), (1, 40, 640)),
        Collection(
            "layout:xla:default",
            "layout",
            (61, 7, 8),
            (1_159, 5_408, 6_623, 10_528, 17_632, 34_200, 100_040),
            *_XLA_SIZES,
        ),
        Collection(
            "layout:xla:random", "layout", (69, 7, 8), (20, 335, 2_887, 8_368, 15_112, 24_222, 100_040), *_XLA_SIZES
        ),
        Collection(
            "layout:nlp:default",
            "layout",
            (198, 20, 17),
            (11_296, 19_883, 32_636, 67_832, 100_040, 100_040, 100_040),
            *_NLP_SIZES,
        ),
        Collection(
            "layout:nlp:random",
            "layout",
            (207, 20, 17),
            (11_098, 19_563, 32_588, 67_000, 100_040, 100_040, 100_040),
            *_NLP_SIZES,
        ),
    )
}

NUM_TEST_GRAPHS = sum(collection.num_test_graphs for collection in COLLECTIONS.values())  # rows of a submission

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("amazon-computer", 13_752, 245_861, 767, 10, "accuracy", 93.18, 93.68),
        Benchmark("amazon-photo", 7_650, 119_081, 745, 8, "accuracy", 96.11, 96.46),
        Benchmark("coauthor-cs", 18_333, 81_894, 6_805, 15, "accuracy", 95.51, 95.53),
        Benchmark("coauthor-physics", 34_493, 247_962, 8_415, 5, "accuracy", 97.22, 97.27),
        Benchmark("wikics", 11_701, 216_123, 300, 10, "accuracy", 79.53, 80.10),
        Benchmark("roman-empire", 22_662, 32_927, 300, 18, "accuracy", 92.13, 92.55),
        Benchmark("amazon-ratings", 24_492, 93_050, 300, 5, "accuracy", 54.46, 54.81),
        Benchmark("minesweeper", 10_000, 39_402, 7, 2, "roc_auc", 96.96, 97.46),
        Benchmark("tolokers", 11_758, 519_000, 10, 2, "roc_auc", 84.83, 85.91),
        Benchmark("questions", 48_921, 153_540, 301, 2, "roc_auc", 77.95, 78.92),
        Benchmark("ogbn-arxiv", 169_343, 1_166_243, 128, 40, "accuracy", 71.82, 73.46),
        Benchmark("ogbn-products", 2_449_029, 61_859_140, 100, 47, "accuracy", 82.97, 83.82),
        Benchmark("pokec", 1_632_803, 30_622_564, 65, 2, "accuracy", 85.95, 86.10),
    )
}


def find_collection(collection_id: str) -> Collection:
    """The collection of an id; UserError lists the five."""
    if collection_id not in COLLECTIONS:
        raise UserError(f"unknown collection {collection_id!r}; choose from {', '.join(COLLECTIONS)}")
    return COLLECTIONS[collection_id]


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of a name; UserError lists the thirteen."""
    if name not in BENCHMARKS:
        raise UserError(f"unknown benchmark {name!r}; choose from {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]
