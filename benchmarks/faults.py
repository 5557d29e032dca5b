"""Faults by number: kills, damaged and malicious files, two writers in one folder, a full disk.

    python benchmarks/faults.py --work DIR [--rows kill writers ...] [--seed 0]    # about 90 minutes on two cores
    python benchmarks/faults.py --quick    # a few cases of the fast rows, to check that it runs

Every row is one class of faults. A case is clean if what the library promises holds: a killed stage, run again, writes
the same bytes and leaves nothing behind; a damaged file is refused by one line or read as valid arrays; the second
writer is refused; a full disk is one line, exit code 2, nothing that looks finished, and the right bytes once there is
room. Each case has a file in the working folder, so that a killed benchmark continues. Faults that are not clean are
told on stderr, and their folders are kept in `<work>/failed`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from fault_rows import bundles, disks, kills, mutations, processes, texts, writers
from fault_rows.outcome import Row, format_row, run_row
from fault_rows.stages import Inputs

_QUICK = ("kill simulate", "archives", "protobufs", "texts", "tars and zips", "writers simulate", "disk featurize")


def make_rows(work: Path, seed: int, is_quick: bool) -> list[Row]:
    """All rows."""
    processes.import_stages()
    inputs = Inputs(work / "inputs", 2 if is_quick else 12)
    return [
        *kills.make_rows(inputs, work, seed, 2 if is_quick else 20),
        *mutations.make_rows(inputs, work, seed, *((1, 1) if is_quick else (10, 100))),
        *texts.make_rows(inputs, work, seed, 1 if is_quick else 100),
        *bundles.make_rows(work, not is_quick),
        *writers.make_rows(inputs, work, seed, 1 if is_quick else 5),
        *disks.make_rows(inputs, work, seed, 1 if is_quick else 5),
    ]


def main() -> None:
    """Runs the cases that are not done, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/faults"), help="working folder; about 1 GB")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="rows whose names begin so (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few cases of the fast rows: does it run?")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        work = Path(folder) if arguments.quick else arguments.work.resolve()
        (work / "failed").mkdir(parents=True, exist_ok=True)
        rows = make_rows(work, arguments.seed, arguments.quick)
        wanted = tuple(arguments.rows or (_QUICK if arguments.quick else ("",)))
        print("| fault | cases | clean | counted |\n|---|---|---|---|", flush=True)
        for row in rows:
            if row.name.startswith(wanted):
                print(format_row(row, run_row(row, work / "cases")), flush=True)


if __name__ == "__main__":
    main()
