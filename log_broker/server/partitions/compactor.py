"""
The background task that compacts the logs of one node, one log at a time: the dirtiest first.

Reading and rewriting happen in a thread of its own. What changes a log or the names of its files happens in the event
loop, between two steps of that thread.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from log_broker.errors import BrokerError
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.storage.checkpoints import CLEANER_OFFSET_FILE, decode_offsets, encode_offsets
from log_broker.storage.compaction import CompactionCancelledError, CompactionPlan, DamagedSegmentError, Rewritten
from log_broker.storage.files import FileSystem
from log_broker.storage.segment_swap import discard

_log = logging.getLogger(__name__)

TopicPartition = tuple[str, int]


class CompactionSettings(Protocol):
    """The part of a broker's config that the compactor goes by; read again for each round."""

    @property
    def log_cleaner_enable(self) -> bool: ...

    @property
    def log_cleaner_backoff_ms(self) -> int: ...

    @property
    def log_cleaner_dedupe_buffer_size(self) -> int: ...


class Compactor:
    """Knows how far each log is compacted, and gets it further."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        files: FileSystem,
        data_dir: Path,
        partitions: Mapping[TopicPartition, PartitionRuntime],
        *,
        clock_ms: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._files = files
        self._path = data_dir / CLEANER_OFFSET_FILE
        self._partitions = partitions
        self._clock_ms = clock_ms
        self._compacted_to: dict[TopicPartition, int] = {}
        self._damaged: WeakSet[PartitionRuntime] = WeakSet()  # left alone until the next start
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-compaction")
        self._stopping = asyncio.Event()
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Read how far each log is compacted; raises OSError."""
        for place, offset in decode_offsets(self._files.read(self._path)).items():
            runtime = self._partitions.get(place)
            # A log that was cut at recovery is begun again, before it grows past that offset with other records.
            if runtime is not None and offset <= runtime.log_end_offset:
                self._compacted_to[place] = offset

    def start(self, settings_of: Callable[[], CompactionSettings]) -> None:
        """Compact every so often until `stop`."""
        self._task = self._loop.create_task(self._run(settings_of))

    async def stop(self) -> None:
        """Break off what is under way, and return when nothing touches a log any more."""
        self._stopping.set()
        for runtime in self._partitions.values():
            runtime.compaction.cancel()
        if self._task is not None:
            await self._task
        async with self._turn:
            self._executor.shutdown()

    def forget_behind(self, place: TopicPartition, end_offset: int) -> None:
        """Take note that a log was cut: what it grows again behind that has not been compacted."""
        if self._compacted_to.get(place, 0) > end_offset:
            self.forget(place)

    def forget(self, place: TopicPartition) -> None:
        """Take note that the partition is deleted: another of its name begins again."""
        if self._compacted_to.pop(place, None) is not None:
            self._loop.run_in_executor(self._executor, self._save, encode_offsets(self._compacted_to))

    async def compact(self, *, map_bytes_max: int) -> int:
        """Compact every log that is due; return the number of passes over logs."""
        passes = 0
        async with self._turn:
            for place, runtime, plan in self._due():
                passes += await self._compact_log(place, runtime, plan, map_bytes_max)
        return passes

    async def _run(self, settings_of: Callable[[], CompactionSettings]) -> None:
        while not self._stopping.is_set():
            settings = settings_of()
            if settings.log_cleaner_enable:
                try:
                    await self.compact(map_bytes_max=settings.log_cleaner_dedupe_buffer_size)
                except Exception:
                    # A fault of our own must not end compaction for as long as the node runs.
                    _log.exception("a round of compaction failed")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), settings.log_cleaner_backoff_ms / 1000)

    def _due(self) -> list[tuple[TopicPartition, PartitionRuntime, CompactionPlan]]:
        now_ms = self._clock_ms()
        due: list[tuple[TopicPartition, PartitionRuntime, CompactionPlan]] = []
        for place, runtime in self._partitions.items():
            if not runtime.config.is_compacted or runtime in self._damaged:
                continue
            try:
                runtime.keeping.sync_sealed()  # segments that are not on the disk are left to a later round
                plan = runtime.compaction.plan(self._compacted_to.get(place, 0), now_ms)
            except OSError as error:
                _log.error("the compaction of %s-%d could not be planned: %s", *place, error)
                continue
            if plan is not None and (plan.is_overdue or plan.dirty_ratio > runtime.config.min_cleanable_dirty_ratio):
                due.append((place, runtime, plan))
        due.sort(key=lambda entry: (entry[2].is_overdue, entry[2].dirty_ratio), reverse=True)
        return due

    async def _compact_log(
        self, place: TopicPartition, runtime: PartitionRuntime, first_plan: CompactionPlan, map_bytes_max: int
    ) -> int:
        """Compact one log, in as many passes as its keys need; return how many those were."""
        passes = 0
        plan: CompactionPlan | None = first_plan
        try:
            while plan is not None and not self._stopping.is_set() and not runtime.is_closed:
                compacted_to = await self._pass(runtime, plan, map_bytes_max)
                if runtime.is_closed:
                    break
                self._compacted_to[place] = compacted_to
                await self._in_thread(partial(self._save, encode_offsets(self._compacted_to)))
                passes += 1
                if compacted_to >= plan.end_offset:
                    break
                plan = runtime.compaction.plan(compacted_to, self._clock_ms())
        except CompactionCancelledError:
            pass
        except OSError as error:
            if not runtime.is_closed:
                _log.error("compacting %s-%d failed and will be tried again: %s", *place, error)
        except (BrokerError, DamagedSegmentError) as error:
            self._damaged.add(runtime)
            _log.error("%s-%d is not compacted any more: %s", *place, error)
        return passes

    async def _pass(self, runtime: PartitionRuntime, plan: CompactionPlan, map_bytes_max: int) -> int:
        job = runtime.compaction.begin(plan, map_bytes_max=map_bytes_max, now_ms=self._clock_ms())
        try:
            await self._in_thread(job.note_keys)
            for sources in job.groups():
                rewritten = await self._loop.run_in_executor(self._executor, job.rewrite, sources)
                if rewritten is not None:
                    await self._swap(runtime, rewritten)
            return job.end_offset
        finally:
            runtime.compaction.end()

    async def _swap(self, runtime: PartitionRuntime, rewritten: Rewritten) -> None:
        try:
            self._check(runtime)
            runtime.compaction.stage(rewritten)
            await self._in_thread(partial(self._files.sync_directory, rewritten.segment.directory))
            self._check(runtime)
        except BaseException:
            with contextlib.suppress(OSError):
                discard(self._files, rewritten)
            raise
        runtime.compaction.install(rewritten)

    def _check(self, runtime: PartitionRuntime) -> None:
        if runtime.is_closed or self._stopping.is_set():
            raise CompactionCancelledError

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await self._loop.run_in_executor(self._executor, work)

    def _save(self, content: bytes) -> None:
        try:
            self._files.replace(self._path, content)
        except OSError as error:
            # The worst that follows is that records are compacted twice.
            _log.warning("%s could not be written: %s", self._path, error)
