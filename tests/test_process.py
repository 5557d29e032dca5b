"""The process reuses freed memory; without mallopt nothing happens."""

import subprocess
import sys

import pytest

from tpugraphs_polynormer import process as startup

# Writes to and frees 100 MB ten times; counts the page faults of the last five.
FAULTS = """
import ctypes, resource
from tpugraphs_polynormer.process import keep_freed_memory
{call}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def touch():
    block = libc.malloc(100 << 20)
    ctypes.memset(block, 1, 100 << 20)
    libc.free(block)
for _ in range(5):
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_faults(call: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS.format(call=call)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_large_blocks_are_fetched_once():
    assert count_faults("keep_freed_memory()") < 100 < count_faults("")


def test_without_mallopt_nothing_happens(monkeypatch):
    monkeypatch.setattr(startup.ctypes, "CDLL", lambda name: object())
    startup.keep_freed_memory()


def test_a_process_whose_owner_is_gone_already_ends_at_once():
    code = "import os, time; from tpugraphs_polynormer.process import end_with_process; end_with_process({})"
    code += "; time.sleep(2); print('on')"
    ended = subprocess.run([sys.executable, "-c", code.format(1 << 22)], capture_output=True, text=True)
    assert ended.returncode == 1 and not ended.stdout
    lives = subprocess.run([sys.executable, "-c", code.format("os.getppid()")], capture_output=True, text=True)
    assert lives.returncode == 0 and lives.stdout == "on\n"
