"""Damaged archives and protobufs: each is read as valid arrays or refused by our error, within limits."""

from __future__ import annotations

import contextlib
import io
import random as plain_random
import signal
import struct
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from real_data import REAL_DATA

from fault_rows import processes
from fault_rows.outcome import Outcome, Row
from fault_rows.stages import Inputs

BATCH = 100  # files of a case
_SECONDS, _GIGABYTES = 10, 2.0  # that one file may take
_WORDS = (b"0", b"9", b"-", b"(", b")", b",", b"'", b"<f4", b"|O", b"True", b"1" * 30, b"\0", b"[", b"\n", b"e9")
_NUMBERS = (0, 1, -1, 2, 5, 127, 255, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))


def make_rows(inputs: Inputs, work: Path, seed: int, num_archives: int, num_protobufs: int) -> list[Row]:
    """The row of archives and the row of protobufs, both in batches of a hundred."""

    def run_archives(number: int) -> Outcome:
        return run_batch(lambda path: _read_archives(inputs, path, seed, number), work)

    def run_protobufs(number: int) -> Outcome:
        return run_batch(lambda path: _read_protobufs(inputs, path, seed, number), work)

    return [
        Row("archives", "damaged npz archives", num_archives, run_archives),
        Row("protobufs", "mutated protobufs", num_protobufs, run_protobufs),
    ]


def run_batch(read: Callable[[Path], tuple[Counter[str], list[str]]], work: Path) -> Outcome:
    """Reads a batch in a process of its own, whose memory is limited."""
    folder = work / "mutations"
    folder.mkdir(exist_ok=True)
    try:
        counts, notes = processes.compute(lambda: read(folder), gigabytes=_GIGABYTES, seconds=BATCH * _SECONDS)
    except RuntimeError as fault:
        return Outcome(BATCH, 0, {}, (f"the reading process: {fault}",))
    return Outcome(BATCH, BATCH - len(notes), counts, tuple(notes))


