"""The lock of a folder: held by a living process, or by nobody."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fluvial.local.lock import FolderLock, holder

HOLD = """
import sys
from pathlib import Path
from fluvial.local.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock at `path`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


def test_the_holder_is_named_and_nobody_else_gets_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder(path) is None
    with held(path) as process:
        assert holder(path) == process.pid
        assert not FolderLock(path).acquire()
    assert holder(path) is None


def test_a_killed_process_and_its_zombie_hold_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held(path) as process:
        process.send_signal(signal.SIGKILL)
        # Waited for without reaping it: from here on it is a zombie, and its id is taken.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        os.kill(process.pid, 0)
        assert holder(path) is None
        with FolderLock(path) as lock:
            assert lock.acquire()


def test_a_stale_file_with_the_id_of_a_living_process_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(f"{os.getppid()}\n")
    assert holder(path) is None


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FolderLock(path)
    assert lock.acquire()
    lock.release()
    with held(path) as process:
        assert holder(path) == process.pid
