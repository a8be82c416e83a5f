"""A request of each api for each right that it asks for, and who may send it: the table of test_server_rights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from log_broker.core.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from log_broker.errors import ErrorCode
from log_broker.records.batch import TRANSACTIONAL
from log_broker.records.record import build_batch
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import description_of, write_request
from log_broker.wire.refusals import _blank

CLUSTER, GROUP, TOPIC, TXN = (
    ResourceType.CLUSTER,
    ResourceType.GROUP,
    ResourceType.TOPIC,
    ResourceType.TRANSACTIONAL_ID,
)
O = Operation  # noqa: E741 - a table of them is read more easily
ADA = "User:ada"
CODES = {
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    TXN: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
ORDERS_ID = UUID(hex="a" * 32)
NAMES = {CLUSTER: CLUSTER_NAME, GROUP: "crew", TOPIC: "orders", TXN: "till"}

Right = tuple[ResourceType, Operation]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request, the right that it needs beside those that are `given`, and the code that it gets without."""

    api: ApiKey
    right: Right
    values: Mapping[str, Any] = field(default_factory=dict)
    version: int = -1  # the newest
    given: Sequence[Right] = ()
    code: ErrorCode | None = None  # unless it is that of the resource

    @property
    def refusal(self) -> ErrorCode:
        return CODES[self.right[0]] if self.code is None else self.code

    def __str__(self) -> str:
        return f"{self.api.name}-v{self.spoken}-{self.right[0].name}-{self.right[1].name}"

    @property
    def spoken(self) -> int:
        return APIS[self.api].version_max if self.version < 0 else self.version

    def request(self, **values: Any) -> bytes:
        blank = _blank(description_of(self.api, self.spoken, "request"))
        return bytes(write_request(self.api, self.spoken, 1, "t", {**blank, **self.values, **values}))


def case(api: ApiKey, right: Right, **fields: Any) -> Case:
    return Case(api=api, right=right, **fields)


def acl(right: Right, permission: Permission = Permission.ALLOW, *, prefixed: bool = False, host: str = "*") -> Acl:
    resource, operation = right
    name = NAMES[resource]
    return Acl(
        resource=resource,
        name=name[:2] if prefixed else name,
        pattern=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal=ADA,
        host=host,
        operation=operation,
        permission=permission,
    )


A = ApiKey
PARTITION = {"partition_index": 0}
NAMED = {"topics": ({"name": "orders", "partitions": (PARTITION,)},)}
COMMITTED = {**PARTITION, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
COMMIT = {"topics": ({"name": "orders", "partitions": (COMMITTED,)},)}
CREW = {"group_id": "crew"}
TILL = {"transactional_id": "till"}
ADDED = {
    "v3_and_below_transactional_id": "till",
    "v3_and_below_producer_id": 1,
    "v3_and_below_producer_epoch": 0,
    "v3_and_below_topics": ({"name": "orders", "partitions": (0,)},),
}
MAKE = {"name": "orders2", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
ASKED_OFFSETS = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}


def produced(transactional_id: str | None = None) -> Mapping[str, Any]:
    attributes = 0 if transactional_id is None else TRANSACTIONAL
    batch = build_batch([(0, None, b"x", ())], attributes=attributes, producer_id=1, base_sequence=0)
    data = {"name": "orders", "partition_data": ({"index": 0, "records": bytes(batch)},)}
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 1000, "topic_data": (data,)}


def resource(kind: ResourceType) -> Mapping[str, Any]:
    number, name = {TOPIC: (2, "orders"), CLUSTER: (4, "0"), GROUP: (32, "crew")}[kind]
    return {"resources": ({"resource_type": number, "resource_name": name, "configuration_keys": None, "configs": ()},)}


def on_cluster(api: ApiKey, operation: Operation, **fields: Any) -> Case:
    return case(api, (CLUSTER, operation), **fields)


