"""
The registry of three nodes while the one that writes it is killed: what it gives out is given once, and stays.

The nodes are whole ones, brokers with their registries (`python -m fluvial.node`), and clients ask all of them.
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import chaos_cluster
import httpx
from chaos_cluster import Cluster
from chaos_nodes import BEHIND_PROXY, CLUSTER_ID, PROXY, ROOT, OurNode
from chaos_scenarios import Stage, killed, scenario

from fluvial.registry.model.registry import SCHEMAS_TOPIC

ROUNDS = "FLUVIAL_CHAOS_REGISTRY_ROUNDS"
"""How many deaths there are, 3 without it."""
CLIENTS = 6
AT_WORK = 20
"""How many registrations are acknowledged before and after each death."""
TRY_SECONDS_MAX = 90.0
SOON = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "300"}
"""When a dead writer is noticed."""


class RegistryNode(OurNode):
    """A broker with its registry, which has a port and a proxy of its own."""

    def __init__(self, folder: object, node_id: int, roles: str, ports: tuple[int, int]) -> None:
        super().__init__(folder, node_id, roles, ports)  # type: ignore[arg-type]
        self.registry_port = ports[1]

    @property
    def proxied_ports(self) -> set[int]:
        return {*super().proxied_ports, self.registry_port}

    @property
    def url(self) -> str:
        """Where clients ask it; the proxy, which only tells Kafka's clients apart, is for the other nodes."""
        return f"http://{BEHIND_PROXY}:{self.registry_port}"

    @property
    def address(self) -> None:
        """It dials from wherever the system has it dial: known by its process."""
        return

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "fluvial.node", "--data-dir", str(self.data_dir)]
        words += ["--node-id", str(self.node_id), "--cluster-id", CLUSTER_ID]
        words += ["--host", BEHIND_PROXY, "--advertised-host", PROXY]
        words += ["--port", str(self.port), "--registry-port", str(self.registry_port)]
        voters = ",".join(f"{voter.node_id}@{PROXY}:{voter.port}" for voter in self.voters)
        words += ["--process-roles", self.roles, "--controller-quorum-voters", voters]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        return words

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join((str(ROOT / "platform"), str(ROOT), os.environ.get("PYTHONPATH", "")))
        return {"PYTHONPATH": path}

    def fault(self, **faults: object) -> None:
        """Its clock and its disk are the machine's."""


chaos_cluster.KINDS["registry"] = RegistryNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A registration that was acknowledged."""

    subject: str
    schema: str
    schema_id: int


@dataclass
class Registering:
    """A client that registers schemas at nodes taken by chance, and goes on with another when one does not answer."""

    urls: Sequence[str]
    number: int
    told: list[Told] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unsure: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.number)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(TRY_SECONDS_MAX)
        assert not self._thread.is_alive(), f"client {self.number} hangs"

    def _run(self) -> None:
        with httpx.Client(timeout=20, trust_env=False) as http:
            turn = 0
            while not self._stopping.is_set():
                # Every client comes by the same schemas, under subjects of its own and at other times.
                schema = fixed(turn) if turn % 3 else fixed(turn, self.number)
                self._register(http, f"subject-{self.number}-{turn}", schema)
                turn += 1

    def _register(self, http: httpx.Client, subject: str, schema: str) -> None:
        deadline = time.monotonic() + TRY_SECONDS_MAX
        while time.monotonic() < deadline:
            url = self._chance.choice(self.urls)
            try:
                answer = http.post(f"{url}/subjects/{subject}/versions", json={"schema": schema})
            except httpx.HTTPError:
                self.unsure.add((subject, schema))
                time.sleep(0.05)
                continue
            if answer.status_code == 200:
                self.told.append(Told(subject=subject, schema=schema, schema_id=answer.json()["id"]))
                return
            if answer.status_code < 500:
                self.refused.append(f"{subject}: {answer.status_code} {answer.text}")
                return
            time.sleep(0.05)
        self.refused.append(f"{subject}: not done within {TRY_SECONDS_MAX:.0f} s")


def fixed(number: int, owner: int | None = None) -> str:
    """A schema that is no other's."""
    name = f"S{number}" if owner is None else f"S{number}of{owner}"
    return json.dumps({"type": "fixed", "name": name, "size": 4}, separators=(",", ":"))


