"""The admin apis that no stock client reaches everywhere, asked in frames; and what an unserved api is answered."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

import log_broker
from log_broker.errors import ErrorCode
from log_broker.server.embedded import EmbeddedBroker
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import _UNSERVED_NAMES, description_of, read_response, write_request

TOPICS = {"a": 3, "b": 5, "c": 1}


class Asker:
    """One connection; every question is answered before the next."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._socket = socket.create_connection((broker.host, broker.port), timeout=30)

    def exchange(self, request: bytes | bytearray) -> memoryview:
        """Send a frame and return the answer from behind its correlation id."""
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", self._exactly(4))
        return memoryview(self._exactly(length))[4:]

    def ask(self, api: ApiKey, version: int, **values: Any) -> Any:
        return read_response(api, version, self.exchange(write_request(api, version, 1, "test", values)))

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with log_broker.embedded() as running:
        one = Asker(running)
        answer = one.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[
                {
                    "name": name,
                    "num_partitions": count,
                    "replication_factor": 1,
                    "assignments": (),
                    "configs": (),
                }
                for name, count in TOPICS.items()
            ],
            timeout=30_000,
            validate_only=False,
        )
        assert [topic.error_code for topic in answer.topics] == [0, 0, 0]
        one.close()
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Asker]:
    one = Asker(broker)
    yield one
    one.close()


def pages(client: Asker, names: list[str], limit: int) -> list[list[tuple[str, int]]]:
    """Follow the cursor to its end; return the partitions of each page."""
    found = []
    cursor: Any = None
    while True:
        answer = client.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append([(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions])
        if answer.next_cursor is None:
            return found
        cursor = {"topic_name": answer.next_cursor.topic_name, "partition_index": answer.next_cursor.partition_index}


ALL = [(name, index) for name, count in TOPICS.items() for index in range(count)]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 8, 9, 100])
@pytest.mark.parametrize("names", [[], ["c", "a", "b"]])
def test_partitions_come_in_pages_none_twice_and_none_left_out(client: Asker, names: list[str], limit: int) -> None:
    found = pages(client, names, limit)
    assert [place for page in found for place in page] == ALL
    assert all(len(page) == limit for page in found[:-1])


def test_an_unknown_topic_has_its_error_and_takes_no_room(client: Asker) -> None:
    answer = client.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": name} for name in ("aa", "a b", "c")],
        response_partition_limit=1,
        cursor=None,
    )
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("aa", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("c", ErrorCode.NONE),
    ]


def test_topics_that_are_only_validated_are_not_there(client: Asker) -> None:
    wanted = {"assignments": (), "configs": [{"name": "retention.ms", "value": "5"}]}
    answer = client.ask(
        ApiKey.CREATE_TOPICS,
        7,
        topics=[
            {"name": "only-checked", "num_partitions": 4, "replication_factor": -1, **wanted},
            {"name": "too many", "num_partitions": 4, "replication_factor": 1, **wanted},
        ],
        timeout=30_000,
        validate_only=True,
    )
    good, bad = answer.topics
    assert (good.error_code, good.num_partitions, good.replication_factor, good.topic_id) == (0, 4, 1, None)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    answer = client.ask(ApiKey.METADATA, 7, topics=None, allow_auto_topic_creation=False)
    assert {topic.name for topic in answer.topics} == TOPICS.keys()


