"""How stages end: with one line of what was read, written and left out; and not with success where nothing is left."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.hlo.programs import small_cnn
from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import LAYOUT
from tests.test_damage import SMALLEST
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME, seal_json
from tpugraphs_polynormer.datasets.statistics import summarize_sizes
from tpugraphs_polynormer.hlo.writer import serialize_module

FOLDER = Path(LAYOUT.replace(":", "/"))


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Runs that no test may change."""
    return make_trained()


def last_line(caplog, *arguments: object) -> str:
    """What a stage that succeeds logs last."""
    caplog.clear()
    logger = logging.getLogger("tpugraphs_polynormer")
    logger.addHandler(caplog.handler)  # main replaces the handlers of the root logger
    try:
        assert main(list(map(str, arguments))) == 0
    finally:
        logger.removeHandler(caplog.handler)
    return caplog.records[-1].getMessage()


def test_simulate_preprocess_and_featurize_count_what_they_did(tmp_path, caplog, capsys) -> None:
    tree, data = tmp_path / "tree", tmp_path / "data"
    told = last_line(caplog, "simulate", "--archives", tree, "--collections", "tile:xla", "--workers", 1)
    files = list((tree / "npz").rglob("*.npz"))
    assert told.startswith(f"{tree}: {len(files)} simulated archives with ") and told.endswith("none left out")
    (tree / "npz/tile/xla/train/bad.npz").write_bytes(b"no zip")
    options = ["--collections", "tile:xla", "--on-error", "skip", "--runner=FnApiRunner"]
    told = last_line(caplog, "preprocess", "--archives", tree, "--datasets", data, *options)
    counts = f"read {len(files) + 1} archives, wrote {len(files)} graphs in 3 shards"
    assert told == f"{data}: {counts}; left out: 1 rejected, 0 excluded"
    source = tmp_path / "programs"
    source.mkdir()
    for name in ("a", "b"):
        (source / f"{name}.hlo.pb").write_bytes(serialize_module(small_cnn()))
    told = last_line(caplog, "featurize", source, "--output", tmp_path / "out")
    assert told.startswith(f"{tmp_path / 'out'}: read 2 files, wrote 2 archives, left out 0; ")
    assert "the compiler's default presumed" in told
    (source / "c.pb").write_bytes(b"nothing")
    capsys.readouterr()
    assert main(["featurize", str(source), "--output", str(tmp_path / "out")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "read 3 files, wrote 2 archives, left out 1 (named above), the first: " in last and "c.pb" in last


def test_stages_of_trained_runs_say_what_they_read_and_where_they_wrote(trained, tmp_path, caplog) -> None:
    runs, data = ["--run-dir", trained.layout], ["--datasets", trained.data]
    sets = [part for each in (*SMALLEST, f"data.collection={LAYOUT}") for part in ("--set", each)]
    run = tmp_path / "run"
    told = last_line(caplog, "train", *data, "--run-dir", run, "--strategy", "cpu", *sets)
    assert told == f"{run}: a run of 1 epochs, trained on {LAYOUT} of {trained.data}"
    output = tmp_path / "evaluation"
    told = last_line(caplog, "evaluate", *runs, *data, "--output", output)
    files = f"{output}: evaluation-valid.csv and .json of 1 runs"
    assert told == f"{files} on 2 valid graphs of {trained.data}, none left out"
    output = tmp_path / "predictions"
    told = last_line(caplog, "predict", *runs, *data, "--output", output)
    assert told == f"{output}: predictions of 1 runs for 3 test graphs of {trained.data}, none left out"
    page = tmp_path / "page.html"
    told = last_line(caplog, "report", *runs, *data, "--output", page)
    assert told.startswith(f"{page}: {trained.layout} on all candidates of each valid graph")
    model = tmp_path / "model"
    told = last_line(caplog, "export", *runs, *data, "--output", model)
    assert told.startswith(f"{model}: a SavedModel of ") and told.endswith(f"best weights in {trained.layout}")
    (tmp_path / "p.hlo.pb").write_bytes(serialize_module(small_cnn()))
    told = last_line(caplog, "rank", tmp_path / "p.hlo.pb", *runs, "--budget", 9, "--output", tmp_path / "r.npz")
    ranked = "9 distinct candidates ranked by 1 runs, the best 5 above"
    assert told == f"{tmp_path / 'p.hlo.pb'}: {ranked}, written to {tmp_path / 'r.npz'}"
    shutil.copytree(trained.tree / "npz" / FOLDER, tmp_path / "tree" / "npz" / FOLDER)
    csv = tmp_path / "submission.csv"
    told = last_line(caplog, "submit", "--archives", tmp_path / "tree", "--predictions", output, "--output", csv)
    assert told == f"{csv}: 3 rows of 3 predictions in {output}, none left out"


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_split_whose_archives_are_all_rejected_is_a_failure(split, tmp_path, capsys) -> None:
    graphs = {each: {"a": layout_arrays(seed=1), "b": layout_arrays(seed=2)} for each in ("train", "valid", "test")}
    write_tree(tmp_path / "in", LAYOUT, graphs)
    for path in (tmp_path / "in" / "npz" / FOLDER / split).iterdir():
        path.write_bytes(path.read_bytes()[:100])
    options = ["--collections", LAYOUT, "--on-error", "skip", "--runner=FnApiRunner"]
    capsys.readouterr()
    assert main(["preprocess", "--archives", f"{tmp_path}/in", "--datasets", f"{tmp_path}/out", *options]) == 2
    said = capsys.readouterr()
    counts = (
        f"{LAYOUT}: all 2 archives of the {split} split were rejected, 0 are left; the first: a.npz: file: found no"
    )
    assert said.err.startswith(f"tpugraphs preprocess: error: {counts}") and len(said.err.splitlines()) == 1
    assert "--on-error skip" not in said.err and not said.out  # it is what the user has already done
    assert not list((tmp_path / "out").rglob(MANIFEST_NAME))


@pytest.mark.parametrize(("stage", "split"), [("evaluate", "valid"), ("predict", "test"), ("report", "valid")])
def test_a_split_without_graphs_is_a_failure(stage, split, trained, tmp_path, capsys) -> None:
    data = shutil.copytree(trained.data, tmp_path / "data")
    path = data / FOLDER / MANIFEST_NAME
    content = json.loads(path.read_text())
    sizes = summarize_sizes(np.zeros((0, 5), np.int64))
    content["splits"][split] = {"num_graphs": 0, "num_candidates": 0, "sizes": sizes, "shards": []}
    path.write_text(json.dumps(seal_json(content | {"num_rejected": 4})))
    places = ["--run-dir", str(trained.layout), "--datasets", str(data), "--output", str(tmp_path / "output")]
    capsys.readouterr()
    assert main([stage, *places]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{data / FOLDER}: the {split} split has no graphs (archives rejected in preprocessing: 4)" in last
    assert not list(tmp_path.glob("output/**/*.npz"))
