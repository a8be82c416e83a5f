"""
Compaction against a plain list of all that was ever appended, with power cuts and kills at every step.

What must hold: whatever is read was appended so, at that offset; folding it gives the last value of each key; and a
batch that a producer repeats is known, even when all but the log is lost.
"""

from collections import deque
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from partition_bench import DIRECTORY, Bench

from log_broker.config.broker import TopicConfig
from log_broker.errors import ErrorCode
from log_broker.records import Codec, Record, build_batch
from log_broker.storage.memory_files import MemoryFile, MemoryFileSystem

PRODUCER_ID = 7
CONFIG = TopicConfig.from_overrides(
    {
        "cleanup.policy": "compact",
        "segment.bytes": "500",
        "index.interval.bytes": "100",
        "delete.retention.ms": "1000",
    },
    None,
)


class PowerCutError(BaseException):
    """No exception handler of the code under test runs after the power is gone."""


class CutFiles(MemoryFileSystem):
    """A file system that goes away after so many changes, and with it all that the program would still do."""

    def __init__(self) -> None:
        super().__init__()
        self.changes_left: int | None = None

    def change(self) -> None:
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise PowerCutError
            self.changes_left -= 1

    def open(self, path) -> MemoryFile:
        self.change()
        return super().open(path)

    def rename(self, path, to) -> None:
        self.change()
        super().rename(path, to)

    def remove(self, path) -> None:
        self.change()
        super().remove(path)

    def take_room(self, wanted: int) -> int:
        self.change()
        return super().take_room(wanted)

    def fail_if_asked(self) -> None:
        self.change()
        super().fail_if_asked()

    def crash(self, survivors=lambda unsynced: b"") -> "CutFiles":
        plain = super().crash(survivors)
        after = CutFiles()
        after.__dict__.update(plain.__dict__)
        return after


def folded(records: list[Record]) -> dict[bytes | None, bytes | None]:
    last = {record.key: record.value for record in records}
    return {key: value for key, value in last.items() if value is not None}


