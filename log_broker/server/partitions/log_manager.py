"""
All partitions of one node: finds them at start, makes and deletes them, and looks after them in the background.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

from log_broker.config.broker import TopicConfig
from log_broker.interfaces import RecordValidator
from log_broker.server.partitions.cold_loads import ColdLoads
from log_broker.server.partitions.compactor import CompactionSettings, Compactor, TopicPartition
from log_broker.server.partitions.disk_watch import DiskWatch
from log_broker.server.partitions.folders import PartitionFolders
from log_broker.server.partitions.log_opening import LogOpening, Opened
from log_broker.server.partitions.offset_checkpoints import FoundPartition, OffsetCheckpoints
from log_broker.server.partitions.replica import Membership, Replica
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.machine import Claim, Pool
from log_broker.server.process.sync_pool import SyncPool
from log_broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE, decode_clean_shutdown, encode_clean_shutdown
from log_broker.storage.data_directory import DataDirectory
from log_broker.storage.files import FileSystem, OsFileSystem

T = TypeVar("T")
_log = logging.getLogger(__name__)

REOPEN_INTERVAL_MS = 10_000  # after a disk error


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
        self._clock_ms = clock_ms
        self._files = files or OsFileSystem()
        self._owned = DataDirectory(data_dir) if files is None else claim
        self._pool = SyncPool(loop) if pool is None else pool
        self.disk = DiskWatch(loop, self._files, self._pool, data_dir)
        self.disk.on_trusted = self.reopen_offline
        self.on_epoch_lost: Callable[[], None] = _nobody
        """Called when a leader has lost what followers may hold: it leads again in another epoch only."""
        # One thread for records that take long to look at: several would leave the event loop less of the interpreter.
        self._checks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-check")
        self.cold_loads = ColdLoads(loop)
        self._partitions: dict[TopicPartition, PartitionRuntime] = {}
        self._folders = PartitionFolders(loop, self._files, self._pool, data_dir)
        self.unidentified = self._folders.unidentified
        self._opening = LogOpening(self._files, data_dir, validator=validator, clock_ms=clock_ms, membership=membership)
        self.checkpoints = OffsetCheckpoints(
            loop,
            self._files,
            self._pool,
            data_dir,
            partitions=self._partitions,
            unidentified=self.unidentified,
        )
        self._compactor = Compactor(loop, self._files, data_dir, self._partitions, clock_ms=clock_ms)
        self._settings = settings
        self._membership = membership
        self._removals: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._closing = asyncio.Event()
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
        self.checkpoints.load()
        found = self._folders.find(names, topic_config_of, self.checkpoints.found)
        if clean or not found:
            opened: Iterable[Opened] = (self._opening.read(entry, clean=True) for entry in found)
        else:
            threads = self._settings().num_recovery_threads_per_data_dir if self._settings is not None else 1
            opened = self._opening.recover_all(found, threads)
        for entry, log in zip(found, opened, strict=True):
            self._take_in(entry, log)
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
            self._again(
                lambda: settings().replica_high_watermark_checkpoint_interval_ms, self.checkpoints.save_high_watermarks
            )
        self._again(lambda: REOPEN_INTERVAL_MS, self.reopen_offline)

    def create(self, topic: str, partition: int, topic_id: UUID, config: TopicConfig) -> PartitionRuntime:
        """
        Return the partition, made if it is not there.

        One of the same name and another topic id is what a deleted topic left behind, and goes. Raises OSError,
        UnidentifiedPartitionError for one that has records and does not say of which topic.
        """
        place = (topic, partition)
        if place in self.unidentified:
            self._identify(place, topic_id, config)
        found = self._partitions.get(place)
        if found is not None and found.topic_id != topic_id:
            self.delete(topic, partition)
            found = None
        if found is None:
            self.checkpoints.forget_deleted(place)
            self._folders.make(place, topic_id)
            entry = FoundPartition(place, topic_id, config)
            return self._take_in(entry, self._opening.read(entry, clean=True))
        if found.config != config:
            found.config = config
        return found

    def _identify(self, place: TopicPartition, topic_id: UUID, config: TopicConfig) -> None:
        """Take in a folder that has got its partition.metadata back; raises OSError as long as it has not."""
        entry = self.unidentified[place]._replace(topic_id=topic_id, config=config)
        if self._folders.is_of(place, topic_id):
            self._take_in(entry, self._opening.read(entry, clean=False))
            _log.warning("%s is known for a partition of topic %s again", self._folders.path(place), topic_id)
        else:
            with contextlib.suppress(FileNotFoundError):  # the operator has moved it away
                self._folders.put_aside(place)
        del self.unidentified[place]

    def delete(self, topic: str, partition: int) -> None:
        """Delete a partition and its files; an absent one is no error. Raises OSError."""
        place = (topic, partition)
        if self.unidentified.pop(place, None) is not None:
            self._folders.put_aside(place)  # it need not have been this topic's
        runtime = self._partitions.get(place)
        if runtime is None:
            return
        runtime.work.cancel_jobs()
        doomed = self._folders.rename_deleted(place)
        self._let_go(place, runtime, self._remove(runtime, doomed))

    def set_aside(self, topic: str, partition: int) -> None:
        """Take a partition out under another name, under which its files stay for a day. Raises OSError."""
        place = (topic, partition)
        if self.unidentified.pop(place, None) is not None:
            self._folders.put_aside(place)
            return
        runtime = self._partitions.pop(place)
        runtime.work.cancel_jobs()
        self._folders.put_aside(place)
        self._let_go(place, runtime, runtime.until_released())

    def _let_go(self, place: TopicPartition, runtime: PartitionRuntime, removal: Coroutine[Any, Any, None]) -> None:
        """Forget a partition whose folder has another name; `removal` is what there is to do in the background."""
        self._partitions.pop(place, None)
        self._compactor.forget(place)
        runtime.give_up()
        task = self._loop.create_task(removal)
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

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
            self.checkpoints.save_log_starts()
        return removed

    def reopen_offline(self) -> int:
        """Try to bring back the partitions that a disk error took offline; return how many are back."""
        count = 0
        for runtime in list(self._partitions.values()):
            if runtime.offline_reason is None:
                continue
            try:
                if runtime.reopen(partial(self._opening.recover, runtime)):
                    count += 1
                    self._lower_checkpoints(runtime.replica)()
                    if runtime.offline_reason is not None:
                        self.on_epoch_lost()
            except OSError as error:
                _log.error("%s-%d stays offline: %s", runtime.topic, runtime.partition, error)
        return count

    async def compact(self, *, map_bytes_max: int = 128 << 20) -> int:
        """Compact every log that is due; return the number of passes over logs."""
        return await self._compactor.compact(map_bytes_max=map_bytes_max)

    def checkpoint(self) -> None:
        """Write how far each log is on the disk, so that a start after a crash checks only what lies behind."""
        for runtime in self._partitions.values():
            runtime.keeping.sync_sealed()
        self.checkpoints.save_recovery_points()
        self.checkpoints.save_log_starts()

    async def close(self, *, broker_epoch: int = -1) -> None:
        """
        Close every log; only when all could be, the next start skips recovery.

        That start then knows that the broker stopped in order under `broker_epoch`.
        """
        for timer in self._timers:
            timer.cancel()
        self._folders.stop()
        self.disk.stop()
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
        self.cold_loads.close()
        if self._opened:
            self._save_closed(clean=not failures, broker_epoch=broker_epoch)
        if self._owned is not None:
            self._owned.release()

    def _save_closed(self, *, clean: bool, broker_epoch: int) -> None:
        try:
            self.checkpoints.save_all()
            if clean:
                self._files.replace(self._data_dir / CLEAN_SHUTDOWN_FILE, encode_clean_shutdown(broker_epoch))
        except OSError as error:
            _log.error("the checkpoints could not be written: %s", error)

    def _take_in(self, entry: FoundPartition, opened: Opened) -> PartitionRuntime:
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
        replica.on_write_failed = self.disk.suspect
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

    def _lower_checkpoints(self, replica: Replica) -> Callable[[], None]:
        """Return what brings the checkpoints down to a log that became shorter."""
        self._compactor.forget_behind((replica.topic, replica.partition), replica.log.recovery_point)
        return self.checkpoints.lower(replica)


def _nobody() -> None:
    """Where a node is alone there is nobody to tell."""
