"""
A broker node in a background thread of someone else's process.

The directory of a broker that nobody gave one is in memory where the system has room for that, and goes with it. A
process that is forked off while the broker runs has no broker: leaving the context there touches nothing.
"""

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import UNSET, CreateTopic
from log_broker.core.security.users import Users
from log_broker.interfaces import RecordValidator
from log_broker.server.node import Node
from log_broker.server.process.event_loop import loop_factory

STOP_SECONDS_MAX = 30.0
IN_MEMORY = Path("/dev/shm")  # noqa: S108 a directory of this name is made in it, which no one else can have
# A container has 64 MB there unless told otherwise, which a test can fill.
IN_MEMORY_BYTES_MIN = 1 << 30

Topics = Mapping[str, int | None] | Mapping[str, int] | Iterable[str]
Setting = str | int | float | bool
T = TypeVar("T")


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

    def create_topic(self, name: str, *, partitions: int | None = None, config: Mapping[str, Setting] = {}) -> str:
        """
        Make a topic and return its name; without `partitions` it has as many as the broker's `num.partitions`.

        `config` has Kafka's names. Raises BrokerError, for one if the topic is there already.
        """
        command = CreateTopic(
            name=name,
            topic_id=uuid4().hex,
            partitions=UNSET if partitions is None else partitions,
            overrides=_texts(config),
        )
        self._run(self.node.authority.create_topic(command))
        return name

    def unique_topic(
        self, prefix: str = "topic", *, partitions: int | None = None, config: Mapping[str, Setting] = {}
    ) -> str:
        """Make a topic of a name that no other has, as `create_topic` does, and return the name."""
        return self.create_topic(f"{prefix}-{uuid4().hex[:12]}", partitions=partitions, config=config)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the broker's thread do `work`."""
        return asyncio.run_coroutine_threadsafe(work, self.node.loop).result()


@contextmanager
def run_embedded(
    *,
    data_dir: Path | None,
    port: int,
    validator: RecordValidator | None,
    topics: Topics,
    settings: Mapping[str, Setting],
    known_users: Users | None = None,
) -> Iterator[EmbeddedBroker]:
    """See `log_broker.embedded`."""
    owner = os.getpid()
    temporary = Path(tempfile.mkdtemp(prefix="log-broker-", dir=_temporary_parent())) if data_dir is None else None
    try:
        config = BrokerConfig(data_dir=temporary or data_dir or Path(), port=port).with_settings(_texts(settings))
        thread = _BrokerThread(config, validator, known_users)
        try:
            broker = thread.start()
            for name, partitions in (
                topics.items() if isinstance(topics, Mapping) else ((name, None) for name in topics)
            ):
                broker.create_topic(name, partitions=partitions)
            yield broker
        finally:
            if os.getpid() == owner:
                thread.stop()
    finally:
        if temporary is not None and os.getpid() == owner:
            shutil.rmtree(temporary, ignore_errors=True)


def _texts(settings: Mapping[str, Setting]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}


def _temporary_parent() -> Path | None:
    """Return a directory in memory, None for the system's own choice; whoever set TMPDIR has chosen."""
    if "TMPDIR" in os.environ or not os.access(IN_MEMORY, os.W_OK):
        return None
    return IN_MEMORY if shutil.disk_usage(IN_MEMORY).free >= IN_MEMORY_BYTES_MIN else None


class _BrokerThread:
    """The thread with its event loop; it ends with the process at the latest."""

    def __init__(self, config: BrokerConfig, validator: RecordValidator | None, known_users: Users | None) -> None:
        self._config = config
        self._validator = validator
        self._known_users = known_users
        self._started = threading.Event()
        self._stop_asked = threading.Event()
        self._broker: EmbeddedBroker | None = None
        self._error: BaseException | None = None
        self._stopping: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._thread = threading.Thread(target=self._work, name="log-broker", daemon=True)

    def start(self) -> EmbeddedBroker:
        """Return the running broker, or raise what kept it from starting."""
        self._thread.start()
        self._started.wait()
        if self._broker is None:
            assert self._error is not None, "a start ends in a broker or an error"
            raise self._error
        return self._broker

    def stop(self) -> None:
        """End the thread, also one that is still starting; raises what went wrong in the broker since it started."""
        self._stop_asked.set()
        if self._stopping is not None:
            loop, stopping = self._stopping
            try:
                loop.call_soon_threadsafe(stopping.set)
            except RuntimeError:
                assert loop.is_closed(), "a loop that is open takes calls"
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise TimeoutError(f"the embedded broker did not stop within {STOP_SECONDS_MAX:.0f} s")
        if self._broker is not None and self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # handed to the thread that waits for the start or the end
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        stopping = asyncio.Event()
        node = Node(self._config, validator=self._validator, known_users=self._known_users)
        await node.start()
        self._stopping = asyncio.get_running_loop(), stopping
        self._broker = EmbeddedBroker(host=self._config.host, port=node.port, data_dir=self._config.data_dir, node=node)
        self._started.set()
        if not self._stop_asked.is_set():
            await stopping.wait()
        await node.stop()
