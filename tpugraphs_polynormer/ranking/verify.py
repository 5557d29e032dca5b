"""Compares every file of datasets, runs and predictions with what was noted when they were written."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tpugraphs_polynormer.checksums import CHECKSUMS_NAME, Fault, compare_file, compare_folder
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME, DatasetError, read_manifest
from tpugraphs_polynormer.datasets.reader import check_spans
from tpugraphs_polynormer.datasets.schema import SCHEMA_NAME, schema_text
from tpugraphs_polynormer.datasets.shards import DESCRIPTION_SUFFIX, read_description
from tpugraphs_polynormer.datasets.split_files import shard_files
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.submission import RECIPE_NAME
from tpugraphs_polynormer.training.run_directory import CONFIG_NAME, METRICS_NAME, RESULT_NAME, RunDirectory, RunError


@dataclass
class Verification:
    """What was compared, and what is wrong."""

    folders: list[Path] = field(default_factory=list)  # datasets, runs, and predictions of a collection
    unfinished: list[Path] = field(default_factory=list)  # runs without a result: no more than readable
    num_files: int = 0
    num_bytes: int = 0
    faults: list[Fault] = field(default_factory=list)

    def count(self, path: Path, fault: Fault | None) -> None:
        """Notes one file that was looked at."""
        self.num_files += 1
        self.num_bytes += path.stat().st_size if path.is_file() else 0
        self.faults += [fault] if fault else []


def verify_folder(folder: Path | str) -> Verification:
    """Looks at every dataset, run and folder of predictions in a folder; UserError if there is none."""
    folder, result = Path(folder), Verification()
    if not folder.is_dir():
        raise UserError(f"{folder}: not a folder; name a dataset, a run directory, predictions, or a folder of them")
    for place, _, names in sorted(os.walk(folder)):
        for look, marks in _KINDS.items():
            if any(name == mark or name.endswith(mark) for name in names for mark in marks):
                result.folders.append(Path(place))
                look(Path(place), result)
    if not result.folders:
        raise UserError(f"{folder}: found no dataset, run or predictions in it; name a folder of one of these")
    return result


def _verify_dataset(folder: Path, result: Verification) -> None:
    path = folder / MANIFEST_NAME
    try:
        manifest = read_manifest(folder)
        shards = [shard for split in manifest.splits.values() for shard in split.shards]
        for shard in shards:
            check_spans(folder, shard)
    except DatasetError as fault:
        result.count(path, Fault(path, str(fault).removeprefix(f"{path}: "), "an intact manifest"))
        return
    result.count(path, None)
    for shard in shards:
        for suffix, expected in shard_files(shard).items():
            path = folder / (shard.name + suffix)
            result.count(path, compare_file(path, *expected))
        path = folder / (shard.name + DESCRIPTION_SUFFIX)
        result.count(path, _find_fault(path, lambda name=shard.name: read_description(folder, name)))
    path = folder / SCHEMA_NAME
    is_whole = path.is_file() and path.read_bytes() == schema_text(manifest.kind).encode()
    result.count(path, None if is_whole else Fault(path, "another text, or nothing", f"the schema of {manifest.kind}"))


def _verify_run(folder: Path, result: Verification) -> None:
    if (folder / RESULT_NAME).exists():
        _verify_listed(folder, result, "a run that was trained to its end by this version")
        return
    result.unfinished.append(folder)
    run = RunDirectory(folder, None)
    path = folder / CONFIG_NAME
    result.count(path, _find_fault(path, lambda: RunDirectory.open(folder)))
    path = folder / METRICS_NAME
    if path.exists():
        whole = len(run.read_metrics()), len(path.read_text(errors="replace").splitlines())
        # The last line may be cut short by a kill; the next start drops it.
        result.count(path, None if whole[1] - whole[0] < 2 else Fault(path, f"{whole[0]} whole lines", str(whole[1])))
    for index in sorted(folder.glob("checkpoints/*/*.index")):
        result.count(index, _find_fault(index, lambda index=index: _read_checkpoint(index.with_suffix(""))))


def _read_checkpoint(prefix: Path) -> None:
    """Reads every tensor: TensorFlow keeps a checksum of each and compares it."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, RuntimeError, ValueError) as fault:
        raise RunError(str(fault).splitlines()[0]) from None


def _verify_predictions(folder: Path, result: Verification) -> None:
    listed = _verify_listed(folder, result, "predictions of all graphs; let `tpugraphs predict` finish")
    if listed:
        for path in sorted(folder.glob("*.npz")):
            if path.name not in listed:
                result.count(path, Fault(path, "a prediction that is not listed", f"those of {CHECKSUMS_NAME}"))


def _verify_listed(folder: Path, result: Verification, expected: str) -> dict[str, int]:
    path = folder / CHECKSUMS_NAME
    if not path.exists():
        result.count(path, Fault(path, "nothing", expected))
        return {}
    sizes, faults = compare_folder(folder)
    result.num_files += len(sizes)
    result.num_bytes += sum(sizes.values())
    result.faults += faults
    return sizes


def _find_fault(path: Path, read: Callable[[], object]) -> Fault | None:
    try:
        read()
    except UserError as fault:
        return Fault(path, str(fault).removeprefix(f"{path}: "), "a readable file")
    return None


# What is looked at where a file of that name, or with that ending, is in a folder.
_KINDS = {
    _verify_dataset: (MANIFEST_NAME, DESCRIPTION_SUFFIX),
    _verify_run: (CONFIG_NAME,),
    _verify_predictions: (RECIPE_NAME,),
}
