"""
Statements of many clients on few engines: each has a Sail of its own for as long as it takes, and no more than so long.

Rows by key are not kept waiting: Sail runs in processes of its own, which have a bound on their memory.
"""

import asyncio
import io
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.query.answers import Format, write
from fluvial.query.engine import Answer, Door, Engine, Fresh, RoutingError, Told
from fluvial.query.made_frames import Frames, OwnFrames
from fluvial.query.rendering import AnswerError
from fluvial.query.versions import At, Version
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


class OpensFresh(Protocol):
    """
    Opens what gives tables with the records behind them, :class:`fluvial.fresh.freshness.Freshness`.
    """

    def __call__(
        self, settings: Settings, at_least: Sequence[At], *, patience_s: float, records_max: int
    ) -> AbstractContextManager[Fresh]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlLimits:
    """
    What statements may take: how many run at once and wait, and each one's seconds, bytes of answer and of memory.

    Of a topic no more than `fresh_records` are read behind a table, and offsets are waited for `fresh_seconds`.
    """

    running: int = 2
    waiting: int = 32
    seconds: float = 30.0
    answer_bytes: int = 16 << 20
    memory_bytes: int = 2 << 30
    fresh_records: int = 100_000
    fresh_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    A statement, how its answer is written, and the offsets as of which tables are read; a table is `width` wide.

    With `fresh` they are read with what the log holds behind them, once that has the offsets `at_least`. With
    `columns_only` the answer has its columns and no rows. One that `is_own`, made by this server of names that it has
    found and values that it has typed, is not judged as those of strangers are.
    """

    statement: str
    format: Format = Format.JSON
    width: int = WIDTH
    places: Sequence[At] = ()
    fresh: bool = False
    at_least: Sequence[At] = ()
    columns_only: bool = False
    is_own: bool = False

    @property
    def rows_max(self) -> int | None:
        """
        How many rows are asked for at most; None for all.
        """
        return 0 if self.columns_only else self.format.rows_max


class Statements:
    """
    Answers statements about the tables of one warehouse; close it after use.

    With `needs_walls` none is asked where the kernel does not keep the engine from other files and the network; without
    `fresh` none is answered with what the log holds behind tables. The functions of pipelines are called by `frames`,
    one for each engine, which is given the memory that it may take: they may run for any time, and are ended.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        limits: SqlLimits | None = None,
        needs_walls: bool = False,
        fresh: OpensFresh | None = None,
        frames: Callable[[int], Frames] = lambda memory_bytes: OwnFrames(),
    ) -> None:
        self.settings = settings
        self._fresh = fresh
        self._frames = frames
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
        out = _Bounded(self.limits.answer_bytes)
        told = await self.read(asked, gone, lambda answer: write(answer, asked.format, out, asked.width))
        return out.getvalue(), told

    async def read(
        self, asked: Asked, gone: Callable[[], Coroutine[Any, Any, None]], take: Callable[[Answer], None]
    ) -> Told:
        """
        As :meth:`answer`, with the answer given to `take` in a thread.
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
                return await self._within_limits(door, asked, gone, take)
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
                as_of=None if self._fresh is None else self._as_of,
                frames=self._frames(self.limits.memory_bytes),
            )
        except RoutingError as error:  # of the settings, such as those of Spark
            raise _only_spark(error) from error
        self._doors.append(door)
        return door

    async def _within_limits(
        self,
        door: Door,
        asked: Asked,
        gone: Callable[[], Coroutine[Any, Any, None]],
        take: Callable[[Answer], None],
    ) -> Told:
        loop = asyncio.get_running_loop()
        answering = loop.run_in_executor(self._threads, self._answer, door, asked, take)
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

    def _answer(self, door: Door, asked: Asked, take: Callable[[Answer], None]) -> Told:
        try:
            door.places = asked.places
            query = asked.statement if asked.is_own else judged(asked.statement, door.tables())
            if self.needs_walls and not door.is_walled_in():
                raise RefusedStatementError(
                    "statements are answered on 127.0.0.1 alone: this machine has neither namespaces nor landlock"
                )
            with self._opened(asked) as door.fresh:
                return door.answer(query, take, again=lambda: None, rows_max=asked.rows_max)
        except ServeError:
            raise
        except (StatementError, AnswerError) as error:
            raise BadRequestError(str(error)) from error
        except RoutingError as error:
            raise _only_spark(error) from error
        except FluvialError as error:
            raise StatementFailedError(str(error)) from error

    @contextmanager
    def _opened(self, asked: Asked) -> Iterator[Fresh | None]:
        if not asked.fresh:
            yield None
            return
        if self._fresh is None:
            raise RefusedStatementError("this server does not read what the log holds behind its tables")
        with self._reading(self._fresh, asked.at_least) as fresh:
            yield fresh

    def _reading(self, opens: OpensFresh, at_least: Sequence[At]) -> AbstractContextManager[Fresh]:
        limits = self.limits
        return opens(self.settings, at_least, patience_s=limits.fresh_seconds, records_max=limits.fresh_records)

    def _as_of(self, table: str, places: Sequence[At]) -> Version:
        assert self._fresh is not None
        with self._reading(self._fresh, ()) as fresh:
            return fresh.as_of(table, places)


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
