"""
Log compaction: of each key only the last record stays, at the offset it always had.

The rules are Kafka's (its LogCleaner, and KIP-534 for tombstones):

- only closed segments below the high watermark are rewritten; what was compacted before is the clean part, the rest up
  to the first segment that must not be touched yet is the dirty part;
- a pass first notes the last offset of each key in the dirty part, as many keys as memory allows, then rewrites the
  log from its start to where it stopped noting, without the records that have a later one of the same key;
- a batch keeps its offsets, its sequence numbers and its codec, whatever leaves it; an empty batch is kept where it
  holds one of a producer's last sequences, so that a repeat is still known when only the log is left;
- a tombstone gets its horizon when it is first rewritten and goes with the first rewriting after that;
- what transactions add to this stands in `compaction_transactions`.

One thing is done in addition: the last batch of a rewritten segment stays, empty if need be. So a log always reaches
to where the next segment begins, and a reader always has something to move on by.

Planning is pure, `CompactionJob` is for a thread of its own. How the new files take the place of the old ones stands
in `segment_swap`.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar

from log_broker.core.partition.producers import AbortedTransaction
from log_broker.records.batch import (
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    MIN_LENGTH,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    batches_in,
    crc_is_valid,
    read_header,
    seal,
)
from log_broker.records.compression import Codec, compress
from log_broker.records.control import read_marker
from log_broker.records.record import Span, records_section, spans_of
from log_broker.records.validation import RECORDS_MAX
from log_broker.records.varint import read_uvarint, write_varint
from log_broker.storage.compaction_transactions import CleanedTransactions
from log_broker.storage.files import File, FileSystem
from log_broker.storage.index import RELATIVE_OFFSET_MAX
from log_broker.storage.segment import Segment
from log_broker.storage.segment_files import LOG_SUFFIX, SegmentFiles

CLEANED_SUFFIX = ".cleaned"
UNBOUNDED_MS = 2**63 - 1

_READ_BYTES = 1024 * 1024
_WRITE_BYTES = 1024 * 1024
_DIGEST_BYTES = 16
_ENTRY_BYTES = 200  # what one key takes in the offset map at worst: dict entry while it grows, digest, offset

T = TypeVar("T")


class DamagedSegmentError(Exception):
    """A segment does not hold what was once written to it; compacting it would make the damage permanent."""

    def __init__(self, path: Path, position: int) -> None:
        super().__init__(f"{path} is damaged at byte {position}")
        self.path = path
        self.position = position


class CompactionCancelledError(Exception):
    """The partition is being closed or deleted."""


class CompactionLimits(Protocol):
    """The part of a topic's config that compaction goes by."""

    @property
    def is_compacted(self) -> bool: ...

    @property
    def segment_bytes(self) -> int: ...

    @property
    def index_interval_bytes(self) -> int: ...

    @property
    def min_cleanable_dirty_ratio(self) -> float: ...

    @property
    def min_compaction_lag_ms(self) -> int: ...

    @property
    def max_compaction_lag_ms(self) -> int: ...

    @property
    def delete_retention_ms(self) -> int: ...


class ClosedSegment(NamedTuple):
    """What planning needs to know of a segment; the timestamps only where a limit asks for them."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int = NO_TIMESTAMP
    first_timestamp: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What can be compacted of one log: its dirty part is [first_dirty_offset, end_offset), never empty."""

    first_dirty_offset: int
    end_offset: int
    dirty_ratio: float
    is_overdue: bool  # a record has been uncompacted for longer than max.compaction.lag.ms


def plan_compaction(
    segments: Sequence[ClosedSegment], *, first_dirty_offset: int, limits: CompactionLimits, now_ms: int
) -> CompactionPlan | None:
    """Return what can be compacted of `segments`, None when that is nothing."""
    clean_bytes = dirty_bytes = 0
    end_offset = first_dirty_offset
    is_overdue = False
    for segment in segments:
        if segment.end_offset <= first_dirty_offset:
            clean_bytes += segment.size_bytes
            continue
        if limits.min_compaction_lag_ms and segment.max_timestamp > now_ms - limits.min_compaction_lag_ms:
            break
        if limits.max_compaction_lag_ms < UNBOUNDED_MS:
            is_overdue = is_overdue or 0 <= segment.first_timestamp < now_ms - limits.max_compaction_lag_ms
        dirty_bytes += segment.size_bytes
        end_offset = segment.end_offset
    if not dirty_bytes:
        return None
    return CompactionPlan(
        first_dirty_offset=first_dirty_offset,
        end_offset=end_offset,
        dirty_ratio=dirty_bytes / (clean_bytes + dirty_bytes),
        is_overdue=is_overdue,
    )


