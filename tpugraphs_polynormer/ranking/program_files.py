"""Writes the ranking of a program: JSON and npz for programs, an HTML page for people; the suffix decides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer import __version__
from tpugraphs_polynormer.archives.writer import write_npz
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import write_text, writing
from tpugraphs_polynormer.hlo.describe import describe_shape
from tpugraphs_polynormer.ranking.program_ranking import Comparison, ProgramRanking, RankedCandidate
from tpugraphs_polynormer.ranking.report.program_page import render_ranking

SCHEMA = 1  # of the JSON file; increased when a field changes its meaning or vanishes
SUFFIXES = (".html", ".json", ".npz")


def check_suffix(path: Path) -> None:
    """Raises a UserError unless `write_ranking` knows what to write."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"--output {path}: found the suffix {path.suffix!r}, expected one of {', '.join(SUFFIXES)}")


def write_ranking(path: Path | str, ranking: ProgramRanking) -> None:
    """Writes the ranking as an HTML page, as JSON or as npz.

    The page and the JSON file have the explained candidates, the npz file the scores of all.
    """
    path = Path(path)
    check_suffix(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npz":
            write_npz(path, to_arrays(ranking))
        elif path.suffix == ".json":
            write_text(path, json.dumps(to_json(ranking), indent=1, allow_nan=False) + "\n")
        else:
            write_text(path, render_ranking(ranking))


def to_arrays(ranking: ProgramRanking) -> dict[str, np.ndarray]:
    """The arrays of the npz file: all candidates [c, nc, 18], the nodes [nc] they are about, scores and ranking."""
    return {
        "node_config_ids": ranking.program.choices.node_ids,
        "node_config_feat": ranking.candidates,
        "scores": ranking.scores,
        "member_scores": ranking.member_scores,
        "ranking": ranking.order,
    }


def to_json(ranking: ProgramRanking) -> dict[str, Any]:
    """The content of the JSON file; docs/own_programs.md describes its fields."""
    program = ranking.program
    return {
        "schema": SCHEMA,
        "version": __version__,
        "seed": ranking.seed,
        "program": {
            "name": program.module.name,
            "num_nodes": sum(len(each.instructions) for each in program.module.computations),
            "num_config_nodes": len(program.choices.node_ids),
            "topology": program.topology,
            "provenance": program.provenance,
        },
        "runs": [
            {
                "run": each.run,
                "collections": list(each.collections),
                "runtimes": each.origin,
                "calibration_graphs": each.calibration.num_graphs if each.calibration else None,
            }
            for each in ranking.members
        ],
        "box": ranking.card or None,
        "novelty": asdict(ranking.novelty) | {"do_not_trust": ranking.novelty.is_too_new},
        "num_candidates": len(ranking.order),
        "default_rank": ranking.default_rank,
        "num_equal_best": ranking.num_equal_best,
        "nodes": [
            {
                "row": row,
                "id": node.id,
                "name": node.name,
                "opcode": node.opcode,
                "shape": describe_shape(node.shape),
                "op_name": metadata.op_name if metadata else "",
                "source": metadata.source if metadata else "",
            }
            for row, node, metadata in zip(
                program.choices.node_ids.tolist(),
                program.config_nodes,
                map(program.find_metadata, program.config_nodes),
                strict=True,
            )
        ],
        "best": [_candidate(ranking, each) for each in ranking.best],
    }


def _candidate(ranking: ProgramRanking, candidate: RankedCandidate) -> dict[str, Any]:
    """One explained candidate; nodes are numbers of the list `nodes`, changes numbers of the list `changes`."""
    reasons = candidate.reasons
    smallest = reasons.smallest
    return {
        "rank": candidate.rank,
        "candidate": candidate.number,
        "scores": ranking.member_scores[:, candidate.number].tolist(),
        "beside_default": _comparison(candidate.beside_default),
        "equal_to_best": candidate.beside_best.is_equal,
        "changes": [
            {
                "nodes": list(change.nodes),
                "opcode": change.opcode,
                "shapes": list(change.shapes),
                "old": _layouts(change.old),
                "new": _layouts(change.new),
                "contribution": change.contribution,
            }
            for change in reasons.changes
        ],
        "smallest": smallest and {"changes": list(smallest.changes), "kept_share": smallest.kept_share},
        "copies": reasons.copies and asdict(reasons.copies),
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "score_difference": comparison.difference,
        "score_disagreement": comparison.disagreement,
        "gain": comparison.gain and asdict(comparison.gain),
        "equal": comparison.is_equal,
    }


def _layouts(row: Sequence[int]) -> dict[str, list[int] | None]:
    """The dims of each tensor from the minor-most on; None for one that is left to the compiler."""
    parts = np.reshape(row, (3, 6)).tolist()
    named = zip(("output", "input", "kernel"), parts, strict=True)
    return {name: [dim for dim in dims if dim >= 0] or None for name, dims in named}
