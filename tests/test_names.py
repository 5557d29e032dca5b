"""Names from files that others made: none of them leads a stage out of its folder, or into another's file."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.hlo.programs import small_cnn
from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import LAYOUT
from tests.test_damage import SMALLEST
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.beam.commit import REJECTED_NAME
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME, seal_json
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import check_name
from tpugraphs_polynormer.hlo.writer import serialize_module
from tpugraphs_polynormer.ranking.submission import prediction_path, score_submission, write_prediction
from tpugraphs_polynormer.ranking.submission_rules import ExpectedRow

FOLDER = Path(LAYOUT.replace(":", "/"))
BAD = [
    "../../x",
    "/abs/path",
    "..",
    ".",
    "",
    ".hidden",
    "a/b",
    "a\\b",
    "a\nb",
    "a\0b",
    "x" * 201,
    "é" * 101,
    "\udcff",
    "a:b",
]
GOOD = ["unet_3d.4x4.bf16", "a b", "jit(f)", "=1+1", "-x", "größe", "x" * 200]


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Runs that no test may change."""
    return make_trained()


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_name_that_is_no_single_part_of_a_path_is_refused(name) -> None:
    with pytest.raises(UserError, match=r"^here: found the name ") as caught:
        check_name(name, "here")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", GOOD)
def test_names_as_graphs_have_them_are_taken(name, tmp_path) -> None:
    assert check_name(name, "here") == name
    (tmp_path / f".{name}.npz.{'0' * 32}.tmp").write_text("")  # the longest file name that is made of one


def rename(datasets: Path, split: str, name: str, what: str) -> Path:
    """Gives the first graph or shard of a split another name, and the manifest a checksum that fits."""
    path = datasets / FOLDER / MANIFEST_NAME
    content = json.loads(path.read_text())
    shard = content["splits"][split]["shards"][0]
    (shard if what == "shard" else shard["graphs"][0])["name"] = name
    path.write_text(json.dumps(seal_json(content)))
    return path


STAGES = {"evaluate": "valid", "predict": "test", "report": "valid", "export": "train", "train": "train"}


@pytest.mark.parametrize("what", ["graph", "shard"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_foreign_manifest_makes_no_stage_leave_its_folder(stage, what, trained, tmp_path, capsys) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    victims = [mine / "x.npz", mine / "x.tfrecord", mine / "x.candidates"]
    for victim in victims:
        victim.write_bytes(b"mine")
    for name in (f"../../../../../mine/{'x'}", str(mine / "x")):
        datasets = Path(shutil.copytree(trained.data, tmp_path / "datasets"))
        path = rename(datasets, STAGES[stage], name, what)
        places = ["--run-dir", str(trained.layout), "--datasets", str(datasets), "--output", str(tmp_path / "out")]
        if stage == "train":
            sets = [part for each in (*SMALLEST, f"data.collection={LAYOUT}") for part in ("--set", each)]
            places = ["--run-dir", str(tmp_path / "run"), "--datasets", str(datasets), "--strategy", "cpu", *sets]
        capsys.readouterr()
        assert main([stage, *places]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith(f"tpugraphs {stage}: error: {path}") and repr(name)[:60] in last
        shutil.rmtree(datasets)
    assert all(victim.read_bytes() == b"mine" for victim in victims)
    assert sorted(mine.iterdir()) == sorted(victims) and not list(tmp_path.glob("out/**/*.npz"))


@pytest.mark.parametrize("name", ["../../x", "/abs/path"])
def test_no_prediction_and_no_truth_outside_its_folder(name, tmp_path) -> None:
    with pytest.raises(UserError, match="found the name"):
        write_prediction(tmp_path / "a" / "b", f"{LAYOUT}:{name}", np.zeros(3))
    with pytest.raises(UserError, match="found the name"):
        prediction_path(tmp_path, f"{LAYOUT}:{name}")
    csv = tmp_path / "s.csv"
    csv.write_text(f"ID,TopConfigs\n{LAYOUT}:{name},0;1\n")
    with pytest.raises(UserError, match="found the name"):
        score_submission(csv, tmp_path, [ExpectedRow(f"{LAYOUT}:{name}", 2)])
    assert list(tmp_path.iterdir()) == [csv]


def test_archives_with_such_file_names_are_refused_or_skipped_by_name(tmp_path, capsys) -> None:
    write_tree(tmp_path / "in", LAYOUT, {"train": {"whole": layout_arrays(), "a\nb": layout_arrays(seed=1)}})
    options = ["--collections", LAYOUT, "--runner=FnApiRunner"]
    places = ["preprocess", "--archives", f"{tmp_path}/in", "--datasets", f"{tmp_path}/out"]
    assert main([*places, *options]) == 2
    assert "found the name 'a\\nb'" in capsys.readouterr().err
    assert main([*places, *options, "--on-error", "skip"]) == 0
    (rejected,) = map(json.loads, (tmp_path / "out" / FOLDER / REJECTED_NAME).read_text().splitlines())
    assert "found the name 'a\\nb'" in rejected["reason"]


def test_programs_with_such_file_names_are_not_featurized(tmp_path, capsys) -> None:
    (tmp_path / "in").mkdir()
    for name in (".hlo.pb", "a\\b.pb", "fine.pb"):
        (tmp_path / "in" / name).write_bytes(serialize_module(small_cnn()))
    assert main(["featurize", str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out.splitlines() == [str(tmp_path / "out" / "fine.npz")] and "left out 2" in said.err
