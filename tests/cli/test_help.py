"""The help: stages in the order of use, every option explained with default and choices, examples that parse."""

import argparse
import re
import shlex
import sys
from types import SimpleNamespace

import pytest

from tpugraphs_polynormer.catalog import BENCHMARKS, COLLECTIONS
from tpugraphs_polynormer.cli.main import build_parser, main

ORDER = (
    "demo",
    "simulate",
    "label",
    "download",
    "inspect",
    "featurize",
    "preprocess",
    "verify",
    "config",
    "compile",
    "train",
    "evaluate",
    "predict",
    "submit",
    "report",
    "export",
    "rank",
    "tune",
    "benchmark",
    "experiment",
)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every stage, and those below `config`."""
    found = dict(_children(build_parser()))
    return found | {f"config {name}": each for name, each in _children(found["config"]).items()}


def _children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return parser._subparsers._group_actions[0].choices


def options() -> list[tuple[str, argparse.Action]]:
    """(stage, option) of all."""
    pairs = [(stage, action) for stage, parser in parsers().items() for action in parser._actions]
    return [pair for pair in pairs if not isinstance(pair[1], argparse._HelpAction | argparse._SubParsersAction)]


def test_without_a_stage_the_help_is_printed(capsys) -> None:
    assert main([]) == 0
    told = capsys.readouterr()
    assert told.out == build_parser().format_help() and told.err == ""


def test_stages_are_listed_in_the_order_of_use_under_titles(capsys) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    listed = re.findall(r"^  ([a-z]+)  +[a-zA-Z]", told, re.MULTILINE)
    assert tuple(listed) == ORDER == tuple(_children(build_parser()))
    titles = ("first:", "data:", "training:", "judging and using trained runs:", "node classification:")
    assert [told.index(f"\n{title}") for title in titles] == sorted(told.index(f"\n{title}") for title in titles)


@pytest.mark.parametrize(("stage", "option"), options(), ids=lambda each: str(getattr(each, "dest", each)))
def test_every_option_has_a_help_text_with_its_default(stage: str, option: argparse.Action) -> None:
    assert option.help and len(option.help) > 5, option
    shown = re.sub(r"\s+", " ", parsers()[stage].format_help())
    if option.choices:
        assert all(str(each) in shown for each in option.choices), option
    if option.option_strings and option.nargs != 0:
        assert option.required or "default:" in option.help or option.default is not None or _says_when(option.help)
        if option.default not in (None, [], "") and option.nargs != 0 and "default:" not in option.help:
            default = "all" if isinstance(option.default, list) else option.default
            assert f"(default: {default})" in shown, option


def _says_when(text: str) -> bool:
    """Whether an option without a default says when it counts."""
    words = ("with ", "also ", "if ", "the same", "eval_indices", "instead", "heatmaps", "needed", "tpugraphs predict")
    return any(word in text for word in (*words, "--check works without it"))


def test_collections_and_benchmarks_are_listed() -> None:
    for stage in ("simulate", "download", "preprocess", "submit"):
        shown = re.sub(r"\s+", " ", parsers()[stage].format_help())
        assert all(name in shown for name in COLLECTIONS), stage
    for stage in ("download", "benchmark", "experiment"):
        shown = re.sub(r"\s+", " ", parsers()[stage].format_help())
        assert all(name in shown for name in BENCHMARKS), stage


@pytest.mark.parametrize("stage", ORDER)
def test_each_stage_has_two_examples_that_parse(stage: str) -> None:
    examples = parsers()[stage].get_default("examples")
    assert len(examples) >= 2
    for example in examples:
        assert example in parsers()[stage].format_help()
        program, *words = shlex.split(example)
        args, others = build_parser().parse_known_args(words)
        assert program == "tpugraphs" and args.stage == stage and others == []


def test_the_shell_is_answered_when_it_asks_for_completions(monkeypatch) -> None:
    asked = []
    monkeypatch.setitem(sys.modules, "argcomplete", SimpleNamespace(autocomplete=asked.append))
    assert main([]) == 0 and asked == []
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    assert main([]) == 0
    assert [each.prog for each in asked] == ["tpugraphs"]
