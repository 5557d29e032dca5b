"""Broken files, runs, datasets and outputs, made once: what the table of bad inputs is about."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.small_datasets import LAYOUT, TILE
from tests.trained import Trained
from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.hlo.writer import serialize_module
from tpugraphs_polynormer.simulator.programs import SOURCES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES

LAYOUT_FOLDER, TILE_FOLDER = (COLLECTIONS[name].folder for name in (LAYOUT, TILE))


class Places:
    """Paths by name; `out` changes with every case. What a name means is said by the line that makes it."""

    def __init__(self, root: Path, trained: Trained) -> None:
        self.root, self.out, self.full = root, root / "out", root / "full"
        self.tree, self.data, self.runs = trained.tree, trained.data, trained.runs
        self.layout, self.tile, self.layout_seed_1 = trained.layout, trained.tile, trained.layout_seed_1
        self.nothing, self.unwritable = root / "nothing", Path("/proc/tpugraphs/out")
        self.folder = root / "folder"
        self.folder.mkdir()
        self.file = self._write("file", b"words\n")
        self.below_file = self.file / "out"
        self.empty = self._write("empty", b"")
        self.binary = self._write("binary.pb", bytes(range(256)) * 20)
        self.long = root / ("n" * 300)
        self._make_archives()
        self._make_programs()
        self._make_configs()
        self._make_runs()
        self._make_datasets()
        self._make_tables()

    def _write(self, name: str, content: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def _make_archives(self) -> None:
        self.archive = min((self.tree / "npz" / LAYOUT_FOLDER / "train").glob("*.npz"))
        whole = self.archive.read_bytes()
        self.cut_npz = self._write("cut.npz", whole[: len(whole) // 2])
        self.text_npz = self._write("text.npz", b"HloModule")
        self.empty_npz = self._write("empty.npz", b"")
        self.changed_npz = self._write("changed.npz", whole[:2000] + bytes(64) + whole[2064:])
        self.npy = self.root / "array.npy"
        np.save(self.npy, np.zeros(3))
        self.other_npz = self.root / "other.npz"
        np.savez(self.other_npz, words=np.zeros(3))
        self.cut_tree = self.root / "cut_tree"
        folder = self.cut_tree / "npz" / LAYOUT_FOLDER / "train"
        folder.mkdir(parents=True)
        shutil.copy(self.cut_npz, folder / "cut.npz")
        self.tile_as_layout = self.root / "tile_as_layout"
        folder = self.tile_as_layout / "npz" / LAYOUT_FOLDER
        folder.parent.mkdir(parents=True)
        shutil.copytree(self.tree / "npz" / TILE_FOLDER, folder)

    def _make_programs(self) -> None:
        program = draw_program(SOURCES["xla"][0], SCALES["tiny"].size, np.random.default_rng(0))
        data = serialize_module(program)
        self.program = self._write("program.hlo.pb", data)
        self.cut_program = self._write("cut.hlo.pb", data[: len(data) // 2])
        self.hlo_text = self._write("text.hlo", b"HloModule jit_f\n\nENTRY main { ROOT x = f32[ parameter(0) }\n")
        self.programs = self.root / "programs"
        self.programs.mkdir()
        shutil.copy(self.cut_program, self.programs)

    def _make_configs(self) -> None:
        self.own_config = self._write("own.yaml", b"data:\n  collection: layout:xla:random\n")
        self.not_yaml = self._write("not.yaml", b"data: [1, 2\n")
        self.listed = self._write("list.yaml", b"- 1\n- 2\n")
        self.unknown_field = self._write("unknown.yaml", b"model:\n  hiden_dim: 8\n")
        self.binary_config = self._write("binary.yaml", bytes(range(256)))
        self.node_config = self._write("node.yaml", b"task: node_classification\n")

    def _copy_run(self, name: str, damage: Callable[[Path], object]) -> Path:
        path = Path(shutil.copytree(self.layout, self.root / "broken" / name))
        damage(path)
        return path

    def _make_runs(self) -> None:
        def cut(pattern: str) -> Callable[[Path], object]:
            def damage(run: Path) -> None:
                for path in run.glob(pattern):
                    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

            return damage

        best = "checkpoints/best"
        self.cut_data = self._copy_run("cut_data", cut(f"{best}/*.data-*"))
        self.cut_index = self._copy_run("cut_index", cut(f"{best}/*.index"))
        self.cut_state = self._copy_run("cut_state", cut(f"{best}/checkpoint"))
        self.no_data = self._copy_run("no_data", lambda run: [path.unlink() for path in run.glob(f"{best}/*.data-*")])
        self.no_checkpoint = self._copy_run("no_checkpoint", lambda run: shutil.rmtree(run / "checkpoints"))
        self.cut_facts = self._copy_run("cut_facts", cut("dataset.json"))
        self.empty_facts = self._copy_run("empty_facts", lambda run: (run / "dataset.json").write_bytes(b""))
        self.odd_facts = self._copy_run("odd_facts", lambda run: (run / "dataset.json").write_text("[]"))
        self.binary_facts = self._copy_run("binary", lambda run: (run / "dataset.json").write_bytes(b"\xff\xfe"))
        self.no_facts = self._copy_run("no_facts", lambda run: (run / "dataset.json").unlink())
        self.cut_config = self._copy_run("cut_config", lambda run: (run / "config.yaml").write_text("data: [\n"))
        self.odd_config = self._copy_run("odd_config", lambda run: (run / "config.yaml").write_text("speed: 9\n"))
        self.other_model = self._copy_run("other_model", self._widen)
        self.cut_latest = self._copy_run("cut_latest", cut("checkpoints/latest/*.data-*"))
        (self.cut_latest / "result.json").unlink()
        self.cut_result = self._copy_run("cut_result", cut("result.json"))
        self.cut_metrics = self._copy_run("cut_metrics", lambda run: (run / "metrics.jsonl").write_text("{}\n"))
        (self.cut_metrics / "result.json").unlink()
        self.node_run = self._copy_run(
            "node_run", lambda run: (run / "config.yaml").write_text("task: node_classification\n")
        )

    @staticmethod
    def _widen(run: Path) -> None:
        path = run / "config.yaml"
        path.write_text(path.read_text().replace("hidden_dim: 8", "hidden_dim: 16"))

    def _copy_data(self, name: str, damage: Callable[[Path], object]) -> Path:
        path = Path(shutil.copytree(self.data, self.root / "datasets" / name))
        damage(path / LAYOUT_FOLDER)
        return path

    def _make_datasets(self) -> None:
        def swap(folder: Path) -> None:
            shutil.rmtree(folder)
            shutil.copytree(self.data / TILE_FOLDER, folder)

        def cut(folder: Path) -> None:
            text = (folder / "manifest.json").read_text()
            (folder / "manifest.json").write_text(text[: len(text) // 2])

        def remove(pattern: str) -> Callable[[Path], object]:
            return lambda folder: [path.unlink() for path in folder.glob(pattern)]

        def shorten(folder: Path) -> None:
            path = next(folder.glob("valid-*.candidates"))
            path.write_bytes(path.read_bytes()[:-1])

        self.tile_in_layout = self._copy_data("tile_in_layout", swap)
        self.cut_manifest = self._copy_data("cut_manifest", cut)
        self.odd_manifest = self._copy_data("odd", lambda folder: (folder / "manifest.json").write_text("[]"))
        self.binary_manifest = self._copy_data(
            "bin", lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe")
        )
        self.no_manifest = self._copy_data("no_manifest", remove("manifest.json"))
        self.no_shard = self._copy_data("no_shard", remove("valid-*.tfrecord"))
        self.short_shard = self._copy_data("short_shard", shorten)

    def _make_tables(self) -> None:
        rows = ["ID,TopConfigs", *(f"layout:xla:random:foreign{number},0;1" for number in range(200))]
        self.foreign_csv = self._write("foreign.csv", "\n".join(rows).encode())
        self.foreign_predictions = self.root / "foreign"
        folder = self.foreign_predictions / LAYOUT_FOLDER
        folder.mkdir(parents=True)
        for number in range(120):
            np.savez(folder / f"graph{number}.npz", ranking=np.arange(3), scores=np.arange(3.0))
        self.layout_predictions = self.root / "layout_predictions"
        folder = self.layout_predictions / LAYOUT_FOLDER
        folder.mkdir(parents=True)
        for path in (self.tree / "npz" / LAYOUT_FOLDER / "test").glob("*.npz"):
            count = len(np.load(path)["config_runtime"])
            np.savez(folder / path.name, ranking=np.arange(count), scores=np.arange(count, dtype=np.float32))
        self.cut_predictions = Path(shutil.copytree(self.layout_predictions, self.root / "cut_predictions"))
        path = min((self.cut_predictions / LAYOUT_FOLDER).glob("*.npz"))
        path.write_bytes(path.read_bytes()[:100])
        self.odd_journal = self.root / "odd_journal"
        self._write("odd_journal/simulation.jsonl", b"words\n")
        self._write("empty_journal/simulation.jsonl", b"")
        self.empty_journal = self.root / "empty_journal"
        self.old_journal = self.root / "old_journal"
        self._write("old_journal/simulation.jsonl", b'{"simulation": 3, "scale": "demo", "seed": 3}\n')
        self.odd_demo = self.root / "odd_demo"
        self._write("odd_demo/progress.json", b"{")
        self.other_demo = self.root / "other_demo"
        self._write("other_demo/progress.json", b'{"seed": 4, "scale": "demo", "done": []}')
        self.odd_index = self.root / "odd_index"
        self._write("odd_index/xla_random.json", b"[1]")
        self.odd_recipe = self.root / "odd_recipe"
        self._write(f"odd_recipe/{LAYOUT_FOLDER}/recipe.json", b"{")
