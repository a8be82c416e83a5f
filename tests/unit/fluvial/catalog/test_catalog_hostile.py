"""What answers where Unity Catalog should: nothing, something else, too much, too slowly. Each is one line, in time."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from hand_written_table import HandWrittenTable

from fluvial.catalog import rest
from fluvial.catalog.entry import Entry, entry_of, sql_type
from fluvial.catalog.errors import CatalogError
from fluvial.catalog.registrar import Registrar
from fluvial.catalog.settings import catalog_settings
from fluvial.catalog.unity import UnityCatalog
from fluvial.config import Settings
from fluvial.orchestration.run.spark_resource import SparkResource
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import history
from fluvial.tables.plan.result import RunResult

ENTRY = Entry(table="state.customers", location="file:///nowhere", columns=())
Reply = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(reply: Reply) -> Iterator[str]:
    """A server that answers whatever it is asked by `reply`."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            reply(self)

        def do_POST(self) -> None:
            reply(self)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def says(status: int, body: bytes, kind: str = "application/json", **headers: str) -> Reply:
    def reply(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    return reply


def unity(url: str) -> UnityCatalog:
    settings = catalog_settings(Path("none"), {"catalog": {"unity": url}}, {})
    assert settings is not None
    return UnityCatalog(settings)


def error_of(reply: Reply) -> CatalogError:
    with answering(reply) as url, pytest.raises(CatalogError) as raised:
        unity(url).register(ENTRY)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1000
    return raised.value


@pytest.mark.parametrize(
    "reply",
    [
        says(200, b"<html>Welcome</html>", "text/html"),
        says(404, b"<html>Not here</html>", "text/html"),
        says(500, b"Internal Server Error", "text/plain"),
        says(302, b"", Location="http://127.0.0.1:1/"),
        says(200, b"[1, 2]"),
        says(200, b"[" * 100_000),
        says(404, b'{"error_code": 7}'),
        says(200, b"\x1f\x8b\x00", **{"Content-Encoding": "gzip"}),
    ],
    ids=["page", "page-404", "500", "redirect", "list", "deep", "code", "gzip"],
)
def test_what_is_no_unity_catalog_is_called_so(reply: Reply) -> None:
    error = error_of(reply)
    assert "does not answer as Unity Catalog does: GET /tables/fluvial.state.customers was answered by HTTP" in str(
        error
    )
    assert error.is_away


def test_what_a_server_says_is_shown_in_short_and_without_control_characters() -> None:
    said = {"error_code": "INTERNAL", "message": "\x1b[2J bad\n" + "x" * 100_000}
    error = error_of(says(500, json.dumps(said).encode()))
    assert "refuses GET /tables/fluvial.state.customers: [2J bad xxx" in str(error)
    assert "\x1b" not in str(error)


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    def reply(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while True:
                request.wfile.write(b"x" * 1_000_000)
        except OSError:
            pass

    assert "an answer of more than 16 MiB" in str(error_of(reply))


def test_an_answer_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "ANSWER_SECONDS", 0.5)
    ended = threading.Event()

    def reply(request: BaseHTTPRequestHandler) -> None:
        # Headers that go on and on: each byte comes in time.
        try:
            request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not ended.wait(0.02):
                request.wfile.write(b"x")
        except OSError:
            pass

    try:
        assert "no whole answer within 0.5 s" in str(error_of(reply))
    finally:
        ended.set()


def result(version: int) -> RunResult:
    return RunResult(table="history.orders", kind="history", skipped=False, version_before=None, version_after=version)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_runs_say_once_that_a_catalog_is_away_and_register_when_it_is_back(tmp_path: Path) -> None:
    HandWrittenTable(tmp_path / "history" / "orders", {"customer": pa.string()}).commit([("ada",)])
    asked: list[str] = []

    def reply(request: BaseHTTPRequestHandler) -> None:
        asked.append(f"{request.command} {request.path}")
        gone = says(404, b'{"error_code": "TABLE_NOT_FOUND"}')
        (gone if request.command == "GET" else says(200, b"{}"))(request)

    said: list[str] = []
    orders = history("orders", name="orders")
    away = catalog_settings(Path("none"), {"catalog": {"unity": f"http://127.0.0.1:{closed_port()}"}}, {})
    registered = Registrar.of(Settings(data_dir=tmp_path / "data", warehouse=str(tmp_path), catalog=away))
    assert registered is not None
    for _ in range(3):
        registered.after(orders, result(0), None, said.append)
        registered._not_before = 0.0  # a minute is over
    registered.after(orders, result(0), None, said.append)
    (line,) = said
    assert "does not answer" in line
    assert line.endswith("the next run tries again, and so does `fluvial table register`")

    with answering(reply) as url:
        registered._catalog = unity(url)
        # Not before a minute is over.
        registered.after(orders, result(0), None, said.append)
        assert asked == []
        registered._not_before = 0.0
        registered.after(orders, result(0), None, said.append)
        assert asked[-1] == "POST /api/2.1/unity-catalog/tables"
        # A commit that says nothing of the columns is nothing to tell.
        before = len(asked)
        registered.after(orders, result(0), None, said.append)
        assert len(asked) == before
    assert len(said) == 1


def test_a_run_of_dagster_tells_the_catalog_and_goes_on_without_it(tmp_path: Path) -> None:
    HandWrittenTable(tmp_path / "history" / "orders", {"customer": pa.string()}).commit([("ada",)])
    away = catalog_settings(Path("none"), {"catalog": {"unity": f"http://127.0.0.1:{closed_port()}"}}, {})
    settings, said = Settings(data_dir=tmp_path / "data", warehouse=str(tmp_path), catalog=away), list[str]()
    made = SparkResource.of(settings)
    made.register(history("orders", name="orders"), result(0), said.append)
    assert [line.partition(":")[0] for line in said] == ["tables are not registered"]


def test_columns_are_told_in_the_words_of_sql(tmp_path: Path) -> None:
    inner = {"name": "a b", "type": "long", "nullable": True, "metadata": {}}
    of_map = {"type": "map", "keyType": "string", "valueType": {"type": "struct", "fields": [inner]}}
    assert sql_type({"type": "array", "elementType": of_map}) == "array<map<string,struct<`a b`:bigint>>>"
    assert [sql_type(each) for each in ("byte", "short", "integer", "decimal(10,2)", "timestamp_ntz")] == [
        "tinyint",
        "smallint",
        "int",
        "decimal(10,2)",
        "timestamp_ntz",
    ]
    folder = tmp_path / "a b"
    HandWrittenTable(folder / "state" / "x", {"n": pa.int64()}).commit([(1,)])
    entry = entry_of(Warehouse.at(str(folder)), "state.x", None)
    assert entry is not None
    assert entry.location == (folder / "state" / "x").as_uri()
    assert [(each.name, each.sql_type) for each in entry.columns] == [("n", "bigint")]
    assert entry_of(Warehouse.at(str(folder)), "state.y", None) is None
