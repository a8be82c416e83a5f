"""
The one table of supported apis: what ApiVersions advertises is what has a handler, and the other way round.

Versions are those that librdkafka, the Java client, Spark's source, aiokafka, kafka-python, franz-go, KafkaJS and kcat
were seen to agree with; extend, never shrink. Produce is advertised from 0 because librdkafka 2.0 otherwise sends
uncompressed without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from log_broker.core.security.acls import Operation, ResourceType
from log_broker.wire.rights import NOTHING, AskedRights, inside, on_cluster, on_each, on_field

# Elements of arrays in one request of a client: some 3 µs of the event loop each, so that it is some ten milliseconds.
REQUEST_ELEMENTS_MAX = 10_000


class ApiKey(IntEnum):
    """Kafka's api keys, of those that are served."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """
    One api: its versions, both ends included, and the first with compact lengths and tagged fields.

    `flexible_from` lies above `version_max` when no supported version is flexible. Only brokers call an `inter_broker`
    api: it is served but not advertised. `elements_max` are all elements of the arrays of one request together.
    `handler` is the module that handles it, within `server/handlers`. `rights` are all asked for where a request has
    what they are about, save that of several on a cluster and on single resources the one on the cluster is enough.
    """

    key: ApiKey
    version_min: int
    version_max: int
    flexible_from: int
    handler: str
    rights: AskedRights
    inter_broker: bool = False
    elements_max: int = REQUEST_ELEMENTS_MAX

    def supports(self, version: int) -> bool:
        return self.version_min <= version <= self.version_max


_NEVER = 1 << 15
_ELEMENTS_MAX = {
    # Brokers name all partitions that another one leads, or that they lead themselves.
    ApiKey.FETCH: 50_000,
    ApiKey.ALTER_PARTITION: 25_000,  # 2,000 partitions, each with a topic and an ISR of its own
    ApiKey.WRITE_TXN_MARKERS: 40_000,  # 10,000 partitions, each of a topic and a transaction of its own
    # Tools name all partitions of a cluster, each with its replicas.
    ApiKey.CREATE_TOPICS: 50_000,
    ApiKey.CREATE_PARTITIONS: 50_000,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 30_000,
    ApiKey.ELECT_LEADERS: 50_000,
    ApiKey.LIST_OFFSETS: 20_000,
    ApiKey.PRODUCE: 8_000,
}


def _api(
    key: ApiKey,
    versions: tuple[int, int],
    flexible_from: int,
    handler: str,
    rights: AskedRights,
    *,
    inter_broker: bool = False,
) -> Api:
    return Api(
        key=key,
        version_min=versions[0],
        version_max=versions[1],
        flexible_from=flexible_from,
        handler=handler,
        rights=rights,
        inter_broker=inter_broker,
        elements_max=_ELEMENTS_MAX.get(key, REQUEST_ELEMENTS_MAX),
    )


CLUSTER, GROUP, TOPIC, TXN = (
    ResourceType.CLUSTER,
    ResourceType.GROUP,
    ResourceType.TOPIC,
    ResourceType.TRANSACTIONAL_ID,
)
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (
    operation for operation in Operation if Operation.READ <= operation <= Operation.IDEMPOTENT_WRITE
)

APIS: Mapping[int, Api] = {
    api.key: api
    for api in (
        _api(ApiKey.PRODUCE, (0, 12), 9, "data.produce", (inside(TXN, WRITE), inside(TOPIC, WRITE))),
        _api(ApiKey.FETCH, (4, 18), 12, "data.fetch", (inside(CLUSTER, CLUSTER_ACTION), inside(TOPIC, READ))),
        _api(ApiKey.LIST_OFFSETS, (1, 10), 6, "data.list_offsets", (inside(TOPIC, DESCRIBE),)),
        _api(ApiKey.METADATA, (0, 12), 9, "admin.metadata", (inside(TOPIC, DESCRIBE), inside(TOPIC, CREATE))),
        _api(
            ApiKey.OFFSET_COMMIT,
            (2, 9),
            8,
            "groups.offset_commit",
            (on_field(GROUP, READ, "group_id"), on_each(TOPIC, READ, "topics.name")),
        ),
        _api(ApiKey.OFFSET_FETCH, (1, 9), 6, "groups.offset_fetch", (inside(GROUP, DESCRIBE), inside(TOPIC, DESCRIBE))),
        _api(
            ApiKey.FIND_COORDINATOR,
            (0, 5),
            3,
            "groups.find_coordinator",
            (inside(GROUP, DESCRIBE), inside(TXN, DESCRIBE)),
        ),
        _api(ApiKey.JOIN_GROUP, (0, 9), 6, "groups.join_group", (on_field(GROUP, READ, "group_id"),)),
        _api(ApiKey.HEARTBEAT, (0, 4), 4, "groups.heartbeat", (on_field(GROUP, READ, "group_id"),)),
        _api(ApiKey.LEAVE_GROUP, (0, 5), 4, "groups.leave_group", (on_field(GROUP, READ, "group_id"),)),
        _api(ApiKey.SYNC_GROUP, (0, 5), 4, "groups.sync_group", (on_field(GROUP, READ, "group_id"),)),
        _api(ApiKey.DESCRIBE_GROUPS, (0, 5), 5, "groups.describe_groups", (on_each(GROUP, DESCRIBE, "groups"),)),
        _api(ApiKey.LIST_GROUPS, (0, 5), 3, "groups.list_groups", (inside(CLUSTER, DESCRIBE), inside(GROUP, DESCRIBE))),
        _api(ApiKey.SASL_HANDSHAKE, (0, 1), _NEVER, "admin.sasl_handshake", NOTHING),
        _api(ApiKey.API_VERSIONS, (0, 4), 3, "admin.api_versions", NOTHING),
        _api(ApiKey.CREATE_TOPICS, (2, 7), 5, "admin.create_topics", (inside(CLUSTER, CREATE), inside(TOPIC, CREATE))),
        _api(ApiKey.DELETE_TOPICS, (1, 6), 4, "admin.delete_topics", (inside(CLUSTER, DELETE), inside(TOPIC, DELETE))),
        _api(ApiKey.DELETE_RECORDS, (0, 2), 2, "data.delete_records", (on_each(TOPIC, DELETE, "topics.name"),)),
        _api(
            ApiKey.INIT_PRODUCER_ID,
            (0, 5),
            2,
            "transactions.init_producer_id",
            (inside(TXN, WRITE), inside(CLUSTER, IDEMPOTENT_WRITE), inside(TOPIC, WRITE)),
        ),
        _api(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            (2, 4),
            4,
            "data.offset_for_leader_epoch",
            (inside(CLUSTER, CLUSTER_ACTION), inside(TOPIC, DESCRIBE)),
        ),
        _api(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            (0, 5),
            3,
            "transactions.add_partitions_to_txn",
            (inside(CLUSTER, CLUSTER_ACTION), inside(TXN, WRITE), inside(TOPIC, WRITE)),
        ),
        _api(
            ApiKey.ADD_OFFSETS_TO_TXN,
            (0, 4),
            3,
            "transactions.add_offsets_to_txn",
            (on_field(TXN, WRITE, "transactional_id"), on_field(GROUP, READ, "group_id")),
        ),
        _api(ApiKey.END_TXN, (0, 5), 3, "transactions.end_txn", (on_field(TXN, WRITE, "transactional_id"),)),
        _api(
            ApiKey.WRITE_TXN_MARKERS, (1, 2), 1, "transactions.write_txn_markers", (on_cluster(CLUSTER_ACTION, ALTER),)
        ),
        _api(
            ApiKey.TXN_OFFSET_COMMIT,
            (0, 5),
            3,
            "transactions.txn_offset_commit",
            (
                on_field(TXN, WRITE, "transactional_id"),
                on_field(GROUP, READ, "group_id"),
                on_each(TOPIC, READ, "topics.name"),
            ),
        ),
        _api(ApiKey.DESCRIBE_ACLS, (1, 3), 2, "admin.describe_acls", (on_cluster(DESCRIBE),)),
        _api(ApiKey.CREATE_ACLS, (1, 3), 2, "admin.create_acls", (on_cluster(ALTER),)),
        _api(ApiKey.DELETE_ACLS, (1, 3), 2, "admin.delete_acls", (on_cluster(ALTER),)),
        _api(
            ApiKey.DESCRIBE_CONFIGS,
            (1, 4),
            4,
            "admin.describe_configs",
            (inside(TOPIC, DESCRIBE_CONFIGS), inside(GROUP, DESCRIBE_CONFIGS), inside(CLUSTER, DESCRIBE_CONFIGS)),
        ),
        _api(
            ApiKey.ALTER_CONFIGS,
            (0, 2),
            2,
            "admin.alter_configs",
            (inside(TOPIC, ALTER_CONFIGS), inside(GROUP, ALTER_CONFIGS), inside(CLUSTER, ALTER_CONFIGS)),
        ),
        _api(ApiKey.ALTER_REPLICA_LOG_DIRS, (1, 2), 2, "admin.alter_replica_log_dirs", (on_cluster(ALTER),)),
        _api(ApiKey.DESCRIBE_LOG_DIRS, (1, 4), 2, "admin.describe_log_dirs", (on_cluster(DESCRIBE),)),
        _api(ApiKey.SASL_AUTHENTICATE, (0, 2), 2, "admin.sasl_authenticate", NOTHING),
        _api(ApiKey.CREATE_PARTITIONS, (0, 3), 2, "admin.create_partitions", (on_each(TOPIC, ALTER, "topics.name"),)),
        _api(ApiKey.DELETE_GROUPS, (0, 2), 2, "groups.delete_groups", (on_each(GROUP, DELETE, "groups_names"),)),
        _api(ApiKey.ELECT_LEADERS, (0, 2), 2, "admin.elect_leaders", (on_cluster(ALTER),)),
        _api(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            (0, 1),
            1,
            "admin.incremental_alter_configs",
            (inside(TOPIC, ALTER_CONFIGS), inside(GROUP, ALTER_CONFIGS), inside(CLUSTER, ALTER_CONFIGS)),
        ),
        _api(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), 0, "admin.alter_partition_reassignments", (on_cluster(ALTER),)
        ),
        _api(
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            (0, 0),
            0,
            "admin.list_partition_reassignments",
            (on_cluster(DESCRIBE),),
        ),
        _api(
            ApiKey.OFFSET_DELETE,
            (0, 0),
            _NEVER,
            "groups.offset_delete",
            (on_field(GROUP, DELETE, "group_id"), on_each(TOPIC, READ, "topics.name")),
        ),
        _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), 1, "admin.describe_client_quotas", (on_cluster(DESCRIBE_CONFIGS),)),
        _api(ApiKey.ALTER_CLIENT_QUOTAS, (0, 1), 1, "admin.alter_client_quotas", (on_cluster(ALTER_CONFIGS),)),
        _api(
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            (0, 0),
            0,
            "admin.describe_user_scram_credentials",
            (on_cluster(DESCRIBE),),
        ),
        _api(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), 0, "admin.alter_user_scram_credentials", (on_cluster(ALTER),)
        ),
        _api(ApiKey.VOTE, (2, 2), 0, "quorum.vote", (on_cluster(CLUSTER_ACTION),), inter_broker=True),
        _api(
            ApiKey.BEGIN_QUORUM_EPOCH,
            (1, 1),
            1,
            "quorum.begin_quorum_epoch",
            (on_cluster(CLUSTER_ACTION),),
            inter_broker=True,
        ),
        _api(
            ApiKey.END_QUORUM_EPOCH,
            (1, 1),
            1,
            "quorum.end_quorum_epoch",
            (on_cluster(CLUSTER_ACTION),),
            inter_broker=True,
        ),
        _api(ApiKey.DESCRIBE_QUORUM, (0, 2), 0, "quorum.describe_quorum", (on_cluster(DESCRIBE),)),
        _api(
            ApiKey.ALTER_PARTITION,
            (2, 3),
            0,
            "quorum.alter_partition",
            (on_cluster(CLUSTER_ACTION),),
            inter_broker=True,
        ),
        _api(ApiKey.UPDATE_FEATURES, (0, 2), 0, "admin.update_features", (on_cluster(ALTER),)),
        _api(ApiKey.ENVELOPE, (0, 0), 0, "quorum.envelope", (on_cluster(CLUSTER_ACTION),), inter_broker=True),
        _api(
            ApiKey.FETCH_SNAPSHOT, (1, 1), 0, "quorum.fetch_snapshot", (on_cluster(CLUSTER_ACTION),), inter_broker=True
        ),
        _api(ApiKey.DESCRIBE_CLUSTER, (0, 2), 0, "admin.describe_cluster", (inside(CLUSTER, DESCRIBE),)),
        _api(ApiKey.DESCRIBE_PRODUCERS, (0, 0), 0, "data.describe_producers", (on_each(TOPIC, READ, "topics.name"),)),
        _api(
            ApiKey.BROKER_REGISTRATION,
            (0, 4),
            0,
            "quorum.broker_registration",
            (on_cluster(CLUSTER_ACTION),),
            inter_broker=True,
        ),
        _api(
            ApiKey.BROKER_HEARTBEAT,
            (0, 1),
            0,
            "quorum.broker_heartbeat",
            (on_cluster(CLUSTER_ACTION),),
            inter_broker=True,
        ),
        _api(ApiKey.UNREGISTER_BROKER, (0, 0), 0, "quorum.unregister_broker", (on_cluster(ALTER),)),
        _api(
            ApiKey.DESCRIBE_TRANSACTIONS,
            (0, 0),
            0,
            "transactions.describe_transactions",
            (on_each(TXN, DESCRIBE, "transactional_ids"), inside(TOPIC, DESCRIBE)),
        ),
        _api(ApiKey.LIST_TRANSACTIONS, (0, 2), 0, "transactions.list_transactions", (inside(TXN, DESCRIBE),)),
        _api(
            ApiKey.ALLOCATE_PRODUCER_IDS,
            (0, 0),
            0,
            "transactions.allocate_producer_ids",
            (on_cluster(CLUSTER_ACTION),),
            inter_broker=True,
        ),
        _api(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            (0, 1),
            0,
            "groups.consumer_group_heartbeat",
            (on_field(GROUP, READ, "group_id"), inside(TOPIC, DESCRIBE)),
        ),
        _api(
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            (0, 1),
            0,
            "groups.consumer_group_describe",
            (on_each(GROUP, DESCRIBE, "group_ids"), inside(TOPIC, DESCRIBE)),
        ),
        _api(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), 0, "admin.list_config_resources", (on_cluster(DESCRIBE_CONFIGS),)),
        _api(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), 0, "admin.describe_topic_partitions", (inside(TOPIC, DESCRIBE),)
        ),
        _api(ApiKey.SHARE_GROUP_HEARTBEAT, (1, 1), 0, "groups.share_group_heartbeat", NOTHING),
        _api(ApiKey.ADD_RAFT_VOTER, (0, 1), 0, "quorum.add_raft_voter", (on_cluster(ALTER),)),
        _api(ApiKey.REMOVE_RAFT_VOTER, (0, 0), 0, "quorum.remove_raft_voter", (on_cluster(ALTER),)),
        _api(
            ApiKey.UPDATE_RAFT_VOTER,
            (0, 0),
            0,
            "quorum.update_raft_voter",
            (on_cluster(CLUSTER_ACTION),),
            inter_broker=True,
        ),
    )
}
