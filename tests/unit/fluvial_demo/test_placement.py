"""Partitions as Kafka's Java client chooses them, and offsets as the log counts them."""

import numpy as np
import pytest

from fluvial_demo.placement import murmur2, offsets_of, partition_of_key, partitions_of


@pytest.mark.parametrize(
    ("key", "signed"),
    # From Kafka's own UtilsTest.testMurmur2.
    [
        (b"21", -973_932_308),
        (b"foobar", -790_332_482),
        (b"a-little-bit-long-string", -985_981_536),
        (b"a-little-bit-longer-string", -1_486_304_829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        (b"abc", 479_470_107),
    ],
)
def test_the_hash_is_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


def test_a_negative_hash_has_a_partition_too() -> None:
    assert partition_of_key(b"21", 6) == (-973_932_308 & 0x7FFF_FFFF) % 6


def test_records_without_a_key_go_by_row() -> None:
    found = partitions_of([b"21", None, b"21", None], np.array([5, 6, 7, 8]), 4)
    of_key = partition_of_key(b"21", 4)
    assert found.tolist() == [of_key, 2, of_key, 0]


def test_offsets_count_the_records_of_a_partition() -> None:
    assert offsets_of(np.array([1, 0, 1, 1, 0]), 3).tolist() == [0, 0, 1, 2, 1]
