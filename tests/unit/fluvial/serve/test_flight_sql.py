"""Arrow Flight SQL of `fluvial serve`, by ADBC's driver and by hand: what `POST /sql` answers, and what it refuses."""

import datetime as dt
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pyarrow as pa
import pytest
from certificates import Authority
from free_ports import free_port
from keyed_history import KeyedHistory, customers
from secured_broker import PASSWORDS, secured_broker
from serving import serving

from fluvial.config import Settings
from fluvial.serve.sql import SqlLimits, Statements
from fluvial.serve.warehouse import ServedWarehouse

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")
dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")

from pyarrow import flight  # noqa: E402

from fluvial.serve.flight_sql import calls  # noqa: E402
from fluvial.serve.flight_sql.messages import message, packed, unpacked  # noqa: E402

HEAVY = (
    "select count(*) from (select explode(sequence(1, 1000000)) a) cross join (select explode(sequence(1, 1000000)) b)"
)
LONG = "select repeat('x', 1000) s from (select explode(sequence(1, 15000)))"


def taking_little(url: str) -> flight.FlightClient:
    """A client that takes little more than is read of it, where another comes to take all of LONG on this machine."""
    return flight.connect(url, generic_options=[("grpc.http2.bdp_probe", 0)])


class Served:
    """A warehouse with a state and a mart, a client of its HTTP, and where Flight listens."""

    def __init__(self, client: httpx.Client, port: int) -> None:
        self.client = client
        self.url = f"grpc://127.0.0.1:{port}"

    def connect(self, **options: Any) -> Any:
        return dbapi.connect(self.url, autocommit=True, **options)

    def ask(
        self, statement: str, parameters: Any = None, headers: Mapping[str, str] = MappingProxyType({})
    ) -> pa.Table:
        options = {f"adbc.flight.sql.rpc.call_header.{name}": value for name, value in headers.items()}
        with self.connect(db_kwargs=options) as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetch_arrow_table()

    def rows(self, statement: str, parameters: Any = None) -> list[Any]:
        return self.ask(statement, parameters).to_pylist()

    def get(self, name: str, **fields: Any) -> list[Any]:
        """The answer to a command, by hand."""
        with flight.connect(self.url) as client:
            info = client.get_flight_info(flight.FlightDescriptor.for_command(packed(name, **fields)))
            table = client.do_get(info.endpoints[0].ticket).read_all()
            assert info.schema in ([None] if name == "CommandPreparedStatementQuery" else [table.schema])
            return list(table.to_pylist())

    def prepared(self, statement: str) -> Any:
        body = packed("ActionCreatePreparedStatementRequest", query=statement)
        with flight.connect(self.url) as client:
            (result,) = client.do_action(flight.Action("CreatePreparedStatement", body))
        return unpacked(result.body.to_pybytes())[1]


@contextmanager
def server(folder: Path, limits: SqlLimits) -> Iterator[Served]:
    history = customers(folder)
    history.put([{"customer": f"c{n}", "orders": n, "spent": Decimal(n) / 4, "_fold": "{}"} for n in range(100)])
    keys = {"marts.days": ["city", "day"]}
    days = {"city": pa.string(), "day": pa.date32(), "at": pa.timestamp("us", "UTC")}
    mart = KeyedHistory(folder / "marts" / "days", days, keys["marts.days"])
    for city in ("Bern", "Basel"):
        mart.put([{"city": city, "day": dt.date(2026, 3, 1), "at": dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)}])
    ports: list[int] = []
    with serving(
        ServedWarehouse(str(folder), keys=keys),
        preload=["state.customers"],
        statements=lambda: Statements(Settings(warehouse=str(folder)), limits=limits),
        flight_started=ports.append,
    ) as client:
        yield Served(client, ports[0])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with server(tmp_path_factory.mktemp("warehouse"), SqlLimits(answer_bytes=20_000)) as found:
        yield found


@pytest.mark.parametrize(
    "statement",
    [
        "select * from state.customers order by orders",
        "select orders, spent from state.customers where customer like 'c1%' order by orders limit 3",
        "select * from marts.days",
        "select count(*) n, sum(spent) spent from state.customers version as of 0",
        "select array(1, null) a, map('x', 1.5) m, struct(1 as f, 'g' as g) s, cast(null as date) d",
        "select * from state.customers where false",
    ],
)
def test_an_answer_is_that_of_sql_over_http(served: Served, statement: str) -> None:
    answer = served.client.post("/sql", content=statement, params={"format": "arrow-stream"})
    expected = pa.ipc.open_stream(answer.content).read_all()
    found = served.ask(statement)
    assert found.to_pylist() == expected.to_pylist()
    assert [(each.name, str(each.type).replace(" not null", "")) for each in found.schema] == [
        (each.name, str(each.type).replace(" not null", "")) for each in expected.schema
    ]


