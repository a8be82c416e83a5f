"""
A follower of one leader after another, whose logs share only a beginning, and power is cut at every step of it.

Leaders come and go as in a cluster: each has a part of the log before it and goes on in an epoch of its own, with
idempotent batches, transactions and, where it has compacted, gaps. The follower takes some of each log, cutting its own
where they part. Whenever the power goes, what is found then must be the beginning of a log that it had, with the
epochs and the producers that follow from its batches; and from there it must end up with the bytes of the last leader.
"""

import random
from dataclasses import dataclass, field

import pytest
from failing_disk import FailingDisk, PowerCut, survivors
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_bench import DIRECTORY, Bench, without_times

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.epochs import LeaderEpochs
from log_broker.core.partition.producers import AbortedTransaction, ProducerStates
from log_broker.errors import ErrorCode
from log_broker.records import build_batch, read_header
from log_broker.records.batch import TRANSACTIONAL, place
from log_broker.records.control import EndMarker, build_marker, read_marker
from log_broker.storage.checkpoints import LEADER_EPOCH_FILE, decode_epochs
from log_broker.storage.memory_files import MemoryFileSystem

CONFIG = TopicConfig.from_overrides({"segment.bytes": "500", "index.interval.bytes": "100"})
IDEMPOTENT, TRANSACTION = 7, 8


@dataclass
class LeaderLog:
    """
    The batches of one leader, each with its offset and epoch.

    The first `committed` ones every later leader has: where an epoch begins with a gap, its first records were
    compacted, and only what is committed is.
    """

    epoch: int
    batches: list[bytes] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    committed: int = 0

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).last_offset + 1 if self.batches else 0

    def epochs(self) -> LeaderEpochs:
        """The epochs as the leader has them: its own began where the log ended then, compacted since or not."""
        epochs = LeaderEpochs(self.starts)
        epochs.current = self.epoch
        return epochs

    def epochs_copied(self) -> list[tuple[int, int]]:
        """The epochs as a follower finds them in the batches."""
        epochs = LeaderEpochs()
        for batch in self.batches:
            header = read_header(batch)
            epochs.begin(header.leader_epoch, header.base_offset)
        return list(epochs.starts)

    def add(self, batch: bytearray, gap: int = 0) -> None:
        place(batch, base_offset=self.end + gap, leader_epoch=self.epoch)
        self.batches.append(bytes(batch))

    def producers(self) -> tuple[ProducerStates, list[AbortedTransaction]]:
        """What follows from the batches alone."""
        producers = ProducerStates()
        aborted: list[AbortedTransaction] = []
        for batch in self.batches:
            header = read_header(batch)
            if header.is_control:
                ended = producers.replay_marker(header, read_marker(batch))
                aborted += [ended] if ended is not None else []
            else:
                producers.replay(header, 0)
        return producers, aborted

    def successor(self, epoch: int, rng: random.Random) -> "LeaderLog":
        """A later leader, with a part of this log and some batches of its own."""
        cut = rng.randrange(max(len(self.batches) - 12, self.committed), len(self.batches) + 1)
        log = LeaderLog(epoch, self.batches[:cut], committed=self.committed)
        log.starts = [*((epoch, start) for epoch, start in self.starts if start < log.end), (log.epoch, log.end)]
        for _ in range(rng.randrange(14)):
            log.add_some(rng)
        return log

    def add_some(self, rng: random.Random) -> None:
        producers, _ = self.producers()
        known = producers.get(IDEMPOTENT)
        sequence = known.batches[-1].last_sequence + 1 if known is not None and known.batches else 0
        value = b"%d at %d" % (self.epoch, self.end)
        match rng.randrange(4):
            case 0:
                gap = rng.choice([0, 0, 3])
                begins = not self.batches or read_header(self.batches[-1]).leader_epoch != self.epoch
                self.add(build_batch([(1, b"k", value, ())] * rng.randrange(1, 3)), gap=gap)
                if gap and begins:
                    self.committed = len(self.batches)
            case 1:
                producer = {"producer_id": IDEMPOTENT, "producer_epoch": 0, "base_sequence": sequence}
                self.add(build_batch([(1, b"k", value, ())], **producer))
            case 2:
                producer = {"producer_id": TRANSACTION, "producer_epoch": 0, "attributes": TRANSACTIONAL}
                self.add(build_batch([(1, b"k", value, ())], **producer))
            case _:
                self.add(build_marker(TRANSACTION, 0, EndMarker(rng.random() < 0.5, 1), 1))


