"""
What the controller decides: each function reads the image and returns a record, or raises a BrokerError saying why not.

The caller makes the records durable and replays them; nothing here changes anything.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from log_broker.config.broker import (
    BROKER_ALIASES,
    BROKER_KEYS,
    FIXED_BROKER_NAMES,
    GROUP_KEYS,
    BrokerConfig,
    TopicConfig,
    canonical_name,
    canonical_overrides,
    in_ms,
)
from log_broker.config.keys import ConfigKey, ConfigType
from log_broker.config.security import setting_of
from log_broker.config.topic_keys import TOPIC_KEY_OF_BROKER_NAME, TOPIC_KEYS
from log_broker.core.cluster.features import METADATA_VERSION, SETTINGS_FROM
from log_broker.core.cluster.image import INTERNAL_TOPICS, METADATA_TOPIC, ClusterImage, TopicImage
from log_broker.core.cluster.placement import place
from log_broker.core.cluster.reassignments import check_replicas
from log_broker.core.cluster.records import (
    BrokersConfigured,
    GroupConfigured,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from log_broker.core.cluster.replication_policy import check_factor, is_brokers_own
from log_broker.errors import BrokerError, ErrorCode

TOPIC_NAME_LENGTH_MAX = 249
PARTITIONS_MAX = 100_000
PRODUCER_ID_BLOCK = 1000
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

UNSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """`partitions` and `replication_factor` may be UNSET; `assignments` maps each partition to its brokers instead."""

    name: str
    topic_id: str
    partitions: int = UNSET
    replication_factor: int = UNSET
    assignments: Mapping[int, tuple[int, ...]] | None = None
    overrides: Mapping[str, str | None] | None = None


def check_topic_name(name: str) -> None:
    """Raise BrokerError(INVALID_TOPIC_EXCEPTION) for a name that Kafka does not allow."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = "'.' and '..' are not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
    elif _TOPIC_NAME.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def create_topic(image: ClusterImage, command: CreateTopic, config: BrokerConfig) -> TopicCreated:
    """Decide on a new topic: its name, its config and which broker leads each partition."""
    check_topic_name(command.name)
    if command.name == METADATA_TOPIC:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if command.name in image.topics:
        raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{command.name}' already exists.")
    # Metric names have no dots: Kafka keeps two topics that would share one from existing side by side.
    flat = command.name.replace(".", "_")
    collision = next((name for name in image.topics if name.replace(".", "_") == flat), None)
    if collision is not None:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{command.name}' collides with existing topic: {collision}"
        )
    overrides = canonical_overrides(
        {name: text for name, text in (command.overrides or {}).items() if text is not None}
    )
    _check_levels(image, overrides)
    config_then = TopicConfig.from_overrides(overrides, image.defaults)
    config_then.check()
    if command.assignments is not None:
        if command.partitions != UNSET or command.replication_factor != UNSET:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, "Both numPartitions or replicationFactor and replicasAssignments were set."
            )
        replicas = _assigned(image, command.assignments, first=0)
        check_factor(f"Topic '{command.name}'", len(replicas[0]), config.fluvial_replication_factor_min)
    else:
        count = config.num_partitions if command.partitions == UNSET else command.partitions
        if count <= 0 or count > PARTITIONS_MAX:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS, f"Number of partitions was {count}; it must lie in 1 … {PARTITIONS_MAX}."
            )
        factor = _replication_factor(image, command, config)
        replicas = place(image, count, factor, config_then.fluvial_leaders_preference)
    return TopicCreated(name=command.name, topic_id=command.topic_id, replicas=replicas, overrides=overrides)


