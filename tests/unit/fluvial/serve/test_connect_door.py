"""`fluvial serve --connect-port`: what PySpark is told there, and what the process that tells it cannot do."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from keyed_history import PROTOCOL, KeyedHistory, customers
from serving import serving_beside

from fluvial.query import jail
from fluvial.serve.doors.connect import connect_door
from fluvial.serve.doors.door import DoorError

CLIENT = Path(__file__).with_name("connect_client.py")
WORKER = "fluvial.serve.doors.connect_worker"
# Of the file system, and datagrams of the internet.
OTHER_SOCKETS = ((socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM))
has_landlock = pytest.mark.skipif(not jail.is_possible(), reason="this kernel has no landlock")


@dataclass
class Served:
    """A running `fluvial serve`, where its doors are, and the table that it serves."""

    process: "subprocess.Popen[str]"
    http: str
    connect: str
    history: KeyedHistory

    def door(self) -> psutil.Process:
        """The process behind the port of Spark Connect."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        (door,) = [child for child in children if WORKER in child.cmdline()]
        return door


def words(history: KeyedHistory, *more: str) -> list[str]:
    return [sys.executable, "-m", "fluvial", "serve", "--warehouse", str(history.folder.parents[1]), *more]


def history_in(folder: Path) -> KeyedHistory:
    history = customers(folder / "warehouse")
    history.put([{"customer": f"k{at}", "orders": at, "spent": Decimal(at), "_fold": "{}"} for at in range(5)])
    return history


@contextmanager
def served(folder: Path, *more: str) -> Iterator[Served]:
    history = history_in(folder)
    warehouse = history.folder.parents[1]
    with serving_beside(folder, warehouse, "--connect-port", "0", *more, schemes=["sc"]) as (process, found):
        yield Served(process, found["http"], found["sc"], history)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("connect")) as server:
        yield server


def asked(url: str, *asked: dict[str, str]) -> list[Any]:
    """What a client of its own is answered."""
    done = subprocess.run(
        [sys.executable, str(CLIENT), url], input=json.dumps(asked), capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout))


def sql(text: str) -> dict[str, str]:
    return {"sql": text}


def python(expression: str) -> dict[str, str]:
    return {"python": expression}


def test_every_session_knows_the_tables_and_their_newest_version(server: Served) -> None:
    statement = "select * from state.customers order by customer"
    for spent in ("7.50", "8.50"):
        rows = [{"customer": "k0", "orders": 100, "spent": Decimal(spent), "_fold": "{}"}]
        server.history.put(rows)
        listed, rows = asked(server.connect, sql("show tables in state"), sql(statement))
        over_http = httpx.post(f"{server.http}/sql", content=statement, timeout=60)
        assert over_http.status_code == 200
        assert [{**row, "spent": float(row["spent"])} for row in rows] == over_http.json()
        assert rows[0] == {"customer": "k0", "orders": 100, "spent": spent}
        assert "customers" in [row["tableName"] for row in listed]


def test_a_table_that_is_made_later_is_known_with_its_types(server: Served) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int32()),
            pa.field("when", pa.timestamp("us", "UTC")),
            pa.field("day", pa.date32()),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("of", pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.map_(pa.string(), pa.float64()))])),
            pa.field("_parts", pa.binary()),
        ]
    )
    array = {"type": "array", "elementType": "string", "containsNull": True}
    by_name = {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}
    nested = {"type": "struct", "fields": [column("a", "long"), column("b", by_name)]}
    columns = [
        column("id", "integer"),
        column("when", "timestamp"),
        column("day", "date"),
        column("tags", array),
        column("of", nested),
        column("_parts", "binary"),
    ]
    name = "m" + os.urandom(4).hex()
    write_table(server.history.folder.parents[1] / "marts" / name, schema, columns)
    found, rows = asked(server.connect, {"columns": f"marts.{name}"}, sql(f"select * from marts.{name}"))
    assert [(each["name"], simple(each["type"])) for each in found] == [
        (each["name"], simple(each["type"])) for each in columns[:-1]
    ]
    assert rows[0]["of"] == {"a": 1, "b": {"x": 0.5}}
    assert rows[0]["tags"] == ["p"]
    assert "_parts" not in rows[0]


def test_what_is_not_there_is_said_and_nothing_is_made_or_changed(server: Served) -> None:
    answers = asked(
        server.connect,
        sql("select * from state.nobody"),
        sql("select * from nowhere.customers"),
        sql("create table state.mine as select 1 as a"),
        sql("drop view state.customers"),
        sql("create or replace temp view mine as select orders from state.customers"),
        sql("select count(*) as n from mine"),
    )
    assert "TABLE_OR_VIEW_NOT_FOUND" in answers[0]["error"]
    assert all("error" in each for each in answers[1:4])
    assert answers[5] == [{"n": 5}]


