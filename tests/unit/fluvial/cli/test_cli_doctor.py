"""Mistakes planted in a cluster of three processes, its clients, a table and a clock: the doctor finds each."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from confluent_kafka import Consumer
from fluvial_command import Cli

from fluvial.delta.stamp import Stamp

PLANTED = {
    ("loses data", "topic single", "one copy"),
    ("loses data", "topic lone", "minimum of one"),
    ("stops work", "topic strict", "no copy to spare"),
    ("loses data", "topic unclean", "unclean election"),
    ("loses data", "topic unsynced", "not synced"),
    ("note", "topic narrow", "few partitions"),
    ("note", "topic lone", "few partitions"),
    ("loses data", "table history.orders", "retention"),
    ("contradiction", "registry", "clocks"),
    ("loses data", "hasty.properties", "acks"),
    ("loses data", "giving-up.properties", "retries"),
    ("loses data", "short.properties", "delivery timeout"),
    ("contradiction", "twice.properties", "idempotence"),
    ("contradiction", "slow.properties", "heartbeats"),
    ("note", "slow.properties", "first offset"),
}
CLIENTS = {
    "hasty": "acks=1",
    "giving-up": "retries=0",
    "short": "delivery.timeout.ms=5000",
    "twice": "enable.idempotence=false",
    "slow": "group.id=g\nsession.timeout.ms=9000\nheartbeat.interval.ms=8000",
}


class Late(BaseHTTPRequestHandler):
    """A registry on a machine whose clock is an hour late."""

    def do_GET(self) -> None:
        self.send_response_only(200)
        self.send_header("Date", self.date_time_string(self.server.started - 3600))  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def late_registry() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Late) as server:
        server.started = time.time()  # type: ignore[attr-defined]
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def crowd(cli: Cli, topic: str, members: int) -> Iterator[None]:
    """A group of so many consumers, each with what it is assigned."""
    conf = {"bootstrap.servers": f"127.0.0.1:{cli.port}", "group.id": "crowd", "auto.offset.reset": "earliest"}
    consumers = [Consumer(conf) for _ in range(members)]
    try:
        for each in consumers:
            each.subscribe([topic])
        assigned = 0
        deadline = time.monotonic() + 60
        while assigned < 6 and time.monotonic() < deadline:
            for each in consumers:
                each.poll(0.1)
            assigned = sum(len(each.assignment()) == 1 for each in consumers)
        assert assigned == 6
        yield
    finally:
        for each in consumers:
            each.close()


def table_that_has_read(cli: Cli, topic: str, end: int) -> None:
    """A table as its log tells of it, without a row."""
    log = cli.data_dir / "warehouse" / "history" / "orders" / "_delta_log"
    log.mkdir(parents=True)
    stamp = Stamp(topic=topic, topic_id=None, batch=1, offsets={0: (0, end)})
    schema = json.dumps({"type": "struct", "fields": []})
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "WRITE", "userMetadata": stamp.as_json()}},
        {"txn": {"appId": "fluvial", "version": 1}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "1",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": [],
                "configuration": {},
            }
        },
    ]
    (log / f"{0:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


def judged(cli: Cli, *words: str) -> set[tuple[str, str, str]]:
    done = cli.run("cluster", "doctor", "--format", "json", *words)
    assert done.stderr == ""
    return {(each["severity"], each["about"], each["rule"]) for each in json.loads(done.stdout)}


def test_planted_mistakes_are_found(cli: Cli) -> None:
    cli.up("--brokers", "3")
    cli.ok("topic", "create", "sound", "--partitions", "6", "--profile", "durable")
    assert {each for each in judged(cli) if each[2] != "full disk"} == set()

    create = ("topic", "create", "--partitions", "6")
    cli.ok(*create, "single", "--replication-factor", "1")
    cli.ok(*create, "lone", "--config", "min.insync.replicas=1")
    cli.ok(*create, "strict", "--config", "min.insync.replicas=3")
    cli.ok(*create, "unclean", "--config", "unclean.leader.election.enable=true")
    cli.ok(*create, "unsynced", "--config", "fluvial.durability=memory")
    cli.ok("topic", "create", "narrow", "--partitions", "1", "--config", "retention.ms=3600000")
    cli.ok("topic", "produce", "narrow", stdin="one\ntwo\nthree\n")
    cli.ok("topic", "delete-records", "narrow", "--before", "2", "--execute")
    table_that_has_read(cli, "narrow", 1)
    words = []
    for name, text in CLIENTS.items():
        (cli.cwd / f"{name}.properties").write_text(text)
        words += ["--client", f"{name}.properties"]
    with late_registry() as registry, crowd(cli, "lone", 7):
        (cli.cwd / "fluvial.toml").write_text(f'registry_url = "{registry}"\n')
        found = judged(cli, *words)
    assert len(PLANTED) >= 12
    assert {(how, about.replace(registry, "registry"), rule) for how, about, rule in found} >= PLANTED
