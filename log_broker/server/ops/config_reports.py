"""Settings as DescribeConfigs reports them: value, where it comes from, and what would hold without it."""

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from log_broker.config.broker import BROKER_KEYS, GROUP_KEYS
from log_broker.config.keys import ConfigKey, ConfigType
from log_broker.config.security import is_secret
from log_broker.config.topic_keys import TOPIC_KEY_OF_BROKER_NAME, TOPIC_KEYS, broker_name
from log_broker.core.cluster.image import TopicImage
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Values


class ReportHost(Cluster, Protocol):
    """What a report asks of its node."""

    @property
    def registry_url(self) -> str: ...

    @property
    def listener_settings(self) -> Mapping[str, str | None]:
        """Where this broker listens, and what was given for that; secrets are None."""
        ...


class ConfigSource(IntEnum):
    """Where a value comes from, by Kafka's numbers."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class Level(NamedTuple):
    """What a setting is at one place: the name it has there, its text, where that is."""

    name: str
    text: str
    source: ConfigSource


MIN_ISR = "min.insync.replicas"


def topic_entries(node: ReportHost, topic: TopicImage, *, names: Collection[str] | None) -> "list[Values]":
    """Report a topic's settings, all or those named."""
    entries = []
    for name, key in TOPIC_KEYS.items():
        if names is None or name in names:
            own = topic.overrides.get(name)
            levels: list[Level] = [] if own is None else [Level(name, own, ConfigSource.DYNAMIC_TOPIC)]
            levels += _broker_levels(node, broker_name(name), key)
            if name == MIN_ISR and levels[0].source is ConfigSource.DEFAULT:
                # What holds where nobody chose it depends on how many replicas there are.
                levels[0] = levels[0]._replace(text=str(topic.min_isr(0)))
            entries.append(_entry(name, key, levels))
    return entries


def broker_entries(node: ReportHost, *, names: Collection[str] | None) -> "list[Values]":
    """Report this broker's settings, all or those named."""
    keys = {**BROKER_KEYS, **{name: TOPIC_KEYS[topic] for name, topic in TOPIC_KEY_OF_BROKER_NAME.items()}}
    entries = [
        _entry(name, key, list(_broker_levels(node, name, key)))
        for name, key in keys.items()
        if names is None or name in names
    ]
    static = node.static_config
    fixed: dict[str, str | None] = {
        "node.id": str(static.node_id),
        "broker.id": str(static.node_id),
        "log.dirs": str(static.data_dir),
        **node.listener_settings,
    }
    if node.registry_url:
        fixed["fluvial.registry.url"] = node.registry_url
    for name, text in fixed.items():
        if names is None or name in names:
            entries.append(
                {
                    "name": name,
                    "value": text,
                    "read_only": True,
                    "config_source": ConfigSource.STATIC_BROKER,
                    "is_sensitive": is_secret(name),
                    "synonyms": [{"name": name, "value": text, "source": ConfigSource.STATIC_BROKER}],
                    "config_type": ConfigType.PASSWORD if is_secret(name) else ConfigType.STRING,
                    "documentation": "Given when the broker was started.",
                }
            )
    return entries


def group_entries(node: ReportHost, group: str, *, names: Collection[str] | None) -> "list[Values]":
    """Report the settings of a consumer group, all or those named; what it has none of its own for is the broker's."""
    entries = []
    for name, key in GROUP_KEYS.items():
        if names is None or name in names:
            own = node.cluster.group_overrides.get(group, {}).get(name)
            levels: list[Level] = [] if own is None else [Level(name, own, ConfigSource.DYNAMIC_GROUP)]
            levels += _broker_levels(node, f"group.{name}", BROKER_KEYS[f"group.{name}"])
            entries.append(_entry(name, key, levels))
    return entries


def _broker_levels(node: ReportHost, name: str, key: ConfigKey) -> Iterator[Level]:
    """Yield what holds for a broker setting, strongest first; the built-in default is last."""
    overrides = node.cluster.broker_overrides
    for node_id, source in (
        (node.static_config.node_id, ConfigSource.DYNAMIC_BROKER),
        (None, ConfigSource.DYNAMIC_DEFAULT_BROKER),
    ):
        text = overrides.get(node_id, {}).get(name)
        if text is not None:
            yield Level(name, text, source)
    static = node.static_config
    if name in BROKER_KEYS:
        value = getattr(static, key.attribute)
        if value != key.parse(key.default):
            yield Level(name, _text(value), ConfigSource.STATIC_BROKER)
    elif key.name in static.topic_defaults:
        yield Level(name, static.topic_defaults[key.name], ConfigSource.STATIC_BROKER)
    # -1 as a default means what the size of the cluster makes of it.
    default = str(static.replication_factor) if name == "default.replication.factor" else key.default
    yield Level(name, default, ConfigSource.DEFAULT)


def _entry(name: str, key: ConfigKey, levels: list[Level]) -> "Values":
    _, text, source = levels[0]
    return {
        "name": name,
        "value": text,
        "read_only": key.read_only,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [{"name": level, "value": value, "source": origin} for level, value, origin in levels],
        "config_type": key.type,
        "documentation": key.doc,
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
