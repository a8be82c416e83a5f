"""Statements answered by Sail in its own process, and what is sent to Spark instead; no Spark runs."""

import datetime as dt
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hand_written_table import HandWrittenTable

from fluvial.config import Settings
from fluvial.delta.stamp import Stamp
from fluvial.errors import FluvialError
from fluvial.query.engine import Answer, Door, Engine, RoutingError
from fluvial.query.sail import Sail, SailError
from fluvial.query.versions import At, NoSuchOffsetError, Version
from fluvial.spark.session import UnknownTableError

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")

COLUMNS = {"id": pa.string(), "n": pa.int64(), "_fold": pa.string()}


class AskedSparkError(FluvialError):
    """Stands where Spark would answer."""


class Asked:
    """A door to a warehouse, and what has come out of it."""

    def __init__(self, warehouse: Path) -> None:
        self.settings = Settings(warehouse=str(warehouse))
        self.said: list[str] = []
        self.doors: list[Door] = []

    def door(self, engine: Engine = Engine.AUTO, places: list[At] | None = None) -> Door:
        door = Door(
            settings=self.settings, ask_spark=self._spark, say=self.said.append, engine=engine, places=places or []
        )
        self.doors.append(door)
        return door

    def rows(self, statement: str, door: Door | None = None, rows_max: int | None = None) -> list[Any]:
        found: list[Any] = []

        def take(answer: Answer) -> None:
            names = [name for name, _ in answer.columns]
            found.extend(dict(zip(names, row, strict=True)) for row in answer.rows())

        self.told = str((door or self.doors[0]).answer(statement, take, again=found.clear, rows_max=rows_max))
        return found

    def _spark(self, statement: str) -> Any:
        raise AskedSparkError(statement)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A warehouse with one state of two versions, made from `orders`."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    table = HandWrittenTable(warehouse / "state" / "customers", COLUMNS)
    table.commit(
        [("ada", 1, "x"), ("bob", 2, "x")], Stamp(topic="orders", topic_id=None, batch=1, offsets={0: (0, 10)})
    )
    table.commit([("ada", 3, "y")], Stamp(topic="orders", topic_id=None, batch=2, offsets={0: (10, 20)}), instead=True)
    (warehouse.parent / "secret.csv").write_text("secret\n")
    asked = Asked(warehouse)
    with closing(asked.door()):
        yield asked
        for door in asked.doors:
            door.close()


def test_a_table_is_read_by_its_name_without_what_is_internal(asked: Asked) -> None:
    assert asked.rows("select * from state.customers") == [{"id": "ada", "n": 3}]
    assert asked.told.startswith("sail, ")
    assert asked.told.endswith("state.customers version 1 of 2023-11-14T22:13:21Z at orders:0=19")
    assert asked.rows("select _fold from state.customers") == [{"_fold": "y"}]


def test_earlier_versions_are_read_by_number_and_by_offset(asked: Asked) -> None:
    both = [{"id": "ada", "n": 1}, {"id": "bob", "n": 2}]
    assert asked.rows("select * from state.customers version as of 0 order by id") == both
    assert asked.rows("select * from state.customers order by id", asked.door(places=At.of(["orders:0=9"]))) == both
    joined = "select a.n, b.n m from state.customers version as of 0 a join state.customers b on a.id = b.id"
    assert asked.rows(joined) == [{"n": 1, "m": 3}]
    assert "version 0 of" in asked.told
    assert "version 1 of" in asked.told


def test_a_place_between_two_versions_names_them_where_the_log_does_not_lead_there(asked: Asked) -> None:
    door = asked.door(places=At.of(["orders:0=10"]))
    told = "no version of state.customers ends at orders:0=10: the nearest are version 0 .* and version 1 "
    with pytest.raises(NoSuchOffsetError, match=told):
        asked.rows("select * from state.customers", door)

    def as_of(table: str, places: Sequence[At]) -> Version:
        assert (table, places) == ("state.customers", door.places)
        raise FluvialError("no broker answers")

    door.as_of = as_of
    with pytest.raises(NoSuchOffsetError, match=rf"{told}.*; it is not made from the log: no broker answers"):
        asked.rows("select * from state.customers", door)


def test_values_are_those_that_spark_gives(asked: Asked) -> None:
    [row] = asked.rows(
        "select timestamp'2013-01-01 05:15:00' a, "
        "array(named_struct('x', 1, 'y', timestamp'2013-01-01 00:00:00'), null) b, "
        "map('k', array(1)) c, cast('z' as binary) d, timestamp_ntz'2013-01-01 00:00:00' e, cast(1 as decimal(9,2)) f"
    )
    assert row["a"] == dt.datetime(2013, 1, 1, 5, 15)
    assert row["b"] == [(1, dt.datetime(2013, 1, 1)), None]
    assert row["b"][0].__fields__ == ["x", "y"]
    assert row["c"] == {"k": [1]}
    assert row["d"] == b"z"
    assert row["e"] == dt.datetime(2013, 1, 1)
    assert str(row["f"]) == "1.00"


