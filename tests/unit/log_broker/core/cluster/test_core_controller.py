"""What the controller decides, and the image that its records give."""

from pathlib import Path
from typing import Any

import pytest

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster import controller
from log_broker.core.cluster.controller import Alteration, CreateTopic, Operation
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import (
    BrokerRegistered,
    BrokersConfigured,
    BrokerUnfenced,
    ProducerIdsReserved,
    TopicCreated,
    UnknownMetadataRecordError,
    decode,
    encode,
)
from log_broker.errors import BrokerError, ErrorCode

CONFIG = BrokerConfig(data_dir=Path("nowhere"), num_partitions=2)
ID = "0" * 31 + "1"


def cluster(*brokers: int) -> ClusterImage:
    image = ClusterImage(defaults=CONFIG)
    for node_id in brokers or (0,):
        image.replay(BrokerRegistered(node_id=node_id, host="h", port=9000 + node_id, incarnation=f"first-{node_id}"))
        image.replay(BrokerUnfenced(node_id=node_id))
    return image


def create(image: ClusterImage, name: str = "t", **fields: Any) -> TopicCreated:
    command = CreateTopic(name=name, topic_id=f"{len(image.topics) + 1:032x}", **fields)
    record = controller.create_topic(image, command, CONFIG)
    image.replay(record)
    return record


def refused(code: ErrorCode, image: ClusterImage, name: str = "t", **fields: Any) -> str:
    with pytest.raises(BrokerError) as failure:
        create(image, name, **fields)
    assert failure.value.code is code
    return str(failure.value)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250])
def test_a_name_that_kafka_does_not_allow_is_refused(name: str) -> None:
    refused(ErrorCode.INVALID_TOPIC_EXCEPTION, cluster(), name)


@pytest.mark.parametrize("name", ["a", "A.b_c-1", "...", "x" * 249])
def test_a_name_that_kafka_allows_is_taken(name: str) -> None:
    assert create(cluster(), name).name == name


def test_names_that_share_a_metric_do_not_stand_side_by_side() -> None:
    image = cluster()
    create(image, "a.b")
    assert "a.b" in refused(ErrorCode.INVALID_TOPIC_EXCEPTION, image, "a_b")
    refused(ErrorCode.TOPIC_ALREADY_EXISTS, image, "a.b")


def test_unset_numbers_take_the_brokers_defaults() -> None:
    assert create(cluster()).replicas == ((0,), (0,))


@pytest.mark.parametrize("partitions", [0, -2, 100_001])
def test_a_count_out_of_bounds_is_refused(partitions: int) -> None:
    refused(ErrorCode.INVALID_PARTITIONS, cluster(), partitions=partitions)


@pytest.mark.parametrize(("factor", "said"), [(0, "larger than 0"), (-2, "larger than 0"), (4, "available brokers: 3")])
def test_a_replication_factor_that_cannot_be_had_is_refused_with_the_reason(factor: int, said: str) -> None:
    assert said in refused(ErrorCode.INVALID_REPLICATION_FACTOR, cluster(0, 1, 2), replication_factor=factor)


def test_a_given_assignment_is_followed_or_refused() -> None:
    image = cluster(0, 1)
    assert create(image, assignments={1: (0,), 0: (1,)}).replicas == ((1,), (0,))
    for wrong in ({0: (7,)}, {1: (0,)}, {0: ()}, {0: (0, 0)}):
        refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, image, "other", assignments=wrong)
    refused(ErrorCode.INVALID_REQUEST, image, "other", assignments={0: (0,)}, partitions=1)


def test_partitions_are_only_ever_added() -> None:
    image = cluster()
    create(image, partitions=2)
    image.replay(controller.add_partitions(image, image.topics["t"], 5, None))
    assert len(image.topics["t"].partitions) == 5
    for count in (5, 4, 0):
        with pytest.raises(BrokerError, match=r"currently has|already has"):
            controller.add_partitions(image, image.topics["t"], count, None)
    with pytest.raises(BrokerError, match="assignments"):
        controller.add_partitions(image, image.topics["t"], 7, [(0,)])


def test_a_deleted_topic_leaves_nothing_and_an_internal_one_stays() -> None:
    image = cluster()
    record = create(image)
    image.replay(controller.delete_topic(image.topics["t"], CONFIG))
    assert (image.topics, image.topic_by_id(record.topic_id)) == ({}, None)
    create(image, "__consumer_offsets")
    with pytest.raises(BrokerError, match="internal"):
        controller.delete_topic(image.topics["__consumer_offsets"], CONFIG)


def alter(image: ClusterImage, *alterations: tuple[str, int, str | None]) -> None:
    wanted = [Alteration(*one) for one in alterations]
    image.replay(controller.configure_topic(image, image.topics["t"], wanted))


