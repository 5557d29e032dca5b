"""How the command line is parsed and explained: stages in groups, one-line errors, defaults and choices in the help."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

Run = Callable[[argparse.Namespace], None]


class StageParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, not the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Prints one line and exits with code 2."""
        print(f"{self.prog}: error: {message}; see {self.prog} --help", file=sys.stderr)
        self.exit(2)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Adds to each option's help its choices, where the metavar hides them, and its default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.choices and action.metavar:
            text += f" (one of: {', '.join(map(str, action.choices))})"
        has_default = not (
            action.default is None or action.default is False or action.default in (argparse.SUPPRESS, [])
        )
        if has_default and "default:" not in text and (action.option_strings or action.nargs == "?"):
            shown = "all" if action.choices and action.default == list(action.choices) else "%(default)s"
            text += f" (default: {shown})"
        return text

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Lines that do not break names such as amazon-photo at the hyphen."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def add_stage(
    stages: Any, name: str, text: str, run: Run, examples: Sequence[str], *, note: str = "", **settings: Any
) -> argparse.ArgumentParser:
    """A new stage's parser: `text` describes it, `run` does it, `examples` are arguments for commands in its help."""
    commands = tuple(f"tpugraphs {name} {example}".rstrip() for example in examples)
    epilog = "\n".join([*([note, ""] if note else []), "examples:", *(f"  {command}" for command in commands)])
    parser = stages.add_parser(
        name,
        help=text,
        description=text[:1].upper() + text[1:] + ".",
        epilog=epilog,
        formatter_class=HelpFormatter,
        **settings,
    )
    parser.set_defaults(run=run, examples=commands)
    return parser


def describe_stages(groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """The stages in the order of use, under the titles of their groups."""
    width = 2 + max(len(name) for _, stages in groups for name, _ in stages)
    lines = []
    for title, stages in groups:
        lines += ["", f"{title}:", *(f"  {name:<{width}}{text}" for name, text in stages)]
    return "\n".join(lines[1:])
