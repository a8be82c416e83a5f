"""
From the files of a partition to a log that can be used: quick after an orderly end, careful after a crash.
"""

import logging
from bisect import bisect_right
from pathlib import Path
from time import monotonic

from log_broker.config import TopicConfig
from log_broker.core.epochs import LeaderEpochs
from log_broker.core.partition import Partition
from log_broker.core.producer_state import ProducerRow, ProducerStates
from log_broker.interfaces import RecordValidator
from log_broker.records.control import read_marker
from log_broker.storage.checkpoints import LEADER_EPOCH_FILE, SYNC_FAILED_FILE, decode_epochs, decode_producers
from log_broker.storage.files import FileSystem
from log_broker.storage.log import LogLimits, PartitionLog, snapshot_offsets
from log_broker.storage.segment import DELETED_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, file_name, scan
from log_broker.storage.segment_swap import finish_swaps

_log = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0  # a longer recovery says every so often how far it is


def open_partition(
    files: FileSystem,
    directory: Path,
    topic: str,
    config: TopicConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
    now_ms: int,
    validator: RecordValidator | None = None,
) -> tuple[Partition, PartitionLog]:
    """
    Bring one partition back: its log as `open_log` finds it, and the state that follows from the log. Raises OSError.
    """
    log = open_log(files, directory, config, recovery_point=recovery_point, clean=clean, now_ms=now_ms)
    producers = ProducerStates()
    replay_from = log.start_offset
    snapshot = latest_producers(files, directory, log.end_offset)
    if snapshot is not None:
        replay_from = max(snapshot[0], replay_from)
        producers.load(snapshot[1])
    log.aborted.forget_from(replay_from)
    starts = decode_epochs(files.read(directory / LEADER_EPOCH_FILE))
    epochs = LeaderEpochs((epoch, offset) for epoch, offset in starts if offset < log.end_offset)
    if replay_from < log.end_offset:
        for header, control in log.headers_from(replay_from):
            if control:
                aborted = producers.replay_marker(header, read_marker(control))
                if aborted is not None:
                    log.note_aborted(aborted)
            else:
                producers.replay(header)
            # The file may have been lost with the last epochs in it: every batch names its own.
            if epochs.begin(header.leader_epoch, header.base_offset):
                epochs.current = epochs.latest
        log.save_aborted(replay_from)
    core = Partition(
        topic,
        config,
        producers=producers,
        epochs=epochs,
        log_start_offset=min(max(log_start_offset, log.start_offset), log.end_offset),
        end_offset=log.end_offset,
        validator=validator,
    )
    return core, log


def latest_producers(files: FileSystem, directory: Path, end_offset: int) -> tuple[int, list[ProducerRow]] | None:
    """
    Return (offset, rows) of the newest sound snapshot that does not reach behind the end of the log.

    A snapshot from beyond the end speaks of batches that were lost, and is removed.
    """
    for offset in reversed(snapshot_offsets(files, directory)):
        path = directory / file_name(offset, SNAPSHOT_SUFFIX)
        rows = decode_producers(files.read(path)) if offset <= end_offset else None
        if rows is not None:
            return offset, rows
        files.remove(path)
    return None


def open_log(
    files: FileSystem, directory: Path, limits: LogLimits, *, recovery_point: int, clean: bool, now_ms: int
) -> PartitionLog:
    """
    Open the log found in `directory`, which may hold nothing yet.

    After an unclean end every batch from `recovery_point` on is checked, and the log is cut at the first that is not
    whole: what was acknowledged as durable lies before it. Raises OSError.
    """
    finish_swaps(files, directory)
    names = files.names(directory)
    for name in names:
        if name.endswith(DELETED_SUFFIX):
            files.remove(directory / name)
    bases = sorted(
        int(name.removesuffix(LOG_SUFFIX))
        for name in names
        if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit()
    )
    if SYNC_FAILED_FILE in names:
        clean = False
        for base in bases:
            files.drop_cached(directory / file_name(base, LOG_SUFFIX))
    segments = [
        Segment(
            files,
            directory,
            base,
            size=files.size(directory / file_name(base, LOG_SUFFIX)),
            index_interval_bytes=limits.index_interval_bytes,
            now_ms=now_ms,
        )
        for base in bases
    ]
    if not segments:
        empty = Segment(files, directory, 0, size=0, index_interval_bytes=limits.index_interval_bytes, now_ms=now_ms)
        empty.begin_empty()
        return PartitionLog(files, directory, limits, segments=[empty], end_offset=0, recovery_point=0)
    if clean:
        end_offset = segments[-1].resume() or segments[-1].base_offset
    else:
        end_offset = _recover(files, directory, segments, limits, recovery_point=recovery_point, now_ms=now_ms)
    for segment in segments[:-1]:
        segment.release()
    if SYNC_FAILED_FILE in names:
        files.remove(directory / SYNC_FAILED_FILE)
    return PartitionLog(files, directory, limits, segments=segments, end_offset=end_offset, recovery_point=end_offset)


def _recover(
    files: FileSystem,
    directory: Path,
    segments: list[Segment],
    limits: LogLimits,
    *,
    recovery_point: int,
    now_ms: int,
) -> int:
    """Check the segments from the recovery point on, drop what follows the first bad batch, return the end offset."""
    first = max(bisect_right([segment.base_offset for segment in segments], recovery_point) - 1, 0)
    said_at = monotonic()
    for at in range(first, len(segments)):
        segment = segments[at]
        if monotonic() - said_at > PROGRESS_SECONDS:
            said_at = monotonic()
            _log.info("%s: checking segment %d of %d", directory, at - first + 1, len(segments) - first)
        size_found = segment.size
        is_last = segment is segments[-1]
        end_offset = segment.rebuild(checked_from=recovery_point, without_gaps=is_last) or segment.base_offset
        cut = segment.size < size_found
        lost = segments[at + 1 :]
        if cut:
            _log.warning(
                "%s: cut %d bytes behind offset %d that are not whole batches",
                segment.path(),
                size_found - segment.size,
                end_offset,
            )
            del segments[at + 1 :]
            if lost and _has_gaps(segment):
                # It was compacted and must not grow: in a segment that grows a gap means damage. The next one is there
                # before the damage is gone, so that a crash in between finds that again.
                segments.append(_begin_segment(files, directory, end_offset, limits, now_ms))
                lost = [other for other in lost if other.base_offset != end_offset]
            for other in lost:
                other.remove()
            files.sync_directory(directory)
            segment.file.truncate(segment.size)
        if not is_last:
            segment.save_indexes()
        segment.file.sync()
        if cut or is_last:
            return end_offset
    raise AssertionError("the last segment ends the loop")


def _has_gaps(segment: Segment) -> bool:
    next_offset = segment.base_offset
    for _, header in scan(segment.file, 0, segment.size):
        if header.base_offset != next_offset:
            return True
        next_offset = header.last_offset + 1
    return False


def _begin_segment(files: FileSystem, directory: Path, base_offset: int, limits: LogLimits, now_ms: int) -> Segment:
    segment = Segment(
        files, directory, base_offset, size=0, index_interval_bytes=limits.index_interval_bytes, now_ms=now_ms
    )
    segment.begin_empty()
    segment.file.truncate(0)
    segment.file.sync()
    files.sync_directory(directory)
    return segment
