"""What the real TPU compiler says of the training and scoring steps: they compile, fit, and take so many cycles.

    python benchmarks/tpu_step.py --work DIR                  # the demo's step, and the official sizes on five chips
    python benchmarks/tpu_step.py --work DIR --tables demo    # one of the tables: demo, replicas, nodes, official
    python benchmarks/tpu_step.py --quick                     # one tiny step: does it run?

Needs the extra `tpu-compiler`, and no TPU. Each answer is kept in DIR by the hash of its program, so a rerun continues
where the last one ended; collections whose steps are equal share a row. Estimates have no noise: they are
those of the compiler, the sum over ops that carry one. Ops without an estimate (gathers, scatters) are counted beside.
A cell of a chip has the memory of one device, its share of the chip's, and the estimated time of a step.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf
from official_peers import OfficialLayoutPeer

from tpugraphs_polynormer.catalog import COLLECTIONS, find_collection
from tpugraphs_polynormer.compiler.compile import compile_for_tpu
from tpugraphs_polynormer.compiler.record import CompileRecord
from tpugraphs_polynormer.compiler.topologies import GIB, TOPOLOGIES
from tpugraphs_polynormer.config.loader import find_config
from tpugraphs_polynormer.config.schema import RankingConfig, load_config
from tpugraphs_polynormer.models.ranking.batch import unpack_batch
from tpugraphs_polynormer.nodes.traced_step import trace_node_step
from tpugraphs_polynormer.ranking import traced_steps
from tpugraphs_polynormer.ranking.traced_steps import (
    blank_batch,
    official_batches,
    trace_ranking_step,
)
from tpugraphs_polynormer.training.losses import build_loss
from tpugraphs_polynormer.training.traced_step import trace_function

# The batch of the demo's layout:xla:random that the first measurement used: 4 graphs of 16 candidates.
DEMO_LIMITS = {"nodes": 7448, "edges": 8700, "config_nodes": 216, "config_edges": 428, "config_values": 104}
DEMO = "demo/layout_xla_random"
PACKED = {"layout:xla": 45_056, "layout:nlp": 22_528, "tile": 2_560}  # nodes of a batch, as in configs/ranking
MODELS = ("polynormer", "polynormer_local", "graphsage")
# What the step of commit bef7e82 took, before this was built: Mcycles on v4.
BEFORE = {
    "late fusion, no encoder over config nodes": "7.23",
    "late fusion, as shipped": "the compiler aborts",
    "late fusion, polynormer-local": "the compiler aborts (6ee5dd3)",
    "late fusion, graphsage": "the compiler aborts",
    "early fusion": "28.30",
}


@dataclass(frozen=True)
class Row:
    """One line of a table: a program, and what to say of it."""

    name: str
    topology: str
    trace: Callable[[], bytes]
    num_replicas: int = 1
    notes: tuple[str, ...] = ()


def demo_rows(topology: str = "v4:2x2x1") -> Iterator[Row]:
    """The demo's config in its forms, and the official baseline on the same batch."""
    forms = {
        "late fusion, no encoder over config nodes": ["model.num_nconfig_layers=0"],
        "late fusion, as shipped": [],
        "late fusion, polynormer-local": ["model.encoder=polynormer-local"],
        "late fusion, graphsage": ["model.encoder=graphsage", "model.num_heads=8"],
        "early fusion": ["model.fusion=early"],
    }
    for name, overrides in forms.items():
        config = load_config(find_config(DEMO), ["data.static_shapes=true", *overrides])
        yield Row(name, topology, _step(config, DEMO_LIMITS), notes=(BEFORE.get(name, "not measured"),))
    yield Row("official GraphSAGE, its own operations", topology, _official_peer, notes=("",))


def official_rows(precision: str, step: str, chosen: argparse.Namespace) -> Iterator[Row]:
    """The shipped configs at the official sizes; collections whose steps are equal share a row."""
    for folder in chosen.folders:
        for model in chosen.models:
            for collections, config in _distinct_configs(folder, model, precision, chosen.collections):
                name = f"{folder}/{model}/{' and '.join(each.replace(':', '_') for each in collections)}"
                sizes = official_batches(config)
                notes = (f"{sizes.graphs_per_batch:.1f}", f"{100 * sizes.padding_share:.0f} %")
                for part, trace in _parts(config, sizes.limits, step):
                    for topology in chosen.topologies:
                        yield Row(f"{name}{part}", topology, trace, notes=notes)


