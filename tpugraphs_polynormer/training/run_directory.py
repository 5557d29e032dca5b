"""Run directories: the config, metrics and checkpoints of one training run.

The same command resumes after kill -9 at any moment: JSON files are written to a temporary name and renamed, metrics
are appended line by line, and a checkpoint exists once TensorFlow has renamed its index file. Metrics that were logged
after the last checkpoint are dropped on resume, because their epochs are trained again.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.checksums import write_checksums
from tpugraphs_polynormer.config.loader import ConfigError, config_differences, dump_config
from tpugraphs_polynormer.config.schema import Config, load_config
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import write_text

CONFIG_NAME = "config.yaml"
METRICS_NAME = "metrics.jsonl"
RESULT_NAME = "result.json"
FACTS_NAME = "dataset.json"  # what a ranking run keeps of its data
SOURCE_NAME = "init.json"  # the run whose weights a run starts from
_LISTED = (CONFIG_NAME, METRICS_NAME, FACTS_NAME, SOURCE_NAME)
_logger = logging.getLogger(__name__)


class RunError(UserError):
    """A run directory cannot be used; the message names it, what was found and what to do."""


def _load_own_config(path: Path) -> Config:
    """The config in a run directory; RunError if this version cannot read it."""
    try:
        return load_config(path / CONFIG_NAME)
    except ConfigError as fault:
        raise RunError(
            f"{path}: this version cannot read its {CONFIG_NAME} ({fault}); train again in a new run "
            "directory: tpugraphs train"
        ) from None


def _is_extension(present: Config, wanted: Config) -> bool:
    """Whether the wanted config only has more epochs of the last phase, which the present one has some of."""
    epochs = present.training.epochs
    if not 0 < epochs < wanted.training.epochs:
        return False
    return dataclasses.replace(wanted, training=dataclasses.replace(wanted.training, epochs=epochs)) == present


def _explain_missing(path: Path) -> str:
    """Why a path is no run directory, with the usual cause first."""
    if not path.is_dir():
        return f"{path}: found {'a file' if path.exists() else 'nothing'}, expected a run directory; check the path"
    runs = sorted(each.parent.name for each in path.glob(f"*/{CONFIG_NAME}"))
    if runs:
        shown = ", ".join(runs[:5]) + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")
        return f"{path}: no {CONFIG_NAME} in it, but runs in its folders ({shown}); name them, such as {path / runs[0]}"
    return f"{path}: no {CONFIG_NAME} in it, expected a run directory; check the path, or run `tpugraphs train` first"


class RunDirectory:
    """One training run on disk.

    Args:
      path: the folder. config: of the run.
    """

    def __init__(self, path: Path | str, config: Config) -> None:
        self.path = Path(path)
        self.config = config

    @staticmethod
    def start(path: Path | str, config: Config) -> RunDirectory:
        """Opens a new or an unfinished run; refuses one of a different config, naming the fields that differ.

        A larger training.epochs extends a run: its result is removed, and training continues from the last checkpoint.
        """
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        target = path / CONFIG_NAME
        if target.exists():
            present = _load_own_config(path)
            differences = config_differences(present, config)
            if differences and _is_extension(present, config):
                (path / RESULT_NAME).unlink(missing_ok=True)  # first: killed here, the run only is not finished
                write_text(target, dump_config(config))
                _logger.info(
                    "%s: extended from %d to %d epochs; the learning rate's schedule is computed anew, so the weights "
                    "are not those of a run of that length from the start",
                    *(path, present.training.epochs, config.training.epochs),
                )
            elif differences:
                raise RunError(
                    f"{path}: this run was started with another config: {'; '.join(differences)} "
                    "(there != here); use the same settings, or another run directory"
                )
        else:
            write_text(target, dump_config(config))
        return RunDirectory(path, config)

    @staticmethod
    def open(path: Path | str) -> RunDirectory:
        """An existing run with its own config."""
        path = Path(path)
        if not (path / CONFIG_NAME).is_file():
            raise RunError(_explain_missing(path))
        return RunDirectory(path, _load_own_config(path))

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records logged so far, without a last line that is incomplete after a kill."""
        path = self.path / METRICS_NAME
        lines = path.read_text().splitlines() if path.exists() else []
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(json.loads(line))
            except ValueError:
                break
            if not isinstance(records[-1], dict) or "epoch" not in records[-1]:
                raise RunError(f"{path}: line {number}: not a record of an epoch; train again, in a new run directory")
        return records

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Appends one record to metrics.jsonl."""
        with (self.path / METRICS_NAME).open("a") as stream:
            stream.write(json.dumps(record) + "\n")

    def keep_metrics(self, num_records: int) -> None:
        """Keeps the first `num_records` records, those from before the restored checkpoint, and drops the rest."""
        kept = self.read_metrics()[:num_records]
        write_text(self.path / METRICS_NAME, "".join(json.dumps(record) + "\n" for record in kept))

    def write_json(self, name: str, value: Any) -> None:
        """Writes a JSON file of the run."""
        write_text(self.path / name, _dump_json(value))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes result.json, by which a run counts as finished, after checksums.json of it and all other files."""
        kept = [path for path in self.path.glob("*.*") if path.name in _LISTED]
        checkpoints = [path for path in self.path.glob("checkpoints/**/*") if path.is_file()]
        write_checksums(self.path, [*kept, *checkpoints], {RESULT_NAME: _dump_json(result)})
        write_text(self.path / RESULT_NAME, _dump_json(result), durable=True)

    def read_json(self, name: str) -> Any:
        """The value of a JSON file of the run."""
        path = self.path / name
        if not path.is_file():
            raise RunError(f"{path}: not found; let the stage that writes it finish")
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as fault:
            raise RunError(f"{path}: not readable JSON ({fault}); train again, in a new run directory") from None


def _dump_json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"
