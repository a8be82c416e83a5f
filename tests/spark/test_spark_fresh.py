"""Answers with what the log holds behind the tables, beside the tables that a run makes of the same records."""

import os
import random
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from adbc_driver_flightsql import dbapi
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from log_topic import Schemas, Sent, Topic
from plain_fold import FIELDS, RETURNS, SCHEMA, random_events, reduce_readings
from serving import serving

from fluvial.config import Settings
from fluvial.database import Database
from fluvial.fresh import freshness
from fluvial.fresh.errors import FreshError
from fluvial.fresh.freshness import Freshness
from fluvial.query.engine import Answer, Door, Engine, Told
from fluvial.query.versions import At
from fluvial.serve.errors import StaleTableError
from fluvial.serve.sql import SqlLimits, Statements
from fluvial.serve.warehouse import ServedWarehouse
from fluvial.spark.kafka import TopicError
from fluvial.spark.session import register_tables, run_sql
from fluvial.tables import Declaration, History, compacted, count, history, state
from fluvial.tables.drive.runner import materialize
from fluvial.tables.plan.planning import GapError

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")

pytestmark = pytest.mark.spark

PIECES = 4 if os.environ.get("FLUVIAL_ROTA") else 3


def tables_of(topic: Topic) -> dict[str, Declaration]:
    found: list[Declaration] = [
        history(topic.name, name="readings"),
        compacted(topic.name, name="readings", key="id"),
        state("readings", topic=topic.name, key="id", fields=FIELDS, with_position=True),
        state("by_time", topic=topic.name, key="id", fields=FIELDS, order="at"),
        state("reduced", topic=topic.name, key="id", reduce=reduce_readings, returns=RETURNS, version="1"),
    ]
    return {each.table: each for each in found}


class Asked:
    """A door to a warehouse, and fresh answers through it."""

    def __init__(self, spark: Any, settings: Settings, schemas: Schemas, tables: dict[str, Declaration]) -> None:
        self.freshness = Freshness(settings=settings, declarations=tables, schemas=schemas)
        self.heard: list[str] = []
        self.door = Door(
            settings=settings,
            ask_spark=lambda statement: run_sql(spark, settings, statement),
            say=self.heard.append,
            engine=Engine.AUTO,
        )

    def rows(self, statement: str, *, fresh: bool = True) -> tuple[list[str], Told]:
        """The rows of an answer as texts in their order, and what is said below it."""
        found: list[list[str]] = []
        self.door.fresh = self.freshness if fresh else None

        def take(answer: Answer) -> None:
            found.append(sorted(repr([_plain(value) for value in row]) for row in answer.rows()))

        told = self.door.answer(statement, take, again=found.clear)
        return found[0], told

    def as_of(self, statement: str, ends: Mapping[int, int]) -> tuple[list[str], Told]:
        """The rows as of the records before `ends`."""
        (topic,) = {each.topic for each in self.freshness.declarations.values() if isinstance(each, History)}
        self.door.places = [At(topic=topic, offsets={partition: end - 1 for partition, end in ends.items() if end})]
        self.door.as_of = self.freshness.as_of
        try:
            return self.rows(statement, fresh=False)
        finally:
            self.door.places = ()

    def close(self) -> None:
        self.door.close()


def _plain(value: Any) -> Any:
    """A value as both engines have it."""
    if hasattr(value, "__fields__"):
        return [(name, _plain(each)) for name, each in zip(value.__fields__, value, strict=True)]
    match value:
        case bytes() | bytearray():
            return bytes(value)
        case dict():
            return sorted((key, _plain(each)) for key, each in value.items())
        case list():
            return [_plain(each) for each in value]
    return value


@pytest.fixture
def topic(make_topic: Any) -> Topic:
    made: Topic = make_topic(SCHEMA, partitions=3)
    return made


@pytest.fixture
def tables(topic: Topic) -> dict[str, Declaration]:
    return tables_of(topic)


@pytest.fixture
def asked(spark: Any, settings: Settings, schemas: Schemas, tables: dict[str, Declaration]) -> Iterator[Asked]:
    with closing(Asked(spark, settings, schemas, tables)) as asked:
        yield asked


