"""
What systemd, Compose and Kubernetes would start by the files in `infra`, started as processes: the same arguments and
environment, three nodes on three addresses of this machine, and a topic that all of them have.
"""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.python_programs import python_of

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
UNIT = INFRA / "systemd" / "fluvial-node@.service"
NODES = 3
READY_SECONDS_MAX = 180.0
INTERPRETER = "/opt/fluvial/bin/python"

pytestmark = pytest.mark.e2e


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One node as its supervisor would start it."""

    argv: list[str]
    environment: dict[str, str]


def entrypoint() -> list[str]:
    """The program of the image."""
    found = re.search(r"^ENTRYPOINT (\[.*\])$", (INFRA / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return list(yaml.safe_load(found[1]))


def image_environment() -> dict[str, str]:
    found = re.search(r"^ENV (.*)$", (INFRA / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return dict(word.split("=", 1) for word in found[1].split())


def by_systemd(node: int, address: str) -> Started:
    """The unit's command, with the arguments that docs/cluster.md has for the first machine."""
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    page = (ROOT / "docs" / "cluster.md").read_text()
    found = re.search(r"^    FLUVIAL_NODE_ARGS=(.*)$", page, re.MULTILINE)
    assert found is not None
    arguments = re.sub(r"(?<=host )10\.0\.0\.5", address, found[1])
    words = settings["ExecStart"].replace("%i", str(node)).replace("%S", "/var/lib")
    environment = dict(word.split("=", 1) for word in settings["Environment"].split())
    return Started(argv=shlex.split(words.replace("$FLUVIAL_NODE_ARGS", arguments)), environment=environment)


def by_compose(node: int, address: str) -> Started:
    services = yaml.safe_load((INFRA / "compose" / "compose.yaml").read_text())["services"]
    command = [word.replace("0.0.0.0", address) for word in services[f"node-{node}"]["command"]]
    return Started(argv=[*entrypoint(), *command], environment=image_environment())


def by_kubernetes(node: int, address: str) -> Started:
    container = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    fields = {
        "metadata.name": f"fluvial-{node}",
        "status.podIP": address,
        "metadata.labels['apps.kubernetes.io/pod-index']": str(node),
    }
    variables = {each["name"]: fields[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container["env"]}
    arguments = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in container["args"]]
    return Started(argv=[*entrypoint(), *arguments], environment=image_environment() | variables)


def of_kind(kind: str, name: str = "fluvial") -> Any:
    documents = yaml.safe_load_all((INFRA / "kubernetes" / "fluvial.yaml").read_text())
    return next(each for each in documents if each["kind"] == kind and each["metadata"]["name"] == name)


NAMES: dict[Callable[[int, str], Started], tuple[str, ...]] = {
    by_systemd: ("10.0.0.5", "10.0.0.6", "10.0.0.7"),
    by_compose: ("node-0", "node-1", "node-2"),
    by_kubernetes: tuple(f"fluvial-{node}.fluvial-nodes" for node in range(NODES)),
}
"""By what name nodes find each other, which the machine that runs the tests does not resolve."""


