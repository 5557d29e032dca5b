"""Where instructions of HLO text come from: their metadata, and the tables of source locations at a module's head."""

from __future__ import annotations

import re

from tpugraphs_polynormer.hlo.module import Metadata
from tpugraphs_polynormer.hlo.text_scanner import STRING

TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_PART = re.compile(rf"\b(op_name|source_file|source_line|stack_frame_id)=(?:({STRING})|(\d{{1,9}}))", re.A | re.S)
_REFERENCE = re.compile(r"\b(file_name_id|line|file_location_id)=(\d{1,9})", re.ASCII)
_ESCAPE = re.compile(r"\\([0-7]{3}|.)", re.DOTALL)
_SHORT_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class SourceTables:
    """The tables of a module's head, by which an instruction names its place in the source by one number.

    What does not make sense in them is ignored: no feature depends on it.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, str]] = {name: {} for name in TABLES}

    def add_row(self, table: str, number: int, value: str) -> None:
        """Keeps one row of a table."""
        self._rows[table][number] = value

    def read(self, value: str) -> Metadata | None:
        """The record of an instruction's `{op_name="..." source_file="..." source_line=1}`; None if it is empty."""
        found = {match[1]: unescape(match[2]) if match[2] else match[3] for match in _PART.finditer(value)}
        file, line = found.get("source_file", ""), int(found.get("source_line", 0))
        if not file and "stack_frame_id" in found:
            file, line = self._locate(int(found["stack_frame_id"]))
        metadata = Metadata(found.get("op_name", ""), file, line)
        return metadata if metadata.op_name or file else None

    def _locate(self, frame: int) -> tuple[str, int]:
        """The file and the line of a stack frame."""
        references = dict(_REFERENCE.findall(self._rows["StackFrames"].get(frame, "")))
        location = self._rows["FileLocations"].get(int(references.get("file_location_id", 0)), "")
        references = dict(_REFERENCE.findall(location))
        name = self._rows["FileNames"].get(int(references.get("file_name_id", 0)), "")
        return (unescape(name), int(references.get("line", 0))) if name else ("", 0)


def format_metadata(metadata: Metadata) -> str:
    """The text of a record, which `SourceTables.read` reads."""
    texts = {"op_name": metadata.op_name, "source_file": metadata.source_file}
    parts = [f'{name}="{_escape(text)}"' for name, text in texts.items() if text]
    parts += [f"source_line={metadata.source_line}"] if metadata.source_line else []
    return f"{{{' '.join(parts)}}}"


def unescape(quoted: str) -> str:
    """The content of a string in quotes, with XLA's escapes replaced."""
    if "\\" not in quoted:
        return quoted[1:-1]
    return _ESCAPE.sub(lambda match: _replace(match[1]), quoted[1:-1])


def _replace(escape: str) -> str:
    return chr(int(escape, 8)) if len(escape) == 3 else _SHORT_ESCAPES.get(escape, escape)


def _escape(text: str) -> str:
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(character, escaped)
    return text
