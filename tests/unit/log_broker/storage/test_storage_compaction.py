"""What compaction plans, what it keeps of a batch, and what recovery makes of a log with holes."""

import pytest
from partition_bench import DIRECTORY, Bench

from log_broker.config.broker import TopicConfig
from log_broker.records import Codec, batches_in, build_batch, iterate_records, read_header
from log_broker.records.batch import CONTROL, crc_is_valid
from log_broker.storage import compaction
from log_broker.storage.compaction import (
    DELETE_HORIZON,
    ClosedSegment,
    DamagedSegmentError,
    OffsetMap,
    Retention,
    group_segments,
    plan_compaction,
)
from log_broker.storage.files import OsFileSystem
from log_broker.storage.memory_files import MemoryFileSystem

HOUR_MS = 3_600_000


def config(**overrides: str) -> TopicConfig:
    texts = {"cleanup.policy": "compact", "segment.bytes": "400", "delete.retention.ms": "1000"}
    return TopicConfig.from_overrides(texts | {name.replace("_", "."): text for name, text in overrides.items()}, None)


SEGMENTS = [
    ClosedSegment(0, 10, 300, max_timestamp=1_000, first_timestamp=500),
    ClosedSegment(10, 20, 100, max_timestamp=3_000, first_timestamp=2_000),
    ClosedSegment(20, 30, 100, max_timestamp=2_500, first_timestamp=2_400),
]


def test_what_was_compacted_before_is_clean_and_the_rest_dirty() -> None:
    plan = plan_compaction(SEGMENTS, first_dirty_offset=10, limits=config(), now_ms=5_000)
    assert plan is not None
    assert (plan.first_dirty_offset, plan.end_offset, plan.dirty_ratio) == (10, 30, 0.4)
    assert not plan.is_overdue
    assert plan_compaction(SEGMENTS, first_dirty_offset=30, limits=config(), now_ms=5_000) is None


def test_young_records_and_all_behind_them_wait() -> None:
    limits = config(min_compaction_lag_ms="2000")
    assert plan_compaction(SEGMENTS, first_dirty_offset=10, limits=limits, now_ms=4_999) is None
    plan = plan_compaction(SEGMENTS, first_dirty_offset=0, limits=limits, now_ms=4_999)
    assert plan is not None
    assert plan.end_offset == 10
    plan = plan_compaction(SEGMENTS, first_dirty_offset=0, limits=limits, now_ms=5_000)
    assert plan is not None
    assert plan.end_offset == 30


def test_a_record_that_waited_for_too_long_makes_the_log_due() -> None:
    limits = config(max_compaction_lag_ms="2000")
    for now_ms, overdue in ((4_000, False), (4_001, True)):
        plan = plan_compaction(SEGMENTS, first_dirty_offset=10, limits=limits, now_ms=now_ms)
        assert plan is not None
        assert plan.is_overdue is overdue


def test_neighbours_become_one_as_long_as_they_fit() -> None:
    assert group_segments(SEGMENTS, bytes_max=400) == [slice(0, 2), slice(2, 3)]
    assert group_segments(SEGMENTS, bytes_max=100) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    far = [ClosedSegment(0, 10, 1), ClosedSegment(2**31 - 5, 2**31 + 5, 1)]
    assert group_segments(far, bytes_max=400) == [slice(0, 1), slice(1, 2)]
    assert group_segments([], bytes_max=400) == []


def test_the_offset_map_is_bounded_and_takes_no_key_for_another() -> None:
    offsets = OffsetMap(1000)
    for at in range(5):
        assert not offsets.is_full
        offsets.put(b"%d" % at * (20 * at + 1), at)
    assert offsets.is_full
    assert [offsets.get(b"%d" % at * (20 * at + 1)) for at in range(5)] == list(range(5))
    assert offsets.get(b"other") == -1


def filled(bench: Bench, batches: list[bytes | bytearray]) -> Bench:
    for batch in batches:
        bench.append(batch)
        bench.settle()
    return bench


def close_segment(bench: Bench) -> None:
    assert bench.log.roll_active(bench.core.writes.producer_rows, bench.now_ms)