def processes(
    supervisor: Callable[[int, str], Started], addresses: list[str], folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the nodes: names become addresses, the state's folder one of the test's, the interpreter this one."""
    for node, address in enumerate(addresses):
        started = supervisor(node, address)
        home = folder / str(node)
        home.mkdir()
        places = dict(zip(NAMES[supervisor], addresses, strict=True))
        name = re.compile(rf"(?<![\w/-])({'|'.join(map(re.escape, places))})(?![\w-])")
        moved = (word.replace("/var/lib/fluvial", str(home)) for word in started.argv)
        words = [name.sub(lambda found, of=places: of[found[1]], word) for word in moved]
        assert words[0] == INTERPRETER
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **started.environment,
        }
        with (folder / f"{node}.log").open("wb") as log:
            # `-P` keeps the working directory out, and the tree under test is in PYTHONPATH.
            yield subprocess.Popen([sys.executable, *words[1:]], env=environment, stderr=log, cwd=home)


def ended(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def wait_until_ready(addresses: list[str], running: list["subprocess.Popen[bytes]"], logs: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    for node, address in enumerate(addresses):
        while True:
            assert running[node].poll() is None, (logs / f"{node}.log").read_text()
            try:
                if httpx.get(f"http://{address}:9100/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, (logs / f"{node}.log").read_text()
            time.sleep(0.2)


@pytest.mark.parametrize("supervisor", NAMES, ids=lambda each: each.__name__)
def test_three_nodes_are_a_cluster(supervisor: Callable[[int, str], Started], tmp_path: Path) -> None:
    net = f"127.{random.randrange(16, 250)}.{random.randrange(250)}"
    addresses = [f"{net}.{node + 2}" for node in range(NODES)]
    with ExitStack() as stack:
        running = []
        for process in processes(supervisor, addresses, tmp_path):
            stack.callback(ended, process)
            running.append(process)
        wait_until_ready(addresses, running, tmp_path)
        servers = f"{addresses[0]}:9092"
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("orders", num_partitions=3)])["orders"].result(60)
        found = admin.list_topics("orders", timeout=30)
        assert {broker.host for broker in found.brokers.values()} == set(addresses)
        assert {len(each.replicas) for each in found.topics["orders"].partitions.values()} == {NODES}
        producer = Producer({"bootstrap.servers": servers, "acks": "all"})
        producer.produce("orders", b"a book", partition=0)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": f"{addresses[2]}:9092", "group.id": "any"})
        consumer.assign([TopicPartition("orders", 0, 0)])
        (record,) = consumer.consume(1, 60)
        assert record.value() == b"a book"
        consumer.close()
        assert httpx.get(f"http://{addresses[1]}:8081/subjects").json() == []


def test_kubernetes_would_take_the_manifests() -> None:
    """Each document fits the schema of its kind; another field, or one of another type, does not."""
    check = (
        "import sys, yaml, kubernetes_validate as kubernetes\n"
        "for document in yaml.safe_load_all(sys.stdin):\n"
        "    kubernetes.validate(document, kubernetes.latest_version(), strict=True)"
    )
    python = python_of("kubernetes-validate")

    def refused(text: str) -> str:
        done = subprocess.run(
            [python, "-c", check], input=text, capture_output=True, text=True, timeout=120, check=False
        )
        return done.stderr if done.returncode else ""

    manifests = (INFRA / "kubernetes" / "fluvial.yaml").read_text()
    assert refused(manifests) == ""
    assert "replikas" in refused(manifests.replace("replicas:", "replikas:"))
    assert "'three' is not of type" in refused(manifests.replace(f"replicas: {NODES}", "replicas: three"))


def test_the_image_takes_the_wheel_from_where_it_is_built() -> None:
    """Each step is one of a Dockerfile's, and its first line says where the only file comes from that is copied."""
    text = (INFRA / "docker" / "Dockerfile").read_text()
    steps = re.findall(r"^([A-Z]+) (.*)", text.replace("\\\n", " "), re.MULTILINE)
    assert [step for step, _ in steps] == ["FROM", "RUN", "COPY", "RUN", "ENV", "RUN", "USER", "ENTRYPOINT"]
    assert "python -m hatchling build -t wheel &&" in text.splitlines()[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    source, _ = dict(steps)["COPY"].split()
    assert fnmatch(f"dist/{project['name']}-{project['version']}-py3-none-any.whl", source)
    installed = next(words for step, words in steps if "pip install" in words)
    assert f"/opt/dist/{Path(source).name}" in installed


def test_ports_probes_and_names_of_the_manifests_are_those_of_the_node() -> None:
    stateful = of_kind("StatefulSet")["spec"]
    container = stateful["template"]["spec"]["containers"][0]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    flags = dict(word.removeprefix("--").split("=", 1) for word in container["args"] if "=" in word)
    assert ports == {
        name: int(flags[flag])
        for name, flag in (("kafka", "port"), ("registry", "registry-port"), ("metrics", "metrics-port"))
    }
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [(each["path"], each["port"]) for each in probes] == [
        *[("/healthz", "metrics")] * 2,
        ("/readyz", "metrics"),
    ]
    nodes = of_kind("Service", stateful["serviceName"])["spec"]
    assert nodes["publishNotReadyAddresses"] is True
    labels = stateful["template"]["metadata"]["labels"]
    for selector in (
        stateful["selector"]["matchLabels"],
        nodes["selector"],
        of_kind("Service")["spec"]["selector"],
        of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ):
        assert selector == labels
    voters = flags["controller-quorum-voters"].split(",")
    assert len(voters) == stateful["replicas"] == NODES
    (mount,) = container["volumeMounts"]
    assert flags["data-dir"].startswith(f"{mount['mountPath']}/")
    assert mount["name"] == stateful["volumeClaimTemplates"][0]["metadata"]["name"]
