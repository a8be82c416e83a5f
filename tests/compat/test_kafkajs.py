"""KafkaJS: its own encoders, group protocol, transactions and admin client."""

import time
import uuid
from typing import Any

import kafkajs_scripts
import pytest
from compat_cluster import BROKERS
from confluent_kafka import Consumer, Producer
from secured import librdkafka

LACK = kafkajs_scripts.lacking()
pytestmark = pytest.mark.skipif(LACK is not None, reason=LACK or "")

long = pytest.mark.compat_long
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def kafkajs(broker: Any, script: str, **arguments: Any) -> Any:
    return kafkajs_scripts.run_script(broker.bootstrap_servers, script, **arguments)


def messages(count: int) -> list[dict[str, str]]:
    return [{"key": str(number), "value": f"value {number}", "partition": 0} for number in range(count)]


@long
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(broker: Any, codec: str) -> None:
    topic = name("kafkajs")
    (place,) = kafkajs(broker, "produce", topic=topic, messages=messages(300), codec=codec)
    assert (place["errorCode"], place["baseOffset"]) == (0, "0")
    records = kafkajs(broker, "consume", topic=topic, group=name("group"), count=300)
    assert [record["offset"] for record in records] == list(range(300))
    assert [(record["key"], record["value"]) for record in records] == [
        (str(number), f"value {number}") for number in range(300)
    ]


@long
@pytest.mark.parametrize("codec", CODECS)
def test_it_reads_what_librdkafka_wrote(broker: Any, codec: str) -> None:
    topic = name("kafkajs")
    producer = Producer({**librdkafka(broker.bootstrap_servers), "compression.type": codec, "enable.idempotence": True})
    for number in range(300):
        producer.produce(topic, f"value {number}", partition=0)
    assert producer.flush(60) == 0
    records = kafkajs(broker, "consume", topic=topic, group=name("group"), count=300)
    assert [record["value"] for record in records] == [f"value {number}" for number in range(300)]


def test_keys_values_headers_and_timestamps_arrive_as_sent(broker: Any) -> None:
    topic = name("kafkajs")
    sent = [
        {"key": None, "value": "no key", "timestamp": "1600000000000"},
        {"key": "", "value": "empty key", "timestamp": "1600000000001"},
        {"key": "tombstone", "value": None, "timestamp": "1600000000002"},
        {"key": "headers", "value": "", "timestamp": "1600000000003", "headers": {"a": "1", "ä": "ö", "empty": ""}},
    ]
    kafkajs(broker, "produce", topic=topic, messages=sent, idempotent=True)
    records = kafkajs(broker, "consume", topic=topic, group=name("group"), count=4)
    assert [
        {"key": record["key"], "value": record["value"], "timestamp": str(record["timestamp"])} for record in records
    ] == [{key: message[key] for key in ("key", "value", "timestamp")} for message in sent]
    assert [record["headers"] for record in records] == [{}, {}, {}, sent[3]["headers"]]


@long
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_level_of_acknowledgement(broker: Any, acks: int) -> None:
    topic = name("kafkajs")
    kafkajs(broker, "produce", topic=topic, messages=messages(1))
    kafkajs(broker, "produce", topic=topic, messages=messages(10), acks=acks)
    assert len(kafkajs(broker, "consume", topic=topic, group=name("group"), count=11)) == 11


@long
def test_a_group_goes_on_where_it_committed(broker: Any) -> None:
    topic, group = name("kafkajs"), name("group")
    kafkajs(broker, "produce", topic=topic, messages=messages(10))
    assert len(kafkajs(broker, "consume", topic=topic, group=group, count=10)) == 10
    kafkajs(broker, "produce", topic=topic, messages=[{"value": "eleventh"}])
    (record,) = kafkajs(broker, "consume", topic=topic, group=group, count=1)
    assert (record["offset"], record["value"]) == (10, "eleventh")


@long
def test_two_members_share_the_partitions(broker: Any) -> None:
    topic, group = name("kafkajs"), name("group")
    kafkajs(broker, "admin", calls=[["createTopics", {"topics": [{"topic": topic, "numPartitions": 4}]}]])
    one, two = kafkajs(broker, "share", topic=topic, group=group, partitions=4)
    assert (len(one), len(two), sorted(one + two)) == (2, 2, [0, 1, 2, 3])


@long
def test_a_consumer_seeks_to_a_time(broker: Any) -> None:
    topic = name("kafkajs")
    start = int(time.time() * 1000) - 100_000
    for batch in range(3):
        stamped = [
            {"value": str(number), "timestamp": str(start + number * 1000)}
            for number in range(batch * 4, batch * 4 + 4)
        ]
        kafkajs(broker, "produce", topic=topic, messages=stamped)
    (found, beyond) = kafkajs(
        broker,
        "admin",
        calls=[
            ["fetchTopicOffsetsByTimestamp", [topic, start + 6500]],
            ["fetchTopicOffsetsByTimestamp", [topic, start + 99_000]],
        ],
    )
    assert found == [{"partition": 0, "offset": "7"}]
    assert beyond == [{"partition": 0, "offset": "12"}], "a time after the last record is the end"
    records = kafkajs(broker, "consumeFrom", topic=topic, group=name("group"), count=5, offset=7)
    assert [record["value"] for record in records if record["offset"] >= 7][:5] == ["7", "8", "9", "10", "11"]


