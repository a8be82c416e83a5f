"""
What the process of a node does with memory that it no longer needs.

By default glibc gives the memory of a large request back to the system as soon as it is free, and the next such request
has each of its pages faulted in again: at requests of a megabyte that was half of a broker's processor time.
"""

import ctypes
import gc
import sys
from contextlib import suppress

KEPT_BYTES_MAX = 16 << 20  # of free memory at the end of the heap, of which there is one
MAPPED_FROM_BYTES = 4 << 20  # a larger piece of memory is the system's alone, and given back when it is free

_M_TRIM_THRESHOLD = -1  # of malloc.h
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def give_back() -> None:
    """
    Give the system all pages that nothing is on, which takes some milliseconds for each 100 MiB; for a thread.

    Connections by TLS end in cycles, which only a full collection frees.
    """
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def settle() -> None:
    """Call this once a node is ready: all that is loaded by then stays, so full collections need not look at it."""
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        with suppress(AttributeError):  # musl has no such setting
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
            mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
            # Or each thread that reads a log has a heap of its own, and keeps as much.
            mallopt(_M_ARENA_MAX, 1)