def test_a_table_may_be_named_with_sparks_catalog(served: Served) -> None:
    statement = "select orders from spark_catalog.state.customers where customer = 'c7'"
    assert served.rows(statement) == [{"orders": 7}]
    assert served.client.post("/sql", content=statement).json() == [{"orders": 7}]


@pytest.mark.parametrize(
    "statement",
    [
        "select * from text.`/etc/passwd`",
        "select * from delta.`/etc`",
        "select * from other_catalog.state.customers",
        "select reflect('a', 'b')",
        "drop table state.customers",
        "insert into state.customers select 1",
        "select nothing from state.customers",
        "select * from state.nothing",
        "select rand()",
        "select repeat('x', 30000)",
        "select ?",
        "select 1; select 2",
        "   ",
        "select '" + "x" * 20_000 + "'",
    ],
)
def test_what_http_refuses_is_refused_with_its_words(served: Served, statement: str) -> None:
    said = served.client.post("/sql", content=statement).json()["message"]
    with pytest.raises(dbapi.Error) as refused:
        served.ask(statement)
    assert "\n" not in str(refused.value)
    if statement.strip() and len(statement) < 20_000:
        assert said in str(refused.value)
    assert served.rows("select 1 as one") == [{"one": 1}]


def test_parameters_are_bound_by_their_order_or_their_names(served: Served) -> None:
    statement = "select orders from state.customers where customer = :who and orders < :n limit :most"
    assert served.rows(statement, ["c7", 8, 1]) == [{"orders": 7}]
    assert served.rows(statement, ["' or true --", 8, 1]) == []
    assert served.rows(statement, pa.record_batch({"N": [8], "most": [1], "who": ["c7"]})) == [{"orders": 7}]
    for wrong, says in ((["c7"], "3 parameters (:name), and 1 values"), ([b"x", 1, [2]], "of a type that none has")):
        with pytest.raises(dbapi.Error, match=re.escape(says)):
            served.ask(statement, wrong)
    with pytest.raises(dbapi.Error, match=":who has no value"):
        served.ask(statement)


def test_a_prepared_statement_is_asked_again_with_other_values(served: Served) -> None:
    with served.connect() as connection, connection.cursor() as cursor:
        schema = cursor.adbc_prepare("select orders from state.customers where customer = :who")
        assert schema is not None
        assert schema.names == ["who"]
        for n in (3, 4, 5):
            cursor.execute("select orders from state.customers where customer = :who", [f"c{n}"])
            assert cursor.fetchall() == [(n,)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -7,
        1 << 40,
        1.5,
        Decimal("-0.005"),
        Decimal("12345678901234567890.12"),
        "it's \\ \n ẞ",
        b"\x00\xff",
        dt.date(2026, 3, 1),
        dt.datetime(2026, 3, 1, 12, 30, 1, 5),
        dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC),
    ],
)
def test_a_value_comes_back_as_it_was_bound(served: Served, value: Any) -> None:
    (row,) = served.rows("select :value as v", pa.record_batch([pa.array([value])], ["value"]))
    assert row == {"v": value}


def test_tables_are_listed_as_over_http(served: Served) -> None:
    with served.connect() as connection:
        (catalog,) = connection.adbc_get_objects(depth="all").read_all().to_pylist()
        assert catalog["catalog_name"] == "spark_catalog"
        found = {
            f"{database['db_schema_name']}.{table['table_name']}": [
                each["column_name"] for each in table["table_columns"]
            ]
            for database in catalog["catalog_db_schemas"]
            for table in database["db_schema_tables"]
        }
        assert [*found] == served.client.get("/tables").json()["tables"]
        assert found["state.customers"] == ["customer", "orders", "spent"]
        assert connection.adbc_get_table_schema("customers", db_schema_filter="state") == pa.schema(
            {"customer": pa.string(), "orders": pa.int64(), "spent": pa.decimal128(10, 2)}
        )
        assert connection.adbc_get_table_types() == ["TABLE"]
        assert connection.adbc_get_info()["vendor_name"] == "fluvial"


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["days", "customers"]),
        ({"table_name_filter_pattern": "c_st%"}, ["customers"]),
        ({"table_name_filter_pattern": "%.*"}, []),
        ({"table_name_filter_pattern": "%a" * 400}, []),
        ({"db_schema_filter_pattern": "mart_"}, ["days"]),
        ({"db_schema_filter_pattern": "mart\\_"}, []),
        ({"catalog": "spark_catalog", "table_types": ["TABLE", "VIEW"]}, ["days", "customers"]),
        ({"catalog": ""}, []),
        ({"table_types": ["VIEW"]}, []),
    ],
)
def test_tables_are_looked_for_by_patterns(served: Served, fields: dict[str, Any], names: list[str]) -> None:
    assert [each["table_name"] for each in served.get("CommandGetTables", **fields)] == names


