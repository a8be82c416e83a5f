"""OffsetCommit at a node: many partitions in one request, and records that the log refuses."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from node_client import NodeClient, running

from log_broker.errors import ErrorCode
from log_broker.server.net.dispatch import READ_AT_ONCE_BYTES, WRITTEN_WITHIN_MAX
from log_broker.wire.apis import ApiKey

NONE = ErrorCode.NONE


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[NodeClient]:
    async with running(tmp_path, {"offsets.topic.num.partitions": "1"}) as (_, client):
        await client.create("t", partitions=3)
        await client.ask(ApiKey.FIND_COORDINATOR, {"key": "g", "key_type": 0}, version=1)
        while await commit(client, [0]) != [NONE]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        yield client


async def commit(client: NodeClient, partitions: Iterable[int], metadata: str = "") -> list[ErrorCode]:
    """Commit partition p up to 10 + p, and return what is answered of each."""
    named = [{"partition_index": at, "committed_offset": 10 + at, "committed_metadata": metadata} for at in partitions]
    values = {"group_id": "g", "member_id": "", "topics": [{"name": "t", "partitions": named}]}
    (topic,) = (await client.ask(ApiKey.OFFSET_COMMIT, values, version=9)).topics
    assert [each.partition_index for each in topic.partitions] == list(partitions)
    return [ErrorCode(each.error_code) for each in topic.partitions]


async def committed(client: NodeClient) -> list[int]:
    named = [{"name": "t", "partition_indexes": [0, 1, 2]}]
    groups = [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": named}]
    (group,) = (await client.ask(ApiKey.OFFSET_FETCH, {"groups": groups, "require_stable": False}, version=9)).groups
    return [each.committed_offset for each in group.topics[0].partitions]


async def test_a_large_commit_is_read_and_answered_beside_the_event_loop(client: NodeClient) -> None:
    partitions = range(WRITTEN_WITHIN_MAX + READ_AT_ONCE_BYTES // 16)
    unknown = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (len(partitions) - 3)
    assert await commit(client, partitions) == [NONE, NONE, NONE, *unknown]
    assert await committed(client) == [10, 11, 12]


async def test_a_commit_that_the_log_refuses_changes_nothing(client: NodeClient) -> None:
    limit = {"name": "max.message.bytes", "config_operation": 0, "value": "200"}
    resource = {"resource_type": 2, "resource_name": "__consumer_offsets", "configs": [limit]}
    await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
    assert await commit(client, [0, 1, 2], "m" * 100) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * 3
    assert await committed(client) == [10, -1, -1]
    assert await commit(client, [1]) == [NONE]
    assert await committed(client) == [10, 11, -1]
