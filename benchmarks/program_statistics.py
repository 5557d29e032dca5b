"""Statistics of the nodes of generated programs beside those of the real graphs.

    python benchmarks/program_statistics.py [FOLDER] [--scale demo] [--programs 64]
    python benchmarks/program_statistics.py --quick    # a few tiny programs, to check that it runs

FOLDER contains the real archives (default: TPUGRAPHS_REAL_DATA, or ../shared/real). The generated programs are those of
the train split that `tpugraphs simulate --seed 0` writes. A share is the mean over graphs, so that a long graph counts
as much as a short one. The distance between two distributions is their total variation, half the sum of absolute
differences: 0 if they are equal, 1 if nothing is common. "outside" is the share of a real graph's nodes with a feature
below the minimum or above the maximum of that feature among the generated programs of its source.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from real_data import REAL_DATA

from tpugraphs_polynormer.archives.npz import LayoutArchive, TileArchive, read_archive
from tpugraphs_polynormer.hlo.features import (
    ELEMENT_TYPE,
    ELEMENT_TYPE_NAMES,
    ELEMENT_TYPE_ORDER,
    SHAPE_DIMENSIONS,
    ModuleArrays,
    featurize_module,
)
from tpugraphs_polynormer.hlo.opcodes import OPCODE_NAMES
from tpugraphs_polynormer.simulator.programs import SOURCES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES
from tpugraphs_polynormer.simulator.tiles import cut_kernel

Graph = LayoutArchive | TileArchive | ModuleArrays
SEED = 0
SHOWN = ("get-tuple-element", "parameter", "constant", "broadcast", "convert", "all-reduce", "convolution", "dot")


def read_real(folder: Path) -> tuple[dict[str, dict[str, Graph]], list[Graph]]:
    """Real layout graphs by source and name, each graph once, and the real tile kernels."""
    layouts: dict[str, dict[str, Graph]] = {"xla": {}, "nlp": {}}
    kernels, seen = [], set()
    for path in sorted((folder / "tpugraphs").rglob("*.npz")):
        archive = read_archive(path)
        content = archive.node_feat.tobytes()
        if isinstance(archive, TileArchive):
            kernels.append(archive)
        elif content not in seen:
            layouts["nlp" if "nlp" in path.parts else "xla"][path.stem] = archive
        seen.add(content)
    return layouts, kernels


def generate(source: str, scale: str, count: int) -> list[Graph]:
    """The first programs of the simulated train split of a source."""
    graphs, families, size = [], SOURCES[source], SCALES[scale].size
    for number in range(count):
        rng = np.random.default_rng([SEED, sorted(SOURCES).index(source), number])
        graphs.append(featurize_module(draw_program(families[number % len(families)], size, rng)))
    return graphs


def generate_kernels(scale: str, count: int) -> list[Graph]:
    """Tile kernels of all families."""
    families = [family for each in SOURCES.values() for family in each]
    kernels, plan = [], SCALES[scale]
    for number in range(count):
        rng = np.random.default_rng([SEED, len(SOURCES), number])
        module = draw_program(families[number % len(families)], plan.kernel_size, rng)
        kernels.append(featurize_module(cut_kernel(module, rng, plan.kernel_nodes)))
    return kernels


def opcodes(graph: Graph) -> list[str]:
    """The opcode of each node."""
    return [OPCODE_NAMES[number] for number in graph.node_opcode.tolist()]


def ranks(graph: Graph) -> list[str]:
    """The number of dimensions of each node."""
    return [f"rank {rank}" for rank in np.count_nonzero(graph.node_feat[:, SHAPE_DIMENSIONS], axis=1).tolist()]


def element_types(graph: Graph) -> list[str]:
    """The element type of each node."""
    columns = graph.node_feat[:, ELEMENT_TYPE].argmax(axis=1).tolist()
    return [ELEMENT_TYPE_NAMES[ELEMENT_TYPE_ORDER[column]] for column in columns]


def mean_shares(graphs: Sequence[Graph], label: Callable[[Graph], list[str]]) -> dict[str, float]:
    """For each label its share of the nodes, averaged over the graphs."""
    shares: dict[str, float] = {}
    for graph in graphs:
        labels = label(graph)
        for each in labels:
            shares[each] = shares.get(each, 0.0) + 1 / len(labels) / len(graphs)
    return shares


def total_variation(first: dict[str, float], second: dict[str, float]) -> float:
    """Half the sum of absolute differences of two distributions."""
    return sum(abs(first.get(each, 0.0) - second.get(each, 0.0)) for each in first.keys() | second.keys()) / 2


def share_outside(graph: Graph, train: Sequence[Graph]) -> float:
    """The share of a graph's nodes with a feature outside the range of the train graphs."""
    low = np.min([each.node_feat.min(axis=0) for each in train], axis=0)
    high = np.max([each.node_feat.max(axis=0) for each in train], axis=0)
    return float(((graph.node_feat < low) | (graph.node_feat > high)).any(axis=1).mean())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=REAL_DATA, metavar="FOLDER")
    parser.add_argument("--scale", choices=SCALES, default="demo")
    parser.add_argument("--programs", type=int, default=64, help="programs of each source (default 64, as the demo)")
    parser.add_argument("--quick", action="store_true", help="eight tiny programs of each source: does it run?")
    arguments = parser.parse_args(argv)
    real, real_kernels = read_real(arguments.folder)
    if not real_kernels:
        print(f"no real archives below {arguments.folder}/tpugraphs: set TPUGRAPHS_REAL_DATA", file=sys.stderr)
        return 1
    scale, count = ("tiny", 8) if arguments.quick else (arguments.scale, arguments.programs)
    made = {source: generate(source, scale, count) for source in SOURCES}
    print("| statistic | real xla | generated xla | real nlp | generated nlp |\n|---|---|---|---|---|")
    groups = [list(graphs) for source in real for graphs in (real[source].values(), made[source])]
    for label, names in ((opcodes, SHOWN), (ranks, ()), (element_types, ())):
        shares = [mean_shares(group, label) for group in groups]
        for name in names or sorted({each for share in shares for each in share}):
            print(f"| {name} | " + " | ".join(f"{share.get(name, 0):.1%}" for share in shares) + " |")
        distances = [total_variation(*shares[start : start + 2]) for start in (0, 2)]
        print(f"| distance of {label.__name__.replace('_', ' ')} | | {distances[0]:.3f} | | {distances[1]:.3f} |")
    print("\n| real graph | nodes | outside the generated range |\n|---|---|---|")
    for source, graphs in real.items():
        for name, graph in graphs.items():
            print(f"| {name} | {len(graph.node_opcode):,} | {share_outside(graph, made[source]):.1%} |")
    kernels = generate_kernels(scale, 4 * count)
    known = {each for graph in [*made["xla"], *made["nlp"], *kernels] for each in opcodes(graph)}
    found = {each for graphs in [*real.values()] for graph in graphs.values() for each in opcodes(graph)}
    found |= {each for graph in real_kernels for each in opcodes(graph)}
    missing = ", ".join(sorted(found - known)) or "none"
    print(f"\nopcodes of the real archives: {len(found)}; never generated: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
