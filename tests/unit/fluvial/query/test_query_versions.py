"""Which version of a table is meant, read from commits written by hand."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from hand_written_table import HandWrittenTable

from fluvial.delta.errors import BrokenLogError
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Range, Stamp
from fluvial.errors import FluvialError
from fluvial.query.references import UnclearError
from fluvial.query.versions import At, NoSuchOffsetError, Version, resolve


def stamp(batch: int, **spans: Range) -> Stamp:
    offsets = {int(name[1:]): span for name, span in spans.items()}
    return Stamp(topic="orders", topic_id=None, batch=batch, offsets=offsets)


@pytest.fixture
def log(tmp_path: Path) -> TableLog:
    """Versions 0 to 4: up to (10, 5), (20, 5), somebody else's, (20, 8), (30, 9); a second lies between them."""
    table = HandWrittenTable(tmp_path, {"n": pa.int64()})
    table.commit([], stamp(1, p0=(0, 10), p1=(0, 5)))
    table.commit([], stamp(2, p0=(10, 20), p1=(5, 5)))
    table.commit([])
    table.commit([], stamp(3, p0=(20, 20), p1=(5, 8)))
    table.commit([], stamp(4, p0=(20, 30), p1=(8, 9)))
    for version in range(5):
        os.utime(tmp_path / "_delta_log" / f"{version:020d}.json", (1_700_000_000 + version, 1_700_000_000 + version))
    return TableLog(None, str(tmp_path))


def at(log: TableLog, *words: str) -> Version:
    return resolve(log, "state.orders", places=At.of(words))


def test_the_newest_is_meant_and_shows_what_it_holds(log: TableLog) -> None:
    newest = resolve(log, "state.orders")
    assert (newest.version, newest.topic, newest.ends) == (4, "orders", {0: 30, 1: 9})
    assert str(newest) == "state.orders version 4 of 2023-11-14T22:13:24Z at orders:0=29,1=8"
    foreign = resolve(log, "state.orders", version=2)
    assert (foreign.version, foreign.ends, foreign.made_ms) == (2, {0: 20, 1: 5}, 1_700_000_002_000)


@pytest.mark.parametrize(
    ("place", "version"),
    [("orders:0=9", 0), ("orders:0=19", 1), ("orders:1=7", 3), ("orders:0=19,1=7", 3), ("orders:0=29", 4)],
)
def test_the_first_version_that_ends_at_an_offset_is_meant(log: TableLog, place: str, version: int) -> None:
    assert at(log, place).version == version


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (("orders:0=15",), r"version 0 \(--at orders:0=9\) and version 1 \(--at orders:0=19\)"),
        (("orders:0=40",), r"does not hold orders:0=40 yet: the newest is version 4 \(--at orders:0=29\)"),
        (("orders:0=3",), r"the oldest in its log is version 0 \(--at orders:0=9\)"),
        (("orders:0=19", "orders:1=5"), r"version 1 \(--at orders:0=19,1=4\) and version 3 \(--at orders:0=19,1=7\)"),
        (("clicks:0=1",), "is made from orders, so it has no version as of an offset of clicks"),
    ],
)
def test_between_two_versions_both_are_named(log: TableLog, places: tuple[str, ...], says: str) -> None:
    with pytest.raises(NoSuchOffsetError, match=says):
        at(log, *places)


@pytest.mark.parametrize(
    "words", [["orders"], ["orders:0"], ["orders:0=x"], ["orders:0=1,0=2"], ["orders:0=1", "orders:0=2"]]
)
def test_a_place_that_is_none_is_refused(words: list[str]) -> None:
    with pytest.raises(FluvialError, match="--at"):
        At.of(words)


def test_a_time_means_the_newest_version_not_later(log: TableLog) -> None:
    assert resolve(log, "t", timestamp="2023-11-14 22:13:22.5").version == 2
    assert resolve(log, "t", timestamp="2023-11-14T23:13:21+01:00").version == 1
    for text in ("2023-11-14 22:13:19", "2023-11-14 22:13:25", "yesterday"):
        with pytest.raises(UnclearError):
            resolve(log, "t", timestamp=text)


def test_a_log_with_a_hole_is_not_read(log: TableLog) -> None:
    (Path(log.path) / "_delta_log" / f"{3:020d}.json").unlink()
    with pytest.raises(BrokenLogError):
        resolve(log, "t")