@has_landlock
def test_its_clients_reach_neither_other_files_nor_ports(server: Served, tmp_path: Path) -> None:
    secret, outside = tmp_path / "secret.txt", tmp_path / "made"
    secret.write_text("mine")
    warehouse, port = server.history.folder.parents[1], int(server.http.rpartition(":")[2])
    answers = asked(
        server.connect,
        *(sql(f"select * from text.`{path}`") for path in ("/etc/passwd", secret)),
        *(python(f"open({str(path)!r}).read()") for path in ("/etc/passwd", secret)),
        python(f"open({str(outside)!r}, 'w')"),
        python(f"open({str(warehouse / 'made')!r}, 'w')"),
        python("__import__('subprocess').run(['/bin/cat', '/etc/passwd'], capture_output=True).returncode"),
        python(f"__import__('socket').create_connection(('127.0.0.1', {port}))"),
        *(python(f"__import__('socket').socket({int(family)}, {int(kind)})") for family, kind in OTHER_SOCKETS),
        {"save": str(outside), "format": "parquet"},
        {"save": str(warehouse / "marts" / "made"), "format": "delta"},
    )
    assert all("Permission denied" in answer["error"] for answer in (*answers[:2], *answers[-2:])), answers
    assert all(answer.startswith("PermissionError") for answer in answers[2:6]), answers
    assert answers[6] == "1"
    ports = jail.knows_ports()
    assert answers[7].startswith("PermissionError") is ports, answers[7]
    assert all(answer.startswith("PermissionError") for answer in answers[8:-2]), answers
    assert not outside.exists()
    assert not (warehouse / "made").exists()
    assert not (warehouse / "marts" / "made").exists()


def test_without_walls_a_client_reads_any_file(tmp_path: Path) -> None:
    """What the walls are there for: it shows that what is refused above would have been done."""
    secret = tmp_path / "secret.txt"
    secret.write_text("mine")
    history = history_in(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    given = {"warehouse": str(history.folder.parents[1]), "scratch": str(tmp_path), "port": port, "confined": False}
    command = [sys.executable, "-P", "-m", WORKER, json.dumps({**given, "memory_bytes": 1 << 30})]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"network": False, "files": False}
            answers = asked(
                f"sc://127.0.0.1:{port}",
                sql(f"select * from text.`{secret}`"),
                python(f"open({str(secret)!r}).read()"),
                {"save": str(tmp_path / "made"), "format": "parquet"},
            )
        finally:
            process.kill()
    assert answers == [[{"value": "mine"}], "mine", "saved"]


def test_a_client_that_takes_too_much_memory_is_refused_it(server: Served) -> None:
    before = server.door().pid
    (said,) = asked(server.connect, python("len(bytearray(5 << 30))"))
    assert said.startswith("MemoryError")
    assert server.door().pid == before


def test_it_knows_nothing_of_the_servers_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUVIAL_SOMEBODYS_PASSWORD", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    with served(tmp_path) as server:
        (environment,) = asked(server.connect, python("dict(__import__('os').environ)"))
    assert "PATH" in environment
    assert "hush" not in environment


def test_it_listens_on_this_machine_alone_whatever_the_host_is(tmp_path: Path) -> None:
    with served(tmp_path, "--host", "0.0.0.0", "--allow-plaintext") as server:
        listening = [each for each in server.door().net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        assert {each.laddr.ip for each in listening} == {"127.0.0.1"}
        assert int(server.connect.rpartition(":")[2]) in {each.laddr.port for each in listening}


def test_one_that_dies_starts_again_on_its_port(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        server.door().kill()
        assert server.process.stdout is not None
        assert "it starts again" in server.process.stdout.readline()
        await_answer(server.connect)
        assert asked(server.connect, sql("select count(*) as n from state.customers")) == [[{"n": 5}]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_server(tmp_path: Path, number: int) -> None:
    with served(tmp_path) as server:
        door = server.door()
        server.process.send_signal(number)
        server.process.wait(60)
        door.wait(60)
        if number == signal.SIGTERM:
            assert server.process.returncode == 0


def test_a_port_that_is_taken_is_said_in_a_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = words(history_in(tmp_path), "--port", "0", "--connect-port", str(port))
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line == f"error: 127.0.0.1:{port}: Address already in use; choose another --connect-port"


def test_a_kernel_without_landlock_is_said_and_has_to_be_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail, "is_possible", lambda: False)
    with pytest.raises(DoorError, match=r"no landlock .*--allow-unconfined") as raised:
        connect_door(str(tmp_path), 0, allow_unconfined=False)
    assert "\n" not in str(raised.value)
    door = connect_door(str(tmp_path), 0, allow_unconfined=True)
    assert door.given["confined"] is False
    assert "warning" in door.told({"files": False, "network": False})


def await_answer(url: str) -> None:
    """Return when something listens there."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    for _ in range(600):
        with suppress(OSError), socket.create_connection(address, timeout=5):
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens at {url}")


def column(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def simple(kind: Any) -> Any:
    """A type without what its fields have beside their names and types."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return [(each["name"], simple(each["type"])) for each in kind["fields"]]
    return {key: simple(kind[key]) for key in sorted(kind) if key in ("type", "elementType", "keyType", "valueType")}


def write_table(folder: Path, schema: pa.Schema, columns: Sequence[dict[str, Any]]) -> None:
    """A table of one row, as a run makes it."""
    (folder / "_delta_log").mkdir(parents=True)
    row = {"id": 1, "when": 0, "day": 0, "tags": ["p"], "of": {"a": 1, "b": [("x", 0.5)]}, "_parts": b"\0"}
    pq.write_table(pa.Table.from_pylist([row], schema), folder / "part.parquet")
    metadata = {
        "id": "1", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [], "configuration": {},
        "schemaString": json.dumps({"type": "struct", "fields": columns}), "createdTime": 0,
    }  # fmt: skip
    size = (folder / "part.parquet").stat().st_size
    added = {"path": "part.parquet", "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    actions = [{"protocol": PROTOCOL}, {"metaData": metadata}, {"add": added}]
    text = "".join(f"{json.dumps(each)}\n" for each in actions)
    (folder / "_delta_log" / f"{0:020d}.json").write_text(text)