def group_segments(segments: Sequence[ClosedSegment], *, bytes_max: int) -> list[slice]:
    """Return which neighbours become one segment: as many as stay within `bytes_max`, at least one each."""
    groups: list[slice] = []
    first = total = 0
    for at, segment in enumerate(segments):
        total += segment.size_bytes
        too_far = segment.end_offset - 1 - segments[first].base_offset > RELATIVE_OFFSET_MAX
        if at > first and (total > bytes_max or too_far):
            groups.append(slice(first, at))
            first, total = at, segment.size_bytes
    if segments:
        groups.append(slice(first, len(segments)))
    return groups


class OffsetMap:
    """
    The last offset of each key, within a bound of memory.

    Keys shorter than a digest stand for themselves, longer ones are hashed to 128 bits: none can be taken for another.
    """

    __slots__ = ("_entries_max", "_offsets")

    def __init__(self, bytes_max: int) -> None:
        self._entries_max = max(bytes_max // _ENTRY_BYTES, 1)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Asked between batches, so one batch may pass the bound."""
        return len(self._offsets) >= self._entries_max

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[_name_of(key)] = offset

    def get(self, key: bytes) -> int:
        """Return the last offset of the key, -1 when it has none in the dirty part."""
        return self._offsets.get(_name_of(key), -1)


def _name_of(key: bytes) -> bytes:
    return key if len(key) < _DIGEST_BYTES else hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which records of the batches before `end_offset` stay."""

    offsets: OffsetMap
    end_offset: int
    delete_retention_ms: int
    now_ms: int
    transactions: CleanedTransactions = field(default_factory=lambda: CleanedTransactions(()))

    def rewrite(self, batch: memoryview, header: BatchHeader) -> Buffer | None:  # noqa: PLR0911 what stays, and why
        """
        Return the batch as it is to be stored, itself where nothing changes; None when no record of it stays.

        Raises BrokerError when its records cannot be read.
        """
        if header.is_control:
            return self._rewrite_marker(batch, header)
        is_aborted = self.transactions.is_aborted(header)
        if header.base_offset >= self.end_offset:
            return batch
        if is_aborted:
            return None
        if header.record_count > RECORDS_MAX:
            return batch  # taken in by an older broker; what is kept of each of its records would not fit in memory
        section = bytes(records_section(batch, header))
        kept: list[tuple[int, Span]] = []
        has_tombstone = False
        has_horizon = bool(header.attributes & DELETE_HORIZON)
        tombstones_stay = not has_horizon or self.now_ms < header.base_timestamp
        start = 0
        for span in spans_of(section, header.record_count):
            _, offset_delta, key_start, key_length, _, value_length, end = span
            if (
                key_length >= 0
                and (value_length >= 0 or tombstones_stay)
                and self.offsets.get(section[key_start : key_start + key_length]) <= header.base_offset + offset_delta
            ):
                kept.append((start, span))
                has_tombstone = has_tombstone or value_length < 0
            start = end
        if not kept:
            return None
        if has_tombstone and not has_horizon:
            return _rebuild(header, section, kept, horizon_ms=self.now_ms + self.delete_retention_ms)
        if len(kept) == header.record_count:
            return batch
        return _rebuild(header, section, kept, horizon_ms=None)

    def _rewrite_marker(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        marker = read_marker(batch)
        if not self.transactions.ends_nothing(header, marker) or header.base_offset >= self.end_offset:
            return batch
        if not header.attributes & DELETE_HORIZON and header.record_count:
            section = bytes(records_section(batch, header))
            kept = [(0, span) for span in spans_of(section, header.record_count)]
            return _rebuild(header, section, kept, horizon_ms=self.now_ms + self.delete_retention_ms)
        if header.record_count and self.now_ms < header.base_timestamp:
            return batch
        self.transactions.markers_gone.add(header.base_offset)
        return None


def _rebuild(
    header: BatchHeader, section: bytes, kept: Sequence[tuple[int, Span]], *, horizon_ms: int | None
) -> bytearray:
    """Make the batch again from the records that stay; with a horizon, that becomes its base timestamp."""
    attributes = header.attributes
    base_timestamp = header.base_timestamp
    out = bytearray()
    if horizon_ms is None:
        for start, span in kept:
            out += section[start : span[6]]
    else:
        horizon_ms = min(horizon_ms, UNBOUNDED_MS)
        for start, span in kept:
            _write_shifted(out, section, start, span, header.base_timestamp - horizon_ms)
        attributes |= DELETE_HORIZON
        base_timestamp = horizon_ms
    max_timestamp = header.max_timestamp
    if not attributes & LOG_APPEND_TIME:
        max_timestamp = header.base_timestamp + max(span[0] for _, span in kept)
    payload = compress(Codec(header.compression), out)
    return _sealed(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(kept),
        ),
        payload,
    )


def _write_shifted(out: bytearray, section: bytes, start: int, span: Span, shift_ms: int) -> None:
    """Copy a record with another timestamp delta: `shift_ms` more than it had."""
    timestamp_delta, end = span[0], span[6]
    _, position = read_uvarint(section, start)
    body = bytearray(section[position : position + 1])
    _, position = read_uvarint(section, position + 1)
    write_varint(body, timestamp_delta + shift_ms)
    body += section[position:end]
    write_varint(out, len(body))
    out += body


def emptied(header: BatchHeader) -> bytearray:
    """Return the batch without records: its offsets and the producer's sequence numbers."""
    attributes = header.attributes & ~(0x07 | DELETE_HORIZON)
    return _sealed(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def _sealed(header: BatchHeader, payload: bytes) -> bytearray:
    batch = bytearray(HEADER_BYTES + len(payload))
    HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - LENGTH_OVERHEAD_BYTES, crc=0))
    batch[HEADER_BYTES:] = payload
    seal(batch)
    return batch


