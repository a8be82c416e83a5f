"""
Opening the logs under a data directory, after an end in order or as after a crash.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic

from log_broker.core.partition.partition import Partition
from log_broker.interfaces import RecordValidator
from log_broker.server.partitions.offset_checkpoints import FoundPartition
from log_broker.server.partitions.replica import Membership
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.storage.checkpoints import encode_topic_id
from log_broker.storage.files import FileSystem
from log_broker.storage.log import PartitionLog
from log_broker.storage.recovery import PROGRESS_SECONDS, open_partition

_log = logging.getLogger(__name__)

Opened = tuple[Partition, PartitionLog]


class LogOpening:
    """Reads logs; what is read is for others to keep."""

    def __init__(
        self,
        files: FileSystem,
        data_dir: Path,
        *,
        validator: RecordValidator | None,
        clock_ms: Callable[[], int],
        membership: Membership | None,
    ) -> None:
        self._files = files
        self._data_dir = data_dir
        self._validator = validator
        self._clock_ms = clock_ms
        self._membership = membership

    def read(self, found: FoundPartition, *, clean: bool, leads: bool | None = None) -> Opened:
        """Open the files of one partition; touches nothing else. Raises OSError."""
        topic, partition = found.place
        return open_partition(
            self._files,
            self._data_dir / f"{topic}-{partition}",
            topic,
            found.config,
            recovery_point=found.recovery_point,
            log_start_offset=found.log_start_offset,
            clean=clean,
            now_ms=self._clock_ms(),
            validator=self._validator,
            leads=self._membership is None if leads is None else leads,
            high_watermark=found.high_watermark,
            lease=None if self._membership is None else self._membership.lease,
            metadata=encode_topic_id(found.topic_id),
        )

    def recover_all(self, found: Sequence[FoundPartition], threads: int) -> Iterator[Opened]:
        """Read logs that were not closed in order, several at once: checking them is what takes long."""
        began = said_at = monotonic()
        _log.info("recovering %d logs of %s after an unclean end", len(found), self._data_dir)
        with ExitStack() as stack:
            read: Callable[[FoundPartition], Opened] = partial(self.read, clean=False)
            logs: Iterable[Opened]
            if threads == 1:
                logs = map(read, found)
            else:
                logs = stack.enter_context(ThreadPoolExecutor(threads, "log-recovery")).map(read, found)
            for count, opened in enumerate(logs, 1):
                yield opened
                if monotonic() - said_at > PROGRESS_SECONDS:
                    said_at = monotonic()
                    _log.info("recovered %d of %d logs", count, len(found))
        _log.info("recovered %d logs in %.1f s", len(found), monotonic() - began)

    def recover(self, runtime: PartitionRuntime, recovery_point: int) -> Opened:
        """Read the log of a partition that is offline as after a crash. Raises OSError."""
        found = FoundPartition(
            (runtime.topic, runtime.partition),
            runtime.topic_id,
            runtime.config,
            recovery_point,
            runtime.log_start_offset,
            runtime.high_watermark,
        )
        return self.read(found, clean=False, leads=runtime.is_leader and not runtime.has_followers)