def test_keys_and_what_there_is_none_of_are_told(served: Served) -> None:
    keys = served.get("CommandGetPrimaryKeys", db_schema="marts", table="days")
    assert [(each["column_name"], each["key_sequence"]) for each in keys] == [("city", 1), ("day", 2)]
    assert served.get("CommandGetPrimaryKeys", table="nothing") == []
    assert served.get("CommandGetImportedKeys", table="days") == []
    assert served.get("CommandGetXdbcTypeInfo") == []
    assert served.get("CommandGetCatalogs") == [{"catalog_name": "spark_catalog"}]
    assert [each["db_schema_name"] for each in served.get("CommandGetDbSchemas")] == ["marts", "state"]
    assert served.get("CommandGetSqlInfo", info=[3, 77_777]) == [{"info_name": 3, "value": True}]


def test_what_changes_something_is_refused(served: Served) -> None:
    with served.connect() as connection, connection.cursor() as cursor:
        for change in (
            lambda: cursor.adbc_ingest("mine", pa.table({"a": [1]})),
            lambda: cursor.executemany("select :x", [[1], [2]]),
            lambda: cursor.execute("select :x", pa.record_batch({"x": [1, 2]})),
        ):
            with pytest.raises(dbapi.Error):
                change()
    query = {"query": "select 1", "transaction_id": b"t"}
    with pytest.raises(flight.FlightServerError, match="no transactions"):
        served.get("CommandStatementQuery", **query)
    with flight.connect(served.url) as client:
        for action in ("BeginTransaction", "CancelFlightInfo", "x" * 5_000):
            with pytest.raises(flight.FlightServerError, match="is not let through"):
                list(client.do_action(flight.Action(action, b"")))
        assert {each.type for each in client.list_actions()} == {"CreatePreparedStatement", "ClosePreparedStatement"}
    assert served.client.get("/tables").json()["tables"] == ["marts.days", "state.customers"]


WRAPPED = b"\n\x3dtype.googleapis.com/arrow.flight.protocol.sql.CommandStatement"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 100,
        b"{}",
        WRAPPED,
        packed("CommandStatementQuery", query="select 1")[:-3],
        packed("CommandStatementQuery", query="select 1") + b"\xff\xff\xff\xff\xff",
        packed("ActionClosePreparedStatementRequest"),
        packed("CommandPreparedStatementQuery", prepared_statement_handle=b"\xff"),
        packed("CommandPreparedStatementQuery", prepared_statement_handle=b"[" * 100_000),
        packed("TicketStatementQuery", statement_handle=b'{"sql": 1, "literals": {}}'),
        packed("TicketStatementQuery", statement_handle=b'{"sql": "select 1", "literals": 7}'),
        packed("TicketStatementQuery", statement_handle=b'{"sql": "drop table state.customers", "literals": {}}'),
        packed("CommandGetTables", table_name_filter_pattern="%" * 2_000),
        packed("CommandStatementQuery", query="select " + ":a," * 6_000 + "1"),
        packed("CommandStatementQuery", query="x" * 2_000_000),
    ],
)
def test_commands_and_tickets_that_mean_nothing_are_refused_in_a_line(served: Served, body: bytes) -> None:
    with flight.connect(served.url) as client:
        descriptor = flight.FlightDescriptor.for_command(body)
        with pytest.raises(flight.FlightServerError) as refused:
            client.do_get(flight.Ticket(body)).read_all()
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 500
        if b"GetTables" not in body:  # whose columns do not depend on what it asks for
            with pytest.raises(flight.FlightServerError, match=r"^[^\n]{,500}$"):
                client.get_flight_info(descriptor)
            # pyarrow tells more of what is raised here, after the line.
            with pytest.raises(pa.ArrowException):
                client.get_schema(descriptor)
        with pytest.raises(flight.FlightServerError):
            client.get_flight_info(flight.FlightDescriptor.for_path("state", "customers"))
    assert served.rows("select 1 as one") == [{"one": 1}]


