"""The frame that all HTML pages share: one self-contained file, light and dark, versions at its foot."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from html import escape
from importlib import metadata, resources
from string import Template

from tpugraphs_polynormer import __version__

_PACKAGES = ("tensorflow", "tf-keras", "tensorflow-gnn", "apache-beam", "numpy")


def fill_template(*, title: str, note: str, subtitle: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """The text of a page.

    Args:
      title, note, subtitle: plain text; a note is optional, and framed.
      sections: (id, heading, HTML) of each.
    """
    template = resources.files(__package__).joinpath("report.html.template").read_text(encoding="utf-8")
    now = datetime.datetime.now(datetime.timezone.utc)
    return Template(template).substitute(
        title=escape(title),
        note=f'<p class="note">{escape(note)}</p>' if note else "",
        subtitle=escape(subtitle),
        navigation="".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in sections),
        sections="\n".join(
            f'<section aria-labelledby="{key}"><h2 id="{key}">{escape(name)}</h2>{body}</section>'
            for key, name, body in sections
        ),
        footer=escape(f"Written {now:%Y-%m-%d %H:%M UTC} by tpugraphs {__version__}; {_versions()}."),
    )


def _versions() -> str:
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES)
    return f"Python {platform.python_version()}, {packages}, on {platform.machine()}"