def test_only_the_rows_that_are_shown_are_asked_for(asked: Asked) -> None:
    rows = asked.rows("select id from range(100000000)", rows_max=51)
    assert 51 <= len(rows) < 100_000
    assert asked.rows("select 1 a") == [{"a": 1}], "the next answer is the next one's"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("describe history state.customers", None),
        ("select * from csv.`{outside}`", None),
        ("select * from state.customers where no_such_function(id)", "Sail refused"),
        ("select 1/0", "Sail refused"),
        ("selec 1", None),
    ],
)
def test_what_sail_does_not_take_goes_to_spark_as_it_stands(asked: Asked, statement: str, why: str | None) -> None:
    asked.said.clear()
    statement = statement.format(outside=f"{asked.settings.warehouse}/../secret.csv")
    with pytest.raises(AskedSparkError):
        asked.rows(statement)
    assert [line.partition(" (")[0] for line in asked.said] == ([] if why is None else [why])


def test_sail_alone_says_why_it_does_not(asked: Asked) -> None:
    door = asked.door(Engine.SAIL)
    with pytest.raises(RoutingError, match="DESCRIBE is a statement of Spark's"):
        asked.rows("describe history state.customers", door)
    with pytest.raises(SailError, match=r"[Dd]ivide by zero"):
        asked.rows("select 1/0", door)


def test_an_unknown_table_is_told_without_an_engine(asked: Asked) -> None:
    with pytest.raises(UnknownTableError, match=r"no table state.nobody; there are: state.customers"):
        asked.rows("select * from state.nobody")


def test_an_answer_that_was_refused_halfway_is_not_the_next_ones(asked: Asked) -> None:
    halfway = "select cast(id as int) / (id - 90000) as a from range(100000)"
    late = "select cast(if(id < 90000, '1', 'x') as int) as b from range(100000)"
    for statement in ("select cast('abc' as date) as b", halfway, late) * 2:
        with pytest.raises(AskedSparkError):
            asked.rows(statement)
        assert asked.rows("select 1 a") == [{"a": 1}]


def test_an_answer_that_is_left_is_not_the_next_ones(asked: Asked) -> None:
    def leave(answer: Answer) -> None:
        next(answer.rows())
        raise LookupError("enough")

    with pytest.raises(LookupError):
        asked.doors[0].answer("select id from range(3000000)", leave, again=lambda: None)
    assert asked.rows("select 1 a") == [{"a": 1}]


def test_an_answer_that_breaks_off_is_forgotten(asked: Asked) -> None:
    asked.said.clear()
    taken: list[Any] = []

    def take(answer: Answer) -> None:
        for row in answer.rows():
            taken.append(row)
            if len(taken) == 1:
                os.kill(door._engine()._process.pid, signal.SIGKILL)

    door = asked.door()
    with pytest.raises(AskedSparkError):
        door.answer("select id from range(50000000)", take, again=taken.clear)
    assert taken == []
    assert asked.said == ["Sail refused (its process has ended): asking Spark"]
    assert asked.rows("select 1 a", door) == [{"a": 1}], "another is started"


def read(sail: Sail, statement: str) -> Callable[[], Any]:
    def run() -> Any:
        with sail.ask(statement) as reader:
            return reader.read_all().to_pylist()

    return run


def test_sails_process_sees_the_warehouse_alone_and_writes_nothing(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "rows.csv").write_text("a\n")
    with closing(Sail([inside])) as sail:
        assert read(sail, f"select * from csv.`{inside}/rows.csv`")() == [{"_c0": "a"}]
        if not sail.walls["files"]:
            pytest.skip("this kernel has no landlock")
        for statement in (
            f"select * from csv.`{outside}/rows.csv`",
            "select * from text.`/etc/passwd`",
            f"select * from text.`/proc/{os.getpid()}/environ`",
            f"create table w using parquet location '{outside}/w' as select 1 as a",
            f"create table v using parquet location '{inside}/v' as select 1 as a",
        ):
            with pytest.raises(SailError, match="denied"):
                read(sail, statement)()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inside", "outside", "rows.csv", "rows.csv"]


def test_nobody_else_reaches_sails_port(tmp_path: Path) -> None:
    with closing(Sail([tmp_path])) as sail:
        read(sail, "select 1")()
        if not sail.walls["network"]:
            pytest.skip("namespaces of networks are not allowed here")
        listening = Path(f"/proc/{sail._process.pid}/net/tcp").read_text(encoding="utf-8")
        here = Path("/proc/self/net/tcp").read_text(encoding="utf-8")
        # Local addresses in the state LISTEN, 0A.
        ports = {line.split()[1] for line in listening.splitlines()[1:] if line.split()[3] == "0A"}
        assert ports
        assert not ports & {line.split()[1] for line in here.splitlines()[1:]}


def test_a_process_that_was_lost_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    sail = Sail([tmp_path])
    os.kill(sail._process.pid, signal.SIGKILL)
    with pytest.raises(SailError, match="process has ended"):
        read(sail, "select 1")()
    assert not sail.is_running
