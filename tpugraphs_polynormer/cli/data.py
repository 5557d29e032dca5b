"""The stages before training: simulate, label, download, inspect, featurize, preprocess; and verify."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from tpugraphs_polynormer.catalog import BENCHMARKS, COLLECTIONS
from tpugraphs_polynormer.cli.label import add_label
from tpugraphs_polynormer.cli.options import (
    add_names,
    add_number,
    add_operands,
    add_path,
    add_seed,
    add_topology,
    check_output,
    conclude,
)
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.errors import UserError

if TYPE_CHECKING:
    from tpugraphs_polynormer.archives.featurize import FeaturizeResult

TITLE = "data"


def _add_simulate(stages: argparse._SubParsersAction) -> None:
    simulate = add_stage(
        stages,
        "simulate",
        "write the five collections from the simulated TPU",
        _run_simulate,
        ["--archives data --scale tiny", "--archives data --scale small --seed 1 --collections layout:xla:random"],
        note="The same scale and seed give the same bytes. A killed simulation continues when it is run again.",
    )
    add_path(simulate, "--archives", "DIR", "folder for npz/, and for truth/, the test runtimes", required=True)
    simulate.add_argument(
        "--scale",
        choices=("tiny", "demo", "small", "full"),
        default="tiny",
        help="how many graphs and candidates; full has the official sizes and takes hours and tens of gigabytes",
    )
    add_seed(simulate, "programs, candidates and measurement noise")
    add_names(simulate, "--collections", "ID", COLLECTIONS, "what to simulate", list(COLLECTIONS))
    add_number(
        simulate, "--programs", 1, "train programs of each layout collection (default: as many as the scale has)"
    )
    add_operands(simulate)
    add_number(simulate, "--workers", 1, "processes (default: one per core)", default=os.cpu_count() or 1)


def _run_simulate(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.simulator.write import simulate

    check_output("--archives", args.archives)
    how = {"collections": args.collections, "num_programs": args.programs, "operands": args.operands}
    summary = simulate(args.archives, args.scale, args.seed, num_workers=args.workers, **how)
    for collection, counts in summary.items():
        print(f"{collection}: {counts['graphs']:,} graphs, {counts['candidates']:,} candidates (simulated)")
    num_graphs, num_candidates = (sum(each[name] for each in summary.values()) for name in ("graphs", "candidates"))
    conclude(f"{args.archives}: {num_graphs:,} simulated archives with {num_candidates:,} candidates, none left out")


def _add_download(stages: argparse._SubParsersAction) -> None:
    download = add_stage(
        stages,
        "download",
        "fetch the official collections or the benchmarks' files",
        _run_download,
        ["--collections layout:xla:random --archives data", "--benchmarks minesweeper tolokers --files files"],
        note="An interrupted download continues when it is run again.",
    )
    add_names(download, "--collections", "ID", COLLECTIONS, "TpuGraphs collections to fetch", [])
    add_names(download, "--benchmarks", "NAME", BENCHMARKS, "node-classification data sets to fetch", [])
    add_path(download, "--archives", "DIR", "with --collections: folder for npz/")
    add_path(download, "--files", "DIR", "with --benchmarks: folder for their files")
    download.add_argument(
        "--base-address",
        metavar="URL",
        help="where the collections' tar files and eval_indices/ are, if not at the official addresses",
    )
    download.add_argument(
        "--mirror", metavar="URL", help="where the files of the benchmarks are, if not at their official addresses"
    )
    download.add_argument("--no-indices", action="store_true", help="leave out the official validation index files")
    download.add_argument("--keep-archives", action="store_true", help="keep tar and zip files after unpacking")


def _run_download(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.download.fetch import DownloadOptions, download_benchmarks, download_collections

    if not args.collections and not args.benchmarks:
        raise UserError("nothing to fetch: name --collections or --benchmarks")
    for names, flag in (("collections", "archives"), ("benchmarks", "files")):
        if getattr(args, names):
            if not getattr(args, flag):
                raise UserError(f"--{names}: name the folder to put them in with --{flag}")
            check_output(f"--{flag}", getattr(args, flag))
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


def _add_inspect(stages: argparse._SubParsersAction) -> None:
    inspect = add_stage(
        stages,
        "inspect",
        "summarise one npz archive",
        _run_inspect,
        ["data/npz/tile/xla/train/kernel.npz", "data/npz/layout/xla/random/train/net.npz --plot net.png"],
    )
    add_path(inspect, "file", "FILE", "an npz archive of TpuGraphs")
    add_path(inspect, "--plot", "FILE", "also draw runtimes and opcodes to this .png, .svg or .pdf")


def _run_inspect(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.inspect import check_picture, inspect_archive, plot_inspection

    if args.plot:
        check_picture(args.plot)
        check_output("--plot", args.plot, args.file, kind="file")
    inspection = inspect_archive(args.file)
    print(inspection)
    if args.plot:
        plot_inspection(inspection, args.plot)
        print(args.plot)


def _add_featurize(stages: argparse._SubParsersAction) -> None:
    featurize = add_stage(
        stages,
        "featurize",
        "turn HLO programs (text or protobuf) into the official npz archives",
        _run_featurize,
        [
            "program.hlo.pb --output program.npz --candidates 100",
            "dumps --output archives",
            "program.txt --topology v3:2x2 --output program.npz",
            "program.txt --topology v3:2x2 --kernels --candidates 50 --output kernels",
        ],
        note="With --topology, the real TPU compiler (extra tpu-compiler) takes each program to just before it assigns "
        "layouts, as the official graphs were taken, and tells its own default. Without it, the program is taken as it "
        "is given, and the default is presumed.",
    )
    add_path(featurize, "input", "INPUT", "HLO text or a .pb file (module or tuning data), or a folder of them")
    add_path(featurize, "--output", "PATH", "an npz file, or a folder for a folder", required=True)
    add_number(featurize, "--candidates", 1, "candidates to draw for a plain module or a kernel", default=1)
    add_seed(featurize, "the drawn candidates")
    add_operands(featurize)
    add_topology(featurize, "take programs as the compiler of this TPU sees them (default: as given)")
    featurize.add_argument(
        "--kernels", action="store_true", help="with --topology: tile archives of the compiled kernels, into a folder"
    )
    add_number(
        featurize, "--time-limit", 1, "with --topology: seconds that the compiler may take for a program", default=600
    )


def _run_featurize(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.featurize import featurize_path

    if args.kernels and not args.topology:
        raise UserError("--kernels needs the compiler that makes them: give --topology, such as v3:2x2")
    check_output("--output", args.output, args.input, kind="folder" if args.input.is_dir() or args.kernels else "file")
    draw = {"num_candidates": args.candidates, "seed": args.seed, "operands": args.operands}
    if args.topology:
        result, default = _featurize_compiled(args, draw), f"the default that the compiler of {args.topology} told"
    else:
        result = featurize_path(args.input, args.output, **draw)
        default = "the compiler's default presumed (--topology asks the compiler itself)"
    for path in result.written:
        print(path)
    num_read = len(result.sources)
    counts = f"read {num_read:,} files, wrote {len(result.written):,} archives, left out {len(result.failed):,}"
    if result.failed:
        raise UserError(f"{args.output}: {counts} (named above), the first: {next(iter(result.failed.values()))}")
    conclude(f"{args.output}: {counts}; programs without measurements have {default}")


def _featurize_compiled(args: argparse.Namespace, draw: dict[str, int]) -> FeaturizeResult:
    """Featurizes what the TPU compiler makes of programs."""
    from tpugraphs_polynormer.archives.featurize import Archives, featurize_path, module_arrays
    from tpugraphs_polynormer.compiler.kernels import compile_kernels
    from tpugraphs_polynormer.compiler.program import compile_program, use_session
    from tpugraphs_polynormer.simulator.kernel_archives import kernel_archives

    with use_session(None, args.topology, args.time_limit) as session:

        def convert(data: bytes) -> Archives:
            if args.kernels:
                return kernel_archives(compile_kernels(data, args.topology, session=session), args.topology, **draw)
            return [module_arrays(compile_program(data, args.topology, session=session), **draw)]

        return featurize_path(args.input, args.output, convert=convert)


def _add_preprocess(stages: argparse._SubParsersAction) -> None:
    preprocess = add_stage(
        stages,
        "preprocess",
        "turn npz archives into GraphTensor datasets (Beam)",
        _run_preprocess,
        [
            "--archives data --datasets datasets --collections layout:xla:random",
            "--archives data --datasets datasets --exclude 'unet*' --on-error skip",
        ],
        note="All other options are Beam's, such as --runner; without one, all cores of this machine are used.",
        allow_abbrev=False,
    )
    preprocess.add_argument(
        "--archives", required=True, metavar="DIR", help="folder that holds npz/ (local, or one that Beam reads)"
    )
    preprocess.add_argument("--datasets", required=True, metavar="DIR", help="folder for the datasets")
    preprocess.add_argument("--format", choices=("npz", "pb"), default="npz", help="pb: layout tuning protobufs")
    add_names(preprocess, "--collections", "ID", COLLECTIONS, "what to preprocess", list(COLLECTIONS))
    preprocess.add_argument("--on-error", choices=("fail", "skip"), default="fail", help="what a bad archive does")
    preprocess.add_argument(
        "--exclude",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="graphs to leave out; unet* means all such",
    )
    add_path(preprocess, "--exclude-file", "FILE", "the same, one name per line")
    add_number(
        preprocess, "--max-nodes", 0, "prune graphs of more nodes, around their config nodes; 0: prune none", default=0
    )
    add_number(preprocess, "--hops", 0, "with --max-nodes: edges kept around a config node", default=3)
    add_number(preprocess, "--graphs-per-shard", 1, "graphs in one file (default: 4 layout or 256 tile graphs)")
    preprocess.set_defaults(takes_beam_arguments=True)


def _run_preprocess(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.beam.commit import CollectionSummary
    from tpugraphs_polynormer.beam.preprocess import run

    check_output("--datasets", args.datasets, args.archives)
    done = run(args, args.beam_arguments)
    for collection, each in done.items():
        excluded = f", excluded graphs: {each.num_excluded:,}" if each.num_excluded else ""
        print(f"{collection}: {args.datasets}{excluded}")
    total = CollectionSummary(*map(sum, zip(*done.values(), strict=True)))
    conclude(
        f"{args.datasets}: read {total.num_archives:,} archives, wrote {total.num_graphs:,} graphs in "
        f"{total.num_shards:,} shards; left out: {total.num_rejected:,} rejected, {total.num_excluded:,} excluded"
    )


def _add_verify(stages: argparse._SubParsersAction) -> None:
    verify = add_stage(
        stages,
        "verify",
        "compare the files of datasets, runs and predictions with their checksums",
        _run_verify,
        ["datasets", "datasets/layout/xla/random runs/xla_random predictions"],
    )
    add_path(verify, "folders", "DIR", "one of these, or a folder of them", nargs="+")


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


STAGES = (_add_simulate, add_label, _add_download, _add_inspect, _add_featurize, _add_preprocess, _add_verify)
