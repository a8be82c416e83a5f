"""The node as a process: the ports that it serves."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

PROBES = ("healthz", "readyz")


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


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


@pytest.mark.parametrize("module", ["fluvial.node", "log_broker"])
def test_a_node_in_plain_text_is_not_opened_to_the_network_unasked(tmp_path: Path, module: str) -> None:
    command = [sys.executable, "-m", module, "--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path / "node")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "other machines reach 0.0.0.0" in refused.stderr
    assert "--allow-plaintext" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(tmp_path.glob("node/*-0"))