def _distinct_configs(
    folder: str, model: str, precision: str, collections: Sequence[str]
) -> list[tuple[list[str], RankingConfig]]:
    """The configs whose steps differ, each with the collections that have it: equal fields and equal sizes."""
    found: list[tuple[list[str], RankingConfig]] = []
    for collection in collections:
        overrides = ["data.static_shapes=true", f"training.precision={precision}"]
        if folder == "paper":  # its batch is packed on TPUs; see docs/tpu.md
            overrides.append(f"data.batch_nodes={PACKED[collection.rpartition(':')[0]]}")
        config = load_config(find_config(f"{folder}/{model}/{collection.replace(':', '_')}"), overrides)
        for names, other in found:
            same = dataclasses.replace(config, data=dataclasses.replace(config.data, collection=names[0]))
            if same == other and official_batches(config) == official_batches(other):
                names.append(collection)
                break
        else:
            found.append(([collection], config))
    return found


def _parts(config: RankingConfig, limits: dict[str, int], step: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
    if step == "train":
        yield "", _step(config, limits)
        return
    for index, part in enumerate(("encode", "score")):
        yield f" {part}", lambda index=index: traced_steps.trace_scoring_steps(config)[index][1]


def _step(config: RankingConfig, limits: dict[str, int], num_replicas: int = 1) -> Callable[[], bytes]:
    return lambda: trace_ranking_step(config, limits, num_replicas=num_replicas)


def replica_rows() -> Iterator[Row]:
    """The demo's step on one replica and on four that sum their gradients."""
    for precision in ("float32", "bfloat16"):
        config = load_config(find_config(DEMO), ["data.static_shapes=true", f"training.precision={precision}"])
        for count in (1, 4):
            trace = _step(config, DEMO_LIMITS, count)
            yield Row(f"{DEMO}, {precision}, {count} replicas", "v4:2x2x1", trace, count)


def node_rows(topologies: Sequence[str], precisions: Sequence[str]) -> Iterator[Row]:
    """Node classification at the size of ogbn-arxiv, the whole graph in one step, in the global phase."""
    for precision in precisions:
        overrides = ["model.recompute=true", "training.epochs=500", f"training.precision={precision}"]
        config = load_config(find_config("nodes/ogbn-arxiv"), overrides)
        for topology in topologies:
            yield Row(f"nodes/ogbn-arxiv, recompute, {precision}", topology, lambda c=config: trace_node_step(c))


def _official_peer() -> bytes:
    """The official layout baseline's training step, on the demo's batch as one graph."""
    config = load_config(find_config(DEMO))
    kind = find_collection(config.data.collection).kind
    graph = blank_batch(kind, DEMO_LIMITS, config.data.graphs_per_batch, config.data.candidates_per_graph)
    model, optimizer = OfficialLayoutPeer(32, 2), tf.keras.optimizers.Adam()
    loss = build_loss({**config.loss.weights, "pairwise_logistic": 0.0, "list_mle_slowest": 1.0})
    model.score(unpack_batch(graph), tf.zeros([]), training=False)
    optimizer.build(model.trainable_variables)

    def step(*flat: tf.Tensor) -> tf.Tensor:
        batch = unpack_batch(tf.nest.pack_sequence_as(graph, flat, expand_composites=True))
        with tf.GradientTape() as tape:
            scores = model.score(batch, tf.zeros([]), training=True)
            costs = tf.nest.pack_sequence_as(graph, flat, expand_composites=True).context["costs"][:1]
            value = tf.reduce_sum(loss(costs, scores, tf.ones_like(scores, tf.bool)))
        gradients = tape.gradient(value, model.trainable_variables)
        dense = [tf.convert_to_tensor(each) for each in gradients]
        optimizer.apply_gradients(zip(dense, model.trainable_variables, strict=True))
        return value

    return trace_function(step, *tf.nest.flatten(graph, expand_composites=True))


def print_table(title: str, rows: Iterator[Row], columns: Sequence[str], cache: Path) -> None:
    """Prints a Markdown table, line by line as the answers come."""
    names = ["step", "chip", *columns, "compiles", "HBM", "Mcycles", "ms", "gathers, scatters, sorts"]
    print(f"\n{title}\n\n| {' | '.join(names)} |\n{'|---' * len(names)}|", flush=True)
    traced: dict[str, bytes] = {}
    for row in rows:
        if row.name not in traced:
            traced = {row.name: row.trace()}
        record = compile_for_tpu(traced[row.name], row.topology, num_replicas=row.num_replicas, cache_dir=cache)
        print(f"| {row.name} | {' | '.join([row.topology, *row.notes, *format_record(record)])} |", flush=True)


def print_matrix(
    title: str, rows: Iterator[Row], columns: Sequence[str], topologies: Sequence[str], cache: Path
) -> None:
    """Prints a Markdown table with a line per step and a column per chip, line by line as the answers come."""
    names = ["step", *columns, *topologies, "gathers, scatters, sorts"]
    print(f"\n{title}\n\n| {' | '.join(names)} |\n{'|---' * len(names)}|", flush=True)
    for name, members in itertools.groupby(rows, key=lambda row: row.name):
        steps = list(members)
        traced = steps[0].trace()
        records = [compile_for_tpu(traced, each.topology, cache_dir=cache) for each in steps]
        cells = [
            f"{_describe_memory(each)}, {each.milliseconds:.2f} ms" if each.compiles else _first_reason(each)
            for each in records
        ]
        moved = sorted({_count_moved(each) for each in records if each.compiles})
        span = " to ".join(str(each) for each in dict.fromkeys((moved[0], moved[-1]))) if moved else ""
        print(f"| {' | '.join([name, *steps[0].notes, *cells, span])} |", flush=True)


def _describe_memory(record: CompileRecord) -> str:
    return f"{record.total_bytes / GIB:.2f} GiB ({100 * record.hbm_share:.0f} %)"


def _first_reason(record: CompileRecord) -> str:
    return record.error.split(";")[0]


def _count_moved(record: CompileRecord) -> int:
    """The ops that move data by indices, which have no estimate."""
    return sum(count for name, count in record.unestimated.items() if name in ("gather", "scatter", "sort"))


def format_record(record: CompileRecord) -> list[str]:
    """Cells of the table: compiles, HBM, Mcycles, ms, ops without an estimate."""
    if not record.compiles:
        return [_first_reason(record), "", "", "", ""]
    times = f"{record.cycles / 1e6:.2f}", f"{record.milliseconds:.2f}"
    return ["yes", _describe_memory(record), *times, f"{_count_moved(record)}"]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = ("demo", "replicas", "nodes", "official")
    parser.add_argument("--tables", nargs="+", choices=tables, default=list(tables))
    parser.add_argument("--topologies", nargs="+", default=list(TOPOLOGIES))
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--folders", nargs="+", choices=("ranking", "paper"), default=["ranking", "paper"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--collections", nargs="+", choices=list(COLLECTIONS), default=list(COLLECTIONS))
    parser.add_argument("--steps", nargs="+", choices=("train", "score"), default=["train", "score"])
    parser.add_argument("--work", type=Path, help="folder of the compiler's answers (default: none are kept)")
    parser.add_argument("--quick", action="store_true", help="one tiny step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpugraphs-") as folder:
        cache = arguments.work or Path(folder)
        if arguments.quick:
            config = load_config(find_config("demo/tile_xla"), ["data.static_shapes=true", "data.graphs_per_batch=2"])
            limits = dict.fromkeys(DEMO_LIMITS, 8)
            print_table("quick", iter([Row("demo/tile_xla", "v4:2x2x1", _step(config, limits))]), [], cache)
            return
        if "demo" in arguments.tables:
            print_table("The demo's step, and that of commit bef7e82", demo_rows(), ["before: Mcycles"], cache)
        if "replicas" in arguments.tables:
            print_table("Replicas", replica_rows(), [], cache)
        if "nodes" in arguments.tables:
            rows = node_rows(arguments.topologies, arguments.precisions)
            print_matrix("Node classification", rows, [], arguments.topologies, cache)
        if "official" in arguments.tables:
            for step in arguments.steps:
                for precision in arguments.precisions:
                    rows = official_rows(precision, step, arguments)
                    title, columns = f"Official sizes, {step}, {precision}", ["graphs", "padding"]
                    print_matrix(title, rows, columns, arguments.topologies, cache)


if __name__ == "__main__":
    main()
