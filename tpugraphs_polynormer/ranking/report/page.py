"""One self-contained HTML page about trained runs: conclusions first, then scores, graphs, training, data, recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tpugraphs_polynormer.files import write_text, writing
from tpugraphs_polynormer.ranking.report.data import Report, check_inputs, gather_run
from tpugraphs_polynormer.ranking.report.sections import SECTIONS
from tpugraphs_polynormer.ranking.report.template import fill_template
from tpugraphs_polynormer.ranking.runs import expand_runs, label_runs, open_ranking_run
from tpugraphs_polynormer.ranking.submission import expected_rows, score_submission


def write_report(
    run_dirs: Sequence[Path | str],
    data_dir: Path | str,
    output: Path | str,
    *,
    split: str = "valid",
    most: int = 0,
    heatmap_graph: str | None = None,
    title: str = "TpuGraphs ranking report",
    note: str = "",
    test: tuple[Path | str, Path | str, Path | str] | None = None,
) -> Path:
    """Scores the split with each run (at most `most` candidates of a graph, 0 all) and writes the page; its path.

    `test`: where known, a submission, the folder of its archives and that of the hidden runtimes (`submit --truth`).
    """
    output, runs = Path(output), expand_runs(run_dirs)
    labels = label_runs(runs)
    opened = [open_ranking_run(run) for run in runs]
    check_inputs(opened, data_dir, split, heatmap_graph)
    test_scores = {}
    if test:
        submission, archives, truth = test
        test_scores = score_submission(submission, truth, expected_rows(archives))
    gathered = [
        gather_run(
            run.path, label, data_dir, split=split, most=most, heatmap_graph=heatmap_graph, collection=collection
        )
        for run, label in zip(opened, labels, strict=True)
        for collection in run.config.data.names
    ]
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, render_page(Report(gathered, split, test_scores), most=most, title=title, note=note))
    return output


def render_page(report: Report, *, most: int, title: str, note: str) -> str:
    """The page's text."""
    sections = [(key, name, render(report)) for key, name, render in SECTIONS]
    num_graphs = sum(len(run.graphs) for run in report.runs)
    limit = f"at most {most:,} candidates each" if most else "all candidates"
    runs = "1 run" if len(report.runs) == 1 else f"{len(report.runs)} runs"
    return fill_template(
        title=title, note=note, subtitle=f"{runs}, {num_graphs:,} {report.split} graphs, {limit}.", sections=sections
    )
