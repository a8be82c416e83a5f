"""Marts with what the log holds behind their inputs, beside those that runs make of the same records."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from log_topic import Schemas, Topic
from plain_fold import SCHEMA, random_events

from fluvial.config import Settings
from fluvial.fresh.freshness import Freshness
from fluvial.query.engine import Answer, Door, Engine
from fluvial.serve.errors import TookTooLongError
from fluvial.spark.session import register_tables, run_sql
from fluvial.tables import Declaration
from fluvial.tables.declare.project import load_project
from fluvial.tables.drive.runner import materialize

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
FLUVIAL = (sys.executable, "-m", "fluvial")


class Client:
    """A process without Spark, which is asked."""

    def __init__(self, settings: Settings, topic: Topic) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "fresh_client.py"],
            cwd=HERE,
            env=environment(settings, topic),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def rows(self, statement: str, *, fresh: bool = True, at: Sequence[str] = ()) -> tuple[list[str], str]:
        """The rows as texts in their order, and what is said below them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([statement, fresh, [*at]]) + "\n")
        self.process.stdin.flush()
        rows, engine, told = json.loads(self.process.stdout.readline())
        assert engine == "sail", (statement, told)
        return rows, told


def environment(settings: Settings, topic: Topic) -> dict[str, str]:
    """What a command of the project is started with."""
    return {
        **os.environ,
        "FLUVIAL_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "FLUVIAL_REGISTRY_URL": settings.registry_url or "",
        "FLUVIAL_DATA_DIR": str(Path(settings.warehouse).parent),
        "FLUVIAL_WAREHOUSE": settings.warehouse,
        "FLUVIAL_PROJECT": "fresh_marts",
        "FRESH_MARTS_TOPIC": topic.name,
    }


@contextmanager
def opened(settings: Settings, topic: Topic) -> Iterator[Client]:
    client = Client(settings, topic)
    with client.process as process:
        yield client
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.fixture
def topic(make_topic: Any) -> Topic:
    made: Topic = make_topic(SCHEMA, partitions=3)
    return made


