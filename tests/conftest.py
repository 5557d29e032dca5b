"""Fixtures shared by all tests."""

import os
import random
from pathlib import Path

import pytest

import tpugraphs_polynormer  # noqa: F401  (before TensorFlow, because it selects Keras 2)


@pytest.fixture
def moments() -> random.Random:
    """The random numbers of a kill test; pytest shows the printed seed if the test fails."""
    seed = int(os.environ.get("TPUGRAPHS_KILL_SEED") or random.SystemRandom().randrange(2**32))
    print(f"TPUGRAPHS_KILL_SEED={seed} draws the same moments again")
    return random.Random(seed)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real files, beside the project or in TPUGRAPHS_REAL_DATA; skips the test without it."""
    default = Path(__file__).resolve().parents[2] / "shared" / "real"
    folder = Path(os.environ.get("TPUGRAPHS_REAL_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder} (set TPUGRAPHS_REAL_DATA)")
    return folder
