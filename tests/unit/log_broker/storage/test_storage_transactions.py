"""Markers, the index of aborted transactions, the state of producers: on the disk, after crashes, under compaction."""

import struct

import pytest
from partition_bench import DIRECTORY, Bench

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.producers import AbortedTransaction
from log_broker.core.partition.protocol import EndTransaction
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.records.batch import CONTROL, TRANSACTIONAL, batches_in
from log_broker.records.control import EndMarker, build_marker, read_marker
from log_broker.storage.memory_files import MemoryFileSystem

HOUR_MS = 3_600_000


def bench_of(files: MemoryFileSystem, *, clean: bool = False, **overrides: str) -> Bench:
    texts = {name.replace("_", "."): text for name, text in overrides.items()}
    return Bench(files, TopicConfig.from_overrides(texts, None), clean=clean)


def write(bench: Bench, producer_id: int, *keys: bytes, epoch: int = 0, sequence: int = 0) -> ErrorCode:
    transactions = bench.core.state.transactions
    transactions.expect(producer_id, epoch, sequence)
    transactions.answered(producer_id)
    transactions.allow(producer_id, epoch)
    batch = build_batch(
        [(1, key, b"v", ()) for key in keys],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )
    bench.append(batch, "token")
    bench.settle()
    return bench.answers[-1][1].error


def end(
    bench: Bench, producer_id: int, *, committed: bool, epoch: int = 0, coordinator: int = 0, bumped: bool = False
) -> ErrorCode:
    event = EndTransaction(producer_id, epoch, EndMarker(committed, coordinator), "token", bumped=bumped)
    bench._take(bench.core.handle(event, bench.now_ms))
    bench.settle()
    return bench.answers[-1][1].error


def roll(bench: Bench) -> None:
    assert bench.log.roll_active(bench.core.writes.producer_rows, bench.now_ms)


def markers(bench: Bench) -> list[int]:
    found = []
    for segment in bench.log.segments:
        for _, header in batches_in(segment.file.read_at(0, segment.size)):
            if header.is_control and header.record_count:
                found.append(header.base_offset)
    return found


def without_snapshots(files: MemoryFileSystem) -> None:
    for name in files.names(DIRECTORY):
        if name.endswith(".snapshot"):
            files.remove(DIRECTORY / name)


def test_a_marker_is_a_control_batch_of_one_record() -> None:
    batch = build_marker(7, 3, EndMarker(committed=True, coordinator_epoch=9), 1_000)
    ((_, header),) = batches_in(batch)
    assert header.attributes == CONTROL | TRANSACTIONAL
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (7, 3, -1, 1)
    # attributes, timestamp delta, offset delta; key: version 0, type 1; value: version 0, coordinator epoch; no headers
    assert bytes(batch[61:]) == bytes([32, 0, 0, 0, 8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 9, 0])
    assert read_marker(batch) == EndMarker(committed=True, coordinator_epoch=9)


def test_the_last_stable_offset_follows_the_oldest_open_transaction() -> None:
    bench = bench_of(MemoryFileSystem())
    write(bench, 1, b"a")
    write(bench, 2, b"b", b"c")
    assert bench.core.state.last_stable_offset == 0
    end(bench, 1, committed=True)
    assert bench.core.state.last_stable_offset == 1
    write(bench, 1, b"d", sequence=1)
    end(bench, 2, committed=False)
    assert bench.core.state.last_stable_offset == 4
    end(bench, 1, committed=False)
    assert bench.core.state.last_stable_offset == bench.core.state.high_watermark == 7
    # As Kafka's rule has it: the second's first offset, then what follows the marker.
    assert bench.log.aborted.of(0) == [AbortedTransaction(2, 1, 5, 4), AbortedTransaction(1, 4, 6, 7)]
    assert bench.log.aborted.between(0, 7) == [(2, 1), (1, 4)]
    assert bench.log.aborted.between(0, 3) == [(2, 1)]
    assert bench.log.aborted.between(6, 7) == [(1, 4)]


