"""A broker for the clients, and which tests run when."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_process import SHORT_SESSIONS, BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that the tests share: each uses topics and groups of its own names."""
    running = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", SHORT_SESSIONS)
    running.start()
    yield running
    assert running.stop() == 0, running.log.read_text()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker for one test, which may kill it."""
    running = BrokerProcess(tmp_path / "data", SHORT_SESSIONS)
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
    """Leave the long ones to `make compat`."""
    if os.environ.get("FLUVIAL_COMPAT") == "all":
        return
    long = [item for item in items if item.get_closest_marker("compat_long") is not None]
    items[:] = [item for item in items if item not in long]
    config.hook.pytest_deselected(items=long)
