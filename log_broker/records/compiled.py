"""
The walks over records that `_walk.c` has compiled, where this installation was built beside a C compiler.

Elsewhere, and with FLUVIAL_PURE=1 in the environment, the modules that would call them do all of it in Python.
"""

import os

__all__ = ["IS_WANTED", "walk"]

IS_WANTED = os.environ.get("FLUVIAL_PURE") != "1"

try:
    if not IS_WANTED:
        raise ImportError("Python alone was asked for")
    from log_broker.records import _walk as walk
except ImportError:
    walk = None  # type: ignore[assignment]
