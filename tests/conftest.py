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
    """Keep the tests of a file in one process, and those that share a fixture of the whole session."""
    root = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(root).parts[0]
        group = "demo" if "demo" in getattr(item, "fixturenames", ()) else item.path.relative_to(root).as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
        item.stash[_RANK] = LONG.index(folder) if folder in LONG else len(LONG)
    items.sort(key=lambda item: item.stash[_RANK])


_RANK = pytest.StashKey[int]()


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