def stored(bench: Bench) -> list[tuple]:
    """(header, records) of every batch in the closed segments."""
    found = []
    for segment in bench.log.segments[:-1]:
        data = segment.file.read_at(0, segment.size)
        for at, header in batches_in(data):
            assert crc_is_valid(data[at : at + header.size], header.crc)
            found.append((header, list(iterate_records(data[at : at + header.size]))))
    return found


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_keeps_its_offsets_sequences_codec_and_headers(codec) -> None:
    bench = Bench(MemoryFileSystem(), config())
    records = [(100 + at, b"k%d" % (at % 3), b"v%d" % at * 50, (("h", b"%d" % at),)) for at in range(6)]
    producer = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 40}
    filled(bench, [build_batch(records, codec=codec, **producer), build_batch([(200, b"k0", b"later", ())])])
    close_segment(bench)

    assert bench.compact(0) == 7

    (first, kept), (second, _) = stored(bench)
    assert (first.base_offset, first.last_offset, first.compression) == (0, 5, codec)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (9, 2, 40)
    assert first.record_count == 2
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in kept] == [
        (at, 100 + at, b"k%d" % (at % 3), b"v%d" % at * 50, (("h", b"%d" % at),)) for at in (4, 5)
    ]
    assert first.max_timestamp == 105
    assert second.base_offset == 6


def test_a_tombstone_stays_for_its_time_after_it_was_first_rewritten() -> None:
    bench = Bench(MemoryFileSystem(), config())
    filled(bench, [build_batch([(100, b"k", b"v", ()), (101, b"k", None, ()), (102, b"other", b"v", ())])])
    close_segment(bench)
    bench.now_ms += HOUR_MS  # how long it lay in the dirty part does not count

    bench.compact(0)

    ((header, records),) = stored(bench)
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == bench.now_ms + 1000
    assert [(r.offset, r.timestamp, r.value) for r in records] == [(1, 101, None), (2, 102, b"v")]
    bench.now_ms += 999
    bench.compact(0)
    assert stored(bench) == [(header, records)]
    bench.now_ms += 1
    bench.compact(0)
    ((_, records),) = stored(bench)
    assert [(r.offset, r.timestamp, r.value) for r in records] == [(2, 102, b"v")]


def test_records_without_a_key_go_and_markers_stay() -> None:
    bench = Bench(MemoryFileSystem(), config(cleanup_policy="delete"))
    filled(bench, [build_batch([(1, None, b"no key", ())]), build_batch([(2, b"k", b"v", ())])])
    marker = build_batch([(3, b"\0\0\0\0", b"\0\0\0\0\0\0", ())], attributes=CONTROL, base_offset=2)
    segment = bench.log.segments[-1]
    segment.file.write_at(segment.size, [marker])
    bench = Bench(bench.files, config())
    assert bench.core.state.next_offset == 3
    close_segment(bench)

    bench.compact(0)

    assert [(header.base_offset, header.is_control) for header, _ in stored(bench)] == [(1, False), (2, True)]


def test_only_closed_segments_below_the_high_watermark_are_compacted() -> None:
    bench = Bench(MemoryFileSystem(), config())
    filled(bench, [build_batch([(at, b"k", b"v%d" % at, ())]) for at in range(20)])
    active = bench.log.segments[-1].base_offset
    assert [end for _, end in bench.log.closed_segments(active - 1)] == [
        end for _, end in bench.log.closed_segments(active)
    ][:-1]
    assert bench.compact(0) == active
    assert [record.offset for record in bench.read_all()] == [active - 1, *range(active, 20)]


def test_many_keys_take_several_passes_and_small_segments_become_one() -> None:
    bench = Bench(MemoryFileSystem(), config())
    filled(bench, [build_batch([(at, b"key %d" % (at % 40), b"v%d" % at, ())]) for at in range(100)])
    close_segment(bench)
    segments = len(bench.log.segments)
    compacted_to, passes = 0, 0
    while compacted_to < 100:
        compacted_to = bench.compact(compacted_to, map_bytes_max=200 * 15)
        passes += 1
    assert passes > 3
    assert [record.offset for record in bench.read_all()] == list(range(60, 100))
    bench.compact(0)
    assert len(bench.log.segments) < segments / 2


