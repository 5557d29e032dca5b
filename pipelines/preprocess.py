"""Beam job: TpuGraphs npz archives to datasets; the same as `tpugraphs preprocess`."""

import sys

from tpugraphs_polynormer.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["preprocess", *sys.argv[1:]]))
