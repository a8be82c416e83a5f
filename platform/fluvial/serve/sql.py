"""
Statements of many clients on few engines: each has a Sail of its own for as long as it takes, and no more than so long.

Rows by key are not kept waiting: Sail runs in processes of its own, which have a bound on their memory.
"""

import asyncio
import io
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.query.answers import Format, write
from fluvial.query.engine import Answer, Door, Engine, RoutingError, Told
from fluvial.query.rendering import AnswerError
from fluvial.query.versions import At
from fluvial.query.words import StatementError
from fluvial.serve.errors import (
    BadRequestError,
    BusyError,
    RefusedStatementError,
    ServeError,
    StatementFailedError,
    TookTooLongError,
    TooLargeError,
)
from fluvial.serve.statements import judged

WIDTH = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlLimits:
    """
    What statements may take: how many run at once and wait, and each one's seconds, bytes of answer and of memory.
    """

    running: int = 2
    waiting: int = 32
    seconds: float = 30.0
    answer_bytes: int = 16 << 20
    memory_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    A statement, how its answer is written, and the offsets as of which tables are read; a table is `width` wide.
    """

    statement: str
    format: Format = Format.JSON
    width: int = WIDTH
    places: Sequence[At] = ()


class Statements:
    """
    Answers statements about the tables of one warehouse; close it after use.

    With `needs_walls` none is asked where the kernel does not keep the engine from other files and the network.
    """

    def __init__(self, settings: Settings, *, limits: SqlLimits | None = None, needs_walls: bool = False) -> None:
        self.settings = settings
        self.limits = limits or SqlLimits()
        self.needs_walls = needs_walls
        self._waiting = 0
        self._doors: list[Door] = []
        self._idle: list[Door] = []
        self._free = asyncio.Semaphore(self.limits.running)
        self._threads = ThreadPoolExecutor(self.limits.running, thread_name_prefix="sql")

    async def answer(self, asked: Asked, gone: Callable[[], Coroutine[Any, Any, None]]) -> tuple[bytes, Told]:
        """
        The answer as it is sent, and what is said of it; `gone` returns when nobody waits for it any more.

        Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        if self._waiting >= self.limits.waiting:
            raise BusyError(f"{self._waiting} statements wait already; try again")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            door = self._idle.pop() if self._idle else self._new()
            try:
                return await self._within_limits(door, asked, gone)
            finally:
                self._idle.append(door)
        finally:
            self._free.release()

    def close(self) -> None:
        """
        End the engines and what they are at.
        """
        for door in self._doors:
            door.cancel()
        self._threads.shutdown()
        for door in self._doors:
            door.close()

    def _new(self) -> Door:
        try:
            door = Door(
                settings=self.settings,
                ask_spark=_no_spark,
                say=lambda text: None,
                engine=Engine.SAIL,
                memory_bytes=self.limits.memory_bytes,
            )
        except RoutingError as error:  # of the settings, such as those of Spark
            raise _only_spark(error) from error
        self._doors.append(door)
        return door

    async def _within_limits(
        self, door: Door, asked: Asked, gone: Callable[[], Coroutine[Any, Any, None]]
    ) -> tuple[bytes, Told]:
        loop = asyncio.get_running_loop()
        answering = loop.run_in_executor(self._threads, self._answer, door, asked)
        leaving = loop.create_task(gone())
        try:
            either: set[asyncio.Future[Any]] = {answering, leaving}
            await asyncio.wait(either, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            # What waits for Sail to begin is not there to be ended yet: it is, a moment later.
            while not answering.done():
                door.cancel()
                await asyncio.wait({answering}, timeout=0.05)
            if answering.exception() is None:
                return answering.result()
            raise TookTooLongError(f"the statement was cancelled after {self.limits.seconds:g} s")
        finally:
            leaving.cancel()
            if not answering.done():  # this task is cancelled itself
                door.cancel()

    def _answer(self, door: Door, asked: Asked) -> tuple[bytes, Told]:
        out = _Bounded(self.limits.answer_bytes)

        def hand_over(answer: Answer) -> None:
            write(answer, asked.format, out, asked.width)

        try:
            door.places = asked.places
            query = judged(asked.statement, door.tables())
            if self.needs_walls and not door.is_walled_in():
                raise RefusedStatementError(
                    "statements are answered on 127.0.0.1 alone: this machine has neither namespaces nor landlock"
                )
            told = door.answer(query, hand_over, again=lambda: None, rows_max=asked.format.rows_max)
        except ServeError:
            raise
        except (StatementError, AnswerError) as error:
            raise BadRequestError(str(error)) from error
        except RoutingError as error:
            raise _only_spark(error) from error
        except FluvialError as error:
            raise StatementFailedError(str(error)) from error
        return out.getvalue(), told


class _Bounded(io.BytesIO):
    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self._bytes_max = bytes_max

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._bytes_max:
            raise TooLargeError(f"the answer has more than {self._bytes_max} bytes: name columns, or add LIMIT")
        return super().write(data)


def _only_spark(error: RoutingError) -> RefusedStatementError:
    return RefusedStatementError(str(error).replace("--engine sail: ", "only Spark answers this: "))


def _no_spark(statement: str) -> NoReturn:
    raise RoutingError("Spark is not asked")
