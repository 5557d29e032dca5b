"""The requirements of setup.py resolve for every allowed Python, and the code uses nothing that Python 3.10 lacks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SETUP = (ROOT / "setup.py").read_text()
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
    what = f"{ROOT}[test,dask,s3,engines,jax]"
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


def test_the_lock_has_an_exact_version_within_every_range_of_setup():
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    locked = dict(line.split("==") for line in lines)  # a line without an exact version is an error here
    assert lines == sorted(lines, key=lambda line: line.upper())  # as `sort --ignore-case` of the C locale
    names = {canonicalize_name(name): version for name, version in locked.items()}
    assert "tpugraphs-polynormer" not in names
    required, extras = re.search(r"install_requires=\[(.*?)\],.*\"test\": \[(.*?)\],", SETUP, re.DOTALL).groups()
    found = [Requirement(text) for text in re.findall(r'^\s*"([^"]+)",', required + extras, re.MULTILINE)]
    assert len(found) > 15
    for requirement in found:
        assert names[canonicalize_name(requirement.name)] in requirement.specifier, requirement


@pytest.mark.parametrize(
    ("lock", "version", "used"),
    [("a.lock", "3.11", True), ("", "3.11", False), ("absent.lock", "3.11", False), ("a.lock", "3.12", False)],
)
def test_make_installs_with_the_lock_where_it_is_and_fits(tmp_path, lock, version, used):
    (tmp_path / "a.lock").write_text("numpy==2.0\n")
    python = tmp_path / "python"
    major, minor = version.split(".")
    check = f"import sys; sys.version_info = ({major}, {minor}, 0); exec(sys.argv.pop(1))"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && shift && exec {sys.executable} -c "{check}" "$@"\n')
    python.chmod(0o755)
    command = ["make", "--dry-run", "-f", ROOT / "Makefile", "-C", tmp_path, f"LOCK={lock}", f"PYTHON={python}"]
    for name in ("setup.py", "tpugraphs_polynormer/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    shown = subprocess.run([*map(str, command), ".venv/.installed"], capture_output=True, text=True, check=True).stdout
    assert ("--constraint a.lock" in shown) == used and "pip install" in shown


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
