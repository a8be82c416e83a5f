"""
Whether the data directory takes writes, once a failed one has made that doubtful.

A log may fail by itself. So an error is a suspicion only: a file is written to see, and a disk that fails that too
takes no writes. It is tried again and again until it does.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from log_broker.server.process.machine import Pool
from log_broker.storage.files import FileSystem

_log = logging.getLogger(__name__)

TRIAL_FILE = "write-trial"
TRIAL_BYTES = 1 << 20  # what a batch may have by default
AGAIN_SECONDS = 1.0
QUIET_SECONDS = 10.0  # a log that fails again soon waits for its turn: to read one again is work


class DiskWatch:
    """
    The disk under one data directory.

    `on_changed` is called when `takes_writes` is another than before, `on_trusted` when a trial has gone well. That
    returns whether it did something: then it is not called again for a while.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, files: FileSystem, pool: Pool, data_dir: Path) -> None:
        self.takes_writes = True
        self.on_changed: Callable[[], None] = _nobody
        self.on_trusted: Callable[[], object] = _nobody
        self._trusted_from = 0.0
        self._loop = loop
        self._files = files
        self._pool = pool
        self._path = data_dir / TRIAL_FILE
        self.is_doubtful = False  # a write has failed, and no trial has gone well since
        self._is_stopped = False

    def suspect(self) -> None:
        """A write has failed: see whether it is the disk."""
        if not self.is_doubtful:
            self.is_doubtful = True
            self._try()

    def stop(self) -> None:
        """Try nothing more."""
        self._is_stopped = True

    def _try(self) -> None:
        if not self._is_stopped:
            self._pool.submit(self._write, self._written)

    def _write(self) -> None:
        file = self._files.open(self._path)
        try:
            self._files.remove(self._path)  # so that nothing of it stays, however this ends
            file.write_at(0, [bytes(TRIAL_BYTES)])
            file.sync()
        finally:
            file.close()

    def _written(self, error: BaseException | None) -> None:
        was, self.takes_writes = self.takes_writes, error is None
        if error is not None:
            self._loop.call_later(AGAIN_SECONDS, self._try)
        else:
            self.is_doubtful = False
            now = self._loop.time()
            if now >= self._trusted_from and self.on_trusted():
                self._trusted_from = now + QUIET_SECONDS
        if was == self.takes_writes:
            return
        if error is not None:
            _log.error("%s takes no writes, so others are to lead in its place: %s", self._path.parent, error)
        else:
            _log.warning("%s takes writes again", self._path.parent)
        self.on_changed()


def _nobody() -> None:
    """Where a node is alone there is nobody to tell."""
