"""
From the files of a partition to a log that can be used: quick after an orderly end, careful after a crash.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.epochs import LeaderEpochs
from log_broker.core.partition.partition import Partition
from log_broker.core.partition.writing import ReplicaState
from log_broker.core.raft.lease import Lease
from log_broker.interfaces import RecordValidator
from log_broker.storage.checkpoints import (
    COMPACTED_FILE,
    GAPS_FILE,
    LEADER_EPOCH_FILE,
    SYNC_FAILED_FILE,
    decode_epochs,
    encode_epochs,
)
from log_broker.storage.files import FileSystem
from log_broker.storage.log import PartitionLog
from log_broker.storage.log_appender import LogLimits
from log_broker.storage.producer_replay import producers_to_replay_from, replay_producers
from log_broker.storage.segment import Segment, has_gaps
from log_broker.storage.segment_files import DELETED_SUFFIX, LOG_SUFFIX, SegmentFiles, file_name
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
    leads: bool = True,
    high_watermark: int = 0,
    lease: Lease | None = None,
    metadata: bytes | None = None,
) -> tuple[Partition, PartitionLog]:
    """
    Bring one replica back: its log as `open_log` finds it, and the state that follows from the log. Raises OSError.

    Without `leads` its role is not known, and nothing behind the last known `high_watermark` counts as committed.
    """
    log = open_log(
        files, directory, config, recovery_point=recovery_point, clean=clean, now_ms=now_ms, metadata=metadata
    )
    log_start_offset = min(max(log_start_offset, log.start_offset), log.end_offset)
    watermark = log.end_offset if leads else min(max(high_watermark, log_start_offset), log.end_offset)
    epochs = _recover_epochs(files, log, checked_from=log.end_offset if clean else recovery_point)
    snapshot = producers_to_replay_from(files, log, watermark)
    log.aborted.forget_from(snapshot[0])
    producers, ending, aborted = replay_producers(
        log.headers_from(snapshot[0]), snapshot[1], watermark, written_ms=log.written_ms, now_ms=now_ms
    )
    for transaction in aborted:
        log.note_aborted(transaction)
    log.save_aborted(snapshot[0])
    state = ReplicaState(
        topic,
        config,
        producers=producers,
        epochs=epochs,
        log_start_offset=log_start_offset,
        end_offset=log.end_offset,
        high_watermark=watermark,
        ending=ending,
        leads=leads,
        lease=lease,
    )
    return Partition(state, validator), log


def _recover_epochs(files: FileSystem, log: PartitionLog, *, checked_from: int) -> LeaderEpochs:
    """
    Return the epochs as their file has them, which was on the disk before any batch that needs it.

    A batch's own epoch stands outside its checksum. Where one that may not have reached the disk whole says otherwise,
    it is the batch that is repaired. Only without the file are the batches believed. Raises OSError.
    """
    path = log.directory / LEADER_EPOCH_FILE
    kept = decode_epochs(files.read(path))
    epochs = LeaderEpochs((epoch, offset) for epoch, offset in kept if offset < log.end_offset)
    if log.end_offset > log.start_offset and not epochs.starts:
        for header, _ in log.headers_from(log.start_offset):
            epochs.begin(header.leader_epoch, header.base_offset)
        epochs.current = max(epochs.current, epochs.latest)
    elif checked_from < log.end_offset:
        for header, _ in log.headers_from(checked_from):
            epoch = epochs.epoch_at(header.base_offset)
            if header.leader_epoch != epoch:
                _log.warning(
                    "%s: the batch at %d has epoch %d and gets back %d",
                    log.directory,
                    header.base_offset,
                    header.leader_epoch,
                    epoch,
                )
                log.set_epoch(header.base_offset, epoch)
    if epochs.starts != tuple(kept):
        # What it says of offsets behind the end must not be taken for the truth about batches yet to come.
        files.replace(path, encode_epochs(epochs.starts))
    return epochs


def holds_records(files: FileSystem, directory: Path) -> bool:
    """Whether a partition's folder has records, or has had some: an empty log that does not begin at 0."""
    return any(
        name.strip("0") != LOG_SUFFIX or files.size(directory / name) > 0
        for name in files.names(directory)
        if name.endswith(LOG_SUFFIX)
    )


