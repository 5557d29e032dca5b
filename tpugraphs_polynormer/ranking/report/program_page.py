"""The HTML page of one program's ranking: facts first, then the best candidates, then the reasons of each."""

from __future__ import annotations

from html import escape

from tpugraphs_polynormer.hlo.describe import describe_difference
from tpugraphs_polynormer.ranking.program_ranking import (
    Comparison,
    ProgramRanking,
    RankedCandidate,
    describe_rest,
    format_share,
)
from tpugraphs_polynormer.ranking.report.cells import number_cell, render_table, text_cell
from tpugraphs_polynormer.ranking.report.template import fill_template

_MOST_NODES = 20  # names of nodes in a cell; the JSON file has all
_TRUST = "trust"


def render_ranking(ranking: ProgramRanking) -> str:
    """The page's text."""
    facts = ranking.facts
    sections = [
        ("best", "Best candidates", _render_best(ranking)),
        ("reasons", "Reasons", "".join(_render_reasons(ranking, each) for each in ranking.best)),
        ("provenance", "Where this comes from", _render_facts(ranking)),
    ]
    return fill_template(
        title=f"Layouts of {ranking.program.module.name or 'a program'}",
        note=facts.get(_TRUST, ""),
        subtitle=f"{facts['program']}. {_begin(facts['candidates'])}.",
        sections=sections,
    )


def _render_best(ranking: ProgramRanking) -> str:
    header = ["rank", "verdict", "gain, %", "from", "to", "members differ by, %"]
    header += ["score", "members differ by", "nodes changed", "changes", "smallest: changes", "keeps, %"]
    rows = []
    for each in ranking.best:
        beside, reasons = each.beside_default, each.reasons
        gain, smallest = beside.gain, reasons.smallest
        numbers = (gain.percent, gain.low, gain.high, gain.disagreement) if gain else (None,) * 4
        counts = sum(len(change.nodes) for change in reasons.changes), len(reasons.changes)
        rows.append(
            [
                *(text_cell(f"{each.rank}. candidate {each.number}"), text_cell(_verdict(each))),
                *(number_cell(value, 1) for value in numbers),
                *(number_cell(value, 2) for value in (beside.difference, beside.disagreement)),
                *(number_cell(value, 0) for value in counts),
                number_cell(len(smallest.changes) if smallest else None, 0),
                number_cell(100 * smallest.kept_share if smallest else None, 0),
            ]
        )
    intro = (
        "<p>Gain: how much less time than the compiler's default, with an interval that holds 90 % of such differences "
        "among validation graphs. Score: by how many standard deviations of this program's candidates it is above the "
        "default. Candidate 0 is the default.</p>"
    )
    tied = ranking.num_equal_best
    equal = f"<p>Ranks 1 to {tied} are equal within the noise.</p>" if tied > 1 else ""
    unit = "" if ranking.best[0].beside_default.gain else f"<p>Unit: {escape(ranking.facts['unit'])}.</p>"
    return intro + unit + equal + render_table(header, rows, num_text=2)


def _verdict(candidate: RankedCandidate) -> str:
    if candidate.number == 0:
        return "the default"
    beside = candidate.beside_default
    return "equal to the default" if beside.is_equal else "faster" if beside.difference > 0 else "slower"


def _render_reasons(ranking: ProgramRanking, candidate: RankedCandidate) -> str:
    heading = f"<h3>{candidate.rank}. Candidate {candidate.number}</h3>"
    if not candidate.reasons.changes:
        return f"{heading}<p>The compiler's default.</p>"
    beside, reasons = candidate.beside_default, candidate.reasons
    rows = [
        list(
            map(
                text_cell,
                (
                    str(number),
                    format_share(change, beside),
                    f"{len(change.nodes)} x {change.opcode}",
                    " ".join(change.shapes),
                    describe_difference(change.old, change.new),
                    _name_nodes(ranking, change.nodes),
                    ranking.describe_source(change),
                ),
            )
        )
        for number, change in enumerate(reasons.changes, start=1)
    ]
    header = ["change", _lost(beside), "nodes", "shapes", "old -> new layouts", "names", "source"]
    table = render_table(header, rows, num_text=len(header))
    rest = "".join(f"<p>{escape(_begin(line))}.</p>" for line in describe_rest(reasons))
    return f"{heading}<p>{escape(_begin(str(beside)))} beside the default.</p>{table}{rest}"


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lost(beside: Comparison) -> str:
    return "lost if undone, of the gain" if beside.difference > 0 else "score lost if undone"


def _name_nodes(ranking: ProgramRanking, numbers: tuple[int, ...]) -> str:
    nodes = ranking.program.config_nodes
    names = [nodes[number].name or nodes[number].opcode for number in numbers[:_MOST_NODES]]
    more = f" and {len(numbers) - _MOST_NODES} more" if len(numbers) > _MOST_NODES else ""
    return ", ".join(names) + more


def _render_facts(ranking: ProgramRanking) -> str:
    rows = [[text_cell(topic), text_cell(sentence)] for topic, sentence in ranking.facts.items()]
    rows.append([text_cell("seed"), text_cell(str(ranking.seed))])
    return render_table(["topic", "what is known"], rows, num_text=2)