def try_read(read: Callable[[], str], path: Path, folder: Path, counts: Counter[str], notes: list[str]) -> None:
    """Counts how reading a file ends; a file that ends otherwise than by arrays or our error is kept."""
    from tpugraphs_polynormer.errors import UserError

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {_SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            counts[read()] += 1
    except UserError as fault:
        if len(str(fault).splitlines()) != 1 or len(str(fault)) > 1500:
            notes.append(f"an error of {len(str(fault).splitlines())} lines and {len(str(fault))} characters: {fault}")
        counts["refused"] += 1
    except Exception as fault:
        kept = folder.parent / "failed" / f"{time.time_ns()}{path.suffix}"
        kept.write_bytes(path.read_bytes())
        notes.append(f"{type(fault).__name__}: {str(fault)[:200]} ({kept})")
    finally:
        signal.alarm(0)


def _read_archives(inputs: Inputs, folder: Path, seed: int, number: int) -> tuple[Counter[str], list[str]]:
    from tpugraphs_polynormer.archives.inspect import inspect_archive
    from tpugraphs_polynormer.archives.npz import iterate_layouts, read_archive

    random = plain_random.Random(f"{seed} archive {number}")
    wholes = sorted((inputs.archives / "npz").rglob("train/*.npz"), key=lambda path: path.stat().st_size)[:6]
    wholes += sorted((inputs.archives / "npz" / "layout").rglob("train/*.npz"))[:3]
    originals = {path: _values(read_archive(path)) for path in wholes}
    counts: Counter[str] = Counter({"read as before": 0, "read as other valid arrays": 0, "refused": 0})
    notes: list[str] = []
    path = folder / "damaged.npz"
    for _ in range(BATCH):
        whole = random.choice(wholes)
        path.write_bytes(_damage_archive(whole, wholes, random))

        def read(whole: Path = whole) -> str:
            archive = read_archive(path)
            if archive.kind == "layout":
                for _ in iterate_layouts(path):
                    pass
            str(inspect_archive(path))
            return "read as before" if _values(archive) == originals[whole] else "read as other valid arrays"

        try_read(read, path, folder, counts, notes)
    return counts, notes


def _values(archive: Any) -> list[bytes]:
    arrays = [value for value in vars(archive).values() if isinstance(value, np.ndarray)]
    return [np.ascontiguousarray(value).tobytes() for value in arrays]


def _damage_archive(whole: Path, others: list[Path], random: plain_random.Random) -> bytes:
    """The bytes of an archive after one kind of damage."""
    data = bytearray(whole.read_bytes())
    kind = random.randrange(8)
    if kind < 4:
        return damage_bytes(data, random)
    if kind == 4:  # a number in the zip's own records
        at = random.choice([at for mark in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06") for at in _find(data, mark)])
        struct.pack_into("<I", data, min(at + random.randrange(4, 40), len(data) - 4), random.getrandbits(32))
        return bytes(data)
    with zipfile.ZipFile(whole) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    if kind == 5:  # a forged header
        member = bytearray(members[name])
        for _ in range(random.randint(1, 3)):
            word, at = random.choice(_WORDS), random.randrange(128)
            member[at : at + len(word)] = word
        members[name] = bytes(member)
    elif kind == 6:  # a member of another archive, or of another key, or none
        with zipfile.ZipFile(random.choice(others)) as archive:
            other = random.choice(archive.namelist())
            members[name] = archive.read(other)
        if random.random() < 0.2:
            del members[name]
    else:  # other values, of any type and shape, behind a valid header
        members[name] = _forge_values(members[name], random)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for member_name, content in members.items():
            archive.writestr(member_name, content)
        if random.random() < 0.1:
            archive.writestr(name, members.get(name, b""))
    return stream.getvalue()


def _forge_values(member: bytes, random: plain_random.Random) -> bytes:
    array = np.load(io.BytesIO(member))
    flat = array.reshape(-1).copy()
    if flat.size and random.random() < 0.7:
        extremes = [np.nan, np.inf, -np.inf, 1e30] if flat.dtype.kind == "f" else _NUMBERS
        with np.errstate(all="ignore"):
            flat[random.randrange(flat.size)] = np.array(random.choice(extremes)).astype(flat.dtype)
        array = flat.reshape(array.shape)
    else:
        change: list[Callable[[np.ndarray], np.ndarray]] = [
            lambda each: each.astype(random.choice(["f8", "i2", "u8", "f2", "S3", "?", "c8"])),
            lambda each: each[: len(each) // 2],
            lambda each: each[None],
            lambda each: each.reshape(-1),
            lambda each: np.repeat(each, 3, 0),
            lambda each: each[..., :0],
            lambda each: np.asfortranarray(each[::-1]),
            lambda each: np.array(each.flat[0] if each.size else 0),
        ]
        with np.errstate(all="ignore"):
            array = random.choice(change)(array)
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _find(data: bytes | bytearray, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + 1)
    return found


def damage_bytes(data: bytearray, random: plain_random.Random) -> bytes:
    """Bytes with flipped bits, cut, with other bytes in the middle, or with a part moved."""
    kind, at = random.randrange(5), random.randrange(len(data))
    if kind == 0:
        for _ in range(random.choice([1, 1, 2, 8])):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        size = random.choice([1, 4, 64, 512])
        data[at : at + size] = random.choice([bytes(size), random.randbytes(size), b"\xff" * size])
    elif kind == 3:
        size = random.choice([1, 16, 256])
        data[at:at] = random.choice([random.randbytes(size), data[at // 2 : at // 2 + size]])
    else:
        del data[at : at + random.choice([1, 16, 256])]
    return bytes(data)


def _read_protobufs(inputs: Inputs, folder: Path, seed: int, number: int) -> tuple[Counter[str], list[str]]:
    from tpugraphs_polynormer.archives.featurize import featurize_path
    from tpugraphs_polynormer.hlo.messages import MESSAGES

    random = plain_random.Random(f"{seed} protobuf {number}")
    module = MESSAGES["Module"].FromString(inputs.program.read_bytes())
    wholes = _make_tuning(module) | {"HloProto": MESSAGES["HloProto"](module=module), "Module": module}
    real = REAL_DATA / "tpugraphs" / "protobuf" / "module_tuning_data_layout.pb"
    counts: Counter[str] = Counter({"featurized": 0, "refused": 0})
    notes: list[str] = []
    path = folder / "mutated.pb"
    for position in range(BATCH):
        if position == 0 and real.exists():  # large, so one of each hundred
            data = damage_bytes(bytearray(real.read_bytes()), random)
        else:
            name = random.choice(list(wholes))
            data = wholes[name].SerializeToString()
            if random.random() < 0.5:
                message = MESSAGES[name].FromString(data)
                for _ in range(random.choice([1, 1, 3])):
                    with contextlib.suppress(ValueError):  # a number that the field cannot have
                        _mutate_message(message, random)
                data = message.SerializeToString()
            else:
                data = damage_bytes(bytearray(data), random)
        path.write_bytes(data)

        def read() -> str:
            featurize_path(path, folder / "mutated.npz", num_candidates=3)
            return "featurized"

        try_read(read, path, folder, counts, notes)
    return counts, notes


def _make_tuning(module: Any) -> dict[str, Any]:
    """Layout and tile tuning files of a module."""
    from tpugraphs_polynormer.hlo.messages import MESSAGES

    layout, tile = MESSAGES["ModuleTuning"](module=module), MESSAGES["Tuning"]()
    layout.config_index_to_node.extend([1, 2])
    kernel = tile.modules.add()
    kernel.module.CopyFrom(module)
    for number in range(3):
        run = layout.runs.add()
        run.is_default, run.profile.compute_time_ns = number == 0, 1000 + number
        for _ in range(2):
            node = run.module_candidate.layout.nodes.add()
            node.tensors.add(dims=[1, 0])
        run = kernel.runs.add()
        run.is_default, run.profile.compute_time_ns = number == 0, 1000 + number
        run.op_candidate.tile_sizes.kernel_bounds.extend([8, 128, number])
        run.op_candidate.tile_sizes.output_bounds.extend([8, 128])
    return {"ModuleTuning": layout, "Tuning": tile}


def _mutate_message(message: Any, random: plain_random.Random) -> None:
    """Walks down a message at random and changes a field: a number, a text, a missing or a repeated part."""
    while True:
        field, value = random.choice(message.ListFields() or [(None, None)])
        if field is None:
            return
        if field.is_repeated:
            kind = random.randrange(4)
            if kind == 0:
                del value[random.randrange(len(value)) :]
                return
            if kind == 1:
                value.extend([value[random.randrange(len(value))]] * random.choice([1, 3]))
                return
            if field.message_type is None:
                value[random.randrange(len(value))] = _other_value(value[0], random)
                return
            message = value[random.randrange(len(value))]
        elif field.message_type is None:
            setattr(message, field.name, _other_value(value, random))
            return
        else:
            if random.random() < 0.1:
                message.ClearField(field.name)
                return
            message = value


def _other_value(value: Any, random: plain_random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        number = random.choice((*_NUMBERS, value + 1, value - 1))
        return number if -(1 << 31) <= number < 1 << 31 or value.bit_length() > 31 or random.random() < 0.5 else -7
    if isinstance(value, bytes):
        return random.choice([b"", value * 2, b"fusion", b"dot", b"\xff\xfe", b"convolution", b"../../x"])
    return random.choice(["", value * 2, "dot", "../../x"]) if isinstance(value, str) else value
