"""All stages in one command: simulated data, five small models, a submission with its score, and a report.

Every stage runs as `tpugraphs <stage>` in a new process, with its output in `<out>/logs`. `<out>/progress.json` lists
the finished stages; a rerun resumes after them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.config.loader import find_config
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import only_writer, write_text, writing
from tpugraphs_polynormer.process import OWNER
from tpugraphs_polynormer.progress import Progress, format_seconds
from tpugraphs_polynormer.ranking.submission import expected_rows, score_submission
from tpugraphs_polynormer.ranking.tables import format_number, format_table

CONFIGS = find_config("demo/layout_xla_random").parent
NOTE = "Simulated data: programs, candidates and runtimes come from an analytic model of a TPU, not from a machine."
# The stages, and the share of the whole time that each took on two cores; only the remaining time depends on them.
SHARES = {
    "simulate": 0.07,
    "preprocess": 0.05,
    "train": 0.74,
    "evaluate": 0.04,
    "predict": 0.04,
    "submit": 0.01,
    "report": 0.05,
}
_PROGRESS_NAME = "progress.json"
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 20.0  # between asking a stage to stop and killing it
_logger = logging.getLogger(__name__)


def run_demo(out: Path | str, seed: int = 0, *, scale: str = "demo", configs: Path | None = None) -> str:
    """The table of scores and the paths of submission and report, after running the unfinished stages in `out`."""
    started = time.monotonic()
    with only_writer(out):
        demo = _Demo(Path(out), seed, scale, configs or CONFIGS)
        demo.run()
    _logger.info("demo: finished in %s", format_seconds(time.monotonic() - started))
    return f"{demo.format_scores()}\n\n{demo.out / 'submission.csv'}\n{demo.out / 'report.html'}"


@dataclass(frozen=True)
class StageRun:
    """One `tpugraphs <arguments>`; what it prints goes to `log`. `num_threads`: its share of the cores."""

    arguments: tuple[str, ...]
    log: Path
    num_threads: int | None = None


class _Demo:
    """The stages in order, and the list of finished ones."""

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
        logs = self.out / "logs"
        options = self._arguments().items()
        stages = {name: [StageRun((name, *arguments), logs / f"{name}.log")] for name, arguments in options}
        stages["train"] = self._trainings()
        done = sum(share for name, share in SHARES.items() if name in self._done)
        with Progress(1.0, "demo", done=done) as progress:
            for name in SHARES:
                self._once(name, stages[name], progress)

    def format_scores(self) -> str:
        """A table of the contest score of each collection and of a random ranking, and their means."""
        truth = self._data / "truth"
        scores = score_submission(self.out / "submission.csv", truth, expected_rows(self._data))
        lines = [[name, *map(format_number, pair)] for name, pair in scores.items()]
        return format_table(["collection (simulated)", "score", "random ranking"], lines)

    def _arguments(self) -> dict[str, list[str]]:
        """The options of the stages that run once."""
        archives, datasets = ["--archives", str(self._data)], ["--datasets", str(self._dataset)]
        runs, submission = ["--run-dir", *self._runs, *datasets], ["--output", str(self.out / "submission.csv")]
        page = ["--output", str(self.out / "report.html"), "--title", "TpuGraphs demo", "--note", NOTE]
        return {
            "simulate": [*archives, "--scale", self._scale, "--seed", str(self._seed)],
            "preprocess": [*archives, *datasets],
            "evaluate": runs,
            "predict": [*runs, "--output", str(self._predictions)],
            "submit": ["--predictions", str(self._predictions), *archives, *submission],
            "report": [*runs, *page],
        }

    def _trainings(self) -> list[StageRun]:
        """One of each collection; the larger ones first. Side by side, each has its share of the cores."""
        threads = max(1, (os.cpu_count() or 1) // min(len(self._configs), os.cpu_count() or 1))
        shared = ["--datasets", str(self._dataset), "--set", f"seed={self._seed}", "--strategy", "cpu"]
        return [
            StageRun(
                ("train", "--config", str(path), "--run-dir", run, *shared),
                self.out / "logs" / f"train-{path.stem}.log",
                threads,
            )
            for run, path in reversed(list(zip(self._runs, self._configs.values(), strict=True)))
        ]

    def _once(self, name: str, stages: Sequence[StageRun], progress: Progress) -> None:
        if name in self._done:
            _logger.info("demo: %s is done", name)
            return
        started, before = time.monotonic(), progress.done
        _logger.info("demo: %s ...", name)
        progress.advance_to(before, f"demo, {name}")

        def watch() -> None:
            if name == "train":
                progress.advance_to(before + SHARES[name] * self._share_trained())

        run_stages(stages, os.cpu_count() or 1, watch)
        self._done.append(name)
        listed = {"seed": self._seed, "scale": self._scale, "done": self._done}
        write_text(self.out / _PROGRESS_NAME, json.dumps(listed) + "\n")
        progress.advance_to(before + SHARES[name])
        _logger.info("demo: %s took %s", name, format_seconds(time.monotonic() - started))

    def _share_trained(self) -> float:
        """How many of all runs' epochs are done, by their metrics."""
        shares = []
        for run, path in zip(self._runs, self._configs.values(), strict=True):
            training, metrics = load_config(path).training, Path(run) / "metrics.jsonl"
            num_done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
            shares.append(
                min(1.0, num_done * training.epochs_per_evaluation / (training.local_epochs + training.epochs))
            )
        return sum(shares) / len(shares)

    def _read_progress(self) -> list[str]:
        path = self.out / _PROGRESS_NAME
        if not path.exists():
            with writing(self.out):
                (self.out / "logs").mkdir(parents=True, exist_ok=True)
            return []
        try:
            progress = json.loads(path.read_text(encoding="utf-8"))
            found, done = (progress["seed"], progress["scale"]), list(progress["done"])
        except (ValueError, LookupError, TypeError):
            raise UserError(
                f"{path}: not the progress of a demo; remove {self.out}, or choose another --output"
            ) from None
        if found != (self._seed, self._scale):
            raise UserError(f"{self.out}: a demo with seed {found[0]} at scale {found[1]}; choose another --output")
        return done


