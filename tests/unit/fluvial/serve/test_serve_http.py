"""The HTTP interface of `fluvial serve` over sockets: rows, versions, waiting, events, and what is refused."""

import json
import random
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest
from keyed_history import KeyedHistory, Row, customers, go_on
from serving import serving

from fluvial.serve.service import Limits
from fluvial.serve.warehouse import ServedWarehouse

NAMES = ["ada", "bob", "cyd", "a/b", "ẞ", "..", "a?b#c", "100%", "", "x" * 300]
URL = "/tables/state.customers"


def row(customer: str, number: int) -> Row:
    return {"customer": customer, "orders": number, "spent": Decimal(number) / 4, "_fold": "{}"}


def in_json(found: Row | None) -> Any:
    if found is None:
        return None
    return {"customer": found["customer"], "orders": found["orders"], "spent": float(found["spent"])}


class Served:
    """A table, and a client of its server."""

    def __init__(self, history: KeyedHistory, client: httpx.Client) -> None:
        self.history = history
        self.client = client

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def newest(self, path: str) -> httpx.Response:
        """Ask for the version that was committed last."""
        return self.get(f"{path}{'&' if '?' in path else '?'}wait_version={self.history.newest}")

    def batch(self, **body: Any) -> httpx.Response:
        return self.client.post(f"{URL}:batch", json=body)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("warehouse")
    history = customers(folder)
    history.put([row(name, 0) for name in NAMES])
    keys = {"marts.days": ["city", "day"]}
    days = KeyedHistory(
        folder / "marts" / "days", {"city": pa.string(), "day": pa.date32(), "n": pa.int64()}, keys["marts.days"]
    )
    day = pa.scalar(19_000, pa.date32()).as_py()
    days.put([{"city": "Bern/Ost", "day": day, "n": 1}, {"city": "Bern", "day": day, "n": 2}])
    limits = Limits(keys=50, request_bytes=20_000, answer_bytes=10_000, wait_seconds=20, watchers=2)
    warehouse = ServedWarehouse(str(folder), keys=keys)
    with serving(warehouse, preload=["state.customers"], limits=limits) as client:
        yield Served(history, client)


def test_a_row_is_found_by_its_key(served: Served) -> None:
    served.history.put([row("ada", 7)], gone=["nobody"])
    answer = served.newest(f"{URL}/ada")
    assert answer.status_code == 200
    assert answer.json() == {"customer": "ada", "orders": 7, "spent": 1.75}
    assert '"spent": 1.75' in answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["fluvial-version"] == str(served.history.newest)
    assert served.get(f"{URL}/ada?columns=orders,_fold").json() == {"orders": 7, "_fold": "{}"}
    missing = served.get(f"{URL}/nobody")
    assert missing.status_code == 404
    assert missing.json()["error_code"] == 40403
    assert missing.headers["fluvial-version"] == str(served.history.newest)


def test_keys_of_any_characters_are_sent_escaped(served: Served) -> None:
    served.history.put([row(name, 3) for name in NAMES])
    for name in NAMES:
        # Clients take a bare `..` for the folder above.
        escaped = quote(name, safe="").replace(".", "%2E")
        answer = served.newest(f"{URL}/{escaped}")
        assert answer.json()["customer"] == name
    assert served.get(f"{URL}/a/b").json()["customer"] == "a/b"
    assert served.get("/tables/marts.days/Bern%2FOst/2022-01-08").json()["n"] == 1
    assert served.get("/tables/marts.days/Bern/2022-01-08").json()["n"] == 2


def test_rows_are_those_of_a_dict_over_a_random_history(served: Served) -> None:
    dice = random.Random(11)
    for _ in range(20):
        go_on(served.history, dice, NAMES, row)
        held = served.history.versions[-1]
        keys = dice.sample([*NAMES, "nobody"], 6)
        answer = served.batch(keys=keys, wait_version=served.history.newest).json()
        assert answer["version"] == served.history.newest
        assert answer["rows"] == [in_json(held.get(key)) for key in keys]
    version = dice.randrange(served.history.newest)
    held = served.history.versions[version]
    answer = served.batch(keys=[[name] for name in NAMES], version=version).json()
    assert (answer["version"], answer["rows"]) == (version, [in_json(held.get(name)) for name in NAMES])


def test_earlier_versions_are_read_by_number_and_by_offset(served: Served) -> None:
    for number in (100, 200):
        served.history.put([row("ada", number)])
    second = served.history.newest
    first = second - 1
    assert served.newest(f"{URL}/ada").json()["orders"] == 200
    assert served.get(f"{URL}/ada?version={first}").json()["orders"] == 100
    answer = served.get(f"{URL}/ada?at=orders:0={10 * first + 9}")
    assert (answer.json()["orders"], answer.headers["fluvial-version"]) == (100, str(first))
    between = served.get(f"{URL}/ada?at=orders:0={10 * first + 5}")
    assert between.status_code == 404
    assert f"version {first} " in between.json()["message"]
    assert served.get(f"{URL}/ada?version=100000").json()["error_code"] == 40402


