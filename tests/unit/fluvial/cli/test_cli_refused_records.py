"""`fluvial topic produce` against a broker whose disk has failed: it tells the reason before it gives records up."""

import io
from types import SimpleNamespace
from typing import Any

import pytest

import log_broker
from fluvial.cli.main import execute
from fluvial.cli.topic import produce


def run(broker: Any, monkeypatch: pytest.MonkeyPatch, lines: bytes) -> int:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    return execute(["topic", "produce", "t", "--bootstrap-server", broker.bootstrap_servers])


def test_a_failing_disk_is_told_while_there_is_hope_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(produce, "TELL_SECONDS", 0.1)
    monkeypatch.setattr(produce, "DELIVERY_SECONDS", 2.0)
    with log_broker.embedded(topics=["t"]) as broker:
        runtime = broker.node.logs.get("t", 0)
        assert runtime is not None
        runtime.replica.core.state.offline_reason = "the failed write could not be taken back"
        assert run(broker, monkeypatch, b"lost\n") == 1
        told, failed = capsys.readouterr().err.splitlines()
        assert told.startswith("the cluster refuses records for 't': Broker: Disk error")
        assert failed.startswith("error: the cluster took no record for 't' within 2 s; 0 records were written")
        assert "Disk error" in failed

        runtime.replica.core.state.offline_reason = None
        assert run(broker, monkeypatch, b"kept\n") == 0
        assert capsys.readouterr().err == "1 records written to t\n"
