"""
All partitions of one node: finds them at start, makes and deletes them, and looks after them in the background.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

from log_broker.config import TopicConfig
from log_broker.core.partition import Partition
from log_broker.interfaces import RecordValidator
from log_broker.server.compactor import CompactionSettings, Compactor, Place
from log_broker.server.partition import PartitionRuntime
from log_broker.server.sync_pool import SyncPool
from log_broker.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    decode_offsets,
    decode_topic_id,
    encode_offsets,
    encode_topic_id,
)
from log_broker.storage.data_directory import DataDirectory
from log_broker.storage.files import FileSystem, OsFileSystem
from log_broker.storage.log import PartitionLog
from log_broker.storage.recovery import open_partition

_log = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_SECONDS = 60  # log.flush.offset.checkpoint.interval.ms
RETENTION_INTERVAL_SECONDS = 300  # log.retention.check.interval.ms
REOPEN_INTERVAL_SECONDS = 10  # after a disk error
PRODUCER_EXPIRATION_MS = 24 * 60 * 60 * 1000  # producer.id.expiration.ms
_DELETED_SUFFIX = "-delete"


class LogManager:
    """Opens, keeps and closes the logs under one data directory."""

    def __init__(
        self,
        data_dir: Path,
        loop: asyncio.AbstractEventLoop,
        *,
        validator: RecordValidator | None,
        clock_ms: Callable[[], int],
        files: FileSystem | None = None,
        compaction: Callable[[], CompactionSettings] | None = None,
    ) -> None:
        """Without `compaction` settings it happens only when `compact` is called."""
        self._data_dir = data_dir
        self._loop = loop
        self._validator = validator
        self._clock_ms = clock_ms
        self._files = files or OsFileSystem()
        self._owned: DataDirectory | None = DataDirectory(data_dir) if files is None else None
        self._pool = SyncPool(loop)
        self._partitions: dict[Place, PartitionRuntime] = {}
        self._compactor = Compactor(loop, self._files, data_dir, self._partitions, clock_ms=clock_ms)
        self._compaction_settings = compaction
        self._removals: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._log_starts_saved: dict[Place, int] = {}
        self._opened = False  # the directory is ours and every log in it was read

    def open_all(self, topic_config_of: Callable[[str], TopicConfig]) -> None:
        """
        Open every partition found, recovering those that were not closed in order, and start looking after them.

        Raises DataDirectoryError when the directory cannot be used, OSError when a log cannot be read.
        """
        if self._owned is not None:
            self._owned.acquire()
        self._files.make_directory(self._data_dir)
        names = self._files.names(self._data_dir)
        clean = CLEAN_SHUTDOWN_FILE in names
        if clean:
            # Gone before the first append: a marker must never speak for a later crash.
            self._files.remove(self._data_dir / CLEAN_SHUTDOWN_FILE)
            self._files.sync_directory(self._data_dir)
        recovery_points = decode_offsets(self._files.read(self._data_dir / RECOVERY_POINT_FILE))
        self._log_starts_saved = decode_offsets(self._files.read(self._data_dir / LOG_START_FILE))
        for name in sorted(names):
            if name.endswith(_DELETED_SUFFIX):
                self._files.remove_tree(self._data_dir / name)
                continue
            place = _place_of(name)
            if place is None:
                continue
            topic_id = decode_topic_id(self._files.read(self._data_dir / name / PARTITION_METADATA_FILE))
            self._open(
                place,
                topic_id or UUID(int=0),
                topic_config_of(place[0]),
                recovery_point=recovery_points.get(place, 0),
                clean=clean,
            )
        self._opened = True
        self._compactor.load()
        if self._compaction_settings is not None:
            self._compactor.start(self._compaction_settings)
        self._again(CHECKPOINT_INTERVAL_SECONDS, self.checkpoint)
        self._again(RETENTION_INTERVAL_SECONDS, self._look_after)
        self._again(REOPEN_INTERVAL_SECONDS, self.reopen_offline)

    def create(self, topic: str, partition: int, topic_id: UUID, config: TopicConfig) -> PartitionRuntime:
        """
        Return the partition, made if it is not there.

        One of the same name and another topic id is what a deleted topic left behind, and goes. Raises OSError.
        """
        place = (topic, partition)
        directory = self._data_dir / f"{topic}-{partition}"
        found = self._partitions.get(place)
        if found is not None and found.topic_id not in (topic_id, UUID(int=0)):
            self.delete(topic, partition)
            found = None
        if found is None:
            self._files.make_directory(directory)
            self._files.replace(directory / PARTITION_METADATA_FILE, encode_topic_id(topic_id), sync=False)
            return self._open(place, topic_id, config, recovery_point=0, clean=True)
        if found.topic_id != topic_id:
            self._files.replace(directory / PARTITION_METADATA_FILE, encode_topic_id(topic_id), sync=False)
            found.topic_id = topic_id
        found.config = config
        return found

    def delete(self, topic: str, partition: int) -> None:
        """Delete a partition and its files; an absent one is no error. Raises OSError."""
        runtime = self._partitions.get((topic, partition))
        if runtime is None:
            return
        doomed = self._data_dir / f"{topic}-{partition}.{uuid4().hex}{_DELETED_SUFFIX}"
        runtime.cancel_compaction()
        self._files.rename(self._data_dir / f"{topic}-{partition}", doomed)
        del self._partitions[topic, partition]
        self._log_starts_saved.pop((topic, partition), None)
        self._compactor.forget((topic, partition))
        runtime.give_up()
        task = self._loop.create_task(self._remove(runtime, doomed))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    def get(self, topic: str, partition: int) -> PartitionRuntime | None:
        return self._partitions.get((topic, partition))

    def partitions(self) -> Iterable[PartitionRuntime]:
        return self._partitions.values()

    def enforce_retention(self, now_ms: int) -> int:
        """Let go of what retention no longer keeps; return the number of segments removed."""
        removed = 0
        for runtime in self._partitions.values():
            try:
                removed += runtime.enforce_retention(now_ms)
            except OSError as error:
                _log.error("retention of %s-%d failed: %s", runtime.topic, runtime.partition, error)
        if removed:
            self._save_log_starts()
        return removed

    def reopen_offline(self) -> int:
        """Try to bring back the partitions that a disk error took offline; return how many are back."""
        count = 0
        for runtime in list(self._partitions.values()):
            if runtime.offline_reason is None:
                continue
            try:
                count += runtime.reopen(partial(self._recover, runtime))
            except OSError as error:
                _log.error("%s-%d stays offline: %s", runtime.topic, runtime.partition, error)
        return count

    def _recover(self, runtime: PartitionRuntime, recovery_point: int) -> tuple[Partition, PartitionLog]:
        return open_partition(
            self._files,
            self._data_dir / f"{runtime.topic}-{runtime.partition}",
            runtime.topic,
            runtime.config,
            recovery_point=recovery_point,
            log_start_offset=runtime.log_start_offset,
            clean=False,
            now_ms=self._clock_ms(),
            validator=self._validator,
        )

    async def compact(self, *, map_bytes_max: int = 128 << 20) -> int:
        """Compact every log that is due; return the number of passes over logs."""
        return await self._compactor.compact(map_bytes_max=map_bytes_max)

    def checkpoint(self) -> None:
        """Write how far each log is on the disk, so that a start after a crash checks only what lies behind."""
        for runtime in self._partitions.values():
            runtime.sync_sealed()
        content = encode_offsets({place: runtime.recovery_point for place, runtime in self._partitions.items()})
        self._replace_in_thread(self._data_dir / RECOVERY_POINT_FILE, content)
        self._save_log_starts()

    async def close(self) -> None:
        """Close every log; only when all could be, the next start skips recovery."""
        for timer in self._timers:
            timer.cancel()
        await self._compactor.stop()
        results = await asyncio.gather(
            *(runtime.close() for runtime in self._partitions.values()), *self._removals, return_exceptions=True
        )
        failures = [result for result in results if result is not None]
        for failure in failures:
            _log.error("a log could not be closed in order: %s", failure)
        self._pool.close()
        if self._opened:
            self._save_closed(clean=not failures)
        if self._owned is not None:
            self._owned.release()

    def _save_closed(self, *, clean: bool) -> None:
        try:
            recovery_points = {place: runtime.recovery_point for place, runtime in self._partitions.items()}
            self._files.replace(self._data_dir / RECOVERY_POINT_FILE, encode_offsets(recovery_points))
            self._files.replace(self._data_dir / LOG_START_FILE, encode_offsets(self._log_starts()))
            if clean:
                self._files.replace(self._data_dir / CLEAN_SHUTDOWN_FILE, b"")
        except OSError as error:
            _log.error("the checkpoints could not be written: %s", error)

    def _open(
        self, place: Place, topic_id: UUID, config: TopicConfig, *, recovery_point: int, clean: bool
    ) -> PartitionRuntime:
        topic, partition = place
        directory = self._data_dir / f"{topic}-{partition}"
        core, log = open_partition(
            self._files,
            directory,
            topic,
            config,
            recovery_point=recovery_point,
            log_start_offset=self._log_starts_saved.get(place, 0),
            clean=clean,
            now_ms=self._clock_ms(),
            validator=self._validator,
        )
        runtime = PartitionRuntime(
            core,
            log,
            partition=partition,
            topic_id=topic_id,
            files=self._files,
            pool=self._pool,
            loop=self._loop,
            clock_ms=self._clock_ms,
        )
        self._partitions[place] = runtime
        return runtime

    async def _remove(self, runtime: PartitionRuntime, doomed: Path) -> None:
        await runtime.until_released()
        answer: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._pool.submit(lambda: self._files.remove_tree(doomed), answer.set_result)
        await answer

    def _again(self, seconds: float, action: Callable[[], object]) -> None:
        """Run `action` every so often."""

        def run() -> None:
            self._timers.remove(handle)
            with contextlib.suppress(OSError):
                action()
            self._again(seconds, action)

        handle = self._loop.call_later(seconds, run)
        self._timers.append(handle)

    def _look_after(self) -> None:
        now_ms = self._clock_ms()
        self.enforce_retention(now_ms)
        for runtime in self._partitions.values():
            runtime.expire_producers(now_ms, after_ms=PRODUCER_EXPIRATION_MS)

    def _log_starts(self) -> dict[Place, int]:
        return {place: runtime.log_start_offset for place, runtime in self._partitions.items()}

    def _save_log_starts(self) -> None:
        starts = self._log_starts()
        if starts != self._log_starts_saved:
            self._log_starts_saved = starts
            self._replace_in_thread(self._data_dir / LOG_START_FILE, encode_offsets(starts))

    def _replace_in_thread(self, path: Path, content: bytes) -> None:
        def done(error: BaseException | None) -> None:
            if error is not None:
                _log.error("%s could not be written: %s", path, error)

        self._pool.submit(lambda: self._files.replace(path, content), done)


def _place_of(directory_name: str) -> Place | None:
    topic, dash, partition = directory_name.rpartition("-")
    if not dash or not topic or not (partition.isascii() and partition.isdigit()):
        return None
    return topic, int(partition)
