"""The partition's decisions: what is written when, who is answered when, and what a failure undoes."""

from collections.abc import Sequence
from typing import Any

import pytest

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.epochs import LeaderEpochs
from log_broker.core.partition.partition import GATHERED_BYTES_MAX, Partition
from log_broker.core.partition.producers import ProducerStates
from log_broker.core.partition.protocol import (
    Append,
    AskTurn,
    Effect,
    Reply,
    TurnEnded,
    WatermarkMoved,
    Write,
    WriteFailed,
    Written,
)
from log_broker.core.partition.writing import ReplicaState
from log_broker.errors import ErrorCode
from log_broker.records import Codec, build_batch, iterate_records, read_header
from log_broker.records.batch import DELETE_HORIZON, TRANSACTIONAL, crc_is_valid

NOW = 5_000


def partition(end_offset: int = 0, **overrides: str) -> Partition:
    config = TopicConfig.from_overrides({name.replace("_", "."): value for name, value in overrides.items()}, None)
    return Partition(
        ReplicaState(
            "t",
            config,
            producers=ProducerStates(),
            epochs=LeaderEpochs(),
            log_start_offset=0,
            end_offset=end_offset,
        )
    )


def batch(count: int = 1, *, key: bytes | None = b"k", **fields: Any) -> memoryview:
    return memoryview(build_batch([(1000, key, b"v", ())] * count, **fields))


