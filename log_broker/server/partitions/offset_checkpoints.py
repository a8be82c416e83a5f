"""
The checkpoint files of a data directory: where each log starts, how far it is on the disk, how far it is committed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from uuid import UUID

from log_broker.config.broker import TopicConfig
from log_broker.server.partitions.compactor import TopicPartition
from log_broker.server.partitions.replica import Replica
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.machine import Pool
from log_broker.storage.checkpoints import (
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    decode_offsets,
    encode_offsets,
)
from log_broker.storage.files import FileSystem

_log = logging.getLogger(__name__)


class FoundPartition(NamedTuple):
    """A partition as its folder and the checkpoints have it, before its log is opened."""

    place: TopicPartition
    topic_id: UUID
    config: TopicConfig
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0


class _Checkpoint:
    """One file: an offset of each partition."""

    def __init__(
        self, files: FileSystem, path: Path, saving: Lock, offsets_now: Callable[[], dict[TopicPartition, int]]
    ) -> None:
        self.path = path
        self.saved: dict[TopicPartition, int] = {}  # as of the last write, perhaps still under way
        self._files = files
        self._saving = saving
        self._offsets_now = offsets_now

    def load(self) -> None:
        self.saved = decode_offsets(self._files.read(self.path))

    def take(self) -> bool:
        """Have the offsets of now written next; say whether they are others than those saved."""
        before, self.saved = self.saved, self._offsets_now()
        return self.saved != before

    def write(self) -> None:
        # What is written is what holds then: the order in which threads come to it does not matter.
        with self._saving:
            self._files.replace(self.path, encode_offsets(self.saved))


class OffsetCheckpoints:
    """Reads the checkpoints of all partitions and writes them, so that none names an offset that its log lacks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        files: FileSystem,
        pool: Pool,
        data_dir: Path,
        *,
        partitions: Mapping[TopicPartition, PartitionRuntime],
        unidentified: Mapping[TopicPartition, FoundPartition],
    ) -> None:
        """What is known of `unidentified` folders is kept as it is."""
        self._loop = loop
        self._pool = pool
        self._partitions = partitions
        self._unidentified = unidentified
        saving = Lock()  # one thread at a time writes a checkpoint
        self._recovery_points = _Checkpoint(files, data_dir / RECOVERY_POINT_FILE, saving, self._recovery_points_now)
        self._log_starts = _Checkpoint(files, data_dir / LOG_START_FILE, saving, self._log_starts_now)
        self._high_watermarks = _Checkpoint(files, data_dir / HIGH_WATERMARK_FILE, saving, self._high_watermarks_now)
        self._all = (self._recovery_points, self._log_starts, self._high_watermarks)
        self._log_starts_kept: asyncio.Future[BaseException | None] | None = None  # what the next write answers

    def load(self) -> None:
        """Read what was written last; raises OSError."""
        for checkpoint in self._all:
            checkpoint.load()

    def found(self, place: TopicPartition, topic_id: UUID, config: TopicConfig) -> FoundPartition:
        """Describe a partition with what was written of it last."""
        recovery_point, log_start, high_watermark = (checkpoint.saved.get(place, 0) for checkpoint in self._all)
        return FoundPartition(place, topic_id, config, recovery_point, log_start, high_watermark)

    def forget_deleted(self, place: TopicPartition) -> None:
        """See that nothing is said of a deleted partition: it must not be taken for a new one's. Raises OSError."""
        if any(place in checkpoint.saved for checkpoint in self._all):
            self.save_all()

    def lower(self, replica: Replica) -> Callable[[], None]:
        """Return what writes the checkpoints again where they would speak of offsets that a log no longer has."""
        place = (replica.topic, replica.partition)
        ends = (replica.log.recovery_point, replica.state.log_start_offset, replica.state.high_watermark)
        lowered = [
            checkpoint for checkpoint, end in zip(self._all, ends, strict=True) if checkpoint.saved.get(place, 0) > end
        ]
        for checkpoint in lowered:
            checkpoint.take()

        def lower() -> None:
            for checkpoint in lowered:
                checkpoint.write()

        return lower

    def save_recovery_points(self) -> None:
        """Write in a thread how far each log is on the disk."""
        self._recovery_points.take()
        self._write_in_thread(self._recovery_points)

    def save_log_starts(self) -> None:
        """Write in a thread where each log starts, if that has changed."""
        if self._log_starts.take():
            self._write_in_thread(self._log_starts)

    def save_high_watermarks(self) -> None:
        """Write in a thread how far each log is committed, if that has changed."""
        if self._high_watermarks.take():
            self._write_in_thread(self._high_watermarks)

    async def keep_log_starts(self) -> None:
        """Return once it is on the disk where each log starts; raises OSError. Those of a turn share one write."""
        if self._log_starts_kept is None:
            self._log_starts_kept = self._loop.create_future()
            self._loop.call_soon(self._keep_log_starts)
        error = await asyncio.shield(self._log_starts_kept)
        if error is not None:
            raise error

    def save_all(self) -> None:
        """Write all of them before this returns; raises OSError."""
        for checkpoint in self._all:
            checkpoint.take()
        for checkpoint in self._all:
            checkpoint.write()

    def _keep_log_starts(self) -> None:
        answer, self._log_starts_kept = self._log_starts_kept, None
        assert answer is not None, "somebody waits for it"
        self._log_starts.take()
        self._pool.submit(self._log_starts.write, answer.set_result)

    def _write_in_thread(self, checkpoint: _Checkpoint) -> None:
        def done(error: BaseException | None) -> None:
            if error is not None:
                _log.error("%s could not be written: %s", checkpoint.path, error)

        self._pool.submit(checkpoint.write, done)

    def _recovery_points_now(self) -> dict[TopicPartition, int]:
        kept = {place: entry.recovery_point for place, entry in self._unidentified.items()}
        return kept | {place: runtime.recovery_point for place, runtime in self._partitions.items()}

    def _log_starts_now(self) -> dict[TopicPartition, int]:
        kept = {place: entry.log_start_offset for place, entry in self._unidentified.items()}
        return kept | {place: runtime.log_start_offset for place, runtime in self._partitions.items()}

    def _high_watermarks_now(self) -> dict[TopicPartition, int]:
        kept = {place: entry.high_watermark for place, entry in self._unidentified.items()}
        return kept | {place: runtime.high_watermark for place, runtime in self._partitions.items()}
