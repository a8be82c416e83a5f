"""Segments, indexes, reads and retention of one log."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_bench import Bench

from log_broker.config.broker import TopicConfig
from log_broker.errors import ErrorCode
from log_broker.records import batches_in, build_batch
from log_broker.storage import time_search
from log_broker.storage.data_directory import DataDirectory, DataDirectoryError
from log_broker.storage.files import IOV_MAX, OsFileSystem
from log_broker.storage.index import OffsetIndex, TimeIndex
from log_broker.storage.memory_files import MemoryFileSystem
from log_broker.storage.time_search import batch_of_time, latest_timestamp


def config(**overrides: str) -> TopicConfig:
    defaults = {"segment.bytes": "1000", "index.interval.bytes": "100"}
    return TopicConfig.from_overrides(defaults | {k.replace("_", "."): v for k, v in overrides.items()}, None)


def bench_of(batches: int = 0, *, step_ms: int = 1, **overrides: str) -> Bench:
    bench = Bench(MemoryFileSystem(), config(**overrides))
    add(bench, batches, step_ms=step_ms)
    return bench


def add(bench: Bench, batches: int, *, step_ms: int = 1, size: int = 10) -> None:
    for _ in range(batches):
        at = bench.core.state.next_offset
        bench.append(build_batch([(at * step_ms, b"k", bytes(size), ())]), at)
        bench.settle()


def test_a_segment_ends_where_the_next_batch_would_make_it_too_large() -> None:
    bench = bench_of(50)
    sizes = [segment.size for segment in bench.log.segments]
    assert len(sizes) > 3
    assert all(size <= 1000 for size in sizes)
    assert all(size > 900 for size in sizes[:-1])


def test_a_batch_larger_than_a_segment_has_one_of_its_own() -> None:
    bench = bench_of(1)
    add(bench, 1, size=5000)
    add(bench, 1)
    assert [segment.base_offset for segment in bench.log.segments] == [0, 1, 2]
    assert len(bench.read_all()) == 3


def test_one_write_of_many_batches_is_split_at_segments() -> None:
    bench = bench_of()
    for at in range(40):
        bench.append(build_batch([(at, b"k", b"0123456789", ())]), at)
    bench.settle()
    assert bench.acknowledged() == list(range(40))
    assert all(segment.size <= 1000 for segment in bench.log.segments)
    assert len(bench.read_all()) == 40


def test_a_segment_ends_when_its_records_span_segment_ms() -> None:
    bench = bench_of(30, step_ms=10, segment_ms="100", segment_bytes="1000000")
    assert [segment.base_offset for segment in bench.log.segments] == [0, 11, 22]


@pytest.mark.parametrize("bytes_max", [1, 90, 200, 1000, 10**6])
def test_reads_return_whole_batches_within_their_bound(bytes_max) -> None:
    bench = bench_of(40)
    assert [record.offset for record in bench.read_all(bytes_max=bytes_max)] == list(range(40))


def test_every_offset_can_be_read_from() -> None:
    bench = bench_of()
    for _ in range(20):
        bench.append(build_batch([(1, b"k", b"v", ())] * 3))
    bench.settle()
    for offset in range(60):
        data = bench.log.read(offset, 1, 60, at_least_one=True)
        ((_, header),) = batches_in(data)
        assert header.base_offset == offset - offset % 3


def test_no_batch_is_returned_when_the_first_is_too_large_and_none_is_owed() -> None:
    bench = bench_of(3)
    assert bench.log.read(0, 10, 3, at_least_one=False) == b""
    assert bench.log.read(3, 10, 3, at_least_one=True) == b""


def test_nothing_beyond_the_given_end_is_read() -> None:
    bench = bench_of(40)
    for end in range(1, 41):
        data = bench.log.read(0, 10**6, end, at_least_one=True)
        assert max(header.last_offset for _, header in batches_in(data)) < end


def test_records_are_found_by_time() -> None:
    bench = bench_of(50, step_ms=10)
    find = bench.find_time
    assert find(0, from_offset=0, end_offset=50) == (0, 0)
    assert find(1, from_offset=0, end_offset=50) == (1, 10)
    assert find(333, from_offset=0, end_offset=50) == (34, 340)
    assert find(490, from_offset=0, end_offset=50) == (49, 490)
    assert find(491, from_offset=0, end_offset=50) is None
    assert find(333, from_offset=40, end_offset=50) == (40, 400)
    assert find(333, from_offset=0, end_offset=30) is None
    assert bench.find_max_timestamp(end_offset=50) == (49, 490)


def test_records_out_of_time_order_are_found_too() -> None:
    bench = bench_of()
    times = [50, 10, 90, 30, 90, 20]
    bench.append(build_batch([(time, b"k", b"v", ()) for time in times]))
    bench.settle()
    assert bench.find_time(40, from_offset=0, end_offset=6) == (0, 50)
    assert bench.find_time(60, from_offset=0, end_offset=6) == (2, 90)
    assert bench.find_max_timestamp(end_offset=6) == (2, 90)


def test_a_search_by_time_is_made_in_pieces(monkeypatch) -> None:
    """Batches older than the first one have no entry in the time index, so each header has to be looked at."""
    monkeypatch.setattr(time_search, "HEADERS_AT_ONCE_MAX", 10)
    bench = bench_of(segment_bytes="1000000")
    for time in (500, *[100] * 95, 600):
        bench.append(build_batch([(time, b"k", b"v", ())]))
    bench.settle()
    offset, steps = 0, 0
    while not (step := batch_of_time(bench.log.segments, 550, from_offset=offset, end_offset=97))[0]:
        assert step[1] > offset, "it gets on"
        offset, steps = step[1], steps + 1
    assert steps == 9
    assert step[1] == 97
    assert bench.find_time(550, end_offset=97) == (96, 600)


def test_the_times_of_one_segment_are_read_at_a_time() -> None:
    bench = bench_of(50, step_ms=10)
    bench.close()
    again = Bench(bench.files, config(), clean=True)
    segments = [segment for segment in again.log.segments[:-1] if segment.size]
    assert len(segments) > 3
    known = []
    while latest_timestamp(again.log.segments) is None:
        known.append(sum(segment.knows_times for segment in segments))
    assert known == list(range(1, len(segments) + 1))


def expired(bench: Bench, now_ms: int = 0, *, start: int = 0, by_config: bool = True) -> int:
    return bench.log.expired_segments(
        now_ms, log_start_offset=start, high_watermark=bench.core.state.high_watermark, by_config=by_config
    )


def test_old_segments_go() -> None:
    bench = bench_of(50, retention_ms="5")
    segments = len(bench.log.segments)
    assert expired(bench, 0) == 0
    assert expired(bench, 10**9) == segments - 1
    newest_of_first = bench.log.segments[0].max_timestamp[0]
    assert expired(bench, newest_of_first + 5) == 0
    assert expired(bench, newest_of_first + 6) == 1
    assert expired(bench, 10**9, by_config=False) == 0

    retired = bench.log.remove_first() + bench.log.remove_first()

    start = bench.log.start_offset
    assert start > 0
    bench.core.state.advance_log_start(start)
    assert [record.offset for record in bench.read_all()] == list(range(start, 50))
    names = bench.files.names(bench.directory)
    assert min(name for name in names if name.endswith(".log")) == f"{start:020d}.log"
    assert {path.name for path in retired} == {name for name in names if name.endswith(".deleted")}
    assert f"{0:020d}.log.deleted" in names, "it stays for as long as file.delete.delay.ms"
    Bench(bench.files, config())
    assert not [name for name in bench.files.names(bench.directory) if name.endswith(".deleted")], "gone with a start"


def test_a_segment_ends_when_its_index_is_full() -> None:
    bench = bench_of(50, segment_bytes="1000000", segment_index_bytes="60")
    assert len(bench.log.segments) == 5
    for segment in bench.log.segments[:-1]:
        assert len(segment.offset_index.to_bytes()) <= 60
        assert len(segment.time_index.to_bytes()) <= 60
    again = Bench(bench.files, config(segment_bytes="1000000", segment_index_bytes="60"))
    add(again, 50)
    assert all(len(segment.time_index.to_bytes()) <= 60 for segment in again.log.segments)
    assert [record.offset for record in again.read_all()] == list(range(100))


def test_jitter_ends_segments_of_different_logs_at_different_ages() -> None:
    def records_of_first(partition: int, jitter: int) -> int:
        limits = config(segment_bytes="1000000", segment_ms="1000", segment_jitter_ms=str(jitter))
        bench = Bench(MemoryFileSystem(), limits, directory=Path(f"data/t-{partition}"))
        while len(bench.log.segments) == 1:
            add(bench, 1, step_ms=10)
        return bench.log.segments[1].base_offset

    assert {records_of_first(partition, 0) for partition in range(10)} == {101}
    spread = [records_of_first(partition, 900) for partition in range(10)]
    assert len(set(spread)) > 5
    assert all(10 <= count <= 101 for count in spread)
    assert spread == [records_of_first(partition, 900) for partition in range(10)]


def test_the_oldest_go_when_there_is_too_much() -> None:
    bench = bench_of(50, retention_bytes="2500", retention_ms="-1")
    total = bench.log.size_bytes
    count = expired(bench)
    left = total - sum(segment.size for segment in bench.log.segments[:count])
    assert 2500 <= left < 2500 + 1000
    assert expired(bench_of(50, retention_ms="-1"), 10**12) == 0


def test_what_the_log_start_has_passed_goes() -> None:
    bench = bench_of(50, retention_ms="-1")
    second = bench.log.segments[1].base_offset
    assert expired(bench, start=second - 1) == 0
    assert expired(bench, start=second, by_config=False) == 1


def test_a_full_disk_refuses_and_forgets_and_then_goes_on() -> None:
    bench = bench_of(5)
    files = bench.files
    assert isinstance(files, MemoryFileSystem)
    files.room_bytes = 30
    add(bench, 1)
    assert bench.answers[-1][1].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(bench.read_all()) == 5
    files.room_bytes = None
    add(bench, 3)
    assert [record.offset for record in bench.read_all()] == list(range(8))


def test_index_files_are_kafkas() -> None:
    index = OffsetIndex()
    index.append(3, 0)
    index.append(9, 4200)
    assert index.to_bytes() == struct.pack(">iiii", 3, 0, 9, 4200)
    times = TimeIndex()
    times.maybe_append(1000, 3)
    times.maybe_append(900, 5)
    times.maybe_append(1001, 9)
    assert times.to_bytes() == struct.pack(">qiqi", 1000, 3, 1001, 9)
    again = TimeIndex.from_bytes(times.to_bytes())
    assert again is not None
    assert again.last == (1001, 9)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(0, 60_000))
def test_an_offset_index_never_leads_past_its_target(steps, target) -> None:
    index, offset, position, entries = OffsetIndex(), 0, 0, []
    for step in steps:
        offset += step
        index.append(offset, position)
        entries.append((offset, position))
        position += step
    entry = index.entry_before(target)
    found = 0 if entry is None else entry[1]
    assert found == max((p for o, p in entries if o <= target), default=0)
    read = OffsetIndex.from_bytes(index.to_bytes(), position)
    assert read is not None
    assert read.to_bytes() == index.to_bytes()


def test_a_write_of_more_buffers_than_one_call_takes(tmp_path) -> None:
    file = OsFileSystem().open(tmp_path / "f")
    buffers = [b"%05d" % at for at in range(2 * IOV_MAX + 7)]
    file.write_at(3, buffers)
    assert file.read_at(3, 10**6) == b"".join(buffers)
    assert file.size() == 3 + 5 * len(buffers)
    file.close()


def test_one_process_has_the_data_directory(tmp_path) -> None:
    first = DataDirectory(tmp_path / "data")
    first.acquire()
    with pytest.raises(DataDirectoryError, match="another broker process"):
        DataDirectory(tmp_path / "data").acquire()
    first.release()
    second = DataDirectory(tmp_path / "data")
    second.acquire()
    second.release()


def test_a_data_directory_that_cannot_be_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="cannot be written") as refusal:
        DataDirectory(tmp_path / "file" / "data").acquire()
    assert str(tmp_path / "file" / "data") in str(refusal.value)


def test_the_twin_forgets_what_was_not_synced() -> None:
    files = MemoryFileSystem()
    folder = Path("d")
    files.replace(folder / "kept", b"1")
    files.replace(folder / "unsynced", b"2", sync=False)
    file = files.open(folder / "log")
    file.write_at(0, [b"abc"])
    file.sync()
    assert files.crash().names(folder) == ["kept"], "a new file needs a sync of its directory"
    files.sync_directory(folder)
    file.write_at(3, [b"def"])
    after = files.crash(lambda tail: tail[:1])
    assert after.read(folder / "log") == b"abcd"
    assert after.read(folder / "unsynced") == b"2"[:1]
    assert files.crash().read(folder / "log") == b"abc"


def test_offsets_go_on_after_everything_has_expired() -> None:
    bench = bench_of(12, retention_ms="5")
    assert bench.log.active_expired(10**9)
    assert bench.log.roll_active(bench.core.writes.producer_rows, 10**9)
    for _ in range(expired(bench, 10**9)):
        bench.log.remove_first()
    bench.core.state.advance_log_start(bench.log.start_offset)
    assert bench.read_all() == []
    files = bench.files
    assert isinstance(files, MemoryFileSystem)

    assert Bench(files.crash(), config()).core.state.next_offset == 12, "whether or not the removal reached the disk"
    files.sync_directory(bench.directory)

    again = Bench(files.crash(), config())

    assert again.core.state.next_offset == again.core.state.log_start_offset == 12
    add(again, 1)
    assert [record.offset for record in again.read_all()] == [12]
