"""
Where each record of a feed stands: its partition and its offset in it, decided from the data alone.

A key's partition is that of Kafka's Java client, so that keys of other producers meet there too. A record without a key
goes to the partition of its row number, which spreads them evenly and puts the same record at the same place each time;
the clients' own rule for null keys is random.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_MASK = 0xFFFF_FFFF
_SEED = 0x9747_B28C
_M = 0x5BD1_E995


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 that Kafka's default partitioner takes of a key (Kafka's `Utils.murmur2`)."""
    mixed = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        mixed = (mixed * _M & _MASK) ^ word
    if tail := data[whole:]:
        mixed = (mixed ^ int.from_bytes(tail, "little")) * _M & _MASK
    mixed = (mixed ^ mixed >> 13) * _M & _MASK
    return mixed ^ mixed >> 15


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key: the hash without its sign bit, modulo the number of partitions."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


def partitions_of(keys: Sequence[bytes | None], rows: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """Return each record's partition; `rows` decides for the records without a key."""
    of_key = {key: partition_of_key(key, partitions) for key in set(keys) if key is not None}
    of_key_or_none = np.array([-1 if key is None else of_key[key] for key in keys], dtype=np.int64)
    return np.where(of_key_or_none < 0, rows % partitions, of_key_or_none)


def offsets_of(partition_of: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """Return each record's offset: how many records before it have its partition."""
    offsets = np.empty(len(partition_of), dtype=np.int64)
    for partition in range(partitions):
        here = partition_of == partition
        offsets[here] = np.arange(np.count_nonzero(here))
    return offsets