@pytest.mark.rota
def test_a_fresh_answer_is_that_of_a_run_up_to_the_same_offsets(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tables: dict[str, Declaration], asked: Asked
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    events = random_events(seed, 300, partitions=3)
    dice = random.Random(seed)
    for at in dice.sample(range(300), 5):
        events[at] = replace(events[at], value=None, raw=dice.choice([b"bad", b"\0\0\0\0\x7fno such schema"]))
    cuts = [0, *sorted(dice.sample(range(1, 300), PIECES - 1)), 300]
    before: dict[str, tuple[list[str], Told]] = {}
    for number, (start, end) in enumerate(pairwise(cuts)):
        topic.send(events[start:end])
        fresh = {} if number == 0 else {name: asked.rows(f"select * from {name}") for name in tables}
        if number == 1:
            before = fresh
            continue  # so that what they answered with is no version's
        for declaration in tables.values():
            materialize(declaration, settings, spark, schemas=schemas)
        register_tables(spark, settings)
        for name, (rows, told) in fresh.items():
            made, without = asked.rows(f"select * from {name}", fresh=False)
            assert rows == made, name
            assert told.engine is Engine.SAIL, (name, asked.heard)
            assert told.versions[0].ends == without.versions[0].ends
            assert "newer offsets" in str(told)
    for name, (rows, told) in before.items():
        again, by = asked.as_of(f"select * from {name}", told.versions[0].ends)
        assert (again, by.versions[0].ends) == (rows, told.versions[0].ends), name
        assert (by.engine, by.versions[0].version) == (Engine.SAIL, 0), name
    # With nothing behind it a table is as it is.
    rows, told = asked.rows("select * from state.readings")
    assert rows == made_of(asked, "state.readings")
    assert "newer" not in str(told)


def made_of(asked: Asked, table: str) -> list[str]:
    return asked.rows(f"select * from {table}", fresh=False)[0]


@pytest.mark.rota
def test_spark_gives_the_same_fresh_answer(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tables: dict[str, Declaration], asked: Asked
) -> None:
    events = random_events(7, 120, partitions=3)
    topic.send(events[:60])
    for declaration in tables.values():
        materialize(declaration, settings, spark, schemas=schemas)
    topic.send(events[60:])
    register_tables(spark, settings)
    by_sail = {name: asked.rows(f"select * from {name}")[0] for name in tables}
    asked.door.close()
    asked.door.engine, asked.door._spark_only = Engine.SPARK, "asked for"
    for name, rows in by_sail.items():
        found, told = asked.rows(f"select * from {name}")
        assert (found, told.engine) == (rows, Engine.SPARK), name


def test_what_was_asked_for_is_waited_for_and_what_is_not_fresh_says_so(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tables: dict[str, Declaration], asked: Asked
) -> None:
    tables["state.versions"] = state("versions", topic=topic.name, key="id", fields=FIELDS, scd2=True)
    topic.send([Sent(key="ada", value={"kind": "up", "amount": 1, "weight": None, "at": 0})])
    for name in ("state.readings", "state.versions", "compacted.readings"):
        materialize(tables[name], settings, spark, schemas=schemas)
    question = "select events from state.readings where id = 'ada'"
    later = Sent(key="ada", value={"kind": "up", "amount": 2, "weight": None, "at": 0})
    asked.freshness.at_least = At.of([f"{topic.name}:0=1"])
    asked.freshness.patience_s = 0.2
    with pytest.raises(FreshError, match=r"after 0\.2 s .* partition 0 at offset 1"):
        asked.rows(question)
    asked.freshness.patience_s = 30
    timer = threading.Timer(0.3, topic.send, [[later]])
    timer.start()
    assert asked.rows(question)[0] == ["[2]"]
    timer.join()
    for place, said in (("other:0=1", "no table of the query"), (f"{topic.name}:9=1", "no partition 9")):
        asked.freshness.at_least = At.of([place])
        with pytest.raises(FreshError, match=said):
            asked.rows(question)
    asked.freshness.at_least = ()
    rows, told = asked.rows("select count(*) from state.versions")
    assert rows == ["[1]"]
    assert "not fresh: it keeps versions of its rows" in str(told)
    # Two tables of one topic end at the same record, whatever each has read.
    joined = "select s.events, c.amount from state.readings s join compacted.readings c on s.id = c.id"
    assert asked.rows(joined)[0] == ["[2, 2]"]
    asked.freshness.records_max = 0
    with pytest.raises(FreshError, match=r"1 records behind .* at most 0"):
        asked.rows(question)
    asked.freshness.records_max = 10
    asked.freshness.settings = replace(settings, bootstrap_servers="127.0.0.1:1")
    with pytest.raises(TopicError, match="no broker answers"):
        asked.rows(question)
    asked.freshness.settings = settings
    admin = AdminClient({"bootstrap.servers": topic.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic.name, 0, 2)]).values():
        future.result(30)
    with pytest.raises(GapError, match="retention removed"):
        asked.rows(question)