def add_partitions(
    image: ClusterImage, topic: TopicImage, count: int, assignments: Sequence[tuple[int, ...]] | None
) -> PartitionsAdded:
    """Decide on more partitions for a topic, `count` in all."""
    have = len(topic.partitions)
    if count <= have or count > PARTITIONS_MAX:
        which = "already has" if count == have else "currently has"
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic {which} {have} partitions; {count} is not an increase within {PARTITIONS_MAX}.",
        )
    factor = topic.partitions[0].factor
    if assignments is None:
        replicas = place(image, count - have, factor, topic.config.fluvial_leaders_preference)
        return PartitionsAdded(topic_id=topic.topic_id, replicas=replicas)
    if len(assignments) != count - have:
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {count - have} partitions, but {len(assignments)} assignments were given.",
        )
    wanted = {have + index: brokers for index, brokers in enumerate(assignments)}
    return PartitionsAdded(topic_id=topic.topic_id, replicas=_assigned(image, wanted, first=have, factor=factor))


def delete_topic(topic: TopicImage, config: BrokerConfig) -> TopicDeleted:
    """Decide on the end of a topic."""
    if not config.delete_topic_enable:
        raise BrokerError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    if topic.name in INTERNAL_TOPICS:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Topic '{topic.name}' is internal and is not deleted.")
    return TopicDeleted(topic_id=topic.topic_id)


class Operation:
    """What IncrementalAlterConfigs does with one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One operation on one setting; SET and DELETE of everything else makes it a replacement of the whole."""

    name: str
    operation: int
    value: str | None


def configure_topic(image: ClusterImage, topic: TopicImage, alterations: Sequence[Alteration]) -> TopicConfigured:
    """Decide on changes of a topic's overrides; what they mean for its partitions is for `elections.reconfigured`."""
    overrides = dict(topic.overrides)
    for given, operation, value in alterations:
        name, text = canonical_name(given, value)
        current = overrides.get(name, _default_text(TOPIC_KEYS[name], name, image))
        _alter(overrides, TOPIC_KEYS[name], name, (operation, text, current))
    _check_levels(image, overrides)
    TopicConfig.from_overrides(overrides, image.defaults).check()
    return TopicConfigured(topic_id=topic.topic_id, overrides=overrides)


def configure_brokers(
    image: ClusterImage, node_id: int | None, alterations: Sequence[Alteration], static: BrokerConfig
) -> BrokersConfigured:
    """Decide on changes of the dynamic settings of one broker, or with None of all."""
    overrides = dict(image.broker_overrides.get(node_id, {}))
    everywhere = image.broker_overrides.get(None, {}) if node_id is not None else {}
    for given, operation, text in alterations:
        name, value = _canonical_broker_setting(given, text)
        topic_key = TOPIC_KEY_OF_BROKER_NAME.get(name, "")
        key = BROKER_KEYS.get(name) or TOPIC_KEYS.get(topic_key)
        if name in FIXED_BROKER_NAMES or setting_of(name) or (key is not None and key.read_only):
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {name}")
        if key is None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
        default = static.topic_defaults.get(topic_key, key.default)
        _alter(overrides, key, name, (operation, value, overrides.get(name, everywhere.get(name, default))))
    _check_levels(image, overrides)
    TopicConfig.from_overrides({}, static.with_settings({**everywhere, **overrides})).check()
    return BrokersConfigured(node_id=node_id, overrides=overrides)


def _canonical_broker_setting(name: str, text: str | None) -> tuple[str, str | None]:
    if name not in BROKER_ALIASES:
        return name, text
    canonical, unit_ms = BROKER_ALIASES[name]
    return canonical, None if text is None else in_ms(name, text, unit_ms)


