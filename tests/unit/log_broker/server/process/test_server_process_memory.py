"""What a node's process keeps of memory that it no longer needs: so much, and not so much for each of its threads."""

import platform
import subprocess
import sys

import pytest

from log_broker.server.process.memory import KEPT_BYTES_MAX

THREADS = 8
SLACK_MIB = 12
PROGRAM = f"""
import threading
from concurrent.futures import ThreadPoolExecutor
import psutil
from log_broker.server.process.memory import settle

def read(_):
    together.wait()
    for _ in range(5):
        pieces = [b"x" * (1 << 20) for _ in range(14)]
    del pieces

settle()
process, together = psutil.Process(), threading.Barrier({THREADS})
before = process.memory_info().rss
with ThreadPoolExecutor({THREADS}) as pool:
    list(pool.map(read, range({THREADS})))
    print((process.memory_info().rss - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory by rules of its own")
def test_what_is_kept_of_freed_memory_does_not_grow_by_the_number_of_threads() -> None:
    kept = int(subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout)
    assert kept <= (KEPT_BYTES_MAX >> 20) + SLACK_MIB
