"""Chance as the interpreter has it, drawn from a seed: ids and session numbers are the same in every run of it."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def seeded_entropy(source: random.Random) -> Iterator[None]:
    """Have `uuid4`, `secrets` and the functions of `random` draw from `source`."""
    state = random.getstate()
    random.seed(source.random())
    with patch.object(os, "urandom", source.randbytes), patch.object(random, "_urandom", source.randbytes):
        yield
    random.setstate(state)
