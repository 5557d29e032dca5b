"""Kendall's tau between the simulated TPU and the estimates of the real TPU compiler, for each labelled program.

    tpugraphs label --programs zoo --archives labels
    python benchmarks/label_fidelity.py labels
    python benchmarks/label_fidelity.py --quick    # without labels: the seven programs are drawn, and nothing else

Also the spread of the estimates (worst over best), candidate 0 over the best, candidate 0 over the unforced program,
and how many ops carry no estimate. Test archives hide their runtimes: they are read from truth/. Of a job that runs,
the finished programs are shown.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.compiler.zoo import FAMILIES, draw_zoo_program
from tpugraphs_polynormer.simulator.costs import layout_seconds

ROW = "{:<46} {:>5} {:>6} {:>5} {:>7} {:>7} {:>8} {:>8} {:>11} {:>7}"


def describe(folder: Path, facts: dict) -> tuple[str, float]:
    """A line of the table, and tau."""
    (path,) = (folder / "npz").rglob(f"{facts['name']}.npz")
    archive = read_archive(path)
    runtimes = archive.config_runtime
    if archive.is_hidden:
        with np.load(folder / "truth" / path.relative_to(folder / "npz")) as truth:
            runtimes = truth["config_runtime"]
    graph = (archive.node_feat, archive.node_opcode, archive.edge_index, archive.node_config_ids)
    tau = kendalltau(layout_seconds(*graph, candidates=archive.node_config_feat), runtimes).statistic
    missing = sum(facts["unestimated_ops"].values())
    cells = (
        facts["title"][:46],
        facts["split"],
        len(archive.node_opcode),
        len(archive.node_config_ids),
        f"{runtimes[0] / 1000:.1f}",
        f"{runtimes.max() / runtimes.min():.2f}",
        f"{runtimes[0] / runtimes.min():.3f}",
        f"{facts['first_ns'] / facts['unforced_ns']:.3f}",
        f"{missing} of {missing + facts['estimated_ops']}",
        f"{tau:.3f}",
    )
    return ROW.format(*cells), float(tau)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="what `tpugraphs label` wrote")
    parser.add_argument("--quick", action="store_true", help="does it run?")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.folder is None:
        print("\n".join(draw_zoo_program(number, 0).name for number in range(len(FAMILIES))))
        return 0
    paths = sorted((arguments.folder or Path()).glob("labels/*.json"))
    labelled = [json.loads(path.read_text()) for path in paths if path.name != "recipe.json"]
    shown = sorted((each for each in labelled if "candidates" in each), key=lambda each: each["number"])
    if not shown:
        print("no labelled programs: name a folder that `tpugraphs label` wrote", file=sys.stderr)
        return 1
    header = ("program", "split", "nodes", "conf.", "us", "spread", "def/best", "forced", "unestimated", "tau")
    print(ROW.format(*header))
    taus = []
    for facts in shown:
        line, tau = describe(arguments.folder, facts)
        taus.append((facts["title"].split("_")[0], tau))
        print(line)
    for family in dict.fromkeys(name for name, _ in taus):
        values = [tau for name, tau in taus if name == family]
        print(f"{family}: mean tau {np.nanmean(values):.3f} of {len(values)}")
    print(f"all: mean tau {np.nanmean([tau for _, tau in taus]):.3f} of {len(taus)} programs")
    refused = sum(sum(each["refused"].values()) for each in shown)
    print(f"candidates: {sum(each['candidates'] for each in shown)}, refused: {refused}")
    print(f"seconds of the compiler: {sum(each['seconds'] for each in shown):.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
