"""A registry over a log in memory, and the same behind HTTP on a free port."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import httpx
import pytest

from fluvial.registry.app import create_app, serve
from fluvial.registry.registry import Registry
from log_broker.interfaces import InternalLog, InternalRecord


class MemoryLog:
    """An `InternalLog` of a list. `fail_next` makes the next append fail, after writing when it says so."""

    def __init__(self) -> None:
        self.records: list[InternalRecord] = []
        self.fail_next: str | None = None

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> int:
        await asyncio.sleep(0)
        failing, self.fail_next = self.fail_next, None
        if failing == "before writing":
            raise OSError("disk full")
        first = self.next_offset
        for index, (key, value) in enumerate(records):
            self.records.append(InternalRecord(offset=first + index, timestamp=0, key=key, value=value))
        if failing == "after writing":
            raise OSError("connection lost")
        return first

    @property
    def next_offset(self) -> int:
        return self.records[-1].offset + 1 if self.records else 0

    async def read(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        for each in [each for each in self.records if each.offset >= from_offset]:
            yield each

    def compact(self) -> None:
        """Keep the last record of each key and drop tombstones, as the broker's cleaner does in the end."""
        last = {each.key: each for each in self.records}
        kept = [each for each in last.values() if each.value is not None]
        newest = self.records[-1] if self.records else None
        self.records = sorted({*kept, *([newest] if newest else [])}, key=lambda each: each.offset)


@dataclass
class RunningRegistry:
    """A registry that answers on `url` from a thread of its own."""

    url: str
    registry: Registry
    http: httpx.Client


class RegistryThread:
    """Runs an event loop with a served registry until it is stopped."""

    def __init__(self, log: InternalLog) -> None:
        self._log = log
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self.registry = Registry(self._log)
        await self.registry.open()
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()

        def started(port: int) -> None:
            self.port = port
            self._started.set()

        serving = asyncio.create_task(serve(create_app(self.registry), "127.0.0.1", 0, started=started))
        await self._stop.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    def start(self) -> RunningRegistry:
        self._thread.start()
        assert self._started.wait(30)
        if self.failure is not None:
            raise self.failure
        url = f"http://127.0.0.1:{self.port}"
        return RunningRegistry(url=url, registry=self.registry, http=httpx.Client(base_url=url, verify=False))

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.failure is None


@pytest.fixture
def memory_log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
async def registry(memory_log: MemoryLog) -> Registry:
    registry = Registry(memory_log)
    await registry.open()
    return registry


@pytest.fixture
def registry_server(memory_log: MemoryLog) -> Iterator[RunningRegistry]:
    thread = RegistryThread(memory_log)
    running = thread.start()
    yield running
    running.http.close()
    thread.stop()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningRegistry]:
    """One registry for the tests of a module that leave nothing behind which another would notice."""
    thread = RegistryThread(MemoryLog())
    running = thread.start()
    yield running
    running.http.close()
    thread.stop()