def test_an_open_transaction_is_no_part_of_an_answer(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tables: dict[str, Declaration], asked: Asked
) -> None:
    one = Sent(key="ada", value={"kind": "up", "amount": 1, "weight": None, "at": 0})
    topic.send([one])
    materialize(tables["state.readings"], settings, spark, schemas=schemas)
    producer = Producer({"bootstrap.servers": topic.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    question = "select events from state.readings"
    for ends, counted in ((producer.abort_transaction, 1), (producer.commit_transaction, 2)):
        producer.begin_transaction()
        producer.produce(topic.name, key="ada", value=topic._bytes(one), partition=0)
        producer.flush(30)
        assert asked.rows(question)[0] == ["[1]"]
        ends(30)
        assert asked.rows(question)[0] == [f"[{counted}]"]


@pytest.mark.rota
def test_rows_are_counted_once_while_a_producer_and_runs_go_on(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tables: dict[str, Declaration], asked: Asked
) -> None:
    one = Sent(key="ada", value={"kind": "up", "amount": 1, "weight": None, "at": 0})
    topic.send([one])
    materialize(tables["state.readings"], settings, spark, schemas=schemas)
    stop = threading.Event()
    failed: list[BaseException] = []

    def during(work: Any) -> threading.Thread:
        def go_on() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=go_on)
        thread.start()
        return thread

    threads = [
        during(lambda: topic.send([replace(one, partition=0)] * 20)),
        during(lambda: materialize(tables["state.readings"], settings, spark, schemas=schemas)),
    ]
    versions, tails = set(), 0
    try:
        for _ in range(60):
            (row,), told = asked.rows("select events from state.readings")
            version = told.versions[0]
            # One entity, no marker and no tombstone: as many events as there are offsets.
            assert row == f"[{version.ends[0]}]"
            versions.add(version.version)
            tails += version.newer is not None
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed, failed
    assert len(versions) > 1
    assert tails > 0


def test_the_command_reads_the_log_behind_the_tables(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(
        "from fluvial.tables import count, state\n"
        f'ada = state("readings", topic="{topic.name}", key="id", fields={{"events": count()}})\n'
    )
    one = Sent(key="ada", value={"kind": "up", "amount": 1, "weight": None, "at": 0})
    topic.send([one])
    materialize(
        state("readings", topic=topic.name, key="id", fields={"events": count()}), settings, spark, schemas=schemas
    )
    topic.send([one])

    how: dict[str, Any] = {
        "cwd": tmp_path,
        "env": {
            **os.environ,
            "FLUVIAL_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
            "FLUVIAL_DATA_DIR": str(tmp_path),
            "FLUVIAL_REGISTRY_URL": settings.registry_url,
            "FLUVIAL_WAREHOUSE": settings.warehouse,
            "FLUVIAL_PROJECT": "shop",
        },
        "text": True,
    }
    fluvial = [sys.executable, "-m", "fluvial"]

    def sql(*words: str) -> subprocess.CompletedProcess[str]:
        statement = ["sql", "--format", "csv", "select * from state.readings", *words]
        return subprocess.run([*fluvial, *statement], check=False, capture_output=True, timeout=120, **how)

    assert sql().stdout.splitlines() == ["id,events", "ada,1"]
    for words in (["--fresh"], ["--fresh-at-least", f"{topic.name}:0=1"]):
        fresh = sql(*words)
        assert fresh.stdout.splitlines() == ["id,events", "ada,2"], fresh.stderr
        assert f"and 1 newer offsets at {topic.name}:0=1" in fresh.stderr
    both = sql("--fresh", "--at", f"{topic.name}:0=0")
    assert (both.returncode, both.stdout) == (2, "")
    assert "--at and --fresh" in both.stderr
    # A server that runs is asked, and gives the same.
    with subprocess.Popen([*fluvial, "serve", "--port", "0"], stderr=subprocess.PIPE, **how) as server:
        try:
            assert server.stderr is not None
            assert "are served at" in server.stderr.readline()
            asked = sql("--fresh")
            assert (asked.stdout, "by the server at" in asked.stderr) == (fresh.stdout, True), asked.stderr
            assert f"and 1 newer offsets at {topic.name}:0=1" in asked.stderr
            elsewhere = {"FLUVIAL_BOOTSTRAP_SERVERS": f"{settings.bootstrap_servers},127.0.0.1:1"}
            how["env"] = how["env"] | elsewhere
            assert "by the server at" not in sql("--fresh").stderr
            assert "by the server at" in sql().stderr
        finally:
            server.kill()


def test_rows_and_statements_are_fresh_over_http_flight_and_in_python(
    spark: Any,
    settings: Settings,
    schemas: Schemas,
    topic: Topic,
    tables: dict[str, Declaration],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables["state.versions"] = state("versions", topic=topic.name, key="id", fields=FIELDS, scd2=True)
    one = Sent(key="ada", value={"kind": "up", "amount": 1, "weight": None, "at": 0})
    topic.send([one])
    for name in ("state.readings", "state.versions"):
        materialize(tables[name], settings, spark, schemas=schemas)
    topic.send([one, replace(one, key="bob")])

    @contextmanager
    def opened(settings: Settings, at_least: Any = (), **more: Any) -> Iterator[Freshness]:
        yield Freshness(settings=settings, declarations=tables, schemas=schemas, at_least=at_least, **more)

    limits, ports = SqlLimits(fresh_seconds=0.2, fresh_records=2), []
    with serving(
        ServedWarehouse(settings.warehouse),
        statements=lambda: Statements(settings, limits=limits, fresh=opened),
        flight_started=ports.append,
    ) as client:

        def row(path: str, **params: str) -> Any:
            return client.get(f"/tables/{path}", params=params)

        stored = row("state.readings/ada")
        assert stored.json()["events"] == 1
        found = row("state.readings/ada", fresh="1", columns="id,events")
        assert found.content == b'{"id": "ada", "events": 2}', found.text
        assert found.headers["fluvial-offsets"] == f"{topic.name}:0=2"
        assert (found.headers["fluvial-version"], found.headers.get("etag")) == (
            stored.headers["fluvial-version"],
            None,
        )
        assert row("state.readings/bob").status_code == 404
        of_bob = row("state.readings/bob", fresh_at_least=f"{topic.name}:0=2")
        assert of_bob.content == row("state.readings/bob", fresh="true").content
        # As of offsets at which no version ends.
        between = row("state.readings/ada", at=f"{topic.name}:0=1", columns="events")
        assert (between.json(), between.headers["fluvial-offsets"]) == ({"events": 2}, f"{topic.name}:0=1")
        assert row("state.readings/bob", at=f"{topic.name}:0=1").status_code == 404
        assert row("state.readings/ada", at=f"{topic.name}:0=0").content == stored.content
        beyond = row("state.readings/ada", at=f"{topic.name}:0=3")
        assert (beyond.status_code, beyond.json()["error_code"]) == (404, 40402)
        assert "does not hold offset 3 yet" in beyond.json()["message"]
        missing = row("state.readings/cyd", fresh="1")
        assert (missing.status_code, missing.json()["error_code"]) == (404, 40403)
        assert f"up to {topic.name}:0=2" in missing.json()["message"]
        for path, words, status, code in (
            ("state.versions/ada", {"fresh": "1"}, 409, 40903),
            ("state.readings/ada", {"fresh": "1", "version": "0"}, 400, 40003),
            ("state.readings/ada", {"fresh": "yes"}, 400, 40003),
            ("state.readings/ada", {"fresh_at_least": "nonsense"}, 400, 40003),
            ("state.readings/ada", {"fresh_at_least": f"{topic.name}:0=3"}, 422, 42201),
            ("state.readings/ada", {"fresh": "1", "columns": "no"}, 400, 40002),
            ("state.readings", {"fresh": "1"}, 400, 40003),
        ):
            refused = row(path, **words)
            assert (refused.status_code, refused.json()["error_code"]) == (status, code), refused.text

        def batch(path: str, keys: list[str], **words: Any) -> Any:
            return client.post(f"/tables/{path}:batch", json={"keys": keys, **words})

        for words in ({"fresh": True}, {"fresh_at_least": [f"{topic.name}:0=2"]}):
            both = batch("state.readings", ["cyd", "bob", "ada", "bob"], columns=["events"], **words)
            assert both.json()["rows"] == [None, {"events": 1}, {"events": 2}, {"events": 1}], both.text
            assert both.json()["version"] == int(stored.headers["fluvial-version"])
            assert both.headers["fluvial-offsets"] == f"{topic.name}:0=2"
        assert batch("state.readings", ["bob"]).json()["rows"] == [None]
        older = batch("state.readings", ["bob", "ada"], columns=["events"], at=[f"{topic.name}:0=1"])
        assert older.json()["rows"] == [None, {"events": 2}]
        assert batch("state.readings", [], fresh=True).json()["rows"] == []
        for path, words, status, code in (
            ("state.versions", {"fresh": True}, 409, 40903),
            ("state.readings", {"fresh": True, "version": 0}, 400, 40003),
            ("state.readings", {"fresh": "yes"}, 400, 40003),
            ("state.readings", {"fresh_at_least": "nonsense"}, 400, 40003),
            ("state.readings", {"fresh_at_least": [f"{topic.name}:0=3"]}, 422, 42201),
            ("state.readings", {"fresh": True, "columns": ["no"]}, 400, 40002),
        ):
            refused = batch(path, ["ada"], **words)
            assert (refused.status_code, refused.json()["error_code"]) == (status, code), refused.text
        statement = "select sum(events) n from state.readings"
        for words, counted in (({}, 1), ({"fresh": True}, 3), ({"fresh_at_least": [f"{topic.name}:0=2"]}, 3)):
            answer = client.post("/sql", json={"sql": statement, **words})
            assert answer.json() == [{"n": counted}], answer.text
        assert "2 newer offsets" in answer.headers["fluvial-told"]
        assert client.post("/sql", params={"fresh": "1"}, content=statement).json() == [{"n": 3}]
        for header, counted in (("none", 1), ("fluvial-fresh", 3), ("fluvial-fresh-at-least", 3)):
            said = {"fluvial-fresh-at-least": f"{topic.name}:0=2"}.get(header, "1")
            options = {f"adbc.flight.sql.rpc.call_header.{header}": said}
            with (
                dbapi.connect(f"grpc://127.0.0.1:{ports[0]}", autocommit=True, db_kwargs=options) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(statement)
                assert cursor.fetchall() == [(counted,)]
        assert (
            client.post("/sql", json={"sql": statement, "fresh": True, "at": [f"{topic.name}:0=0"]}).status_code == 400
        )
        topic.send([one])
        assert "at most 2" in client.post("/sql", json={"sql": statement, "fresh": True}).json()["message"]
        materialize(tables["state.readings"], settings, spark, schemas=schemas)
        made = row("state.readings/bob", wait_version=str(int(stored.headers["fluvial-version"]) + 1))
        assert made.content == of_bob.content
        topic.send([one])

    monkeypatch.setattr(freshness, "opened", opened)
    with Database(settings) as db:
        readings = db.table("state.readings")
        for words, events in (({}, 3), ({"fresh": True}, 4)):
            row = readings.get("ada", **words)
            assert row is not None
            assert row["events"] == events
        assert readings.get("cyd", fresh=True) is None
        found_all = readings.get_all(["bob", "cyd", "ada"], columns=["events"], fresh=True)
        assert found_all == [{"events": 1}, None, {"events": 4}]
        assert db.sql(statement, fresh_at_least=f"{topic.name}:0=4").rows() == [{"n": 5}]
        assert db.sql(statement).rows() == [{"n": 4}]
        with pytest.raises(StaleTableError, match="keeps versions"):
            db.table("state.versions").get("ada", fresh=True)
