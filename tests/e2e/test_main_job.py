"""
The main job: every number agrees with the CSV files.

Each run of the tests takes the first months of the year, `make rota` all of it.
"""

import json
import subprocess

import csv_truth
import pytest
from local_platform import MAIN_JOB_UNTIL, LocalPlatform

DAMAGED = 5
LATE = 2  # of these, as many were followed by another event of their aircraft on the same day
META = ["_topic", "_partition", "_offset", "_timestamp", "_key", "_schema_id"]


def test_event_counts(demo: LocalPlatform) -> None:
    answer = demo.sql("select event_type, count(*) n from history.flight_events group by 1")
    assert {row["event_type"]: row["n"] for row in answer} == dict(csv_truth.event_counts(MAIN_JOB_UNTIL))


def test_every_aircraft_agrees_with_a_fold_in_plain_python(demo: LocalPlatform) -> None:
    answer = demo.ask("select *, unix_seconds(last_event_time) last_event_s from state.aircraft")
    expected = csv_truth.aircraft(MAIN_JOB_UNTIL)
    assert len(answer) == len(expected)
    for row in answer:
        plane = expected[row["tailnum"]]
        shown = {name: row[name] for name in ("last_airport", "departures", "arrivals", "cancellations", "miles")}
        assert shown == {
            "last_airport": plane.last_airport,
            "departures": plane.departures,
            "arrivals": plane.arrivals,
            "cancellations": plane.cancellations,
            "miles": plane.miles,
        }, row["tailnum"]
        assert plane.last_event_time is not None
        assert row["last_event_s"] == plane.last_event_time.timestamp(), row["tailnum"]
        assert row["max_arr_delay"] == plane.max_arr_delay, row["tailnum"]
        mean = plane.mean_arr_delay
        assert row["mean_arr_delay"] == (None if mean is None else pytest.approx(mean, rel=1e-12)), row["tailnum"]
    # In another order the same events leave the aircraft elsewhere, so that a fold out of order would be seen.
    backwards = csv_truth.aircraft(MAIN_JOB_UNTIL, backwards=True)
    moved = [tail for tail, plane in expected.items() if plane.last_airport != backwards[tail].last_airport]
    assert len(moved) > len(expected) / 2


@pytest.mark.rota
def test_what_made_an_aircrafts_row_is_told_event_by_event(demo: LocalPlatform) -> None:
    fleet = csv_truth.aircraft(MAIN_JOB_UNTIL)
    tail = min(fleet, key=lambda each: (abs(fleet[each].departures - 20), each))
    told = json.loads(demo.run("table", "explain-row", "state.aircraft", tail, "--format", "json").stdout)
    assert (told["left_out"], told["quarantined"], told["owner"]) == (0, [], "airline_operations")
    events = [event for event in csv_truth.flight_events(MAIN_JOB_UNTIL) if event.tailnum == tail]
    steps = told["steps"]
    assert sorted(step["record"]["event_type"] for step in steps) == sorted(event.kind for event in events)
    departures = arrivals = 0
    for step in steps:
        departures += step["record"]["event_type"] == "DEPARTED"
        arrivals += step["record"]["event_type"] == "ARRIVED"
        assert (step["row"]["departures"], step["row"]["arrivals"]) == (departures, arrivals)
        assert step["table_version"] is not None
    plane, row = fleet[tail], steps[-1]["row"]
    assert (row["last_airport"], row["miles"]) == (plane.last_airport, plane.miles)


def test_weather_and_reference_tables(demo: LocalPlatform) -> None:
    counts = demo.ask(
        "select (select count(*) from history.weather) weather, (select count(*) from compacted.planes) planes, "
        "(select count(*) from compacted.airports) airports, (select count(*) from compacted.airlines) airlines, "
        "(select sum(seats) from compacted.planes) seats, (select sum(temp) from history.weather) temp"
    )[0]
    weather, planes = csv_truth.weather(MAIN_JOB_UNTIL), list(csv_truth.rows("planes.csv"))
    assert counts["weather"] == len(weather)
    assert counts["planes"] == len(planes)
    assert counts["airports"] == len(list(csv_truth.rows("airports.csv")))
    assert counts["airlines"] == len(list(csv_truth.rows("airlines.csv")))
    assert counts["seats"] == sum(int(float(row["seats"])) for row in planes if csv_truth.known(row["seats"]))
    assert counts["temp"] == pytest.approx(sum(float(row["temp"]) for row in weather if csv_truth.known(row["temp"])))


