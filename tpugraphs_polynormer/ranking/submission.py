"""The contest's csv: the rows it must have, writing it, and its score if the true runtimes are known.

A submission is UTF-8 text: the header `ID,TopConfigs`, then one row per test graph in the order of the data set. `ID`
is the collection's id and the graph's name. `TopConfigs` is a list of candidate indices joined by `;`, predicted
fastest first: five for a tile graph (all, if it has fewer), all for a layout graph.

Predictions are npz files, one per graph, `<predictions>/<collection folder>/<graph>.npz` (for example
`layout/xla/default/alexnet.npz`), with `ranking` int64 [c], fastest first, and `scores` float32 [c]. A file is renamed
into place when it is complete, so that a killed prediction resumes with the graphs without a file.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.archives.npz import ArchiveError, read_arrays, read_shapes
from tpugraphs_polynormer.archives.writer import write_npz
from tpugraphs_polynormer.catalog import COLLECTIONS, Collection
from tpugraphs_polynormer.files import check_name, write_text, writing
from tpugraphs_polynormer.ranking.metrics import layout_contest_score, rank_candidates, tile_contest_score, true_costs
from tpugraphs_polynormer.ranking.random_baseline import expected_contest_score
from tpugraphs_polynormer.ranking.submission_check import HEADER, read_submission
from tpugraphs_polynormer.ranking.submission_rules import ExpectedRow, Faults, SubmissionError

RECIPE_NAME = "recipe.json"  # in a folder of predictions: what they were made of


def expected_rows(data_dir: Path | str, collections: Sequence[str] | None = None) -> list[ExpectedRow]:
    """The rows for the test split below `<data_dir>/npz`: collections in catalog order (None: all), graphs by name.

    A collection without test graphs has no rows; one that is asked for by name must have some. Only the headers of the
    archives are read.
    """
    root = Path(data_dir) / "npz"
    rows = []
    for collection in _choose(collections):
        paths = _sorted_archives(root / collection.folder / "test")
        if collections is not None and not paths:
            raise SubmissionError(f"{root / collection.folder / 'test'}: found no *.npz; leave {collection.id} out")
        for path in paths:
            graph = check_name(path.name.removesuffix(".npz"), str(path))
            if re.search(r'[,"\r\n]', graph):
                raise SubmissionError(
                    f"{path}: a comma, quote or line break in the name cannot be put in an ID; rename it"
                )
            shapes = read_shapes(path)
            if len(shapes.get("config_runtime", ())) != 1:
                raise SubmissionError(f"{path}: found no vector config_runtime, expected one value per candidate")
            rows.append(ExpectedRow(f"{collection.id}:{graph}", shapes["config_runtime"][0]))
    if not rows:
        raise SubmissionError(
            f"{root}: found no <collection>/test/*.npz; give the folder that holds npz/ as --archives"
        )
    return rows


def write_prediction(predictions_dir: Path | str, row_id: str, scores: np.ndarray) -> Path:
    """Writes the scores [c] of one graph and their ranking; returns the path of the file."""
    row = ExpectedRow(row_id, len(scores))
    scores = np.asarray(scores, np.float32)
    path = prediction_path(predictions_dir, row_id)
    write_npz(path, {"ranking": rank_candidates(scores, graph=row.graph), "scores": scores})
    return path


def prediction_path(predictions_dir: Path | str, row_id: str) -> Path:
    """The path of the prediction file of an ID."""
    row = ExpectedRow(row_id, 0)
    return Path(predictions_dir) / row.collection.folder / f"{check_name(row.graph, row_id)}.npz"


def read_prediction(path: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """(ranking, scores) of one prediction file."""
    ranking, scores = _read_arrays(Path(path), "ranking", "scores")
    return ranking, scores


def read_rankings(predictions_dir: Path | str, collections: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The rankings of the prediction files below a folder, of some collections (None: all), by ID."""
    rankings = {}
    for collection in _choose(collections):
        for path in _sorted_archives(Path(predictions_dir) / collection.folder):
            (ranking,) = _read_arrays(path, "ranking")
            rankings[f"{collection.id}:{path.name.removesuffix('.npz')}"] = ranking
    if not rankings:
        raise SubmissionError(f"{predictions_dir}: found no <collection>/<graph>.npz; run `tpugraphs predict` first")
    return rankings


