"""Node classification: Polynormer and tuned classic GNNs on the data sets at hand, beside the published numbers.

    python benchmarks/nodes.py --work DIR                       # every model on every data set, three runs: days
    python benchmarks/nodes.py --work DIR --width 64            # at most 64 wide: hours
    python benchmarks/nodes.py --work DIR --datasets minesweeper --models gcn --options entropy edge_dropout ema
    python benchmarks/nodes.py --work DIR --datasets minesweeper --models small            # configs/nodes/small
    python benchmarks/nodes.py --work DIR --models polynormer-r --splits 0 --epochs 4      # time and memory only
    python benchmarks/nodes.py --quick                          # one narrow layer and epoch, to check that it runs

Each run is a child process, so peak memory is that of the run. Runs resume and finished ones are reused: the same
command continues. A data set with one official split is trained on it with a seed for each number of --splits.
Polynormer is without ReLU, Polynormer-r with it; Polynormer-local is Polynormer-r without global layers, trained for as
many epochs. No tuned configs are published for tolokers: the baselines have minesweeper's settings there.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import resource
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from child import run_child
from real_data import REAL_DATA

from tpugraphs_polynormer.catalog import BENCHMARKS
from tpugraphs_polynormer.config.loader import find_config
from tpugraphs_polynormer.config.schema import NodeConfig, load_config
from tpugraphs_polynormer.files import write_text
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory

DATASETS = ("minesweeper", "tolokers", "amazon-photo", "coauthor-cs")
BASELINES = ("gcn", "graphsage", "gat")
MODELS = {
    "polynormer": "Polynormer",
    "polynormer-r": "Polynormer-r",
    "polynormer-local": "Polynormer-local",
    "gcn": "GCN, tuned",
    "graphsage": "GraphSAGE, tuned",
    "gat": "GAT, tuned",
    "small": "Polynormer-r, small config",
}
OPTIONS = {
    "entropy": "training.entropy_weight=0.1",
    "edge_dropout": "model.edge_dropout_rate=0.1",
    "ema": "training.ema_decay=0.99",
}
# Test scores in per cent: Luo et al., "Classic GNNs are Strong Baselines", 2024.
TUNED_SCORES = {
    "minesweeper": {"gcn": 97.86, "graphsage": 97.77, "gat": 97.73},
    "amazon-photo": {"gcn": 96.10, "graphsage": 96.78, "gat": 96.60},
    "coauthor-cs": {"gcn": 96.17, "graphsage": 96.38, "gat": 96.21},
}
HEAD = "| data set | model | test, per cent | runs | width | epochs | s per training epoch | peak, GB | published |"
QUICK = ("model.num_local_layers=1",)


@dataclass(frozen=True)
class Job:
    """One run: a shipped config and its changes, the number of the split (or seed), and where it is kept."""

    config: str
    overrides: tuple[str, ...]
    number: int
    data: str
    run: str


@dataclass(frozen=True)
class Measured:
    """What a run's child process found."""

    test: float  # of the best validation epoch, in [0, 1]
    seconds: dict[str, float]  # the median of a training epoch, by phase
    peak_gigabytes: float


def choose_config(dataset: str, model: str) -> tuple[str, tuple[str, ...]]:
    """The name of a shipped config, and what makes a model of the table of it."""
    if model in BASELINES:
        is_published = dataset in TUNED_SCORES
        of = dataset if is_published else "minesweeper"
        return f"nodes/tuned/{model}/{of}", () if is_published else (f"data.benchmark={dataset}",)
    if model == "small":
        return f"nodes/small/{dataset}", ()
    own = {
        "polynormer": ("model.relu=false",),
        "polynormer-r": (),
        "polynormer-local": (
            *("model.encoder=polynormer-local", "model.num_global_layers=1", "model.global_dropout_rate=0"),
        ),
    }
    return f"nodes/{dataset}", own[model]


def choose_sizes(config: NodeConfig, args: argparse.Namespace) -> tuple[str, ...]:
    """The overrides of width and epochs that the command line asks for."""
    sizes, training = [], config.training
    if args.width and config.model.hidden_dim > args.width:
        sizes.append(f"model.hidden_dim={args.width}")
    for name in ("local_epochs", "epochs"):
        published = getattr(training, name)
        wanted = min(published, args.epochs) if args.epochs else math.ceil(published * args.epochs_scale)
        if wanted != published:
            sizes.append(f"training.{name}={wanted}")
    return tuple(sizes)


def run_row(config_name: str, overrides: Sequence[str], args: argparse.Namespace) -> list[Measured]:
    """The runs of a row of the table, one after another."""
    changes = "+".join(re.sub(r"[^\w.=-]", "_", each) for each in overrides) or "published"
    folder = args.work / config_name.removeprefix("nodes/") / changes
    jobs = [
        Job(config_name, tuple(overrides), number, str(args.data), str(folder / f"run_{number}"))
        for number in args.splits
    ]
    return [run_job(job) for job in jobs]