def open_log(
    files: FileSystem,
    directory: Path,
    limits: LogLimits,
    *,
    recovery_point: int,
    clean: bool,
    now_ms: int,
    metadata: bytes | None = None,
) -> PartitionLog:
    """
    Open the log found in `directory`, which may hold nothing yet.

    `metadata`, what partition.metadata says, is synced before the next record unless that was surely done before.

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
            SegmentFiles(files, directory, base),
            size=files.size(directory / file_name(base, LOG_SUFFIX)),
            index_interval_bytes=limits.index_interval_bytes,
            now_ms=now_ms,
        )
        for base in bases
    ]
    if not segments:
        empty = Segment.begin(
            SegmentFiles(files, directory, 0), index_interval_bytes=limits.index_interval_bytes, now_ms=now_ms
        )
        return PartitionLog(
            files,
            directory,
            limits,
            segments=[empty],
            end_offset=0,
            recovery_point=0,
            may_have_gaps=GAPS_FILE in names,
            metadata=metadata,
        )
    missing: list[tuple[int, int]] = []
    if clean:
        end_offset = segments[-1].resume()
    else:
        if GAPS_FILE not in names:
            missing = _missing(segments, recovery_point)
        end_offset = _recover(
            files,
            directory,
            segments,
            limits,
            recovery_point=recovery_point,
            now_ms=now_ms,
            may_have_gaps=GAPS_FILE in names,
            is_compacted=COMPACTED_FILE in names,
        )
    for segment in segments[:-1]:
        segment.release()
    if SYNC_FAILED_FILE in names:
        files.remove(directory / SYNC_FAILED_FILE)
    return PartitionLog(
        files,
        directory,
        limits,
        segments=segments,
        end_offset=end_offset,
        recovery_point=end_offset,
        may_have_gaps=GAPS_FILE in names,
        missing=missing,
        metadata=None if clean and any(segment.size for segment in segments) else metadata,
    )


def _missing(segments: Sequence[Segment], recovery_point: int) -> list[tuple[int, int]]:
    """
    Return what is lost before the recovery point, which recovery takes for granted: ranges, [first, end).

    Versions up to a0f39a4 let the recovery point pass segments that no sync had covered. Nothing is cut there: what
    lies behind may have been acknowledged as durable.
    """
    found: list[tuple[int, int]] = []
    for segment, following in pairwise(segments):
        if following.base_offset > recovery_point:
            break
        end = segment.end_offset()
        segment.release()
        if end < following.base_offset:
            _log.error(
                "%s: offsets %d to %d are missing and cannot be read: remove the folder of this replica while its node "
                "is down if another has them, or have DeleteRecords pass them",
                segment.path(),
                end,
                following.base_offset - 1,
            )
            found.append((end, following.base_offset))
    return found


def _recover(
    files: FileSystem,
    directory: Path,
    segments: list[Segment],
    limits: LogLimits,
    *,
    recovery_point: int,
    now_ms: int,
    may_have_gaps: bool,
    is_compacted: bool,
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
        lost = segments[at + 1 :]
        end_max = lost[0].base_offset if lost else None
        rebuild = partial(segment.rebuild, checked_from=recovery_point, end_max=end_max)
        end_offset = rebuild(without_gaps=is_last and not may_have_gaps)
        if not (is_last or may_have_gaps or is_compacted) and (segment.size < size_found or end_offset != end_max):
            # A log that versions up to a0f39a4 have compacted does not say so, but then all of it is there. In any
            # other a gap before the damage is a damaged offset.
            segment.size = size_found
            end_offset = rebuild(without_gaps=True)
        # A file of which the disk has only the front may end with a whole batch.
        cut = segment.size < size_found or (not may_have_gaps and not is_last and end_offset != end_max)
        if cut:
            _log.warning(
                "%s: cut %d bytes behind offset %d that are not whole batches, and the %d segments behind them",
                segment.path(),
                size_found - segment.size,
                end_offset,
                len(lost),
            )
            del segments[at + 1 :]
            if lost and not may_have_gaps and has_gaps(segment.file, segment.base_offset, segment.size, end_offset):
                # It was compacted and must not grow: in a segment that grows a gap means damage. The next one is there
                # before the damage is gone, so that a crash in between finds that again.
                segments.append(_begin_segment(files, directory, end_offset, limits, now_ms))
                lost = [other for other in lost if other.base_offset != end_offset]
            for other in lost:
                other.files.remove()
            files.sync_directory(directory)
            segment.file.truncate(segment.size)
        if not is_last:
            segment.save_indexes()
        segment.file.sync()
        if cut or is_last:
            # A process that was killed may have left names that no sync has covered.
            files.sync_directory(directory)
            return end_offset
    raise AssertionError("the last segment ends the loop")


def _begin_segment(files: FileSystem, directory: Path, base_offset: int, limits: LogLimits, now_ms: int) -> Segment:
    segment = Segment.begin(
        SegmentFiles(files, directory, base_offset), index_interval_bytes=limits.index_interval_bytes, now_ms=now_ms
    )
    segment.file.truncate(0)
    segment.file.sync()
    files.sync_directory(directory)
    return segment