def test_a_handle_is_kept_nowhere_and_stays_a_statement(served: Served) -> None:
    made = served.prepared("select orders from state.customers where customer = 'c7'")
    assert pa.ipc.read_schema(pa.py_buffer(made.dataset_schema)).names == ["orders"]
    with flight.connect(served.url) as client:
        body = packed("ActionClosePreparedStatementRequest", prepared_statement_handle=made.prepared_statement_handle)
        assert list(client.do_action(flight.Action("ClosePreparedStatement", body))) == []
    handle = {"prepared_statement_handle": made.prepared_statement_handle}
    assert served.get("CommandPreparedStatementQuery", **handle) == [{"orders": 7}]


def test_values_that_would_make_a_statement_huge_are_refused(served: Served) -> None:
    statement = f"select {', '.join([':a'] * 4_000)}"
    handle = json.dumps({"sql": statement, "literals": {"a": f"'{'x' * 500_000}'"}}).encode()
    with pytest.raises(flight.FlightServerError, match="more than 20,000 characters"):
        served.get("CommandPreparedStatementQuery", prepared_statement_handle=handle)
    answer = served.client.post("/sql", json={"sql": statement, "params": {"a": "x" * 500_000}})
    assert (answer.status_code, "more than 20,000 characters" in answer.text) == (400, True)


def test_bound_values_come_as_one_row_of_one_batch(served: Served) -> None:
    made = served.prepared("select :x as x")
    command = packed("CommandPreparedStatementQuery", prepared_statement_handle=made.prepared_statement_handle)
    with flight.connect(served.url) as client:
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = client.do_put(descriptor, pa.schema({"x": pa.int64()}))
        writer.write_batch(pa.record_batch({"x": [5]}))
        writer.done_writing()
        result = type(message("DoPutPreparedStatementResult")).FromString(reader.read().to_pybytes())
        writer.close()
        writer, _ = client.do_put(descriptor, pa.schema({"x": pa.int64()}))
        with pytest.raises(flight.FlightServerError, match="one row"):
            writer.close()
    handle = {"prepared_statement_handle": result.prepared_statement_handle}
    assert served.get("CommandPreparedStatementQuery", **handle) == [{"x": 5}]


def test_who_hangs_up_takes_the_statement_along(tmp_path: Path) -> None:
    with server(tmp_path, SqlLimits(running=1, seconds=600)) as served, flight.connect(served.url) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=HEAVY)))
        with pytest.raises(flight.FlightTimedOutError):
            client.do_get(info.endpoints[0].ticket, flight.FlightCallOptions(timeout=1)).read_all()
        assert served.rows("select 1 as one") == [{"one": 1}], "it need not wait for ten minutes"


def test_what_takes_too_long_is_told_so(tmp_path: Path) -> None:
    with server(tmp_path, SqlLimits(seconds=3)) as served:
        served.rows("select 1 as one")
        with pytest.raises(dbapi.Error, match="cancelled after 3 s"):
            served.ask(HEAVY)


def test_headers_say_as_of_when_tables_are_read(served: Served) -> None:
    statement = "select count(*) n from marts.days where city <> :x"
    for headers, n in (({}, 2), ({"fluvial-at": "orders:0=9"}, 1), ({"fluvial-at": "orders:0=19"}, 2)):
        assert served.ask(statement.replace(":x", "''"), headers=headers).to_pylist() == [{"n": n}]
        assert served.ask(statement, ["Genf"], headers).to_pylist() == [{"n": n}]
    for headers, says in (
        ({"fluvial-at": "orders"}, "fluvial-at"),
        ({"fluvial-fresh": "perhaps"}, "is 1 or 0"),
        ({"fluvial-fresh": "1"}, "does not read what the log holds"),
        ({"fluvial-fresh-at-least": "orders:0=9"}, "does not read what the log holds"),
        ({"fluvial-fresh": "1", "fluvial-at": "orders:0=9"}, "not both"),
    ):
        with pytest.raises(dbapi.Error, match=says):
            served.ask("select * from marts.days", headers=headers)


