"""App. I of the paper: time and memory of a training step on Erdos-Renyi graphs of increasing size."""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.nodes.experiments.output import make_figure, write_experiment
from tpugraphs_polynormer.process import keep_freed_memory

SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
FEATURE_DIM = 16

_logger = logging.getLogger(__name__)


def run_scaling(
    out: Path,
    *,
    sizes: Sequence[int] = SIZES,
    mean_degree: int = 10,
    hidden_dim: int = 64,
    num_heads: int = 8,
    num_steps: int = 3,
    seed: int = 0,
) -> dict[str, Any]:
    """Time and memory of a step for each number of nodes, and their slopes in log-log scale (1 is linear).

    Each size is measured in a new process, so that it cannot reuse memory of another. A step is forward and backward
    of 5 local and 2 global layers. Memory is the increase of the resident set over its size after a step on 64 nodes.
    """
    if len(set(sizes)) < 2:
        raise UserError(f"scaling: sizes: found {len(set(sizes))} of them, expected two or more to fit a line")
    rows = []
    for size in sizes:
        rows.append(_measure_in_child(size, mean_degree, hidden_dim, num_heads, num_steps, seed))
        _logger.info("%(nodes)d nodes: %(seconds).3f s, %(megabytes).0f MB", rows[-1])
    result = {"mean_degree": mean_degree, "hidden_dim": hidden_dim, "num_heads": num_heads, "rows": rows}
    result |= {f"{key}_slope": fit_slope(rows, key) for key in ("seconds", "megabytes")}
    write_experiment(out, "scaling", result, _draw(result))
    return result


def fit_slope(rows: Sequence[dict[str, float]], key: str) -> float:
    """The slope of the least-squares line through log(row[key]) against log(nodes)."""
    logs = np.log([[row["nodes"], max(row[key], 1e-9)] for row in rows])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def measure_step(
    num_nodes: int, mean_degree: int, hidden_dim: int, num_heads: int, num_steps: int, seed: int
) -> dict[str, float]:
    """The median time of a training step and the increase of the resident set, measured in this process."""
    step = _make_step(hidden_dim, num_heads, seed)
    step(*_make_graph(64, mean_degree, seed))
    graph = _make_graph(num_nodes, mean_degree, seed)
    Path("/proc/self/clear_refs").write_text("5")  # resets the kernel's peak memory of this process
    before = _read_status("VmRSS")
    seconds = []
    for _ in range(num_steps):
        started = time.perf_counter()
        step(*graph)
        seconds.append(time.perf_counter() - started)
    megabytes = max(_read_status("VmHWM") - before, 0.0)
    return {"nodes": num_nodes, "edges": len(graph[1]), "seconds": statistics.median(seconds), "megabytes": megabytes}


def _make_step(hidden_dim: int, num_heads: int, seed: int):
    """A function of (features, *edge fields), traced once for all sizes, that computes loss and gradients."""
    import tensorflow as tf

    from tpugraphs_polynormer.layers.edge_index import EdgeIndex, unknown_edges
    from tpugraphs_polynormer.models.node_classifier import build_polynormer_classifier

    tf.keras.utils.set_random_seed(seed)
    model = build_polynormer_classifier(
        num_classes=2, num_heads=num_heads, head_dim=hidden_dim // num_heads, num_local_layers=5, num_global_layers=2
    )
    model.build([None, FEATURE_DIM])
    specs = [tf.TensorSpec([None, FEATURE_DIM]), *unknown_edges()]

    @tf.function(input_signature=specs, autograph=False)
    def step(features: tf.Tensor, *edges: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features, EdgeIndex(*edges), training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        return loss + tf.add_n([tf.reduce_sum(gradient) for gradient in gradients if gradient is not None])

    return step


def _make_graph(num_nodes: int, mean_degree: int, seed: int) -> tuple[np.ndarray, ...]:
    """Features and edge fields of a random graph with num_nodes * mean_degree / 2 undirected edges."""
    from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_index

    rng = np.random.default_rng([seed, num_nodes])
    source, target = rng.integers(0, num_nodes, [2, num_nodes * mean_degree // 2])
    features = rng.normal(size=[num_nodes, FEATURE_DIM]).astype(np.float32)
    return features, *build_undirected_edge_index(source, target, num_nodes)[:-1]  # no mask


def _read_status(field: str) -> float:
    """A size in /proc/self/status, in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise UserError(f"/proc/self/status: no field {field}; memory can be measured on Linux only")


def _measure_in_child(*arguments: int) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UserError(f"scaling: {arguments[0]} nodes could not be measured: {reason[0]}; leave this size out")
    return json.loads(done.stdout.splitlines()[-1])


def _draw(result: dict[str, Any]):
    figure = make_figure(8, 3.4)
    nodes = [row["nodes"] for row in result["rows"]]
    for axes, key in zip(figure.subplots(1, 2), ("seconds", "megabytes"), strict=True):
        axes.loglog(nodes, [row[key] for row in result["rows"]], "o-")
        axes.set(xlabel="nodes", ylabel=key, title=f"{key} per training step, slope {result[f'{key}_slope']:.2f}")
        axes.grid(which="both", alpha=0.3)
    return figure


if __name__ == "__main__":
    keep_freed_memory()
    print(json.dumps(measure_step(*map(int, sys.argv[1:]))))
