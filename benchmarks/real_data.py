"""Where the real files are: the folder named by TPUGRAPHS_REAL_DATA, or shared/real beside the project."""

from __future__ import annotations

import os
from pathlib import Path

REAL_DATA = Path(os.environ.get("TPUGRAPHS_REAL_DATA", Path(__file__).resolve().parents[2] / "shared" / "real"))
