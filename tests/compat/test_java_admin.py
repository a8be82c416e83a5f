"""The Java AdminClient, method by method: what one node can do is done, and what it cannot is refused by name."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from compat_cluster import BROKERS, COPIES
from secured import SECURE, java

import log_broker

pytestmark = pytest.mark.spark


class Admin:
    """An AdminClient with its classes at hand."""

    def __init__(self, jvm: Any, bootstrap_servers: str) -> None:
        self.jvm = jvm
        self.classes = jvm.org.apache.kafka.clients.admin
        self.common = jvm.org.apache.kafka.common
        settings = jvm.java.util.Properties()
        for name, value in java(bootstrap_servers).items():
            settings.setProperty(name, value)
        self.client = self.classes.Admin.create(settings)

    def topic(self, partitions: int = 1) -> str:
        """Make a topic and return its name."""
        name = f"java-admin-{uuid.uuid4().hex[:8]}"
        self.client.createTopics([self.classes.NewTopic(name, partitions, COPIES)]).all().get()
        return name

    def partition(self, topic: str, index: int = 0) -> Any:
        return self.common.TopicPartition(topic, index)

    def optional(self, value: Any = None) -> Any:
        return self.jvm.java.util.Optional.ofNullable(value)


@pytest.fixture
def admin(jvm: Any, broker: Any) -> Iterator[Admin]:
    one = Admin(jvm, broker.bootstrap_servers)
    yield one
    one.client.close()


def refusal(call: Callable[[], Any]) -> str:
    """Return the simple name of the exception that a call's future ends with."""
    from py4j.protocol import Py4JJavaError

    with pytest.raises(Py4JJavaError) as raised:
        call()
    return str(raised.value.java_exception.getCause().getClass().getSimpleName())


def test_topics_are_described_by_name_and_by_id(admin: Admin) -> None:
    topic = admin.topic(3)
    topic_id = admin.client.listTopics().namesToListings().get()[topic].topicId()
    by_name = admin.client.describeTopics([topic]).allTopicNames().get()[topic]
    assert by_name.partitions().size() == 3
    # DescribeTopicPartitions tells which replicas may lead without being in sync; Metadata does not know of them.
    assert list(by_name.partitions()[0].elr()) == []
    by_id = admin.client.describeTopics(admin.common.TopicCollection.ofTopicIds([topic_id])).allTopicIds().get()
    assert by_id[topic_id].name() == topic
    assert refusal(lambda: admin.client.describeTopics(["nowhere"]).allTopicNames().get()) == (
        "UnknownTopicOrPartitionException"
    )
    admin.client.deleteTopics(admin.common.TopicCollection.ofTopicIds([topic_id])).all().get()
    assert topic not in set(admin.client.listTopics().names().get())


def test_a_topic_that_is_only_validated_is_not_made(admin: Admin) -> None:
    check = admin.classes.CreateTopicsOptions().validateOnly(True)
    result = admin.client.createTopics([admin.classes.NewTopic("only-checked", {0: [0], 1: [0]})], check)
    assert result.numPartitions("only-checked").get() == 2
    assert "only-checked" not in set(admin.client.listTopics().names().get())
    topic = admin.topic()
    grow = {topic: admin.classes.NewPartitions.increaseTo(4)}
    admin.client.createPartitions(grow, admin.classes.CreatePartitionsOptions().validateOnly(True)).all().get()
    assert admin.client.describeTopics([topic]).allTopicNames().get()[topic].partitions().size() == 1
    admin.client.createPartitions(grow).all().get()
    assert admin.client.describeTopics([topic]).allTopicNames().get()[topic].partitions().size() == 4


def test_the_cluster_its_quorum_and_its_features(admin: Admin) -> None:
    cluster = admin.client.describeCluster(admin.classes.DescribeClusterOptions().includeAuthorizedOperations(True))
    assert cluster.controller().get().id() in range(BROKERS)
    assert cluster.authorizedOperations().get().size() > 0
    quorum = admin.client.describeMetadataQuorum().quorumInfo().get()
    assert quorum.leaderId() in range(BROKERS)
    assert sorted(voter.replicaId() for voter in quorum.voters()) == list(range(BROKERS))
    assert admin.client.describeFeatures().featureMetadata().get() is not None
    upgrade = getattr(admin.classes, "FeatureUpdate$UpgradeType").UPGRADE
    update = {"metadata.version": admin.classes.FeatureUpdate(1, upgrade)}
    assert refusal(lambda: admin.client.updateFeatures(update, admin.classes.UpdateFeaturesOptions()).all().get()) == (
        "InvalidUpdateVersionException"
    )
    assert refusal(lambda: admin.client.unregisterBroker(0).all().get()) == "InvalidRequestException"
    assert refusal(lambda: admin.client.unregisterBroker(9).all().get()) == "BrokerIdNotRegisteredException"


def test_log_dirs_are_described_and_replicas_stay_in_theirs(admin: Admin) -> None:
    topic = admin.topic(2)
    (directory,) = admin.client.describeLogDirs([0]).allDescriptions().get()[0].items()
    path, description = directory
    assert description.error() is None
    assert 0 < description.usableBytes().getAsLong() <= description.totalBytes().getAsLong()
    replica = admin.common.TopicPartitionReplica(topic, 1, 0)
    assert admin.client.describeReplicaLogDirs([replica]).all().get()[replica].getCurrentReplicaLogDir() == path
    admin.client.alterReplicaLogDirs({replica: path}).all().get()
    assert refusal(lambda: admin.client.alterReplicaLogDirs({replica: "/elsewhere"}).all().get()) == (
        "LogDirNotFoundException"
    )


