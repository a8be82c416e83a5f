"""
All partitions of one node: finds them at start, makes and deletes them, and looks after them in the background.
"""

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID, uuid4

from log_broker.config.broker import TopicConfig
from log_broker.core.cluster.image import METADATA_TOPIC
from log_broker.core.partition.partition import Partition
from log_broker.interfaces import RecordValidator
from log_broker.server.partitions.compactor import CompactionSettings, Compactor, TopicPartition
from log_broker.server.partitions.replica import Membership, Replica
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.machine import Claim, Pool
from log_broker.server.process.sync_pool import SyncPool
from log_broker.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    decode_clean_shutdown,
    decode_offsets,
    decode_topic_id,
    encode_clean_shutdown,
    encode_offsets,
    encode_topic_id,
)
from log_broker.storage.data_directory import DataDirectory
from log_broker.storage.files import FileSystem, OsFileSystem
from log_broker.storage.log import PartitionLog
from log_broker.storage.recovery import PROGRESS_SECONDS, holds_records, open_partition

T = TypeVar("T")
_log = logging.getLogger(__name__)

REOPEN_INTERVAL_MS = 10_000  # after a disk error
_DELETED_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
STRAY_SECONDS = 24 * 3600.0


class KeepingSettings(CompactionSettings, Protocol):
    """The part of a broker's config that looking after logs goes by; read again each time."""

    @property
    def log_retention_check_interval_ms(self) -> int: ...

    @property
    def log_flush_offset_checkpoint_interval_ms(self) -> int: ...

    @property
    def replica_high_watermark_checkpoint_interval_ms(self) -> int: ...

    @property
    def producer_id_expiration_ms(self) -> int: ...

    @property
    def num_recovery_threads_per_data_dir(self) -> int: ...


class UnidentifiedPartitionError(OSError):
    """A folder has records and does not say of which topic: they are shown to nobody as another topic's."""

    def __init__(self, folder: Path, metadata: bytes) -> None:
        """`metadata` is what the folder's file would have to say for the partition that was asked for."""
        wanted = metadata.decode().strip().replace("\n", ", ")
        super().__init__(
            errno.EIO,
            f"{folder / PARTITION_METADATA_FILE} does not say of which topic the records in its folder are. If they are"
            f" of this one, write into it ({wanted}), each on a line of its own; if not, or if another replica has"
            f" them, move {folder} away. It is looked at again every few seconds",
        )


