"""Reads a program from bytes of either kind: HLO text or an HLO protobuf."""

from __future__ import annotations

from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.text import is_text, parse_text


def parse_program(data: bytes) -> Module:
    """The module of an HLO text, an HloProto, an HloModuleProto or a ModuleTuningData; the content decides which.

    Raises:
      HloError: the bytes hold no HLO module; the message about a text has the line and the column.
    """
    return parse_text(data) if is_text(data) else parse_module(data)
