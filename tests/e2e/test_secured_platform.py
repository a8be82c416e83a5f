"""
`fluvial up --secure` and `fluvial init --secure`: commands and stock clients get in by client.properties, nobody else.

What takes Spark is run on three secured brokers by the rota: FLUVIAL_TEST_SECURED for the main job and the tutorial.
"""

import ssl
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient

from fluvial.client_settings import kafka_properties_of
from fluvial.kafka import KafkaCluster
from fluvial.local.state import SECURITY
from tests.free_ports import free_ports_in_a_row

pytestmark = pytest.mark.e2e


def fluvial(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fluvial", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=180, check=False)


OWNER = """
producer = "shop"
contact = "orders@shop.example"
subjects = ["orders-value"]
topics = ["orders"]
"""


def secret_of(folder: Path, name: str) -> str:
    lines = (folder / "client.properties").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith(name))


def test_a_secured_platform_is_reached_by_its_own_file_alone(tmp_path: Path) -> None:
    port = free_ports_in_a_row(2)
    ports = ("--port", str(port), "--registry-port", str(port + 1))
    up = fluvial("up", "--secure", "--detach", *ports, cwd=tmp_path)
    try:
        assert up.returncode == 0, up.stderr
        folder = next(tmp_path.glob(f"*/{SECURITY}"))
        for path in folder.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        secret = secret_of(folder, "sasl.password")
        words = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not any(secret.encode() in each for each in words)

        (tmp_path / "schemas/shop").mkdir(parents=True)
        (tmp_path / "schemas/shop/owner.toml").write_text(OWNER)
        (tmp_path / "schemas/shop/orders.avsc").write_text('"string"')
        registered = fluvial("schema", "register", cwd=tmp_path)
        assert registered.returncode == 0, registered.stderr
        assert fluvial("schema", "owner", "orders-value", cwd=tmp_path).stdout.startswith("orders-value: shop, ")
        url = f"https://127.0.0.1:{port + 1}"
        user = secret_of(folder, "basic.auth.user.info")
        with SchemaRegistryClient(
            {"url": url, "ssl.ca.location": str(folder / "ca.pem"), "basic.auth.user.info": user}
        ) as stock:
            assert stock.get_subjects() == ["orders-value"]
        stranger = httpx.get(f"{url}/subjects", verify=ssl.create_default_context(cafile=str(folder / "ca.pem")))
        assert stranger.status_code == 401

        made = fluvial("topic", "create", "t", cwd=tmp_path)
        assert made.returncode == 0, made.stderr
        servers = f"127.0.0.1:{port}"
        cluster = KafkaCluster(servers, kafka_properties_of(folder / "client.properties"))
        producer = Producer(cluster.client(acks="all"))
        producer.produce("t", b"in")
        assert producer.flush(30) == 0
        consumer = Consumer(cluster.client(**{"group.id": "g", "auto.offset.reset": "earliest"}))
        consumer.subscribe(["t"])
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == b"in"
        consumer.close()
        strangers = (
            {},
            {"security.protocol": "SSL", "enable.ssl.certificate.verification": False},
            {**cluster.client(), "sasl.password": "guessed"},
        )
        for each in strangers:
            with pytest.raises(KafkaException):
                AdminClient({**each, "bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=2)
        again = fluvial("up", "--detach", cwd=tmp_path)
        assert "was up" in again.stderr
    finally:
        down = fluvial("down", cwd=tmp_path)
    assert down.returncode == 0, down.stderr


def test_a_project_that_is_made_secured_is_used_without_another_word(tmp_path: Path) -> None:
    made = fluvial("init", "my_platform", "--secure", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    project = tmp_path / "my_platform"
    assert stat.S_IMODE((project / ".fluvial").stat().st_mode) == 0o700
    clients = project / ".fluvial" / SECURITY / "client.properties"
    assert str(clients) in made.stdout.splitlines()
    before = clients.read_text()
    port = free_ports_in_a_row(6)
    ports = ("--port", str(port), "--registry-port", str(port + 3))
    up = fluvial("up", "--brokers", "3", "--detach", *ports, cwd=project)
    try:
        assert up.returncode == 0, up.stderr
        produced = subprocess.run(
            [sys.executable, "produce.py", "6"], cwd=project, capture_output=True, text=True, timeout=180, check=False
        )
        assert produced.returncode == 0, produced.stderr
        read = fluvial("topic", "consume", "orders", "--from-beginning", "--to-end", cwd=project)
        assert read.returncode == 0, read.stderr
        assert len(read.stdout.splitlines()) == 6
        described = fluvial("cluster", "status", cwd=project)
        assert described.returncode == 0, described.stderr
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}).list_topics(timeout=2)
    finally:
        down = fluvial("down", cwd=project)
    assert down.returncode == 0, down.stderr
    assert clients.read_text() == before


def test_a_project_is_not_made_secured_over_a_platform_in_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plain_platform(tmp_path / "data")
    monkeypatch.setenv("FLUVIAL_DATA_DIR", str(tmp_path / "data"))
    refused = fluvial("init", "my_platform", "--secure", cwd=tmp_path)
    assert refused.returncode == 1
    assert "FLUVIAL_DATA_DIR" in refused.stderr
    assert not (tmp_path / "my_platform").exists()


def _plain_platform(data_dir: Path) -> None:
    data_dir.mkdir()
    node = '{"id": 0, "host": "127.0.0.1", "port": 1, "registry_port": 2, "data_dir": "node-0"}'
    (data_dir / "platform.json").write_text(f'{{"cluster_id": "c", "nodes": [{node}], "next_id": 1}}')


def test_a_platform_in_plain_text_does_not_become_a_secured_one(tmp_path: Path) -> None:
    _plain_platform(tmp_path / "data")
    refused = fluvial("up", "--secure", "--detach", "--data-dir", "data", cwd=tmp_path)
    assert refused.returncode == 1
    assert "--secure is for a new one" in refused.stderr
    assert not (tmp_path / "data" / SECURITY).exists()