def test_a_marker_from_the_past_is_refused() -> None:
    bench = bench_of(MemoryFileSystem())
    write(bench, 1, b"a", epoch=5)
    assert end(bench, 1, committed=True, epoch=4) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(bench, 1, committed=True, epoch=5, coordinator=3) is ErrorCode.NONE
    assert end(bench, 1, committed=True, epoch=5, coordinator=2) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    late = EndTransaction(1, 5, EndMarker(False, 3), "token", bumped=True)
    write(bench, 1, b"b", epoch=5, sequence=1)
    bench._take(bench.core.handle(late, bench.now_ms))
    assert bench.answers[-1][1].error is ErrorCode.INVALID_PRODUCER_EPOCH, "it would end the next transaction"


def test_outside_its_open_transaction_a_producer_writes_nothing() -> None:
    bench = bench_of(MemoryFileSystem())
    write(bench, 1, b"a")
    plain = build_batch([(1, b"k", b"v", ())], producer_id=1, producer_epoch=0, base_sequence=1)
    bench.append(plain, "token")
    assert bench.answers[-1][1].error is ErrorCode.INVALID_TXN_STATE
    end(bench, 1, committed=True)
    bench.append(plain, "token")
    bench.settle()
    assert bench.answers[-1][1].error is ErrorCode.NONE


