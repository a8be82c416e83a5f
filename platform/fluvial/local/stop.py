"""Stopping the nodes of a local platform and its server, and nothing else."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fluvial.local.errors import LocalPlatformError, NodeError
from fluvial.local.lock import NODE_LOCK, holder
from fluvial.local.server import SERVER_LOCK
from fluvial.local.status import platform_of

TIMEOUT_SECONDS = 30.0
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What was running and is not any more: a node, or the server; `killed` when it did not end by itself."""

    id: int | None
    pid: int
    killed: bool


def stop(
    data_dir: Path, *, node_id: int | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> tuple[Stopped, ...]:
    """
    Stop every node that runs in `data_dir` and its server, or one node: SIGTERM, and SIGKILL to those still there after
    the timeout.

    Raises LocalPlatformError where there is no such platform or node, and where one cannot be stopped.
    """
    platform = platform_of(data_dir)
    wanted = [node for node in platform.nodes if node_id in (None, node.id)]
    if not wanted:
        known = ", ".join(str(node.id) for node in platform.nodes)
        raise LocalPlatformError(f"the platform in {data_dir} has no node {node_id}; it has {known}")
    locks: dict[int | None, Path] = {} if node_id is not None else {None: data_dir / SERVER_LOCK}
    locks |= {node.id: data_dir / node.data_dir / NODE_LOCK for node in wanted}
    return _stop(locks, timeout_seconds)


def stop_server(data_dir: Path, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Stopped | None:
    """Stop the server of the platform in `data_dir` as :func:`stop` does; None where none runs."""
    return next(iter(_stop({None: data_dir / SERVER_LOCK}, timeout_seconds)), None)


def _stop(locks: Mapping[int | None, Path], timeout_seconds: float) -> tuple[Stopped, ...]:
    asked = {of: pid for of, lock in locks.items() if (pid := _signal(of, lock, signal.SIGTERM))}
    deadline = time.monotonic() + timeout_seconds
    stopped = []
    for each, pid in asked.items():
        gone = _gone(locks[each], pid)
        killed = not _wait_until(gone, deadline)
        if killed:
            _signal(each, locks[each], signal.SIGKILL)
            if not _wait_until(gone, time.monotonic() + _KILL_SECONDS):
                raise _error(each, f"process {pid} does not end, even on SIGKILL; look at it with `ps -p {pid}`")
        stopped.append(Stopped(id=each, pid=pid, killed=killed))
    return tuple(stopped)


def _signal(of: int | None, lock: Path, number: signal.Signals) -> int | None:
    """Send a signal to the process that holds `lock`; return its id, None when nobody holds it."""
    pid = holder(lock)
    if pid is None:
        return None
    try:
        _send(lock, pid, number)
    except PermissionError as error:
        raise _error(of, f"process {pid} belongs to another user; stop it as that user") from error
    except ProcessLookupError:
        return None
    return pid


def _error(of: int | None, message: str) -> LocalPlatformError:
    return LocalPlatformError(f"the server: {message}") if of is None else NodeError(of, message)


def _send(lock: Path, pid: int, number: signal.Signals) -> None:
    if sys.platform != "linux":
        os.kill(pid, number)
        return
    descriptor = os.pidfd_open(pid)
    try:
        # The descriptor names the process for good; it is the node if the lock is still held now that we have it.
        if holder(lock) == pid:
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _gone(lock: Path, pid: int) -> Callable[[], bool]:
    return lambda: holder(lock) != pid


def _wait_until(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() >= deadline:
            return False
        with contextlib.suppress(InterruptedError):
            time.sleep(_POLL_SECONDS)
    return True
