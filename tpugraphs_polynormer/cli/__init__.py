"""`tpugraphs <stage>`."""
