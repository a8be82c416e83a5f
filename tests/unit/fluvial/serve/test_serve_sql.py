"""`POST /sql` over sockets: answers of Sail, what it may take, and that rows by key do not wait for it."""

import asyncio
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from keyed_history import KeyedHistory, customers
from serving import serving

from fluvial.config import Settings
from fluvial.serve.errors import RefusedStatementError
from fluvial.serve.sql import Asked, SqlLimits, Statements
from fluvial.serve.warehouse import ServedWarehouse

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")

HEAVY = (
    "select count(*) from (select explode(sequence(1, 1000000)) a) cross join (select explode(sequence(1, 1000000)) b)"
)
HUNGRY = "select sum(length(repeat('x', 100000000 + id))) from (select explode(sequence(1, 200)) id)"


class Served:
    """A table with 100 rows, and a client of its server."""

    def __init__(self, history: KeyedHistory, client: httpx.Client, statements: list[Statements]) -> None:
        self.history = history
        self.client = client
        self.statements = statements

    def sql(self, statement: str, **parameters: str) -> httpx.Response:
        return self.client.post("/sql", content=statement, params=parameters)

    def engines(self) -> list[int]:
        """The processes of its engines."""
        (made,) = self.statements
        engines = (door._sail for door in made._doors)
        return [each._process.pid for each in engines if each is not None and each.is_running]


