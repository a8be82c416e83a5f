"""
A partition with transactions against a plain list, through full disks, power cuts, restarts and compaction.

What must hold: a reader of committed records, who knows of aborted transactions what a fetch tells it, sees each record
that is committed or outside any transaction, up to the first that is undecided, and never another. Compaction takes
from that nothing but values that a later one of the same key has replaced.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from partition_bench import Bench

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.protocol import EndTransaction
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.records.batch import TRANSACTIONAL, batches_in
from log_broker.records.control import EndMarker, read_marker
from log_broker.records.record import iterate_records
from log_broker.storage.memory_files import MemoryFileSystem

PRODUCERS = (1, 2, 3)


@dataclass
class Txn:
    """A transaction of the model; `committed` is None while it is open."""

    first_offset: int
    committed: bool | None = None


@dataclass
class Entry:
    """One offset of the model: a record, or with `value` None a marker."""

    key: bytes
    value: bytes | None
    txn: Txn | None


@dataclass
class Client:
    """One producer, by what it knows of itself."""

    epoch: int = 0
    sequence: int = 0
    txn: Txn | None = None
    old_batches: list[bytes] = field(default_factory=list)


def committed_view(bench: Bench, *, bytes_max: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (offset, key, value) as a client with isolation.level=read_committed shows them, fetch by fetch."""
    offset, end = bench.core.state.log_start_offset, bench.core.state.last_stable_offset
    while offset < end:
        data = bench.log.read(offset, bytes_max, end, at_least_one=True)
        batches = [(header, data[at : at + header.size]) for at, header in batches_in(data)]
        if not batches:
            return
        last = batches[-1][0].last_offset
        told = sorted(bench.log.aborted.between(offset, last + 1), key=lambda entry: entry[1])
        dropping: set[int] = set()
        for header, batch in batches:
            while told and told[0][1] <= header.last_offset:
                dropping.add(told.pop(0)[0])
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and not marker.committed:
                    dropping.discard(header.producer_id)
                continue
            if header.attributes & TRANSACTIONAL and header.producer_id in dropping:
                continue
            for record in iterate_records(batch):
                if record.offset >= offset:
                    assert record.key is not None
                    assert record.value is not None
                    yield record.offset, record.key, record.value
        offset = last + 1


