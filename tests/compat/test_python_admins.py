"""What the admin clients of kafka-python and librdkafka can ask beyond topics, configs and groups."""

import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from compat_cluster import BROKERS, COPIES
from confluent_kafka import ElectionType, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from secured import SECURE, kafka_python, librdkafka

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that the standard library is about to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as Place
    from kafka.errors import (
        ElectionNotNeededError,
        InvalidReplicationAssignmentError,
        InvalidUpdateVersionError,
        NoReassignmentInProgressError,
        SecurityDisabledError,
    )

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def python_admin(broker: Any) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(**kafka_python(broker.bootstrap_servers))
    yield client
    client.close()


@pytest.fixture
def topic(python_admin: KafkaAdminClient) -> str:
    made = name("admins")
    python_admin.create_topics({made: {"num_partitions": 3, "replication_factor": COPIES}})
    return made


def test_kafka_python_describes_topics_in_pages(python_admin: KafkaAdminClient, topic: str) -> None:
    page = python_admin.describe_topic_partitions([topic], response_partition_limit=2)
    assert [len(each["partitions"]) for each in page["topics"]] == [2]
    assert (page["next_cursor"]["topic_name"], page["next_cursor"]["partition_index"]) == (topic, 2)


def test_kafka_python_describes_the_cluster(python_admin: KafkaAdminClient, topic: str) -> None:
    described = python_admin.describe_log_dirs({topic: [1]})
    assert len(described) == BROKERS
    for (directory,) in (each["log_dirs"] for each in described):
        assert [each["name"] for each in directory["topics"]] == [topic]
        assert 0 < directory["usable_bytes"] <= directory["total_bytes"]
    (metadata,) = python_admin.describe_metadata_quorum()["topics"]
    assert metadata["partitions"][0]["leader_id"] in range(BROKERS)
    resources = python_admin.list_config_resources()
    assert topic in resources["topic"]
    assert sorted(resources["broker"]) == [str(number) for number in range(BROKERS)]
    with pytest.raises(InvalidUpdateVersionError):
        python_admin.update_features({"metadata.version": (1, 1)})


def test_kafka_python_moves_nothing(python_admin: KafkaAdminClient, topic: str) -> None:
    elected = python_admin.elect_leaders(0, {topic: [0, 1, 2]}).replica_election_results
    assert [each.error_code for each in elected[0].partition_result] == [ElectionNotNeededError.errno] * 3
    answers = python_admin.alter_partition_reassignments(
        {Place(topic, 0): list(range(COPIES)), Place(topic, 1): [5], Place(topic, 2): None}
    )
    assert [answers[Place(topic, index)] for index in range(3)] == [
        None,
        InvalidReplicationAssignmentError,
        NoReassignmentInProgressError,
    ]
    assert python_admin.list_partition_reassignments() == {}


def test_kafka_python_resets_and_deletes_group_offsets(python_admin: KafkaAdminClient, topic: str) -> None:
    from kafka.structs import OffsetAndMetadata

    group = name("group")
    python_admin.alter_group_offsets(
        group, {Place(topic, index): OffsetAndMetadata(0, "kept", -1) for index in range(2)}
    )
    listed = {each["group_id"]: each for each in python_admin.list_groups(states_filter=["Empty"])}
    assert listed[group]["group_state"] == "Empty"
    assert group not in {each["group_id"] for each in python_admin.list_groups(states_filter=["Stable"])}
    python_admin.delete_group_offsets(group, [Place(topic, 1)])
    assert python_admin.delete_groups([group])[group] == "OK"


@pytest.mark.skipif(SECURE, reason="it is about brokers without an authorizer")
def test_librdkafka_is_told_that_there_is_no_authorizer_and_keeps_users(
    broker: Any, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    rule = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:me",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    for futures in (admin.create_acls([rule]), admin.delete_acls([every])):
        with pytest.raises(KafkaException, match="SECURITY_DISABLED"):
            next(iter(futures.values())).result(30)
    user = name("user")
    kept = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, kept, b"secret")])[user].result(30)

    def told() -> list[tuple[Any, int]]:
        found = admin.describe_user_scram_credentials().result(30).get(user)
        return [] if found is None else [(each.mechanism, each.iterations) for each in found.scram_credential_infos]

    # Of several brokers one may be asked that has not replayed the change yet.
    eventually(lambda: told() == [(kept.mechanism, kept.iterations)])
    gone = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([gone])[user].result(30)
    eventually(lambda: told() == [])


def test_librdkafka_describes_elects_and_lists(broker: Any) -> None:
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    topic = name("rdkafka")
    admin.create_topics([NewTopic(topic, 2, replica_assignment=[[0], [0]])])[topic].result(30)
    cluster = admin.describe_cluster(include_authorized_operations=True).result(30)
    assert sorted(node.id for node in cluster.nodes) == list(range(BROKERS))
    assert AclOperation.ALTER in cluster.authorized_operations
    assert len(admin.list_topics(topic, 30).topics[topic].partitions) == 2
    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(30)
    assert [error.name() for error in elected.values()] == ["ELECTION_NOT_NEEDED"]
    place = TopicPartition(topic, 1)
    found = admin.list_offsets({place: OffsetSpec.max_timestamp()}, isolation_level=IsolationLevel.READ_COMMITTED)
    assert found[place].result(30).offset == -1


@pytest.mark.skipif(SECURE, reason="it is about brokers without an authorizer")
def test_kafka_python_is_told_that_there_is_no_authorizer(python_admin: KafkaAdminClient) -> None:
    from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern
    from kafka.admin import ResourceType as Kind

    rules = ACLFilter("User:me", "*", ACLOperation.ANY, ACLPermissionType.ANY, ResourcePattern(Kind.TOPIC, "anything"))
    with pytest.raises(SecurityDisabledError):
        python_admin.describe_acls(rules)
