"""
Mistakes that a new user makes, each with the command that meets it and what its message has to say.

The message is one line: what is wrong, where, and how it is repaired.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DAY = {
    "day": "2016-01-01",
    "at": "2016-01-01T00:00:00Z",
    "precipitation": 0.5,
    "temp_max": 9.0,
    "temp_min": 3.0,
    "wind": 2.0,
    "weather": "rain",
}
CONTRACT = "schemas/weather/days.avsc"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """
    The words of a command, what was written wrong before (`edit`: a file, a text of it and what stands there instead),
    the end of the command and parts of its message.
    """

    name: str
    command: tuple[str, ...]
    says: tuple[str, ...]
    edit: tuple[str, str, str] | None = None
    status: int = 1

    @contextmanager
    def made(self, project: Path) -> Iterator[None]:
        """Make it in the project, and repair it after."""
        if self.edit is None:
            yield
            return
        file, right, wrong = self.edit
        path = project / file
        text = path.read_text()
        assert right in text, f"{file} has no {right}"
        path.write_text(text.replace(right, wrong, 1))
        try:
            yield
        finally:
            path.write_text(text)


def write_inputs(project: Path) -> None:
    """Write the files that the mistakes are made with."""
    lines = {
        "keyless.jsonl": {name: value for name, value in DAY.items() if name != "day"},
        "wet.jsonl": DAY | {"precipitation": "wet"},
    }
    for name, line in lines.items():
        (project / name).write_text(json.dumps(line) + "\n")
    (project / "text.txt").write_text("2016-01-01=hello\n")


TABLES = "weather/tables.py"
DRY_RUN = ("run", "--dry-run")
PRODUCE = ("topic", "produce", "days")
LAST_FIELD = '"name": "weather",'

MISTAKES = (
    Mistake(
        name="wrong topic",
        edit=(TABLES, 'history("readings")', 'history("reading")'),
        command=DRY_RUN,
        says=(
            "history.reading: there is no topic reading on",
            "did you mean readings?",
            "`fluvial topic create reading`",
        ),
    ),
    Mistake(
        name="wrong field",
        edit=(TABLES, 'max_("temp")', 'max_("tmep")'),
        command=DRY_RUN,
        says=('state("stations"): field warmest = max(tmep)', "readings-value has no field tmep: did you mean temp?"),
    ),
    Mistake(
        name="wrong key",
        edit=(TABLES, '"bands", topic="readings", key="station"', '"bands", topic="readings", key="at"'),
        command=DRY_RUN,
        says=('state("bands"): the record key of readings-value is station', 'write key="station"'),
    ),
    Mistake(
        name="wrong type",
        edit=(TABLES, 'min_("temp")', 'sum_("band")'),
        command=DRY_RUN,
        says=("field coldest = sum(band) needs a number, and band is string in readings-value", "cast(band as double)"),
    ),
    Mistake(
        name="bad SQL",
        edit=(TABLES, "temp < 45", "temp <"),
        command=("run", "state.stations"),
        says=('state("stations"): field cold_hours = count(where temp <)', "readings-value", "Syntax error at or near"),
    ),
    Mistake(
        name="keyless record",
        command=(*PRODUCE, "--subject", "days-value", "-f", "keyless.jsonl"),
        says=("line 1: has no field 'day' for the key", "its fields are at, precipitation", "0 records"),
    ),
    Mistake(
        name="value of another type",
        command=(*PRODUCE, "--subject", "days-value", "-f", "wet.jsonl"),
        says=("line 1: precipitation: 'wet' is not a number", "0 records"),
    ),
    Mistake(
        name="record refused by the contract",
        command=(*PRODUCE, "-f", "text.txt", "--key-separator", "="),
        says=("the cluster refused a record for 'days'", "not in the registry's wire format", "subject days-value"),
    ),
    Mistake(
        name="unknown option",
        command=("run", "--drey-run"),
        status=2,
        says=("No such option: --drey-run", "--dry-run", "`fluvial run --help`"),
    ),
    Mistake(
        name="incompatible contract",
        edit=(CONTRACT, LAST_FIELD, '"name": "snow", "type": "double"}, {"name": "weather",'),
        command=("schema", "register"),
        says=(CONTRACT, "'snow'", "no default value", "version 1 of days-value", "BACKWARD", "default"),
    ),
    Mistake(
        name="table that no run has built",
        command=("table", "verify", "state.stations"),
        says=("state.stations does not exist", "`fluvial run state.stations`"),
    ),
    Mistake(
        name="unknown table",
        command=("run", "state.station"),
        says=("no pipeline 'state.station'", "did you mean state.stations"),
    ),
    Mistake(
        name="unknown column of a file",
        command=("schema", "generate", "avro", "r-value", "--from-parquet", "readings.parquet", "--key", "statoin"),
        says=("readings.parquet has no column 'statoin' for the key", "station, at, temp, band"),
    ),
)
