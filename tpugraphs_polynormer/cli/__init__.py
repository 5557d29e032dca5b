"""The command line, `tpugraphs <stage>`."""