class CompactionMachine(RuleBasedStateMachine):
    """Keyed records in, and at any moment a compaction, a cut in the middle of one, or a restart."""

    def __init__(self) -> None:
        super().__init__()
        self.files = CutFiles()
        self.appended: list[Record] = []
        self.sequence = 0
        self.recent: deque[tuple[bytes, int]] = deque(maxlen=5)
        self.compacted_to = 0

    @initialize()
    def start(self) -> None:
        self.bench = Bench(self.files, CONFIG)

    @rule(
        batches=st.lists(
            st.lists(
                st.tuples(st.sampled_from([b"a", b"b", b"c", b"a key that is longer than a digest"]), st.booleans()),
                min_size=1,
                max_size=4,
            ),
            min_size=1,
            max_size=8,
        ),
        codec=st.sampled_from(Codec),
        idempotent=st.booleans(),
    )
    def append(self, batches: list[list[tuple[bytes, bool]]], codec: Codec, idempotent: bool) -> None:
        for keys in batches:
            base = len(self.appended)
            self.appended += [
                Record(base + at, self.bench.now_ms + at, key, None if deleted else b"value %06d" % (base + at))
                for at, (key, deleted) in enumerate(keys)
            ]
            producer = {}
            if idempotent:
                producer = {"producer_id": PRODUCER_ID, "producer_epoch": 0, "base_sequence": self.sequence}
                self.sequence += len(keys)
            batch = build_batch(
                [(record.timestamp, record.key, record.value, ()) for record in self.appended[base:]],
                codec=codec,
                **producer,
            )
            if idempotent:
                self.recent.append((bytes(batch), base))
            self.bench.append(batch, "appended")
            self.bench.settle()
            assert self.bench.answers.pop()[1].base_offset == base

    @rule(ms=st.integers(1, 2000))
    def wait(self, ms: int) -> None:
        self.bench.now_ms += ms

    @rule(keys_max=st.integers(1, 5))
    def compact(self, keys_max: int) -> None:
        closed = self.bench.log.segments[-1].base_offset
        while self.compacted_to < closed:
            before = self.compacted_to
            self.compacted_to = self.bench.compact(before, map_bytes_max=200 * keys_max)
            assert self.compacted_to > before, "every pass gets further"
        keys = [record.key for record in self.bench.read_all() if record.offset < closed]
        assert len(keys) == len(set(keys)), "one record a key"

    @rule(changes=st.integers(0, 60), kill=st.booleans(), permille=st.integers(0, 1000), forget=st.booleans())
    def stop_in_a_compaction(self, changes: int, kill: bool, permille: int, forget: bool) -> None:
        self.files.changes_left = changes
        with suppress(PowerCutError):
            self.compacted_to = self.bench.compact(self.compacted_to)
        self.files.changes_left = None
        if not kill:
            self.files = self.files.crash(lambda unsynced: unsynced[: len(unsynced) * permille // 1000])
        self.restart(clean=False, forget=forget)

    @rule(forget=st.booleans())
    def close_and_open(self, forget: bool) -> None:
        self.bench.close()
        self.restart(clean=True, forget=forget)

    def restart(self, *, clean: bool, forget: bool) -> None:
        if forget:
            for name in self.files.names(DIRECTORY):
                if name.endswith(".snapshot"):
                    self.files.remove(DIRECTORY / name)
        now_ms = self.bench.now_ms
        self.bench = Bench(self.files, CONFIG, clean=clean)
        self.bench.now_ms = now_ms
        assert not [name for name in self.files.names(DIRECTORY) if name.endswith((".cleaned", ".swap"))]
        for batch, base_offset in self.recent:
            self.bench.append(batch, "repeated")
            ((_, result),) = self.bench.answers
            assert (result.error, result.base_offset) == (ErrorCode.NONE, base_offset)
            self.bench.answers.clear()

    @invariant()
    def what_is_read_is_what_was_appended(self) -> None:
        if not hasattr(self, "bench"):
            return
        assert self.bench.core.state.next_offset == self.bench.log.end_offset == len(self.appended)
        found = self.bench.read_all()
        assert found == [self.appended[record.offset] for record in found]
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        assert folded(found) == folded(self.appended)
        assert self.bench.read_all(bytes_max=200) == found

    @invariant()
    def times_are_found(self) -> None:
        if not hasattr(self, "bench"):
            return
        found = self.bench.read_all()
        end = len(self.appended)
        for timestamp in {record.timestamp for record in found}:
            first = next(record for record in found if record.timestamp >= timestamp)
            at = self.bench.find_time(timestamp, from_offset=0, end_offset=end)
            assert at == (first.offset, first.timestamp)
        if found:
            latest = max(record.timestamp for record in found)
            at = self.bench.find_max_timestamp(end_offset=end)
            assert at is not None
            assert at[1] == latest


TestCompactionMachine = CompactionMachine.TestCase
TestCompactionMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("kill", [True, False])
def test_a_compaction_can_end_at_any_change_to_the_disk(kill) -> None:
    changes = 0
    while True:
        files = CutFiles()
        bench = Bench(files, CONFIG)
        appended = []
        for at in range(60):
            appended.append(Record(at, 1000 + at, b"key %d" % (at % 7), None if at % 10 == 3 else b"value %d" % at))
            bench.append(build_batch([(1000 + at, appended[-1].key, appended[-1].value, ())]))
            bench.settle()
        bench.compact(0)
        bench.now_ms += 5000
        files.changes_left = changes
        done = False
        with suppress(PowerCutError):
            bench.compact(0)
            done = True
        files.changes_left = None

        again = Bench(files if kill else files.crash(), CONFIG)

        found = again.read_all()
        assert found == [appended[record.offset] for record in found]
        assert folded(found) == folded(appended)
        assert again.core.state.next_offset == 60
        again.append(build_batch([(1, b"more", b"more", ())]))
        again.settle()
        assert again.read_all() == [*found, Record(60, 1, b"more", b"more")]
        if done:
            break
        changes += 1
    assert changes > 10
