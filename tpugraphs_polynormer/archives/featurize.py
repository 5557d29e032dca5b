"""Converts HLO and tuning files to npz archives, one file or a folder; the content decides the kind."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.archives.npz import ArchiveError, iterate_layouts, read_archive
from tpugraphs_polynormer.archives.tuning import layout_archive, layout_tuning_arrays, tile_tuning_arrays
from tpugraphs_polynormer.archives.writer import MEMBERS, order_members, write_archive
from tpugraphs_polynormer.errors import HloError, UserError
from tpugraphs_polynormer.files import check_name, replacing
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.hlo.program import parse_program
from tpugraphs_polynormer.hlo.sampling import draw_candidates
from tpugraphs_polynormer.hlo.text import is_text
from tpugraphs_polynormer.hlo.tuning import detect_kind, parse_layout_tuning, parse_tile_tuning
from tpugraphs_polynormer.progress import track

_MAX_BYTES = (1 << 31) - 1  # the largest protobuf message
_logger = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]
Archives = list[Arrays] | dict[str, Arrays]
Convert = Callable[[bytes], Archives]


@dataclass(frozen=True)
class FeaturizeResult:
    """The files that were read, the archives that were written, and for each file without one the reason."""

    sources: tuple[Path, ...]
    written: tuple[Path, ...]
    failed: dict[Path, str]


def featurize_file(path: Path | str, **draw: Any) -> Arrays:
    """The arrays of the one archive that an HLO or tuning file gives; see `featurize_bytes`."""
    path = Path(path)
    archives = _read_archives(path, partial(featurize_bytes, **draw))
    if len(archives) > 1:
        raise HloError(
            f"{path}: a tile file with {len(archives)} kernels gives as many archives; name an output folder"
        )
    return archives[0]


def featurize_bytes(data: bytes, *, operands: bool = False, **draw: Any) -> list[Arrays]:
    """The archives of a layout tuning file (one), a tile tuning file (one per kernel), or a plain module (one).

    A plain module has no measurements: it becomes a layout archive with drawn candidates, the first of them the
    presumed default of the compiler, and with runtimes 0, as in the dataset's test split. With `operands` archives also
    have node_operands, which official ones do not. `draw` are the other arguments of `module_arrays`.

    Raises:
      HloError: the bytes are none of these.
    """
    kind = detect_kind(data)
    if kind == "layout":
        return [layout_tuning_arrays(parse_layout_tuning(data), operands=operands)]
    if kind == "module":
        return [module_arrays(parse_program(data), operands=operands, **draw)]
    archives = [tile_tuning_arrays(kernel, operands=operands) for kernel in parse_tile_tuning(data)]
    kept = [archive for archive in archives if archive is not None]
    if not kept:
        raise HloError(
            f"a tile tuning file of {len(archives)} kernels, none of which has two runs or more, all with tile sizes, "
            "and a measured default: the official tool makes no archive of it"
        )
    return kept


def read_program(path: Path | str) -> Module:
    """The HLO module in a file, text or protobuf; errors name the file."""
    path = Path(path)
    with _errors_name(path):
        return parse_program(_read_bytes(path))


def module_arrays(
    module: Module | LayoutProgram,
    *,
    num_candidates: int = 1,
    seed: int = 0,
    mode: str = "default",
    operands: bool = False,
) -> Arrays:
    """The layout archive of a program without measurements: drawn candidates, the default first, runtimes 0.

    A plain module has the presumed default, and need not have a config node. With `operands` also node_operands.
    """
    program = LayoutProgram(module, enumerate_choices(module)) if isinstance(module, Module) else module
    choices = program.choices
    return layout_archive(
        featurize_module(program.module),
        node_config_ids=choices.node_ids,
        node_config_feat=draw_candidates(choices, num_candidates, seed=seed, mode=mode),
        config_runtime=np.zeros(num_candidates, dtype=np.int64),
        operands=operands,
    )


def featurize_path(
    source: Path | str, output: Path | str, *, convert: Convert | None = None, **draw: Any
) -> FeaturizeResult:
    """Writes the archives of one file to `output`, or those of all files below a folder to the same relative paths.

    In a folder these are all *.pb, and the *.txt and *.hlo that contain HLO text and have no *.pb of the same name
    beside them. A single .npz archive is accepted too: it is checked and written with the official dtypes and shapes.
    A file with several kernels becomes a folder of numbered archives. An unusable file in a folder is logged and named
    in the result; the others are still converted. `draw` are the arguments of `featurize_bytes`.

    Args:
      source, output: a file and a file, or two folders.
      convert: makes the archives of a file's bytes instead of `featurize_bytes`: a list, or {name: archive} for a
        folder of named archives in place of a file.

    Raises:
      HloError: the one file cannot be used, or the folder has no usable file.
    """
    source, output = Path(source), Path(output)
    convert = convert or partial(featurize_bytes, **draw)
    if not source.is_dir():
        archives = _read_archives(source, convert)
        return FeaturizeResult((source,), tuple(_write(source, archives, output)), {})
    written: list[Path] = []
    failed: dict[Path, str] = {}
    sources = _find_programs(source)
    for path in track(sources, len(sources), "featurize", "file"):
        try:
            target = output / path.relative_to(source).with_name(f"{check_name(_stem(path), str(path))}.npz")
            written.extend(_write(path, _read_archives(path, convert), target))
        except UserError as error:
            _logger.warning("%s", error)
            failed[path] = str(error)
    if not written:
        raise HloError(
            f"{source}: none of its {len(failed)} files is a usable HLO or tuning file; expected one or more (*.pb, or "
            "HLO text in *.txt or *.hlo)"
        )
    return FeaturizeResult(sources, tuple(written), failed)


def _find_programs(folder: Path) -> tuple[Path, ...]:
    """The files below a folder that may be programs; XLA dumps one program in both forms, and other things as *.txt."""
    found = list(folder.rglob("*.pb"))
    taken = {(path.parent, _stem(path)) for path in found}
    for path in sorted([*folder.rglob("*.txt"), *folder.rglob("*.hlo")]):
        key = path.parent, _stem(path)
        if key not in taken and _starts_as_text(path):
            found.append(path)
            taken.add(key)
    return tuple(sorted(found))


def _stem(path: Path) -> str:
    """The name without its endings: XLA's dumps are called NAME.hlo.pb and NAME.txt."""
    return re.sub(r"(\.hlo)?\.(pb|txt)$|\.hlo$", "", path.name)


