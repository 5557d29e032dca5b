"""Runs Beam jobs: on this machine unless a runner is named, with a progress bar and short errors."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from tpugraphs_polynormer.beam.lifeline import worker_command
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import divert_stderr, workers_end_with_interrupt
from tpugraphs_polynormer.progress import Progress

_LOCAL = "--runner=FnApiRunner"  # DirectRunner without its attempt to download another runner
_PROCESSES = "--direct_running_mode=multi_processing"
_JAVA_FRAME = re.compile(r"\s*(at )?[\w.$/<>]+\([\w.$ -]+(:\d+)?\)|\s*\.\.\. \d+ (more|common frames omitted)")
_ERROR = re.compile(r"(Caused by: )?[\w.$]*(Error|Exception)\b")


def make_options(arguments: Sequence[str], num_workers: int = 0) -> PipelineOptions:
    """The PipelineOptions of the arguments that the user gave to Beam.

    Without a runner, the job runs in `num_workers` local processes: 0 means one per core, 1 means this process.
    """
    arguments = list(arguments)
    if not any(argument.split("=")[0] == "--runner" for argument in arguments):
        is_alone = num_workers == 1 and not any(argument.startswith("--direct_") for argument in arguments)
        local = [_LOCAL] if is_alone else [_LOCAL, _PROCESSES, f"--direct_num_workers={num_workers}"]
        arguments = [*local, *arguments]
    _refuse_unknown(arguments)
    return PipelineOptions(arguments)


def run_pipeline(
    transform: beam.PTransform, options: PipelineOptions, count_done: Callable[[], int], total: int, what: str = "shard"
) -> None:
    """Runs one transform to its end; `count_done` tells how many of `total` are done, a failed job raises UserError."""
    with divert_stderr() as log, _divert_thread_errors(log), workers_end_with_interrupt():
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # the exception has what matters
        try:
            runner = _make_local_runner(options)
            pipeline = beam.Pipeline(runner, options)
            _ = pipeline | transform
            with _show_progress(count_done, total, what):
                _wait(pipeline.run())
        except Exception as fault:  # the class depends on the runner
            log.seek(0)
            logging.getLogger("tpugraphs_polynormer").debug("the workers' log:\n%s", log.read())
            reason = find_reason(str(fault)) or repr(fault)
            raise UserError(
                f"the Beam job failed: {reason}; run the same command again, --log-level DEBUG tells more"
            ) from fault


def _wait(result: PipelineResult) -> None:
    """Waits for the job's end; an interrupt here ends it on the cluster too, where it would continue without us."""
    try:
        result.wait_until_finish()
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):  # not every runner can, and the interrupt is what matters
            result.cancel()
        raise


def find_reason(text: str) -> str:
    """The line of a message that says why a job failed; engines put it between the frames of Java's stack traces."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _JAVA_FRAME.fullmatch(line)]
    told = [line for line in lines if _ERROR.match(line)]
    return (told or lines or [""])[-1].removeprefix("Caused by: ")


def _make_local_runner(options: PipelineOptions) -> FnApiRunner | None:
    """The runner of a job in local processes, whose workers end with this one; None: the runner that is named."""
    direct = options.view_as(DirectOptions)
    if options.view_as(StandardOptions).runner != "FnApiRunner" or direct.direct_running_mode != "multi_processing":
        return None
    direct.direct_running_mode = "in_memory"  # else Beam takes its own command for the workers
    return FnApiRunner(default_environment=SubprocessSDKEnvironment.from_command_string(worker_command()))


@contextmanager
def _divert_thread_errors(log: IO[str]) -> Iterator[None]:
    """Sends the tracebacks of Beam's threads, which a failure or Ctrl-C ends, to the log and not to the terminal.

    After an interrupt it stays so: the threads end later than the job.
    """
    before = threading.excepthook
    threading.excepthook = lambda args: log.closed or log.write(f"{args.thread}: {args.exc_value!r}\n")
    try:
        yield
    finally:
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            threading.excepthook = before


@contextmanager
def _show_progress(count_done: Callable[[], int], total: int, what: str) -> Iterator[None]:
    finished = threading.Event()

    def watch() -> None:
        with Progress(total, "Beam job", what, done=min(count_done(), total)) as progress:
            while not finished.wait(1.0):
                progress.advance_to(min(count_done(), total))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _refuse_unknown(arguments: Sequence[str]) -> None:
    if any("dask" in argument.lower() for argument in arguments):
        try:
            importlib.import_module("apache_beam.runners.dask.dask_runner")  # the import registers its options
        except ImportError as fault:
            raise UserError(f"--runner: Dask is not installed ({fault}); install tpugraphs-polynormer[dask]") from None
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for options in {PipelineOptions, *_subclasses(PipelineOptions)}:
        options._add_argparse_args(parser)
    parser.add_argument("--runner")
    unknown = parser.parse_known_args(list(arguments))[1]
    if unknown:
        raise UserError(f"unknown options {' '.join(unknown)}: neither ours nor Beam's; see --help")


def _subclasses(cls: type) -> set[type]:
    return {item for child in cls.__subclasses__() for item in ({child} | _subclasses(child))}