def test_history_rows_carry_where_they_come_from(demo: LocalPlatform) -> None:
    columns = [row["col_name"] for row in demo.ask("describe table history.flight_events")]
    assert [name for name in columns if name.startswith("_")] == META
    broken = demo.ask(
        "select _partition, count(*) n, count(distinct _offset) offsets, min(_offset) first, max(_offset) last, "
        "count_if(_topic <> 'flight_events' or _schema_id is null) strange, "
        "count_if(unix_millis(_timestamp) <> unix_millis(event_time)) shifted, "
        "count_if(not (cast(_key as string) <=> tailnum)) unkeyed "
        "from history.flight_events group by 1"
    )
    assert sum(row["n"] for row in broken) == sum(csv_truth.event_counts(MAIN_JOB_UNTIL).values())
    for row in broken:
        assert row["n"] == row["offsets"]
        assert row["first"] == 0
    # A damaged record left a gap where it would have been, and the transaction of its replay a marker.
    assert sum(row["last"] + 1 - row["n"] for row in broken) >= DAMAGED
    for row in broken:
        assert (row["strange"], row["shifted"], row["unkeyed"]) == (0, 0, 0)


def test_keys_stay_in_event_time_order(demo: LocalPlatform) -> None:
    late = demo.ask(
        "select count(*) n from (select event_time, lag(event_time) over (partition by _key order by _partition, "
        "_offset) before from history.flight_events where _key is not null) where event_time < before"
    )
    assert late == [{"n": LATE}]


def test_damaged_flights_were_put_aside_repaired_and_replayed(demo: LocalPlatform) -> None:
    (quarantine,) = json.loads(demo.run("topic", "quarantine", "list", "--json").stdout)
    assert (quarantine["topic"], quarantine["records"], quarantine["waiting"]) == ("flight_events", DAMAGED, 0)
    shown = demo.run("topic", "quarantine", "show", "flight_events", "--all", "--json").stdout
    rows = [json.loads(line) for line in shown.splitlines()]
    reasons = " ".join(row["reason"] for row in rows)
    assert all(words in reasons for words in ("the bytes end early", "bytes are left over", "is not registered"))
    for row in rows:
        place = f"_partition = {row['partition']} and _offset = {row['offset']}"
        assert demo.ask(f"select count(*) n from history.flight_events where {place}") == [{"n": 0}]
        again = f"_key = cast('{row['key']}' as binary) and unix_millis(event_time) = {row['timestamp_ms']}"
        assert demo.ask(f"select count(*) n from history.flight_events where {again}") == [{"n": 1}]


def test_no_table_has_a_quarantine(demo: LocalPlatform) -> None:
    assert not [name for name in demo.versions() if name.startswith("quarantine.")]


def test_a_second_run_publishes_nothing_and_changes_no_table(demo: LocalPlatform) -> None:
    before = demo.versions()
    assert {"history.flight_events", "state.aircraft", "compacted.planes"} <= before.keys()
    demo.run(*demo.main_job_words())
    assert demo.versions() == before
    assert demo.ask("select count(*) n from history.flight_events") == [
        {"n": sum(csv_truth.event_counts(MAIN_JOB_UNTIL).values())}
    ]


def test_the_chart_is_a_picture(demo: LocalPlatform) -> None:
    charts = list((demo.data_dir / "demo").glob("*.png"))
    assert len(charts) == 1
    assert charts[0].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_wrong_name_is_answered_with_the_right_one(demo: LocalPlatform) -> None:
    done: subprocess.CompletedProcess[str] = demo.run("run", "state.aircrafts", check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "state.aircraft" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_leaves_a_project_that_goes_on(demo: LocalPlatform) -> None:
    here = {path.name for path in demo.folder.iterdir()}
    assert here == {".fluvial", "dagster_project", "pipelines", "pyproject.toml", "schemas"}
    before = demo.versions()
    declarations = demo.folder / "pipelines" / "flights" / "declarations.py"
    added = 'places = state("places", topic="airports", key="faa", fields={"zone": latest("tzone")})'
    declarations.write_text(f"{declarations.read_text()}\n{added}\n")
    demo.run("run", "state.places")
    (row,) = json.loads(demo.run("table", "get", "state.places", "LGA", "--format", "json").stdout)
    assert row["zone"] == "America/New_York"
    after = demo.versions()
    assert after.keys() - before.keys() == {"state.places"}
    assert {name: after[name] for name in before} == before