@long
def test_the_admin_client(broker: Any) -> None:
    topic, group = name("kafkajs"), name("group")
    created, again, _, metadata = kafkajs(
        broker,
        "admin",
        calls=[
            [
                "createTopics",
                {
                    "topics": [
                        {
                            "topic": topic,
                            "numPartitions": 2,
                            "configEntries": [{"name": "retention.ms", "value": "60000"}],
                        }
                    ]
                },
            ],
            ["createTopics", {"topics": [{"topic": topic}]}],
            ["createPartitions", {"topicPartitions": [{"topic": topic, "count": 3}]}],
            ["fetchTopicMetadata", {"topics": [topic]}],
        ],
    )
    assert (created, again) == (True, False)
    assert len(metadata["topics"][0]["partitions"]) == 3
    kafkajs(broker, "produce", topic=topic, messages=messages(10))
    kafkajs(broker, "consume", topic=topic, group=group, count=10)
    wanted = {"resources": [{"type": 2, "name": topic, "configNames": ["retention.ms"]}]}
    change = {"resources": [{"type": 2, "name": topic, "configEntries": [{"name": "retention.ms", "value": "70000"}]}]}
    before, _, after, offsets, committed, groups, described, cluster = kafkajs(
        broker,
        "admin",
        calls=[
            ["describeConfigs", wanted],
            ["alterConfigs", change],
            ["describeConfigs", wanted],
            ["fetchTopicOffsets", topic],
            ["fetchOffsets", {"groupId": group, "topics": [topic]}],
            ["listGroups", None],
            ["describeGroups", [group]],
            ["describeCluster", None],
        ],
    )
    values = [answer["resources"][0]["configEntries"][0]["configValue"] for answer in (before, after)]
    assert values == ["60000", "70000"]
    assert {found["partition"]: found["high"] for found in offsets} == {0: "10", 1: "0", 2: "0"}
    assert {found["partition"]: found["offset"] for found in committed[0]["partitions"]}[0] == "10"
    assert group in {found["groupId"] for found in groups["groups"]}
    assert [(found["groupId"], found["state"]) for found in described["groups"]] == [(group, "Empty")]
    assert len(cluster["brokers"]) == BROKERS
    assert cluster["controller"] in range(BROKERS)
    deleted = kafkajs(
        broker,
        "admin",
        calls=[
            ["fetchTopicOffsets", topic],  # deleteTopicRecords finds leaders only of topics that were asked for before
            ["deleteTopicRecords", {"topic": topic, "partitions": [{"partition": 0, "offset": "4"}]}],
            ["fetchTopicOffsets", topic],
            ["setOffsets", {"groupId": group, "topic": topic, "partitions": [{"partition": 0, "offset": "5"}]}],
            ["fetchOffsets", {"groupId": group, "topics": [topic]}],
            ["deleteGroups", [group]],
            ["deleteTopics", {"topics": [topic]}],
            ["listTopics", None],
        ],
    )
    assert next(found for found in deleted[2] if found["partition"] == 0)["low"] == "4"
    assert {found["partition"]: found["offset"] for found in deleted[4][0]["partitions"]}[0] == "5"
    assert deleted[5] == [{"groupId": group, "errorCode": 0}]
    assert topic not in deleted[7]


@long
def test_transactions_commit_abort_and_carry_offsets(broker: Any) -> None:
    source, topic, group = name("source"), name("kafkajs"), name("group")
    kafkajs(broker, "produce", topic=source, messages=messages(10))
    kafkajs(broker, "produce", topic=topic, messages=[{"value": "before"}])
    kafkajs(
        broker,
        "transact",
        topic=topic,
        transactionalId=name("tx"),
        group=group,
        source=source,
        transactions=[
            {"values": ["a", "b"], "commit": True, "offset": 4},
            {"values": ["c", "d"], "commit": False, "offset": 8},
            {"values": ["e"], "commit": True},
        ],
    )
    committed = kafkajs(broker, "consume", topic=topic, group=name("group"), count=4)
    assert [record["value"] for record in committed] == ["before", "a", "b", "e"]
    every = kafkajs(broker, "consume", topic=topic, group=name("group"), count=6, isolation="read_uncommitted")
    assert [record["value"] for record in every] == ["before", "a", "b", "c", "d", "e"]
    reader = Consumer({**librdkafka(broker.bootstrap_servers), "group.id": group})
    try:
        from confluent_kafka import TopicPartition

        (place,) = reader.committed([TopicPartition(source, 0)], 30)
    finally:
        reader.close()
    assert place.offset == 4, "the offsets of an aborted transaction are not committed"
