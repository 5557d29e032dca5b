"""Time and memory of a training step and of scoring, for early and late fusion and for plain models.

    python benchmarks/ranking_step.py            # everything
    python benchmarks/ranking_step.py --quick    # a tiny program, few candidates, one layer, to check that it runs
    python benchmarks/ranking_step.py --only polynormer --candidates 16

Layout: a simulated program of about 8,000 nodes, 600 of them configurable. Tile: a simulated kernel of about 40 nodes.
`official` has the operations of the official baselines' code (official_peers.py); `graphsage` is their architecture in
this package. `plain` is this package's model on states [nodes, candidates, width], with messages that TensorFlow's own
ops gather, weight and sum; `naive` is the same with this package's aggregations; `early` also shares states between
candidates (layers/shared_states.py); `late` is fusion after the encoder. The official layout model takes half a minute
per step.

Each measurement runs in its own process; contenders alternate, and the table has medians over the rounds. Peak memory
is the largest memory of the process minus its memory before the first step. A contender that dies is shown as "-".
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

    from tpugraphs_polynormer.models.ranking.batch import Batch

WIDTH = 64
PROGRAM_SEED = 7  # a transformer of 7,814 nodes
COUNTS = ((16, 64), (16, 64, 1000), (1000, 4000))  # candidates: a training step, scoring layouts, scoring tiles
QUICK_COUNTS = ((4,), (20,), (100,))
OFFICIAL_BLOCK = 16  # candidates per block of the plain layout models; more do not fit into memory
# The architecture and inputs of the official baseline.
OFFICIAL = {"encoder": "graphsage", "fusion": "early", "features": "raw", "readout": "sum"}
PLAIN = ("official", "naive", "plain")  # last word of the contenders that compute every node for every candidate
# Contender -> config of the model; None for the official peer.
LAYOUT = {
    "official": None,
    "graphsage naive": OFFICIAL,
    "graphsage early": OFFICIAL,
    "polynormer-local plain": {"encoder": "polynormer-local", "fusion": "early", "formulation": "unsorted"},
    "polynormer-local naive": {"encoder": "polynormer-local", "fusion": "early"},
    "polynormer-local early": {"encoder": "polynormer-local", "fusion": "early"},
    "polynormer naive": {"encoder": "polynormer", "fusion": "early"},
    "polynormer early": {"encoder": "polynormer", "fusion": "early"},
    "polynormer late": {"encoder": "polynormer", "fusion": "late"},
    "the same, no config-node encoder": {"encoder": "polynormer", "fusion": "late", "num_nconfig_layers": 0},
}
TILE = {
    "official": None,
    "graphsage early": OFFICIAL,
    "polynormer early": {"encoder": "polynormer", "fusion": "early"},
    "polynormer late": {"encoder": "polynormer", "fusion": "late", "num_nconfig_layers": 0},
}


# Data: arrays that are written once and read by every process.


def write_layout_data(path: Path, scale: str, num_configurable: int) -> None:
    """Writes a simulated transformer of the scale with random choices for some of its config nodes."""
    from tpugraphs_polynormer.datasets.config_graph import Program, connect_config_nodes, operand_dims
    from tpugraphs_polynormer.hlo.choices import enumerate_choices
    from tpugraphs_polynormer.hlo.features import featurize_module
    from tpugraphs_polynormer.simulator.programs import draw_program
    from tpugraphs_polynormer.simulator.scales import SCALES

    module = draw_program("transformer", SCALES[scale].size, np.random.default_rng(PROGRAM_SEED))
    arrays, choices = featurize_module(module), enumerate_choices(module)
    random = np.random.default_rng(0)
    count = min(num_configurable, len(choices.node_ids))
    chosen = np.sort(random.choice(len(choices.node_ids), count, replace=False))
    lows, sizes = choices.starts[chosen], choices.counts[chosen]
    codes = lows[:, None] + random.integers(0, sizes[:, None], [count, 1000])
    nconfig_ops = choices.node_ids[chosen]
    program = Program(arrays.node_feat, arrays.node_opcode, *arrays.edge_index.T[::-1], nconfig_ops)
    graph = {"nconfig_dims": operand_dims(program), "meetings": connect_config_nodes(program)}
    _write_data(path, arrays, config_values=choices.table, codes=codes, nconfig_ops=nconfig_ops, **graph)


def write_tile_data(path: Path, num_candidates: int) -> None:
    """Writes a simulated kernel of 35 to 45 nodes with random tile bounds."""
    from tpugraphs_polynormer.datasets.encoding import encode_tiles
    from tpugraphs_polynormer.hlo.features import featurize_module
    from tpugraphs_polynormer.simulator.programs import draw_program
    from tpugraphs_polynormer.simulator.scales import SCALES
    from tpugraphs_polynormer.simulator.tiles import cut_kernel

    random = np.random.default_rng(0)
    while True:
        kernel = cut_kernel(draw_program("transformer", SCALES["small"].size, random), random, 60)
        arrays = featurize_module(kernel)
        if 35 <= len(arrays.node_feat) <= 45:
            break
    bounds = random.integers(1, 65, [num_candidates, 3, 6]).astype(np.float32)
    totals = np.stack([bounds.sum(-1), bounds.prod(-1)], -1)
    config_values, codes = encode_tiles(np.concatenate([bounds, totals], -1).reshape(num_candidates, 24))
    _write_data(path, arrays, config_values=config_values, codes=codes.T)


def _write_data(path: Path, arrays: object, **others: np.ndarray) -> None:
    names = ("node_feat", "node_opcode", "edge_index")
    np.savez(path, **{name: getattr(arrays, name) for name in names}, **others)


# Models; this part runs in the worker.


def make_batch(data: dict[str, np.ndarray], codes: np.ndarray) -> Batch:
    """A batch of one graph with the candidates of `codes` [config nodes, k], as in models/ranking/batch.py."""
    import tensorflow as tf

    from tpugraphs_polynormer.models.ranking.batch import Batch, Meetings

    num_ops, (num_config_nodes, k) = len(data["node_feat"]), codes.shape
    consumers, producers = (tf.constant(ids, tf.int32) for ids in data["edge_index"].T)
    of_layouts = {"nconfig_ops": None, "nconfig_dims": None, "nconfig_edges": None}
    if "nconfig_ops" in data:
        first, second = (tf.constant(ids, tf.int32) for ids in data["meetings"].T)
        of_layouts = {
            "nconfig_ops": tf.constant(data["nconfig_ops"], tf.int32),
            "nconfig_dims": tf.constant(data["nconfig_dims"], tf.float32),
            "nconfig_edges": trace_sort()(first, second, tf.constant(num_config_nodes)),
            "meetings": Meetings(first, second, tf.ones_like(first, tf.bool)),
        }
    return Batch(
        features=tf.constant(data["node_feat"], tf.float32),
        opcodes=tf.constant(data["node_opcode"], tf.int64),
        edges=trace_sort()(producers, consumers, tf.constant(num_ops)),
        producers=producers,
        consumers=consumers,
        op_graph_ids=tf.zeros([num_ops], tf.int32),
        op_mask=tf.ones([num_ops], tf.bool),
        config_values=tf.constant(data["config_values"], tf.float32),
        codes=tf.constant(codes, tf.int32),
        nconfig_graph_ids=tf.zeros([num_config_nodes], tf.int32),
        nconfig_roles=tf.range(num_config_nodes),
        nconfig_mask=tf.ones([num_config_nodes], tf.bool),
        **of_layouts,
        num_graphs=1,
        candidate_mask=tf.ones([1, k], tf.bool),
    )


@functools.cache
def trace_sort() -> Callable:
    """The traced function that sorts edges, as in training and scoring."""
    import tensorflow as tf

    from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_tensors

    return tf.function(build_undirected_edge_tensors, autograph=False)


def build_ours(kind: str, data: dict[str, np.ndarray], name: str, options: dict) -> object:
    from tpugraphs_polynormer.config.schema import RankingModelConfig
    from tpugraphs_polynormer.datasets.statistics import measure_moments, summarize_moments
    from tpugraphs_polynormer.models.ranking.model import RankingModel

    contenders = LAYOUT if kind == "layout" else TILE
    config = RankingModelConfig(**contenders[name], hidden_dim=WIDTH, num_local_layers=options["layers"])
    statistics = summarize_moments(measure_moments(data["node_feat"], data["node_opcode"]))
    return RankingModel(kind=kind, config=config, statistics=statistics, share_states=name.split()[-1] not in PLAIN)


def build_official(kind: str, num_layers: int) -> object:
    from official_peers import OfficialLayoutPeer, OfficialTilePeer

    return (OfficialLayoutPeer if kind == "layout" else OfficialTilePeer)(WIDTH, num_layers)


# Measurements; this part runs in the worker.


def build_training_step(model: object, data: dict[str, np.ndarray], k: int) -> Callable[[], None]:
    """A function that runs one training step: sorting edges, scores of k candidates, loss, gradients, Adam."""
    import tensorflow as tf

    from tpugraphs_polynormer.config.schema import LossConfig
    from tpugraphs_polynormer.training.losses import build_loss

    loss_of, optimizer = build_loss(LossConfig().weights), tf.keras.optimizers.Adam(1e-4)
    costs = tf.constant(np.random.default_rng(1).integers(10**6, 10**7, [1, k]))

    @tf.function(autograph=False)  # as in training: no Python branch depends on a tensor
    def step(batch: Batch) -> tf.Tensor:
        with tf.GradientTape() as tape:
            scores = model.score(batch, model.encode(batch, training=True), training=True)
            loss = tf.reduce_mean(loss_of(costs, scores, batch.candidate_mask))
        gradients = tape.gradient(loss, model.trainable_variables)
        used = [
            (each, weight)
            for each, weight in zip(gradients, model.trainable_variables, strict=True)
            if each is not None
        ]
        optimizer.apply_gradients(used)
        return loss

    return lambda: step(make_batch(data, data["codes"][:, :k])).numpy()


def build_scoring(model: object, data: dict[str, np.ndarray], k: int, block: int) -> Callable[[], None]:
    """A function that scores k candidates in blocks and encodes the graph once, as in ranking/scorer.py."""
    import tensorflow as tf

    encode = tf.function(lambda batch: model.encode(batch, training=False), autograph=False)
    score = tf.function(
        lambda batch, encoded: model.score(batch, encoded, training=False), reduce_retracing=True, autograph=False
    )

    def run() -> None:
        batch = encoded = None
        for start in range(0, k, block):
            codes = data["codes"][:, start : min(k, start + block)]
            if batch is None:
                batch = make_batch(data, codes)
                encoded = encode(batch)
            else:
                batch = batch._replace(
                    codes=tf.constant(codes, tf.int32), candidate_mask=tf.ones([1, codes.shape[1]], tf.bool)
                )
            score(batch, encoded).numpy()

    return run


def choose_block(model: object, kind: str, name: str, data: dict[str, np.ndarray], options: dict) -> int:
    """Candidates per block: as in the package, unless given; plain models use what fits (layout) or all (tile)."""
    from tpugraphs_polynormer.ranking.scorer import block_size

    if name.split()[-1] in PLAIN:
        return OFFICIAL_BLOCK if kind == "layout" else options["candidates"]
    if options["block"]:
        return options["block"]
    num_nodes = len(data["node_feat"])
    num_met = len(data["codes"]) if kind == "layout" else num_nodes
    return block_size(model.config, num_nodes, num_met, options["candidates"])


def measure_here(options: dict) -> dict[str, float]:
    """The median seconds and the peak MiB of one contender, measured in this process."""
    from tpugraphs_polynormer.process import keep_freed_memory  # before TensorFlow: the package selects Keras 2
    import tensorflow as tf  # isort: skip

    keep_freed_memory()
    tf.keras.utils.set_random_seed(0)
    kind, name, k = options["kind"], options["name"], options["candidates"]
    with np.load(options["data"], allow_pickle=False) as file:
        data = dict(file)
    official = name == "official"
    model = build_official(kind, options["layers"]) if official else build_ours(kind, data, name, options)
    if options["what"] == "train":
        run = build_training_step(model, data, k)
    else:
        run = build_scoring(model, data, k, choose_block(model, kind, name, data, options))
    held = _peak_mib()
    run()
    seconds = []
    for _ in range(options["repeats"]):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds), "mib": _peak_mib() - held}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# The table; this part runs in the parent process.


def measure_apart(jobs: list[dict]) -> list[dict[str, float] | None]:
    """The result of `measure_here` for each job, in one new process; None if it died, most likely out of memory."""
    command = [sys.executable, __file__, "--worker", json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        names = ", ".join(job["name"] for job in jobs)
        print(f"{names}: died with {done.returncode}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return [None] * len(jobs)
    return json.loads(done.stdout.splitlines()[-1])


def plan(arguments: argparse.Namespace) -> Iterator[dict]:
    """The groups of contenders that are measured alternately."""
    layers = {"layers": arguments.layers, "repeats": arguments.repeats, "block": arguments.block}
    training, scoring, tiles = QUICK_COUNTS if arguments.quick else COUNTS
    for what, counts in (("train", training), ("score", scoring)):
        for k in counts:
            yield {"kind": "layout", "what": what, "candidates": k, **layers}
    for k in tiles:
        yield {"kind": "tile", "what": "score", "candidates": k, **layers}


def measure_group(group: dict, arguments: argparse.Namespace) -> dict[str, dict[str, float] | None]:
    """The medians over the rounds, by contender; each has its own process, but with --quick they share one."""
    names = [name for name in (LAYOUT if group["kind"] == "layout" else TILE) if arguments.only in name]
    found: dict[str, list] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        alive = [name for name in names if None not in found[name]]
        for together in [alive] if arguments.quick else [[name] for name in alive]:
            results = measure_apart([{**group, "name": name} for name in together])
            for name, result in zip(together, results, strict=True):
                found[name].append(result)
    return {name: _median(results) for name, results in found.items()}


def _median(results: list[dict[str, float] | None]) -> dict[str, float] | None:
    if None in results:
        return None
    return {key: statistics.median(result[key] for result in results) for key in results[0]}


def show(group: dict, results: dict[str, dict[str, float] | None], num_nodes: int) -> None:
    """Prints one table; times are relative to the first contender that did not die."""
    k = group["candidates"]
    print(f"\n{group['kind']}, {group['what']}: {k} candidates, {num_nodes} nodes, {group['layers']} layers of {WIDTH}")
    print(f"{'':<26}{'seconds':>10}{'relative':>10}{'peak MiB':>10}{'candidates/s':>14}{'x nodes/s':>12}")
    base = next((result["seconds"] for result in results.values() if result), None)
    for name, result in results.items():
        if result is None:
            print(f"{name:<26}{'-':>10}")
            continue
        rate = k / result["seconds"]
        numbers = f"{result['seconds']:>10.3f}{result['seconds'] / base:>10.4f}{result['mib']:>10.0f}"
        print(f"{name:<26}{numbers}{rate:>14.1f}{rate * num_nodes:>12.3g}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny program, one layer, one round, one repeat")
    parser.add_argument("--only", default="", help="contenders whose name contains this")
    parser.add_argument("--kind", choices=("layout", "tile"), help="only this kind")
    parser.add_argument("--what", choices=("train", "score"), help="only this measurement")
    parser.add_argument("--candidates", type=int, help="only this number of candidates")
    parser.add_argument("--configurable", type=int, default=600, help="nodes of the program that candidates decide")
    parser.add_argument("--layers", type=int, default=3, help="message passing layers")
    parser.add_argument(
        "--block", type=int, default=0, help="candidates that our models score at once; 0: their choice"
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes per measurement")
    parser.add_argument("--repeats", type=int, default=3, help="steps per process, after one to warm up")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        print(json.dumps([measure_here(job) for job in json.loads(arguments.worker)]))
        return
    if arguments.quick:
        arguments.rounds = arguments.repeats = arguments.layers = 1
    records = []
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: Path(folder) / f"{kind}.npz" for kind in ("layout", "tile")}
        write_layout_data(paths["layout"], "tiny" if arguments.quick else "full", arguments.configurable)
        write_tile_data(paths["tile"], 4000)
        for group in plan(arguments):
            if any(getattr(arguments, key) not in (None, group[key]) for key in ("kind", "what", "candidates")):
                continue
            with np.load(paths[group["kind"]], allow_pickle=False) as file:
                num_nodes = len(file["node_feat"])
            results = measure_group({**group, "data": str(paths[group["kind"]])}, arguments)
            show(group, results, num_nodes)
            records.append({**group, "nodes": num_nodes, "results": results})
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
