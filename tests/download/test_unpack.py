"""Tar and zip files that tarfile and zipfile take for whole, or fail on by errors of many kinds."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tpugraphs_polynormer.download.unpack import UnpackError, unpack_archive

FOLDER = "npz/tile/xla/train"


def info(name: str, headers: dict[str, str] | None = None) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.pax_headers = 4, headers or {}
    return member


def tar(*members: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as bundle:
        for member in (info(f"{FOLDER}/first.npz"), *members):
            bundle.addfile(member, io.BytesIO(b"data"))
    return stream.getvalue()


def zipped(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as bundle:
        for name in (f"{FOLDER}/first.npz", *names):
            bundle.writestr(name, b"data")
    return stream.getvalue()


def with_size(size: bytes) -> bytes:
    """A tar whose second member declares this size, in the 12 bytes of its header."""
    data = bytearray(tar(info(f"{FOLDER}/second.npz")))
    at = data.rindex(b"ustar") - 257
    data[at + 124 : at + 136] = size
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
SECOND, LONG = f"{FOLDER}/second.npz", f"{FOLDER}/{'n' * 300}"
BAD: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "cut in a header": (".tar", lambda: tar(info(SECOND))[:1300], "no header where the next file should begin"),
    "a size in letters": (".tar", lambda: with_size(b"harm harm!\0\0"), "no header where the next file should begin"),
    "an extended size in letters": (".tar", lambda: tar(info(SECOND, {"size": "harm"})), "no header where the next"),
    "a size beyond any file": (".tar", lambda: with_size(b"\x80\0\0\0\x40" + bytes(7)), "lead out of the file"),
    "a null byte": (".tar", lambda: tar(info(SECOND, {"path": f"{FOLDER}/a\0b"})), "damaged archive|not a name"),
    "a sparse file without a map": (".tar", lambda: tar(info(SECOND, SPARSE)), "damaged archive"),
    "a long name, tar": (".tar", lambda: tar(info(LONG)), "not a name that every disk can hold"),
    "a long name, zip": (".zip", lambda: zipped(LONG), "not a name that every disk can hold"),
    "a file in a file, tar": (".tar", lambda: tar(info(f"{FOLDER}/first.npz/x")), "both a file and a folder"),
    "a file in a file, zip": (".zip", lambda: zipped(f"{FOLDER}/first.npz/x"), "both a file and a folder"),
    "a file where a folder is": (".tar", lambda: tar(info(f"{FOLDER}/folder")), "has a file where .* is a folder"),
    "a folder where a file is": (".zip", lambda: zipped(f"{FOLDER}/old/x"), "needs a folder where .* is a file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_forged_or_cut_archive_is_refused_by_one_line_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    suffix, make, said = BAD[name]
    out = tmp_path / "out"
    (out / FOLDER / "folder").mkdir(parents=True)
    (out / FOLDER / "old").write_text("old")
    archive = tmp_path / f"bundle{suffix}"
    archive.write_bytes(make())
    before = sorted(out.rglob("*"))
    with pytest.raises(UnpackError, match=said) as caught:
        unpack_archive(archive, out, "npz/tile/xla")
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 600
    assert sorted(out.rglob("*")) == before and (out / FOLDER / "old").read_text() == "old"


@pytest.mark.parametrize("end", [1024, 0], ids=["two empty blocks", "no empty block"])
def test_whole_tars_are_unpacked(tmp_path: Path, end: int) -> None:
    archive = tmp_path / "bundle.tar"
    archive.write_bytes(tar(info(SECOND))[: 4 * 512] + bytes(end))
    assert set(unpack_archive(archive, tmp_path / "out", "npz/tile/xla")) == {f"{FOLDER}/first.npz", SECOND}
