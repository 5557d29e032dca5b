"""Kendall's tau between the runtimes of the simulated TPU and the measured runtimes of real candidates.

    python benchmarks/simulation_fidelity.py [FOLDER]
    python benchmarks/simulation_fidelity.py --quick    # at most 100 candidates of each archive, to check that it runs

FOLDER contains the real archives (default: TPUGRAPHS_REAL_DATA, or ../shared/real). The cost model uses the arrays of
an archive but no runtime; its constants are those of one TPU v3 core, the same for every node.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from real_data import REAL_DATA
from scipy.stats import kendalltau

from tpugraphs_polynormer.archives.npz import LayoutArchive, TileArchive, read_archive, relative_costs
from tpugraphs_polynormer.catalog import SPLITS, TYPICAL_NOISE
from tpugraphs_polynormer.ranking.metrics import tau_beyond_noise
from tpugraphs_polynormer.simulator.costs import layout_seconds
from tpugraphs_polynormer.simulator.tile_costs import TileCosts

ROW = "{:<38} {:>10} {:>8} {:>9} {:>13} {:>6}"


def find_archives(folder: Path) -> list[Path]:
    """The archives with measured runtimes: layouts first, then tiles; the official tree after the other files."""
    official = folder / "official" / "npz"
    found = []
    for kind in ("layout", "tile"):
        found += sorted((folder / kind).glob("*.npz"))
        found += [path for path in sorted((official / kind).rglob("*.npz")) if path.parent.name != "test"]
    return found


def predict(archive: LayoutArchive | TileArchive, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The simulated seconds and the measured costs of an archive's first `most` candidates."""
    graph = (archive.node_feat, archive.node_opcode, archive.edge_index)
    if isinstance(archive, TileArchive):
        measured = relative_costs(archive.config_runtime, archive.config_runtime_normalizers)
        return TileCosts(*graph).seconds(archive.config_feat[:most]), measured[:most]
    seconds = layout_seconds(*graph, archive.node_config_ids, candidates=archive.node_config_feat[:most])
    return seconds, archive.config_runtime[:most].astype(np.float64)


def describe(path: Path, most: int | None) -> str:
    """A line of the table; tau is NaN if all simulated runtimes are equal."""
    predicted, measured = predict(read_archive(path), most)
    tau = kendalltau(predicted, measured).statistic
    top = measured[np.argsort(predicted, kind="stable")[:5]].min() / measured.min()
    name = f"{path.stem[:30]} {path.parent.name}" if path.parent.name in SPLITS else path.stem
    spread = f"{measured.max() / measured.min():.3f}"
    clear = tau_beyond_noise(measured, -predicted, TYPICAL_NOISE)
    return ROW.format(name[:38], len(measured), spread, f"{tau:.3f}", f"{clear:.3f}", f"{2 - top:.3f}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=REAL_DATA, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true", help="at most 100 candidates of each archive: does it run?")
    arguments = parser.parse_args(argv)
    folder = arguments.folder
    paths = find_archives(folder / "tpugraphs")
    if not paths:
        print(f"no real archives below {folder}/tpugraphs: set TPUGRAPHS_REAL_DATA", file=sys.stderr)
        return 1
    print(ROW.format("real graph", "candidates", "spread", "tau", "tau > noise", "top 5"))
    for path in paths:
        print(describe(path, 100 if arguments.quick else None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
