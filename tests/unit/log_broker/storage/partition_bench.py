"""
The plain interpreter of a partition's effects: core and log in one thread, on a simulated disk, step by step.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.partition import Partition
from log_broker.core.partition.producers import ProducerEntry, ProducerStates
from log_broker.core.partition.protocol import (
    Append,
    AppendResult,
    Effect,
    Reply,
    TransactionsAborted,
    TurnEnded,
    Write,
    WriteFailed,
    Written,
)
from log_broker.errors import ErrorCode
from log_broker.records import Record, batches_in, iterate_records
from log_broker.records.record import first_of_time
from log_broker.storage.append_job import AppendJob
from log_broker.storage.compaction import CompactionJob, plan_compaction
from log_broker.storage.files import FileSystem
from log_broker.storage.log import PartitionLog
from log_broker.storage.recovery import open_partition
from log_broker.storage.segment_swap import complete, stage
from log_broker.storage.time_search import batch_of_time, latest_timestamp
from log_broker.storage.truncation import TruncationJob

DIRECTORY = Path("data/t-0")


def without_times(producers: ProducerStates) -> Mapping[int, ProducerEntry]:
    """Return what is known of producers but for when that was heard, which differs from one replica to another."""
    return {
        producer_id: entry._replace(timestamp=0, batches=tuple(batch._replace(timestamp=0) for batch in entry.batches))
        for producer_id, entry in producers.all().items()
    }


class Bench:
    """One partition on one file system. `answers` holds (token, result) in the order in which they were given."""

    def __init__(
        self,
        files: FileSystem,
        config: TopicConfig,
        *,
        directory: Path = DIRECTORY,
        clean: bool = False,
        recovery_point: int = 0,
        leads: bool = True,
    ) -> None:
        self.files = files
        self.directory = directory
        self.now_ms = 1_000_000
        self.answers: list[tuple[object, AppendResult]] = []
        self.core: Partition
        self.log: PartitionLog
        self.core, self.log = open_partition(
            files,
            directory,
            "t",
            config,
            recovery_point=recovery_point,
            log_start_offset=0,
            clean=clean,
            now_ms=self.now_ms,
            leads=leads,
        )
        self.write: Write | None = None
        self.job: AppendJob | None = None

    def append(self, batch: bytes | bytearray, token: object = None, acks: int = -1) -> None:
        self._take(self.core.handle(Append(memoryview(bytearray(batch)), acks, token), self.now_ms))

    def fetched(self, records: bytes, leader_epoch: int, high_watermark: int, token: object = None) -> None:
        """Take what a leader sent, as its follower in that epoch."""
        self._take(self.core.roles.become_follower(leader_epoch, 1))
        batches = memoryview(bytearray(records))
        self._take(
            self.core.following.append_fetched(batches, leader_epoch, high_watermark, 0, token, now_ms=self.now_ms)
        )

    def truncate(self, offset: int) -> None:
        """Cut the log, as a follower with nothing under way."""
        self._cut(self.log.prepare_truncation(offset, self.now_ms), restart=False)

    def restart_at(self, offset: int) -> None:
        """Begin again at an offset."""
        self._cut(self.log.prepare_restart(offset, self.now_ms), restart=True)

    def _cut(self, job: TruncationJob, *, restart: bool) -> None:
        if restart:
            self.core.following.restart_at(job.end_offset)
        else:
            self.core.following.truncate(job.end_offset)
        job.run(self.core.state.epochs.starts, self.core.state.high_watermark)
        self.log.commit_truncation(job)
        self._take(self.core.following.truncated(job.producers, job.ending))

    def begin_write(self) -> None:
        """End the turn and plan the write; nothing is in the file yet."""
        self._take(self.core.handle(TurnEnded(), self.now_ms))
        self._prepare()

    def finish_write(self) -> None:
        """Run what was planned and report it, and plan the next."""
        assert self.job is not None
        job, self.job, self.write = self.job, None, None
        try:
            job()
        except OSError as error:
            self.log.abandon(job)
            self._take(self.core.handle(WriteFailed(str(error), job.synced), self.now_ms))
        else:
            self.log.commit(job)
            self._take(self.core.handle(Written(len(job.batches), job.synced), self.now_ms))
        self._prepare()

    def settle(self) -> None:
        """Write until nothing is left to write."""
        if self.job is None:
            self.begin_write()
        while self.job is not None:
            self.finish_write()

    def close(self) -> None:
        self.settle()
        self.log.close(self.core.writes.producer_rows(self.core.state.next_offset))

    def find_time(self, timestamp: int, *, from_offset: int = 0, end_offset: int) -> tuple[int, int] | None:
        """Search as a broker does, without the turns of its event loop."""
        segments = self.log.segments
        while (step := batch_of_time(segments, timestamp, from_offset=from_offset, end_offset=end_offset)) is not None:
            batch, behind = step
            if batch and (found := first_of_time(batch, timestamp, from_offset, end_offset)) is not None:
                return found
            from_offset = behind
        return None

    def find_max_timestamp(self, *, end_offset: int) -> tuple[int, int] | None:
        while (latest := latest_timestamp(self.log.segments)) is None:
            pass
        return self.find_time(latest, end_offset=end_offset)

    def read_all(self, *, bytes_max: int = 1 << 20) -> list[Record]:
        """Read as a consumer does, from the log start to the high watermark, and hold every read to its promises."""
        records: list[Record] = []
        offset = self.core.state.log_start_offset
        while offset < self.core.state.high_watermark:
            data = self.log.read(offset, bytes_max, self.core.state.high_watermark, at_least_one=True)
            found = [(header, data[at : at + header.size]) for at, header in batches_in(data)]
            assert found, f"nothing at {offset}"
            assert sum(header.size for header, _ in found) == len(data), "only whole batches"
            assert len(found) == 1 or len(data) <= bytes_max, "no more than asked for"
            assert offset <= found[0][0].last_offset
            assert found[0][0].base_offset <= offset or self.core.state.config.is_compacted
            for _, batch in found:
                records += [record for record in iterate_records(batch) if record.offset >= offset]
            offset = found[-1][0].last_offset + 1
        return records

    def compact(self, compacted_to: int, *, map_bytes_max: int = 1 << 20) -> int:
        """Make one pass over what can be compacted, whatever the dirty ratio; return how far the log is compacted."""
        config, producers = self.core.state.config, self.core.state.producers
        segments = self.log.closed_segments(self.core.state.last_stable_offset)
        if not segments or compacted_to > segments[-1][1]:
            compacted_to = 0
        facts = self.log.facts_of(segments, dirty_from=compacted_to, limits=config)
        plan = plan_compaction(facts, first_dirty_offset=compacted_to, limits=config, now_ms=self.now_ms)
        if plan is None:
            return compacted_to
        job = CompactionJob(
            self.files,
            self.directory,
            self.log.closed_segments(plan.end_offset),
            self.log.segments[-1],
            plan,
            limits=config,
            sequences_at=frozenset(row.batch.last_offset for row in producers.rows()),
            map_bytes_max=map_bytes_max,
            now_ms=self.now_ms,
            aborted={base: self.log.aborted.of(base) for base in (s.base_offset for s in self.log.segments)},
            last_epochs={
                pid: entry.epoch for pid, entry in self.core.state.producers.all().items() if not entry.batches
            },
        )
        job.note_keys()
        for sources in job.groups():
            rewritten = job.rewrite(sources)
            if rewritten is not None:
                stage(self.files, self.log, rewritten)
                self.files.sync_directory(self.directory)
                complete(self.files, self.log, rewritten)
        return job.end_offset

    def acknowledged(self) -> list[object]:
        return [token for token, result in self.answers if result.error is ErrorCode.NONE]

    def _take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    self.answers.append((effect.token, effect.result))
                case Write():
                    self.write = effect
                case TransactionsAborted():
                    for transaction in effect.transactions:
                        self.log.note_aborted(transaction)
                case _:
                    pass

    def _prepare(self) -> None:
        if self.write is None or self.job is not None:
            return
        try:
            self.job = self.log.prepare(
                self.write.batches,
                sync=self.write.sync,
                now_ms=self.now_ms,
                producer_rows=self.core.writes.producer_rows,
                epochs=self.write.epochs,
                gaps=self.write.gaps,
            )
        except OSError as error:
            self.write = None
            self._take(self.core.handle(WriteFailed(str(error)), self.now_ms))
