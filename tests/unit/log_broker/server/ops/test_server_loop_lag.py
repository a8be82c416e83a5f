"""A turn of the event loop that lasts is seen: in the metrics, in the log and in a cluster's events."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
from node_client import running
from node_cluster import eventually
from prometheus_client.core import Metric

from log_broker.config.broker import BrokerConfig
from log_broker.config.keys import INT_MAX
from log_broker.errors import BrokerError
from log_broker.server.node import Node
from log_broker.server.ops import loop_lag
from log_broker.server.ops.exposition import NodeCollector

WARN = {"fluvial.event.loop.lag.warn.ms": "50"}


def lag_of(node: Node) -> dict[str, float]:
    families: list[Metric] = [each for each in NodeCollector(node).collect() if "event_loop" in each.name]
    return {sample.name + sample.labels.get("le", ""): sample.value for family in families for sample in family.samples}


async def ticked(node: Node) -> None:
    """Return once the lag has been measured again."""
    count = node.loop_lag.durations.count
    await eventually(lambda: node.loop_lag.durations.count > count)


async def test_a_long_turn_is_counted_and_told_once(tmp_path: Path, caplog) -> None:
    async with running(tmp_path / "node", WARN) as (node, _):
        await ticked(node)
        for _ in range(3):
            time.sleep(0.4)  # noqa: ASYNC251 this is the long turn
            await ticked(node)
        found = lag_of(node)
        assert found["log_broker_event_loop_lag_seconds_count"] >= 4
        late = (
            found["log_broker_event_loop_lag_seconds_count"] - found["log_broker_event_loop_lag_seconds_bucket0.131072"]
        )
        assert late >= 3
        assert found["log_broker_event_loop_lag_longest_seconds"] > 0.2
    warnings = [each for each in caplog.records if each.name == loop_lag.__name__ and each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "ms late" in warnings[0].getMessage()


async def test_below_the_limit_nothing_is_said_and_nothing_is_left_when_the_node_stops(tmp_path: Path, caplog) -> None:
    async with running(tmp_path / "node", {"fluvial.event.loop.lag.warn.ms": str(INT_MAX)}) as (node, _):
        time.sleep(0.3)  # noqa: ASYNC251 this is the long turn
        await ticked(node)
    assert not [each for each in caplog.records if each.name == loop_lag.__name__]
    count = node.loop_lag.durations.count
    await asyncio.sleep(3 * loop_lag.TICK_SECONDS)
    assert node.loop_lag.durations.count == count


async def test_in_a_cluster_it_is_an_event(tmp_path: Path, monkeypatch) -> None:
    noted: list[tuple[str, dict[str, object]]] = []
    async with running(tmp_path / "node", WARN) as (node, _):
        monkeypatch.setattr(node.events, "note", lambda kind, text, **fields: noted.append((kind, fields)))
        for _ in range(2):
            time.sleep(0.4)  # noqa: ASYNC251 this is the long turn
            await ticked(node)
            node.cluster.brokers[7] = node.cluster.brokers[node.config.node_id]
        assert [kind for kind, _ in noted] == ["event_loop_late"]
        del node.cluster.brokers[7]
    assert noted[0][1]["lag_ms"] >= 50


def test_the_limit_is_a_positive_number() -> None:
    with pytest.raises(BrokerError):
        BrokerConfig(data_dir=Path("data")).with_settings({"fluvial.event.loop.lag.warn.ms": "0"})
