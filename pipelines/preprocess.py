"""Beam job: TpuGraphs npz archives -> GraphTensor shards, candidate stores and manifests."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pipelines.runners import make_options, run_pipeline
from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.cli import main
from tpugraphs_polynormer.data.exclusion import read_patterns
from tpugraphs_polynormer.data.preprocess import Preprocess, check_commit, clear_commit, count_finished, plan_job
from tpugraphs_polynormer.data.shards import PreprocessSettings

_GRAPHS_PER_SHARD = {"layout": 4, "tile": 256}


def run(args: argparse.Namespace, beam_arguments: Sequence[str]) -> dict[str, int]:
    """Runs the job to its end; the collections that are now finished, and how many graphs of each were excluded."""
    options = make_options(beam_arguments)
    collections = {
        collection: PreprocessSettings(
            max_nodes=args.max_nodes,
            num_hops=args.hops,
            graphs_per_shard=args.graphs_per_shard or _GRAPHS_PER_SHARD[find_collection(collection).kind],
            skip_bad=args.on_error == "skip",
        )
        for collection in args.collections
    }
    exclude = [*args.exclude, *(read_patterns(args.exclude_file) if args.exclude_file else [])]
    job = plan_job(args.input, args.output, collections, input_format=args.input_format, exclude=exclude)
    clear_commit(job)
    run_pipeline(Preprocess(job), options, lambda: count_finished(job), len(job.plans))
    check_commit(job)
    return {name: sum(map(len, job.excluded.get(name, {}).values())) for name in job.collections}


if __name__ == "__main__":  # for runners that start a module
    sys.exit(main(["preprocess", *sys.argv[1:]]))
