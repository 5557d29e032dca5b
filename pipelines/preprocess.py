"""The Beam job that converts TpuGraphs npz archives to datasets; equal to `tpugraphs preprocess`."""

import sys

from tpugraphs_polynormer.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["preprocess", *sys.argv[1:]]))
