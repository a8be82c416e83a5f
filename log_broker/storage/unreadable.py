"""
Stored batches that no consumer can read, and what makes readers pass them.

Their checksums hold, so no replica has a better copy: it was the producer that wrote them. A consumer stands still at
one. Emptied, it keeps its offsets, epoch and sequence numbers and has no records, as a batch has of which compaction
left nothing; readers go on behind it.

All of it is for the folder of a broker that does not run. Every replica is to be done, each by itself: the same batch
becomes the same bytes everywhere.
"""

from collections.abc import Iterator, Set
from pathlib import Path
from typing import NamedTuple

from log_broker.errors import BrokerError
from log_broker.records.batch import BatchHeader, Buffer
from log_broker.records.compression import DecompressionBoundError
from log_broker.records.readable import MalformedRecordsError
from log_broker.records.record import iterate_records
from log_broker.storage.compaction import CLEANED_SUFFIX, DamagedSegmentError, emptied, stored_batches
from log_broker.storage.files import FileSystem
from log_broker.storage.segment_files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name
from log_broker.storage.segment_swap import SWAP_SUFFIX, finish_swaps

_WRITE_BYTES = 1024 * 1024


class Unreadable(NamedTuple):
    """One batch of a segment, and why it cannot be read. Without a header: what is behind was not looked at."""

    segment: Path
    header: BatchHeader | None
    reason: str


def find_unreadable(files: FileSystem, directory: Path) -> Iterator[Unreadable]:
    """Yield the batches of a partition that cannot be read, in order; raises OSError."""
    for base in _bases(files, directory):
        path = directory / file_name(base, LOG_SUFFIX)
        file = files.open(path)
        try:
            for header, batch in stored_batches(file, path, files.size(path)):
                reason = why_unreadable(header, batch)
                if reason is not None:
                    yield Unreadable(path, header, reason)
        except DamagedSegmentError as error:
            yield Unreadable(path, None, str(error))
        finally:
            file.close()


def why_unreadable(header: BatchHeader, batch: Buffer) -> str | None:
    """Say why the records of a batch cannot be read, None where they can be. Compaction may have left some out."""
    delta = -1
    try:
        for record in iterate_records(batch):
            if not delta < record.offset - header.base_offset <= header.last_offset_delta:
                return f"a record names the offset delta {record.offset - header.base_offset}"
            delta = record.offset - header.base_offset
    except DecompressionBoundError:
        return None  # large, and read by whoever has the memory
    except (BrokerError, MalformedRecordsError) as error:
        return str(error)
    return None


def empty_batches(files: FileSystem, directory: Path, base_offsets: Set[int]) -> int:
    """
    Take the records out of the batches at these offsets; return how many batches that were. Raises OSError.

    A segment is written again beside the old one and takes its place as a compacted one does: a crash loses nothing.
    """
    finish_swaps(files, directory)
    count = 0
    bases = _bases(files, directory)
    for base, end in zip(bases, [*bases[1:], None], strict=True):
        wanted = {offset for offset in base_offsets if offset >= base and (end is None or offset < end)}
        if wanted:
            count += _rewrite(files, directory, base, wanted)
    return count


def _rewrite(files: FileSystem, directory: Path, base: int, wanted: Set[int]) -> int:
    path = directory / file_name(base, LOG_SUFFIX)
    fresh = path.with_name(path.name + CLEANED_SUFFIX)
    staged = path.with_name(path.name + SWAP_SUFFIX)
    files.remove(fresh)
    source, target = files.open(path), files.open(fresh)
    count = written = pending = 0
    buffers: list[Buffer] = []
    try:
        for header, batch in stored_batches(source, path, files.size(path)):
            is_wanted = header.base_offset in wanted
            stays: Buffer = emptied(header) if is_wanted else bytes(batch)
            count += is_wanted
            buffers.append(stays)
            pending += len(stays)
            if pending >= _WRITE_BYTES:
                target.write_at(written, buffers)
                written, pending, buffers = written + pending, 0, []
        target.write_at(written, buffers)
        target.sync()
    finally:
        source.close()
        target.close()
    files.rename(fresh, staged)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        files.remove(directory / file_name(base, suffix))  # made again at the next start: batches have moved
    files.sync_directory(directory)
    finish_swaps(files, directory)
    return count


def _bases(files: FileSystem, directory: Path) -> list[int]:
    stems = (name.removesuffix(LOG_SUFFIX) for name in files.names(directory) if name.endswith(LOG_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdigit())