def stored_batches(file: File, path: Path, size: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield every batch of a segment; raises DamagedSegmentError at one whose checksum does not hold."""
    position = 0
    while position < size:
        chunk = file.read_at(position, min(_READ_BYTES, size - position))
        if len(chunk) >= HEADER_BYTES:
            first = read_header(chunk)
            if first.length >= MIN_LENGTH and len(chunk) < first.size <= size - position:
                chunk = file.read_at(position, first.size)
        used = 0
        for at, header in batches_in(chunk):
            batch = memoryview(chunk)[at : at + header.size]
            if not crc_is_valid(batch, header.crc):
                raise DamagedSegmentError(path, position + at)
            yield header, batch
            used = at + header.size
        if not used:
            raise DamagedSegmentError(path, position)
        position += used


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A segment that is written and synced under its `.cleaned` name, and those whose place it is to take."""

    sources: Sequence[Segment]
    segment: Segment
    aborted: Sequence[AbortedTransaction] = ()  # whose markers are in it


class CompactionJob:
    """
    One pass over one log. `note_keys` and `rewrite` are for a thread beside the event loop's; `cancel` may be called
    from any, and when it has returned the job finds or makes no file by its name any more.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        segments: Sequence[tuple[Segment, int]],
        active: Segment,
        plan: CompactionPlan,
        *,
        limits: CompactionLimits,
        sequences_at: frozenset[int],
        map_bytes_max: int,
        now_ms: int,
        aborted: Mapping[int, Sequence[AbortedTransaction]] | None = None,
        last_epochs: Mapping[int, int] | None = None,
    ) -> None:
        """
        `aborted` lists the aborted transactions by the segment of the marker, up to the end of the log. `last_epochs`
        has the epoch of each producer of which only a marker tells.
        """
        self.plan = plan
        self.end_offset = plan.first_dirty_offset  # all before it is compacted once the job is done
        self._files = files
        self._directory = directory
        self._segments = segments
        self._active = active
        self._limits = limits
        self._sequences_at = sequences_at
        self._offsets = OffsetMap(map_bytes_max)
        self._now_ms = now_ms
        self._aborted = aborted or {}
        self._last_epochs = last_epochs or {}
        self._transactions = self._decided()
        self._gate = Lock()
        self._cancelled = False

    def cancel(self) -> None:
        """Have the job raise CompactionCancelledError at its next step."""
        with self._gate:
            self._cancelled = True

    def note_keys(self) -> None:
        """
        Note the last offset of each key in the dirty part, or in as much from its front as there is memory for.

        Raises OSError, BrokerError, DamagedSegmentError or CompactionCancelledError.
        """
        # The active segment must have a file before the directory is synced for a rewritten one: after a power cut the
        # last segment found is taken for one in which a gap means damage.
        self._by_name(self._files.open, self._active.path()).close()
        decided = self._decided()
        for segment, end in self._segments:
            if end <= self.plan.first_dirty_offset or segment.base_offset >= self.plan.end_offset:
                continue
            file = self._by_name(self._files.open, segment.path())
            try:
                for header, batch in stored_batches(file, segment.path(), segment.size):
                    if header.last_offset < self.plan.first_dirty_offset:
                        continue
                    if self._offsets.is_full:
                        return
                    if not header.is_control and not decided.is_aborted(header):
                        self._note_batch(header, batch)
                    self.end_offset = header.last_offset + 1
                    self._let_others_run()
            finally:
                file.close()
            self.end_offset = end

    def groups(self) -> list[list[Segment]]:
        """List the segments to be rewritten, those that become one together; after `note_keys`."""
        taken = [
            (segment, ClosedSegment(segment.base_offset, end, segment.size))
            for segment, end in self._segments
            if segment.base_offset < self.end_offset
        ]
        groups = group_segments([closed for _, closed in taken], bytes_max=self._limits.segment_bytes)
        return [[segment for segment, _ in taken[group]] for group in groups]

    def rewrite(self, sources: Sequence[Segment]) -> Rewritten | None:
        """
        Write what stays of `sources` to one new file and sync it; None when it would be what is there already.

        Raises what `note_keys` does; nothing is left behind then.
        """
        retention = Retention(
            offsets=self._offsets,
            end_offset=self.end_offset,
            delete_retention_ms=self._limits.delete_retention_ms,
            now_ms=self._now_ms,
            transactions=self._transactions,
        )
        path = cleaned_path(sources[0])
        # One that an earlier failure could not remove may still be there.
        self._by_name(self._files.remove, path)
        file = self._by_name(self._files.open, path)
        try:
            segment = Segment.begin(
                SegmentFiles(self._files, self._directory, sources[0].base_offset, file),
                index_interval_bytes=self._limits.index_interval_bytes,
                now_ms=self._now_ms,
            )
            changed = self._write(sources, segment, file, retention)
            if (changed or len(sources) > 1) and segment.size:
                file.sync()
                # Retention of records without a time goes by it; as Kafka, which keeps that of the last source.
                written_ms = segment.files.written_ms = max(source.files.written_ms for source in sources)
                self._by_name(partial(self._files.set_modified_ms, time_ms=written_ms), path)
                return Rewritten(sources=sources, segment=segment, aborted=self._aborted_in(sources))
        except BaseException:
            self._throw_away(path, file)
            raise
        self._throw_away(path, file)
        return None

    def _write(self, sources: Sequence[Segment], segment: Segment, file: File, retention: Retention) -> bool:
        """Fill the new segment; say whether any batch is not as it was."""
        changed = False
        buffers: list[Buffer] = []
        buffered_bytes = written_bytes = 0
        dropped: BatchHeader | None = None  # the latest batch, when nothing of it stays
        for source in sources:
            reading = self._by_name(self._files.open, source.path())
            try:
                for header, batch in stored_batches(reading, source.path(), source.size):
                    changed = changed or dropped is not None
                    stays = retention.rewrite(batch, header)
                    if stays is None and self._is_last_of_producer(header):
                        stays = emptied(header) if header.record_count else batch
                    dropped = header if stays is None else None
                    if stays is not None:
                        changed = changed or stays is not batch
                        buffers.append(stays)
                        buffered_bytes += _note(segment, stays)
                    if buffered_bytes >= _WRITE_BYTES:
                        file.write_at(written_bytes, buffers)
                        written_bytes += buffered_bytes
                        buffers, buffered_bytes = [], 0
                    self._let_others_run()
            finally:
                reading.close()
        if dropped is not None:
            last = emptied(dropped)
            changed = changed or dropped.record_count > 0
            buffers.append(last)
            _note(segment, last)
        file.write_at(written_bytes, buffers)
        return changed

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether what is known of a producer after a loss of its snapshot stands in this batch."""
        if header.is_control:
            return self._last_epochs.get(header.producer_id) == header.producer_epoch
        return header.last_offset in self._sequences_at

    def _decided(self) -> CleanedTransactions:
        return CleanedTransactions(transaction for some in self._aborted.values() for transaction in some)

    def _aborted_in(self, sources: Sequence[Segment]) -> list[AbortedTransaction]:
        return [
            transaction
            for source in sources
            for transaction in self._aborted.get(source.base_offset, ())
            if transaction.last_offset not in self._transactions.markers_gone
        ]

    def _note_batch(self, header: BatchHeader, batch: memoryview) -> None:
        section = bytes(records_section(batch, header))
        put = self._offsets.put
        for _, offset_delta, key_start, key_length, _, _, _ in spans_of(section, header.record_count):
            offset = header.base_offset + offset_delta
            if key_length >= 0 and offset >= self.plan.first_dirty_offset:
                put(section[key_start : key_start + key_length], offset)

    def _let_others_run(self) -> None:
        """Between two batches: the event loop's thread waits for the interpreter no longer than one of them takes."""
        if self._cancelled:
            raise CompactionCancelledError
        time.sleep(0)

    def _by_name(self, action: Callable[[Path], T], path: Path) -> T:
        # A deleted topic's directory may belong to a new topic of the same name by now.
        with self._gate:
            if self._cancelled:
                raise CompactionCancelledError
            return action(path)

    def _throw_away(self, path: Path, file: File) -> None:
        file.close()
        with self._gate:
            if not self._cancelled:
                self._files.remove(path)


def cleaned_path(segment: Segment) -> Path:
    """Return where a rewritten segment is written before it takes its place."""
    return segment.path(LOG_SUFFIX + CLEANED_SUFFIX)


def _note(segment: Segment, batch: Buffer) -> int:
    header = read_header(batch)
    segment.note(header.size, header.last_offset, header.max_timestamp if header.record_count else NO_TIMESTAMP)
    return header.size