def test_leaders_and_replicas_are_where_they_should_be(admin: Admin) -> None:
    topic = admin.topic()
    place = admin.partition(topic)
    asked = admin.jvm.java.util.HashSet([place, admin.partition("nowhere")])
    preferred = admin.common.ElectionType.PREFERRED
    elected = admin.client.electLeaders(preferred, asked).partitions().get()
    assert {one.topic(): error.get().getClass().getSimpleName() for one, error in elected.items()} == {
        topic: "ElectionNotNeededException",
        "nowhere": "UnknownTopicOrPartitionException",
    }
    assert admin.client.electLeaders(preferred, None).all().get() is None

    def reassign(*brokers: int) -> Any:
        move = admin.classes.NewPartitionReassignment(list(brokers)) if brokers else None
        return admin.client.alterPartitionReassignments({place: admin.optional(move)}).all().get()

    reassign(*range(COPIES))
    assert refusal(reassign) == "NoReassignmentInProgressException"
    assert refusal(lambda: reassign(0, 9)) == "InvalidReplicaAssignmentException"
    assert len(admin.client.listPartitionReassignments().reassignments().get()) == 0


@pytest.mark.skipif(SECURE, reason="it is about brokers that are not secured")
def test_what_needs_security_or_quotas_is_refused_by_name(admin: Admin) -> None:
    rules = admin.common.acl.AclBindingFilter.ANY
    assert refusal(lambda: admin.client.describeAcls(rules).values().get()) == "SecurityDisabledException"
    assert refusal(lambda: admin.client.deleteAcls([rules]).all().get()) == "SecurityDisabledException"
    quota = admin.common.quota
    assert len(admin.client.describeClientQuotas(quota.ClientQuotaFilter.all()).entities().get()) == 0
    rate = getattr(quota, "ClientQuotaAlteration$Op")("producer_byte_rate", 1.0)
    wanted = quota.ClientQuotaAlteration(quota.ClientQuotaEntity({"user": "me"}), [rate])
    assert refusal(lambda: admin.client.alterClientQuotas([wanted]).all().get()) == "UnsupportedVersionException"
    assert refusal(lambda: admin.client.describeDelegationToken().delegationTokens().get()) == (
        "UnsupportedVersionException"
    )
    assert len(admin.client.listClientMetricsResources().all().get()) == 0


def test_users_are_kept_shown_and_gone(admin: Admin, eventually: Callable[[Callable[[], bool]], None]) -> None:
    user = f"java-user-{uuid.uuid4().hex[:8]}"
    mechanism = admin.classes.ScramMechanism.SCRAM_SHA_512
    info = admin.classes.ScramCredentialInfo(mechanism, 4096)
    kept = admin.classes.UserScramCredentialUpsertion(user, info, "secret")
    admin.client.alterUserScramCredentials([kept]).all().get()

    def told() -> list[bool]:
        users = admin.client.describeUserScramCredentials().all().get()
        return [each.equals(info) for each in users[user].credentialInfos()] if user in users else []

    # Of several brokers one may be asked that has not replayed the change yet.
    eventually(lambda: told() == [True])
    gone = admin.classes.UserScramCredentialDeletion(user, mechanism)
    admin.client.alterUserScramCredentials([gone]).all().get()
    eventually(lambda: told() == [])


def test_groups_are_listed_by_state_and_their_offsets_altered_and_deleted(admin: Admin) -> None:
    topic, group = admin.topic(2), f"java-group-{uuid.uuid4().hex[:8]}"
    first, second = admin.partition(topic), admin.partition(topic, 1)
    offset = admin.jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata
    admin.client.alterConsumerGroupOffsets(group, {first: offset(7), second: offset(8, "why")}).all().get()
    found = admin.client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
    assert {place.partition(): (each.offset(), each.metadata()) for place, each in found.items()} == {
        0: (7, ""),
        1: (8, "why"),
    }
    states = admin.jvm.org.apache.kafka.common.ConsumerGroupState

    def listed(state: Any) -> bool:
        options = admin.classes.ListConsumerGroupsOptions().inStates(admin.jvm.java.util.HashSet([state]))
        return group in {each.groupId() for each in admin.client.listConsumerGroups(options).all().get()}

    assert listed(states.EMPTY)
    assert not listed(states.STABLE)
    admin.client.deleteConsumerGroupOffsets(group, admin.jvm.java.util.HashSet([second])).all().get()
    assert len(admin.client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()) == 1
    admin.client.deleteConsumerGroups([group]).all().get()
    assert refusal(lambda: admin.client.deleteConsumerGroups([group]).all().get()) == "GroupIdNotFoundException"


def test_a_producer_asks_for_nothing_that_is_not_served(jvm: Any, caplog: pytest.LogCaptureFixture) -> None:
    # Without an offer of GetTelemetrySubscriptions (KIP-714) it leaves its metrics to itself.
    with caplog.at_level("INFO", "log_broker.server.net.dispatch"), log_broker.embedded() as own:
        settings = jvm.java.util.Properties()
        for name, value in {
            "bootstrap.servers": own.bootstrap_servers,
            "enable.metrics.push": "true",
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "value.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        }.items():
            settings.setProperty(name, value)
        producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord
        for number in range(20):
            producer.send(record("quiet", "key", str(number))).get()
        producer.close()
        assert own.node.counters.requests[0].count == 20
    assert "is not supported" not in caplog.text
