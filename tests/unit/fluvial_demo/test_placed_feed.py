"""A feed as a log: what is missing of it, and what may not stand in it."""

from dataclasses import replace

import pytest

from fluvial_demo.feeds import Feed
from fluvial_demo.placed_feed import PlacedFeed
from fluvial_demo.topic_log import ForeignLogError, StoredRecord

Log = list[list[StoredRecord]]


@pytest.fixture(scope="module")
def weather(feeds: list[Feed]) -> PlacedFeed:
    (feed,) = [feed for feed in feeds if feed.topic == "weather"]
    return PlacedFeed(feed, partitions=5, schema_id=7)


@pytest.fixture(scope="module")
def whole_log(weather: PlacedFeed) -> Log:
    return append([[] for _ in range(5)], weather, [0] * 5)


def append(log: Log, placed: PlacedFeed, held: list[int]) -> Log:
    """Send what is missing to a log of lists."""
    longer = [list(partition) for partition in log]
    for chunk in placed.missing(held):
        for value, key, partition, timestamp in chunk:
            offset = len(longer[partition])
            longer[partition].append(StoredRecord(offset=offset, key=key, value=value, timestamp_ms=timestamp))
    return longer


def test_an_empty_log_misses_everything(weather: PlacedFeed, whole_log: Log) -> None:
    assert [len(partition) for partition in whole_log] == weather.ends
    assert sum(weather.ends) == len(weather.feed)


def test_a_log_cut_anywhere_is_completed_to_the_same_log(weather: PlacedFeed, whole_log: Log) -> None:
    held = [min(end, 4_000 * partition) for partition, end in enumerate(weather.ends)]
    cut = [partition[:end] for partition, end in zip(whole_log, held, strict=True)]
    assert append(cut, weather, held) == whole_log


def test_a_complete_log_misses_nothing(weather: PlacedFeed) -> None:
    assert list(weather.missing(weather.ends)) == []


def test_the_feeds_own_records_pass(weather: PlacedFeed, whole_log: Log) -> None:
    for number, partition in enumerate(whole_log):
        for record in partition[:: max(1, len(partition) // 3)]:
            weather.check(number, record.offset, record)


@pytest.mark.parametrize(
    "change",
    [
        {"key": b"XXX"},
        {"key": None},
        {"value": None},
        {"value": b"\0\0\0\0\7other"},
        {"timestamp_ms": 0},
        {"offset": 3},
    ],
    ids="-".join,
)
def test_anything_else_is_refused(weather: PlacedFeed, whole_log: Log, change: dict[str, object]) -> None:
    number, partition = next((number, partition) for number, partition in enumerate(whole_log) if partition)
    with pytest.raises(ForeignLogError, match=f"weather partition {number} .*fluvial topic delete weather"):
        weather.check(number, 2, replace(partition[2], **change))


def test_a_missing_record_is_refused(weather: PlacedFeed, whole_log: Log) -> None:
    number = next(number for number, partition in enumerate(whole_log) if partition)
    with pytest.raises(ForeignLogError, match="no record at offset 2"):
        weather.check(number, 2, None)


def test_a_record_under_another_schema_id_is_the_same_record(weather: PlacedFeed, whole_log: Log) -> None:
    number, partition = next((number, partition) for number, partition in enumerate(whole_log) if partition)
    record = partition[2]
    assert record.value is not None
    weather.check(number, 2, replace(record, value=b"\0\0\0\0\x63" + record.value[5:]))
