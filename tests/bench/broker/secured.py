"""
What TLS, sign-in and rights cost our broker: `make bench-secured`.

    python -m tests.bench.broker.secured                        everything, 3 rounds, about five minutes
    python -m tests.bench.broker.secured --only small decision
    python -m tests.bench.broker.secured --size 0.1             shorter loads

One broker has a listener of each protocol, and the rounds go through them in turn. What is compared is the CPU time of
the broker: clients share the cores, and their own encryption says nothing about it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from log_broker.core.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from log_broker.core.security.authorizer import Authorizer
from log_broker.core.security.principal import Principal
from tests.bench.broker.arena import PROGRESS, Scale
from tests.bench.broker.measuring import Sample, drive, median, topic
from tests.bench.broker.servers import ROOT, Ours
from tests.free_ports import free_ports
from tests.peers.secured_kafka import Authority

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
USER, PASSWORD = "bench", "measured"
MIB = 1 << 20
BULK_AIM, SMALL_AIM, DECISION_AIM = 2.4, 1.7, 1.0
ACLS = 1_000
DURABILITY = (("fluvial.durability", "memory"),)


class Secured(Ours):
    """Our broker with a listener of each protocol; `at` is that which drivers are sent to."""

    at = "PLAINTEXT"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.authority = Authority(folder / "certificates", "authority")
        self._ports: dict[str, int] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[self.at]}"

    def prepare(self) -> None:
        self._ports = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True))
        self.port = self._ports["PLAINTEXT"]
        pair = self.authority.issue("broker").joined(self.folder / "certificates" / "broker-store.pem")
        settings = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.location": pair,
            "ssl.truststore.location": self.authority.certificate,
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "sasl.jaas.config": f'x required username="node" password="between" user_{USER}="{PASSWORD}";',
        }
        (self.folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "log_broker", "--data-dir", str(self.data_dir)]
        words += ["--config", str(self.folder / "server.properties")]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def client(self) -> dict[str, str]:
        """What a stock client is given beside the address."""
        found = {} if self.at == "PLAINTEXT" else {"security.protocol": self.at}
        if "SSL" in self.at:
            found["ssl.ca.location"] = str(self.authority.certificate)
        if "SASL" in self.at:
            found |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": USER, "sasl.password": PASSWORD}
        return found


class Line(NamedTuple):
    """A figure in plain text and secured; `plain` 0 where there is nothing to compare with."""

    load: str
    figure: str
    plain: float
    secured: float
    aim: float | None = None  # of the ratio; without a plain figure of the figure itself

    @property
    def ratio(self) -> float:
        return self.secured / self.plain if self.plain else 0.0

    @property
    def mark(self) -> str:
        if self.aim is None:
            return ""
        return "reached" if (self.ratio or self.secured) <= self.aim else "short"


Bench = Callable[[Secured, Scale], Iterator[Line]]


def bulk(broker: Secured, scale: Scale) -> Iterator[Line]:
    """Records of 1,000 bytes by librdkafka, in and out."""
    messages = scale.count(300_000)
    load = {"messages": messages, "value_bytes": 1000, "partitions": 1, "topic": "bulk"}
    with topic(broker, "bulk", 1, DURABILITY):
        for mode in ("produce", "consume"):

            def run(mode: str = mode) -> Sample:
                return drive(broker, "bulk", {**load, "mode": mode, "client": broker.client()})

            if mode == "produce":
                run()
            found = _rounds(broker, scale, f"bulk {mode}", run, ("PLAINTEXT", "SSL", "SASL_SSL"))
            per_mib = {at: sample.cpu_micros * MIB / 1000 for at, sample in found.items()}
            for at in ("SSL", "SASL_SSL"):
                aim = BULK_AIM if mode == "consume" else None
                yield Line(f"bulk {mode}, {at}", "server CPU µs/MiB", per_mib["PLAINTEXT"], per_mib[at], aim)
                rates = found["PLAINTEXT"].rate * 1000 / MIB, found[at].rate * 1000 / MIB
                yield Line(f"bulk {mode}, {at}", "MiB/s", *rates)


def small(broker: Secured, scale: Scale) -> Iterator[Line]:
    """Produce requests of one record of 100 bytes."""
    for connections, in_flight in ((1, 1), (16, 1), (16, 16)):
        load = {
            "connections": connections,
            "in_flight": in_flight,
            "acks": 1,
            "value_bytes": 100,
            "seconds": scale.seconds(3),
            "topic": "small",
            "partitions": 4,
        }

        def run(load: Mapping[str, Any] = load) -> Sample:
            authority = str(broker.authority.certificate) if "SSL" in broker.at else ""
            return drive(broker, "raw_requests", {**load, "authority": authority})

        with topic(broker, "small", 4, DURABILITY):
            found = _rounds(broker, scale, f"small, {connections}x{in_flight}", run, ("PLAINTEXT", "SSL"))
        what = f"small requests, {connections}x{in_flight}"
        plain, secured = found["PLAINTEXT"], found["SSL"]
        yield Line(what, "server CPU µs/request", plain.cpu_micros, secured.cpu_micros, SMALL_AIM)
        yield Line(what, "requests/s", plain.rate, secured.rate)
        yield Line(what, "p99 ms", plain.p99_ms, secured.p99_ms)


def sign_in(broker: Secured, scale: Scale) -> Iterator[Line]:
    """Connections that come, sign in and go, on eight threads of one client."""
    for at, mechanism in (
        ("SSL", ""),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
    ):
        load = {
            "mechanism": mechanism,
            "user": USER,
            "password": PASSWORD,
            "seconds": scale.seconds(3),
            "authority": str(broker.authority.certificate) if "SSL" in at else "",
        }

        def run(load: Mapping[str, Any] = load) -> Sample:
            return drive(broker, "sign_in_load", load)

        found = _rounds(broker, scale, f"sign-ins, {at} {mechanism}", run, (at,))[at]
        what = f"sign-ins, {at} {mechanism}".rstrip()
        yield Line(what, "server CPU µs", 0, found.cpu_micros)
        yield Line(what, "sign-ins/s of one core of the broker", 0, 1e6 / max(found.cpu_micros, 1.0))


def decision(broker: Secured, scale: Scale) -> Iterator[Line]:
    """Whether a user may write to a topic, with 1,000 ACLs on topics, a tenth of them prefixed."""
    authorizer = Authorizer(["User:root"])
    acls = [
        Acl(
            resource=ResourceType.TOPIC,
            name=f"team-{at % 50}." if at % 10 == 0 else f"topic-{at}",
            pattern=PatternType.PREFIXED if at % 10 == 0 else PatternType.LITERAL,
            principal=f"User:u{at % 100}",
            host="*",
            operation=Operation.WRITE,
            permission=Permission.ALLOW,
        )
        for at in range(ACLS)
    ]
    authorizer.follow(acls)
    users = [Principal(f"u{at}") for at in range(100)]
    asked = [(users[at % 100], "10.0.0.1", Operation.WRITE, ResourceType.TOPIC, f"topic-{at}") for at in range(ACLS)]
    for what, prepare, aim in (
        ("remembered", lambda: None, DECISION_AIM),
        ("asked for the first time", lambda: authorizer.follow(acls), None),
    ):
        times = []
        for _ in range(max(scale.rounds, 3) * 5):
            prepare()
            began = time.process_time_ns()
            for each in asked:
                authorizer.allows(*each)
            times.append((time.process_time_ns() - began) / 1000 / len(asked))
        yield Line(f"a decision with {ACLS:,} ACLs, {what}", "µs", 0, sorted(times)[len(times) // 2], aim)


BENCHES: Mapping[str, Bench] = {"bulk": bulk, "small": small, "sign-in": sign_in, "decision": decision}


def _rounds(
    broker: Secured, scale: Scale, what: str, run: Callable[[], Sample], protocols: tuple[str, ...]
) -> dict[str, Sample]:
    """Run a load by every protocol in every round, the order reversed in each second one; return the medians."""
    found: dict[str, list[Sample]] = {at: [] for at in protocols}
    try:
        for number in range(scale.rounds):
            for at in protocols if number % 2 == 0 else reversed(protocols):
                broker.at = at
                sample = run()
                found[at].append(sample)
                PROGRESS.print(
                    f"{what}, round {number + 1} of {scale.rounds}, {at}: {sample.rate:,.0f}/s, "
                    f"server CPU {sample.cpu_micros:.2f} µs",
                    style="dim",
                    highlight=False,
                )
    finally:
        broker.at = "PLAINTEXT"
    return {at: median(samples) for at, samples in found.items()}


def table_of(lines: list[Line]) -> Table:
    table = Table("load", "figure", title=f"our broker, {os.cpu_count()} cores")
    for name in ("plain", "secured", "ratio", "aim", ""):
        table.add_column(name, justify="right")
    for line in lines:
        plain, ratio = (f"{line.plain:,.2f}", f"{line.ratio:.2f}") if line.plain else ("", "")
        aim = "" if line.aim is None else f"≤ {line.aim:g}"
        table.add_row(line.load, line.figure, plain, f"{line.secured:,.2f}", ratio, aim, line.mark)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.broker.secured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(BENCHES), help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load runs by each protocol (default 3)")
    parser.add_argument("--size", type=float, default=1.0, help="factor for the length of each load (default 1)")
    options = parser.parse_args()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="bench-secured-") as folder:
        broker = Secured(Path(folder))
        try:
            broker.start()
            for name in options.only or BENCHES:
                lines += BENCHES[name](broker, Scale(rounds=options.rounds, size=options.size))
        finally:
            broker.kill()
    Console(width=130).print(table_of(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
