"""The threads in which reads of what is not in the page cache wait for the disk."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from log_broker.storage.cold_reads import ColdPart

THREADS = 2  # few, so that they leave the disk to those that write


class ColdLoads:
    """Loads parts of logs, in the order in which they are asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="log-load")

    def load(self, parts: Sequence[ColdPart]) -> "asyncio.Future[None]":
        """Have the page cache hold these parts; the future fails with OSError, and is cancelled when the node stops."""

        def load_all() -> None:
            for part in parts:
                part.load()

        return self._loop.run_in_executor(self._threads, load_all)

    def close(self) -> None:
        """Begin with no more; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
