"""Topics and reads as a client sees them on a socket: ids, names, epochs, special offsets, limits of a fetch."""

import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from node_client import NodeClient, running

from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.server.coordinators.internal_topics import ensure_offsets_topic
from log_broker.wire.apis import ApiKey

PLENTY = 1 << 20


def batch(*values: bytes, time_ms: int | None = None, key: bytes | None = b"k", **fields: Any) -> bytes:
    now_ms = time.time_ns() // 1_000_000 if time_ms is None else time_ms
    return bytes(build_batch([(now_ms, key, value, ()) for value in values], **fields))


def fetch_of(topic: "str | UUID", offset: int = 0, *, epoch: int = -1, **fields: Any) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": PLENTY,
    }
    named = {"topic_id" if isinstance(topic, UUID) else "topic": topic, "partitions": (partition,)}
    limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": PLENTY, "isolation_level": 0, "rack_id": "r1"}
    return {**limits, "topics": (named,), "forgotten_topics_data": (), **fields}


async def fetch(client: NodeClient, topic: "str | UUID", offset: int = 0, **fields: Any) -> Any:
    """Return the one partition of the answer."""
    version = None if isinstance(topic, UUID) else 12
    answer = await client.ask(ApiKey.FETCH, fetch_of(topic, offset, **fields), version=version)
    return answer.responses[0].partitions[0]


