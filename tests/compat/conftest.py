"""A broker in a process of its own, as users run it, on a free port."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from compat_cluster import BROKERS, Brokers, words_of
from secured import SECURE, Security, remember

from tests.free_ports import free_ports

# What is lost is noticed within seconds, so that tests need not wait for it.
QUICK_GROUPS = tuple(
    word
    for setting in (
        "group.min.session.timeout.ms=1000",
        "group.consumer.session.timeout.ms=2000",
        "group.consumer.heartbeat.interval.ms=200",
    )
    for word in ("--set", setting)
)


@dataclass
class BrokerProcess:
    """`python -m log_broker` on one data directory; after `kill` or `stop` it can be started again."""

    data_dir: Path
    words: tuple[str, ...] = ()
    port: int = 0
    process: "subprocess.Popen[str] | None" = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.data_dir.with_suffix(".log")

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, seconds: float = 30.0) -> None:
        """Start it and wait until it says that it listens; the port stays the same from then on."""
        self.spawn()
        self.await_listening(seconds)

    def spawn(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "log_broker",
                    "--data-dir",
                    self.data_dir,
                    "--port",
                    str(self.port),
                    *self.words,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def await_listening(self, seconds: float = 30.0) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("listening on"):
            self.kill()
            raise AssertionError(f"the broker did not start:\n{self.log.read_text()}")
        self.port = self.port or int(line.rpartition(":")[2])

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self.process is None:
            return 0
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        try:
            status = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None
        return status


def as_many_as_asked(
    folder: Path, words: tuple[str, ...] = (), *, count: int = BROKERS, security: Security | None = None
) -> "BrokerProcess | Brokers":
    """
    One broker, or several that look like one.

    They are secured with `make compat SECURE=1`, and have the listeners of `security` where a test brings one.
    """
    if security is None and SECURE:
        security = Security(folder / "security")
    if count == 1 and security is None:
        return BrokerProcess(folder / "data", words)
    ports = free_ports(count)
    settings = [] if security is None else [security.settings_of_a_node(port) for port in ports]
    between = ports if security is None else security.ports_between_nodes(ports)
    nodes = []
    for number, port in enumerate(ports):
        own = words_of(number, between) if count > 1 else ()
        secured = ("--config", str(settings[number])) if settings else ()
        nodes.append(BrokerProcess(folder / f"data-{number}", (*words, *own, *secured), port))
    running = nodes[0] if count == 1 else Brokers(nodes)
    if security is not None and security.closed:
        remember(security.access(running.bootstrap_servers))
    return running


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[BrokerProcess | Brokers]":
    """A broker that the tests share: each uses topics and groups of its own names."""
    running = as_many_as_asked(tmp_path_factory.mktemp("broker"), QUICK_GROUPS)
    running.start()
    yield running
    assert running.stop() == 0, running.log.read_text()


@pytest.fixture(scope="session")
def gateway_jvm() -> Iterator[Any]:
    """A JVM with Spark's jars, the Java client among them, behind a py4j gateway."""
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    from fluvial.spark.jars import require_jars

    class_path = [str(Path(pyspark.__file__).parent / "jars" / "*"), *map(str, require_jars())]
    port, token = launch_gateway(
        classpath=":".join(class_path), die_on_exit=True, enable_auth=True, javaopts=["-Xmx256m"]
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    yield gateway.jvm
    gateway.shutdown()


@pytest.fixture
def jvm(gateway_jvm: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """That JVM. Once a Spark session has run here, PySpark translates every gateway's errors by asking its own JVM."""
    import py4j.java_gateway
    import py4j.protocol

    monkeypatch.setattr(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)
    return gateway_jvm


@pytest.fixture(scope="module")
def stock_broker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[BrokerProcess | Brokers]":
    """A broker with Kafka's timeouts, for suites whose clients may be silent for seconds on a busy machine."""
    running = as_many_as_asked(tmp_path_factory.mktemp("stock"))
    running.start()
    yield running
    assert running.stop() == 0, running.log.read_text()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker for one test, which may kill it."""
    running = BrokerProcess(tmp_path / "data", QUICK_GROUPS)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds."""

    def wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not come true"
            time.sleep(0.05)

    return wait


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long runs to `make compat`, and of several brokers those that are of one's own files or death."""
    if BROKERS > 1:
        alone = [
            item
            for item in items
            if item.get_closest_marker("lone_broker") is not None or "own_broker" in getattr(item, "fixturenames", ())
        ]
        items[:] = [item for item in items if item not in alone]
        config.hook.pytest_deselected(items=alone)
    if os.environ.get("FLUVIAL_COMPAT") == "all":
        return
    long = [item for item in items if item.get_closest_marker("compat_long") is not None]
    items[:] = [item for item in items if item not in long]
    config.hook.pytest_deselected(items=long)