class _Found(NamedTuple):
    """A partition's directory that was there at start."""

    place: TopicPartition
    topic_id: UUID
    config: TopicConfig
    recovery_point: int
    log_start_offset: int
    high_watermark: int


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
        claim: Claim | None = None,
        pool: Pool | None = None,
        settings: Callable[[], KeepingSettings] | None = None,
        membership: Membership | None = None,
    ) -> None:
        """
        Without `settings` nothing happens by itself: retention, checkpoints and compaction when they are called.

        Without `membership` every partition is led here and has no other replica; with it, none is before
        `become_leader` says so.
        """
        self._data_dir = data_dir
        self._loop = loop
        self._validator = validator
        self._clock_ms = clock_ms
        self._files = files or OsFileSystem()
        self._owned = DataDirectory(data_dir) if files is None else claim
        self._pool = SyncPool(loop) if pool is None else pool
        # One thread for records that take long to look at: several would leave the event loop less of the interpreter.
        self._checks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-check")
        self._partitions: dict[TopicPartition, PartitionRuntime] = {}
        self.unidentified: dict[TopicPartition, _Found] = {}  # whose folder has records and does not say of which topic
        self._compactor = Compactor(loop, self._files, data_dir, self._partitions, clock_ms=clock_ms)
        self._settings = settings
        self._membership = membership
        self._removals: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._closing = asyncio.Event()
        self._saving = Lock()  # one thread at a time writes a checkpoint
        self._log_starts_saved: dict[TopicPartition, int] = {}
        self._log_starts_kept: asyncio.Future[BaseException | None] | None = None  # what the next write answers
        self._recovery_points_saved: dict[TopicPartition, int] = {}
        self._high_watermarks_saved: dict[TopicPartition, int] = {}
        self.stopped_epoch = -1  # the broker epoch under which the process before this one stopped in order
        self._opened = False  # the directory is ours and every log in it was read

    def open_all(self, topic_config_of: Callable[[str], TopicConfig]) -> None:
        """
        Open every partition found, recovering those that were not closed in order, and start looking after them.

        Raises DataDirectoryError when the directory cannot be used, OSError when a log cannot be read.
        """
        if self._owned is not None:
            self._owned.acquire()
        self._files.make_directory(self._data_dir)
        # A process that was killed may have left names that no sync has covered.
        self._files.sync_directory(self._data_dir)
        names = self._files.names(self._data_dir)
        clean = CLEAN_SHUTDOWN_FILE in names
        if clean:
            self.stopped_epoch = decode_clean_shutdown(self._files.read(self._data_dir / CLEAN_SHUTDOWN_FILE))
            # Gone before the first append: a marker must never speak for a later crash.
            self._files.remove(self._data_dir / CLEAN_SHUTDOWN_FILE)
            self._files.sync_directory(self._data_dir)
        self._recovery_points_saved = decode_offsets(self._files.read(self._data_dir / RECOVERY_POINT_FILE))
        self._log_starts_saved = decode_offsets(self._files.read(self._data_dir / LOG_START_FILE))
        self._high_watermarks_saved = decode_offsets(self._files.read(self._data_dir / HIGH_WATERMARK_FILE))
        found = self._find(names, topic_config_of)
        if clean:
            for entry in found:
                self._take_in(entry, self._read(entry, clean=True))
        elif found:
            self._recover_all(found)
        self._opened = True
        self._compactor.load()
        for runtime in self._partitions.values():
            # What a power cut took is committed no more, nor is whatever comes to stand there next.
            self._lower_checkpoints(runtime.replica)()
        if self._settings is not None:
            settings = self._settings
            self._compactor.start(settings)
            self._again(lambda: settings().log_flush_offset_checkpoint_interval_ms, self.checkpoint)
            self._again(lambda: settings().log_retention_check_interval_ms, self._look_after)
            self._again(lambda: settings().replica_high_watermark_checkpoint_interval_ms, self._save_high_watermarks)
        self._again(lambda: REOPEN_INTERVAL_MS, self.reopen_offline)

    def _find(self, names: Iterable[str], topic_config_of: Callable[[str], TopicConfig]) -> list[_Found]:
        """Look through the folders of partitions; return those that can be opened."""
        found: list[_Found] = []
        for name in sorted(names):
            if name.endswith(_DELETED_SUFFIX):
                self._files.remove_tree(self._data_dir / name)
                continue
            if name.endswith(_STRAY_SUFFIX):
                self._remove_later(self._data_dir / name)
                continue
            place = _place_of(name)
            if place is None or place[0] == METADATA_TOPIC:
                continue
            topic_id = self._topic_id_in(self._data_dir / name)
            entry = _Found(
                place,
                topic_id or UUID(int=0),
                topic_config_of(place[0]),
                self._recovery_points_saved.get(place, 0),
                self._log_starts_saved.get(place, 0),
                self._high_watermarks_saved.get(place, 0),
            )
            if topic_id is not None:
                found.append(entry)
            elif holds_records(self._files, self._data_dir / name):
                self.unidentified[place] = entry
            else:
                self._put_aside(place)  # made, and never written to
        return found

    def create(self, topic: str, partition: int, topic_id: UUID, config: TopicConfig) -> PartitionRuntime:
        """
        Return the partition, made if it is not there.

        One of the same name and another topic id is what a deleted topic left behind, and goes. Raises OSError,
        UnidentifiedPartitionError for one that has records and does not say of which topic.
        """
        place = (topic, partition)
        directory = self._data_dir / f"{topic}-{partition}"
        if place in self.unidentified:
            self._identify(place, topic_id, config)
        found = self._partitions.get(place)
        if found is not None and found.topic_id != topic_id:
            self.delete(topic, partition)
            found = None
        if found is None:
            checkpoints = (self._log_starts_saved, self._recovery_points_saved, self._high_watermarks_saved)
            if any(place in saved for saved in checkpoints):
                self._forget_deleted()
            self._files.make_directory(directory)
            # Without a sync, for which the event loop would wait: the log's first write sees to that.
            self._files.replace(directory / PARTITION_METADATA_FILE, encode_topic_id(topic_id), sync=False)
            entry = _Found(place, topic_id, config, recovery_point=0, log_start_offset=0, high_watermark=0)
            return self._take_in(entry, self._read(entry, clean=True))
        if found.config != config:
            found.config = config
        return found

    def _identify(self, place: TopicPartition, topic_id: UUID, config: TopicConfig) -> None:
        """Take in a folder that has got its partition.metadata back; raises OSError as long as it has not."""
        topic, partition = place
        folder = self._data_dir / f"{topic}-{partition}"
        entry = self.unidentified[place]
        found = self._topic_id_in(folder)
        if found is None and holds_records(self._files, folder):
            raise UnidentifiedPartitionError(folder, encode_topic_id(topic_id))
        if found == topic_id:
            entry = entry._replace(topic_id=topic_id, config=config)
            self._take_in(entry, self._read(entry, clean=False))
            _log.warning("%s is known for a partition of topic %s again", folder, topic_id)
        else:
            with contextlib.suppress(FileNotFoundError):  # the operator has moved it away
                self._put_aside(place)
        del self.unidentified[place]

    def _topic_id_in(self, folder: Path) -> UUID | None:
        """Read of which topic a folder's records are; None where it cannot be told."""
        try:
            return decode_topic_id(self._files.read(folder / PARTITION_METADATA_FILE))
        except OSError as error:
            _log.error("%s cannot be read: %s", folder / PARTITION_METADATA_FILE, error)
            return None

    def delete(self, topic: str, partition: int) -> None:
        """Delete a partition and its files; an absent one is no error. Raises OSError."""
        if self.unidentified.pop((topic, partition), None) is not None:
            self._put_aside((topic, partition))  # it need not have been this topic's
        runtime = self._partitions.get((topic, partition))
        if runtime is None:
            return
        doomed = self._data_dir / f"{topic}-{partition}.{uuid4().hex}{_DELETED_SUFFIX}"
        runtime.work.cancel_jobs()
        self._files.rename(self._data_dir / f"{topic}-{partition}", doomed)
        del self._partitions[topic, partition]
        self._compactor.forget((topic, partition))
        runtime.give_up()
        task = self._loop.create_task(self._remove(runtime, doomed))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    def set_aside(self, topic: str, partition: int) -> None:
        """Take a partition out under another name, under which its files stay for a day. Raises OSError."""
        if self.unidentified.pop((topic, partition), None) is not None:
            self._put_aside((topic, partition))
            return
        runtime = self._partitions.pop((topic, partition))
        runtime.work.cancel_jobs()
        self._put_aside((topic, partition))
        self._compactor.forget((topic, partition))
        runtime.give_up()
        self._removals.add(task := self._loop.create_task(runtime.until_released()))
        task.add_done_callback(self._removals.discard)

    def _put_aside(self, place: TopicPartition) -> None:
        topic, partition = place
        aside = self._data_dir / f"{topic}-{partition}.{uuid4().hex}{_STRAY_SUFFIX}"
        self._files.rename(self._data_dir / f"{topic}-{partition}", aside)
        self._remove_later(aside)

    def _remove_later(self, stray: Path) -> None:
        """Remove what was set aside, after whoever may miss it has had a day."""

        def remove() -> None:
            self._timers.remove(handle)
            self._pool.submit(lambda: self._files.remove_tree(stray), lambda _: None)

        handle = self._loop.call_later(STRAY_SECONDS, remove)
        self._timers.append(handle)

    def aside(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run work that takes more than a turn of the event loop in the thread that is there for it."""
        return self._loop.run_in_executor(self._checks, work)

    def get(self, topic: str, partition: int) -> PartitionRuntime | None:
        return self._partitions.get((topic, partition))

    def led(self, topic: str, partition: int) -> PartitionRuntime | None:
        """Return the partition if it is led here."""
        runtime = self._partitions.get((topic, partition))
        return runtime if runtime is not None and runtime.is_leader else None

    def partitions(self) -> Iterable[PartitionRuntime]:
        return self._partitions.values()

    def enforce_retention(self, now_ms: int) -> int:
        """Let go of what retention no longer keeps; return the number of segments removed."""
        removed = 0
        for runtime in self._partitions.values():
            try:
                removed += runtime.keeping.enforce_retention(now_ms)
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
                if runtime.reopen(partial(self._recover, runtime)):
                    count += 1
                    self._lower_checkpoints(runtime.replica)()
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
            leads=runtime.is_leader and not runtime.has_followers,
            high_watermark=runtime.high_watermark,
            lease=None if self._membership is None else self._membership.lease,
            metadata=encode_topic_id(runtime.topic_id),
        )

    async def compact(self, *, map_bytes_max: int = 128 << 20) -> int:
        """Compact every log that is due; return the number of passes over logs."""
        return await self._compactor.compact(map_bytes_max=map_bytes_max)

    def checkpoint(self) -> None:
        """Write how far each log is on the disk, so that a start after a crash checks only what lies behind."""
        for runtime in self._partitions.values():
            runtime.keeping.sync_sealed()
        self._recovery_points_saved = self._recovery_points()
        self._in_thread(RECOVERY_POINT_FILE, self._write_recovery_points)
        self._save_log_starts()

    async def close(self, *, broker_epoch: int = -1) -> None:
        """
        Close every log; only when all could be, the next start skips recovery.

        That start then knows that the broker stopped in order under `broker_epoch`.
        """
        for timer in self._timers:
            timer.cancel()
        self._closing.set()
        await self._compactor.stop()
        results = await asyncio.gather(
            *(runtime.close() for runtime in self._partitions.values()), *self._removals, return_exceptions=True
        )
        failures = [result for result in results if result is not None]
        for failure in failures:
            _log.error("a log could not be closed in order: %s", failure)
        self._pool.close()
        self._checks.shutdown(wait=False, cancel_futures=True)
        if self._opened:
            self._save_closed(clean=not failures, broker_epoch=broker_epoch)
        if self._owned is not None:
            self._owned.release()

    def _save_closed(self, *, clean: bool, broker_epoch: int) -> None:
        try:
            self._files.replace(self._data_dir / RECOVERY_POINT_FILE, encode_offsets(self._recovery_points()))
            self._files.replace(self._data_dir / LOG_START_FILE, encode_offsets(self._log_starts()))
            self._files.replace(self._data_dir / HIGH_WATERMARK_FILE, encode_offsets(self._high_watermarks()))
            if clean:
                self._files.replace(self._data_dir / CLEAN_SHUTDOWN_FILE, encode_clean_shutdown(broker_epoch))
        except OSError as error:
            _log.error("the checkpoints could not be written: %s", error)

    def _recover_all(self, found: Sequence[_Found]) -> None:
        """Read logs that were not closed in order, several at once: checking them is what takes long."""
        threads = self._settings().num_recovery_threads_per_data_dir if self._settings is not None else 1
        began = said_at = monotonic()
        _log.info("recovering %d logs of %s after an unclean end", len(found), self._data_dir)
        with ExitStack() as stack:
            read: Callable[[_Found], tuple[Partition, PartitionLog]] = partial(self._read, clean=False)
            logs: Iterable[tuple[Partition, PartitionLog]]
            if threads == 1:
                logs = map(read, found)
            else:
                logs = stack.enter_context(ThreadPoolExecutor(threads, "log-recovery")).map(read, found)
            for count, (entry, opened) in enumerate(zip(found, logs, strict=True), 1):
                self._take_in(entry, opened)
                if monotonic() - said_at > PROGRESS_SECONDS:
                    said_at = monotonic()
                    _log.info("recovered %d of %d logs", count, len(found))
        _log.info("recovered %d logs in %.1f s", len(found), monotonic() - began)

    def _read(self, entry: _Found, *, clean: bool) -> tuple[Partition, PartitionLog]:
        """Open the files of one partition; touches nothing else. Raises OSError."""
        topic, partition = entry.place
        return open_partition(
            self._files,
            self._data_dir / f"{topic}-{partition}",
            topic,
            entry.config,
            recovery_point=entry.recovery_point,
            log_start_offset=entry.log_start_offset,
            clean=clean,
            now_ms=self._clock_ms(),
            validator=self._validator,
            leads=self._membership is None,
            high_watermark=entry.high_watermark,
            lease=None if self._membership is None else self._membership.lease,
            metadata=encode_topic_id(entry.topic_id),
        )

    def _take_in(self, entry: _Found, opened: tuple[Partition, PartitionLog]) -> PartitionRuntime:
        replica = Replica(
            *opened,
            partition=entry.place[1],
            topic_id=entry.topic_id,
            files=self._files,
            pool=self._pool,
            loop=self._loop,
            clock_ms=self._clock_ms,
            membership=self._membership,
            aside=self.aside,
        )
        self._partitions[entry.place] = runtime = PartitionRuntime(replica, self._lower_checkpoints)
        return runtime

    async def _remove(self, runtime: PartitionRuntime, doomed: Path) -> None:
        await runtime.until_released()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), runtime.config.file_delete_delay_ms / 1000)
        answer: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._pool.submit(lambda: self._files.remove_tree(doomed), answer.set_result)
        await answer

    def _again(self, interval_ms: Callable[[], int], action: Callable[[], object]) -> None:
        """Run `action` every so often."""

        def run() -> None:
            self._timers.remove(handle)
            with contextlib.suppress(OSError):
                action()
            self._again(interval_ms, action)

        handle = self._loop.call_later(interval_ms() / 1000, run)
        self._timers.append(handle)

    def _look_after(self) -> None:
        assert self._settings is not None
        now_ms = self._clock_ms()
        self.enforce_retention(now_ms)
        for runtime in self._partitions.values():
            runtime.keeping.expire_producers(now_ms, after_ms=self._settings().producer_id_expiration_ms)

    def _recovery_points(self) -> dict[TopicPartition, int]:
        kept = {place: entry.recovery_point for place, entry in self.unidentified.items()}
        return kept | {place: runtime.recovery_point for place, runtime in self._partitions.items()}

    def _log_starts(self) -> dict[TopicPartition, int]:
        kept = {place: entry.log_start_offset for place, entry in self.unidentified.items()}
        return kept | {place: runtime.log_start_offset for place, runtime in self._partitions.items()}

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        kept = {place: entry.high_watermark for place, entry in self.unidentified.items()}
        return kept | {place: runtime.high_watermark for place, runtime in self._partitions.items()}

    async def keep_log_starts(self) -> None:
        """Return once it is on the disk where each log starts; raises OSError. Those of a turn share one write."""
        if self._log_starts_kept is None:
            self._log_starts_kept = self._loop.create_future()
            self._loop.call_soon(self._keep_log_starts)
        error = await asyncio.shield(self._log_starts_kept)
        if error is not None:
            raise error

    def _keep_log_starts(self) -> None:
        answer, self._log_starts_kept = self._log_starts_kept, None
        assert answer is not None, "somebody waits for it"
        self._log_starts_saved = self._log_starts()
        self._pool.submit(self._write_log_starts, answer.set_result)

    def _forget_deleted(self) -> None:
        """Write checkpoints without the deleted partitions: what they say must not be taken for a new one's."""
        self._log_starts_saved = self._log_starts()
        self._recovery_points_saved = self._recovery_points()
        self._high_watermarks_saved = self._high_watermarks()
        self._write_log_starts()
        self._write_recovery_points()
        self._write_high_watermarks()

    def _save_log_starts(self) -> None:
        starts = self._log_starts()
        if starts != self._log_starts_saved:
            self._log_starts_saved = starts
            self._in_thread(LOG_START_FILE, self._write_log_starts)

    def _write_log_starts(self) -> None:
        # What is written is what holds then: the order in which threads come to it does not matter.
        with self._saving:
            self._files.replace(self._data_dir / LOG_START_FILE, encode_offsets(self._log_starts_saved))

    def _write_recovery_points(self) -> None:
        with self._saving:
            self._files.replace(self._data_dir / RECOVERY_POINT_FILE, encode_offsets(self._recovery_points_saved))

    def _lower_checkpoints(self, replica: Replica) -> Callable[[], None]:
        """Return what writes the checkpoints again where they would speak of offsets that a log no longer has."""
        place = (replica.topic, replica.partition)
        self._compactor.forget_behind(place, replica.log.recovery_point)
        writes: list[Callable[[], None]] = []
        if self._recovery_points_saved.get(place, 0) > replica.log.recovery_point:
            self._recovery_points_saved = self._recovery_points()
            writes.append(self._write_recovery_points)
        if self._log_starts_saved.get(place, 0) > replica.state.log_start_offset:
            self._log_starts_saved = self._log_starts()
            writes.append(self._write_log_starts)
        if self._high_watermarks_saved.get(place, 0) > replica.state.high_watermark:
            self._high_watermarks_saved = self._high_watermarks()
            writes.append(self._write_high_watermarks)

        def lower() -> None:
            for write in writes:
                write()

        return lower

    def _save_high_watermarks(self) -> None:
        watermarks = self._high_watermarks()
        if watermarks != self._high_watermarks_saved:
            self._high_watermarks_saved = watermarks
            self._in_thread(HIGH_WATERMARK_FILE, self._write_high_watermarks)

    def _write_high_watermarks(self) -> None:
        with self._saving:
            self._files.replace(self._data_dir / HIGH_WATERMARK_FILE, encode_offsets(self._high_watermarks_saved))

    def _in_thread(self, name: str, write: Callable[[], None]) -> None:
        def done(error: BaseException | None) -> None:
            if error is not None:
                _log.error("%s could not be written: %s", self._data_dir / name, error)

        self._pool.submit(write, done)


def _place_of(directory_name: str) -> TopicPartition | None:
    topic, dash, partition = directory_name.rpartition("-")
    if not dash or not topic or not (partition.isascii() and partition.isdigit()):
        return None
    return topic, int(partition)
