"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

import tpugraphs_polynormer  # noqa: F401  (before TensorFlow, because it selects Keras 2)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real files, beside the project or in TPUGRAPHS_REAL_DATA; skips the test without it."""
    default = Path(__file__).resolve().parents[2] / "shared" / "real"
    folder = Path(os.environ.get("TPUGRAPHS_REAL_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder} (set TPUGRAPHS_REAL_DATA)")
    return folder