class TransactionMachine(RuleBasedStateMachine):
    """Appends numbered values, in transactions and outside."""

    compacts = False

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        texts = {
            "segment.bytes": "500",
            "index.interval.bytes": "100",
            "cleanup.policy": "compact",
            "delete.retention.ms": "1000",
        }
        self.config = TopicConfig.from_overrides(texts, None)
        self.entries: list[Entry] = []
        self.clients = {producer_id: Client() for producer_id in PRODUCERS}
        self.number = 0
        self.compacted_to = 0
        self.was_compacted = False

    @initialize()
    def start(self) -> None:
        self.bench = Bench(self.files, self.config)

    def done(self) -> ErrorCode:
        self.bench.settle()
        ((_, result),) = self.bench.answers
        self.bench.answers.clear()
        return result.error

    def records(self, keys: list[bytes]) -> list[tuple[int, bytes, bytes, tuple[()]]]:
        made = [(self.bench.now_ms, key, b"%06d" % (self.number + at), ()) for at, key in enumerate(keys)]
        self.number += len(keys)
        return made

    keys = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=3)

    @rule(keys=keys)
    def append_plainly(self, keys) -> None:
        records = self.records(keys)
        self.bench.append(build_batch(records), "token")
        assert self.done() is ErrorCode.NONE
        self.entries += [Entry(key, value, None) for _, key, value, _ in records]

    @rule(producer_id=st.sampled_from(PRODUCERS), keys=keys, full=st.integers(0, 5).map(lambda dice: dice == 0))
    def append_in_transaction(self, producer_id, keys, full) -> None:
        client = self.clients[producer_id]
        records = self.records(keys)
        batch = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=client.epoch,
            base_sequence=client.sequence,
            attributes=TRANSACTIONAL,
        )
        transactions = self.bench.core.state.transactions
        assert transactions.is_open(producer_id, client.epoch) == (client.txn is not None)
        if client.txn is None:
            self.bench.append(batch, "token")
            assert self.done() is ErrorCode.INVALID_TXN_STATE, "nobody has said that the partition belongs to it"
            transactions.expect(producer_id, client.epoch, client.sequence)
            transactions.answered(producer_id)
            transactions.allow(producer_id, client.epoch)
        self.bench.append(batch, "token")
        self.files.room_bytes = 0 if full else None
        error = self.done()
        self.files.room_bytes = None
        if full:
            assert error is ErrorCode.KAFKA_STORAGE_ERROR
            return
        assert error is ErrorCode.NONE
        client.txn = client.txn or Txn(len(self.entries))
        client.sequence += len(keys)
        client.old_batches.append(bytes(batch))
        self.entries += [Entry(key, value, client.txn) for _, key, value, _ in records]

    @rule(
        producer_id=st.sampled_from(PRODUCERS),
        committed=st.booleans(),
        bumps=st.booleans(),
        full=st.integers(0, 5).map(lambda dice: dice == 0),
    )
    def end_transaction(self, producer_id, committed, bumps, full) -> None:
        client = self.clients[producer_id]
        epoch = client.epoch + bumps
        event = EndTransaction(producer_id, epoch, EndMarker(committed, 0), "token", bumps)
        self.bench._take(self.bench.core.handle(event, self.bench.now_ms))
        stable = self.bench.core.state.last_stable_offset
        self.files.room_bytes = 0 if full else None
        error = self.done()
        self.files.room_bytes = None
        if full:
            assert error is ErrorCode.KAFKA_STORAGE_ERROR
            assert self.bench.core.state.last_stable_offset == stable, "a marker that is not written decides nothing"
            return
        assert error is ErrorCode.NONE
        if bumps:
            client.epoch, client.sequence = epoch, 0
        if client.txn is not None:
            client.txn.committed = committed
        client.txn = None
        self.entries.append(Entry(b"", None, None))

    @precondition(lambda self: any(client.old_batches for client in self.clients.values()))
    @rule(data=st.data())
    def a_late_batch_arrives(self, data) -> None:
        """A batch of before, on its way for long, must not begin a transaction that nobody will end."""
        producer_id = data.draw(st.sampled_from([p for p, client in self.clients.items() if client.old_batches]))
        before = self.bench.core.state.next_offset
        self.bench.append(data.draw(st.sampled_from(self.clients[producer_id].old_batches)))
        self.bench.settle()
        self.bench.answers.clear()
        assert self.bench.core.state.next_offset == before

    @rule()
    def roll(self) -> None:
        self.bench.log.roll_active(self.bench.core.writes.producer_rows, self.bench.now_ms)

    @precondition(lambda self: self.compacts)
    @rule(passes=st.integers(1, 4))
    def compact(self, passes) -> None:
        for _ in range(passes):
            self.append_plainly([b"e"])
            self.roll()
            self.bench.now_ms += 3_600_000
            self.compacted_to = self.bench.compact(self.compacted_to)
            assert self.compacted_to <= self.bench.core.state.last_stable_offset
        self.was_compacted = True

    @rule()
    def close_and_open(self) -> None:
        self.bench.close()
        self.restart(clean=True)

    @rule(permille=st.sampled_from([0, 500, 1000]))
    def lose_power(self, permille) -> None:
        self.files = self.files.crash(lambda unsynced: unsynced[: len(unsynced) * permille // 1000])
        self.restart(clean=False)

    def restart(self, *, clean: bool) -> None:
        now_ms = self.bench.now_ms
        self.bench = Bench(self.files, self.config, clean=clean)
        self.bench.now_ms = now_ms
        assert self.bench.core.state.next_offset == len(self.entries)

    @invariant()
    def readers_see_what_is_committed(self) -> None:
        if not hasattr(self, "bench"):
            return
        opened = [client.txn.first_offset for client in self.clients.values() if client.txn is not None]
        end = min(opened, default=len(self.entries))
        assert self.bench.core.state.last_stable_offset == end
        expected = [
            (offset, entry.key, entry.value)
            for offset, entry in enumerate(self.entries[:end])
            if entry.value is not None and (entry.txn is None or entry.txn.committed)
        ]
        for bytes_max in (1, 300, 1 << 20):
            seen = list(committed_view(self.bench, bytes_max=bytes_max))
            if not self.was_compacted:
                assert seen == expected
            assert set(seen) <= set(expected)
            assert {key: value for _, key, value in seen} == {key: value for _, key, value in expected}

    @invariant()
    def what_is_undecided_is_all_there(self) -> None:
        if not hasattr(self, "bench"):
            return
        end = self.bench.core.state.last_stable_offset
        found = {record.offset: record.value for record in self.bench.read_all() if record.offset >= end}
        for offset in range(end, len(self.entries)):
            if self.entries[offset].value is not None:
                assert found[offset] == self.entries[offset].value


class CompactionMachine(TransactionMachine):
    """The same on a log that is compacted every now and then."""

    compacts = True


LIMITS = settings(max_examples=25, stateful_step_count=30, deadline=None)

TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = LIMITS
TestCompaction = CompactionMachine.TestCase
TestCompaction.settings = LIMITS