def test_who_has_a_version_is_told_that_there_is_no_other(served: Served) -> None:
    answer = served.newest(f"{URL}/bob")
    tag = answer.headers["etag"]
    again = served.get(f"{URL}/bob", if_none_match=f'"x", W/{tag}')
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    served.history.put([row("bob", 5)])
    changed = served.client.get(f"{URL}/bob?wait_version={served.history.newest}", headers={"if-none-match": tag})
    assert changed.json()["orders"] == 5


def test_a_later_version_is_waited_for(served: Served) -> None:
    wanted = served.history.newest + 1
    found: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: found.append(served.get(f"{URL}/cyd?wait_version={wanted}")))
    waiting.start()
    served.history.put([row("cyd", 77)])
    waiting.join()
    assert found[0].json()["orders"] == 77
    late = served.get(f"{URL}/cyd?wait_version={wanted + 1000}&wait=0")
    assert late.status_code == 404
    assert f"the newest is {wanted}" in late.json()["message"]


def test_changes_of_a_row_come_as_events(served: Served) -> None:
    served.history.put([row("eve", 1)])
    served.newest(f"{URL}/eve")
    with served.client.stream("GET", f"{URL}/eve?columns=orders", headers={"accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        assert stream.headers["content-type"].startswith("text/event-stream")
        first = event(lines)
        assert first[1:] == ("row", {"orders": 1})
        # Neither another row's change nor a compaction is one of this row.
        served.history.put([row("ada", 9)])
        served.history.compact()
        served.history.put([row("eve", 2)])
        changed = event(lines)
        assert changed[1:] == ("row", {"orders": 2})
        served.history.put([], gone=["eve"])
        assert event(lines)[1:] == ("gone", None)
        served.history.put([row("eve", 3)])
        last = event(lines)
        assert last[1:] == ("row", {"orders": 3})
    headers = {"accept": "text/event-stream", "last-event-id": last[0]}
    with served.client.stream("GET", f"{URL}/eve?columns=orders", headers=headers) as stream:
        lines = stream.iter_lines()
        served.history.put([row("eve", 4)])
        assert event(lines)[1:] == ("row", {"orders": 4}), "what was told before is not told again"


def event(lines: Iterator[str]) -> tuple[str, str, Any]:
    fields: dict[str, str] = {}
    for line in lines:
        if not line and fields:
            break
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
    return fields["id"], fields["event"], json.loads(fields["data"])


def test_so_many_clients_watch_and_no_more(served: Served) -> None:
    served.history.put([row("ada", 3)])
    path, headers = served.newest(f"{URL}/ada").request.url.path, {"accept": "text/event-stream"}
    with (
        served.client.stream("GET", path, headers=headers) as one,
        served.client.stream("GET", path, headers=headers) as two,
    ):
        # One that is dropped would end its connection.
        lines = [one.iter_lines(), two.iter_lines()]
        assert [event(each)[1] for each in lines] == ["row", "row"]
        refused = served.get(path, **headers)
        assert (refused.status_code, refused.json()["error_code"]) == (503, 50301)


def test_tables_are_listed_and_described(served: Served) -> None:
    assert served.get("/tables").json() == {"tables": ["marts.days", "state.customers"]}
    described = served.get("/tables/marts.days").json()
    assert described == {
        "table": "marts.days",
        "version": 0,
        "rows": 2,
        "key": ["city", "day"],
        "columns": [{"name": "city", "type": "string"}, {"name": "day", "type": "date"}, {"name": "n", "type": "long"}],
    }


@pytest.mark.parametrize(
    ("path", "status", "code", "says"),
    [
        ("/tables/state.orders/1", 404, 40401, "there are marts.days, state.customers"),
        ("/tables/..%2F..%2Fetc/passwd", 404, 40401, "no table"),
        ("/tables//etc/passwd", 404, 40401, "no table ''"),
        ("/tables/state.customers%00/a", 404, 40401, "no table"),
        ("/tables/state%2Fcustomers/a", 404, 40401, "no table"),
        (f"{URL}/ada?columns=nothing", 400, 40002, "it has customer, orders, spent"),
        (f"{URL}/ada?colums=orders", 400, 40003, "?colums= is not known"),
        (f"{URL}/ada?version=-1", 400, 40003, "whole number"),
        (f"{URL}/ada?version=1&version=2", 400, 40003, "given twice"),
        (f"{URL}/ada?version=1&at=orders:0=1", 400, 40003, "give one"),
        (f"{URL}/ada?wait=1", 400, 40003, "give both"),
        (f"{URL}/ada?at=orders", 400, 40003, "TOPIC:PARTITION=OFFSET"),
        (f"{URL}/ada?at=flights:0=1", 404, 40402, "is made from orders"),
        (f"{URL}/%ff", 400, 40001, "not text in UTF-8"),
        ("/tables/marts.days/Bern", 400, 40001, "give 2 values, not 1"),
        ("/tables/marts.days/Bern/yesterday", 400, 40001, "the key day is date"),
        ("/nothing", 404, 404, "there is nothing here"),
    ],
)
def test_what_cannot_be_answered_is_said_as_json(served: Served, path: str, status: int, code: int, says: str) -> None:
    answer = served.get(path)
    assert answer.status_code == status, answer.text
    assert answer.json()["error_code"] == code
    assert says in answer.json()["message"]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not JSON"),
        (b"[1]", 400, "not a JSON object"),
        (b"{}", 400, '{"keys": […]}'),
        (b'{"keys": "ada"}', 400, "the body is"),
        (b'{"keys": [1]}', 400, "the key customer is string"),
        (b'{"keys": [["a", "b"]]}', 400, "give 1 values, not 2"),
        (b'{"keys": [], "columns": "orders"}', 400, "columns is a list"),
        (b'{"keys": [], "columns": ["nothing"]}', 400, "no column"),
        (b'{"keys": [], "version": "1"}', 400, "version is a whole number"),
        (b'{"keys": [], "where": "1=1"}', 400, "'where' is not known"),
        (b"[" * 10_000, 400, "not JSON"),
        (b'{"keys": [' + b"[" * 500 + b"]" * 500 + b"]}", 400, "the key customer is string"),
        (b'{"keys": [' + b", ".join([b'"a"'] * 51) + b"]}", 413, "no more than 50"),
        (b'{"keys": ["' + b"x" * 30_000 + b'"]}', 413, "at most 20000 bytes"),
        (json.dumps({"keys": ["x" * 300] * 50}).encode(), 413, "more than 10000 bytes"),
    ],
)
def test_bodies_that_are_wrong_or_too_large_are_refused(served: Served, body: bytes, status: int, says: str) -> None:
    served.history.put([row(name, 3) for name in NAMES])
    served.newest(URL)
    answer = served.client.post(f"{URL}:batch", content=body)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["message"]


