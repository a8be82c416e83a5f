"""
The journey of a user who brings data of their own: from the wheel to tables that equal pandas, mistakes on the way.

Each command is one that the user types; the order is that of an afternoon.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from dagster_page import browser_at, chromium, stop_sensors, wait_for_runs
from installed import Installed
from journey import Done, Journey
from journey_data import Weather
from journey_mistakes import CONTRACT, LAST_FIELD, MISTAKES, Mistake, write_inputs
from journey_project import ANSWERS, CHECKS, OWNER, TABLES

MISTAKES_MIN = 12
AS_PARQUET = ("--input-format", "parquet", "--timestamp-field", "at")


@pytest.fixture
def journey(tmp_path: Path, installed: Installed) -> Iterator[Journey]:
    journey = Journey(tmp_path, installed)
    yield journey
    if journey.project.is_dir():
        journey.run("down")


@pytest.mark.rota  # eight starts of Spark
def test_data_of_ones_own_from_the_wheel_to_tables_that_equal_pandas(journey: Journey) -> None:
    chromium()
    data = Weather.load()
    journey.ok("init", journey.name)

    data.write(journey.project)
    write_project(journey)
    journey.up()
    for topic in ("readings", "days"):
        # Records carry their event times, of which retention would keep a week.
        journey.ok("topic", "create", topic, "--partitions", "2", "--config", "retention.ms=-1")
    journey.ok("topic", "alter", "days", "--config", "fluvial.value.schema.validation=payload")
    journey.ok("schema", "register")
    for name in ("readings", "days"):
        journey.ok("topic", "produce", name, "--subject", f"{name}-value", "-f", f"{name}.parquet", *AS_PARQUET)

    write_inputs(journey.project)
    assert len(MISTAKES) >= MISTAKES_MIN
    for mistake in MISTAKES:
        with mistake.made(journey.project):
            check_message(mistake, journey.run(*mistake.command))

    built = json.loads(journey.ok("run", "--format", "json"))
    assert built, "a run says what it did"
    check_answers(journey, Weather(readings=data.readings, days=data.days, corrections=data.corrections[:0]))

    put_an_old_contract_back(journey)
    journey.ok("topic", "produce", "days", "--subject", "days-value", "-f", "corrections.parquet", *AS_PARQUET)
    look_at_the_page(journey, data)
    check_answers(journey, data)
    journey.ok("table", "replay", "history.readings", "state.stations", "--offsets", "readings:0=10-99")
    journey.ok("table", "verify")

    journey.ok("down")
    no_broker = Mistake(
        name="broker down", command=("run",), says=("no Kafka broker", "start the local platform with `fluvial up`")
    )
    check_message(no_broker, journey.run(*no_broker.command))


def write_project(journey: Journey) -> None:
    """Write contracts, tables and checks in the place of those of the new project."""
    project = journey.project
    schemas = project / "schemas" / "weather"
    (project / "schemas" / "shop").rename(schemas)
    (schemas / "orders.avsc").unlink()
    (schemas / "owner.toml").write_text(OWNER)
    for name, key in (("readings", "station"), ("days", "day")):
        words = ("schema", "generate", "avro", f"{name}-value", "--from-parquet", f"{name}.parquet", "--key", key)
        (schemas / f"{name}.avsc").write_text(journey.ok(*words))
    (project / "weather" / "tables.py").write_text(TABLES)
    (project / "weather" / "checks.py").write_text(CHECKS)
    definitions = project / "weather" / "definitions.py"
    definitions.write_text(definitions.read_text().replace("sound_customers", "sound_days, usual_temperatures"))


def check_message(mistake: Mistake, done: Done) -> None:
    """The command ends as it should, with one line that says what, where and what to do."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == mistake.status, f"{mistake.name}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert len(lines) == 1, f"{mistake.name}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr, f"{mistake.name}\n{done.stderr}"
    for part in mistake.says:
        assert part in lines[0], f"{mistake.name}: {part!r} is not in {lines[0]!r}"


def put_an_old_contract_back(journey: Journey) -> None:
    """Register a newer contract, then put the old file back: the command says that the newer one still holds."""
    newer = Mistake(
        name="newer contract",
        edit=(CONTRACT, LAST_FIELD, '"name": "snow", "type": "double", "default": 0.0}, {"name": "weather",'),
        command=("schema", "register"),
        says=(),
    )
    with newer.made(journey.project):
        journey.ok(*newer.command)
    old = Mistake(
        name="old contract put back",
        command=("schema", "register"),
        says=(CONTRACT, "is version 1 of days-value, and version 2 is the latest", "`fluvial schema show days-value`"),
    )
    check_message(old, journey.run(*old.command))


def look_at_the_page(journey: Journey, data: Weather) -> None:
    """See the tables and the failing rows of a check, and start the run that brings the corrections."""
    screenshots = Path(os.environ.get("FLUVIAL_SCREENSHOTS") or journey.folder)
    with journey.page() as url, browser_at(url, screenshots) as browser:
        stop_sensors(url, "weather.definitions")
        browser.open("/assets/history/readings?view=checks&checkDetail=usual_temperatures")
        browser.see("No hour is hotter than 75 degrees")
        browser.window.get_by_text("Failed", exact=True).first.wait_for()
        browser.see("failing_rows")
        assert str(data.unusual) in browser.text().split()
        browser.shoot("journey-check")
        browser.open("/assets/compacted/days")
        browser.launch("Materialize")
        wait_for_runs(url, newest=1)
        browser.open("/assets/marts/kinds")
        browser.launch("Materialize")
        wait_for_runs(url, newest=1)
        browser.shoot("journey-run")
        assert browser.hosts == {url.removeprefix("http://")}


def check_answers(journey: Journey, data: Weather) -> None:
    """Every table equals what pandas makes of the same files."""
    (journey.project / "answers.py").write_text(ANSWERS)
    answers = json.loads(journey.python("answers.py").splitlines()[-1])
    readings = frame(answers["history.readings"], "at")
    assert readings.pop("is_timed").all()
    assert_same(readings, data.readings, "station", "at")
    assert_same(frame(answers["compacted.days"], "at")[list(data.days)], data.newest_days, "day")
    assert_same(frame(answers["state.stations"]), pd.DataFrame(data.stations()), "station")
    bands = frame(answers["state.bands"], "valid_from", "valid_to")
    assert_same(bands, pd.DataFrame(data.bands()), "station", "valid_from")
    assert_same(frame(answers["marts.kinds"]), pd.DataFrame(data.kinds()), "weather")


def frame(rows: list[Mapping[str, Any]], *times: str) -> pd.DataFrame:
    found = pd.DataFrame(rows)
    return found.assign(**{name: pd.to_datetime(found[name], utc=True) for name in times})


def in_millis(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(**{name: rows[name].dt.as_unit("ms") for name in rows.select_dtypes("datetimetz")})


def assert_same(found: pd.DataFrame, wanted: pd.DataFrame, *keys: str) -> None:
    """Rows in any order; a sum of doubles may differ in its last digit by the order in which it was added."""
    order = list(keys)
    found, wanted = (in_millis(each).sort_values(order, ignore_index=True) for each in (found, wanted))
    pd.testing.assert_frame_equal(found[list(wanted)], wanted, check_dtype=False, rtol=1e-12)