@scenario(
    "registry", "clients register at three nodes while the one that writes is killed, again and again", only_ours=True
)
def registering_through_deaths(stage: Stage) -> None:
    rounds = int(os.environ.get(ROUNDS, "3"))
    cluster = stage.cluster(kind="registry", settings=SOON)
    nodes = {number: node for number, node in cluster.nodes.items() if isinstance(node, RegistryNode)}
    urls = [node.url for node in nodes.values()]
    cluster.eventually(lambda: all(answers(url) for url in urls), "every registry answers")
    clients = [Registering(urls, number) for number in range(CLIENTS)]
    for each in clients:
        each.start()

    def acknowledged() -> int:
        return sum(len(each.told) for each in clients)

    outages: list[float] = []
    try:
        for _ in range(rounds):
            before = acknowledged()
            cluster.eventually(lambda at=before: acknowledged() > at + AT_WORK, "schemas are registered")  # type: ignore[misc]
            victim = cluster.leader(SCHEMAS_TOPIC)
            assert victim in nodes, f"{SCHEMAS_TOPIC} is led by {victim}"
            with killed(cluster, victim):
                died_at, at = time.monotonic(), acknowledged()
                cluster.await_leader(SCHEMAS_TOPIC, cluster.others(victim))
                cluster.eventually(lambda: acknowledged() > at, "the successor writes")  # noqa: B023 (called at once)
                outages.append(time.monotonic() - died_at)
                cluster.eventually(lambda: acknowledged() > at + AT_WORK, "it goes on")  # noqa: B023
            cluster.await_isr(SCHEMAS_TOPIC, cluster.brokers)
    finally:
        for each in clients:
            each.stop()
    told = [each for client in clients for each in client.told]
    assert [each for client in clients for each in client.refused] == []
    check_ids(told)
    check_every_node(cluster, urls, told)
    stage.note(
        f"{len(told)} registrations of {len({each.schema for each in told})} schemas acknowledged through "
        f"{rounds} deaths, each id of one schema and known to every node; "
        f"{max(outages):.1f} s at most until the successor wrote"
    )


def answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/subjects", timeout=5, trust_env=False).status_code == 200
    return False


def check_ids(told: Sequence[Told]) -> None:
    """The same schema has one id, and an id is of one schema."""
    ids: dict[str, set[int]] = {}
    schemas: dict[int, set[str]] = {}
    for each in told:
        ids.setdefault(each.schema, set()).add(each.schema_id)
        schemas.setdefault(each.schema_id, set()).add(each.schema)
    assert {schema: found for schema, found in ids.items() if len(found) > 1} == {}, "a schema was given two ids"
    assert {one: found for one, found in schemas.items() if len(found) > 1} == {}, "an id was given twice"


def check_every_node(cluster: Cluster, urls: Sequence[str], told: Sequence[Told]) -> None:
    """What was acknowledged is there, on each node, with one version and the id that was told."""
    for url in urls:
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
            cluster.eventually(
                lambda http=http: told[-1].subject in http.get("/subjects").json(),  # type: ignore[misc]
                f"{url} has caught up",
            )
            for each in told:
                found = http.get(f"/subjects/{each.subject}/versions/latest").json()
                expected = {"subject": each.subject, "version": 1, "id": each.schema_id, "schema": each.schema}
                assert found == expected, f"{url}: {found} instead of {expected}"
            for schema_id in {each.schema_id for each in told}:
                assert http.get(f"/schemas/ids/{schema_id}").status_code == 200