def test_a_topic_is_made_as_assigned_and_deleted_by_its_id(client: Asker) -> None:
    def create(name: str, *assigned: tuple[int, list[int]]) -> Any:
        assignments = [{"partition_index": index, "broker_ids": brokers} for index, brokers in assigned]
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assignments,
            "configs": (),
        }
        return client.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=30_000, validate_only=False).topics[0]

    made = create("assigned", (1, [0]), (0, [0]))
    assert (made.error_code, made.num_partitions) == (0, 2)
    assert create("gap", (0, [0]), (2, [0])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert create("stranger", (0, [7])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    answer = client.ask(
        ApiKey.CREATE_PARTITIONS,
        3,
        topics=[{"name": "assigned", "count": 3, "assignments": [{"broker_ids": [0]}]}],
        timeout=30_000,
        validate_only=True,
    )
    assert answer.results[0].error_code == 0
    for nameless in (None, ""):  # the Java client writes the second
        wanted = {"topic_id": made.topic_id, "name": nameless}
        flags = {"include_topic_authorized_operations": False, "allow_auto_topic_creation": False}
        answer = client.ask(ApiKey.METADATA, 12, topics=[wanted], **flags)
        assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("assigned", 2)]
    gone = client.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": made.topic_id}], timeout=30_000)
    assert (gone.responses[0].name, gone.responses[0].error_code) == ("assigned", 0)
    gone = client.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": made.topic_id}], timeout=30_000)
    assert gone.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_partitions_stay_where_they_are(client: Asker) -> None:
    wanted = [(0, [0]), (1, None), (2, [0, 1]), (3, [0])]
    answer = client.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        timeout=1000,
        topics=[
            {"name": "a", "partitions": [{"partition_index": at, "replicas": brokers} for at, brokers in wanted]},
        ],
    )
    assert [each.error_code for each in answer.responses[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None).topics == ()


def test_replicas_stay_in_the_one_log_directory(client: Asker, broker: EmbeddedBroker) -> None:
    def alter(path: str, partition: int) -> int:
        directory = {"path": path, "topics": [{"name": "a", "partitions": [partition]}]}
        answer = client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, dirs=[directory])
        return int(answer.results[0].partitions[0].error_code)

    described = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None).results[0]
    assert described.log_dir == str(broker.data_dir.absolute())
    assert 0 < described.usable_bytes <= described.total_bytes
    assert {topic.name: len(topic.partitions) for topic in described.topics} == TOPICS
    assert alter(described.log_dir, 0) == ErrorCode.NONE
    assert alter("/elsewhere", 0) == ErrorCode.LOG_DIR_NOT_FOUND
    assert alter(described.log_dir, 9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_election_is_never_needed(client: Asker) -> None:
    def elect(kind: int, *partitions: int) -> Any:
        topics = [{"topic": "a", "partitions": partitions}] if partitions else None
        return client.ask(ApiKey.ELECT_LEADERS, 2, election_type=kind, topic_partitions=topics, timeout=1000)

    for kind in (0, 1):
        (topic,) = elect(kind, 0, 7).replica_election_results
        assert [each.error_code for each in topic.partition_result] == [
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert elect(kind).replica_election_results == ()
    assert elect(5, 0).error_code == ErrorCode.INVALID_REQUEST


def test_only_brokers_are_described_here(client: Asker) -> None:
    def describe(kind: int) -> Any:
        return client.ask(
            ApiKey.DESCRIBE_CLUSTER,
            2,
            include_cluster_authorized_operations=True,
            endpoint_type=kind,
            include_fenced_brokers=True,
        )

    answer = describe(1)
    assert [(each.broker_id, each.is_fenced) for each in answer.brokers] == [(0, False)]
    assert describe(2).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert describe(7).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


def asked_about_quorum(client: Asker, *partitions: int) -> Any:
    topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": index} for index in partitions]}
    return client.ask(ApiKey.DESCRIBE_QUORUM, 2, topics=[topic])


def test_the_quorum_is_the_controller(client: Asker) -> None:
    answer = asked_about_quorum(client, 0)
    (quorum,) = answer.topics[0].partitions
    assert (quorum.error_code, quorum.leader_id) == (ErrorCode.NONE, 0)
    assert [voter.replica_id for voter in quorum.current_voters] == [0]
    assert quorum.current_voters[0].log_end_offset == quorum.high_watermark > 0
    assert [node.node_id for node in answer.nodes] == [0]


@pytest.mark.parametrize("partitions", [(1,), (0, 1), (0, 0)])
def test_of_the_quorum_one_partition_is_described_by_itself(client: Asker, partitions: tuple[int, ...]) -> None:
    answer = asked_about_quorum(client, *partitions)
    errors = [partition.error_code for partition in answer.topics[0].partitions]
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(partitions)


@pytest.mark.parametrize("version", [1, 2])
def test_a_feature_level_that_is_not_supported_is_refused(client: Asker, version: int) -> None:
    update = {"feature": "metadata.version", "max_version_level": 1}
    answer = client.ask(ApiKey.UPDATE_FEATURES, version, feature_updates=[update], validate_only=False)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "metadata.version" in answer.error_message


def test_a_broker_that_runs_is_not_struck_off(client: Asker) -> None:
    assert client.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=0).error_code == ErrorCode.INVALID_REQUEST
    assert client.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=5).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_resources_with_configs_are_listed(client: Asker) -> None:
    answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=())
    found = {(each.resource_type, each.resource_name) for each in answer.config_resources}
    assert {(2, name) for name in TOPICS} | {(4, "0")} <= found
    answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[4])
    assert [each.resource_name for each in answer.config_resources] == ["0"]
    assert client.ask(ApiKey.LIST_CONFIG_RESOURCES, 0).config_resources == ()
    assert client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[3]).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_quotas_are_none_and_cannot_be_set(client: Asker) -> None:
    def described(*types: str) -> Any:
        filters = [{"entity_type": kind, "match_type": 2, "match": None} for kind in types]
        return client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=filters, strict=False)

    assert (described("user").error_code, described("user").entries) == (ErrorCode.NONE, ())
    assert described("user", "user").error_code == ErrorCode.INVALID_REQUEST
    assert described("").error_code == ErrorCode.INVALID_REQUEST
    assert described("colour").error_code == ErrorCode.UNSUPPORTED_VERSION
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "me"}],
        "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
    }
    answer = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
    assert [each.error_code for each in answer.entries] == [ErrorCode.UNSUPPORTED_VERSION]
    assert answer.entries[0].entity[0].entity_name == "me"


