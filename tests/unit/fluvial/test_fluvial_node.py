"""The node as a process: the ports that it serves."""

import os
import signal
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from certificates import Authority
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

import log_broker
from fluvial.http_doors import check_http_exposure, metrics_security
from log_broker.config.broker import BrokerConfig
from log_broker.core.security.listeners import Protocol
from log_broker.errors import BrokerError
from tests.free_ports import free_ports

PROBES = ("healthz", "readyz")


def test_metrics_are_served_on_a_port_of_their_own(tmp_path: Path) -> None:
    port, metrics_port, registry_port = free_ports(3)
    told, notify = os.pipe()
    command = [sys.executable, "-m", "fluvial.node", "--port", str(port), "--metrics-port", str(metrics_port)]
    command += ["--registry-port", str(registry_port)]
    command += ["--data-dir", str(tmp_path / "node"), "--notify-fd", str(notify)]
    command += ["--set", "fluvial.http.allowed.hosts=node-0.example"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, pass_fds=[notify])
    os.close(notify)
    try:
        with closing(os.fdopen(told, "rb")) as words:
            words.read()  # ends when the node has said that it is ready, or is gone
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}"})
        producer.produce("measured", b"value")
        assert producer.flush(30) == 0, (tmp_path / "log").read_text()
        page = httpx.get(f"http://127.0.0.1:{metrics_port}/metrics")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/plain")
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(page.text)
            for sample in family.samples
        }
        assert samples["log_broker_topic_records_total", "measured"] == 1
        assert samples["process_open_fds",] > 0
        for health in (f"http://127.0.0.1:{at}/{path}" for at in (metrics_port, registry_port) for path in PROBES):
            asked = httpx.get(health)
            assert (asked.status_code, asked.text) == (200, "ok\n"), health
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert httpx.get(f"http://127.0.0.1:{metrics_port}/metrics", headers=headers).status_code == 403
        named = httpx.get(f"http://127.0.0.1:{metrics_port}/metrics", headers={"Host": "node-0.example"})
        assert named.status_code == 200, "it is told that this name is its own"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()


@pytest.mark.parametrize("module", ["fluvial.node", "log_broker"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_node_that_others_can_reach_says_so(tmp_path: Path, module: str, host: str) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", module, "--host", host, "--advertised-host", "127.0.0.1", "--port", str(port)]
    command += ["--allow-plaintext"] if host == "0.0.0.0" else []
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", str(tmp_path / "node")], stderr=log, stdout=subprocess.DEVNULL
        )
    try:
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        producer.produce("one", b"value")
        assert producer.flush(60) == 0, (tmp_path / "log").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()
    warnings = [line for line in (tmp_path / "log").read_text().splitlines() if "open to the network" in line]
    assert len(warnings) == (host == "0.0.0.0")
    assert all(host in line for line in warnings)


SECURED = """
security.inter.broker.protocol=SASL_SSL
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
sasl.jaas.config=x required username="node" password="between" user_ada="ada's" user_bob="bob's";
authorizer.class.name=fluvial
super.users=User:node;User:ada
connection.failed.authentication.delay.ms=10
listener.security.protocol.map=METRICS:SASL_SSL
ssl.keystore.location={certificate}
ssl.truststore.location={authority}
"""


def test_the_metrics_of_a_secured_node_ask_for_its_users(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    port, metrics_port, registry_port = free_ports(3)
    config = tmp_path / "server.properties"
    config.write_text(SECURED.format(certificate=authority.issue("node"), authority=authority.path))
    told, notify = os.pipe()
    command = [sys.executable, "-m", "fluvial.node", "--port", str(port), "--metrics-port", str(metrics_port)]
    command += ["--registry-port", str(registry_port), "--config", str(config)]
    command += ["--data-dir", str(tmp_path / "node"), "--notify-fd", str(notify)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, pass_fds=[notify])
    os.close(notify)
    try:
        with closing(os.fdopen(told, "rb")) as words:
            assert words.read() == b"ready", (tmp_path / "log").read_text()
        trusting = ssl.create_default_context(cafile=str(authority.path))
        with httpx.Client(verify=trusting) as http:
            metrics, registry = (f"https://127.0.0.1:{each}" for each in (metrics_port, registry_port))
            for address in (metrics, registry):
                assert [http.get(f"{address}/{path}").text for path in PROBES] == ["ok\n", "ok\n"], "asks nobody"
            for auth in (None, ("ada", "bob's"), ("nobody", "x")):
                refused = http.get(f"{metrics}/metrics", auth=auth)
                assert (refused.status_code, refused.json()["message"]) == (401, "Unauthorized")
            denied = http.get(f"{metrics}/metrics", auth=("bob", "bob's"))
            assert denied.status_code == 403
            assert "User:bob may not DESCRIBE the cluster" in denied.json()["message"]
            page = http.get(f"{metrics}/metrics", auth=("ada", "ada's"))
            assert page.status_code == 200
            assert "log_broker_sign_ins_refused_total 2.0" in page.text
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()


def test_metrics_that_others_can_reach_ask_as_the_listeners_do() -> None:
    settings = {
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.jaas.config": 'x required username="node" password="between";',
    }
    with log_broker.embedded(config=settings) as secured, log_broker.embedded() as plain:
        guard = metrics_security(secured.node, host="0.0.0.0")
        assert guard is not None
        assert guard.sign_in.listener.protocol is Protocol.SASL_PLAINTEXT
        assert metrics_security(secured.node, host="127.0.0.1") is None
        assert metrics_security(plain.node, host="0.0.0.0") is None
        guard.close()


@pytest.mark.parametrize("module", ["fluvial.node", "log_broker"])
def test_a_node_in_plain_text_is_not_opened_to_the_network_unasked(tmp_path: Path, module: str) -> None:
    command = [sys.executable, "-m", module, "--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path / "node")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "other machines reach 0.0.0.0" in refused.stderr
    assert "--allow-plaintext" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(tmp_path.glob("node/*-0"))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, "REGISTRY"),
        ({"listener.security.protocol.map": "REGISTRY:SASL_PLAINTEXT"}, "METRICS"),
        ({"listener.security.protocol.map": "REGISTRY:SASL_PLAINTEXT,METRICS:SASL_PLAINTEXT"}, None),
    ],
)
def test_what_others_can_reach_asks_who_they_are_or_is_meant(settings: dict[str, str], refused: str | None) -> None:
    config = BrokerConfig(data_dir=Path("unused")).with_settings(settings)
    hosts = {"REGISTRY": "10.0.0.5", "METRICS": "0.0.0.0"}
    if refused is None:
        assert check_http_exposure(config, hosts, allow_plaintext=False) == []
        return
    with pytest.raises(BrokerError, match=f"where {refused} asks nobody .* add --allow-plaintext"):
        check_http_exposure(config, hosts, allow_plaintext=False)
    assert hosts[refused] in check_http_exposure(config, hosts, allow_plaintext=True)
    assert check_http_exposure(config, dict.fromkeys(hosts, "127.0.0.1"), allow_plaintext=False) == []