def configure_group(
    image: ClusterImage, group: str, alterations: Sequence[Alteration], broker: BrokerConfig
) -> GroupConfigured:
    """Decide on changes of one group's settings, within the bounds that the broker sets."""
    overrides = dict(image.group_overrides.get(group, {}))
    for name, operation, value in alterations:
        key = GROUP_KEYS.get(name)
        if key is None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        _alter(overrides, key, name, (operation, value, overrides.get(name, key.default)))
    for name, text in overrides.items():
        what = name.removeprefix("consumer.").replace(".", "_")
        least: int = getattr(broker, f"group_consumer_min_{what}")
        most: int = getattr(broker, f"group_consumer_max_{what}")
        if not least <= GROUP_KEYS[name].parse(text) <= most:
            reason = f"Invalid value {text} for configuration {name}: it is outside {least} … {most}"
            raise BrokerError(ErrorCode.INVALID_CONFIG, reason)
    return GroupConfigured(group=group, overrides=overrides)


def reserve_producer_ids(image: ClusterImage, count: int = PRODUCER_ID_BLOCK) -> ProducerIdsReserved:
    """Decide on the next block of producer ids: those from `image.next_producer_id` up to `end`."""
    return ProducerIdsReserved(end=image.next_producer_id + count)


def _replication_factor(image: ClusterImage, command: CreateTopic, config: BrokerConfig) -> int:
    alive = sum(broker.may_lead for broker in image.brokers.values())
    least = config.fluvial_replication_factor_min
    is_default = command.replication_factor == UNSET
    factor = config.replication_factor if is_default else command.replication_factor
    if factor <= 0:
        reason = "Replication factor must be larger than 0, or -1 to use the default value."
    elif factor > alive:
        reason = f"Replication factor: {factor} larger than available brokers: {alive}."
    elif is_brokers_own(command.name):
        return max(factor, min(least, alive))
    else:
        origin = ", by default.replication.factor," if is_default else ""
        check_factor(f"Topic '{command.name}'{origin}", factor, least)
        return factor
    raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)


def _check_levels(image: ClusterImage, overrides: Mapping[str, str]) -> None:
    """Raise BrokerError(INVALID_CONFIG) for a setting that not all nodes need know yet."""
    now = image.levels[METADATA_VERSION]
    for name in overrides:
        level = SETTINGS_FROM.get(name, 0)
        if level > now:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"{name} can be set from {METADATA_VERSION} {level} on and the cluster is at {now}: when all nodes run"
                " a release that supports it, raise it by `fluvial cluster features upgrade`",
            )


def _assigned(
    image: ClusterImage, assignments: Mapping[int, tuple[int, ...]], *, first: int, factor: int | None = None
) -> tuple[tuple[int, ...], ...]:
    if sorted(assignments) != list(range(first, first + len(assignments))) or not assignments:
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partitions should be a consecutive 0-based integer sequence from {first}",
        )
    for index, brokers in sorted(assignments.items()):
        check_replicas(image, brokers, factor=factor)
        factor = len(brokers)
        if not any(map(image.may_lead, brokers)):
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"All brokers specified in the manual partition assignment for partition {index} are fenced or in"
                " controlled shutdown.",
            )
    return tuple(tuple(assignments[index]) for index in sorted(assignments))


def _default_text(key: ConfigKey, name: str, image: ClusterImage) -> str:
    defaults = image.defaults.topic_defaults if image.defaults is not None else {}
    return defaults.get(name, key.default)


def _alter(overrides: dict[str, str], key: ConfigKey, name: str, alteration: tuple[int, str | None, str]) -> None:
    """Carry out (operation, value) on one setting; the third is the text that is in force."""
    operation, value, current = alteration
    if operation == Operation.DELETE:
        overrides.pop(name, None)
        return
    if value is None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {name}")
    if operation == Operation.SET:
        overrides[name] = value
        return
    if operation not in {Operation.APPEND, Operation.SUBTRACT}:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation} on {name}")
    if key.type is not ConfigType.LIST:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Can't APPEND or SUBTRACT: {name} is not a list")
    words = [word for word in current.split(",") if word]
    given = [word.strip() for word in value.split(",")]
    if operation == Operation.APPEND:
        words += [word for word in given if word not in words]
    else:
        words = [word for word in words if word not in given]
    overrides[name] = ",".join(words)
