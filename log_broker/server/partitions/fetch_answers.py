"""What a Fetch answers of partitions that have nothing to read, and the slices in which many are written."""

from collections.abc import Callable, Generator, Iterable
from functools import partial

from log_broker.core.fetch.session import FetchedPartition
from log_broker.errors import ErrorCode
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.wire.fetch import FLEXIBLE_FROM, PartitionData, encode_empty

Found = list[PartitionData | PartitionRuntime]
"""Of a topic; a runtime stands for a partition of which there is nothing but its offsets."""


def sliced(topics: Iterable[tuple[bytes, Found]], size: int) -> Generator[tuple[bytes, Found | None], None, None]:
    """Yield the topics, and None in the place of partitions after each `size` of them; a topic is not cut."""
    left = size
    for name, found in topics:
        if left <= 0:
            yield name, None
            left = size
        left -= 1 + len(found)
        yield name, found


def empty_data(runtime: PartitionRuntime) -> PartitionData:
    """Return the offsets of a partition and no records."""
    return PartitionData(runtime.partition, ErrorCode.NONE, *runtime.offsets(), ())


def written_empty(version: int) -> Callable[[PartitionRuntime], bytes]:
    """Return what writes that for a version, and is kept by the partition until its offsets change."""
    return _written_flexible if version >= FLEXIBLE_FROM else _written_fixed


def _written_flexible(runtime: PartitionRuntime) -> bytes:
    return runtime.empty_answer(_encode_flexible)


def _written_fixed(runtime: PartitionRuntime) -> bytes:
    return runtime.empty_answer(_encode_fixed)


_encode_flexible = partial(encode_empty, flexible=True)
_encode_fixed = partial(encode_empty, flexible=False)


def elsewhere(runtime: PartitionRuntime, asked: FetchedPartition, preferred: int) -> PartitionData:
    """Tell a client to read from another replica."""
    return PartitionData(
        asked.partition,
        ErrorCode.NONE,
        runtime.high_watermark,
        runtime.last_stable_offset,
        runtime.log_start_offset,
        (),
        preferred_replica=preferred,
    )
