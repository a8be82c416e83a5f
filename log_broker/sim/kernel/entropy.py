"""
Chance and time as the interpreter has them, while a world runs: drawn from its seed, told by its clock.

The broker asks its loop for the time and is given its clock; what else runs in the world, a client library for one,
asks the interpreter.
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from log_broker.sim.kernel.kernel import Kernel

WALL_CLOCK_MS = 1_700_000_000_000  # at the start of every run


@contextmanager
def seeded_interpreter(kernel: Kernel) -> Iterator[None]:
    """Have `uuid4`, `secrets`, the functions of `random` and those of `time` depend on the seed only."""
    source = kernel.stream("entropy")
    state = random.getstate()
    random.seed(source.random())
    with ExitStack() as stack:
        stack.enter_context(patch.object(os, "urandom", source.randbytes))
        stack.enter_context(patch.object(random, "_urandom", source.randbytes))
        stack.enter_context(patch.object(time, "time", lambda: WALL_CLOCK_MS / 1e3 + kernel.now_us / 1e6))
        stack.enter_context(patch.object(time, "time_ns", lambda: WALL_CLOCK_MS * 1_000_000 + kernel.now_us * 1000))
        stack.enter_context(patch.object(time, "monotonic", lambda: 1.0 + kernel.now_us / 1e6))
        try:
            yield
        finally:
            random.setstate(state)
