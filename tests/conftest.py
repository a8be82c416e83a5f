"""What holds for every test."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: no test here asserts how long something takes.
settings.register_profile("fluvial", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fluvial")


# Folders whose files take minutes come first, so that no process is left alone with one at the end.
LONG = ("e2e", "spark", "chaos", "sim", "compat")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, and those that share the whole demo."""
    for item in items:
        group = "demo" if "demo" in getattr(item, "fixturenames", ()) else item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_is_short)


def _is_short(item: pytest.Item) -> bool:
    return item.path.relative_to(Path(__file__).parent).parts[0] not in LONG


@pytest.fixture(scope="module", autouse=True)
def _no_clients_left() -> Iterator[None]:
    """
    Clients of librdkafka that only garbage holds end with their module.

    They would dial the ports of brokers that are gone, where others listen by then: Spark takes the first who
    connects to the port of an answer for its reader.
    """
    yield
    if _has_clients():
        gc.collect()


def _has_clients() -> bool:
    """Whether threads of librdkafka run; where that cannot be seen, as if they did."""
    threads = Path("/proc/self/task")
    if not threads.is_dir():
        return True
    for thread in threads.iterdir():
        try:
            if (thread / "comm").read_text().startswith("rdk:"):
                return True
        except OSError:
            continue  # it has ended
    return False
