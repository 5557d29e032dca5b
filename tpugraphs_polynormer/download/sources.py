"""The addresses of the official TpuGraphs archives and of the benchmarks' files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tpugraphs_polynormer.archives.indices import index_file_name
from tpugraphs_polynormer.catalog import SPLITS, find_benchmark, find_collection

TPUGRAPHS_ADDRESS = "https://download.tensorflow.org/data/tpu_graphs/v0"
# The folder of the index files, according to tpu_graphs/evals/README.md of the official repository.
_TPUGRAPHS_BASELINES = "https://github.com/google-research-datasets/tpu_graphs/raw/main/tpu_graphs/baselines/layout"
INDEX_FOLDER = "eval_indices"
_YANDEX = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
_SHCHUR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_POLYNORMER = "https://github.com/cornell-zhang/Polynormer/raw/main/data"
_WIKICS = "https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset"
_OGB = "https://snap.stanford.edu/ogb/data/nodeproppred"
_GOOGLE_DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
_TUNED_GNN = "https://github.com/LUOyk1999/tunedGNN/raw/main"


@dataclass(frozen=True)
class RemoteFile:
    """One published file, and its path below the output folder; archives (.tar, .zip) are unpacked there."""

    address: str
    path: str
    sha256: str | None = None  # of the published file, if known
    folder: str = ""  # all files of an archive must be in this folder, so that it cannot replace other files

    @property
    def is_archive(self) -> bool:
        """Whether the file is unpacked after the download."""
        return self.path.endswith((".tar", ".zip"))


def list_collection_files(collection_id: str, base_address: str | None = None) -> tuple[RemoteFile, ...]:
    """The tar files of a collection, one per split; their files are npz/<collection folder>/<split>/<graph>.npz."""
    collection, base = find_collection(collection_id), (base_address or TPUGRAPHS_ADDRESS).rstrip("/")
    names = {split: f"npz_{collection.id.replace(':', '_')}_{split}.tar" for split in SPLITS}
    return tuple(
        RemoteFile(f"{base}/{name}", name, folder=f"npz/{collection.folder}/{split}") for split, name in names.items()
    )


def list_index_files(collection_id: str, base_address: str | None = None) -> tuple[RemoteFile, ...]:
    """The official validation index file of a layout collection, in the folder eval_indices; none for tiles.

    It is expected in the folder eval_indices of `base_address` too.
    """
    if find_collection(collection_id).kind != "layout":
        return ()
    path = f"{INDEX_FOLDER}/{index_file_name(collection_id)}"
    return (RemoteFile(f"{(base_address or _TPUGRAPHS_BASELINES).rstrip('/')}/{path}", path),)


def list_benchmark_files(name: str, mirror: str | None = None) -> tuple[RemoteFile, ...]:
    """The published files of a benchmark; `mirror` is a base address that has all of them under the same names."""
    files = BENCHMARK_FILES[find_benchmark(name).name]
    if mirror is None:
        return files
    base = mirror.rstrip("/")
    return tuple(replace(file, address=f"{base}/{file.path.rsplit('/', 1)[-1]}") for file in files)


def _file(base: str, name: str, path: str | None = None, folder: str = "") -> RemoteFile:
    path = path or name
    return RemoteFile(f"{base}/{name}", path, _SHA256.get(path), folder)


def _shchur(name: str, stem: str) -> tuple[RemoteFile, ...]:
    split = f"{name}_split.npz"
    return _file(_SHCHUR, f"{stem}.npz"), _file(_POLYNORMER, split, f"splits/{split}")


# sha256 of published files by path, as far as known.
_SHA256 = {
    "splits/amazon-computer_split.npz": "dff698aba1dd30b8bd7d1dca65c60b1f8d9027d950e07a23e86dcbf16c539f24",
    "splits/amazon-photo_split.npz": "0609f6ab15ddabfe33a34f10d960d09499e634472f72104abb1f3be858127432",
    "splits/coauthor-cs_split.npz": "b8c46a38d93b1f9d6b8b8ab944d870e8d44ccdde0639188681e0d38212480ec5",
    "splits/coauthor-physics_split.npz": "2034eb90f5ff80eee0e371cc05b20690a16786fb085924b9166c83361fbbcb39",
    "pokec/pokec-splits.npy": "2a6ceb92307ee911daa3428dc2491d83b5f7deefd7faa2dfe502b8f7c2947d1b",
}
BENCHMARK_FILES: dict[str, tuple[RemoteFile, ...]] = {
    "amazon-computer": _shchur("amazon-computer", "amazon_electronics_computers"),
    "amazon-photo": _shchur("amazon-photo", "amazon_electronics_photo"),
    "coauthor-cs": _shchur("coauthor-cs", "ms_academic_cs"),
    "coauthor-physics": _shchur("coauthor-physics", "ms_academic_phy"),
    "wikics": (_file(_WIKICS, "data.json", "wikics/data.json"),),
    "roman-empire": (_file(_YANDEX, "roman_empire.npz"),),
    "amazon-ratings": (_file(_YANDEX, "amazon_ratings.npz"),),
    "minesweeper": (_file(_YANDEX, "minesweeper.npz"),),
    "tolokers": (_file(_YANDEX, "tolokers.npz"),),
    "questions": (_file(_YANDEX, "questions.npz"),),
    "ogbn-arxiv": (_file(_OGB, "arxiv.zip", folder="arxiv"),),
    "ogbn-products": (_file(_OGB, "products.zip", folder="products"),),
    "pokec": (
        RemoteFile(f"{_GOOGLE_DRIVE}1dNs5E7BrWJbgcHeQ_zuy5Ozp2tRCWG0y", "pokec/pokec.mat"),
        _file(f"{_TUNED_GNN}/large_graph/data", "pokec/pokec-splits.npy"),
    ),
}
