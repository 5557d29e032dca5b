"""The opcode table equals the published one."""

import csv

from tpugraphs_polynormer.hlo.opcodes import CONFIGURABLE_OPCODES, OPCODE_IDS, OPCODE_NAMES, opcode_id


def test_the_table_is_the_published_one(real_data):
    with open(real_data / "tpugraphs" / "stats" / "opcodes.csv", newline="") as file:
        published = {row["name"]: int(row["id"]) for row in csv.DictReader(file)}
    assert published == OPCODE_IDS
    assert all(OPCODE_NAMES[number] == name for name, number in published.items())


def test_known_and_unknown_opcodes():
    assert [opcode_id(name) for name in CONFIGURABLE_OPCODES] == [26, 34, 75]
    assert opcode_id("topk") == 0
    assert len(OPCODE_NAMES) == 121
