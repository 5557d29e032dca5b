"""The whole way in one command: simulated data, five small models, a scored submission and a page about them.

Every step is the stage of that name, run as `tpugraphs <stage>` would be, its output in `<out>/logs`. What is done is
noted in `<out>/progress.json`: rerunning goes on where it stopped.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.config.loader import find_config
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import write_text
from tpugraphs_polynormer.ranking.metrics import true_costs
from tpugraphs_polynormer.ranking.random_baseline import expected_contest_score
from tpugraphs_polynormer.ranking.submission import expected_rows, score_submission
from tpugraphs_polynormer.ranking.submission_rules import ExpectedRow
from tpugraphs_polynormer.ranking.tables import format_number, format_table

CONFIGS = find_config("demo/layout_xla_random").parent
NOTE = "Simulated data: programs, candidates and runtimes come from an analytic model of a TPU, not from a machine."
_PROGRESS_NAME = "progress.json"
_logger = logging.getLogger(__name__)


def run_demo(out: Path | str, seed: int = 0, *, scale: str = "demo", configs: Path | None = None) -> str:
    """Runs what is not yet done below `out`; returns the closing table and the page's path."""
    demo = _Demo(Path(out), seed, scale, configs or CONFIGS)
    started = time.monotonic()
    demo.run()
    _logger.info("demo: finished in %.0f s", time.monotonic() - started)
    return f"{demo.format_scores()}\n\n{demo.out / 'submission.csv'}\n{demo.out / 'report.html'}"


class _Demo:
    """The stages in order, and which of them are done."""

    def __init__(self, out: Path, seed: int, scale: str, configs: Path) -> None:
        self.out, self._seed, self._scale = out, seed, scale
        self._data, self._dataset, self._predictions = out / "data", out / "dataset", out / "predictions"
        self._configs = {name: configs / f"{name.replace(':', '_')}.yaml" for name in COLLECTIONS}
        for path in self._configs.values():
            if not path.is_file():
                raise UserError(f"{path}: not found; run the demo from a clone of the repository")
        self._done = self._read_progress()

    @property
    def _runs(self) -> list[str]:
        return [str(self.out / "runs" / path.stem) for path in self._configs.values()]

    def run(self) -> None:
        """All stages; those that are done are only named."""
        where = ["--datasets", str(self._dataset)]
        submission = str(self.out / "submission.csv")
        simulate = ["--archives", str(self._data), "--scale", self._scale, "--seed", str(self._seed)]
        self._stage("simulate", simulate)
        self._stage("preprocess", ["--archives", str(self._data), "--datasets", str(self._dataset)])
        self._once("train", self._train)
        self._stage("evaluate", ["--run-dir", *self._runs, *where])
        self._stage("predict", ["--run-dir", *self._runs, *where, "--output", str(self._predictions)])
        self._stage(
            "submit", ["--predictions", str(self._predictions), "--archives", str(self._data), "--output", submission]
        )
        page = ["--output", str(self.out / "report.html"), "--title", "TpuGraphs demo", "--note", NOTE]
        self._stage("report", ["--run-dir", *self._runs, *where, *page])

    def format_scores(self) -> str:
        """The contest's score of each collection beside that of a random ranking, and their means."""
        rows = expected_rows(self._data)
        scores = score_submission(self.out / "submission.csv", self._data / "truth", rows)
        chances = _expected_contest_scores(rows, self._data / "truth")
        lines = [[name, format_number(score), format_number(chances[name])] for name, score in scores.items()]
        return format_table(["collection (simulated)", "score", "random ranking"], lines)

    def _stage(self, name: str, arguments: Sequence[str]) -> None:
        self._once(name, lambda: run_stage([name, *arguments], self.out / "logs" / f"{name}.log"))

    def _train(self) -> None:
        """All five, as many at once as there are cores; the larger ones first."""
        workers = min(len(self._configs), os.cpu_count() or 1)
        threads = max(1, (os.cpu_count() or 1) // workers)
        with ThreadPoolExecutor(workers) as pool:
            jobs = [
                pool.submit(run_stage, arguments, self.out / "logs" / f"train-{Path(run).name}.log", threads)
                for run, arguments in reversed(list(self._training_arguments()))
            ]
        for job in jobs:
            job.result()

    def _training_arguments(self) -> Sequence[tuple[str, list[str]]]:
        shared = ["--datasets", str(self._dataset), "--set", f"seed={self._seed}", "--strategy", "cpu"]
        return [
            (run, ["train", "--config", str(path), "--run-dir", run, *shared])
            for run, path in zip(self._runs, self._configs.values(), strict=True)
        ]

    def _once(self, name: str, work: Callable[[], None]) -> None:
        if name in self._done:
            _logger.info("demo: %s is done", name)
            return
        started = time.monotonic()
        _logger.info("demo: %s ...", name)
        work()
        self._done.append(name)
        self._write_progress()
        _logger.info("demo: %s took %.0f s", name, time.monotonic() - started)

    def _read_progress(self) -> list[str]:
        path = self.out / _PROGRESS_NAME
        if not path.exists():
            self._make_folders()
            return []
        try:
            progress = json.loads(path.read_text(encoding="utf-8"))
            found, done = (progress["seed"], progress["scale"]), list(progress["done"])
        except (ValueError, LookupError, TypeError):
            raise UserError(
                f"{path}: not the progress of a demo; remove {self.out}, or choose another --output"
            ) from None
        wanted = (self._seed, self._scale)
        if found != wanted:
            raise UserError(f"{self.out}: a demo with seed {found[0]} at scale {found[1]}; choose another --output")
        return done

    def _make_folders(self) -> None:
        try:
            (self.out / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise UserError(f"{self.out}: cannot be written ({fault.strerror}); choose another --output") from None

    def _write_progress(self) -> None:
        progress = {"seed": self._seed, "scale": self._scale, "done": self._done}
        write_text(self.out / _PROGRESS_NAME, json.dumps(progress) + "\n")


def run_stage(arguments: Sequence[str], log: Path, num_threads: int | None = None) -> None:
    """Runs `tpugraphs <arguments>` in a process of its own; what it prints goes to `log`, a failure is a UserError."""
    environment = dict(os.environ)
    if num_threads is not None:  # processes side by side, each on its share of the cores
        environment |= {f"TF_NUM_{which}_THREADS": str(num_threads) for which in ("INTRAOP", "INTEROP")}
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", *arguments]
    with log.open("w") as stream:
        status = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=environment, check=False)
    if status.returncode:
        last = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        raise UserError(f"{arguments[0]} failed: {last} (all of its output is in {log}); run the demo again to go on")


def _expected_contest_scores(rows: Sequence[ExpectedRow], truth: Path) -> dict[str, float]:
    """What a random ranking gets on average: by collection, and under "mean" over them."""
    scores: dict[str, list[float]] = {}
    for row in rows:
        kind = row.collection.kind
        with np.load(truth / row.collection.folder / "test" / f"{row.graph}.npz", allow_pickle=False) as archive:
            normalizers = archive["config_runtime_normalizers"] if kind == "tile" else None
            costs = true_costs(archive["config_runtime"], normalizers, graph=row.id)
        scores.setdefault(row.collection.id, []).append(expected_contest_score(kind, costs))
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    return means | {"mean": float(np.mean(list(means.values())))}