def _starts_as_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return is_text(file.read(1 << 16))
    except OSError:
        return False


def _read_archives(path: Path, convert: Convert) -> Archives:
    """The archives of a file; errors name the file."""
    if path.suffix == ".npz":
        return [_archive_arrays(path)]
    with _errors_name(path):
        return convert(_read_bytes(path))


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HloError(f"{path}: cannot be read ({error.strerror}); expected an HLO or tuning file") from error
    except UserError as error:
        raise HloError(f"{path}: {error}") from error


def _read_bytes(path: Path) -> bytes:
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise HloError(f"{size} bytes, expected at most {_MAX_BYTES}, the limit of a protobuf")
    return path.read_bytes()


def _archive_arrays(path: Path) -> Arrays:
    """The arrays of an npz archive, with the official dtypes and shapes."""
    archive = read_archive(path)
    arrays = {key: getattr(archive, key) for key in MEMBERS[archive.kind]}
    if archive.node_operands is not None:
        arrays["node_operands"] = archive.node_operands
    if archive.kind == "layout":
        arrays["node_splits"] = archive.node_splits[np.newaxis]
    return order_members(arrays)


def _write(source: Path, archives: Archives, target: Path) -> list[Path]:
    """Writes all archives of a file, or none of them if the reader refuses one."""
    folder = target.with_suffix("") if target.suffix == ".npz" else target
    if isinstance(archives, dict):
        named = {folder / f"{check_name(name, str(source))}.npz": arrays for name, arrays in archives.items()}
    elif len(archives) == 1:
        named = {target: archives[0]}
    else:
        named = {folder / f"{number:04d}.npz": arrays for number, arrays in enumerate(archives)}
    with ExitStack() as stack:
        for path, arrays in named.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            staged = stack.enter_context(replacing(path))
            write_archive(staged, arrays)
            try:
                if read_archive(staged, with_candidates=False).kind == "layout":
                    for _ in iterate_layouts(staged):  # reading checks the values
                        pass
            except ArchiveError as fault:
                reason = f"its archive would have {fault.key}: {fault.found}, expected {fault.expected}"
                raise HloError(f"{source}: {reason}; nothing is written") from None
    return list(named)