def write_submission(path: Path | str, rankings: Mapping[str, np.ndarray], expected: Sequence[ExpectedRow]) -> None:
    """Checks the rankings, then writes the csv atomically; of a tile ranking the first five are written."""
    path = Path(path)
    faults = Faults()
    known = {row.id for row in expected}
    _check_collections(path, rankings, expected)
    for row_id in rankings:
        if row_id not in known:
            faults.add("foreign", row_id, None, "a ranking", "none: the test split has no such graph")
    lines = [HEADER]
    for row in expected:
        if row.id not in rankings:
            faults.add("missing", row.id, None, "no ranking", "one for every test graph")
            continue
        indices = np.asarray(rankings[row.id])
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            faults.add("not_integer", row.id, None, f"{indices.dtype} {list(indices.shape)}", "integers [candidates]")
            continue
        indices = indices[: row.num_listed]
        row.rule.check(indices, indices, None, faults)
        lines.append(f"{row.id},{';'.join(map(str, indices.tolist()))}")
    faults.raise_if_any(f"{path}: not written")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "\n".join(lines) + "\n", durable=True)


def score_submission(
    path: Path | str, truth_dir: Path | str, expected: Sequence[ExpectedRow]
) -> dict[str, tuple[float, float]]:
    """The contest score of each collection and what a random order scores on average; under "mean" their means.

    The true runtimes are in `<truth_dir>/<collection folder>/test/<graph>.npz`, under the keys of the archives.
    """
    rankings = read_submission(path, expected)
    scores: dict[str, list[tuple[float, float]]] = {}
    for row in expected:
        costs, kind = _read_costs(truth_dir, row), row.collection.kind
        score = tile_contest_score if kind == "tile" else layout_contest_score
        pair = score(costs, rankings[row.id]), expected_contest_score(kind, costs)
        scores.setdefault(row.collection.id, []).append(pair)
    means = {collection: _average(pairs) for collection, pairs in scores.items()}
    return means | {"mean": _average(means.values())}


def _average(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    return tuple(map(statistics.fmean, zip(*pairs, strict=True)))


def _choose(collections: Sequence[str] | None) -> list[Collection]:
    """The collections of these ids in catalog order; None means all."""
    return [each for each in COLLECTIONS.values() if collections is None or each.id in collections]


def _check_collections(path: Path, rankings: Mapping[str, np.ndarray], expected: Sequence[ExpectedRow]) -> None:
    """Raises in one line what would otherwise be a line per graph: other data, or collections without any ranking."""
    known = [row.id for row in expected if row.id in rankings]
    if rankings and not known:
        first = next(iter(rankings))
        raise SubmissionError(
            f"{path}: not written: none of the {len(rankings)} predicted graphs is a test graph of --archives: the "
            f"predictions are of other data or of another split (found {first}, expected such as {expected[0].id})"
        )
    wanted = dict.fromkeys(row.collection.id for row in expected)
    predicted = {ExpectedRow(row_id, 0).collection.id for row_id in rankings}
    missing = [name for name in wanted if name not in predicted]
    if missing:
        have = " ".join(name for name in wanted if name in predicted)
        raise SubmissionError(
            f"{path}: not written: no predictions for {', '.join(missing)}; predict them too, or write a csv of the "
            f"others alone with --collections {have}"
        )


def _sorted_archives(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"), key=lambda path: path.name)


def _read_costs(truth_dir: Path | str, row: ExpectedRow) -> np.ndarray:
    """float64 or int64 [c]: the true costs of the row's candidates, from the archive of its graph."""
    path = Path(truth_dir) / row.collection.folder / "test" / f"{check_name(row.graph, row.id)}.npz"
    keys = ("config_runtime", "config_runtime_normalizers") if row.collection.kind == "tile" else ("config_runtime",)
    costs = true_costs(*_read_arrays(path, *keys), graph=row.id)
    if len(costs) != row.num_candidates:
        raise SubmissionError(f"{path}: {len(costs)} runtimes, expected {row.num_candidates}; is it the same data set?")
    return costs


def _read_arrays(path: Path, *keys: str) -> list[np.ndarray]:
    try:
        return read_arrays(path, *keys)
    except ArchiveError as fault:
        if not path.exists():
            raise SubmissionError(f"{path}: found nothing, expected an archive with {', '.join(keys)}") from None
        found = f"{fault.key}: found {fault.found}, expected {fault.expected}"
        raise SubmissionError(f"{path}: expected an archive with {', '.join(keys)}, but {found}") from None
