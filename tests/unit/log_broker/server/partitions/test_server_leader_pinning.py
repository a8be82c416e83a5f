"""Leaders that stay in the racks that their topic prefers, on three real nodes."""

from pathlib import Path
from typing import Any

from node_client import client_of
from node_cluster import cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic, Operation
from log_broker.errors import ErrorCode
from log_broker.server.handlers.admin.describe_configs import BROKER, TOPIC
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey

KEY = "fluvial.leaders.preference"


async def alter(node: Node, kind: int, name: str, text: str) -> Any:
    config = {"name": KEY, "config_operation": Operation.SET, "value": text}
    resource = {"resource_type": kind, "resource_name": name, "configs": (config,)}
    async with client_of(node) as client:
        values = {"resources": (resource,), "validate_only": False}
        return (await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, values)).responses[0]


async def described(node: Node, kind: int, name: str) -> str:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": (KEY,)}
    async with client_of(node) as client:
        (result,) = (await client.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": (resource,)})).results
    return str(result.configs[0].value)


async def test_leaders_stay_in_the_preferred_rack_and_come_back_to_it(tmp_path: Path) -> None:
    settings = {"leader.imbalance.check.interval.seconds": "1"}
    async with cluster_of(tmp_path, 3, settings, racks=("r0", "r1", "r2")) as cluster:
        first = cluster.nodes[0]

        def leaders() -> set[int]:
            return {partition.leader for partition in first.cluster.topics["t"].partitions}

        for kind, name in ((BROKER, ""), (TOPIC, "t")):
            if kind == TOPIC:
                await first.ensure_topic(CreateTopic(name="t", topic_id="a" * 32, partitions=3, replication_factor=3))
                await eventually(lambda: "t" in first.cluster.topics)
                assert leaders() == {2}, "the default of all brokers holds"
            refused = await alter(first, kind, name, "r2")
            assert refused.error_code == ErrorCode.INVALID_CONFIG
            assert "it is not none, racks:<rack>,<rack>… or ordered_racks:" in refused.error_message
            if kind == BROKER:
                assert (await alter(first, BROKER, "", "racks:r2")).error_code == ErrorCode.NONE
                await eventually(lambda: bool(first.cluster.broker_overrides))
        assert await described(first, TOPIC, "t") == "racks:r2"

        await cluster.stop(2)
        assert 2 not in leaders()
        assert len(leaders() - {-1}) > 0
        await cluster.start(2)
        await eventually(lambda: leaders() == {2})

        assert (await alter(first, TOPIC, "t", "ordered_racks:r1,r0")).error_code == ErrorCode.NONE
        await eventually(lambda: leaders() == {1})
        assert await described(first, TOPIC, "t") == "ordered_racks:r1,r0"
