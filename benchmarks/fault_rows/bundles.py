"""Tar and zip files made to do harm: each is refused by one line, writes nothing outside and leaves nothing behind."""

from __future__ import annotations

import gzip
import io
import resource
import shutil
import stat
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

from fault_rows import processes
from fault_rows.outcome import Outcome, Row

_FOLDER = "npz/layout/xla/random"  # in which all members must be
_SECONDS, _GIGABYTES = 120, 1.0
_WHOLE = f"{_FOLDER}/train/whole.npz"


def make_rows(work: Path, with_heavy: bool) -> list[Row]:
    """The row of malicious tars and zips: one case."""
    heavy = make_heavy() if with_heavy else {}
    return [Row("tars and zips", "malicious tars and zips", 1, lambda _: _run(work, heavy))]


def _tar(*members: tarfile.TarInfo | tuple[str, bytes], **options: object) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **options) as bundle:
        for member in (_info(_WHOLE, 4), *members):
            if isinstance(member, tuple):
                bundle.addfile(_info(member[0], len(member[1])), io.BytesIO(member[1]))
            else:
                bundle.addfile(member, io.BytesIO(b"data"))
    return stream.getvalue()


def _info(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def _zip(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as bundle, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names given twice
        for name, content in ((_WHOLE, b"data"), *members):
            bundle.writestr(name, content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _patch_size(data: bytes, size: bytes) -> bytes:
    """A tar whose last member declares another size (12 bytes of its header)."""
    at = data.rindex(b"ustar") - 257
    header = bytearray(data[at : at + 512])
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:at] + bytes(header) + data[at + 512 :]


def _patch_zip(data: bytes, offset: int, value: int, form: str = "<H") -> bytes:
    """A zip in whose directory a number of the last member is another."""
    changed = bytearray(data)
    struct.pack_into(form, changed, data.rindex(b"PK\x01\x02") + offset, value)
    return bytes(changed)


def _special(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


_INSIDE = f"{_FOLDER}/train/x.npz"
_ESCAPES = (
    "../outside.npz",
    f"{_FOLDER}/../../../../outside.npz",
    "/tmp/outside.npz",
    f"//{_FOLDER}/outside.npz",
    f"{_FOLDER}\\..\\outside.npz",
    "C:/outside.npz",
    "npz/tile/xla/train/other_collection.npz",
    "npz/outside.npz",
    "downloads.json",
    f"{_FOLDER}",
    f"{_FOLDER}/.",
    f"./{_FOLDER}/../random2/x.npz",
)


def make_bundles() -> dict[str, tuple[str, Callable[[], bytes]]]:
    """{what it does: (suffix, maker)}; none of them may be unpacked."""
    bundles: dict[str, tuple[str, Callable[[], bytes]]] = {}
    for name in _ESCAPES:
        bundles[f"tar, a file named {name}"] = ".tar", lambda name=name: _tar((name, b"harm"))
        bundles[f"zip, a file named {name}"] = ".zip", lambda name=name: _zip((name, b"harm"))
    links = {"symbolic link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE}
    for what, kind in links.items():
        for target in ("/etc/passwd", "../../../../../outside.npz", _WHOLE):
            info = _info(_INSIDE, kind=kind, linkname=target)
            bundles[f"tar, a {what} to {target}"] = ".tar", lambda info=info: _tar(info)
    folder = _info(f"{_FOLDER}/train/link", kind=tarfile.SYMTYPE, linkname="/tmp")
    through = (f"{_FOLDER}/train/link/outside.npz", b"harm")
    bundles["tar, a file through a link"] = ".tar", lambda: _tar(folder, through)
    devices = {"character device": tarfile.CHRTYPE, "block device": tarfile.BLKTYPE, "pipe": tarfile.FIFOTYPE}
    for what, kind in devices.items():
        info = _info(_INSIDE, kind=kind, devmajor=1, devminor=3)
        bundles[f"tar, a {what}"] = ".tar", lambda info=info: _tar(info)
    for what, mode in {"link": stat.S_IFLNK, "device": stat.S_IFCHR, "pipe": stat.S_IFIFO}.items():
        bundles[f"zip, a {what}"] = ".zip", lambda mode=mode: _zip((_special(_INSIDE, mode | 0o777), b"/etc/passwd"))
    last = _tar((_INSIDE, b"data"))
    sizes = {
        "8 GB that are not there": b"77777777777\0",
        "2**62 bytes": b"\x80\0\0\0" + struct.pack(">Q", 1 << 62),
        "a negative size": b"\xff" * 12,
        "a size in letters": b"harm harm!\0\0",
    }
    for what, size in sizes.items():
        bundles[f"tar, {what}"] = ".tar", lambda size=size: _patch_size(last, size)
    whole_zip = _zip((_INSIDE, b"data"))
    patches = {
        "4 GB that are not there": (24, 0xFFFFFFF0, "<I"),
        "a bomb that declares little": (24, 4, "<I"),
        "an unknown compression": (10, 77, "<H"),
        "encrypted": (8, 1, "<H"),
        "another checksum": (16, 12345, "<I"),
        "a member outside of the file": (42, 0x7FFFFFF0, "<I"),
    }
    for what, (offset, value, form) in patches.items():
        source = _zip((_INSIDE, bytes(1 << 20))) if "little" in what else whole_zip
        bundles[f"zip, {what}"] = ".zip", lambda args=(source, offset, value, form): _patch_zip(*args)
    bundles |= {
        "zip, zeros that expand a thousandfold": (".zip", lambda: _zip((_INSIDE, bytes(200 << 20)))),
        "tar, a sparse file of 1 TB": (".tar", _sparse),
        "tar, a long name of 1 GB that is not there": (".tar", lambda: _long_name(b"07777777777\0")),
        "tar, a name with a null byte": (".tar", lambda: _tar(_pax(path=f"{_FOLDER}/a\0b"))),
        "tar, a name of 5,000 characters": (".tar", lambda: _tar((f"{_FOLDER}/{'n' * 5000}", b"data"))),
        "zip, a name of 5,000 characters": (".zip", lambda: _zip((f"{_FOLDER}/{'n' * 5000}", b"data"))),
        "tar, a size in its extended header": (".tar", lambda: _tar(_pax(size="999999999999"))),
        "tar, an extended size in letters": (".tar", lambda: _tar(_pax(size="harm"))),
        "tar, a file in a file": (".tar", lambda: _tar((_INSIDE, b"data"), (f"{_INSIDE}/y.npz", b"data"))),
        "zip, a file in a file": (".zip", lambda: _zip((_INSIDE, b"data"), (f"{_INSIDE}/y.npz", b"data"))),
        "tar, a file where a folder was": (".tar", lambda: _tar((f"{_FOLDER}/train", b"data"))),
        "zip, a file where a folder was": (".zip", lambda: _zip((f"{_FOLDER}/train", b"data"))),
        "tar, empty": (".tar", lambda: b""),
        "zip, empty": (".zip", lambda: b""),
        "tar, only an end": (".tar", lambda: bytes(10240)),
        "zip, only an end": (".zip", lambda: b"PK\x05\x06" + bytes(18)),
        "tar, truncated": (".tar", lambda: last[:1300]),
        "zip, truncated": (".zip", lambda: whole_zip[:-30]),
        "tar, compressed": (".tar", lambda: gzip.compress(last)),
        "tar, a zip": (".tar", lambda: whole_zip),
        "zip, a tar": (".zip", lambda: last),
        "tar, a page of html": (".tar", lambda: b"<html>" * 1000),
        "zip, a page of html": (".zip", lambda: b"<html>" * 1000),
    }
    return bundles


def _sparse() -> bytes:
    fields = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    return _tar(_pax(**fields, **{"GNU.sparse.name": _INSIDE}))


def _pax(**fields: str) -> tarfile.TarInfo:
    return _info(_INSIDE, 4, pax_headers=fields)


def _long_name(size: bytes) -> bytes:
    return _patch_size(_tar(_info("././@LongLink", 0, tarfile.GNUTYPE_LONGNAME)), size)


def make_heavy() -> dict[str, tuple[str, Callable[[], bytes]]]:
    """{what it is: (suffix, maker)}: files that may be unpacked, if that takes a time in proportion to their size."""
    names = [(f"{_FOLDER}/train/{number}.npz", b"") for number in range(20_000)]
    same = [(_INSIDE, b"data")] * 20_000
    deep = [(f"{_FOLDER}/{'d/' * 60}{number}", b"x") for number in range(500)]
    return {
        f"{suffix[1:]}, {what}": (suffix, lambda make=make, members=members: make(*members))
        for suffix, make in ((".tar", _tar), (".zip", _zip))
        for what, members in (("20,000 files", names), ("one name 20,000 times", same), ("deep folders", deep))
    }


def _run(work: Path, heavy: dict[str, tuple[str, Callable[[], bytes]]]) -> Outcome:
    notes, counts = [], {"refused": 0, "unpacked inside": 0, "longest CPU time": 0.0}
    refused = make_bundles()
    for what, (suffix, make) in (refused | heavy).items():
        before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        try:
            end = processes.compute(lambda suffix=suffix, make=make: _unpack(work / "bundles", suffix, make),
                                    gigabytes=_GIGABYTES, seconds=_SECONDS)  # fmt: skip
        except RuntimeError as fault:
            end = str(fault)
        seconds = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before
        counts["longest CPU time"] = max(counts["longest CPU time"], round(seconds, 1))
        if end in counts:
            counts[end] += 1
        if end != "refused" and not (end == "unpacked inside" and what in heavy):
            notes.append(f"{what}: {end}")
    return Outcome(len(refused) + len(heavy), len(refused) + len(heavy) - len(notes), counts, tuple(notes))


def _unpack(folder: Path, suffix: str, make: Callable[[], bytes]) -> str:
    """How the unpacking ends: `refused`, `unpacked inside`, or what is wrong."""
    from tpugraphs_polynormer.download.unpack import UnpackError, unpack_archive

    shutil.rmtree(folder, ignore_errors=True)
    out = folder / "in" / "out"
    present = {"npz/tile/xla/train/other_collection.npz", "downloads.json", f"{_FOLDER}/train/old.npz"}
    for name in present:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("as it was")
    archive = folder / f"bundle{suffix}"
    archive.write_bytes(make())
    outside = {path for path in Path("/tmp").iterdir() if path.name.startswith("outside")}
    end = "unpacked inside"
    try:
        unpack_archive(archive, out, _FOLDER)
    except UnpackError as fault:
        end = "refused" if len(str(fault).splitlines()) == 1 and len(str(fault)) < 1000 else f"a long error: {fault}"
    except Exception as fault:
        return f"{type(fault).__name__}: {fault!s:.200}"
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    if any((out / name).read_text() != "as it was" for name in present):
        return "a file of others was changed"
    if {path for path in Path("/tmp").iterdir() if path.name.startswith("outside")} - outside:
        return "a file was written outside, in /tmp"
    if [path for path in folder.rglob("*") if path.is_file() and out not in path.parents and path != archive]:
        return "a file was written outside"
    if end == "refused" and found != present:
        return f"refused, but it left {sorted(found - present)[:3]}"
    if any(not name.startswith(f"{_FOLDER}/") for name in found - present):
        return "a file was written outside of its folder"
    if any(path.is_symlink() for path in out.rglob("*")):
        return "a link was made"
    shutil.rmtree(folder)
    return end
