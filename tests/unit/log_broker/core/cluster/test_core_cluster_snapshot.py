"""A snapshot holds all of an image: what is replayed on top of it gives what the whole log would have given."""

from dataclasses import fields

import pytest

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import (
    AccessControlEntryRecord,
    BrokerFenced,
    BrokerRegistered,
    BrokersConfigured,
    BrokerUnfenced,
    ClusterNamed,
    FeatureLevelSet,
    GroupConfigured,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsReserved,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    TopicCreated,
    TopicDeleted,
    UnknownMetadataRecordError,
    UserScramCredentialRecord,
    decode_all,
    encode_all,
)
from log_broker.core.cluster.snapshot import decode_image, encode_image

A, B = "a" * 32, "b" * 32
RECORDS: list[MetadataRecord] = [
    ClusterNamed(cluster_id="c"),
    FeatureLevelSet(feature="metadata.version", level=26),
    BrokerRegistered(node_id=0, host="h", port=1, incarnation="i", rack="r", directory="d"),
    BrokerUnfenced(node_id=0),
    BrokerRegistered(node_id=1, host="h", port=2, incarnation="j", features=(("metadata.version", 25, 26),)),
    BrokerUnfenced(node_id=1),
    TopicCreated(name="a", topic_id=A, replicas=((0, 1), (1, 0)), overrides={"retention.ms": "5"}),
    PartitionChanged(topic_id=A, partition=1, leader=0, isr=(0,), elr=(1,)),
    TopicCreated(name="b", topic_id=B, replicas=((1,),)),
    BrokersConfigured(node_id=None, overrides={"num.partitions": "2"}),
    BrokersConfigured(node_id=1, overrides={"num.partitions": "3"}),
    GroupConfigured(group="g", overrides={"consumer.session.timeout.ms": "50000"}),
    ProducerIdsReserved(end=1000),
    AccessControlEntryRecord(
        id=A,
        resource_type=2,
        resource_name="a",
        pattern_type=3,
        principal="User:u",
        host="*",
        operation=3,
        permission_type=3,
    ),
    UserScramCredentialRecord(name="u", mechanism=1, salt="00", stored_key="01", server_key="02", iterations=4096),
    BrokerFenced(node_id=1),
    PartitionsAdded(topic_id=A, replicas=((0,),)),
    TopicDeleted(topic_id=B),
    RemoveAccessControlEntryRecord(id=A),
    RemoveUserScramCredentialRecord(name="u", mechanism=1),
    ProducerIdsReserved(end=2000),
]


def replayed(records: list[MetadataRecord], image: ClusterImage | None = None) -> ClusterImage:
    image = image or ClusterImage()
    for record in records:
        image.replay(record)
    return image


@pytest.mark.parametrize("at", range(len(RECORDS) + 1))
def test_a_snapshot_anywhere_changes_nothing(at: int) -> None:
    restored = decode_image(encode_image(replayed(RECORDS[:at])), None)
    assert replayed(RECORDS[at:], restored) == replayed(RECORDS)


def test_no_field_of_an_image_is_forgotten() -> None:
    image = replayed(RECORDS[:-5])
    empty = ClusterImage()
    told = {each.name for each in fields(image) if getattr(image, each.name) != getattr(empty, each.name)}
    assert told == {each.name for each in fields(image)} - {"defaults", "static"}, "the records above fill every field"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version":1}'])
def test_what_is_no_snapshot_is_said(data: bytes) -> None:
    with pytest.raises(UnknownMetadataRecordError):
        decode_image(data, None)


def test_the_records_of_a_decision_stay_together() -> None:
    assert decode_all(encode_all(RECORDS)) == RECORDS
    assert list(decode_all(encode_all([]))) == []
