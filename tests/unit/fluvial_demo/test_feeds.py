"""What each topic must hold: its counts, keys, times, order and contract."""

from datetime import UTC, datetime

import pandas as pd
import pytest

from fluvial.registry.contracts import load_contracts
from fluvial_demo.feeds import CONTRACTS, Feed, all_feeds


def by_topic(feeds: list[Feed]) -> dict[str, Feed]:
    return {feed.topic: feed for feed in feeds}


def test_every_record_of_the_files_is_there(feeds: list[Feed]) -> None:
    assert {feed.topic: len(feed) for feed in feeds} == {
        "planes": 3_322,
        "airports": 1_458,
        "airlines": 16,
        "weather": 26_115,
        "flight_events": 664_839,
    }


def test_each_feed_has_a_contract_with_an_owner_and_all_its_columns(feeds: list[Feed]) -> None:
    contracts = {contract.subject: contract for contract in load_contracts(CONTRACTS)}
    assert contracts.keys() == {feed.subject for feed in feeds}
    for feed in feeds:
        contract = contracts[feed.subject]
        assert contract.text == feed.contract
        fields = [field["name"] for field in feed.schema["fields"]]
        assert set(fields) <= set(feed.records.columns)
        assert set(feed.records.columns) - set(fields) <= {"row"}
        assert all(field["doc"] for field in feed.schema["fields"])


def test_fields_are_nullable_just_where_something_is_missing(feeds: list[Feed]) -> None:
    for feed in feeds:
        nullable = {field["name"] for field in feed.schema["fields"] if "null" in field["type"]}
        missing = set(feed.records.columns[feed.records.isna().any()])
        assert nullable == missing, feed.topic


def test_records_are_in_order_of_time(feeds: list[Feed]) -> None:
    for feed in feeds:
        assert (feed.timestamps[1:] >= feed.timestamps[:-1]).all(), feed.topic


@pytest.mark.parametrize(("topic", "field"), [("flight_events", "event_time"), ("weather", "time_hour")])
def test_the_timestamp_is_the_event_time(feeds: list[Feed], topic: str, field: str) -> None:
    feed = by_topic(feeds)[topic]
    assert (feed.timestamps == feed.records[field]).all()


def test_reference_data_has_the_first_instant_of_the_year(feeds: list[Feed]) -> None:
    first = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
    compacted = [feed for feed in feeds if feed.compacted]
    assert {feed.topic for feed in compacted} == {"planes", "airports", "airlines"}
    assert all((feed.timestamps == first).all() and len(set(feed.keys)) == len(feed) for feed in compacted)


def test_keys_are_the_identity_in_utf8_or_null(feeds: list[Feed]) -> None:
    feed = by_topic(feeds)["flight_events"]
    tailnums = feed.records["tailnum"]
    assert feed.keys.count(None) == tailnums.isna().sum() == 2_512
    assert feed.keys[:3] == [tailnum.encode() for tailnum in tailnums[:3]]


def test_until_takes_the_beginning_of_each_feed(feeds: list[Feed]) -> None:
    until = datetime(2013, 2, 1, tzinfo=UTC)
    for short, whole in zip(all_feeds(until), feeds, strict=True):
        assert short.compacted or (short.timestamps < until.timestamp() * 1000).all()
        assert short.compacted or whole.timestamps[len(short)] >= until.timestamp() * 1000
        pd.testing.assert_frame_equal(short.records, whole.records.head(len(short)))


def test_feeds_are_the_same_each_time(feeds: list[Feed]) -> None:
    for again, feed in zip(all_feeds(), feeds, strict=True):
        pd.testing.assert_frame_equal(again.records, feed.records)
        assert again.keys == feed.keys
        assert (again.timestamps == feed.timestamps).all()
