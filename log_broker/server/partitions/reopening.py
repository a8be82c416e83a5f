"""
What follows from a disk error that leaves in doubt what is on the disk: the partition goes offline, and comes back only
by way of what the disk really holds.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from log_broker.core.partition.partition import Partition
from log_broker.storage.checkpoints import SYNC_FAILED_FILE
from log_broker.storage.files import FileSystem
from log_broker.storage.log import PartitionLog

_log = logging.getLogger(__name__)

Recover = Callable[[int], tuple[Partition, PartitionLog]]


def distrust_cached(files: FileSystem, directory: Path, reason: str) -> None:
    """Leave word for the next start that what is cached of this log is not to be believed."""
    try:
        files.replace(directory / SYNC_FAILED_FILE, reason.encode())
    except OSError as error:
        _log.error("%s is offline, and the next start will not know: %s", directory.name, error)


def read_again(
    files: FileSystem, old: Partition, log: PartitionLog, recover: Recover
) -> tuple[Partition, PartitionLog]:
    """
    Open a log as after a crash, from the disk and not from what is cached of it.

    `recover` opens it given its recovery point. What was acknowledged without a sync may be gone. Raises OSError when
    the disk is no better.
    """
    for segment in log.segments:
        if segment.size:
            files.drop_cached(segment.path())
    core, reopened = recover(log.recovery_point)
    log.close_files()
    core.state.epochs.current = old.state.epochs.current
    _log.warning(
        "%s is back, %d records that were not synced are gone; it was offline because %s",
        log.directory.name,
        old.state.written_end - core.state.written_end,
        old.state.offline_reason,
    )
    return core, reopened