def test_answers_that_nobody_reads_leave_no_room_until_they_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CALLS_MAX", 2)
    with server(tmp_path, SqlLimits()) as served, taking_little(served.url) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=LONG)))
        unread = [client.do_get(info.endpoints[0].ticket) for _ in range(2)]
        for stream in unread:
            assert stream.read_chunk().data.num_rows > 0
        with pytest.raises(flight.FlightUnavailableError, match="try again"):
            served.get("CommandStatementQuery", query="select 1 as one")
        unread[0].cancel()
        unread[1].read_all()
        for _ in range(2):
            assert until_there_is_room(served) == [{"one": 1}]


def until_there_is_room(served: Served) -> list[Any]:
    deadline = time.monotonic() + 60
    while True:
        try:
            return served.get("CommandStatementQuery", query="select 1 as one")
        except flight.FlightUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_answers_are_counted(served: Served) -> None:
    served.rows("select 1 as one")
    with pytest.raises(dbapi.Error):
        served.ask("select repeat('x', 30000)")
    text = served.client.get("/metrics").text
    assert re.search(r'^fluvial_serve_requests_total{status="200",what="flight"} [1-9]', text, re.MULTILINE)
    assert re.search(r'^fluvial_serve_requests_total{status="413",what="flight"} [1-9]', text, re.MULTILINE)


@contextmanager
def started(folder: Path, *more: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The process of a server that takes Flight SQL, and where."""
    history = customers(folder)
    history.put([{"customer": f"k{at}", "orders": at, "spent": Decimal(at), "_fold": "{}"} for at in range(10)])
    words = ("state.customers", "--warehouse", str(folder), "--port", str(free_port()))
    command = [sys.executable, "-m", "fluvial", "serve", *words]
    with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            url = ""
            assert process.stdout is not None
            for line in process.stdout:
                found = re.search(r"grpc\S*://[\d.]+:\d+", line)
                url = found[0] if found else url
                if line.startswith("ready: state.customers"):
                    break
            yield url, process
        finally:
            process.kill()


def test_without_its_port_nothing_of_flight_is_loaded(tmp_path: Path) -> None:
    with started(tmp_path / "warehouse") as (url, process):
        assert url == ""
        assert "flight" not in Path(f"/proc/{process.pid}/maps").read_text()


def test_a_signal_ends_it_though_an_answer_is_not_read(tmp_path: Path) -> None:
    with started(tmp_path / "warehouse", "--flight-port", "0") as (url, process), taking_little(url) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=LONG)))
        unread = client.do_get(info.endpoints[0].ticket)
        assert unread.read_chunk().data.num_rows > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""
        unread.cancel()


def test_a_port_that_is_taken_is_told_in_a_line(tmp_path: Path) -> None:
    history = customers(tmp_path)
    history.put([{"customer": "ada", "orders": 1, "spent": Decimal(1), "_fold": "{}"}])
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "fluvial", "serve", "--warehouse", str(tmp_path), "--port", "0"]
        done = subprocess.run(
            [*command, "--flight-port", str(port)], capture_output=True, text=True, timeout=100, check=False
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"127.0.0.1:{port}: Address already in use; choose another --flight-port" in line


def test_others_than_this_machine_are_asked_who_they_are(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = str(authority.issue("server"))
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=ada\nsasl.password=ada's\n"
    )
    root = {"adbc.flight.sql.client_option.tls_root_certs": authority.path.read_text()}

    def ask(url: str, name: str | None, password: str = "") -> list[Any]:
        options = root if name is None else root | {"username": name, "password": password}
        with dbapi.connect(url, autocommit=True, db_kwargs=options) as connection, connection.cursor() as cursor:
            cursor.execute("select orders from state.customers where customer = 'k7'")
            return list(cursor.fetchall())

    with secured_broker() as (broker, _):
        others = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(properties))
        more = ("--flight-port", "0", "--certificate", certificate, *others)
        with started(tmp_path / "warehouse", *more) as (url, _):
            assert url.startswith("grpc+tls://")
            for name, password in ((None, ""), ("ada", "bob's"), ("nobody", "x")):
                with pytest.raises(dbapi.Error, match="a user of the cluster and its password are asked for"):
                    ask(url, name, password)
            with pytest.raises(dbapi.Error, match="bob may not DESCRIBE the cluster"):
                ask(url, "bob", PASSWORDS["bob"])
            for name in ("ada", "eye"):
                assert ask(url, name, PASSWORDS[name]) == [(7,)]
            with pytest.raises(dbapi.Error):
                ask(url.replace("+tls", ""), "ada", PASSWORDS["ada"])
