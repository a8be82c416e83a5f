"""What holds for every test."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from rota import LEFT_OUT

# A busy machine is no reason to fail: no test here asserts how long something takes.
settings.register_profile("fluvial", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fluvial")


# Drivers of tests live for minutes and run each plan a few times: what the second compiler and a parallel collector
# would gain later they do not earn back (136 s of processor time for the tests of rebuilding, and 85 s so). With one
# compiler the JVM keeps room for 48 MB of compiled code only, which two tests fill: then it throws code away and
# compiles it again (71 s, and 61 s with room for all of it).
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m")

# A shell gives its background jobs an ignored SIGINT, which the processes that tests interrupt would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that take minutes come first, so that no process is left alone with one at the end; those of the second rank in
# the order that was drawn, so that what waits (chaos, clients) runs beside what computes (Spark, simulations).
FIRST = ("e2e",)
SECOND = ("spark", "chaos", "sim", "compat", "unit/fluvial/cli", "unit/fluvial/orchestration")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what the rota runs, and sort by length after the order has been drawn."""
    if not os.environ.get("FLUVIAL_ROTA"):
        for item in items:
            if item.get_closest_marker("rota"):
                item.add_marker(pytest.mark.skip(reason="minutes, which `make rota` takes: FLUVIAL_ROTA=1"))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    folder = item.path.parent.relative_to(Path(__file__).parent)
    if any(folder.is_relative_to(long) for long in FIRST):
        return 0
    return 1 if any(folder.is_relative_to(long) for long in SECOND) or item.get_closest_marker("spark") else 2


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Tell the rota of a turn in which everything was skipped: it has not passed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("FLUVIAL_ROTA") and exitstatus == 0 and reporter is not None and not reporter.stats.get("passed"):
        session.exitstatus = LEFT_OUT


@pytest.fixture(scope="module", autouse=True)
def _no_clients_left() -> Iterator[None]:
    """
    Clients of librdkafka that only garbage holds end with their module.

    They would dial the ports of brokers that are gone, where others listen by then: Spark takes the first who
    connects to the port of an answer for its reader.

    What else a module has left is not walked again: with Spark's and hypothesis' objects that holds up the event loop
    of a later test for most of a second, and its controller is taken for dead.
    """
    yield
    if _has_clients():
        gc.collect()
    else:
        gc.freeze()


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