@contextmanager
def server(folder: Path, limits: SqlLimits) -> Iterator[Served]:
    history = customers(folder)
    history.put([{"customer": f"c{n}", "orders": n, "spent": Decimal(n) / 4, "_fold": "{}"} for n in range(100)])
    made: list[Statements] = []

    def statements() -> Statements:
        made.append(Statements(Settings(warehouse=str(folder)), limits=limits))
        return made[0]

    with serving(ServedWarehouse(str(folder)), preload=["state.customers"], statements=statements) as client:
        yield Served(history, client, made)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with server(tmp_path_factory.mktemp("warehouse"), SqlLimits(answer_bytes=20_000, memory_bytes=256 << 20)) as found:
        yield found


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that cancels after a second, whose engines have begun."""
    with server(tmp_path_factory.mktemp("warehouse"), SqlLimits(waiting=4, seconds=1)) as found:
        yield found


def test_a_query_is_answered_in_the_format_that_is_asked_for(served: Served) -> None:
    query = "select customer, orders, spent from state.customers where orders < 2 order by orders"
    answer = served.sql(query)
    assert answer.status_code == 200, answer.text
    assert answer.json() == [
        {"customer": "c0", "orders": 0, "spent": 0},
        {"customer": "c1", "orders": 1, "spent": 0.25},
    ]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["fluvial-engine"] == "sail"
    assert answer.headers["fluvial-versions"] == f"state.customers={served.history.newest}"
    assert served.sql(query, format="csv").text == "customer,orders,spent\nc0,0,0.00\nc1,1,0.25\n"
    arrow = served.client.post("/sql", content=query, headers={"accept": "application/vnd.apache.arrow.file"})
    assert pa.ipc.open_file(io.BytesIO(arrow.content)).read_all().column("customer").to_pylist() == ["c0", "c1"]
    stream = served.client.post("/sql", content=query, headers={"accept": "application/vnd.apache.arrow.stream"})
    assert pa.ipc.open_stream(stream.content).read_all().column("customer").to_pylist() == ["c0", "c1"]
    lines = served.client.post("/sql", content=query, headers={"accept": "application/x-ndjson"}).text
    assert [json.loads(line) for line in lines.splitlines()] == answer.json()
    table = served.client.post("/sql", content=query, headers={"accept": "text/plain"})
    assert "customer" in table.text.splitlines()[1]


def test_a_statement_may_come_with_parameters(served: Served) -> None:
    body = {"sql": "select orders from state.customers where customer = :who and orders < :n", "params": {"who": "c7"}}
    body["params"]["n:int"] = "8"
    assert served.client.post("/sql", json=body).json() == [{"orders": 7}]
    injected = body | {"params": {"who": "' or true --", "n:int": "8"}}
    assert served.client.post("/sql", json=injected).json() == []


def test_star_leaves_internal_columns_out_and_versions_may_be_named(served: Served) -> None:
    assert "_fold" not in served.sql("select * from state.customers limit 1").json()[0]
    versions = served.sql("select count(*) n from state.customers version as of 0").json()
    assert versions == [{"n": 100}]


@pytest.mark.parametrize(
    ("statement", "status"),
    [
        ("select * from text.`/etc/passwd`", 404),
        ("select reflect('a', 'b')", 400),
        ("drop table state.customers", 400),
        ("select nothing from state.customers", 422),
        ("select rand()", 400),
        ("select customer, customer from state.customers", 400),
        ("select repeat('x', 30000)", 413),
        ("", 400),
    ],
)
def test_what_is_refused_is_refused_as_json(served: Served, statement: str, status: int) -> None:
    answer = served.sql(statement)
    assert answer.status_code == status, answer.text
    assert answer.json()["error_code"] // 100 == status
    assert answer.json()["message"]
    assert served.sql("select 1 as one").json() == [{"one": 1}]


def test_bodies_that_cannot_be_read_are_refused(served: Served) -> None:
    for body in (b"[]", b'{"sql": 1}', b'{"sql": "select 1", "params": []}', b'{"sql": "select 1", "more": 1}', b"{"):
        answer = served.client.post("/sql", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, body
    assert served.client.post("/sql", content=b"\xff").status_code == 400
    assert served.client.get("/sql").status_code == 405
    assert served.sql("select 1", at="orders").status_code == 400


def test_what_takes_too_long_is_cancelled_while_rows_are_looked_up(impatient: Served) -> None:
    with ThreadPoolExecutor(2) as clients:
        heavy = [clients.submit(impatient.sql, HEAVY) for _ in range(2)]
        looked_up = 0
        while not all(each.done() for each in heavy):
            assert impatient.client.get("/tables/state.customers/c7").json()["orders"] == 7
            looked_up += 1
        assert {each.result().status_code for each in heavy} == {408}
    assert looked_up > 20, "rows wait for nothing that the engines are at"


def test_a_statement_that_wants_too_much_memory_ends_alone(served: Served) -> None:
    answer = served.sql(HUNGRY)
    assert answer.status_code == 422, answer.text
    assert "its process has ended" in answer.json()["message"]
    assert served.sql("select 1 as one").json() == [{"one": 1}]


def test_an_engine_that_is_killed_is_started_again(served: Served) -> None:
    assert served.sql("select 1 as one").json() == [{"one": 1}]
    for pid in served.engines():
        os.kill(pid, signal.SIGKILL)
    # What is asked before its death is known is told of it.
    answers = [served.sql("select 1 as one") for _ in range(2)]
    assert [each.status_code for each in answers] in ([200, 200], [422, 200])
    assert answers[1].json() == [{"one": 1}]


def test_who_leaves_takes_the_statement_along(tmp_path: Path) -> None:
    with server(tmp_path, SqlLimits(running=1, seconds=600)) as served:
        with pytest.raises(httpx.ReadTimeout):
            served.client.post("/sql", content=HEAVY, timeout=1)
        assert served.sql("select 1 as one").json() == [{"one": 1}], "it need not wait for ten minutes"


def test_more_statements_than_may_wait_are_told_to_come_again(impatient: Served) -> None:
    gate = threading.Barrier(12)

    def ask() -> int:
        gate.wait()
        return impatient.sql(HEAVY).status_code

    with ThreadPoolExecutor(12) as clients:
        found = [each.result() for each in [clients.submit(ask) for _ in range(12)]]
    assert set(found) == {408, 503}
    assert found.count(503) == 12 - 2 - 4


async def test_settings_that_only_spark_follows_are_refused_each_time(tmp_path: Path) -> None:
    statements = Statements(Settings(warehouse=str(tmp_path), spark_conf={"spark.sql.ansi.enabled": "false"}))
    try:
        for _ in range(statements.limits.running + 1):
            with pytest.raises(RefusedStatementError, match="only Spark answers this: "):
                await asyncio.wait_for(statements.answer(Asked(statement="select 1"), asyncio.Event().wait), 30)
    finally:
        statements.close()
