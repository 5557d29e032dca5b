"""The requirements of setup.py resolve for every allowed Python, and the code uses nothing that Python 3.10 lacks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def pip(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pip", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def registry(tmp_path_factory) -> None:
    """Skips the test if pip reaches no registry, by asking for a small package without dependencies."""
    target = tmp_path_factory.mktemp("registry")
    asked = pip("download", "--no-deps", "--retries", 0, "--timeout", 10, "--dest", target, "pyyaml")
    if asked.returncode:
        pytest.skip(f"no package registry is reachable: {asked.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_requirements_resolve_to_wheels(registry, tmp_path, version):
    """pip finds wheels of all requirements for this Python, with the extras that a CPU machine can use."""
    chosen = ["--python-version", version, "--only-binary=:all:", "--target", tmp_path / "nothing"]
    report = tmp_path / "report.json"
    what = f"{ROOT}[test,dask,jax]"
    found = pip("install", "--dry-run", "--ignore-installed", "--quiet", "--report", report, *chosen, what)
    assert found.returncode == 0, found.stderr[-3000:]
    packages = {each["metadata"]["name"].lower(): each for each in json.loads(report.read_text())["install"]}
    assert {"tensorflow", "apache-beam", "jax", "tpugraphs-polynormer"} <= packages.keys()
    tensorflow = packages["tensorflow"]["download_info"]["url"]
    assert f"cp{version.replace('.', '')}-" in tensorflow  # the wheel for this Python, not for that of the test
    assert not (tmp_path / "nothing").exists()


def test_one_range_of_versions_is_written_everywhere():
    setup = (ROOT / "setup.py").read_text()
    assert f'python_requires=">={VERSIONS[0]},<3.14"' in setup
    assert 'target-version = "py310"' in (ROOT / "pyproject.toml").read_text()
    words = f"Python {VERSIONS[0]} to {VERSIONS[-1]} and make"
    assert words in (ROOT / "README.md").read_text() and words in (ROOT / "Makefile").read_text()
    assert set(re.findall(r"python(3\.\d+)", (ROOT / "Makefile").read_text())) == set(VERSIONS)


# Names of the standard library that are newer than Python 3.10; ruff's target version does not find them.
NEWER = (
    r"hashlib\.file_digest|datetime\.UTC|\bimport UTC\b|\btomllib\b|\bStrEnum\b|\bExceptionGroup\b|\badd_note\(|"
    r"typing import .*\b(Self|assert_never|override|Never|LiteralString|NotRequired|Unpack)\b|"
    r"typing\.(Self|assert_never|override|Never|LiteralString|NotRequired|Unpack)\b|"
    r"itertools\.batched|contextlib\.chdir|asyncio\.(TaskGroup|timeout|Runner)\b|sys\.exception\(|"
    r"math\.(cbrt|exp2|sumprod)\b|operator\.call\b|Path\.walk\b|warnings\.deprecated|copy\.replace\b"
)


def test_the_code_uses_nothing_that_came_after_python_3_10():
    files = [
        path
        for folder in ("tpugraphs_polynormer", "pipelines", "benchmarks")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    assert len(files) > 80
    found = [f"{path}: {match[0]}" for path in files if (match := re.search(NEWER, path.read_text()))]
    assert not found
    assert re.search(NEWER, "hashlib.file_digest(stream)") and re.search(NEWER, "from typing import Any, Self")