def test_no_batch_overtakes_one_that_waits_for_the_coordinator() -> None:
    bench = bench_of(MemoryFileSystem())
    bench.core.state.transactions.expect(1, 0, 0)
    assert write(bench, 1, b"b", sequence=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(bench, 1, b"a", sequence=0) is ErrorCode.NONE
    assert write(bench, 1, b"b", sequence=1) is ErrorCode.NONE


def test_a_batch_of_the_next_transaction_may_be_here_before_the_marker_of_the_last() -> None:
    """A producer of KIP-890 goes on under its next epoch when the end is decided, not when the markers are written."""
    bench = bench_of(MemoryFileSystem())
    write(bench, 1, b"a", epoch=5)
    bench.core.state.transactions.expect(1, 6, 0)
    assert end(bench, 1, committed=True, epoch=6, bumped=True) is ErrorCode.NONE
    assert write(bench, 1, b"b", epoch=6) is ErrorCode.NONE


@pytest.mark.parametrize(("epoch", "bumped"), [(5, False), (6, True), (7, True)])
def test_a_batch_of_a_transaction_that_a_marker_has_ended_stays_out(epoch: int, bumped: bool) -> None:
    bench = bench_of(MemoryFileSystem())
    transactions = bench.core.state.transactions
    transactions.expect(1, 5, 0)
    end(bench, 1, committed=False, epoch=epoch, bumped=bumped)
    transactions.allow(1, 5)
    late = build_batch(
        [(1, b"k", b"v", ())], producer_id=1, producer_epoch=5, base_sequence=0, attributes=TRANSACTIONAL
    )
    bench.append(late, "late")
    assert bench.answers[-1][1].error in {ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH}


@pytest.mark.parametrize("clean", [True, False])
def test_open_transactions_survive_a_restart(clean) -> None:
    files = MemoryFileSystem()
    bench = bench_of(files)
    write(bench, 1, b"a", epoch=2)
    write(bench, 2, b"b")
    end(bench, 2, committed=False, epoch=1, coordinator=4)
    if clean:
        bench.close()
    else:
        files = files.crash()
    bench = bench_of(files, clean=clean)
    assert bench.core.state.last_stable_offset == 0
    assert bench.core.state.transactions.is_open(1, 2)
    marked = bench.core.state.producers.get(2)
    assert marked is not None
    assert (marked.epoch, marked.coordinator_epoch, marked.first_offset) == (1, 4, -1)
    assert bench.log.aborted.between(0, 3) == [(2, 1)]
    end(bench, 1, committed=True, epoch=2)
    assert bench.core.state.last_stable_offset == 4


def test_the_index_of_a_closed_segment_is_on_the_disk_in_kafkas_format() -> None:
    files = MemoryFileSystem()
    bench = bench_of(files)
    write(bench, 1, b"a")
    end(bench, 1, committed=False)
    roll(bench)
    expected = struct.pack(">hqqqq", 0, 1, 0, 1, 2)
    files = files.crash()
    assert files.read(DIRECTORY / f"{0:020d}.txnindex") == expected
    bench = bench_of(files)
    assert bench.log.aborted.between(0, 2) == [(1, 0)]
    bench.close()
    assert bench_of(files, clean=True).log.aborted.between(0, 2) == [(1, 0)]
    without_snapshots(files)
    files.remove(DIRECTORY / f"{0:020d}.txnindex")
    assert bench_of(files).log.aborted.between(0, 2) == [(1, 0)], "made again from the log"
    assert files.read(DIRECTORY / f"{0:020d}.txnindex") == expected


def test_an_index_goes_with_its_segment() -> None:
    files = MemoryFileSystem()
    bench = bench_of(files)
    write(bench, 1, b"a")
    end(bench, 1, committed=False)
    roll(bench)
    for path in bench.log.remove_first():
        files.remove(path)
    assert not bench.log.aborted
    assert not [name for name in files.names(DIRECTORY) if name.endswith(".txnindex")]


def compacting(bench: Bench, compacted_to: int, *, hours: int = 0) -> int:
    """Make a pass over everything, which a record of another key makes due."""
    bench.append(build_batch([(1, b"other", b"v", ())]), "token")
    bench.settle()
    roll(bench)
    bench.now_ms += hours * HOUR_MS
    return bench.compact(compacted_to)


COMPACT = {"cleanup.policy": "compact", "delete.retention.ms": "1000"}


def test_a_marker_stays_as_long_as_a_record_of_its_transaction() -> None:
    files = MemoryFileSystem()
    bench = bench_of(files, **COMPACT)
    write(bench, 1, b"a", b"b")
    end(bench, 1, committed=True)
    end(bench, 9, committed=True)
    at = 0
    for _ in range(4):
        at = compacting(bench, at, hours=1)
    assert markers(bench) == [2], "that of nothing is gone, that of the records is there"
    without_snapshots(files)
    assert bench_of(files.crash(), **COMPACT).core.state.last_stable_offset == bench.core.state.last_stable_offset
    bench.append(build_batch([(1, b"a", b"new", ()), (1, b"b", b"new", ())]), "token")
    at = compacting(bench, at)
    assert markers(bench) == [2]
    bench.core.state.producers.expire(10**15)
    at = compacting(bench, at)
    at = compacting(bench, at)
    assert markers(bench) == [2], "readers that are between record and marker get delete.retention.ms"
    compacting(bench, at, hours=1)
    assert markers(bench) == []


def test_what_was_aborted_goes_and_replaces_nothing() -> None:
    files = MemoryFileSystem()
    bench = bench_of(files, **COMPACT)
    bench.append(build_batch([(1, b"a", b"kept", ())]), "token")
    write(bench, 1, b"a", b"b")
    end(bench, 1, committed=False)
    at = compacting(bench, 0)
    assert [(r.offset, r.key) for r in bench.read_all() if r.key in {b"a", b"b"}] == [(0, b"a")]
    assert markers(bench) == [3]
    assert bench.log.aborted.between(0, 4) == [(1, 1)]
    bench.core.state.producers.expire(10**15)
    for _ in range(3):
        at = compacting(bench, at, hours=1)
    assert markers(bench) == []
    assert not bench.log.aborted, "a reader that is told of it would wait for its marker for ever"
    assert not bench_of(files.crash(), **COMPACT).log.aborted


def test_nothing_is_compacted_behind_an_open_transaction() -> None:
    bench = bench_of(MemoryFileSystem(), **COMPACT)
    bench.append(build_batch([(1, b"a", b"1", ())]), "token")
    write(bench, 1, b"x")
    bench.append(build_batch([(1, b"a", b"2", ())]), "token")
    bench.settle()
    roll(bench)
    assert bench.compact(0) == 0
    assert len(bench.read_all()) == 3


def test_an_open_transaction_keeps_its_producer_from_being_forgotten() -> None:
    bench = bench_of(MemoryFileSystem())
    write(bench, 1, b"a")
    assert bench.core.state.producers.expire(10**15) == 0
    end(bench, 1, committed=True)
    assert bench.core.state.producers.expire(10**15) == 1