def numbered(sequence: int, count: int = 1, epoch: int = 0) -> memoryview:
    return batch(count, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def append(core: Partition, records: memoryview, token: str = "a", acks: int = -1) -> Sequence[Effect]:
    return core.handle(Append(records, acks, token), NOW)


def write_of(effects: Sequence[Effect]) -> Write:
    (write,) = [effect for effect in effects if isinstance(effect, Write)]
    return write


def replies(effects: Sequence[Effect]) -> list[tuple[str, ErrorCode, int]]:
    return [(e.token, e.result.error, e.result.base_offset) for e in effects if isinstance(e, Reply)]


def turn(core: Partition) -> Write:
    return write_of(core.handle(TurnEnded(), NOW))


def written(core: Partition, write: Write, count: int | None = None) -> Sequence[Effect]:
    return core.handle(Written(len(write.batches) if count is None else count, write.sync), NOW)


def test_nothing_is_said_or_seen_before_it_is_written() -> None:
    core = partition(end_offset=10)
    assert append(core, batch(3)) == (AskTurn(),)
    assert append(core, batch(2), "b") == ()
    assert core.state.high_watermark == 10
    write = turn(core)
    assert write.sync
    assert write.epochs == ((0, 10),), "on the disk before the first batch of an epoch"
    assert [(b.base_offset, b.last_offset) for b in write.batches] == [(10, 12), (13, 14)]

    effects = written(core, write)

    assert effects == [
        WatermarkMoved(15),
        Reply("a", write.batches[0].result),
        Reply("b", write.batches[1].result),
    ]
    assert replies(effects) == [("a", ErrorCode.NONE, 10), ("b", ErrorCode.NONE, 13)]
    assert core.state.high_watermark == core.state.synced_end == 15


def test_what_arrives_during_a_write_shares_the_next() -> None:
    core = partition()
    append(core, batch())
    first = turn(core)
    assert append(core, batch(), "b") == ()
    assert append(core, batch(), "c") == ()
    assert core.handle(TurnEnded(), NOW) == ()

    effects = written(core, first)

    assert replies(effects) == [("a", ErrorCode.NONE, 0)]
    second = write_of(effects)
    assert [b.base_offset for b in second.batches] == [1, 2]
    assert effects.index(second) < effects.index(Reply("a", first.batches[0].result)), "the disk works first"
    assert replies(written(core, second)) == [("b", ErrorCode.NONE, 1), ("c", ErrorCode.NONE, 2)]


def test_a_write_may_end_at_a_segment_and_go_on() -> None:
    core = partition()
    for token in "abc":
        append(core, batch(), token)
    effects = written(core, turn(core), count=2)
    assert [token for token, *_ in replies(effects)] == ["a", "b"]
    assert [b.base_offset for b in write_of(effects).batches] == [2]


def test_the_place_and_epoch_are_patched_into_the_producers_bytes() -> None:
    core = partition(end_offset=41)
    core.state.epochs.current = 6
    records = batch(2)
    append(core, records)
    header = read_header(records)
    assert (header.base_offset, header.leader_epoch) == (41, 6)
    assert crc_is_valid(records, header.crc)


def test_acks_0_is_answered_at_once_and_only_once() -> None:
    core = partition()
    effects = append(core, batch(), acks=0)
    assert replies(effects) == [("a", ErrorCode.NONE, 0)]
    assert replies(written(core, turn(core))) == []


def test_acks_0_waits_too_when_the_disk_is_far_behind() -> None:
    core = partition()
    large = [memoryview(build_batch([(1, b"k", bytes(900_000), ())])) for _ in range(12)]
    answered = [bool(replies(append(core, records, acks=0))) for records in large]
    assert answered == [len(large[0]) * count <= GATHERED_BYTES_MAX for count in range(1, 13)]
    assert len(replies(written(core, turn(core)))) == answered.count(False)
    assert replies(append(core, batch(), acks=0)) != []


def test_memory_durability_does_not_sync() -> None:
    core = partition(fluvial_durability="memory")
    append(core, batch(4))
    write = turn(core)
    assert not write.sync
    written(core, write)
    assert core.state.high_watermark == 4
    assert core.state.unsynced_records == 4


def test_flush_messages_asks_for_a_sync_when_so_many_are_unsynced() -> None:
    core = partition(fluvial_durability="memory", flush_messages="5")
    append(core, batch(4))
    write = turn(core)
    assert not write.sync
    written(core, write)
    append(core, batch(1))
    write = turn(core)
    assert write.sync
    written(core, write)
    assert core.state.unsynced_records == 0


def test_flush_ms_syncs_when_the_oldest_unsynced_record_is_so_old() -> None:
    core = partition(fluvial_durability="memory", flush_ms="100")
    assert core.writes.next_deadline_ms() is None
    append(core, batch())
    written(core, turn(core))
    assert core.writes.next_deadline_ms() == NOW + 100
    assert core.writes.tick(NOW + 99) == ()
    write = write_of(core.writes.tick(NOW + 100))
    assert (list(write.batches), write.sync) == ([], True)
    assert core.handle(Written(0, True), NOW + 101) == []
    assert core.state.unsynced_records == 0
    assert core.writes.next_deadline_ms() is None


def test_a_repeat_waits_for_the_batch_it_repeats() -> None:
    core = partition()
    append(core, numbered(0, 2), "first")
    write = turn(core)
    assert append(core, numbered(0, 2), "again") == ()
    effects = written(core, write)
    assert replies(effects) == [("first", ErrorCode.NONE, 0)]
    second = write_of(effects)
    assert [b.batch for b in second.batches] == [None]
    assert replies(written(core, second)) == [("again", ErrorCode.NONE, 0)]
    assert core.state.high_watermark == 2

    assert replies(append(core, numbered(0, 2), "late")) == [("late", ErrorCode.NONE, 0)]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (numbered(3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (numbered(0, epoch=1), None),
        (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch(attributes=TRANSACTIONAL), ErrorCode.INVALID_TXN_STATE),
        (batch(attributes=DELETE_HORIZON), ErrorCode.INVALID_RECORD),
    ],
)
def test_a_refusal_is_answered_at_once_and_leaves_no_trace(records, code) -> None:
    core = partition()
    append(core, numbered(0))
    written(core, turn(core))
    rows = core.writes.producer_rows(core.state.next_offset)
    effects = append(core, records)
    if code is None:
        assert effects == (AskTurn(),)
    else:
        assert [error for _, error, _ in replies(effects)] == [code]
        assert core.state.next_offset == 1
        assert core.writes.producer_rows(core.state.next_offset) == rows


def test_a_failed_write_undoes_everything_gathered() -> None:
    core = partition()
    append(core, numbered(0), "a")
    written(core, turn(core))
    append(core, numbered(1), "b")
    write = turn(core)
    append(core, numbered(2), "c")
    append(core, numbered(0, epoch=1), "d")

    effects = core.handle(WriteFailed("no space"), NOW)

    assert replies(effects) == [(token, ErrorCode.KAFKA_STORAGE_ERROR, -1) for token in "bcd"]
    assert len(write.batches) == 1
    assert core.state.next_offset == core.state.high_watermark == 1
    assert append(core, numbered(1), "b again") == (AskTurn(),)
    assert replies(written(core, turn(core))) == [("b again", ErrorCode.NONE, 1)]


def test_after_a_lost_sync_of_acknowledged_records_the_partition_takes_no_more() -> None:
    core = partition(fluvial_durability="memory", flush_ms="100")
    append(core, batch())
    written(core, turn(core))
    write_of(core.writes.tick(NOW + 100))
    assert core.handle(WriteFailed("i/o error", lost_sync=True), NOW) == []
    assert replies(append(core, batch(), "b")) == [("b", ErrorCode.KAFKA_STORAGE_ERROR, -1)]


def test_after_a_lost_sync_of_unacknowledged_records_it_goes_on() -> None:
    core = partition()
    append(core, batch())
    turn(core)
    effects = core.handle(WriteFailed("i/o error", lost_sync=True), NOW)
    assert replies(effects) == [("a", ErrorCode.KAFKA_STORAGE_ERROR, -1)]
    assert append(core, batch()) == (AskTurn(),)


def test_a_snapshot_leaves_out_what_is_only_gathered() -> None:
    core = partition()
    append(core, numbered(0))
    written(core, turn(core))
    before = core.writes.producer_rows(1)
    append(core, numbered(1))
    append(core, numbered(2))
    assert core.writes.producer_rows(1) == before
    assert len(core.writes.producer_rows(2)) == 2
    assert len(core.writes.producer_rows(3)) == 3


def test_log_append_time_stamps_the_batch_and_the_answer() -> None:
    core = partition(message_timestamp_type="LogAppendTime")
    records = batch(2)
    append(core, records)
    effects = written(core, turn(core))
    assert [r.timestamp for r in iterate_records(records)] == [NOW, NOW]
    assert crc_is_valid(records, read_header(records).crc)
    (reply,) = [e for e in effects if isinstance(e, Reply)]
    assert reply.result.log_append_time_ms == NOW


def test_records_of_long_ago_are_welcome() -> None:
    core = partition()
    records = memoryview(build_batch([(1_357_034_400_000, b"N14228", b"2013", ())]))
    assert core.handle(Append(records, -1, "a"), 1_790_000_000_000) == (AskTurn(),)


def test_a_topic_with_its_own_codec_recompresses() -> None:
    core = partition(compression_type="zstd")
    append(core, batch(50))
    (pending,) = turn(core).batches
    assert pending.batch is not None
    assert read_header(pending.batch).compression == Codec.ZSTD
    assert len(list(iterate_records(pending.batch))) == 50


def test_a_compacted_topic_refuses_records_without_a_key() -> None:
    core = partition(cleanup_policy="compact")
    (reply,) = append(core, batch(2, key=None))
    assert isinstance(reply, Reply)
    assert reply.result.error is ErrorCode.INVALID_RECORD
    assert [index for index, _ in reply.result.record_errors] == [0, 1]


def test_a_new_config_holds_from_the_next_batch() -> None:
    core = partition()
    core.configure(TopicConfig.from_overrides({"max.message.bytes": "10"}, None))
    assert [code for _, code, _ in replies(append(core, batch()))] == [ErrorCode.MESSAGE_TOO_LARGE]


def test_the_log_start_moves_forward_and_never_past_the_watermark() -> None:
    core = partition(end_offset=10)
    assert core.state.advance_log_start(4)
    assert not core.state.advance_log_start(3)
    assert core.state.advance_log_start(99)
    assert core.state.log_start_offset == 10


def test_epochs_know_where_they_end() -> None:
    epochs = LeaderEpochs([(0, 0), (2, 100), (5, 250)], current=5)
    assert epochs.end_offset(5, 400) == (5, 400)
    assert epochs.end_offset(2, 400) == (2, 250)
    assert epochs.end_offset(3, 400) == (2, 250)
    assert epochs.end_offset(1, 400) == (0, 100)
    assert epochs.end_offset(6, 400) == (-1, -1)
    epochs.advance_start(120)
    assert epochs.starts == ((2, 120), (5, 250))
    epochs.truncate(250)
    assert epochs.starts == ((2, 120),)