def test_credentials_are_kept_whether_or_not_anybody_signs_in(client: Asker) -> None:
    assert client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None).results == ()
    answer = client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=[{"name": "me"}])
    assert answer.results[0].error_code == ErrorCode.RESOURCE_NOT_FOUND
    answer = client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=[{"name": "me"}, {"name": "me"}])
    assert [each.error_code for each in answer.results] == [ErrorCode.DUPLICATE_RESOURCE]
    secret = {"name": "me", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p"}
    answer = client.ask(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[{"name": "you", "mechanism": 1}], upsertions=[secret]
    )
    assert {each.user: each.error_code for each in answer.results} == {
        "you": ErrorCode.RESOURCE_NOT_FOUND,
        "me": ErrorCode.NONE,
    }
    (me,) = client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None).results
    assert [(each.mechanism, each.iterations) for each in me.credential_infos] == [(1, 4096)]
    answer = client.ask(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[{"name": "me", "mechanism": 1}], upsertions=()
    )
    assert [(each.user, each.error_code) for each in answer.results] == [("me", ErrorCode.NONE)]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rules_are_refused_as_without_an_authorizer(client: Asker, version: int) -> None:
    rule = {
        "resource_type": 2,
        "resource_name": "a",
        "principal": "User:me",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    answer = client.ask(ApiKey.CREATE_ACLS, version, creations=[rule, rule])
    assert [each.error_code for each in answer.results] == [ErrorCode.SECURITY_DISABLED] * 2
    match = {"resource_type_filter": 1, "resource_name_filter": None, "principal_filter": None, "host_filter": None}
    match |= {"operation": 1, "permission_type": 1}
    assert client.ask(ApiKey.DESCRIBE_ACLS, version, **match).error_code == ErrorCode.SECURITY_DISABLED
    answer = client.ask(ApiKey.DELETE_ACLS, version, filters=[match])
    assert [each.error_code for each in answer.filter_results] == [ErrorCode.SECURITY_DISABLED]


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(key, 0) for key in sorted(_UNSERVED_NAMES)]
    + [(api.key, api.version_max + 1) for api in APIS.values() if api.key != ApiKey.API_VERSIONS]
    + [(73, 0), (500, 0), (-3, 2)],
)
def test_what_is_not_served_is_answered_with_an_error_and_the_connection_stays(
    client: Asker, api_key: int, version: int
) -> None:
    answer = client.exchange(struct.pack(">hhih", api_key, version, 1, -1) + b"\0" * 40)
    try:
        description_of(api_key, version, "response")
    except (ModuleNotFoundError, KeyError):
        assert answer == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
    else:
        values = read_response(api_key, version, answer)
        assert getattr(values, "error_code", ErrorCode.UNSUPPORTED_VERSION) == ErrorCode.UNSUPPORTED_VERSION
    assert client.ask(ApiKey.LIST_GROUPS, 0).error_code == ErrorCode.NONE


def test_telemetry_is_not_offered_so_that_clients_do_not_ask(client: Asker) -> None:
    answer = client.ask(ApiKey.API_VERSIONS, 4, client_software_name="t", client_software_version="1")
    assert {71, 72}.isdisjoint(entry.api_key for entry in answer.api_keys)
