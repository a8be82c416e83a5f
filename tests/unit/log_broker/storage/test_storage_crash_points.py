"""
Power is cut at every single step that a log takes on its disk, and the next start must keep every promise.

A scenario of appends, rolls, syncs, compaction, retention and an orderly end runs on a disk that stops working at its
n-th operation, for every n. Bytes of the operation that was under way may be there in part, and so may any bytes that
no sync had covered: pages reach a disk in any order, and names do so without them.
"""

import random
from contextlib import suppress

import pytest
from failing_disk import FailingDisk, PowerCut, journal, survivors
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_bench import Bench

from log_broker.config.broker import TopicConfig
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.storage.append_job import SealedSync
from log_broker.storage.memory_files import MemoryFileSystem


class Story:
    """A seeded run of one partition: what it was told is acknowledged, and what it may have had besides."""

    def __init__(self, seed: int, disk: MemoryFileSystem, config: TopicConfig) -> None:
        self.rng = random.Random(seed)
        self.disk = disk
        self.config = config
        self.sent: list[tuple[bytes, bytes]] = []  # (key, value) by offset, as far as offsets were given
        self.acked = 0  # all before it are acknowledged, and were said to be synced
        self.sequence = 0
        self.log_start = 0

    def run(self) -> None:
        bench = Bench(self.disk, self.config)
        for _ in range(14):
            match self.rng.choice(("append", "append", "append", "compact", "delete")):
                case "append":
                    self.append(bench)
                case "compact" if self.config.is_compacted:
                    bench.compact(0)
                case "delete" if not self.config.is_compacted and bench.log.end_offset:
                    self.retain(bench)
        bench.close()

    def append(self, bench: Bench) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            pairs = [(b"k%d" % self.rng.randrange(4), b"%06d" % (len(self.sent) + at)) for at in range(2)]
            batch = build_batch(
                [(1, key, value, ()) for key, value in pairs],
                producer_id=7,
                producer_epoch=0,
                base_sequence=self.sequence,
            )
            self.sequence += 2
            self.sent += pairs
            bench.append(batch, len(self.sent))
        bench.settle()
        for token, result in bench.answers:
            assert result.error is ErrorCode.NONE
            assert isinstance(token, int)
            self.acked = max(self.acked, token)
        bench.answers.clear()

    def retain(self, bench: Bench) -> None:
        """Let go of the segments in front, as after DeleteRecords; the name of the next says where the log starts."""
        core, log = bench.core, bench.log
        offset = self.rng.randrange(log.start_offset, core.state.high_watermark + 1)
        # Before a file is gone, anything up to here may be gone.
        self.log_start = max(self.log_start, offset)
        core.state.advance_log_start(offset)
        count = log.expired_segments(
            1, log_start_offset=offset, high_watermark=core.state.high_watermark, by_config=False
        )
        for _ in range(count):
            for path in log.remove_first():
                self.disk.remove(path)

    def check(self, after: MemoryFileSystem) -> None:
        bench = Bench(after, self.config)
        found = {record.offset: (record.key, record.value) for record in bench.read_all()}
        end = bench.core.state.high_watermark
        assert end >= self.acked, "acknowledged records are gone, or their offsets would be given out again"
        assert all(self.sent[offset] == record for offset, record in found.items()), "not what was appended there"
        if self.config.is_compacted:
            newest = {key: offset for offset, (key, _) in enumerate(self.sent[:end])}
            assert all(offset in found for offset in newest.values()), "the last value of a key is gone"
        else:
            kept = range(max(self.log_start, bench.log.start_offset), end)
            assert set(kept) <= set(found), "a hole in the log"
        self.continues(bench, end)

    def continues(self, bench: Bench, end: int) -> None:
        """The producer goes on where it was: what is there is not stored again, what is not there is taken."""
        first = max(min(end, len(self.sent)) - 2, 0)
        for at in range(first, len(self.sent), 2):
            if not self.sent[at : at + 2]:
                continue
            records = [(1, key, value, ()) for key, value in self.sent[at : at + 2]]
            bench.append(build_batch(records, producer_id=7, producer_epoch=0, base_sequence=at), at)
        bench.settle()
        answers = dict(bench.answers)
        for at in range(first, len(self.sent), 2):
            assert answers[at].error is ErrorCode.NONE, "the producer's state does not fit its log"
            assert answers[at].base_offset == at
        assert bench.core.state.high_watermark == len(self.sent)


CONFIGS = {
    "delete": {"segment.bytes": "400", "index.interval.bytes": "100"},
    "compact": {"segment.bytes": "400", "index.interval.bytes": "100", "cleanup.policy": "compact"},
}


@pytest.mark.parametrize("policy", CONFIGS)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_power_is_cut_at_every_step(policy: str, seed: int) -> None:
    config = TopicConfig.from_overrides(CONFIGS[policy])
    whole = FailingDisk(1 << 30, random.Random(seed))
    Story(seed, whole, config).run()
    steps = (1 << 30) - whole.steps
    for step in range(steps + 1):
        rng = random.Random(seed + step)
        disk = FailingDisk(step, rng)
        story = Story(seed, disk, config)
        try:
            story.run()
        except PowerCut:
            pass
        else:
            assert step == steps
        story.check(disk.crash(survivors(rng), journal(rng)))


class UnsyncedStory:
    """A seeded run at durability `memory`, where segments fill up while a sync of full ones is under way."""

    def __init__(self, seed: int, disk: FailingDisk, config: TopicConfig) -> None:
        self.rng = random.Random(seed)
        self.disk = disk
        self.config = config
        self.sent: list[bytes] = []
        self.checkpointed = 0  # the recovery point that the next start is told
        self.sync: SealedSync | None = None

    def run(self) -> None:
        bench = Bench(self.disk, self.config)
        for _ in range(30):
            match self.rng.choice(("append", "append", "append", "sync", "run", "checkpoint")):
                case "append":
                    for _ in range(self.rng.randrange(1, 4)):
                        self.sent.append(b"%06d" % len(self.sent))
                        bench.append(build_batch([(1, b"key", self.sent[-1], ())]))
                        bench.settle()
                case "sync" if self.sync is None:
                    self.sync = bench.log.sealed_sync()
                case "run" if self.sync is not None:
                    sync, self.sync = self.sync, None
                    sync.run()
                    bench.log.sealed_synced(sync)
                case "checkpoint":
                    self.checkpointed = bench.log.recovery_point

    def check(self, after: MemoryFileSystem) -> None:
        bench = Bench(after, self.config, recovery_point=self.checkpointed)
        end = bench.core.state.high_watermark
        assert end >= self.checkpointed, "the recovery point names what is on the disk"
        assert [record.value for record in bench.read_all()] == self.sent[:end], "a hole, or what nobody wrote"
        bench.append(build_batch([(1, b"key", b"next", ())]))
        bench.settle()
        assert [record.value for record in bench.read_all()] == [*self.sent[:end], b"next"]


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_power_is_cut_while_segments_fill_behind_a_sync(seed: int) -> None:
    config = TopicConfig.from_overrides({**CONFIGS["delete"], "fluvial.durability": "memory"})
    whole = FailingDisk(1 << 30, random.Random(seed))
    UnsyncedStory(seed, whole, config).run()
    for step in range((1 << 30) - whole.steps + 1):
        rng = random.Random(seed + step)
        disk = FailingDisk(step, rng)
        story = UnsyncedStory(seed, disk, config)
        with suppress(PowerCut):
            story.run()
        story.check(disk.crash(survivors(rng), journal(rng)))
