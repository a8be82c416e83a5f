"""A registry over a log in memory, and the same behind HTTP on a free port."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from memory_log import MemoryLog

from fluvial.http_server import serve
from fluvial.registry.model.registry import Registry
from fluvial.registry.service.app import create_app
from log_broker.interfaces import InternalLog


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
