"""Writes simulated TpuGraphs collections as the official tree of archives, and the hidden runtimes in a second tree."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.archives.estimated import SIMULATION_NAME
from tpugraphs_polynormer.archives.writer import Blocks, write_archive, write_npz
from tpugraphs_polynormer.catalog import COLLECTIONS, NUM_LAYOUT_FEATURES, SPLITS
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import only_writer, write_text
from tpugraphs_polynormer.hlo.choices import Choices, enumerate_choices
from tpugraphs_polynormer.hlo.features import ModuleArrays, featurize_module
from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.hlo.sampling import gather_layouts
from tpugraphs_polynormer.process import end_with_process
from tpugraphs_polynormer.progress import Progress
from tpugraphs_polynormer.simulator.costs import LayoutCosts, measure, price_choices
from tpugraphs_polynormer.simulator.hardware import MEASUREMENT_NOISE
from tpugraphs_polynormer.simulator.programs import SOURCES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES, Scale, draw_count
from tpugraphs_polynormer.simulator.search import SEARCHES, draw_search_blocks
from tpugraphs_polynormer.simulator.tile_costs import TileCosts
from tpugraphs_polynormer.simulator.tiles import cut_kernel, draw_tiles

log = logging.getLogger(__name__)

JOURNAL_NAME = SIMULATION_NAME
_VERSION = 4  # increased when the same scale and seed give other bytes
_FLOAT_BLOCK_VALUES = 4 << 20  # float32 values of node_config_feat per block
_SPREAD_DRAWS = 64  # candidates that show whether a program's layouts matter
_LEAST_SPREAD = 10 * MEASUREMENT_NOISE  # of the slowest over the fastest of them
_SPLIT_STRIDE = 100_000  # between the numbers of the first graphs of two splits


@dataclass(frozen=True)
class Graph:
    """One archive to simulate; `number` decides the program, the same in the random and the default search."""

    collection: str
    split: str
    number: int


def simulate(
    out: Path,
    scale: str,
    seed: int,
    *,
    collections: Sequence[str] = tuple(COLLECTIONS),
    num_programs: int | None = None,
    num_workers: int = 1,
    operands: bool = False,
) -> dict[str, dict[str, int]]:
    """Writes collections below `out`/npz and their test splits' runtimes below `out`/truth.

    The same seed gives the same bytes. A journal in `out` lists the finished graphs: a run that was killed continues,
    and a folder of another scale or seed is refused. Returns, per collection id, how many graphs and candidates it has.

    Args:
      num_programs: of the train split of each layout collection, if not as many as the scale has. More of them can be
        added to a folder later.
      operands: archives also have node_operands, which official ones do not (see hlo/operands.py).
    """
    if scale not in SCALES:
        raise UserError(f"unknown scale {scale!r}; choose from {', '.join(SCALES)}")
    out = Path(out)
    graphs = [graph for collection in collections for graph in list_graphs(SCALES[scale], collection, num_programs)]
    with only_writer(out):
        finished = _open_journal(out, scale, seed, operands)
        pending = [graph for graph in graphs if graph not in finished]
        with (
            (out / JOURNAL_NAME).open("a") as journal,
            Progress(len(graphs), f"simulate {scale}", "graph", done=len(graphs) - len(pending)) as progress,
        ):
            for graph, candidates in _run(out, (scale, seed, operands), pending, num_workers):
                finished[graph] = candidates
                journal.write(json.dumps(asdict(graph) | {"candidates": candidates}) + "\n")
                journal.flush()
                progress.update()
    log.info("simulated %s graphs at scale %s into %s", len(pending), scale, out)
    counts = {name: [finished[graph] for graph in graphs if graph.collection == name] for name in collections}
    return {name: {"graphs": len(each), "candidates": sum(each)} for name, each in counts.items()}


def list_graphs(plan: Scale, collection: str, num_programs: int | None = None) -> Iterator[Graph]:
    """The graphs of one collection, split by split; a layout collection may have another number of train programs."""
    counts = plan.tile_kernels
    if COLLECTIONS[collection].kind == "layout":
        train, valid, test = plan.layout_graphs[collection]
        counts = (num_programs or train, valid, test)
    first = 0
    for split, count in zip(SPLITS, counts, strict=True):
        yield from (Graph(collection, split, number) for number in range(first, first + count))
        # Splits start at fixed numbers, so that collections of different sizes share their valid and test graphs.
        first += max(count, _SPLIT_STRIDE)


def _open_journal(out: Path, scale: str, seed: int, operands: bool) -> dict[Graph, int]:
    """The finished graphs of `out` and their candidates; a folder without a journal gets an empty one."""
    header = {"simulation": _VERSION, "scale": scale, "seed": seed, "operands": operands}
    path = out / JOURNAL_NAME
    if not path.exists():
        if (out / "npz").exists():
            raise UserError(
                f"{out / 'npz'}: found archives that no simulation wrote (there is no {JOURNAL_NAME}); simulated ones "
                "are not put beside them: choose another --archives folder"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(header) + "\n")
        return {}
    advice = "choose another --archives folder, or remove this one"
    try:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        first, *rest = (json.loads(line) for line in whole.splitlines())
        graphs = {Graph(each["collection"], each["split"], each["number"]): each["candidates"] for each in rest}
        found = {name: ({"operands": False} | first)[name] for name in header}
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{path}: not the journal of a simulation; {advice}") from None
    if found != header:
        told = " and ".join(
            f"{name} {found[name]}, not {header[name]}" for name in header if found[name] != header[name]
        )
        raise UserError(f"{out}: holds a simulation of {told}; {advice}")
    if whole != text:  # a killed run left an incomplete line
        write_text(path, whole)
    return graphs


def _run(
    out: Path, how: tuple[str, int, bool], graphs: Sequence[Graph], num_workers: int
) -> Iterator[tuple[Graph, int]]:
    """Yields (graph, candidates) once its files are written, in any order; `how` is scale, seed and operands."""
    if num_workers == 1:
        yield from ((graph, _simulate_one(out, *how, graph)) for graph in graphs)
        return
    end = {"initializer": end_with_process, "initargs": (os.getpid(),)}  # a killed parent cannot end its pool
    with ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), **end) as pool:
        try:
            futures = {pool.submit(_simulate_one, out, *how, graph): graph for graph in graphs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _simulate_one(out: Path, scale: str, seed: int, operands: bool, graph: Graph) -> int:
    folder = Path(COLLECTIONS[graph.collection].folder) / graph.split
    work = simulate_kernel if COLLECTIONS[graph.collection].kind == "tile" else simulate_graph
    return work(out, folder, SCALES[scale], seed, graph.number, operands=operands)


def simulate_graph(
    out: Path,
    folder: Path,
    plan: Scale,
    seed: int,
    number: int,
    num_candidates: int | None = None,
    *,
    operands: bool = False,
) -> int:
    """Writes one layout archive into `out`/npz/`folder` (ending in source/search/split); returns its candidate count.

    The program depends on seed, source and number alone: random and default search share their programs. Candidates
    are drawn twice, block by block, once for their costs and once to write them, so that memory stays small.
    """
    _, source, search, split = folder.parts
    family = SOURCES[source][number % len(SOURCES[source])]
    program_seed = [seed, sorted(SOURCES).index(source), number]
    module, arrays, choices, costs = _draw_ranked_program(family, plan, program_seed)
    rng = np.random.default_rng([*program_seed, 1 + SEARCHES.index(search)])
    if num_candidates is None and split == "test":
        num_candidates = plan.test_candidates + int(rng.integers(2))
    elif num_candidates is None:
        num_candidates = draw_count(rng, plan.layout_candidates[f"layout:{source}:{search}"])
    draw = {"search": search, "seed": int(rng.integers(1 << 62))}
    seconds = [costs.seconds(block) for block in draw_search_blocks(choices, num_candidates, **draw)]
    shape = (num_candidates, len(choices.node_ids), NUM_LAYOUT_FEATURES)
    blocks = _layout_blocks(choices, draw_search_blocks(choices, num_candidates, **draw))
    contents = {
        "node_config_feat": Blocks(shape, np.float32, blocks),
        "node_config_ids": choices.node_ids,
        "node_splits": arrays.node_splits[None],
    }
    measured = {"config_runtime": measure(np.concatenate(seconds), rng)}
    _write(out, folder, _graph_name(module, split, number), arrays.members(operands=operands) | contents, measured)
    return num_candidates


def _draw_ranked_program(
    family: str, plan: Scale, program_seed: list[int]
) -> tuple[Module, ModuleArrays, Choices, LayoutCosts]:
    """The first program of a seed whose layouts matter, its arrays, its choices and its costs.

    In one of fifty drawn `xla` programs (small U-Nets of one volume per batch) all candidates take the same time.
    Nothing can be learned from such a program, and the tau of every ranking is near 0.
    """
    rng = np.random.default_rng(program_seed)
    while True:
        module = draw_program(family, plan.size, rng)
        arrays, choices = featurize_module(module), enumerate_choices(module)
        costs = price_choices(arrays, choices)
        ids = np.random.default_rng(program_seed).integers(choices.counts, size=(_SPREAD_DRAWS, len(choices.counts)))
        seconds = costs.seconds(ids)
        if seconds.max() > (1 + _LEAST_SPREAD) * seconds.min():
            return module, arrays, choices, costs


def _layout_blocks(choices: Choices, index_blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields the layouts of choice numbers as float32 [b, nc, 18], a few megabytes at a time."""
    rows = max(1, _FLOAT_BLOCK_VALUES // (len(choices.node_ids) * NUM_LAYOUT_FEATURES))
    for indices in index_blocks:
        for start in range(0, len(indices), rows):
            yield gather_layouts(choices, indices[start : start + rows]).astype(np.float32)


def simulate_kernel(out: Path, folder: Path, plan: Scale, seed: int, number: int, *, operands: bool = False) -> int:
    """Writes one tile archive into `out`/npz/`folder`; returns its candidate count."""
    rng = np.random.default_rng([seed, len(SOURCES), number])
    families = [family for each in SOURCES.values() for family in each]
    split = folder.parts[-1]
    while True:
        module = draw_program(families[number % len(families)], plan.kernel_size, rng)
        kernel = cut_kernel(module, rng, plan.kernel_nodes)
        arrays = featurize_module(kernel)
        costs = TileCosts(arrays.node_feat, arrays.node_opcode, arrays.edge_index)
        features = draw_tiles(costs, rng, draw_count(rng, plan.tile_candidates))
        if len(features) > 1:
            break
    runtimes = measure(costs.seconds(features), rng)
    normalizers = np.full_like(runtimes, runtimes[0])
    shuffled = rng.permutation(len(features))
    measured = {"config_runtime": runtimes[shuffled], "config_runtime_normalizers": normalizers}
    contents = arrays.members(operands=operands) | {"config_feat": features[shuffled]}
    _write(out, folder, _graph_name(kernel, split, number), contents, measured)
    return len(features)


def _graph_name(module: Module, split: str, number: int) -> str:
    """A unique name; the name of a test graph is a hash, as in the official archives."""
    digest = hashlib.md5(f"{module.name}.{number}".encode(), usedforsecurity=False).hexdigest()
    return digest if split == "test" else f"{module.name}_{digest[:8]}"


def _write(
    out: Path,
    folder: Path,
    name: str,
    contents: dict[str, np.ndarray | Blocks],
    measured: dict[str, np.ndarray],
) -> None:
    """Writes an archive; test archives hide runtimes (0, normalizers 1), which go to a file of the truth tree."""
    shown = measured
    if folder.parts[-1] == "test":
        write_npz(out / "truth" / folder / f"{name}.npz", measured)
        shown = {key: np.full_like(each, int(key.endswith("normalizers"))) for key, each in measured.items()}
    write_archive(out / "npz" / folder / f"{name}.npz", contents | shown)
