"""HLO texts written by hand in the forms of several XLA versions; XLA's own reader accepts both."""

from pathlib import Path

# As XLA printed until 2021: operands with shapes, %, tiles and memory spaces, quoted configurations, comments.
OLD = Path(__file__).with_name("old_syntax.hlo").read_text()
# As XLA prints since 2024, and what its reader accepts besides: bare operands, JSON, source tables, dynamic sizes,
# computations in place, short asynchronous operations.
NEW = Path(__file__).with_name("new_syntax.hlo").read_text()