@pytest.fixture
def tables(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> dict[str, Declaration]:
    """The project's declarations by table, what is read before what reads it."""
    monkeypatch.setenv("FRESH_MARTS_TOPIC", topic.name)
    monkeypatch.chdir(HERE)
    sys.modules.pop("fresh_marts", None)
    return load_project("fresh_marts")


@pytest.mark.rota
def test_fresh_marts_are_those_of_a_run_up_to_the_same_offsets(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tables: dict[str, Declaration]
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    marts = [name for name in tables if name.startswith("marts.")]
    with opened(settings, topic) as client:
        events = random_events(seed, 240, partitions=3)
        dice = random.Random(seed)
        cuts = [0, *sorted(dice.sample(range(1, 240), 2)), 240]
        before: dict[str, tuple[list[str], str]] = {}
        for number, (start, end) in enumerate(pairwise(cuts)):
            between = (start + end) // 2
            topic.send(events[start:between])
            if number == 1:
                before = {name: client.rows(f"select * from {name}") for name in marts}
            topic.send(events[between:end])
            fresh = {} if number == 0 else {name: client.rows(f"select * from {name}") for name in marts}
            for declaration in tables.values():
                # Once the marts are behind their inputs as well.
                if number != 2 or not declaration.table.startswith("marts."):
                    materialize(declaration, settings, spark, schemas=schemas)
            if number == 2:
                fresh = {name: client.rows(f"select * from {name}") for name in marts}
                for name in marts:
                    materialize(tables[name], settings, spark, schemas=schemas)
            for name, (rows, told) in fresh.items():
                assert rows == client.rows(f"select * from {name}", fresh=False)[0], (name, seed, told)
                assert "not fresh" not in told
                assert "what is newer in" in told
        # Their inputs have no version that ends where they ended then: no run read up to there.
        for name, (rows, told) in before.items():
            again, made_of = client.rows(f"select * from {name}", fresh=False, at=[_place_of(told)])
            assert again == rows, (name, seed, made_of)
            assert f"{name} made of" in made_of


@pytest.mark.rota
def test_spark_makes_the_same_of_what_is_behind_the_inputs(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tables: dict[str, Declaration]
) -> None:
    marts = [name for name in tables if name.startswith("marts.")]
    events = random_events(11, 160, partitions=3)
    topic.send(events[:100])
    for declaration in tables.values():
        materialize(declaration, settings, spark, schemas=schemas)
    topic.send(events[100:])
    register_tables(spark, settings)
    heard: list[str] = []
    found: dict[str, list[str]] = {}
    freshness = Freshness(settings=settings, declarations=tables, schemas=schemas)
    with (
        opened(settings, topic) as client,
        closing(
            Door(
                settings=settings,
                ask_spark=lambda statement: run_sql(spark, settings, statement),
                say=heard.append,
                engine=Engine.AUTO,
                fresh=freshness,
            )
        ) as door,
    ):
        for name in marts:
            fresh = client.rows(f"select * from {name}")[0]
            found.clear()

            def take(answer: Answer, name: str = name) -> None:
                names = [column for column, _ in answer.columns]
                rows = (dict(zip(names, map(_plain, row), strict=True)) for row in answer.rows())
                found[name] = sorted(map(repr, rows))

            # In a process with a Spark of its own that is asked.
            told = door.answer(f"select * from {name}", take, again=found.clear)
            assert told.engine is Engine.SPARK, name
            assert found[name] == fresh, name
    assert set(heard) == {"Spark runs in this process: asking Spark"}


@contextmanager
def serving(settings: Settings, topic: Topic, data_dir: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a server of the project, and how commands beside it are started."""
    how: dict[str, Any] = {"cwd": HERE, "text": True}
    how["env"] = {**environment(settings, topic), "FLUVIAL_DATA_DIR": str(data_dir)}
    with subprocess.Popen([*FLUVIAL, "serve", "--port", "0"], stderr=subprocess.PIPE, **how) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            assert "are served at" in line
            url = line.split(" at ")[1].removesuffix("/tables; Ctrl-C stops it\n")
            yield url, how
        finally:
            server.kill()


def asked_of(url: str, statement: str, **more: Any) -> httpx.Response:
    return httpx.post(f"{url}/sql", json={"sql": statement, **more}, timeout=120)


def looked_up(url: str, row: str, **params: str) -> httpx.Response:
    return httpx.get(f"{url}/tables/{row}", params=params, timeout=120)


def test_marts_of_a_server_are_those_that_a_run_would_make(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tables: dict[str, Declaration], tmp_path: Path
) -> None:
    events = random_events(5, 40, partitions=3)
    topic.send(events[:20])
    names = ("history.readings", "marts.kinds")
    for name in names:
        materialize(tables[name], settings, spark, schemas=schemas)
    topic.send(events[20:30])
    question = "select sum(events) as n from marts.kinds"
    with serving(settings, topic, tmp_path) as (url, how):
        ask, look = partial(asked_of, url), partial(looked_up, url)
        then, row_then = ask(question, fresh=True), look("marts.kinds/up", fresh="1")
        place = row_then.headers["fluvial-offsets"]
        topic.send(events[30:])
        stored, fresh = ask(question), ask(question, fresh=True)
        assert "what is newer in history.readings" in fresh.headers["fluvial-told"]
        row, of_now = look("marts.kinds/up"), look("marts.kinds/up", fresh="1")
        assert (of_now.json()["kind"], of_now.json()["events"] > row.json()["events"]) == ("up", True)
        assert of_now.headers["fluvial-offsets"].startswith(f"{topic.name}:0=")
        asked = [*FLUVIAL, "sql", "--fresh", "--format", "json", question]
        said = subprocess.run(asked, check=True, capture_output=True, timeout=120, **how)
        assert "by the server at" in said.stderr
        assert json.loads(said.stdout) == fresh.json()
        for name in names:
            materialize(tables[name], settings, spark, schemas=schemas)
        assert ask(question).json() == fresh.json() != stored.json()
        assert look("marts.kinds/up", wait_version="1").json() == of_now.json()
        as_of = ask(question, at=[place])
        assert as_of.json() == then.json() != fresh.json()
        assert "marts.kinds made of history.readings version 0" in as_of.headers["fluvial-told"]
        assert look("marts.kinds/up", at=place).json() == row_then.json()
        elsewhere = ask(question, at=["other:0=1"])
        assert "history.readings is made from" in elsewhere.text


@pytest.fixture
def _with_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the project have a mart whose function does not return, but for a run."""
    monkeypatch.setenv("FRESH_MARTS_ENDLESS", "1")


@pytest.mark.rota
@pytest.mark.usefixtures("_with_endless")
def test_a_function_that_does_not_return_is_ended_with_its_statement(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, tables: dict[str, Declaration], tmp_path: Path
) -> None:
    events = random_events(5, 40, partitions=3)
    topic.send(events[:20])
    for name in ("history.readings", "marts.kinds", "marts.endless"):
        materialize(tables[name], settings, spark, schemas=schemas)
    topic.send(events[20:])
    with serving(settings, topic, tmp_path) as (url, _):
        ask = partial(asked_of, url)
        question = "select sum(events) as n from marts.kinds"
        before = ask(question, fresh=True)
        endless = ask("select * from marts.endless", fresh=True)
        assert endless.status_code == TookTooLongError.status
        assert "was cancelled after 30 s" in endless.text
        assert before.status_code == httpx.codes.OK
        assert ask(question, fresh=True).json() == before.json()


def _place_of(told: str) -> str:
    """The offsets up to which an answer goes, of which the last are shown."""
    return told.rpartition(" at ")[2]


def _plain(value: Any) -> Any:
    """A value as Arrow gives it."""
    if hasattr(value, "__fields__"):
        return {name: _plain(each) for name, each in zip(value.__fields__, value, strict=True)}
    return [_plain(each) for each in value] if isinstance(value, list) else value
