"""Beam job: trained runs and a dataset to one prediction file per graph; the same as `tpugraphs predict --beam`."""

import sys

from tpugraphs_polynormer.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["predict", "--beam", *sys.argv[1:]]))
