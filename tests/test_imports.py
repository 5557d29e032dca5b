"""The import order of docs/architecture.md, and the modules that must not import TensorFlow or Beam."""

import ast
import functools
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "tpugraphs_polynormer"

# At its top level, a module may import modules of its own rank or of earlier ranks; within a rank there are no cycles.
# A folder means all its modules that are not listed themselves. "" is the package, whose __init__ imports only
# `exports`.
LAYERS = (
    (
        "",
        "files",
        "checksums",
        "errors",
        "exports",
        "process",
        "progress",
    ),
    (
        "catalog",
        "config",
    ),
    ("hlo",),
    ("archives", "compiler"),
    (
        "download",
        "simulator",
    ),
    ("datasets",),
    ("layers",),
    ("models",),
    ("training",),
    (
        "ranking",
        "nodes",
    ),
    (
        "beam",
        "demo",
        "cli",
    ),
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}
LIGHT = (
    "cli.main",
    "config.schema",
    "catalog",
    "hlo",
    "hlo.protobuf",
    "archives.featurize",
    "archives.inspect",
    "simulator.write",
    "ranking.metrics",
    "datasets.shards",
    "datasets.reader",
    "datasets.sampler",
    "download.fetch",
    "ranking.submission",
    "ranking.verify",
)


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name relative to the package -> file."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {_name_of(path.relative_to(ROOT / PACKAGE)): path for path in paths}


def _name_of(path: Path) -> str:
    return ".".join(part for part in path.with_suffix("").parts if part != "__init__")


def top_imports(path: Path) -> set[str]:
    """The full names of the modules imported at a file's top level, in `if` and `try` blocks too, not in functions.

    Imports for type checkers are left out, because they never run.
    """
    found, pending = set(), list(ast.parse(path.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in full if name.removeprefix(f"{PACKAGE}.") in modules()} or {node.module}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            pending += ast.iter_child_nodes(node)
    return found


@functools.cache
def own_imports(name: str) -> frozenset[str]:
    """The modules of the package that a module imports, as names relative to the package."""
    found = {each.removeprefix(PACKAGE).lstrip(".") for each in top_imports(modules()[name]) if _is_own(each)}
    return frozenset(found - {name})


def _is_own(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def rank_of(name: str) -> int:
    """The rank of a module in LAYERS: its own, or that of its folder."""
    candidate = name
    while candidate not in RANKS:
        assert "." in candidate, f"{name} is not in LAYERS: say which modules it may import"
        candidate = candidate.rpartition(".")[0]
    return RANKS[candidate]


def test_imports_go_up_the_list_only():
    wrong = [
        f"{name} imports {other}"
        for name in modules()
        for other in own_imports(name)
        if other and rank_of(other) > rank_of(name)
    ]
    assert not wrong


def test_every_line_of_the_list_exists():
    assert not [name for name in RANKS if name and name not in modules()]


def test_there_are_no_cycles():
    TopologicalSorter({name: own_imports(name) - {""} for name in modules()}).prepare()


def test_only_the_beam_room_imports_beam():
    users = {name for name, path in modules().items() if any(each.startswith("apache_beam") for each in _all(path))}
    assert users and all(name.split(".")[0] == "beam" for name in users)


def _all(path: Path) -> set[str]:
    """The names of all modules that a file imports, in functions too."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom)} | {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }


def test_keras_is_reached_through_tensorflow_alone():
    banned = ("keras", "tf_keras", "torch")
    users = {
        name for name, path in modules().items() if any(each.split(".")[0] in banned for each in _all(path) if each)
    }
    assert not users


def test_no_module_has_a_name_that_says_nothing():
    parts = {part for name in modules() for part in name.split(".")}
    assert not parts & {"utils", "util", "common", "helpers", "misc"}


HEAVY_CHECK = (
    "heavy = sorted({'tensorflow', 'apache_beam', 'tensorflow_gnn', 'torch'} & set(sys.modules)); print(heavy)"
)


def test_light_modules_load_neither_tensorflow_nor_beam():
    lines = ["import importlib, sys"]
    for name in LIGHT:
        lines.append(f"importlib.import_module('{PACKAGE}.{name}')")
    lines.append(HEAVY_CHECK)
    found = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]], ids=" ".join)
def test_help_loads_no_tensorflow(arguments):
    code = (
        f"import sys\nfrom {PACKAGE}.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as done:\n    assert done.code == 0\n{HEAVY_CHECK}"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("usage:") and found.stdout.splitlines()[-1] == "[]"


def test_checking_a_submission_loads_no_tensorflow(tmp_path):
    csv = tmp_path / "submission.csv"
    csv.write_text("ID,TopConfigs\n")
    run = f"from {PACKAGE}.cli.main import main\nprint(main(['submit', '--check', {str(csv)!r}]))"
    code = f"import sys\n{run}\n{HEAVY_CHECK}"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "2\n[]\n"
