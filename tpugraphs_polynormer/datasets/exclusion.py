"""Excludes graphs from a dataset by name patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from tpugraphs_polynormer.errors import UserError


def read_patterns(path: Path | str) -> list[str]:
    """The patterns of a file: one per line; empty lines and what follows a # are ignored."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, ValueError) as fault:
        raise UserError(f"{path}: not readable ({fault}); expected one graph name or pattern per line") from None
    return [name for name in (line.partition("#")[0].strip() for line in lines) if name]


def find_excluded(
    graphs: Mapping[tuple[str, str], Sequence[str]], patterns: Sequence[str]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """{collection: {split: sorted names}} of the graphs, given by (collection, split), that match a pattern.

    Patterns are shell-style (`unet*`) and distinguish upper and lower case. UserError is raised for a pattern that
    matches nothing, for one that matches a test graph, because a submission needs every test graph, and for patterns
    that leave no graph in a split.
    """
    known = sorted({name for names in graphs.values() for name in names})
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            close = get_close_matches(pattern, known, n=3, cutoff=0.5)
            advice = f"did you mean {' or '.join(close)}?" if close else "check the name and --collections"
            raise UserError(f"--exclude: no graph is named {pattern!r}; {advice}")
    excluded: dict[str, dict[str, tuple[str, ...]]] = {}
    for (collection, split), names in graphs.items():
        matched = tuple(sorted(name for name in names if any(fnmatchcase(name, each) for each in patterns)))
        if not matched:
            continue
        if split == "test":
            advice = "a submission needs a row for every test graph; exclude train and valid graphs only"
            raise UserError(f"--exclude: {matched[0]} is in the test split of {collection}; {advice}")
        if len(matched) == len(names):
            raise UserError(f"--exclude: no graph is left in the {split} split of {collection}; exclude fewer")
        excluded.setdefault(collection, {})[split] = matched
    return excluded