class FollowerStory:
    """A seeded life of one follower."""

    def __init__(self, seed: int, disk: MemoryFileSystem) -> None:
        self.rng = random.Random(seed)
        self.disk = disk
        self.leader = LeaderLog(1)
        self.had: list[bytes] = []  # the batches that it holds, synced
        self.held: list[list[bytes]] = [[]]  # every log that it may be found with, or a beginning of it

    def run(self) -> None:
        bench = Bench(self.disk, CONFIG, leads=False)
        leaders = [self.leader]
        for _ in range(5):
            epoch = leaders[-1].epoch + self.rng.choice([1, 1, 2])
            former = self.rng.choice(leaders[-2:])
            self.leader = former.successor(epoch, self.rng)
            leaders = [*(leaders if self.leader.committed == former.committed else ()), self.leader]
            self.follow(bench, self.rng.randrange(len(self.leader.batches) + 1))
            if self.rng.random() < 0.3:
                bench.settle()
                bench.close()
                bench = Bench(self.disk, CONFIG, clean=True, leads=False)
                assert batches_of(bench) == self.had

    def follow(self, bench: Bench, up_to: int) -> None:
        """Fetch from the leader until the log holds its first `up_to` batches, or all that is shared and more."""
        epochs = self.leader.epochs()
        core = bench.core
        bench._take(core.roles.become_follower(self.leader.epoch, 1))
        while True:
            last = core.state.epochs.latest
            epoch, end = epochs.end_offset(last, self.leader.end) if last >= 0 else (last, core.state.written_end)
            if epoch < last or end < core.state.written_end:
                own_epoch, own_end = core.state.epochs.end_offset(epoch, core.state.written_end)
                self.cut(bench, min(end, own_end) if own_epoch == epoch else own_end)
                continue
            have = sum(read_header(batch).last_offset < core.state.written_end for batch in self.leader.batches)
            if have >= up_to:
                return
            some = self.leader.batches[have : min(up_to, have + self.rng.randrange(1, 5))]
            self.held.append(self.had + some)
            bench.fetched(b"".join(some), self.leader.epoch, self.rng.randrange(self.leader.end + 1), "fetch")
            bench.settle()
            assert bench.answers.pop()[1].error is ErrorCode.NONE
            self.had = self.had + some

    def cut(self, bench: Bench, offset: int) -> None:
        assert offset < bench.core.state.written_end
        kept = [batch for batch in self.had if read_header(batch).last_offset < max(offset, 0)]
        # Until it is done the old log may be found, or any part of it that is not shorter.
        self.had = kept
        bench.truncate(max(offset, 0)) if offset >= 0 else bench.restart_at(0)

    def check(self, after: MemoryFileSystem) -> None:
        bench = Bench(after, CONFIG, leads=False)
        found = batches_of(bench)
        assert any(found == log[: len(found)] for log in self.held), "no log that it ever had"
        assert self.had == found[: len(self.had)], "what was synced is gone"
        self.agrees(bench, LeaderLog(0, found))
        self.follow(bench, len(self.leader.batches))
        assert batches_of(bench) == self.leader.batches
        self.agrees(bench, self.leader)
        again = Bench(after.crash(), CONFIG, leads=False)
        assert batches_of(again) == self.leader.batches
        self.agrees(again, self.leader)

    def agrees(self, bench: Bench, log: LeaderLog) -> None:
        """Everything that is kept beside the batches must follow from them."""
        producers, aborted = log.producers()
        assert without_times(producers) == without_times(bench.core.state.producers)
        assert producers.open_transactions == bench.core.state.producers.open_transactions
        segments = [segment.base_offset for segment in bench.log.segments]
        assert [entry for base in segments for entry in bench.log.aborted.of(base)] == aborted
        for batch in log.batches:
            header = read_header(batch)
            assert bench.core.state.epochs.epoch_at(header.base_offset) == header.leader_epoch
        if log.batches:
            kept = decode_epochs(bench.files.read(DIRECTORY / LEADER_EPOCH_FILE))
            assert [(epoch, start) for epoch, start in kept if start < log.end] == log.epochs_copied()


def batches_of(bench: Bench) -> list[bytes]:
    """The batches as they lie on the disk."""
    found = []
    for segment in bench.log.segments:
        content = segment.file.read_at(0, segment.size) if segment.size else b""
        position = 0
        while position < len(content):
            size = read_header(content, position).size
            found.append(content[position : position + size])
            position += size
    return found


@pytest.mark.parametrize("part", range(4))
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32))
def test_power_is_cut_at_every_step_of_a_followers_life(part: int, seed: int) -> None:
    whole = FailingDisk(1 << 30, random.Random(seed))
    FollowerStory(seed, whole).run()
    steps = (1 << 30) - whole.steps
    for step in range(part, steps + 1, 4):
        rng = random.Random(seed + step)
        disk = FailingDisk(step, rng)
        story = FollowerStory(seed, disk)
        try:
            story.run()
        except PowerCut:
            pass
        else:
            assert step == steps
        story.check(disk.crash(survivors(rng)))


def test_a_leader_may_have_compacted_more_offsets_away_than_a_segment_spans() -> None:
    far = 3 * 2**31
    batches = []
    for offset in (far, far + 5):
        batch = build_batch([(1, b"k", b"v", ())])
        place(batch, base_offset=offset, leader_epoch=2)
        batches.append(bytes(batch))
    files = MemoryFileSystem()
    bench = Bench(files, CONFIG, leads=False)
    bench.fetched(b"".join(batches), 2, far + 6)
    bench.settle()
    for found in (bench, Bench(files.crash(), CONFIG, leads=False)):
        assert batches_of(found) == batches
        assert found.core.state.written_end == far + 6
        assert found.log.read(0, 1000, far + 6, at_least_one=True) == b"".join(batches)