def run_stages(stages: Sequence[StageRun], num_at_once: int = 1, watch: Callable[[], None] = lambda: None) -> None:
    """Runs stages in processes of their own, some at once; `watch` is called while they run.

    A failed stage is a UserError that names its log. Whatever ends the wait, a failure or Ctrl-C, ends all of them.
    """
    waiting = list(stages)
    with _ended_at_exit() as running:
        while waiting or running:
            while waiting and len(running) < num_at_once:
                running.append((waiting[0], _start(waiting.pop(0))))
            time.sleep(_POLL_SECONDS)
            watch()
            for stage, process in [each for each in running if each[1].poll() is not None]:
                running.remove((stage, process))
                if process.returncode:
                    last = (stage.log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
                    told = f"{last} (all of its output is in {stage.log}); run the demo again to continue"
                    raise UserError(f"{stage.arguments[0]} failed: {told}")


def _start(stage: StageRun) -> subprocess.Popen:
    """The process of a stage, in a session of its own: Ctrl-C reaches it, and what it started, through us alone."""
    environment = os.environ | {OWNER: str(os.getpid())}
    if stage.num_threads is not None:
        environment |= {f"TF_NUM_{which}_THREADS": str(stage.num_threads) for which in ("INTRAOP", "INTEROP")}
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", *stage.arguments]
    with stage.log.open("w") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


@contextlib.contextmanager
def _ended_at_exit() -> Iterator[list[tuple[StageRun, subprocess.Popen]]]:
    """Yields a list; the processes in it at the end, and those that they started, are interrupted, then killed."""
    running: list[tuple[StageRun, subprocess.Popen]] = []
    try:
        yield running
    finally:
        for _, process in running:
            _signal_group(process, signal.SIGINT)
        deadline = time.monotonic() + _GRACE_SECONDS
        for _, process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _signal_group(process, signal.SIGKILL)
            process.wait()


def _signal_group(process: subprocess.Popen, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, number)
