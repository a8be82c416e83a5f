"""
The records of the cluster's metadata: everything that brokers agree on, as a sequence of changes.

They are kept in partition 0 of `__cluster_metadata`, one JSON object each: `{"type": <class name>, <field>: …}`. JSON
because there are few of them, and people read them when something went wrong. A field that an older record lacks takes
its default. A field or a type that an older release does not know stops it, so those that come later are written from
a level of `metadata.version` on (`features`). Topic ids are the 32 hex digits of a UUID.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from log_broker.core.cluster.features import ToldRanges

ToldListeners = tuple[tuple[str, str, int, int], ...]  # (name, host, port, the protocol's number)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """`replicas` names the brokers of each partition, the preferred leader first; those that are up are in sync."""

    name: str
    topic_id: str
    replicas: tuple[tuple[int, ...], ...]
    overrides: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    """The topic gets more partitions behind those that it has."""

    topic_id: str
    replicas: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanged:
    """
    What of a partition is another way now; a field that is None stays. Each change is a new partition epoch.

    `leader` begins a new leader epoch, also when it is the same broker as before.
    """

    topic_id: str
    partition: int
    leader: int | None = None
    isr: tuple[int, ...] | None = None
    elr: tuple[int, ...] | None = None
    last_known_leader: int | None = None
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    recovering: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """The topic is gone; one of the same name that comes later is another topic."""

    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigured:
    """The topic's overrides are these and no others."""

    topic_id: str
    overrides: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersConfigured:
    """The dynamic settings of one broker, or with `node_id` None of all, are these and no others."""

    node_id: int | None
    overrides: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigured:
    """The settings of one consumer group are these and no others."""

    group: str
    overrides: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    """
    A broker process came up. It is fenced, so leads nothing, until it has replayed this record.

    `directory` is the id of its data directory, empty where it told none. `features` are the levels that it supports,
    None while the cluster's `metadata.version` has no place for them. `listeners` are all that it has, where it has
    several; `host` and `port` are the one by which nodes reach each other.
    """

    node_id: int
    host: str
    port: int
    incarnation: str
    rack: str | None = None
    directory: str = ""
    features: ToldRanges | None = None
    listeners: ToldListeners | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnfenced:
    """A broker may lead and may enter ISRs."""

    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLeaving:
    """A broker is about to stop: it is still there, but leads nothing more and enters no ISR."""

    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFenced:
    """A broker stopped or was not heard of in time. It has to register again: its epoch has ended."""

    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnregistered:
    """A broker that is gone for good was struck off."""

    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNamed:
    """The id of the cluster, written by the first controller that it had."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsReserved:
    """Every producer id below `end` may be in use."""

    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelSet:
    """The cluster is at another level of a feature: every node supports it (Kafka's FeatureLevelRecord)."""

    feature: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord:
    """There is one more ACL, of Kafka's record of the same name; the numbers are those of `core.security.acls`."""

    id: str  # the 32 hex digits of a UUID
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord:
    """An ACL is gone."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord:
    """
    What is kept of a user's password for one mechanism, 1 for SCRAM-SHA-256 and 2 for SCRAM-SHA-512.

    Salt and keys are hex digits. As in Kafka, they are not the password but as good as one to whoever holds them.
    """

    name: str
    mechanism: int
    salt: str = field(repr=False)
    stored_key: str = field(repr=False)
    server_key: str = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord:
    """A user cannot sign in by a mechanism any more."""

    name: str
    mechanism: int


MetadataRecord = (
    TopicCreated
    | PartitionsAdded
    | PartitionChanged
    | TopicDeleted
    | TopicConfigured
    | BrokersConfigured
    | GroupConfigured
    | BrokerRegistered
    | BrokerUnfenced
    | BrokerLeaving
    | BrokerFenced
    | BrokerUnregistered
    | ClusterNamed
    | ProducerIdsReserved
    | FeatureLevelSet
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
)

_TYPES: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        TopicCreated,
        PartitionsAdded,
        PartitionChanged,
        TopicDeleted,
        TopicConfigured,
        BrokersConfigured,
        GroupConfigured,
        BrokerRegistered,
        BrokerUnfenced,
        BrokerLeaving,
        BrokerFenced,
        BrokerUnregistered,
        ClusterNamed,
        ProducerIdsReserved,
        FeatureLevelSet,
        AccessControlEntryRecord,
        RemoveAccessControlEntryRecord,
        UserScramCredentialRecord,
        RemoveUserScramCredentialRecord,
    )
}


class UnknownMetadataRecordError(Exception):
    """The metadata log holds what this version of the broker does not understand; it must not guess and go on."""


def encode(record: MetadataRecord) -> bytes:
    """Return the record's value; the key is null."""
    return json.dumps(_content(record), separators=(",", ":")).encode()


def encode_all(records: Sequence[MetadataRecord]) -> bytes:
    """Return one value that holds all records of a decision, so that they are committed together or not at all."""
    return json.dumps([_content(record) for record in records], separators=(",", ":")).encode()


def decode_all(value: bytes) -> Sequence[MetadataRecord]:
    """Return what `encode` or `encode_all` wrote; raises UnknownMetadataRecordError."""
    try:
        content = json.loads(value)
        return [_record(each) for each in (content if isinstance(content, list) else [content])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownMetadataRecordError(f"metadata record {value[:200]!r}: {error}") from None


def decode(value: bytes) -> MetadataRecord:
    """Return the record that `encode` wrote; raises UnknownMetadataRecordError."""
    records = decode_all(value)
    if len(records) != 1:
        raise UnknownMetadataRecordError(f"metadata record {value[:200]!r}: {len(records)} records")
    return records[0]


def _content(record: MetadataRecord) -> dict[str, Any]:
    content = {"type": type(record).__name__, **asdict(record)}
    if isinstance(record, BrokerRegistered) and record.features is None:
        # A node that takes part in a rolling upgrade and is not there yet knows no such field.
        del content["features"]
    if isinstance(record, BrokerRegistered) and record.listeners is None:
        del content["listeners"]
    return content


def _record(content: dict[str, Any]) -> MetadataRecord:
    kind = _TYPES[content.pop("type")]
    record: MetadataRecord = kind(**{name: _as_tuples(each) for name, each in content.items()})
    return record


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
