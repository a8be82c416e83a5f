"""
How a rewritten segment takes the place of those it was made from, so that a crash at any point loses nothing.

    1. written and synced as <base>.log.cleaned           a crash: it is removed, the sources stand
    2. renamed to <base>.log.swap, the indexes of the     a crash: either this or, once the name is on the disk, …
       sources removed, the directory synced (which
       also keeps the name of the active segment)
    3. the sources but the first removed                  … the swap is completed at the next start
    4. renamed to <base>.log, in place of the first

A rewritten segment ends at the offset at which the last of its sources ended (`compaction` keeps the last batch), which
is how step 3 is found out again after a crash.
"""

import logging
from pathlib import Path

from log_broker.storage.checkpoints import COMPACTED_FILE
from log_broker.storage.compaction import CLEANED_SUFFIX, Rewritten, cleaned_path
from log_broker.storage.files import FileSystem
from log_broker.storage.log import PartitionLog
from log_broker.storage.segment import Segment, scan
from log_broker.storage.segment_files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name

_log = logging.getLogger(__name__)

SWAP_SUFFIX = ".swap"


def stage(files: FileSystem, log: PartitionLog, rewritten: Rewritten) -> None:
    """Step 2 up to the sync, which the caller does before `complete`. Raises OSError."""
    # A marker without its transaction in the index does no harm. The other way round, readers would wait for a marker
    # that is gone, and leave out what its producer commits later.
    log.aborted.replace(
        [source.base_offset for source in rewritten.sources], rewritten.segment.base_offset, rewritten.aborted
    )
    if files.read(log.directory / COMPACTED_FILE) is None:
        files.replace(log.directory / COMPACTED_FILE, b"", sync=False)
    for source in rewritten.sources:
        source.leaves = True
        source.files.remove_indexes()
    files.rename(cleaned_path(rewritten.segment), _swap_path(rewritten.segment))


def complete(files: FileSystem, log: PartitionLog, rewritten: Rewritten) -> None:
    """Steps 3 and 4: from now on readers get the new segment. Raises OSError."""
    segment = rewritten.segment
    # First in memory: should a step fail on the disk, the new file is open and whole, whatever its name.
    log.replace(rewritten.sources, segment)
    for source in rewritten.sources[1:]:
        files.remove(source.path())
    files.rename(_swap_path(segment), segment.path())
    segment.save_indexes()
    segment.release()


def discard(files: FileSystem, rewritten: Rewritten) -> None:
    """Give up on what is written, staged or not; the sources stand. Raises OSError."""
    for source in rewritten.sources:
        source.leaves = False
    rewritten.segment.files.close()
    files.remove(cleaned_path(rewritten.segment))
    files.remove(_swap_path(rewritten.segment))


def _swap_path(segment: Segment) -> Path:
    return segment.path(LOG_SUFFIX + SWAP_SUFFIX)


def finish_swaps(files: FileSystem, directory: Path) -> None:
    """At start: complete what was staged, remove what was not. Raises OSError."""
    names = sorted(files.names(directory))
    for name in names:
        if name.endswith(LOG_SUFFIX + CLEANED_SUFFIX):
            files.remove(directory / name)
    for name in names:
        if not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            continue
        path = directory / name
        base = int(name.removesuffix(LOG_SUFFIX + SWAP_SUFFIX))
        end = _checked_end(files, path)
        if end is None:
            _log.error("%s is not what was written to it; the segments it was to replace are used", path)
            files.remove(path)
            continue
        replaced = [other for other in _bases(names) if base <= other < end]
        for other in replaced:
            files.remove(directory / file_name(other, INDEX_SUFFIX))
            files.remove(directory / file_name(other, TIME_INDEX_SUFFIX))
        files.sync_directory(directory)
        for other in replaced:
            if other != base:
                files.remove(directory / file_name(other, LOG_SUFFIX))
        files.rename(path, directory / file_name(base, LOG_SUFFIX))
        files.sync_directory(directory)


def _bases(names: list[str]) -> list[int]:
    stems = (name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX))
    return [int(stem) for stem in stems if stem.isdigit()]


def _checked_end(files: FileSystem, path: Path) -> int | None:
    """Return the offset behind the last batch of a file that is whole, None for any other."""
    size = files.size(path)
    file = files.open(path)
    try:
        position, end = 0, None
        for at, header in scan(file, 0, size, checked_from=0):
            position, end = at + header.size, header.last_offset + 1
        return end if position == size else None
    finally:
        file.close()
