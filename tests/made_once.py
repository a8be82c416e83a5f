"""What one process of tests makes for all of them."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """
    Return a folder that `make` has filled, once for however many processes of tests ask for it under this name.

    It stays where it was made: what is in it may know its own path.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = factory.mktemp(name)
        make(folder)
        return folder
    common = factory.getbasetemp().parent
    folder, done = common / f"for-all-{name}", common / f"for-all-{name}.done"
    with (common / f"for-all-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
