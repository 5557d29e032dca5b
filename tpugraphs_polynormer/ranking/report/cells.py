"""Tables of the HTML pages, and their cells."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, num_text: int, sortable: bool = False) -> str:
    """A table as HTML. Cells come ready; the first `num_text` columns are text; a sortable one has buttons as heads."""
    heads = []
    for column, name in enumerate(header):
        inside = f'<button type="button">{escape(name)}</button>' if sortable else escape(name)
        heads.append(f'<th scope="col"{" class=t" if column < num_text else ""}>{inside}</th>')
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    kind = f"{header[0]} sortable" if sortable else header[0]
    size = "wide tall" if sortable else "wide"
    label = "all graphs" if sortable else f"table of {header[0]}"
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    region = f'<div class="{size}" tabindex="0" role="region" aria-label="{label}">'
    return f'{region}<table class="{kind}">{head}<tbody>{body}</tbody></table></div>'


def text_cell(value: str) -> str:
    """A cell of text, which may be broken after a separator."""
    return '<td class="t">' + re.sub("([:_.])", r"\1<wbr>", escape(value)) + "</td>"


def number_cell(value: float | None, digits: int = 4, tone: str = "") -> str:
    """A cell of a number, a dash for None; `tone` is its class, "good" or "bad"."""
    if value is None or math.isnan(value):
        return '<td data-value="nan">–</td>'
    kind = f' class="{tone}"' if tone else ""
    return f'<td{kind} data-value="{value!r}">{value:,.{digits}f}</td>'
