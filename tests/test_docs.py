"""The pages of docs/ and the README: their commands parse, their links exist, and generated parts are up to date."""

import re
import shlex
from argparse import Namespace
from pathlib import Path

import pytest

from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.cli.main import build_parser
from tpugraphs_polynormer.config.loader import find_config
from tpugraphs_polynormer.config.schema import document_config, load_config

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page: Path) -> list[str]:
    """The `tpugraphs ...` lines of a page's code blocks, with continued lines joined."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith("tpugraphs ")]


def parse(command: str) -> Namespace:
    """The parsed arguments of a command; asserts that its config exists."""
    words = shlex.split(command, comments=True)[1:]
    words = words[: words.index(">")] if ">" in words else words
    args, others = build_parser().parse_known_args(words)
    assert args.stage
    assert not others or args.takes_beam_arguments, command
    config = getattr(args, "config", None)
    if config is not None and "YOUR" not in config:
        assert find_config(ROOT / config if config.startswith("configs/") else config).is_file(), command
    return args


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page):
    for command in commands(page):
        parse(command)


def test_commands_are_found():
    assert len({parse(command).stage for page in PAGES for command in commands(page)}) >= 8


def test_the_readme_shows_every_stage():
    shown = (ROOT / "README.md").read_text()
    stages = build_parser()._subparsers._group_actions[0].choices
    assert [stage for stage in stages if f"`{stage}" not in shown and f", `{stage}`" not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_config_page_is_the_config():
    assert (ROOT / "docs/config.md").read_text() == document_config(), "run: tpugraphs config docs > docs/config.md"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_loads_and_says_its_command(path):
    load_config(path)
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    told = [each for line in header for each in re.findall(r"^#(?: Command:| )? *((?:tpugraphs|python) .+)", line)]
    assert told, "no line of the header is a command"
    if told[0].startswith("python"):
        assert (ROOT / told[0].split()[1]).is_file()
    else:
        assert ROOT / parse(told[0]).config == path


@pytest.mark.parametrize("model", ["polynormer", "polynormer_local", "graphsage"])
@pytest.mark.parametrize("collection", COLLECTIONS)
def test_a_config_per_collection_and_model(model, collection):
    config = load_config(ROOT / "configs" / "ranking" / model / f"{collection.replace(':', '_')}.yaml")
    assert config.data.collection == collection
    assert config.model.encoder == model.replace("_", "-")


def test_the_tests_mirror_the_package():
    rooms = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert not [room for room in rooms if not (ROOT / "tpugraphs_polynormer" / room).is_dir()]


def test_the_architecture_page_is_the_tree():
    rooms = (ROOT / "docs/architecture.md").read_text().partition("| room | modules |")[2]
    rows = re.findall(r"^\| ([a-z/()]+) \| ([a-z_ ]+) \|", rooms, re.MULTILINE)
    told = {room: set(modules.split()) for room, modules in rows}
    package = ROOT / "tpugraphs_polynormer"
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        if path.name != "__init__.py":
            room = path.parent.relative_to(package).as_posix()
            found.setdefault("(top)" if room == "." else room, set()).add(path.stem)
    assert told == found
