"""The TPUs that programs are compiled for: names, memory, clock."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpugraphs_polynormer.errors import UserError

GIB = 1 << 30
_SHAPE = re.compile(r"[1-9]\d?(x[1-9]\d?){1,2}")


@dataclass(frozen=True)
class Chip:
    """One generation of TPUs. A device is what one replica runs on: a core of v2 and v3, a chip of the others.

    `hbm_gib` is the memory of a device, from Google's pages on each generation. `megahertz` is the published peak of
    bfloat16 divided by two operations for each cell of the matrix units: it turns cycles into milliseconds.
    """

    name: str
    hbm_gib: int
    megahertz: int
    example: str  # a topology of four chips


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v2", 8, 700, "v2:2x2"),
        Chip("v3", 16, 940, "v3:2x2"),
        Chip("v4", 32, 1050, "v4:2x2x1"),
        Chip("v5e", 16, 1500, "v5e:2x2"),
        Chip("v5p", 95, 1750, "v5p:2x2x1"),
        Chip("v6e", 32, 1750, "v6e:2x2"),
    )
}
TOPOLOGIES = tuple(CHIPS[name].example for name in ("v3", "v4", "v5e", "v5p", "v6e"))  # what tests and tables cover


def find_chip(topology: str) -> Chip:
    """The chip of a topology such as `v4:2x2x1`; UserError says what names look like."""
    name, _, shape = topology.partition(":")
    if name not in CHIPS or not _SHAPE.fullmatch(shape):
        examples = ", ".join(chip.example for chip in CHIPS.values())
        raise UserError(f"--topology {topology!r:.80}: expected a chip and its arrangement, such as {examples}")
    return CHIPS[name]
