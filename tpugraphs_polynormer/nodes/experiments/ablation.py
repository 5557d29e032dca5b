"""Fig. 3 of the paper: a comparison of the attention schemes on one data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.config.schema import NodeConfig
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.models.encoder_registry import unread_fields
from tpugraphs_polynormer.nodes.benchmark import run_dataset
from tpugraphs_polynormer.nodes.datasets import NodeDataset
from tpugraphs_polynormer.nodes.experiments.output import make_figure, write_experiment

SCHEMES = ("local_only", "global_only", "local_and_global", "local_to_global")


def run_ablation(
    out: Path,
    dataset: NodeDataset,
    config: NodeConfig,
    *,
    splits: Sequence[int] = (0,),
    schemes: Sequence[str] = SCHEMES,
) -> dict[str, Any]:
    """The results of each scheme, trained with the same config and number of epochs; resumable.

    Each scheme has its own run directory in `<out>/runs`. `global_only` is local-to-global on a graph with self-loops
    only: its local layers see no neighbours, so that nodes exchange information only through global attention.
    """
    unknown = [scheme for scheme in schemes if scheme not in SCHEMES]
    if unknown or not schemes:
        raise UserError(
            f"ablation: schemes: found {', '.join(unknown) or 'none'}, expected some of {', '.join(SCHEMES)}"
        )
    rows = {}
    for scheme in schemes:
        data = without_edges(dataset) if scheme == "global_only" else dataset
        rows[scheme] = run_dataset(_configure(config, scheme), data, out / "runs" / scheme, splits)
    result = {"benchmark": dataset.name, "metric": dataset.metric, "schemes": rows}
    write_experiment(out, "ablation", result, _draw(result))
    return result


def without_edges(dataset: NodeDataset) -> NodeDataset:
    """The same nodes with self-loops only."""
    loops = np.arange(dataset.num_nodes, dtype=np.int64)
    is_along = None if dataset.is_along is None else np.ones(dataset.num_nodes, bool)
    return dataclasses.replace(dataset, edges=np.stack([loops, loops], 1), is_along=is_along)


def _configure(config: NodeConfig, scheme: str) -> NodeConfig:
    """The config with the attention of a scheme; fields that the scheme does not read have their defaults."""
    attention = "local_and_global" if scheme == "local_and_global" else "local_to_global"
    encoder = "polynormer-local" if scheme == "local_only" else "polynormer"
    model = dataclasses.replace(config.model, encoder=encoder, attention=attention)
    return dataclasses.replace(config, model=dataclasses.replace(model, **unread_fields(model)))


def _draw(result: dict[str, Any]):
    figure = make_figure(5.5, 3.4)
    axes = figure.subplots()
    rows = result["schemes"]
    means = [row["mean"] for row in rows.values()]
    spreads = [row["standard_deviation"] or 0.0 for row in rows.values()]
    bars = axes.bar([name.replace("_", "\n") for name in rows], means, yerr=spreads, capsize=4)
    axes.bar_label(bars, fmt="%.1f", padding=3)
    low = min(means) - max(spreads)
    axes.set(ylabel=f"test {result['metric']}, per cent", title=result["benchmark"], ylim=(max(0.0, low - 5), None))
    return figure
