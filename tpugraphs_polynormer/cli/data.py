"""The stages before training: simulate, inspect, download, preprocess, featurize; and verify."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tpugraphs_polynormer.catalog import BENCHMARKS, COLLECTIONS
from tpugraphs_polynormer.cli.options import conclude
from tpugraphs_polynormer.errors import UserError


def add_stages(stages: argparse._SubParsersAction) -> None:
    """Adds the parsers of these stages."""
    _add_simulate(stages)
    _add_inspect(stages)
    _add_download(stages)
    _add_preprocess(stages)
    _add_featurize(stages)
    _add_verify(stages)


def _add_simulate(stages: argparse._SubParsersAction) -> None:
    simulate = stages.add_parser("simulate", help="write the five collections from the simulated TPU")
    simulate.add_argument("--archives", type=Path, required=True, help="folder for npz/ and truth/")
    simulate.add_argument("--scale", choices=("tiny", "demo", "small", "full"), default="tiny")
    simulate.add_argument("--seed", type=int, default=0)
    simulate.add_argument("--collections", nargs="+", default=list(COLLECTIONS), metavar="ID", choices=COLLECTIONS)
    simulate.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    simulate.set_defaults(run=_run_simulate)


def _run_simulate(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.simulator.write import simulate

    if args.workers < 1:
        raise UserError(f"--workers: found {args.workers}, expected at least 1")
    summary = simulate(args.archives, args.scale, args.seed, collections=args.collections, num_workers=args.workers)
    for collection, counts in summary.items():
        print(f"{collection}: {counts['graphs']:,} graphs, {counts['candidates']:,} candidates (simulated)")
    num_graphs, num_candidates = (sum(each[name] for each in summary.values()) for name in ("graphs", "candidates"))
    conclude(f"{args.archives}: {num_graphs:,} simulated archives with {num_candidates:,} candidates, none left out")


def _add_inspect(stages: argparse._SubParsersAction) -> None:
    inspect = stages.add_parser("inspect", help="summarise one npz archive")
    inspect.add_argument("file", type=Path)
    inspect.add_argument("--plot", type=Path, metavar="PNG", help="also draw runtimes and opcodes")
    inspect.set_defaults(run=_run_inspect)


def _run_inspect(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.inspect import inspect_archive, plot_inspection

    inspection = inspect_archive(args.file)
    print(inspection)
    if args.plot:
        plot_inspection(inspection, args.plot)


def _add_download(stages: argparse._SubParsersAction) -> None:
    download = stages.add_parser("download", help="fetch the official collections or the benchmarks' files")
    download.add_argument("--collections", nargs="+", default=[], metavar="ID", choices=COLLECTIONS)
    download.add_argument("--benchmarks", nargs="+", default=[], metavar="NAME", choices=BENCHMARKS)
    download.add_argument("--archives", type=Path, metavar="DIR", help="with --collections: folder for npz/")
    download.add_argument("--files", type=Path, metavar="DIR", help="with --benchmarks: folder for their files")
    download.add_argument(
        "--base-address",
        help="where the collections' tar files and eval_indices/ are, if not at the official addresses",
    )
    download.add_argument("--mirror", help="where the files of the benchmarks lie, if not their official places")
    download.add_argument("--no-indices", action="store_true", help="leave out the official validation index files")
    download.add_argument("--keep-archives", action="store_true", help="keep tar and zip files after unpacking")
    download.set_defaults(run=_run_download)


def _run_download(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.download.fetch import DownloadOptions, download_benchmarks, download_collections

    if not args.collections and not args.benchmarks:
        raise UserError("nothing to fetch: name --collections or --benchmarks")
    for names, flag in (("collections", "archives"), ("benchmarks", "files")):
        if getattr(args, names) and not getattr(args, flag):
            raise UserError(f"--{names}: name the folder to put them in with --{flag}")
    options = DownloadOptions(keep_archives=args.keep_archives)
    records = {}
    if args.collections:
        collections = {"base_address": args.base_address, "with_indices": not args.no_indices, "options": options}
        records |= download_collections(args.collections, args.archives, **collections)
    if args.benchmarks:
        records |= download_benchmarks(args.benchmarks, args.files, mirror=args.mirror, options=options)
    for name, record in records.items():
        print(f"{name}: {record.size:,} bytes, sha256 {record.sha256}")
    where = ", ".join(str(folder) for folder in (args.archives, args.files) if folder)
    size = sum(record.size for record in records.values())
    conclude(f"{where}: {len(records):,} downloaded files of {size:,} bytes, none left out")


def _add_preprocess(stages: argparse._SubParsersAction) -> None:
    preprocess = stages.add_parser(
        "preprocess",
        help="turn npz archives into GraphTensor datasets (Beam)",
        epilog="All other options are Beam's, such as --runner; without one, all cores of this machine are used.",
        allow_abbrev=False,
    )
    preprocess.add_argument("--archives", required=True, help="folder that holds npz/ (local, or one that Beam reads)")
    preprocess.add_argument("--datasets", required=True, help="folder for the datasets")
    preprocess.add_argument("--format", choices=("npz", "pb"), default="npz", help="pb: layout tuning protobufs")
    preprocess.add_argument("--collections", nargs="+", default=list(COLLECTIONS), metavar="ID", choices=COLLECTIONS)
    preprocess.add_argument("--on-error", choices=("fail", "skip"), default="fail", help="what a bad archive does")
    preprocess.add_argument(
        "--exclude",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="graphs to leave out; unet* means all such",
    )
    preprocess.add_argument("--exclude-file", type=Path, metavar="FILE", help="the same, one name per line")
    preprocess.add_argument("--max-nodes", type=int, default=0, help="prune larger graphs around config nodes")
    preprocess.add_argument("--hops", type=int, default=3, help="with --max-nodes: how far around them")
    preprocess.add_argument("--graphs-per-shard", type=int, default=0, help="default: 4 layout or 256 tile graphs")
    preprocess.set_defaults(run=_run_preprocess, takes_beam_arguments=True)


def _run_preprocess(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.beam.commit import CollectionSummary
    from tpugraphs_polynormer.beam.preprocess import run

    done = run(args, args.beam_arguments)
    for collection, each in done.items():
        excluded = f", excluded graphs: {each.num_excluded:,}" if each.num_excluded else ""
        print(f"{collection}: {args.datasets}{excluded}")
    total = CollectionSummary(*map(sum, zip(*done.values(), strict=True)))
    conclude(
        f"{args.datasets}: read {total.num_archives:,} archives, wrote {total.num_graphs:,} graphs in "
        f"{total.num_shards:,} shards; left out: {total.num_rejected:,} rejected, {total.num_excluded:,} excluded"
    )


def _add_featurize(stages: argparse._SubParsersAction) -> None:
    featurize = stages.add_parser("featurize", help="turn HLO protobufs into the official npz archives")
    featurize.add_argument("input", type=Path, help="a .pb file (module or tuning data), or a folder of them")
    featurize.add_argument("--output", type=Path, required=True, help="an npz file, or a folder for a folder")
    featurize.add_argument("--candidates", type=int, default=1, help="candidates to draw for a plain module")
    featurize.add_argument("--seed", type=int, default=0)
    featurize.set_defaults(run=_run_featurize)


def _run_featurize(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.featurize import featurize_path

    result = featurize_path(args.input, args.output, num_candidates=args.candidates, seed=args.seed)
    for path in result.written:
        print(path)
    num_read = len(result.sources)
    counts = f"read {num_read:,} files, wrote {len(result.written):,} archives, left out {len(result.failed):,}"
    if result.failed:
        raise UserError(f"{args.output}: {counts} (named above), the first: {next(iter(result.failed.values()))}")
    conclude(f"{args.output}: {counts}")


def _add_verify(stages: argparse._SubParsersAction) -> None:
    verify = stages.add_parser(
        "verify", help="compare the files of datasets, runs and predictions with their checksums"
    )
    verify.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="one of these, or a folder of them")
    verify.set_defaults(run=_run_verify)


def _run_verify(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.ranking.tables import format_table
    from tpugraphs_polynormer.ranking.verify import verify_folder

    results = [verify_folder(folder) for folder in args.folders]
    faults = [fault for result in results for fault in result.faults]
    read = f"{sum(each.num_files for each in results):,} files, {sum(each.num_bytes for each in results):,} bytes"
    for folder in (folder for result in results for folder in result.unfinished):
        print(f"{folder}: not trained to its end, so no checksums: its files are readable or listed below")
    if faults:
        print(format_table(["file", "found", "expected"], [[str(each) for each in fault] for fault in faults]))
        raise UserError(f"{len(faults):,} of {read} are wrong; make them again with the stage that wrote them")
    print(f"{', '.join(map(str, args.folders))}: {read}, all as they were written")
    conclude(
        f"verified {sum(len(each.folders) for each in results):,} datasets, runs and predictions; 0 files are wrong"
    )