def test_other_methods_are_refused(served: Served) -> None:
    for method, path in (("DELETE", f"{URL}/ada"), ("POST", f"{URL}/ada"), ("PUT", "/tables"), ("POST", "/healthz")):
        answer = served.client.request(method, path)
        assert (answer.status_code, answer.json()["error_code"]) == (405, 405)
    head = served.client.head(f"{URL}/ada")
    assert (head.status_code, head.content) == (200, b"")


def test_pages_of_other_sites_and_other_names_are_turned_down(served: Served) -> None:
    assert served.get(f"{URL}/ada", origin="https://example.com").status_code == 403
    assert served.get(f"{URL}/ada", host="example.com").status_code == 403


def test_health_and_metrics(served: Served) -> None:
    assert served.get("/healthz").json() == {"status": "ok"}
    assert served.get("/readyz").json() == {"status": "ready", "failing": {}}
    served.newest(f"{URL}/ada")
    metrics = served.get("/metrics").text
    assert f'fluvial_serve_table_version{{table="state.customers"}} {float(served.history.newest)}' in metrics
    assert 'fluvial_serve_requests_total{status="200",what="row"}' in metrics
    assert 'fluvial_serve_request_seconds_bucket{le="0.001",what="row"}' in metrics


def test_a_table_whose_log_breaks_is_served_as_it_was_and_said_to_fail(tmp_path: Path) -> None:
    history = customers(tmp_path)
    history.put([row("ada", 1)])
    with serving(ServedWarehouse(str(tmp_path)), preload=["state.customers"]) as client:
        served = Served(history, client)
        torn = history.folder / "_delta_log" / f"{1:020d}.json"
        assert served.newest(f"{URL}/ada").json()["orders"] == 1
        torn.write_text('{"commitInfo": {"opera')
        assert served.get(f"{URL}/ada?wait_version=1&wait=1").status_code == 404
        assert "torn" in served.get("/readyz").json()["failing"]["state.customers"]
        assert 'fluvial_serve_table_failing{table="state.customers"} 1.0' in served.get("/metrics").text
        assert served.get(f"{URL}/ada").json()["orders"] == 1
        torn.unlink()
        history.put([row("ada", 2)])
        assert served.newest(f"{URL}/ada").json()["orders"] == 2
        assert served.get("/readyz").json()["failing"] == {}
