"""The work that runs beside requests, until the node stops at the latest."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """The tasks of a node; what goes wrong in one goes to the log."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin with `work`."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def stop(self, seconds_max: float) -> None:
        """Cancel all, and wait so long for them to end."""
        await asyncio.sleep(0)  # work that has not begun cannot be told that it ends
        under_way = list(self._running)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=seconds_max)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work beside the requests failed", exc_info=error)
