"""
What a follower takes from its leader: whole batches as they stand in the leader's log, checked before they enter.
"""

from collections.abc import Iterator
from typing import NamedTuple

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import HEADER_BYTES, MAGIC, MIN_LENGTH, BatchHeader, crc_is_valid, read_header


class Lost(NamedTuple):
    """
    The records [first, end) that a truncation dropped from a follower's log.

    `committed` of them lay below the high watermark known here: only an unclean election does that. `acknowledged` of
    them had been answered at acks 0 or 1 by this process while it led; None when it was another process, or an earlier
    one, that took them in.
    """

    first: int
    end: int
    committed: int
    acknowledged: int | None


def fetched_batches(
    records: memoryview, *, next_offset: int, epoch_min: int, epoch_max: int
) -> Iterator[tuple[memoryview, BatchHeader]]:
    """
    Yield the batches of a fetch; one that the fetch's limit cut short at the end is left out.

    Offsets rise from `next_offset` on, with gaps where the leader has compacted; epochs rise within the bounds. Raises
    BrokerError(CORRUPT_MESSAGE) for anything else.
    """
    position = 0
    size = len(records)
    while position + HEADER_BYTES <= size:
        header = read_header(records, position)
        end = position + header.size
        if header.magic != MAGIC or header.length < MIN_LENGTH or header.last_offset_delta < 0:
            raise _corrupt(next_offset, "it is no batch")
        if end > size:
            return
        if header.base_offset < next_offset:
            raise _corrupt(next_offset, f"the batch at {header.base_offset} is there already")
        if not epoch_min <= header.leader_epoch <= epoch_max:
            raise _corrupt(next_offset, f"epoch {header.leader_epoch} is not between {epoch_min} and {epoch_max}")
        batch = records[position:end]
        if not crc_is_valid(batch, header.crc):
            raise _corrupt(next_offset, "its checksum does not hold")
        yield batch, header
        epoch_min = header.leader_epoch
        next_offset = header.last_offset + 1
        position = end


def _corrupt(offset: int, why: str) -> BrokerError:
    return BrokerError(ErrorCode.CORRUPT_MESSAGE, f"what the leader sent for offset {offset} cannot be taken: {why}")
