"""One self-contained HTML page about trained runs."""
