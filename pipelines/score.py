"""The Beam job that writes one prediction file per graph with trained runs; equal to `tpugraphs predict --beam`."""

import sys

from tpugraphs_polynormer.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["predict", "--beam", *sys.argv[1:]]))
