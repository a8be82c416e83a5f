"""`fluvial serve` as a process: how it starts and ends, whom it lets in, and what it holds under many clients."""

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from certificates import Authority
from free_ports import free_port
from keyed_history import KeyedHistory, customers
from secured_broker import PASSWORDS, secured_broker

from fluvial.serve.sql import SqlLimits

CLIENTS = 500
MEMORY_MAX = 350 << 20
HEAVY = (
    "select count(*) from (select explode(sequence(1, 1000000)) a) cross join (select explode(sequence(1, 1000000)) b)"
)


@pytest.fixture
def history(tmp_path: Path) -> KeyedHistory:
    history = customers(tmp_path / "warehouse")
    rows = [{"customer": f"k{at}", "orders": at, "spent": Decimal(at), "_fold": "{}"} for at in range(100)]
    history.put(rows)
    return history


def words(history: KeyedHistory, *more: str) -> list[str]:
    return [sys.executable, "-m", "fluvial", "serve", "--warehouse", str(history.folder.parents[1]), *more]


@contextmanager
def started(history: KeyedHistory, *more: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A server that has the table open, and its address."""
    command = words(history, "state.customers", "--port", str(free_port()), *more)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            url = None
            assert process.stdout is not None
            for line in process.stdout:
                found = re.search(r"(https?://[\d.]+:\d+)/tables", line)
                url = found[1] if found else url
                if line.startswith("ready: state.customers"):
                    break
            assert url is not None
            yield url, process
        finally:
            process.kill()


def refused(history: KeyedHistory, *more: str) -> str:
    done = subprocess.run(words(history, *more), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (1, 2), done.stderr
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("tables of ")]
    return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_though_somebody_watches(history: KeyedHistory, number: int) -> None:
    with started(history) as (url, process), httpx.Client(base_url=url, timeout=30) as client:
        headers = {"accept": "text/event-stream"}
        with client.stream("GET", "/tables/state.customers/k7", headers=headers) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("id: ")
            process.send_signal(number)
            assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""


def test_killed_it_starts_again_from_what_it_kept(history: KeyedHistory) -> None:
    kept = history.folder.parents[1] / ".serve" / "state.customers"
    with started(history) as (url, process):
        assert httpx.get(f"{url}/tables/state.customers/k7").json()["orders"] == 7
        os.kill(process.pid, signal.SIGKILL)
    before = {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    with started(history) as (url, _):
        assert httpx.get(f"{url}/tables/state.customers/k7").json()["orders"] == 7
    assert {path.name: path.stat().st_mtime_ns for path in kept.iterdir()} == before


@dataclass(frozen=True)
class Answered:
    """What a client was sent."""

    status: int
    head: str
    body: Any


async def asking(port: int, *requests: tuple[str, str, str]) -> list[Answered]:
    """Send requests, each a method, a path and a body, over one connection, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return [await asked(reader, writer, *each) for each in requests]
    finally:
        writer.close()


async def asked(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: str
) -> Answered:
    lines = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    writer.write(lines.encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = re.search(r"content-length: (\d+)", head)
    assert size is not None, head
    return Answered(int(head.split()[1]), head, json.loads(await reader.readexactly(int(size[1]))))


def looked_up(at: int) -> list[tuple[str, str, str]]:
    return [("GET", f"/tables/state.customers/k{(at + number) % 100}?columns=orders", "") for number in range(3)]


def found_by(at: int) -> list[dict[str, int]]:
    return [{"orders": (at + number) % 100} for number in range(3)]


def test_hundreds_of_clients_are_answered_each_with_its_row(history: KeyedHistory) -> None:
    async def all_of_them(port: int) -> list[list[Answered]]:
        return await asyncio.gather(*(asking(port, *looked_up(at)) for at in range(CLIENTS)))

    with started(history) as (url, _):
        answers = asyncio.run(all_of_them(int(url.rpartition(":")[2])))
    for at, found in enumerate(answers):
        assert [each.body for each in found] == found_by(at)


def test_hundreds_of_clients_with_statements_are_answered_or_told_to_come_again(history: KeyedHistory) -> None:
    """And who looks rows up is answered beside them and a statement that would take for ever."""
    pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")
    statement = ("POST", "/sql", "select orders from state.customers where customer = 'k7'")

    async def storm(port: int) -> tuple[list[list[Answered]], list[list[Answered]]]:
        heavy = asyncio.create_task(asking(port, ("POST", "/sql", HEAVY)))
        await asyncio.sleep(0.5)  # so that it is before all others
        half = CLIENTS // 2
        by_sql = (asking(port, statement) for _ in range(half))
        by_key = (asking(port, *looked_up(at)) for at in range(half))
        try:
            said = await asyncio.gather(*by_sql, *by_key)
            assert not heavy.done(), "it takes for ever, and rows are looked up beside it"
        finally:
            heavy.cancel()
            with suppress(asyncio.CancelledError):
                await heavy
        return said[:half], said[half:]

    with started(history) as (url, process):
        by_sql, by_key = asyncio.run(storm(int(url.rpartition(":")[2])))
        for at, found in enumerate(by_key):
            assert [(each.status, each.body) for each in found] == [(200, row) for row in found_by(at)]
        said = [answer for answers in by_sql for answer in answers]
        assert {each.status for each in said} == {200, 503}
        for each in said:
            if each.status == 200:
                assert each.body == [{"orders": 7}]
            else:
                assert each.body["error_code"] == 50301
                assert "retry-after: 1" in each.head
        # Those that could wait were answered.
        assert sum(each.status == 200 for each in said) >= SqlLimits().waiting
        # Whom it told to come again it answers then, and it has not grown with the number of its clients.
        assert httpx.post(f"{url}/sql", content=statement[2], timeout=60).json() == [{"orders": 7}]
        server = psutil.Process(process.pid)
        assert server.memory_info().rss < MEMORY_MAX
        engines = [each.memory_info().rss for each in server.children()]
        assert 1 <= len(engines) <= SqlLimits().running
        assert max(engines) < SqlLimits().memory_bytes


def test_others_than_this_machine_are_asked_who_they_are(history: KeyedHistory, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = str(authority.issue("server"))
    trusting = ssl.create_default_context(cafile=str(authority.path))
    url_of = "{}/tables/state.customers/k7?columns=orders"
    with secured_broker() as (broker, _):
        properties = tmp_path / "client.properties"
        properties.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=ada\nsasl.password=ada's\n"
        )
        others = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(properties))
        assert "name a certificate" in refused(history, "--host", "0.0.0.0", *others)
        with (
            started(history, "--certificate", certificate, *others) as (url, _),
            httpx.Client(verify=trusting, timeout=60) as client,
        ):
            for auth in (None, ("ada", "bob's"), ("nobody", "x")):
                assert client.get(url_of.format(url), auth=auth).status_code == 401
                assert client.get(f"{url}/metrics", auth=auth).status_code == 401
            assert client.get(f"{url}/healthz").status_code == 200
            assert client.get(url_of.format(url), auth=("bob", PASSWORDS["bob"])).status_code == 403
            for name in ("ada", "eye"):
                assert client.get(url_of.format(url), auth=(name, PASSWORDS[name])).json() == {"orders": 7}
            with pytest.raises(httpx.HTTPError):
                httpx.get(url_of.format(url.replace("https", "http")), auth=("ada", PASSWORDS["ada"]))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("state.orders",), "no table 'state.orders': there are state.customers"),
        (("--key", "state.orders=id"), "no table 'state.orders'"),
        (("--key", "state.customers"), "write KEY=VALUE"),
        (
            ("state.customers", "--port", "0", "--key", "state.customers=nothing"),
            "state.customers has no column nothing",
        ),
        (("--warehouse", "s3a://bucket/warehouse"), "are not on this machine"),
        (("--certificate", "none.pem"), "none.pem"),
        (("--port", "70000"), "--port"),
        (("--host", "0.0.0.0"), "has no users with passwords to ask for"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(history: KeyedHistory, more: tuple[str, ...], says: str) -> None:
    assert says in refused(history, *more)


def test_fluvial_sql_asks_the_server_that_runs(history: KeyedHistory, tmp_path: Path) -> None:
    """Wherever it is asked on this machine: there is no platform here."""
    place = ("--data-dir", str(tmp_path / "local"))

    def ask(*words: str) -> "subprocess.CompletedProcess[str]":
        warehouse = ("--warehouse", str(history.folder.parents[1]))
        command = [sys.executable, "-m", "fluvial", "sql", *place, *warehouse, "--format", "csv", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)

    query = "select orders from state.customers where customer = :who"
    with started(history, *place) as (url, process):
        served = ask(query, "--param", "who=k7")
        assert served.stdout == "orders\n7\n"
        assert f"by the server at {url.removeprefix('http://')}" in served.stderr
        # What the server does not answer is answered as without it.
        other = ask("select current_date() is not null as x from state.customers limit 1; select 1 as one /* ; */")
        assert other.stdout == "x\ntrue\n\none\n1\n"
        assert "by the server" not in ask(query, "--param", "who=k7", "--engine", "sail").stderr
        elsewhere = subprocess.run(
            [sys.executable, "-m", "fluvial", "sql", *place, "--warehouse", str(tmp_path / "none"), "select 1 as one"],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        assert "by the server" not in elsewhere.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not list(history.folder.parents[1].rglob("serve.json"))
    assert not (tmp_path / "local").exists()
    with started(history, *place) as (_, process):
        process.kill()
        process.wait(30)
        alone = ask(query, "--param", "who=k7")
        assert alone.stdout == "orders\n7\n"
        assert "by the server" not in alone.stderr