CASES = [
    case(A.PRODUCE, (TOPIC, O.WRITE), values=produced()),
    case(A.PRODUCE, (TOPIC, O.WRITE), values=produced(), version=3),
    case(A.PRODUCE, (TXN, O.WRITE), values=produced("till"), given=[(TOPIC, O.WRITE)]),
    case(
        A.FETCH,
        (TOPIC, O.READ),
        version=12,
        values={
            "replica_id": -1,
            "session_epoch": -1,
            "topics": (
                {
                    "topic": "orders",
                    "topic_id": ORDERS_ID,
                    "partitions": (
                        {
                            "partition": 0,
                            "current_leader_epoch": -1,
                            "fetch_offset": 0,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 100,
                        },
                    ),
                },
            ),
        },
    ),
    case(
        A.LIST_OFFSETS,
        (TOPIC, O.DESCRIBE),
        values={
            "replica_id": -1,
            "topics": (
                {"name": "orders", "partitions": ({**PARTITION, "current_leader_epoch": -1, "timestamp": -1},)},
            ),
        },
    ),
    case(A.METADATA, (TOPIC, O.DESCRIBE), values={"topics": ({"topic_id": None, "name": "orders"},)}),
    case(A.METADATA, (TOPIC, O.DESCRIBE), version=4, values={"topics": ({"name": "orders"},)}),
    case(A.OFFSET_COMMIT, (GROUP, O.READ), values={**CREW, **COMMIT}, given=[(TOPIC, O.READ)]),
    case(A.OFFSET_COMMIT, (TOPIC, O.READ), values={**CREW, **COMMIT}, given=[(GROUP, O.READ)]),
    case(
        A.OFFSET_FETCH,
        (GROUP, O.DESCRIBE),
        values={"groups": ({**CREW, "member_id": None, "member_epoch": -1, "topics": None},)},
    ),
    case(A.OFFSET_FETCH, (GROUP, O.DESCRIBE), version=5, values={**CREW, "topics": None}),
    case(
        A.OFFSET_FETCH,
        (TOPIC, O.DESCRIBE),
        values={
            "groups": (
                {
                    **CREW,
                    "member_id": None,
                    "member_epoch": -1,
                    "topics": ({"name": "orders", "partition_indexes": (0,)},),
                },
            )
        },
        given=[(GROUP, O.DESCRIBE)],
    ),
    case(A.FIND_COORDINATOR, (GROUP, O.DESCRIBE), values={"key_type": 0, "coordinator_keys": ("crew",)}),
    case(A.FIND_COORDINATOR, (TXN, O.DESCRIBE), values={"key_type": 1, "coordinator_keys": ("till",)}),
    case(A.FIND_COORDINATOR, (GROUP, O.DESCRIBE), version=1, values={"key_type": 0, "key": "crew"}),
    case(A.JOIN_GROUP, (GROUP, O.READ), values=CREW),
    case(A.HEARTBEAT, (GROUP, O.READ), values=CREW),
    case(A.LEAVE_GROUP, (GROUP, O.READ), values=CREW),
    case(A.SYNC_GROUP, (GROUP, O.READ), values=CREW),
    case(A.DESCRIBE_GROUPS, (GROUP, O.DESCRIBE), values={"groups": ("crew",)}),
    case(A.CREATE_TOPICS, (CLUSTER, O.CREATE), values={"topics": (MAKE,), "validate_only": True}, code=CODES[TOPIC]),
    case(A.CREATE_TOPICS, (TOPIC, O.CREATE), values={"topics": ({**MAKE, "name": "orders"},), "validate_only": True}),
    case(
        A.DELETE_TOPICS,
        (CLUSTER, O.DELETE),
        version=3,
        values={"topic_names": ("__consumer_offsets",)},
        code=CODES[TOPIC],
    ),
    case(
        A.DELETE_TOPICS,
        (TOPIC, O.DELETE),
        version=1,
        values={"topic_names": ("orders",), "topics": ({"name": "orders", "topic_id": None},)},
    ),
    case(
        A.DELETE_RECORDS,
        (TOPIC, O.DELETE),
        values={"topics": ({"name": "orders", "partitions": ({**PARTITION, "offset": 0},)},)},
    ),
    case(A.INIT_PRODUCER_ID, (TXN, O.WRITE), values={**TILL, "producer_id": -1, "producer_epoch": -1}),
    case(
        A.INIT_PRODUCER_ID,
        (CLUSTER, O.IDEMPOTENT_WRITE),
        values={"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
    ),
    case(
        A.INIT_PRODUCER_ID,
        (TOPIC, O.WRITE),
        values={"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
        code=CODES[CLUSTER],
    ),
    case(
        A.OFFSET_FOR_LEADER_EPOCH,
        (TOPIC, O.DESCRIBE),
        values={"replica_id": -1, "topics": ({"topic": "orders", "partitions": (ASKED_OFFSETS,)},)},
    ),
    case(
        A.OFFSET_FOR_LEADER_EPOCH,
        (CLUSTER, O.CLUSTER_ACTION),
        values={"replica_id": 1, "topics": ({"topic": "orders", "partitions": (ASKED_OFFSETS,)},)},
        code=CODES[TOPIC],
    ),
    case(A.ADD_PARTITIONS_TO_TXN, (TXN, O.WRITE), version=3, values=ADDED, given=[(TOPIC, O.WRITE)]),
    case(A.ADD_PARTITIONS_TO_TXN, (TOPIC, O.WRITE), version=3, values=ADDED, given=[(TXN, O.WRITE)]),
    on_cluster(A.ADD_PARTITIONS_TO_TXN, O.CLUSTER_ACTION),
    case(A.ADD_OFFSETS_TO_TXN, (TXN, O.WRITE), values={**TILL, **CREW}, given=[(GROUP, O.READ)]),
    case(A.ADD_OFFSETS_TO_TXN, (GROUP, O.READ), values={**TILL, **CREW}, given=[(TXN, O.WRITE)]),
    case(A.END_TXN, (TXN, O.WRITE), values=TILL),
    case(
        A.TXN_OFFSET_COMMIT,
        (TXN, O.WRITE),
        values={**TILL, **CREW, **COMMIT},
        given=[(GROUP, O.READ), (TOPIC, O.READ)],
    ),
    case(
        A.TXN_OFFSET_COMMIT,
        (GROUP, O.READ),
        values={**TILL, **CREW, **COMMIT},
        given=[(TXN, O.WRITE), (TOPIC, O.READ)],
    ),
    case(
        A.TXN_OFFSET_COMMIT,
        (TOPIC, O.READ),
        values={**TILL, **CREW, **COMMIT},
        given=[(TXN, O.WRITE), (GROUP, O.READ)],
    ),
    on_cluster(
        A.DESCRIBE_ACLS,
        O.DESCRIBE,
        values={"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
    ),
    on_cluster(
        A.CREATE_ACLS,
        O.ALTER,
        values={
            "creations": (
                {
                    "resource_type": 2,
                    "resource_name": "",
                    "resource_pattern_type": 3,
                    "principal": ADA,
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                },
            )
        },
    ),
    on_cluster(
        A.DELETE_ACLS,
        O.ALTER,
        values={
            "filters": (
                {
                    "resource_type_filter": 2,
                    "resource_name_filter": "none",
                    "pattern_type_filter": 3,
                    "principal_filter": None,
                    "host_filter": None,
                    "operation": 3,
                    "permission_type": 3,
                },
            )
        },
    ),
    case(A.DESCRIBE_CONFIGS, (TOPIC, O.DESCRIBE_CONFIGS), values=resource(TOPIC)),
    case(A.DESCRIBE_CONFIGS, (CLUSTER, O.DESCRIBE_CONFIGS), values=resource(CLUSTER)),
    case(A.DESCRIBE_CONFIGS, (GROUP, O.DESCRIBE_CONFIGS), values=resource(GROUP)),
    case(A.ALTER_CONFIGS, (TOPIC, O.ALTER_CONFIGS), values={**resource(TOPIC), "validate_only": True}),
    case(A.ALTER_CONFIGS, (CLUSTER, O.ALTER_CONFIGS), values={**resource(CLUSTER), "validate_only": True}),
    case(A.ALTER_CONFIGS, (GROUP, O.ALTER_CONFIGS), values={**resource(GROUP), "validate_only": True}),
    case(A.INCREMENTAL_ALTER_CONFIGS, (TOPIC, O.ALTER_CONFIGS), values={**resource(TOPIC), "validate_only": True}),
    case(A.INCREMENTAL_ALTER_CONFIGS, (CLUSTER, O.ALTER_CONFIGS), values={**resource(CLUSTER), "validate_only": True}),
    case(A.INCREMENTAL_ALTER_CONFIGS, (GROUP, O.ALTER_CONFIGS), values={**resource(GROUP), "validate_only": True}),
    on_cluster(
        A.ALTER_REPLICA_LOG_DIRS,
        O.ALTER,
        values={"dirs": ({"path": "/none", "topics": ({"name": "orders", "partitions": (0,)},)},)},
    ),
    on_cluster(A.DESCRIBE_LOG_DIRS, O.DESCRIBE, values={"topics": None}),
    case(
        A.CREATE_PARTITIONS,
        (TOPIC, O.ALTER),
        values={"topics": ({"name": "orders", "count": 1, "assignments": None},), "validate_only": True},
    ),
    case(A.DELETE_GROUPS, (GROUP, O.DELETE), values={"groups_names": ("crew",)}),
    on_cluster(A.ELECT_LEADERS, O.ALTER, values={"topic_partitions": ({"topic": "orders", "partitions": (0,)},)}),
    on_cluster(A.ALTER_PARTITION_REASSIGNMENTS, O.ALTER),
    on_cluster(A.LIST_PARTITION_REASSIGNMENTS, O.DESCRIBE),
    case(A.OFFSET_DELETE, (GROUP, O.DELETE), values={**CREW, **NAMED}, given=[(TOPIC, O.READ)]),
    case(A.OFFSET_DELETE, (TOPIC, O.READ), values={**CREW, **NAMED}, given=[(GROUP, O.DELETE)]),
    on_cluster(A.DESCRIBE_CLIENT_QUOTAS, O.DESCRIBE_CONFIGS),
    on_cluster(
        A.ALTER_CLIENT_QUOTAS,
        O.ALTER_CONFIGS,
        values={"entries": ({"entity": ({"entity_type": "user", "entity_name": "ada"},), "ops": ()},)},
    ),
    on_cluster(A.DESCRIBE_USER_SCRAM_CREDENTIALS, O.DESCRIBE, values={"users": None}),
    on_cluster(A.ALTER_USER_SCRAM_CREDENTIALS, O.ALTER, values={"deletions": ({"name": "nobody", "mechanism": 1},)}),
    on_cluster(
        A.DESCRIBE_QUORUM,
        O.DESCRIBE,
        values={"topics": ({"topic_name": "__cluster_metadata", "partitions": (PARTITION,)},)},
    ),
    on_cluster(A.UPDATE_FEATURES, O.ALTER, values={"validate_only": True}),
    case(A.DESCRIBE_PRODUCERS, (TOPIC, O.READ), values={"topics": ({"name": "orders", "partition_indexes": (0,)},)}),
    on_cluster(A.UNREGISTER_BROKER, O.ALTER, values={"broker_id": 99}),
    case(A.DESCRIBE_TRANSACTIONS, (TXN, O.DESCRIBE), values={"transactional_ids": ("till",)}),
    case(
        A.CONSUMER_GROUP_HEARTBEAT,
        (GROUP, O.READ),
        values={**CREW, "member_epoch": 5, "member_id": "m", "subscribed_topic_names": None},
    ),
    case(
        A.CONSUMER_GROUP_HEARTBEAT,
        (TOPIC, O.DESCRIBE),
        values={**CREW, "member_epoch": 5, "member_id": "m", "subscribed_topic_names": ("orders",)},
        given=[(GROUP, O.READ)],
    ),
    case(A.CONSUMER_GROUP_DESCRIBE, (GROUP, O.DESCRIBE), values={"group_ids": ("crew",)}),
    on_cluster(A.LIST_CONFIG_RESOURCES, O.DESCRIBE_CONFIGS),
    case(
        A.DESCRIBE_TOPIC_PARTITIONS,
        (TOPIC, O.DESCRIBE),
        values={"topics": ({"name": "orders"},), "response_partition_limit": 10, "cursor": None},
    ),
    on_cluster(A.ADD_RAFT_VOTER, O.ALTER, values={"voter_id": 99, "cluster_id": "another"}),
    on_cluster(A.REMOVE_RAFT_VOTER, O.ALTER, values={"voter_id": 99, "cluster_id": "another"}),
    # What brokers ask each other. A handler would take a blank request seriously, so that it is looked at alone.
    on_cluster(
        A.WRITE_TXN_MARKERS,
        O.CLUSTER_ACTION,
        values={
            "markers": (
                {
                    "producer_id": 1,
                    "producer_epoch": 0,
                    "transaction_result": True,
                    "coordinator_epoch": 0,
                    "transaction_version": 0,
                    "topics": ({"name": "orders", "partition_indexes": (0,)},),
                },
            )
        },
    ),
    *(
        on_cluster(api, O.CLUSTER_ACTION)
        for api in (
            A.VOTE,
            A.BEGIN_QUORUM_EPOCH,
            A.END_QUORUM_EPOCH,
            A.ALTER_PARTITION,
            A.ENVELOPE,
            A.FETCH_SNAPSHOT,
            A.BROKER_REGISTRATION,
            A.BROKER_HEARTBEAT,
            A.ALLOCATE_PRODUCER_IDS,
            A.UPDATE_RAFT_VOTER,
        )
    ),
]
# Their answers hold less instead of an error: tests of their own show what.
FILTERED = {A.LIST_GROUPS, A.LIST_TRANSACTIONS, A.DESCRIBE_CLUSTER}
