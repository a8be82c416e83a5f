"""
Keeps the tables that were asked for at their newest versions, off the event loop, and wakes who waits for one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fluvial.errors import FluvialError
from fluvial.serve.errors import BusyError
from fluvial.serve.table import ServedTable, View
from fluvial.serve.warehouse import ServedWarehouse

POLL_S = 0.05
THREADS = 4
WAITING_MAX = 64
Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class Follower:
    """
    Used in one event loop; `close` it at the end. `failures` are what lately kept a table from being followed.
    """

    def __init__(self, warehouse: ServedWarehouse) -> None:
        self.warehouse = warehouse
        self.failures: dict[str, str] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fluvial-serve")
        self.is_stopping = False
        self._at_work = 0
        self._opening: dict[str, asyncio.Task[View]] = {}
        self._changed: dict[str, asyncio.Event] = {}

    async def run(self) -> None:
        """
        Follow the tables until cancelled.
        """
        while True:
            await asyncio.gather(*(self._follow(table) for table in self.warehouse.opened() if table.held is not None))
            await asyncio.sleep(POLL_S)

    async def held(self, table: ServedTable) -> View:
        """
        The newest version that is held, at most about `POLL_S` and what its commit takes behind the table.

        The first who asks has it opened, which is done once however many ask. Raises what opening raises.
        """
        return table.held or await self._opened(table)

    async def wait(self, table: ServedTable, version: int, seconds: float) -> View:
        """
        The newest version as soon as it is `version` or later, or after so many seconds whatever it is.
        """
        view = await self.held(table)
        deadline = asyncio.get_running_loop().time() + seconds
        while view.version < version:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or not await self.changed(table, left):
                break
            if self.is_stopping:
                raise BusyError("the server is stopping")
            view = await self.held(table)
        return view

    async def changed(self, table: ServedTable, seconds: float) -> bool:
        """
        Wait until another version is held than now, for so many seconds at most; return whether one is.

        It is over, too, when the server is stopping.
        """
        if self.is_stopping:
            return True
        event = self._changed.setdefault(table.name, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        return True

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """
        Do what takes longer beside the event loop. Raises :class:`BusyError` where as much waits as may.
        """
        if self._at_work >= WAITING_MAX:
            raise BusyError("the server is at its limit of requests that take longer; try again")
        self._at_work += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._at_work -= 1

    def stop(self) -> None:
        """
        Wake all who wait, as there will be no other version.
        """
        self.is_stopping = True
        for event in self._changed.values():
            event.set()

    def close(self) -> None:
        """
        Let go of the threads.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _opened(self, table: ServedTable) -> Awaitable[View]:
        task = self._opening.get(table.name)
        if task is None:
            task = self._opening[table.name] = asyncio.create_task(self.in_thread(table.newest))
            task.add_done_callback(lambda _: self._opening.pop(table.name))
        # Whoever leaves must not take it away from the others.
        return asyncio.shield(task)

    async def _follow(self, table: ServedTable) -> None:
        before = table.held
        if before is None or not table.is_behind():
            return
        try:
            await self._opened(table)
            self.failures.pop(table.name, None)
        except Exception as error:
            # Whatever is wrong with one table, the others are followed, and this one is tried again.
            if self.failures.get(table.name) != str(error):
                known = isinstance(error, FluvialError | OSError)
                _log.warning("%s cannot be followed: %s", table.name, error, exc_info=None if known else error)
            self.failures[table.name] = str(error)
        if table.held is not before:
            self._changed.pop(table.name, asyncio.Event()).set()
