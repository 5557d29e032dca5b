"""The README's commands run to their end, in order, in a fresh folder, with only what the README says before them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A block after such a comment is left out; the comment says why. `make demo` is tests/test_demo.py, the download is
# tested against a local server in tests/download, and the later stages on official archives in
# tests/test_official_archives.py.
MARK = r"<!-- not run by tests/test_readme.py: ([^\n]+) -->\n"
LEFT_OUT = ["installs packages from the network", "needs the network and an accelerator"]


def code_blocks() -> list[tuple[str | None, str]]:
    """(why it is left out, text) of each block that holds commands."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(rf"(?:{MARK})?```\n(.*?)```", text, re.DOTALL)
    return [
        (why or None, block) for why, block in found if re.search(r"^(tpugraphs|make|python) ", block, re.MULTILINE)
    ]


def commands(block: str) -> list[str]:
    """The commands of a block; a line with an open quote is continued."""
    found: list[str] = []
    for line in block.splitlines():
        if found and found[-1].count('"') % 2:
            found[-1] += f"\n{line}"
        elif line.strip():
            found.append(line)
    return found


def test_only_what_cannot_run_here_is_left_out() -> None:
    assert [why for why, _ in code_blocks() if why] == LEFT_OUT
    shown = [command.split()[1] for why, block in code_blocks() if not why for command in commands(block)]
    stages = "simulate inspect preprocess train evaluate predict submit submit report export -c rank"
    assert shown == stages.split()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH on which `tpugraphs` and `python` are those of this environment and this tree."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "tpugraphs").write_text(f'#!/bin/sh\nexec {sys.executable} -m tpugraphs_polynormer.cli.main "$@"\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_every_command_of_the_readme_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    printed = {}
    for command in [each for why, block in code_blocks() if not why for each in commands(block)]:
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stderr[-3000:]}"
        assert "Traceback" not in ended.stderr, command
        printed[command.split()[1]] = ended.stdout
    for name in ("graph.png", "submission.csv", "report.html", "models/ranker/1/saved_model.pb"):
        assert (folder / name).stat().st_size > 1000, name
    score = float(re.search(r"^layout:xla:random +([\d.]+)$", printed["submit"], re.MULTILINE)[1])
    assert score > 0.3  # trained: a random ranking scores 0
    assert "the compiler's default is predicted at rank" in printed["rank"]