def run_job(job: Job) -> Measured:
    """What a job's child process measured, now or before."""
    path = Path(job.run) / "measured.json"
    if not path.exists():
        found = run_child("nodes", asdict(job))
        write_text(path, json.dumps(found) + "\n")
    measured = Measured(**json.loads(path.read_text()))
    print(f"{job.run}: test {measured.test:.4f}", file=sys.stderr, flush=True)
    return measured


def measure(fields: dict) -> dict:
    """The fields of a Measured, after a Job of these fields is trained or resumed: in the child process."""
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.nodes.benchmark import run_dataset
    from tpugraphs_polynormer.nodes.datasets import read_benchmark
    from tpugraphs_polynormer.training.run_directory import RunDirectory

    job = Job(**fields)
    config = load_config(find_config(job.config), job.overrides)
    dataset = read_benchmark(config.data.benchmark, Path(job.data), directed=config.model.directed)
    split = job.number
    if len(dataset.splits) == 1:  # run_dataset adds the number of the split to the seed
        config, split = replace(config, seed=config.seed + job.number), 0
    results = run_dataset(config, dataset, job.run, [split])
    times: dict[str, list[float]] = {}
    for record in RunDirectory.open(Path(job.run) / f"split_{split}").read_metrics():
        times.setdefault(record["phase"], []).append(record["train_seconds"])
    # The first epoch of a phase also traces.
    seconds = {phase: statistics.median(each[1:] or each) for phase, each in times.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return asdict(Measured(results["splits"][0]["test"], seconds, peak))


def find_published(dataset: str, model: str) -> str:
    """The published test score of a model, in per cent, or a dash."""
    known = BENCHMARKS[dataset]
    scores = {"polynormer": known.paper_score, "polynormer-r": known.paper_score_relu, **TUNED_SCORES.get(dataset, {})}
    return f"{scores[model]:.2f}" if model in scores else "-"


def format_row(name: str, config: NodeConfig, measured: Sequence[Measured], published: str) -> str:
    """A line of the table."""
    tests = [100 * each.test for each in measured]
    spread = f" ± {statistics.stdev(tests):.2f}" if len(tests) > 1 else ""
    seconds = (
        f"{statistics.median(each.seconds[phase] for each in measured):.3f} ({phase})" for phase in measured[0].seconds
    )
    epochs = " + ".join(str(each) for each in (config.training.local_epochs, config.training.epochs) if each)
    peak = max(each.peak_gigabytes for each in measured)
    cells = [config.data.benchmark, name, f"{statistics.mean(tests):.2f}{spread}", str(len(tests))]
    cells += [str(config.model.hidden_dim), epochs, ", ".join(seconds), f"{peak:.2f}", published]
    return f"| {' | '.join(cells)} |"


def compare(args: argparse.Namespace) -> list[dict]:
    """Trains the missing runs and prints the table, line by line; returns its rows."""
    plan = []
    for dataset in args.datasets:
        for model in args.models:
            config_name, own = choose_config(dataset, model)
            sizes = choose_sizes(load_config(find_config(config_name), own), args)
            for option in (None, *args.options):
                extra = () if option is None else (OPTIONS[option],)
                overrides = (*own, *sizes, *extra, *args.overrides)
                config = load_config(find_config(config_name), overrides)  # before any run: a mistake costs nothing
                plan.append((dataset, model, option, config_name, overrides, config))
    print(f"{HEAD}\n|{'---|' * 9}", flush=True)
    rows = []
    for dataset, model, option, config_name, overrides, config in plan:
        measured = run_row(config_name, overrides, args)
        name = MODELS[model] + (f", {OPTIONS[option]}" if option else "")
        published = "-" if option else find_published(dataset, model)
        print(format_row(name, config, measured, published), flush=True)
        names = {"dataset": dataset, "model": model, "option": option, "config": config_name}
        rows.append({**names, "overrides": overrides, "runs": [asdict(each) for each in measured]})
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=REAL_DATA / "nodes")
    parser.add_argument("--work", type=Path, default=Path("runs") / "nodes", help="folder of the runs")
    parser.add_argument("--datasets", nargs="+", choices=list(BENCHMARKS), default=list(DATASETS))
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=[each for each in MODELS if each != "small"]
    )
    parser.add_argument("--options", nargs="+", choices=list(OPTIONS), default=[], help="one more row per model each")
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2], help="official splits, or seeds")
    parser.add_argument("--width", type=int, default=0, help="widest hidden_dim; 0 for the published ones")
    epochs = parser.add_mutually_exclusive_group()
    epochs.add_argument("--epochs-scale", type=float, default=1.0, help="factor of the published epochs")
    epochs.add_argument("--epochs", type=int, default=0, help="most epochs of a phase; 0 for the published ones")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", dest="overrides")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--quick", action="store_true", help="one narrow layer, one epoch of each phase: does it run?")
    return parser.parse_args()


def main() -> None:
    """The command line."""
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        if args.quick:
            args.work, args.datasets, args.models, args.splits = (
                Path(folder),
                ["minesweeper"],
                ["polynormer", "gcn"],
                [0],
            )
            args.width, args.epochs, args.overrides = 8, 1, [*QUICK, *args.overrides]
        rows = compare(args)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
