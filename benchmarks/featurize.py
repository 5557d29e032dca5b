"""The rate of feature extraction: HLO instructions per second from bytes to arrays, on one core.

    python benchmarks/featurize.py [--file PROGRAM] [--copies 14] [--repeats 7]
    python benchmarks/featurize.py --quick    # one repeat, to check that it runs

The program is read as protobuf and as text. With --file it is an HLO text or protobuf, of which the other form is made
here; without, the real tuning file, if there is one (in TPUGRAPHS_REAL_DATA, or in shared/real beside the project). A
text that is made has metadata of a usual length in every line, which the reader must skip. --copies repeats the program
within one module: 14 copies of that file are as large as the largest graph of TpuGraphs.
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
from tpugraphs_polynormer.hlo.program import parse_program
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.text import is_text, parse_text
from tpugraphs_polynormer.hlo.text_writer import serialize_text
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


def write_text(module: Module) -> bytes:
    """The module as HLO text, each instruction with metadata as JAX writes it."""
    metadata = (
        ', metadata={op_type="conv_general_dilated" op_name="jit(train_step)/jvp(ResNet)/block_3/conv_general_dilated"'
        ' source_file="/home/user/project/models/resnet.py" source_line=123}'
    )
    lines = serialize_text(module).splitlines()
    return "\n".join(line + metadata if " = " in line else line for line in lines).encode()


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
    return f"{name:<20}{median:>12,.0f} instructions/s   (slowest {slowest:,.0f}, fastest {fastest:,.0f})"


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
    """Measures reading of both forms, feature extraction, and both together."""
    arguments = parse_arguments()
    try:
        data = arguments.file.read_bytes()
        module = parse_program(data)
    except (OSError, UserError) as error:
        raise SystemExit(f"{arguments.file}: {error}; name an HLO file with --file") from error
    if arguments.copies > 1:
        module = repeat_program(module, arguments.copies)
    as_given = arguments.copies == 1
    text = data if as_given and is_text(data) else write_text(module)
    binary = data if as_given and not is_text(data) else serialize_module(module)
    count = sum(len(each.instructions) for each in module.computations)
    print(
        f"{arguments.file.name}: {count:,} instructions, {len(binary):,} bytes of protobuf, {len(text):,} of text, "
        f"median of {arguments.repeats} repeats"
    )
    works: dict[str, Callable[[], object]] = {
        "read protobuf": lambda: parse_module(binary),
        "read text": lambda: parse_text(text),
        "features": lambda: featurize_module(module),
        "protobuf to arrays": lambda: featurize_module(parse_module(binary)),
        "text to arrays": lambda: featurize_module(parse_text(text)),
    }
    for name, work in works.items():
        print(report(name, count, measure(work, arguments.repeats)))


if __name__ == "__main__":
    main()
