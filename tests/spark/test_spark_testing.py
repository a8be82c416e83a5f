"""What `fluvial.testing` gives for tests of tables: run in this process, read as frames, compared row by row."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fluvial.quality import expectations
from fluvial.tables import count, history, latest, pipeline, state, sum_
from fluvial.testing import EmbeddedPlatform, assert_frame_equal, embedded_platform, events, run_tables
from fluvial.testing.tables import UnknownTableError

PLANES = Path(__file__).parents[2] / "schemas" / "aircraft_registry" / "planes.avsc"
FLIGHTS = Path(__file__).parents[2] / "schemas" / "airline_operations" / "flight_events.avsc"


@pipeline(name="events_by_origin", inputs=["history.flight_events"], version="1")
def events_by_origin(flight_events: Any) -> Any:
    return flight_events.groupBy("origin").count()


PROJECT = [
    history("flight_events"),
    state(
        "aircraft",
        topic="flight_events",
        key="tailnum",
        fields={"seen": count(), "miles": sum_("distance"), "last_at": latest("event_time")},
    ),
    events_by_origin,
]


@expectations("state.aircraft")
def far_travelled(gxe: Any) -> list[Any]:
    return [gxe.ExpectColumnValuesToBeBetween(column="miles", min_value=1)]


@pytest.fixture
def platform() -> Iterator[EmbeddedPlatform]:
    with embedded_platform() as running:
        running.register(PLANES.parents[1])
        yield running


def test_tables_of_a_project(platform: EmbeddedPlatform, spark: Any, tmp_path: Path) -> None:
    there = {"platform": platform, "spark": spark, "warehouse": tmp_path / "warehouse"}
    platform.send("flight_events", events(FLIGHTS, 3, tailnum="N1", origin="JFK"), key="tailnum")
    platform.send("flight_events", events(FLIGHTS, 1, tailnum="N2", origin="LGA"), key="tailnum")

    tables = run_tables(PROJECT, **there)

    assert list(tables) == ["history.flight_events", "state.aircraft", "marts.events_by_origin"]
    assert tables.results["history.flight_events"].rows == 4
    first, third = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 2)
    assert_frame_equal(
        tables["state.aircraft"],
        [
            {"tailnum": "N2", "seen": 1, "miles": 0, "last_at": first},
            {"tailnum": "N1", "seen": 3, "miles": 3, "last_at": third},
        ],
    )
    origins = spark.createDataFrame([("LGA", 1), ("JFK", 3)], "origin string, count bigint")
    assert_frame_equal(tables["marts.events_by_origin"], origins)
    with pytest.raises(AssertionError, match="column count is bigint, not int"):
        assert_frame_equal(tables["marts.events_by_origin"], origins.selectExpr("origin", "int(count) AS count"))
    failed = tables.check(far_travelled)
    assert not failed.passed
    assert [row["miles"] for finding in failed.failed for row in finding.sample] == [0]

    platform.send("flight_events", events(FLIGHTS, 1, tailnum="N1", distance=7), key="tailnum")
    platform.send_tombstones("flight_events", "N2")
    again = run_tables(PROJECT, "state.aircraft", **there)
    assert list(again) == ["state.aircraft"]
    assert_frame_equal(again["state.aircraft"].select("tailnum", "miles"), [{"tailnum": "N1", "miles": 10}])
    assert again.check(far_travelled).passed
    with pytest.raises(UnknownTableError, match=r"no table state.aircrafts was run; did you mean state.aircraft\?"):
        again["state.aircrafts"]
    with pytest.raises(UnknownTableError, match=r"state\.air"):
        run_tables(PROJECT, "state.air", **there)