def test_a_damaged_batch_is_not_copied() -> None:
    bench = Bench(MemoryFileSystem(), config())
    filled(bench, [build_batch([(at, b"k", b"v%d" % at, ())]) for at in range(20)])
    file = bench.log.segments[0].file
    file.write_at(65, [b"\xff"])
    before = bench.files.names(DIRECTORY)
    with pytest.raises(DamagedSegmentError):
        bench.compact(0)
    assert bench.files.names(DIRECTORY) == before


def test_a_compacted_segment_that_was_cut_does_not_grow_again() -> None:
    bench = Bench(MemoryFileSystem(), config(segment_bytes="4000"))
    filled(bench, [build_batch([(at, b"key %d" % (at // 2), b"v%d" % at, ())]) for at in range(20)])
    close_segment(bench)
    filled(bench, [build_batch([(99, b"k", b"lost", ())])])
    bench.compact(0)
    compacted = bench.log.segments[0]
    compacted.file.write_at(compacted.size - 1, [b"\xff"])

    again = Bench(bench.files, bench.core.state.config)
    found = [record.offset for record in again.read_all()]
    assert found == list(range(1, 19, 2)), "what lay behind the damage is gone"
    assert again.log.segments[-1].base_offset == again.core.state.next_offset == 18
    filled(again, [build_batch([(100, b"k", b"more", ())])])
    for _ in range(2):
        again = Bench(again.files, again.core.state.config)
        assert [record.offset for record in again.read_all()] == [*found, 18]


def test_a_reader_sees_the_same_before_and_after_on_real_files(tmp_path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    bench = Bench(OsFileSystem(), config(), directory=directory)
    filled(bench, [build_batch([(at, b"key %d" % (at % 5), b"v%d" % at, ())]) for at in range(50)])
    close_segment(bench)
    held = bench.log.segments[0].file
    before = held.read_at(0, bench.log.segments[0].size)
    old = bench.log.read(0, 200, 50, at_least_one=True)
    bench.compact(0)
    assert before.startswith(old)
    assert [record.offset for record in bench.read_all()] == list(range(45, 50))
    assert not [path for path in directory.iterdir() if path.suffix in {".cleaned", ".swap"}]
    bench.close()
    again = Bench(OsFileSystem(), config(), directory=directory, clean=True)
    assert [record.offset for record in again.read_all()] == list(range(45, 50))
    assert again.core.state.next_offset == 50


def test_a_power_cut_does_not_make_a_compacted_segment_the_last_one() -> None:
    files = MemoryFileSystem()
    bench = Bench(files, config(fluvial_durability="memory"))
    filled(bench, [build_batch([(at, b"key %d" % (at % 3), b"v%d" % at, ())]) for at in range(20)])
    sealed = bench.log.sealed_sync()
    assert sealed is not None
    assert bench.log.closed_segments(20) == [], "what a power cut could take is not compacted"
    sealed.run()
    bench.log.sealed_synced(sealed)
    active = bench.log.segments[-1].base_offset
    # The name of the active segment has never been brought to the disk by itself.
    files.remove(bench.log.segments[-1].path())
    files.sync_directory(DIRECTORY)

    bench.compact(0)

    again = Bench(files.crash(), bench.core.state.config)
    assert again.core.state.next_offset == active
    assert [record.offset for record in again.read_all()] == [active - 3, active - 2, active - 1]


def test_a_batch_of_more_records_than_are_taken_stays_as_it_is(monkeypatch) -> None:
    """What is noted of each record of sixteen million, as older brokers took them, would not fit in memory."""
    monkeypatch.setattr(compaction, "RECORDS_MAX", 2)
    retention = Retention(offsets=OffsetMap(1 << 16), end_offset=100, delete_retention_ms=0, now_ms=0)
    retention.offsets.put(b"k", 50)
    for count, stays in ((2, False), (3, True)):
        batch = memoryview(build_batch([(1, b"k", b"v", ())] * count))
        assert (retention.rewrite(batch, read_header(batch)) is batch) is stays
