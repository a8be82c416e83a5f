"""
The one table of supported apis: what ApiVersions advertises is what has a handler, and the other way round.

Versions are those that librdkafka, the Java client, Spark's source, aiokafka, kafka-python, franz-go, KafkaJS and kcat
were seen to agree with; extend, never shrink. Produce is advertised from 0 because librdkafka 2.0 otherwise sends
uncompressed without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

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
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """
    One api: its versions, both ends included, and the first with compact lengths and tagged fields.

    `flexible_from` lies above `version_max` when no supported version is flexible. Only brokers call an `inter_broker`
    api: it is served but not advertised. `elements_max` are all elements of the arrays of one request together.
    """

    key: ApiKey
    version_min: int
    version_max: int
    flexible_from: int
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


def _api(key: ApiKey, versions: tuple[int, int], flexible_from: int, *, inter_broker: bool = False) -> Api:
    return Api(
        key=key,
        version_min=versions[0],
        version_max=versions[1],
        flexible_from=flexible_from,
        inter_broker=inter_broker,
        elements_max=_ELEMENTS_MAX.get(key, REQUEST_ELEMENTS_MAX),
    )


APIS: Mapping[int, Api] = {
    api.key: api
    for api in (
        _api(ApiKey.PRODUCE, (0, 12), 9),
        _api(ApiKey.FETCH, (4, 18), 12),
        _api(ApiKey.LIST_OFFSETS, (1, 10), 6),
        _api(ApiKey.METADATA, (0, 12), 9),
        _api(ApiKey.OFFSET_COMMIT, (2, 9), 8),
        _api(ApiKey.OFFSET_FETCH, (1, 9), 6),
        _api(ApiKey.FIND_COORDINATOR, (0, 5), 3),
        _api(ApiKey.JOIN_GROUP, (0, 9), 6),
        _api(ApiKey.HEARTBEAT, (0, 4), 4),
        _api(ApiKey.LEAVE_GROUP, (0, 5), 4),
        _api(ApiKey.SYNC_GROUP, (0, 5), 4),
        _api(ApiKey.DESCRIBE_GROUPS, (0, 5), 5),
        _api(ApiKey.LIST_GROUPS, (0, 5), 3),
        _api(ApiKey.API_VERSIONS, (0, 4), 3),
        _api(ApiKey.CREATE_TOPICS, (2, 7), 5),
        _api(ApiKey.DELETE_TOPICS, (1, 6), 4),
        _api(ApiKey.DELETE_RECORDS, (0, 2), 2),
        _api(ApiKey.INIT_PRODUCER_ID, (0, 5), 2),
        _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), 4),
        _api(ApiKey.ADD_PARTITIONS_TO_TXN, (0, 5), 3),
        _api(ApiKey.ADD_OFFSETS_TO_TXN, (0, 4), 3),
        _api(ApiKey.END_TXN, (0, 5), 3),
        _api(ApiKey.WRITE_TXN_MARKERS, (1, 2), 1),
        _api(ApiKey.TXN_OFFSET_COMMIT, (0, 5), 3),
        _api(ApiKey.DESCRIBE_ACLS, (1, 3), 2),
        _api(ApiKey.CREATE_ACLS, (1, 3), 2),
        _api(ApiKey.DELETE_ACLS, (1, 3), 2),
        _api(ApiKey.DESCRIBE_CONFIGS, (1, 4), 4),
        _api(ApiKey.ALTER_CONFIGS, (0, 2), 2),
        _api(ApiKey.ALTER_REPLICA_LOG_DIRS, (1, 2), 2),
        _api(ApiKey.DESCRIBE_LOG_DIRS, (1, 4), 2),
        _api(ApiKey.CREATE_PARTITIONS, (0, 3), 2),
        _api(ApiKey.DELETE_GROUPS, (0, 2), 2),
        _api(ApiKey.ELECT_LEADERS, (0, 2), 2),
        _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), 1),
        _api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), 0),
        _api(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), 0),
        _api(ApiKey.OFFSET_DELETE, (0, 0), _NEVER),
        _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), 1),
        _api(ApiKey.ALTER_CLIENT_QUOTAS, (0, 1), 1),
        _api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), 0),
        _api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), 0),
        _api(ApiKey.VOTE, (2, 2), 0, inter_broker=True),
        _api(ApiKey.BEGIN_QUORUM_EPOCH, (1, 1), 1, inter_broker=True),
        _api(ApiKey.END_QUORUM_EPOCH, (1, 1), 1, inter_broker=True),
        _api(ApiKey.DESCRIBE_QUORUM, (0, 2), 0),
        _api(ApiKey.ALTER_PARTITION, (2, 3), 0, inter_broker=True),
        _api(ApiKey.UPDATE_FEATURES, (0, 2), 0),
        _api(ApiKey.ENVELOPE, (0, 0), 0, inter_broker=True),
        _api(ApiKey.FETCH_SNAPSHOT, (1, 1), 0, inter_broker=True),
        _api(ApiKey.DESCRIBE_CLUSTER, (0, 2), 0),
        _api(ApiKey.DESCRIBE_PRODUCERS, (0, 0), 0),
        _api(ApiKey.BROKER_REGISTRATION, (0, 4), 0, inter_broker=True),
        _api(ApiKey.BROKER_HEARTBEAT, (0, 1), 0, inter_broker=True),
        _api(ApiKey.UNREGISTER_BROKER, (0, 0), 0),
        _api(ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), 0),
        _api(ApiKey.LIST_TRANSACTIONS, (0, 2), 0),
        _api(ApiKey.ALLOCATE_PRODUCER_IDS, (0, 0), 0, inter_broker=True),
        _api(ApiKey.CONSUMER_GROUP_HEARTBEAT, (0, 1), 0),
        _api(ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), 0),
        _api(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), 0),
        _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), 0),
        _api(ApiKey.ADD_RAFT_VOTER, (0, 1), 0),
        _api(ApiKey.REMOVE_RAFT_VOTER, (0, 0), 0),
        _api(ApiKey.UPDATE_RAFT_VOTER, (0, 0), 0, inter_broker=True),
    )
}
