"""KIP-848 groups with the Java client of Kafka 4.1: subscription patterns, its admin, a group that moves over."""

import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from secured import java

pytestmark = pytest.mark.spark

CLIENT = ("org.apache.kafka", "kafka-clients", "4.1.0")
Eventually = Callable[[Callable[[], bool]], None]


def client_jar() -> Path:
    """Spark's Kafka source brings an older client; this one is had once and stays in Maven's own store."""
    group, artifact, version = CLIENT
    jar = Path.home().joinpath(".m2/repository", *group.split("."), artifact, version, f"{artifact}-{version}.jar")
    if not jar.exists():
        if shutil.which("mvn") is None:
            pytest.skip("neither the jar of the Java client 4.1 nor mvn to get it with")
        words = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={':'.join(CLIENT)}", "-Dtransitive=false"]
        got = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        if got.returncode or not jar.exists():
            pytest.skip(f"the Java client 4.1 cannot be had: {got.stdout[-300:]}")
    return jar


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    class_path = [str(client_jar()), str(Path(pyspark.__file__).parent / "jars" / "*")]
    port, token = launch_gateway(
        classpath=":".join(class_path), die_on_exit=True, enable_auth=True, javaopts=["-Xmx256m"]
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    yield gateway.jvm
    gateway.shutdown()


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


class Member:
    """A Java consumer that is polled by hand."""

    def __init__(self, jvm: Any, bootstrap_servers: str, group: str, **settings: str) -> None:
        self._jvm = jvm
        props = jvm.java.util.Properties()
        string = "org.apache.kafka.common.serialization.StringDeserializer"
        for key, value in {
            **java(bootstrap_servers),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "key.deserializer": string,
            "value.deserializer": string,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }.items():
            props.setProperty(key, value)
        self.consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(props)
        self.values: list[str] = []

    def poll(self) -> set[tuple[str, int]]:
        """Poll once and return what it owns then."""
        records = self.consumer.poll(self._jvm.java.time.Duration.ofMillis(50)).iterator()
        while records.hasNext():
            self.values.append(records.next().value())
        return {(place.topic(), place.partition()) for place in self.consumer.assignment()}


@pytest.fixture
def admin(jvm: Any, broker: Any) -> Iterator[Any]:
    props = jvm.java.util.Properties()
    for setting, value in java(broker.bootstrap_servers).items():
        props.setProperty(setting, value)
    client = jvm.org.apache.kafka.clients.admin.Admin.create(props)
    yield client
    client.close()


def create(jvm: Any, admin: Any, topic: str, partitions: int) -> None:
    new_topic = jvm.java.util.Optional.of(partitions), jvm.java.util.Optional.empty()
    admin.createTopics([jvm.org.apache.kafka.clients.admin.NewTopic(topic, *new_topic)]).all().get()


def test_members_share_describe_and_commit(jvm: Any, broker: Any, admin: Any, eventually: Eventually) -> None:
    topic, group = name("java"), name("group")
    create(jvm, admin, topic, 4)
    one = Member(jvm, broker.bootstrap_servers, group, group_protocol="consumer")
    one.consumer.subscribe([topic])
    eventually(lambda: len(one.poll()) == 4)
    two = Member(jvm, broker.bootstrap_servers, group, group_protocol="consumer", group_remote_assignor="range")
    two.consumer.subscribe([topic])
    eventually(lambda: (len(one.poll()), len(two.poll())) == (2, 2))
    assert not one.poll() & two.poll()
    described = admin.describeConsumerGroups([group]).all().get()[group]
    assert described.type().toString() == "Consumer"
    assert described.groupState().toString() == "Stable"
    assert described.groupEpoch().get() == described.targetAssignmentEpoch().get() == 2
    for member in described.members():
        assert member.memberEpoch().get() == 2
        assert member.upgraded().get()
        assert member.assignment().topicPartitions() == member.targetAssignment().get().topicPartitions()
    metadata = jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(5, "five")
    place = jvm.org.apache.kafka.common.TopicPartition(*sorted(one.poll())[0])
    one.consumer.commitSync({place: metadata})
    assert one.consumer.committed({place})[place].offset() == 5
    two.consumer.close()
    eventually(lambda: len(one.poll()) == 4)
    one.consumer.close()
    listed = {found.groupId(): found for found in admin.listGroups().all().get()}
    assert (listed[group].type().get().toString(), listed[group].groupState().get().toString()) == ("Consumer", "Empty")
    admin.deleteConsumerGroups([group]).all().get()
    assert group not in {found.groupId() for found in admin.listGroups().all().get()}


def test_a_group_has_settings_of_its_own(jvm: Any, admin: Any) -> None:
    group = name("group")
    configs = jvm.org.apache.kafka.common.config.ConfigResource
    resource = configs(configs.Type.GROUP, group)
    entry = jvm.org.apache.kafka.clients.admin.ConfigEntry("consumer.heartbeat.interval.ms", "7000")
    set_it = jvm.org.apache.kafka.clients.admin.AlterConfigOp(
        entry, jvm.org.apache.kafka.clients.admin.AlterConfigOp.OpType.SET
    )
    admin.incrementalAlterConfigs({resource: [set_it]}).all().get()
    config = admin.describeConfigs([resource]).all().get()[resource]
    assert config.get("consumer.heartbeat.interval.ms").value() == "7000"
    assert config.get("consumer.heartbeat.interval.ms").source().toString() == "DYNAMIC_GROUP_CONFIG"
    assert config.get("consumer.session.timeout.ms").value() == "2000", "the broker's"


def test_the_broker_is_at_the_feature_level_of_the_new_protocol(admin: Any) -> None:
    features = admin.describeFeatures().featureMetadata().get()
    assert features.finalizedFeatures()["group.version"].maxVersionLevel() == 1
    assert features.supportedFeatures()["group.version"].maxVersion() == 1


def test_a_subscription_pattern_is_resolved_by_the_broker(
    jvm: Any, broker: Any, admin: Any, eventually: Eventually
) -> None:
    prefix = name("pattern")
    create(jvm, admin, f"{prefix}-a", 1)
    reader = Member(jvm, broker.bootstrap_servers, name("group"), group_protocol="consumer")
    reader.consumer.subscribe(jvm.org.apache.kafka.clients.consumer.SubscriptionPattern(f"{prefix}-[ab]"))
    eventually(lambda: reader.poll() == {(f"{prefix}-a", 0)})
    create(jvm, admin, f"{prefix}-b", 1)
    create(jvm, admin, f"{prefix}-c", 1)
    eventually(lambda: reader.poll() == {(f"{prefix}-a", 0), (f"{prefix}-b", 0)})
    reader.consumer.close()


@pytest.mark.parametrize("strategy", ["CooperativeSticky", "Range"])
def test_a_group_moves_over_one_member_at_a_time_and_back(
    jvm: Any, broker: Any, admin: Any, eventually: Eventually, strategy: str
) -> None:
    topic, group = name("java"), name("group")
    create(jvm, admin, topic, 4)
    assignor = f"org.apache.kafka.clients.consumer.{strategy}Assignor"
    classic = {
        "group_protocol": "classic",
        "partition_assignment_strategy": assignor,
        "heartbeat_interval_ms": "200",
        "session_timeout_ms": "6000",
    }

    def kind() -> str:
        return {found.groupId(): found.type().get().toString() for found in admin.listGroups().all().get()}[group]

    old = Member(jvm, broker.bootstrap_servers, group, **classic)
    old.consumer.subscribe([topic])
    eventually(lambda: len(old.poll()) == 4)
    assert kind() == "Classic"
    new = Member(jvm, broker.bootstrap_servers, group, group_protocol="consumer")
    new.consumer.subscribe([topic])
    eventually(lambda: (len(old.poll()), len(new.poll())) == (2, 2))
    assert not old.poll() & new.poll()
    assert kind() == "Consumer"
    old.consumer.commitSync()
    new.consumer.close()
    eventually(lambda: len(old.poll()) == 4)
    assert kind() == "Classic"
    old.consumer.commitSync()
    old.consumer.close()
