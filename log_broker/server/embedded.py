"""A broker node in a background thread of someone else's process."""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from log_broker.config import BrokerConfig
from log_broker.interfaces import RecordValidator
from log_broker.server.event_loop import loop_factory
from log_broker.server.node import Node

STOP_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedBroker:
    """A running broker. `node` belongs to its own thread: only what is safe there may be touched from elsewhere."""

    host: str
    port: int
    data_dir: Path
    node: Node

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"


@contextmanager
def run_embedded(
    *, data_dir: Path | None, port: int, validator: RecordValidator | None, settings: Mapping[str, str]
) -> Iterator[EmbeddedBroker]:
    """See `log_broker.embedded`."""
    if data_dir is None:
        with tempfile.TemporaryDirectory(prefix="log-broker-") as temporary:
            yield from _run(Path(temporary), port, validator, settings)
    else:
        yield from _run(data_dir, port, validator, settings)


def _run(
    data_dir: Path, port: int, validator: RecordValidator | None, settings: Mapping[str, str]
) -> Iterator[EmbeddedBroker]:
    config = BrokerConfig(data_dir=data_dir, port=port).with_settings(settings)
    thread = _BrokerThread(config, validator)
    thread.start()
    try:
        yield thread.broker()
    finally:
        thread.stop()


class _BrokerThread:
    """The thread with its event loop; it ends with the process at the latest."""

    def __init__(self, config: BrokerConfig, validator: RecordValidator | None) -> None:
        self._config = config
        self._validator = validator
        self._started = threading.Event()
        self._broker: EmbeddedBroker | None = None
        self._error: BaseException | None = None
        self._request_stop: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._work, name="log-broker", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def broker(self) -> EmbeddedBroker:
        """Return the running broker, or raise what kept it from starting."""
        if self._broker is None:
            assert self._error is not None, "a start ends in a broker or an error"
            raise self._error
        return self._broker

    def stop(self) -> None:
        if self._request_stop is not None and self._thread.is_alive():
            self._request_stop()
        self._thread.join(STOP_SECONDS_MAX)

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # handed to the thread that waits for the start
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        node = Node(self._config, validator=self._validator)
        await node.start()
        self._request_stop = lambda: loop.call_soon_threadsafe(stopping.set)
        self._broker = EmbeddedBroker(host=self._config.host, port=node.port, data_dir=self._config.data_dir, node=node)
        self._started.set()
        await stopping.wait()
        await node.stop()
