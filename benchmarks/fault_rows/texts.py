"""Mutated HLO texts: each becomes arrays or one error with line and column."""

from __future__ import annotations

import random as plain_random
import re
from collections import Counter
from pathlib import Path

from fault_rows.mutations import BATCH, damage_bytes, run_batch, try_read
from fault_rows.outcome import Outcome, Row
from fault_rows.stages import Inputs

_SAMPLES = Path(__file__).parents[2] / "tests" / "hlo"
_WORDS = b"{ } ( ) [ ] \" \\ , = % : /* */ // ROOT ENTRY <= ? ' -> x _ - => add f32[ }}".split()


def make_rows(inputs: Inputs, work: Path, seed: int, num_cases: int) -> list[Row]:
    """The row of texts, in batches of a hundred."""

    def run_texts(number: int) -> Outcome:
        return run_batch(lambda path: _read_texts(inputs, path, seed, number), work)

    return [Row("texts", "mutated HLO texts", num_cases, run_texts)]


def _read_texts(inputs: Inputs, folder: Path, seed: int, number: int) -> tuple[Counter[str], list[str]]:
    from tpugraphs_polynormer.archives.featurize import featurize_path
    from tpugraphs_polynormer.errors import HloError
    from tpugraphs_polynormer.hlo.protobuf import parse_module
    from tpugraphs_polynormer.hlo.text import is_text, parse_text
    from tpugraphs_polynormer.hlo.text_writer import serialize_text

    random = plain_random.Random(f"{seed} text {number}")
    wholes = [path.read_bytes() for path in sorted(_SAMPLES.glob("*_syntax.hlo"))]
    wholes.append(serialize_text(parse_module(inputs.program.read_bytes())).encode())
    counts: Counter[str] = Counter({"featurized": 0, "refused": 0})
    notes: list[str] = []
    path = folder / "mutated.txt"
    for _ in range(BATCH):
        data = bytearray(random.choice(wholes))
        if random.random() < 0.5:
            for _ in range(random.choice([1, 1, 2, 4])):
                at = random.randrange(len(data))
                data[at : at + random.choice([0, 0, 1, 8])] = random.choice(_WORDS)
        else:
            data = bytearray(damage_bytes(data, random))
        path.write_bytes(data)

        def read() -> str:
            if is_text(path.read_bytes()):
                try:
                    parse_text(path.read_bytes())
                except HloError as error:
                    if not re.match(r"HLO text, line \d+, column \d+: ", str(error)):
                        raise AssertionError(f"no line and column: {error}") from error
            featurize_path(path, folder / "mutated.npz", num_candidates=3)
            return "featurized"

        try_read(read, path, folder, counts, notes)
    return counts, notes
