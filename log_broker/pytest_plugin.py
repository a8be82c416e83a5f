"""
The pytest plugin: a real broker, started in this process in milliseconds, for tests that need a Kafka.

`kafka_broker` is a fresh one for each test that asks, `kafka_session_broker` one that all tests of the run share, and
`make_kafka_broker` starts as many as a test wants. What they serve is told by the marker `kafka_broker` and by the ini
settings `kafka_broker_settings` and `kafka_broker_topics`. The broker is not imported before a test asks for one.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import log_broker

if TYPE_CHECKING:
    from log_broker.server.embedded import EmbeddedBroker

MARKER = "kafka_broker"
SETTINGS = "kafka_broker_settings"
TOPICS = "kafka_broker_topics"

# Arguments of log_broker.embedded that are no settings of the broker.
_ARGUMENTS = frozenset({"data_dir", "port", "topics", "validator", "config"})
# A group's first member waits until the topic of committed offsets is there: 50 partitions are for clusters.
_DEFAULTS = {"offsets.topic.num.partitions": "1"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini settings."""
    parser.addini(SETTINGS, "broker settings by Kafka's names, one `name=value` a line", type="linelist", default=[])
    parser.addini(TOPICS, "topics of every broker, one `name` or `name:partitions` a line", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(topics=(), config={{}}, **settings): what the broker of the fixture kafka_broker serves, "
        "as log_broker.embedded takes it",
    )


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest) -> "Iterator[EmbeddedBroker]":
    """A Kafka broker of this test alone; clients connect to its `bootstrap_servers`."""
    with _embedded(request.config, _marked(request.node)) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_session_broker(request: pytest.FixtureRequest) -> "Iterator[EmbeddedBroker]":
    """A Kafka broker that all tests of the run share; `unique_topic()` keeps them apart."""
    with _embedded(request.config, {}) as broker:
        yield broker


@pytest.fixture
def make_kafka_broker(request: pytest.FixtureRequest) -> "Iterator[Callable[..., EmbeddedBroker]]":
    """Start a broker whenever called, with the arguments of `log_broker.embedded`; all stop when the test ends."""
    with ExitStack() as running:
        yield lambda **options: running.enter_context(_embedded(request.config, options))


def _embedded(pytest_config: pytest.Config, options: dict[str, Any]) -> Any:
    topics = {**_ini_topics(pytest_config), **_by_name(options.get("topics", ()))}
    named = {name.replace("_", "."): value for name, value in options.items() if name not in _ARGUMENTS}
    config = _DEFAULTS | _ini_settings(pytest_config) | named | dict(options.get("config") or {})
    own = {name: options[name] for name in _ARGUMENTS & options.keys() - {"topics", "config"}}
    return log_broker.embedded(topics=topics, config=config, **own)


def _marked(node: Any) -> dict[str, Any]:
    """Join the markers of a test, its class and its module; the closest has the last word on each option."""
    options: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers(MARKER))):
        if marker.args:
            raise pytest.UsageError(f"{node.nodeid}: @pytest.mark.{MARKER} takes keywords only, not {marker.args!r}")
        options |= marker.kwargs
    return options


def _by_name(topics: Any) -> dict[str, int | None]:
    return dict(topics) if isinstance(topics, dict) else dict.fromkeys(topics)


def _ini_settings(config: pytest.Config) -> dict[str, str]:
    settings = {}
    for line in config.getini(SETTINGS):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"{SETTINGS}: {line!r} is no `name=value`")
        settings[name.strip()] = value.strip()
    return settings


def _ini_topics(config: pytest.Config) -> dict[str, int | None]:
    topics: dict[str, int | None] = {}
    for line in config.getini(TOPICS):
        name, colon, partitions = line.partition(":")
        if colon and not partitions.strip().isdecimal():
            raise pytest.UsageError(f"{TOPICS}: {line!r} is no `name` or `name:partitions`")
        topics[name.strip()] = int(partitions) if colon else None
    return topics
