"""
What is known of producers, found again from their snapshots and the batches behind them.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from log_broker.core.partition.producers import AbortedTransaction, ProducerRow, ProducerStates
from log_broker.core.partition.transactions import Ending
from log_broker.records.batch import BatchHeader
from log_broker.records.control import read_marker
from log_broker.storage.checkpoints import decode_producers
from log_broker.storage.files import FileSystem
from log_broker.storage.segment_files import SNAPSHOT_SUFFIX, file_name


class Batches(Protocol):
    """The batches of a log that a replay reads."""

    @property
    def directory(self) -> Path: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def headers_from(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield the headers of all batches that end at `offset` or behind, with each control batch itself."""
        ...

    def written_ms(self, offset: int) -> int:
        """When the segment that holds `offset` was last written: no batch in it is younger."""
        ...


def snapshot_offsets(files: FileSystem, directory: Path) -> list[int]:
    """Return the offsets of the producer snapshots in `directory`, rising."""
    names = (name.removesuffix(SNAPSHOT_SUFFIX) for name in files.names(directory) if name.endswith(SNAPSHOT_SUFFIX))
    return sorted(int(name) for name in names if name.isdigit())


def latest_producers(
    files: FileSystem, directory: Path, end_offset: int, *, remove_behind: bool = True
) -> tuple[int, list[ProducerRow]] | None:
    """
    Return (offset, rows) of the newest sound snapshot that does not reach behind `end_offset`.

    A snapshot from beyond the end of the log speaks of batches that were lost, and is removed.
    """
    for offset in reversed(snapshot_offsets(files, directory)):
        path = directory / file_name(offset, SNAPSHOT_SUFFIX)
        rows = decode_producers(files.read(path)) if offset <= end_offset else None
        if rows is not None:
            return offset, rows
        if remove_behind:
            files.remove(path)
    return None


def producers_to_replay_from(files: FileSystem, log: Batches, high_watermark: int) -> tuple[int, list[ProducerRow]]:
    """
    Return (offset, producers) of the snapshot from which the log is to be replayed; without one, where the log starts.

    That is the latest, unless transactions ended behind the high watermark: they are undecided until it has passed
    their markers, and when they began only a replay from before it can tell. Raises OSError.
    """
    snapshot = latest_producers(files, log.directory, log.end_offset)
    if snapshot is not None and snapshot[0] > high_watermark:
        undecided = any(control for _, control in log.headers_from(high_watermark))
        if undecided:
            snapshot = latest_producers(files, log.directory, high_watermark, remove_behind=False)
    if snapshot is None or snapshot[0] < log.start_offset:
        return log.start_offset, [] if snapshot is None else snapshot[1]
    return snapshot


def replay_producers(
    batches: Iterable[tuple[BatchHeader, bytes]],
    rows: Iterable[ProducerRow],
    high_watermark: int,
    *,
    written_ms: Callable[[int], int],
    now_ms: int,
) -> tuple[ProducerStates, list[Ending], list[AbortedTransaction]]:
    """
    Replay `batches`, headers with the bytes of control batches, on what a snapshot knew.

    `written_ms` says up to when the batch at an offset may have come in: a producer is remembered for rather longer
    than it would have been without the restart, not for less long.

    Returns the producers, the transactions whose markers lie behind the high watermark, and all that were aborted.
    """
    producers = ProducerStates()
    producers.load(rows, latest_ms=now_ms)
    ending: list[Ending] = []
    found: list[AbortedTransaction] = []
    for header, control in batches:
        if not control:
            producers.replay(header, min(written_ms(header.base_offset), now_ms))
            continue
        first_offset = producers.open_transactions.get(header.producer_id)
        marker = read_marker(control)
        aborted = producers.replay_marker(header, marker)
        if aborted is not None:
            found.append(aborted)
        if marker is not None and first_offset is not None and header.base_offset >= high_watermark:
            ending.append(Ending(first_offset, header.base_offset, aborted))
    return producers, ending, found
