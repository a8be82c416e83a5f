"""Which writes of a leader rest on its lease."""

import pytest
from replica_pair import ReplicaNode, config

from log_broker.errors import ErrorCode


@pytest.mark.parametrize(
    ("durability", "error"), [("memory", ErrorCode.NONE), ("fsync-leader", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
async def test_only_a_topic_in_memory_takes_writes_without_a_lease(durability: str, error: ErrorCode) -> None:
    node = ReplicaNode(1, config(fluvial_durability=durability))
    node.lead(1, isr=(1, 2))
    for acks in (0, 1):
        assert (await node.produce(b"x", acks=acks)).error is error
    await node.logs.close()
