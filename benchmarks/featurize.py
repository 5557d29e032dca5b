"""The rate of feature extraction: HLO instructions per second from bytes to arrays, on one core.

    python benchmarks/featurize.py [--file PROGRAM.pb] [--copies 14] [--repeats 7]
    python benchmarks/featurize.py --quick    # one repeat, to check that it runs

Without --file it uses the real tuning file, if there is one (in TPUGRAPHS_REAL_DATA, or in shared/real beside the
project). --copies repeats the program within one module: 14 copies of that file are as large as the largest graph of
TpuGraphs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from real_data import REAL_DATA

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.module import Computation, Instruction, Module
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.writer import serialize_module

_REAL_FILE = REAL_DATA / "tpugraphs" / "protobuf" / "module_tuning_data_layout.pb"


def repeat_program(module: Module, copies: int) -> Module:
    """A module with `copies` copies of each computation; every copy has its own ids."""
    instructions = [each.id for computation in module.computations for each in computation.instructions]
    step = max([*instructions, *(each.id for each in module.computations)]) + 1
    computations = tuple(
        _shift(computation, copy * step) for copy in range(copies) for computation in module.computations
    )
    return replace(module, computations=computations)


def _shift(computation: Computation, by: int) -> Computation:
    def moved(instruction: Instruction) -> Instruction:
        return replace(
            instruction,
            id=instruction.id + by,
            operand_ids=tuple(each + by for each in instruction.operand_ids),
            called_computation_ids=tuple(each + by for each in instruction.called_computation_ids),
        )

    return replace(
        computation,
        id=computation.id + by,
        root_id=computation.root_id + by,
        instructions=tuple(map(moved, computation.instructions)),
    )


def measure(work: Callable[[], object], repeats: int) -> list[float]:
    """The CPU seconds of each repeat, after one warm-up; CPU time depends little on other load."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return seconds


def report(name: str, count: int, seconds: list[float]) -> str:
    """A line with the median rate and those of the slowest and fastest repeat."""
    median, slowest, fastest = (count / each for each in (statistics.median(seconds), max(seconds), min(seconds)))
    return f"{name:<18}{median:>12,.0f} instructions/s   (slowest {slowest:,.0f}, fastest {fastest:,.0f})"


def parse_arguments() -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=_REAL_FILE)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two copies, one repeat: does it run?")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.copies, arguments.repeats = 2, 1
    return arguments


def main() -> None:
    """Measures reading, feature extraction, and both."""
    arguments = parse_arguments()
    try:
        data = arguments.file.read_bytes()
        module = parse_module(data)
    except (OSError, UserError) as error:
        raise SystemExit(f"{arguments.file}: {error}; name an HLO file with --file") from error
    if arguments.copies > 1:
        module = repeat_program(module, arguments.copies)
        data = serialize_module(module)
    count = sum(len(each.instructions) for each in module.computations)
    print(f"{arguments.file.name}: {count:,} instructions, {len(data):,} bytes, median of {arguments.repeats} repeats")
    print(report("read", count, measure(lambda: parse_module(data), arguments.repeats)))
    print(report("features", count, measure(lambda: featurize_module(module), arguments.repeats)))
    print(report("bytes to arrays", count, measure(lambda: featurize_module(parse_module(data)), arguments.repeats)))


if __name__ == "__main__":
    main()
