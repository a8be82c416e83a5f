"""
Requests that a node answers with success: one of every api, whose fields are filled by their names, and a world of
topics, groups and transactions to which they belong.

What the cost fuzzer changes is one of these: a request that is wrong already is refused before it costs anything.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from fuzz_node import Wire

from log_broker.records import build_batch
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import description_of
from log_broker.wire.messages import NO_UUID, shape_of

Values = dict[str, Any]
PARTITIONS = 4
WIDE = 128  # partitions of the topic "wide"
METADATA_TOPIC_ID = UUID(int=1)
TOPICS: Mapping[str, Mapping[str, str]] = {
    "good": {},  # of the client that is asked whether it notices anything
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "validated": {"fluvial.value.schema.validation": "payload"},
    "quarantined": {"fluvial.value.schema.validation": "id", "fluvial.schema.violation": "quarantine"},
    "bounded": {"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "3600000"},
    "appended": {"message.timestamp.type": "LogAppendTime", "compression.type": "gzip"},
    "wide": {},
    "x" * 40: {},  # a name for regular expressions to try
}
PRODUCED_TO = tuple(TOPICS)[1:-1]
BROKERS_ONLY = frozenset(api.key for api in APIS.values() if api.inter_broker)
# What ends the world that the others need.
LAST = frozenset({ApiKey.REMOVE_RAFT_VOTER, ApiKey.UNREGISTER_BROKER, ApiKey.UPDATE_FEATURES})


@dataclass
class World:
    """What stands in the node, as far as requests name it."""

    topic: str = "plain"
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    producer: tuple[int, int] = (0, 0)  # of the transactional id "tx"
    member: str = ""  # of the group "group"
    generation: int = 1
    broker_epoch: int = 7
    cluster_id: str = ""
    now_ms: int = 0
    batch: bytes = b""
    made: int = 0  # counts topics, so that each CreateTopics makes another


STRINGS = {
    "group_id": "group",
    "groups": "group",
    "group_ids": "group",
    "groups_names": "group",
    "coordinator_keys": "group",
    "transactional_id": "tx",
    "transactional_ids": "tx",
    "protocol_type": "consumer",
    "protocol_name": "range",
    "client_software_name": "fuzz",
    "client_software_version": "1.0",
    "entity_type": "client-id",
    "entity_name": "fuzz",
    "key": "producer_byte_rate",
    "feature": "metadata.version",
    "host": "127.0.0.1",
    "principal": "User:fuzz",
    "path": "/nowhere",
    "subscribed_topic_regex": "pl.*",
    "server_assignor": "uniform",
    "value": "1000000",
    "rack": "a",
}
NULL_IF_MAY_BE = frozenset(
    {
        "cluster_id", "group_instance_id", "instance_id", "transactional_id", "replica_directory_id", "cursor",
        "rack_id",
        "voter_directory_id", "candidate_directory_id", "resource_name_filter", "principal_filter", "host_filter",
        "transactional_id_pattern", "match", "subscribed_topic_regex", "server_assignor", "topic_partitions", "reason",
        "assignments", "replicas", "configuration_keys", "member_epoch",
    }
)  # fmt: skip
NUMBERS = {
    "acks": -1,
    "timeout": 1_000,
    "max_wait": 100,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "log_start_offset": -1,
    "session_epoch": -1,
    "replica_id": -1,
    "timestamp": 1,
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "transaction_timeout": 60_000,
    "resource_type": 2,
    "resource_types": 2,
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "resource_pattern_type": 3,
    "operation": 1,
    "permission_type": 1,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": PARTITIONS,
    "committed_leader_epoch": -1,
    "response_partition_limit": 2_000,
    "endpoint_type": 1,
    "port": 9,
    "iterations": 4_096,
    "mechanism": 1,
    "max_version_level": 1,
    "max_supported_version": 1,
    "coordinator_epoch": 0,
    "duration_filter": -1,
    "previous_broker_epoch": -1,
    "last_offset": 1 << 20,
    "voter_id": 0,
}
# Where a name means something else in one api.
OWN: Mapping[ApiKey, Mapping[str, Any]] = {
    ApiKey.PRODUCE: {"transactional_id": None},
    ApiKey.JOIN_GROUP: {"member_id": "", "group_id": "joined", "name": "range"},
    ApiKey.INIT_PRODUCER_ID: {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
    ApiKey.CREATE_TOPICS: {"assignments": (), "configs": ()},
    ApiKey.DELETE_TOPICS: {"name": "made", "topic_names": "made", "topic_id": None},
    ApiKey.METADATA: {"topic_id": None},
    ApiKey.LIST_GROUPS: {"states_filter": "Stable", "types_filter": "classic"},
    ApiKey.LIST_TRANSACTIONS: {"state_filters": "Ongoing", "producer_id_filters": 0},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {"group_id": "consumers", "member_id": "m1", "topic_partitions": ()},
    ApiKey.CONSUMER_GROUP_DESCRIBE: {"group_ids": "consumers"},
    ApiKey.OFFSET_COMMIT: {"generation_id_or_member_epoch": -1, "generation_id": -1, "member_id": ""},
    ApiKey.OFFSET_FETCH: {"member_id": None, "member_epoch": -1},
    ApiKey.TXN_OFFSET_COMMIT: {"generation_id": -1, "member_id": ""},
    ApiKey.LEAVE_GROUP: {"member_id": "nobody"},
    ApiKey.DELETE_GROUPS: {"groups_names": "deleted"},
    ApiKey.ALTER_CLIENT_QUOTAS: {"value": 1e6},
    ApiKey.DESCRIBE_QUORUM: {"topic_name": "__cluster_metadata"},
    ApiKey.VOTE: {"topic_name": "__cluster_metadata", "replica_id": 9, "replica_epoch": 1},
    ApiKey.BEGIN_QUORUM_EPOCH: {"topic_name": "__cluster_metadata", "leader_id": 9, "leader_epoch": 1},
    ApiKey.END_QUORUM_EPOCH: {"topic_name": "__cluster_metadata", "leader_id": 9, "leader_epoch": 1},
    ApiKey.FETCH_SNAPSHOT: {"name": "__cluster_metadata", "replica_id": 9, "current_leader_epoch": 1},
    ApiKey.ADD_RAFT_VOTER: {"voter_id": 9, "name": "CONTROLLER"},
    ApiKey.REMOVE_RAFT_VOTER: {"voter_id": 9},
    ApiKey.UPDATE_RAFT_VOTER: {"voter_id": 9, "name": "CONTROLLER", "current_leader_epoch": 1},
    ApiKey.BROKER_REGISTRATION: {"broker_id": 9, "name": "PLAINTEXT"},
    ApiKey.UNREGISTER_BROKER: {"broker_id": 9},
    ApiKey.BROKER_HEARTBEAT: {"broker_id": 0},
    ApiKey.WRITE_TXN_MARKERS: {"producer_id": 77, "producer_epoch": 0},
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {"match_type": 2},
    ApiKey.ENVELOPE: {"client_host_address": b"\x7f\0\0\1"},
    ApiKey.ALTER_CONFIGS: {"name": "retention.ms"},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {"name": "retention.ms"},
    ApiKey.UPDATE_FEATURES: {"upgrade_type": 1, "max_version_level": 1},
    ApiKey.FETCH: {"fetch_offset": 0},
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {"replica_id": -1},
    ApiKey.ALTER_PARTITION: {"broker_id": 0},
}


# Other ways to use an api, by what stands in fields of these names.
VARIANTS: Mapping[ApiKey, Mapping[str, Mapping[str, Any]]] = {
    ApiKey.FETCH: {
        "quorum": {"topic_id": METADATA_TOPIC_ID, "replica_id": 9, "current_leader_epoch": 1},
        "replica": {"replica_id": 0, "replica_epoch": 7},
        "committed": {"isolation_level": 1},
        "session": {"session_epoch": 0},
    },
    ApiKey.METADATA: {"all": {"topics": None}},
    ApiKey.OFFSET_FETCH: {"all": {"topics": None}},
    ApiKey.PRODUCE: {"transaction": {"transactional_id": "tx"}},
    ApiKey.DESCRIBE_CONFIGS: {"broker": {"resource_type": 4, "resource_name": "0"}},
    ApiKey.DESCRIBE_LOG_DIRS: {"all": {"topics": None}},
    ApiKey.INIT_PRODUCER_ID: {"transaction": {"transactional_id": "another"}},
    ApiKey.JOIN_GROUP: {"member": {"group_id": "group"}},
    ApiKey.LIST_GROUPS: {"all": {"states_filter": (), "types_filter": ()}},
    ApiKey.LIST_TRANSACTIONS: {"all": {"state_filters": (), "producer_id_filters": ()}},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"all": {"topics": ()}},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"all": {"topics": None}},
    ApiKey.ELECT_LEADERS: {"all": {"topic_partitions": None}},
    ApiKey.OFFSET_COMMIT: {"member": {"group_id": "other"}},
}


def values_of(
    world: World, key: ApiKey, version: int, *, variant: str = "", tagged: bool = False, more: Mapping[str, Any] = {}
) -> Values:
    """
    Return the values of a request that the world's node should answer well.

    Fields with a tag are left out, as clients mostly do, unless they are asked for.
    """
    own = {**OWN.get(key, {}), **(VARIANTS[key][variant] if variant else {}), **more}
    if key is ApiKey.CREATE_TOPICS:
        world.made += 1
        own["name"] = f"made-{world.made}-"
    description = description_of(key, max(version, 3) if key is ApiKey.PRODUCE else version, "request")
    return _values(world, own, description, tagged)


def _values(world: World, own: Mapping[str, Any], description: type[Any], tagged: bool) -> Values:
    return {
        each.name: _value(world, own, each, tagged)
        for each in fields(description)
        if tagged or "tag" not in each.metadata
    }


def _value(world: World, own: Mapping[str, Any], each: Any, tagged: bool) -> Any:
    shape = shape_of(each.type)
    name = each.name
    if name in own and (own[name] is None or own[name] == ()):
        return own[name]
    if shape.nullable and name in NULL_IF_MAY_BE and name not in own:
        return None
    single: Any
    if shape.description is not None:
        single = _values(world, own, shape.description, tagged)
    elif name in own:
        single = own[name]
    else:
        single = _by_name(world, name, each.metadata["kafka_type"])
    return (single,) if shape.is_array else single


def _by_name(world: World, name: str, kind: str) -> Any:
    if kind == "string":
        return {"cluster_id": world.cluster_id, "member_id": world.member}.get(name, STRINGS.get(name, world.topic))
    if kind == "records":
        return world.batch
    if kind == "bytes":
        return b"\0" * 16
    if kind == "uuid":
        return world.topic_ids.get(world.topic, NO_UUID) if name == "topic_id" else UUID(int=9)
    if kind == "bool":
        return False
    if kind == "float64":
        return 1.0
    if name == "producer_id":
        return world.producer[0]
    if name == "producer_epoch":
        return world.producer[1]
    if name == "broker_epoch":
        return world.broker_epoch
    if name == "generation_id":
        return world.generation
    return NUMBERS.get(name, 0)


async def make_world(port: int) -> World:
    """Make the topics, a group with a member and a transactional id, and return what requests need to know of them."""
    wire = await Wire.open(port)
    world = World(now_ms=int(time.time() * 1000))
    world.batch = bytes(build_batch([(world.now_ms, b"k", b"v", ())]))
    topics = [
        {
            "name": name,
            "num_partitions": WIDE if name == "wide" else PARTITIONS,
            "replication_factor": 1,
            "assignments": (),
            "configs": [{"name": setting, "value": value} for setting, value in settings.items()],
        }
        for name, settings in TOPICS.items()
    ]
    answer = await wire.ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 10_000, "validate_only": False})
    assert all(topic.error_code == 0 for topic in answer.topics), answer
    world.topic_ids = {topic.name: topic.topic_id for topic in answer.topics}
    metadata = await wire.ask(ApiKey.METADATA, 9, {"topics": (), "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False})  # fmt: skip
    world.cluster_id = metadata.cluster_id
    for attempt in range(100):
        for kind, name in ((0, "group"), (1, "tx"), (1, "x" * 40)):
            await wire.ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": (name,)})
        asked = {"transactional_id": "tx", "transaction_timeout": 600_000, "producer_id": -1, "producer_epoch": -1}
        answer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, asked)
        joining = {
            "group_id": "group", "session_timeout": 1_800_000, "rebalance_timeout": 1_000, "member_id": world.member,
            "group_instance_id": None, "protocol_type": "consumer", "reason": None,
            "protocols": [{"name": "range", "metadata": b"\0" * 8}],
        }  # fmt: skip
        joined = await wire.ask(ApiKey.JOIN_GROUP, 9, joining)
        world.member = joined.member_id or ""
        if answer.error_code == 0 and joined.error_code == 0:
            break
        assert attempt < 99, (answer, joined)
        await asyncio.sleep(0.05)
    world.producer = answer.producer_id, answer.producer_epoch
    await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, asked | {"transactional_id": "x" * 40})
    world.generation = joined.generation_id
    await wire.ask(
        ApiKey.SYNC_GROUP,
        5,
        {"group_id": "group", "generation_id": joined.generation_id, "member_id": world.member,
         "group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range",
         "assignments": [{"member_id": world.member, "assignment": b"\0" * 8}]},
    )  # fmt: skip
    await wire.close()
    return world