def test_settings_are_set_deleted_appended_and_subtracted() -> None:
    image = cluster()
    create(image, overrides={"retention.ms": "5"})
    alter(image, ("retention.ms", Operation.SET, "9"), ("cleanup.policy", Operation.APPEND, "compact"))
    topic = image.topics["t"]
    assert (topic.config.retention_ms, topic.config.cleanup_policy) == (9, {"delete", "compact"})
    alter(image, ("retention.ms", Operation.DELETE, None), ("cleanup.policy", Operation.SUBTRACT, "delete"))
    topic = image.topics["t"]
    assert topic.overrides == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    "alteration",
    [
        ("retention.ms", Operation.SET, "soon"),
        ("retention.ms", Operation.SET, "-2"),
        ("retention.ms", Operation.SET, None),
        ("retention.ms", Operation.APPEND, "1"),
        ("no.such", Operation.SET, "1"),
        ("cleanup.policy", Operation.SET, "shred"),
        ("retention.ms", 9, "1"),
    ],
)
def test_a_setting_that_cannot_be_changes_nothing(alteration: tuple[str, int, str | None]) -> None:
    image = cluster()
    create(image)
    with pytest.raises(BrokerError):
        alter(image, alteration)
    assert image.topics["t"].overrides == {}


def test_confluents_name_of_validation_is_an_alias() -> None:
    image = cluster()
    create(image, overrides={"confluent.value.schema.validation": "true"})
    assert image.topics["t"].overrides == {"fluvial.value.schema.validation": "id"}


def test_dynamic_broker_settings_hold_for_one_or_for_all() -> None:
    image = cluster()
    for node_id, text in ((None, "5"), (0, "7")):
        alteration = [Alteration("num.partitions", Operation.SET, text)]
        image.replay(controller.configure_brokers(image, node_id, alteration, CONFIG))
    assert image.effective_config(CONFIG).num_partitions == 7
    image.replay(BrokersConfigured(node_id=0, overrides={}))
    assert image.effective_config(CONFIG).num_partitions == 5


def test_blocks_of_producer_ids_do_not_overlap() -> None:
    image = cluster()
    ends = []
    for _ in range(3):
        record = controller.reserve_producer_ids(image)
        ends.append((image.next_producer_id, record.end))
        image.replay(record)
    assert ends == [(0, 1000), (1000, 2000), (2000, 3000)]


def test_an_image_is_what_a_replay_of_its_encoded_records_gives() -> None:
    image = cluster(0, 1)
    records = [
        BrokerRegistered(node_id=0, host="h", port=1, incarnation="x", rack="r", directory="d"),
        BrokerUnfenced(node_id=0),
        TopicCreated(name="t", topic_id=ID, replicas=((0,), (1,)), overrides={"retention.ms": "5"}),
        ProducerIdsReserved(end=5),
        BrokersConfigured(node_id=None, overrides={"num.partitions": "3"}),
    ]
    again = cluster(0, 1)
    for record in records:
        image.replay(record)
        again.replay(decode(encode(record)))
    assert image == again


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"type":"Nothing"}', b'{"type":"TopicDeleted","x":1}', b"\xff"])
def test_a_record_that_is_not_understood_stops_the_replay(value: bytes) -> None:
    with pytest.raises(UnknownMetadataRecordError):
        decode(value)


def test_a_groups_settings_stay_within_the_brokers_bounds() -> None:
    image = cluster()

    def configure(name: str, value: str | None, operation: Operation = Operation.SET) -> None:
        image.replay(
            decode(encode(controller.configure_group(image, "g", [Alteration(name, operation, value)], CONFIG)))
        )

    configure("consumer.session.timeout.ms", "50000")
    configure("consumer.heartbeat.interval.ms", "6000")
    assert image.group_overrides == {
        "g": {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000"}
    }
    assert image.draft().group_overrides == image.group_overrides
    for name, value in (
        ("consumer.session.timeout.ms", "1000"),
        ("consumer.session.timeout.ms", "60001"),
        ("consumer.heartbeat.interval.ms", "soon"),
        ("consumer.heartbeat.interval.ms", "4999"),
        ("retention.ms", "1"),
    ):
        with pytest.raises(BrokerError) as failure:
            configure(name, value)
        assert failure.value.code is ErrorCode.INVALID_CONFIG
    configure("consumer.session.timeout.ms", None, Operation.DELETE)
    configure("consumer.heartbeat.interval.ms", None, Operation.DELETE)
    assert not image.group_overrides


def test_what_is_set_for_all_brokers_holds_for_the_very_next_decision() -> None:
    image = ClusterImage(defaults=CONFIG, static=CONFIG)
    for node_id in (1, 2, 3):
        image.replay(BrokerRegistered(node_id=node_id, host="h", port=1, incarnation="i"))
        image.replay(BrokerUnfenced(node_id=node_id))
    create(image, partitions=1, replication_factor=3)
    draft = image.draft()
    draft.replay(BrokersConfigured(node_id=None, overrides={"min.insync.replicas": "1"}))
    assert (image.topics["t"].min_isr(0), draft.topics["t"].min_isr(0)) == (2, 1)
    later = ClusterImage(defaults=CONFIG, static=CONFIG)
    later.become(draft)
    assert (later.topics["t"].min_isr(0), later.static) == (1, CONFIG)
