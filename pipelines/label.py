"""The Beam job that labels programs with the estimates of the real TPU compiler; equal to `tpugraphs label`."""

import sys

from tpugraphs_polynormer.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["label", *sys.argv[1:]]))
