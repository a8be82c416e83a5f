"""
The log against a plain list, on a disk that fills up, fails its syncs and loses power at any step.

What must hold: a reader sees exactly the acknowledged records and those written with them, in order; after a power cut
the log is a prefix of what was appended, and nothing that was acknowledged is missing; a batch that a producer repeats
is stored once, before and after.
"""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from partition_bench import Bench

from log_broker.config.broker import TopicConfig
from log_broker.errors import ErrorCode
from log_broker.records import Codec, build_batch
from log_broker.storage.memory_files import MemoryFileSystem

PRODUCER_ID = 11


class LogMachine(RuleBasedStateMachine):
    """Appends numbered values; `sent` maps each to what became of it."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.config = TopicConfig.from_overrides({"segment.bytes": "300", "index.interval.bytes": "100"}, None)
        self.number = 0  # of the next value
        self.number_at_start = 0
        self.epoch = 0
        self.expected: list[bytes] = []  # the values in the log, by offset, as far as they are known to be there
        self.in_doubt: list[bytes] = []  # gathered behind them: each may be there after a crash, none behind a gap
        self.sequence = 0
        self.unanswered: dict[int, list[bytes]] = {}
        self.base_sequences: dict[int, int] = {}
        self.recent: deque[tuple[int, bytes, list[bytes]]] = deque(maxlen=5)  # of the idempotent producer
        self.base_offsets: dict[int, int] = {}

    @initialize()
    def start(self) -> None:
        self.bench = Bench(self.files, self.config)

    def values(self, count: int) -> list[bytes]:
        made = [b"%06d" % (self.number + at) for at in range(count)]
        self.number += count
        return made

    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=8),
        codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
        idempotent=st.booleans(),
    )
    def append(self, counts: list[int], codec: Codec, idempotent: bool) -> None:
        for count in counts:
            self.append_one(count, codec, idempotent)

    def append_one(self, count: int, codec: Codec, idempotent: bool) -> None:
        values = self.values(count)
        token = self.number
        producer = {}
        if idempotent:
            self.base_sequences[token] = self.sequence
            producer = {"producer_id": PRODUCER_ID, "producer_epoch": self.epoch, "base_sequence": self.sequence}
            self.sequence += count
        batch = build_batch([(self.number, b"k", value, ()) for value in values], codec=codec, **producer)
        self.unanswered[token] = values
        if idempotent:
            self.recent.append((token, bytes(batch), values))
        self.in_doubt += values
        self.bench.append(batch, token)
        self.collect()

    @precondition(lambda self: self.bench.job is None)
    @rule()
    def begin_write(self) -> None:
        self.bench.begin_write()
        self.collect()

    @precondition(lambda self: self.bench.job is not None)
    @rule()
    def finish_write(self) -> None:
        self.bench.finish_write()
        self.collect()

    @precondition(lambda self: self.bench.job is not None)
    @rule(room=st.integers(0, 400))
    def fill_the_disk(self, room: int) -> None:
        self.files.room_bytes = room
        self.bench.finish_write()
        self.files.room_bytes = None
        self.collect()

    @precondition(lambda self: self.bench.job is not None)
    @rule()
    def fail_the_sync(self) -> None:
        self.files.failing_syncs = 1
        self.bench.finish_write()
        self.files.failing_syncs = 0
        self.collect()

    @precondition(lambda self: self.number > self.number_at_start + 4)
    @rule(permille=st.sampled_from([0, 1000]) | st.integers(0, 1000), written=st.booleans(), torn=st.booleans())
    def lose_power(self, permille: int, written: bool, torn: bool) -> None:
        if written and self.bench.job is not None:
            # In the middle of the job: the bytes are on their way, and no sync has returned.
            job = self.bench.job
            if job.target is not None:
                job.target.write_at(job.position, job.buffers)

        def survivors(unsynced: bytes) -> bytes:
            kept = unsynced[: len(unsynced) * permille // 1000]
            # A torn page: the length is there and the content is not what was written.
            return kept[:-1] + bytes([kept[-1] ^ 0x40]) if torn and kept else kept

        self.files = self.files.crash(survivors)
        self.restart(clean=False)

    @precondition(lambda self: self.number > self.number_at_start + 4)
    @rule()
    def close_and_open(self) -> None:
        self.bench.close()
        self.collect()
        self.restart(clean=True)

    def restart(self, *, clean: bool) -> None:
        self.bench = Bench(self.files, self.config, clean=clean)
        self.number_at_start = self.number
        found = [record.value for record in self.bench.read_all()]
        assert found[: len(self.expected)] == self.expected, "an acknowledged record is missing"
        assert found == (self.expected + self.in_doubt)[: len(found)], "not a prefix of what was appended"
        self.expected = found
        self.in_doubt = []
        doubtful = set(self.unanswered) & set(self.base_sequences)
        self.unanswered.clear()
        for token, batch, values in self.recent:
            if values[0] in found:
                self.bench.append(batch, "again")
                ((_, result),) = self.bench.answers
                assert (result.error, result.base_offset) == (ErrorCode.NONE, found.index(values[0]))
                self.bench.answers.clear()
            elif doubtful <= {recent for recent, *_ in self.recent}:
                # Lost, and all before it are there or have just been sent again.
                self.unanswered[token] = values
                self.in_doubt += values
                self.bench.append(batch, token)
                self.bench.settle()
                self.collect()
                assert self.expected[-len(values) :] == values
        self.take_a_new_epoch()

    def take_a_new_epoch(self) -> None:
        """As a client does that has lost count."""
        self.epoch += 1
        self.sequence = 0
        self.recent.clear()

    def go_back(self, failed: list[int]) -> None:
        """Send on from the first batch that failed, in the same epoch, as a client does after a retriable error."""
        numbered = [token for token in failed if token in self.base_sequences]
        if numbered:
            self.sequence = self.base_sequences[min(numbered)]
        self.recent = deque((entry for entry in self.recent if entry[0] not in failed), maxlen=5)

    def collect(self) -> None:
        """Take the answers given since the last time."""
        failed: list[int] = []
        for token, result in self.bench.answers:
            if result.error is not ErrorCode.NONE:
                assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
                if self.unanswered.pop(token, None):
                    failed.append(token)
            elif isinstance(token, tuple):
                assert result.base_offset == self.base_offsets[token[1]], "a repeat gets the first answer"
            else:
                values = self.unanswered.pop(token)
                assert result.base_offset == len(self.expected), "answers come in offset order"
                assert self.in_doubt[: len(values)] == values
                self.base_offsets[token] = result.base_offset
                self.expected += values
                del self.in_doubt[: len(values)]
        self.bench.answers.clear()
        if failed:
            assert not self.unanswered, "a failed write takes everything gathered with it"
            self.in_doubt = []
            self.go_back(failed)

    @precondition(lambda self: self.recent)
    @rule(which=st.integers(0, 4))
    def repeat(self, which: int) -> None:
        """Send one of the last five batches again, as after a lost connection."""
        token, batch, _ = self.recent[which % len(self.recent)]
        before = self.bench.core.state.next_offset
        self.bench.append(batch, ("repeat of", token))
        self.collect()
        assert self.bench.core.state.next_offset == before, "a repeat is not stored again"

    @invariant()
    def readers_see_what_was_acknowledged(self) -> None:
        if not hasattr(self, "bench"):
            return
        assert self.bench.core.state.high_watermark == len(self.expected)
        assert [record.value for record in self.bench.read_all(bytes_max=300)] == self.expected
        assert [record.offset for record in self.bench.read_all()] == list(range(len(self.expected)))


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
