"""Settings: what they may be, what they are called, and how a change of one takes effect in a partition."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from log_broker.config.broker import BROKER_ALIASES, BROKER_KEYS, DAY_MS, HOUR_MS, BrokerConfig, TopicConfig
from log_broker.config.page import with_tables
from log_broker.config.topic_keys import TOPIC_KEY_OF_BROKER_NAME, TOPIC_KEYS
from log_broker.core.cluster.controller import (
    Alteration,
    CreateTopic,
    Operation,
    configure_brokers,
    configure_topic,
    create_topic,
)
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import BrokerRegistered, BrokersConfigured, BrokerUnfenced
from log_broker.core.partition.epochs import LeaderEpochs
from log_broker.core.partition.partition import Partition
from log_broker.core.partition.producers import ProducerStates
from log_broker.core.partition.protocol import Append, AppendResult, Effect, Reply, TurnEnded, Write, Written
from log_broker.core.partition.writing import ReplicaState
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import Codec, build_batch, iterate_records, read_header
from log_broker.records.batch import HEADER, seal

NOW_MS = 1_700_000_000_000
STATIC = BrokerConfig(data_dir=Path("data"))


def config(**overrides: str) -> TopicConfig:
    return TopicConfig.from_overrides({name.replace("_", "."): value for name, value in overrides.items()}, None)


def partition(**overrides: str) -> Partition:
    topic = config(**overrides)
    return Partition(
        ReplicaState("t", topic, producers=ProducerStates(), epochs=LeaderEpochs(), log_start_offset=0, end_offset=0)
    )


def append(core: Partition, batch: bytes | bytearray) -> Sequence[Effect]:
    return core.handle(Append(memoryview(bytearray(batch)), -1, "a"), NOW_MS)


def refusal(core: Partition, batch: bytes | bytearray) -> AppendResult:
    (reply,) = append(core, batch)
    assert isinstance(reply, Reply)
    return reply.result


def stored(core: Partition, batch: bytes | bytearray) -> bytes:
    """Append and return the batch as it is written."""
    append(core, batch)
    (write,) = core.handle(TurnEnded(), NOW_MS)
    assert isinstance(write, Write)
    (pending,) = write.batches
    assert pending.batch is not None
    core.handle(Written(1, write.sync), NOW_MS)
    return bytes(pending.batch)


def at(*timestamps: int, codec: Codec = Codec.NONE) -> bytearray:
    return build_batch([(timestamp, b"k", b"v" * 100, ()) for timestamp in timestamps], codec=codec)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("cleanup.policy", "compact,shred", "delete, compact"),
        ("compression.type", "brotli", "producer, uncompressed, gzip, snappy, lz4, zstd"),
        ("compression.gzip.level", "10", "-1 … 9"),
        ("retention.ms", "soon", "is not a long"),
        ("retention.ms", "-2", "-1 … "),
        ("min.cleanable.dirty.ratio", "1.5", "0 … 1"),
        ("preallocate", "yes", "is not a boolean"),
        ("fluvial.durability", "disk", "memory, fsync-leader, fsync-quorum"),
    ],
)
def test_a_refusal_names_the_setting_the_value_and_what_is_allowed(name: str, text: str, said: str) -> None:
    with pytest.raises(BrokerError, match="Invalid value") as refused:
        TopicConfig.from_overrides({name: text})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    message = str(refused.value)
    assert name in message
    assert text in message
    assert said in message


@pytest.mark.parametrize("names", [TOPIC_KEYS, BROKER_KEYS])
def test_every_default_is_allowed_and_every_setting_is_explained(names) -> None:
    for name, key in names.items():
        key.parse(key.default)
        assert key.doc.endswith("."), name


def test_every_setting_of_a_topic_has_a_default_in_the_broker() -> None:
    assert set(TOPIC_KEY_OF_BROKER_NAME.values()) == set(TOPIC_KEYS)
    broker = STATIC.with_settings({"log.segment.bytes": "1000000", "compression.type": "zstd"})
    assert TopicConfig.from_overrides({}, broker).segment_bytes == 1_000_000
    assert TopicConfig.from_overrides({"compression.type": "lz4"}, broker).compression_type == "lz4"


def test_the_finest_unit_holds() -> None:
    def retention(**settings: str) -> int:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        return TopicConfig.from_overrides({}, STATIC.with_settings(names)).retention_ms

    assert retention() == 7 * DAY_MS
    assert retention(log_retention_hours="2") == 2 * HOUR_MS
    assert retention(log_retention_hours="2", log_retention_minutes="3") == 180_000
    assert retention(log_retention_hours="2", log_retention_ms="5", log_retention_minutes="3") == 5
    assert retention(log_retention_hours="-1") == -1
    with pytest.raises(BrokerError, match=r"log\.retention\.hours"):
        retention(log_retention_hours="long")


def alter_brokers(*alterations: tuple[str, int, str | None], node_id: int | None = None) -> BrokersConfigured:
    wanted = [Alteration(*alteration) for alteration in alterations]
    return configure_brokers(cluster(), node_id, wanted, STATIC)


def cluster() -> ClusterImage:
    image = ClusterImage(defaults=STATIC)
    image.replay(BrokerRegistered(node_id=0, host="here", port=9092, incarnation="a"))
    image.replay(BrokerUnfenced(node_id=0))
    return image


def test_a_brokers_setting_in_another_unit_is_kept_in_ms() -> None:
    record = alter_brokers(("log.retention.hours", Operation.SET, "2"))
    assert record.overrides == {"log.retention.ms": str(2 * HOUR_MS)}
    assert set(BROKER_ALIASES) & set(BROKER_KEYS) == set()


@pytest.mark.parametrize("name", ["node.id", "log.dirs", "listeners", "num.recovery.threads.per.data.dir"])
def test_what_is_fixed_at_start_is_not_changed(name: str) -> None:
    with pytest.raises(BrokerError, match="Cannot update these configs dynamically") as refused:
        alter_brokers((name, Operation.SET, "3"))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_settings_that_contradict_each_other_are_refused_where_they_are_made() -> None:
    lags = {"min.compaction.lag.ms": "2000", "max.compaction.lag.ms": "1000"}
    image = cluster()
    with pytest.raises(BrokerError, match="larger than") as refused:
        create_topic(image, CreateTopic(name="t", topic_id="1", overrides=lags), STATIC)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    image.replay(create_topic(image, CreateTopic(name="t", topic_id="1", overrides={}), STATIC))
    alterations = [Alteration(name, Operation.SET, text) for name, text in lags.items()]
    with pytest.raises(BrokerError, match="larger than"):
        configure_topic(image, image.topics["t"], alterations)
    with pytest.raises(BrokerError, match="larger than"):
        alter_brokers(
            ("log.cleaner.min.compaction.lag.ms", Operation.SET, "2000"),
            ("log.cleaner.max.compaction.lag.ms", Operation.SET, "1000"),
        )


def test_the_cluster_metadata_is_no_topic_of_clients() -> None:
    with pytest.raises(BrokerError, match="__cluster_metadata"):
        create_topic(cluster(), CreateTopic(name="__cluster_metadata", topic_id="1"), STATIC)


def test_by_default_a_timestamp_lies_at_most_an_hour_ahead() -> None:
    result = refusal(partition(), at(NOW_MS, NOW_MS + HOUR_MS + 1, NOW_MS + 5 * HOUR_MS))
    assert result.error is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in result.record_errors] == [1, 2]
    assert stored(partition(), at(NOW_MS + HOUR_MS))
    assert stored(partition(), at(5)), "by default the past is welcome"
    assert stored(partition(message_timestamp_type="LogAppendTime"), at(NOW_MS + 5 * HOUR_MS))


def test_a_header_that_claims_a_time_none_of_its_records_has_is_refused() -> None:
    batch = at(NOW_MS)
    HEADER.pack_into(batch, 0, *read_header(batch)._replace(max_timestamp=NOW_MS + 2 * HOUR_MS))
    seal(batch)
    assert refusal(partition(), batch).error is ErrorCode.INVALID_TIMESTAMP


def test_a_bound_on_the_past_looks_at_every_record() -> None:
    core = partition(message_timestamp_before_max_ms="1000")
    result = refusal(core, at(NOW_MS, NOW_MS - 1001, NOW_MS - 1000))
    assert (result.error, [index for index, _ in result.record_errors]) == (ErrorCode.INVALID_TIMESTAMP, [1])


@pytest.mark.parametrize("sent", list(Codec))
@pytest.mark.parametrize("kept", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_stores_its_own_codec_whatever_arrives(sent: Codec, kept: str) -> None:
    batch = at(NOW_MS, NOW_MS + 1, codec=sent)
    found = stored(partition(compression_type=kept), batch)
    assert read_header(found).compression == (0 if kept == "uncompressed" else Codec[kept.upper()])
    assert [record.value for record in iterate_records(found)] == [record.value for record in iterate_records(batch)]
    assert stored(partition(), batch)[21:] == bytes(batch)[21:], "producer keeps the very bytes"


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", "1", "9"), ("lz4", "1", "17"), ("zstd", "-50", "19")])
def test_the_level_is_the_topics(codec: str, low: str, high: str) -> None:
    text = Path(__file__).read_bytes()
    batch = build_batch([(NOW_MS, None, text, ())])

    def size(level: str) -> int:
        return len(stored(partition(compression_type=codec, **{f"compression_{codec}_level": level}), batch))

    assert size(high) < size(low) < len(batch)


def test_the_largest_size_holds_for_what_arrives_and_for_what_is_stored() -> None:
    batch = at(*range(NOW_MS, NOW_MS + 50), codec=Codec.ZSTD)
    assert len(batch) < 1000
    assert stored(partition(max_message_bytes="1000"), batch)
    result = refusal(partition(max_message_bytes="1000", compression_type="uncompressed"), batch)
    assert result.error is ErrorCode.MESSAGE_TOO_LARGE


def test_a_level_that_rises_takes_in_what_was_acknowledged_before() -> None:
    core = partition(fluvial_durability="memory")
    stored(core, at(NOW_MS))
    assert core.state.unsynced_records == 1
    assert core.writes.next_deadline_ms() is None
    core.configure(config(fluvial_durability="fsync-leader"))
    assert core.writes.next_deadline_ms() == NOW_MS
    (write,) = core.writes.tick(NOW_MS)
    assert write == Write([], sync=True)
    core.handle(Written(0, synced=True), NOW_MS)
    assert core.state.unsynced_records == 0
    assert core.writes.next_deadline_ms() is None


def test_the_page_says_what_the_code_has() -> None:
    page = (Path(__file__).parents[5] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert with_tables(page) == page, "python -m log_broker.config.page docs/configuration.md writes it again"
    for name in [*TOPIC_KEYS, *BROKER_KEYS, *BROKER_ALIASES]:
        assert f"| `{name}` |" in page
    with pytest.raises(ValueError, match="no part"):
        with_tables("# Settings\n")