async def test_a_topic_is_fetched_by_its_id_and_one_made_again_is_another(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (_, client):
        first = (await client.create("t")).topic_id
        await client.produce("t", batch(b"old"))
        found = await fetch(client, first)
        assert (found.error_code, found.preferred_read_replica) == (ErrorCode.NONE, -1)
        assert b"old" in found.records
        assert (await client.delete("t")).error_code == ErrorCode.NONE
        second = (await client.create("t")).topic_id
        assert second != first
        assert (await fetch(client, first)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert (await fetch(client, uuid4())).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        found = await fetch(client, second)
        assert (found.error_code, found.records or b"") == (ErrorCode.NONE, b"")


async def test_a_waiting_fetch_by_id_hears_that_its_topic_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client), running(tmp_path / "unused") as (_, _):
        topic_id = (await client.create("t")).topic_id
        node.loop.call_later(0.05, node.run, node.authority.submit(lambda image: [_deletion(image, "t")]))
        assert (await fetch(client, topic_id, max_wait=60_000)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def _deletion(image: Any, name: str) -> Any:
    from log_broker.core.cluster.records import TopicDeleted

    return TopicDeleted(topic_id=image.topics[name].topic_id)


async def test_a_session_names_topics_in_one_way_only(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (_, client):
        topic_id = (await client.create("t")).topic_id
        opened = await client.ask(ApiKey.FETCH, fetch_of(topic_id, session_id=0, session_epoch=0))
        assert opened.session_id > 0
        going_on = {"session_id": opened.session_id, "session_epoch": 1, "topics": ()}
        answer = await client.ask(ApiKey.FETCH, fetch_of("t", **going_on), version=12)
        assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        await client.produce("t", batch(b"new"))
        answer = await client.ask(ApiKey.FETCH, fetch_of(topic_id, **going_on))
        assert (answer.error_code, answer.responses[0].topic_id) == (ErrorCode.NONE, topic_id)
        assert b"new" in answer.responses[0].partitions[0].records


async def test_a_first_batch_over_every_limit_is_returned_at_once(tmp_path: Path) -> None:
    async with running(tmp_path / "node", {"fetch.max.bytes": "2000"}) as (_, client):
        await client.create("t")
        for _ in range(3):
            await client.produce("t", batch(b"x" * 1500))
        found = await fetch(client, "t", max_bytes=1, min_bytes=1)
        assert 1500 < len(found.records) < 2000
        # More than the broker would ever send at once is asked for: it is answered as soon as that is reached.
        found = await fetch(client, "t", min_bytes=PLENTY, max_wait=600_000)
        assert 1500 < len(found.records) < 2000


async def test_an_offset_outside_the_log_is_said(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        await client.produce("t", batch(b"a"))
        assert (await fetch(client, "t", 1)).error_code == ErrorCode.NONE
        for offset in (-1, 2):
            assert (await fetch(client, "t", offset, max_wait=60_000)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def list_offset(client: NodeClient, timestamp: int, *, version: int | None = None, epoch: int = -1) -> Any:
    partition = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": timestamp}
    request = {"replica_id": -1, "isolation_level": 0, "topics": ({"name": "t", "partitions": (partition,)},)}
    answer = await client.ask(ApiKey.LIST_OFFSETS, {**request, "timeout": 1000}, version=version)
    return answer.topics[0].partitions[0]


async def test_every_special_timestamp_has_its_answer(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client):
        await client.create("t")
        for late in (5, 9, 7):
            await client.produce("t", batch(b"a", time_ms=1_000 + late))
        runtime = node.logs.get("t", 0)
        assert runtime is not None
        runtime.keeping.delete_records(1)
        expected = {-1: (-1, 3), -2: (-1, 1), -3: (1009, 1), -4: (-1, 1), -5: (-1, -1), 1008: (1009, 1), 1010: (-1, -1)}
        for timestamp, answer in expected.items():
            found = await list_offset(client, timestamp)
            assert (found.error_code, (found.timestamp, found.offset)) == (ErrorCode.NONE, answer), timestamp
            assert found.leader_epoch == (0 if found.offset >= 0 else -1)
        for timestamp, version in ((-3, 6), (-4, 7), (-5, 8), (-6, 10)):
            found = await list_offset(client, timestamp, version=version)
            assert found.error_code == ErrorCode.UNSUPPORTED_VERSION, "it could not be meant in this version"


async def test_a_reader_of_another_epoch_is_fenced_and_finds_where_its_own_ended(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        await client.produce("t", batch(b"a", b"b"))
    async with running(tmp_path / "node") as (_, client):
        await client.produce("t", batch(b"c"))
        assert (await fetch(client, "t", epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await fetch(client, "t", epoch=2)).error_code == ErrorCode.NONE
        assert (await fetch(client, "t", epoch=3)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await list_offset(client, -1, epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert [(await list_offset(client, special)).leader_epoch for special in (-2, -1)] == [0, 2]

        async def end_of(epoch: int, current: int = -1) -> Any:
            partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            request = {"replica_id": -1, "topics": ({"topic": "t", "partitions": (partition,)},)}
            found = (await client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request)).topics[0].partitions[0]
            return found.error_code, found.leader_epoch, found.end_offset

        assert await end_of(0) == (ErrorCode.NONE, 0, 2)
        assert await end_of(2) == (ErrorCode.NONE, 2, 3)
        assert await end_of(7) == (ErrorCode.NONE, -1, -1)
        assert await end_of(0, current=0) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)


async def test_epochs_are_known_again_when_their_file_is_lost(tmp_path: Path) -> None:
    for _ in range(3):
        async with running(tmp_path / "node") as (_, client):
            if not (tmp_path / "node" / "t-0").exists():
                await client.create("t")
            await client.produce("t", batch(b"a"))
    for name in ("leader-epoch-checkpoint", f"{3:020d}.snapshot", f"{2:020d}.snapshot", f"{1:020d}.snapshot"):
        (tmp_path / "node" / "t-0" / name).unlink(missing_ok=True)
    async with running(tmp_path / "node") as (node, _):
        runtime = node.logs.get("t", 0)
        assert runtime is not None
        # Between two times of leading there is one without a leader.
        assert [runtime.epoch_end_offset(epoch) for epoch in range(0, 7, 2)] == [(0, 1), (2, 2), (4, 3), (6, 3)]


async def metadata(client: NodeClient, topic: str, *, allow: bool = True) -> Any:
    named = {"name": topic, "topic_id": None}
    fields = {"include_topic_authorized_operations": False, "allow_auto_topic_creation": allow}
    return (await client.ask(ApiKey.METADATA, {"topics": (named,), **fields})).topics[0]


async def test_topics_are_made_on_demand_where_both_sides_agree(tmp_path: Path) -> None:
    async with running(tmp_path / "node", {"num.partitions": "3"}) as (node, client):
        assert (await metadata(client, "quiet", allow=False)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "quiet" not in node.cluster.topics
        made = await metadata(client, "made")
        assert (made.error_code, len(made.partitions)) == (ErrorCode.NONE, 3)
        await set_broker(client, "num.partitions", "5")
        assert len((await metadata(client, "more")).partitions) == 5
        await client.create("a.b")
        assert (await metadata(client, "a_b")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await metadata(client, "a b")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        await set_broker(client, "auto.create.topics.enable", "false")
        assert (await metadata(client, "late")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "late" not in node.cluster.topics


async def set_broker(client: NodeClient, name: str, value: str) -> None:
    config = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 4, "resource_name": "", "configs": (config,)}
    answer = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": (resource,), "validate_only": False})
    assert answer.responses[0].error_code == ErrorCode.NONE, answer.responses[0].error_message


async def test_topics_stay_where_deletion_is_switched_off(tmp_path: Path) -> None:
    async with running(tmp_path / "node", {"delete.topic.enable": "false"}) as (node, client):
        await client.create("t")
        assert (await client.delete("t")).error_code == ErrorCode.TOPIC_DELETION_DISABLED
        assert "t" in node.cluster.topics


async def test_internal_topics_are_not_written_by_clients(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client):
        await ensure_offsets_topic(node)
        records = batch(b"a")
        for topic in ("__consumer_offsets", "__cluster_metadata"):
            assert (await client.produce(topic, records)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            request = {"name": topic, "partitions": ({"partition_index": 0, "offset": 0},)}
            answer = await client.ask(ApiKey.DELETE_RECORDS, {"topics": (request,), "timeout": 1000})
            assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await client.create("__cluster_metadata")).error_code == ErrorCode.INVALID_REQUEST
        # Kafka's tools repair what is in there under this name; what brokers agree on is not theirs either.
        allowed = await client.produce("__consumer_offsets", records, name="__admin_client")
        assert allowed.error_code == ErrorCode.NONE
        refused = await client.produce("__cluster_metadata", records, name="__admin_client")
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("version", "code"), [(0, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT), (9, ErrorCode.INVALID_RECORD)]
)
async def test_older_message_formats_are_refused(tmp_path: Path, magic: int, version: int, code: ErrorCode) -> None:
    message = bytes(16) + bytes([magic]) + bytes(40)
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        if version == 9:
            assert (await client.produce("t", message)).error_code == code
            return
        records = len(message).to_bytes(4, "big") + message
        body = b"\0\1" + (1000).to_bytes(4, "big") + b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0" + records
        header = b"\0\0\0\0\0\0\0\7\0\1t"
        client.writer.write((len(header) + len(body)).to_bytes(4, "big") + header + body)
        answer = await client.reader.readexactly(int.from_bytes(await client.reader.readexactly(4), "big"))
        assert int.from_bytes(answer[4 + 4 + 3 + 4 + 4 :][:2], "big") == code
