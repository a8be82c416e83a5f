"""Requests and answers of very many elements: read, decided and written so that others have their turn."""

import asyncio
import gc
import struct
from pathlib import Path
from typing import Any

import pytest
from node_client import NodeClient, client_of, running
from node_cluster import cluster_of, eventually
from test_server_long_walks import Gate, probe

from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.records.readable import HEADERS_MAX
from log_broker.server.handlers.admin import describe_log_dirs, describe_topic_partitions, metadata
from log_broker.server.handlers.data import fetch
from log_broker.server.net import dispatch
from log_broker.server.process.turns import OneATurn
from log_broker.server.quorum.controller import Controller
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import write_request

WAIT_SECONDS = 30.0


def groups(count: int) -> dict[str, Any]:
    return {"groups": tuple(f"group-{number}" for number in range(count)), "include_authorized_operations": False}


def fetched(partitions: int, *, max_wait: int = 0, session_epoch: int = -1) -> dict[str, Any]:
    asked = tuple(
        {"partition": at, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        for at in range(partitions)
    )
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": 1,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": session_epoch,
        "topics": ({"topic": "t", "partitions": asked},),
        "forgotten_topics_data": (),
    }


@pytest.mark.parametrize("what", ["read_counted_request", "_encode"])
async def test_a_client_is_answered_while_a_large_request_is_read_or_its_answer_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async with running(tmp_path / "node") as (node, client), client_of(node) as other:
        gate = Gate(getattr(dispatch, what))
        monkeypatch.setattr(dispatch, what, gate)
        asking = asyncio.create_task(client.ask(ApiKey.DESCRIBE_GROUPS, groups(3_000), version=5))
        await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        await other.ask(ApiKey.DESCRIBE_GROUPS, groups(2), version=5)
        await probe(node)
        assert not asking.done()
        gate.open()
        assert len((await asyncio.wait_for(asking, WAIT_SECONDS)).groups) == 3_000
        assert gate.elsewhere == 1


async def test_a_large_request_that_cannot_be_read_ends_its_connection_alone(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, _), client_of(node) as other:
        request = write_request(ApiKey.DESCRIBE_GROUPS, 5, 1, "t", groups(3_000))[:-100]
        other.writer.write(struct.pack(">i", len(request)) + request)
        assert await asyncio.wait_for(other.reader.read(), WAIT_SECONDS) == b""
        await probe(node)


async def test_a_client_that_goes_while_its_large_request_is_read_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "node") as (node, _):
        gate = Gate(dispatch.read_counted_request)
        monkeypatch.setattr(dispatch, "read_counted_request", gate)
        async with client_of(node) as other:
            request = write_request(ApiKey.DESCRIBE_GROUPS, 5, 1, "t", groups(3_000))
            other.writer.write(struct.pack(">i", len(request)) + request)
            await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        gate.open()
        await eventually(lambda: not node.tasks and not node.memory.held)
        await probe(node)


async def test_a_large_request_that_is_refused_is_read_again_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    components = tuple({"entity_type": f"type-{number}", "match_type": 2, "match": None} for number in range(2_000))
    async with running(tmp_path / "node") as (node, client):
        gate = Gate(dispatch.write_refusal)
        monkeypatch.setattr(dispatch, "write_refusal", gate)
        request = {"components": components, "strict": True}
        asking = asyncio.create_task(client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, request, version=1))
        await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        await probe(node)
        gate.open()
        assert (await asyncio.wait_for(asking, WAIT_SECONDS)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (gate.in_loop, gate.elsewhere) == (0, 1)


async def test_large_requests_to_the_controller_are_carried_out_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = ({"partition_index": 0, "replicas": (0,)},)
    topics = tuple({"name": f"no-topic-{number}", "partitions": partitions} for number in range(2_000))
    asked: list[int] = []

    async def reassign(controller: Any, wanted: Any, **options: Any) -> Any:
        asked.append(len(wanted))
        return await real(controller, wanted, **options)

    real = Controller.reassign
    monkeypatch.setattr(Controller, "reassign", reassign)
    async with running(tmp_path / "node") as (node, client), client_of(node) as other:
        gate = Gate(dispatch._encode)
        monkeypatch.setattr(dispatch, "_encode", gate)
        request = {"timeout_ms": 30_000, "topics": topics}
        asking = [
            asyncio.create_task(each.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, version=0))
            for each in (client, other)
        ]
        await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        await probe(node)
        assert asked == [2_000], "and the other is not even read"
        gate.open()
        for answer in await asyncio.wait_for(asyncio.gather(*asking), WAIT_SECONDS):
            assert len(answer.responses) == 2_000
        assert asked == [2_000] * 2


async def test_a_large_request_that_is_passed_on_waits_for_no_other_here(tmp_path: Path) -> None:
    partitions = ({"partition_index": 0, "replicas": (0,)},)
    topics = tuple({"name": f"no-topic-{number}", "partitions": partitions} for number in range(2_000))
    async with cluster_of(tmp_path, 3) as cluster:
        passes_on = next(node for node in cluster.nodes.values() if not node.is_controller)
        async with passes_on.large_decisions, client_of(passes_on) as client:
            request = {"timeout_ms": 30_000, "topics": topics}
            asking = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, version=0)
            assert len((await asyncio.wait_for(asking, WAIT_SECONDS)).responses) == 2_000


async def test_pages_of_partitions_are_made_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def described(node: Any, *of: Any) -> Any:
        (indexes,) = of[2:]
        sizes.append(len(indexes))
        return real(node, *of)

    sizes: list[int] = []
    real = metadata.topic_values
    request = {"topics": (), "response_partition_limit": 11, "cursor": None}
    monkeypatch.setattr(describe_topic_partitions, "PARTITIONS_AT_ONCE_MAX", 4)
    monkeypatch.setattr(metadata, "topic_values", described)
    async with running(tmp_path / "node") as (_, client):
        await _topics(client, 3, 1, 10)
        answer = await client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, version=0)
        assert [[each.partition_index for each in topic.partitions] for topic in answer.topics] == [
            [0, 1, 2],
            [0],
            [0, 1, 2, 3, 4, 5, 6],
        ]
        assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("t2", 7)
        assert [size for size in sizes if size] == [3, 1, 4, 3]


async def _topics(client: NodeClient, *counts: int) -> None:
    for number, count in enumerate(counts):
        assert (await client.create(f"t{number}", count)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("named", [False, True])
async def test_metadata_of_many_partitions_is_made_in_turns_once_for_all_who_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    wanted = tuple({"name": f"t{number}", "topic_id": None} for number in (*range(4), 9)) if named else None
    request = {
        "topics": wanted,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    async with running(tmp_path / "node") as (node, client), client_of(node) as second:
        await _topics(client, 3, 1, 5, 2)
        at_once = (await client.ask(ApiKey.METADATA, request)).topics
        node.metadata_answers.clear()
        monkeypatch.setattr(metadata, "PARTITIONS_AT_ONCE_MAX", 4)
        gate = Gate(metadata._encode)
        monkeypatch.setattr(metadata, "_encode", gate)
        asking = [asyncio.create_task(each.ask(ApiKey.METADATA, request)) for each in (client, second)]
        await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        await probe(node)
        gate.open()
        for answer in await asyncio.wait_for(asyncio.gather(*asking), WAIT_SECONDS):
            assert answer.topics == at_once
        assert (gate.in_loop, gate.elsewhere) == (0, 1)


async def test_metadata_that_changes_while_it_is_made_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    async with running(tmp_path / "node") as (node, client), client_of(node) as second:
        await _topics(client, 3, 3)
        monkeypatch.setattr(metadata, "PARTITIONS_AT_ONCE_MAX", 4)
        gate = Gate(metadata._encode)
        monkeypatch.setattr(metadata, "_encode", gate)
        asking = asyncio.create_task(client.ask(ApiKey.METADATA, request))
        await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        assert (await second.delete("t0")).error_code == ErrorCode.NONE
        gate.open()
        await asyncio.wait_for(asking, WAIT_SECONDS)
        assert [topic.name for topic in (await client.ask(ApiKey.METADATA, request)).topics] == ["t1"]


async def test_log_directories_are_described_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "node") as (_, client):
        await _topics(client, 3, 1, 5)
        await client.produce("t2", bytes(build_batch([(1, None, b"v", ())])), partition=4)
        at_once = await client.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
        monkeypatch.setattr(describe_log_dirs, "PARTITIONS_AT_ONCE_MAX", 2)
        in_turns = await client.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
        assert in_turns.results[0].topics == at_once.results[0].topics
        assert sum(len(topic.partitions) for topic in in_turns.results[0].topics) == 9


async def test_records_deleted_by_many_requests_in_a_row_are_remembered_by_few_writes(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client), client_of(node) as other:
        await client.create("t")
        batch = bytes(build_batch([(1, None, b"v", ())] * 20))
        assert (await client.produce("t", batch)).error_code == ErrorCode.NONE
        writes = 0
        log_starts = node.logs.checkpoints._log_starts
        write = log_starts.write

        def counted() -> None:
            nonlocal writes
            writes += 1
            write()

        log_starts.write = counted  # type: ignore[method-assign]
        for offset in range(1, 11):
            partition = {"partition_index": 0, "offset": offset}
            request = {"topics": ({"name": "t", "partitions": (partition,)},), "timeout": 1000}
            sent = write_request(ApiKey.DELETE_RECORDS, 2, offset, "t", request)
            other.writer.write(struct.pack(">i", len(sent)) + sent)
        for _ in range(10):
            (length,) = struct.unpack(">i", await asyncio.wait_for(other.reader.readexactly(4), WAIT_SECONDS))
            await other.reader.readexactly(length)
        assert node.logs.get("t", 0).log_start_offset == 10
        assert 1 <= writes < 10
    async with running(tmp_path / "node") as (node, _):
        assert node.logs.get("t", 0).log_start_offset == 10


async def test_a_fetch_of_very_many_partitions_is_parsed_and_encoded_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PARSED_AT_ONCE_BYTES", 400)
    monkeypatch.setattr(fetch, "ENCODED_AT_ONCE_MAX", 20)
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", 50)
        for at in (7, 49):
            await client.produce("t", bytes(build_batch([(1, None, b"v%d" % at, ())])), partition=at)
        parse, encode = Gate(fetch.parse_request), Gate(fetch.encode_response)
        monkeypatch.setattr(fetch, "parse_request", parse)
        monkeypatch.setattr(fetch, "encode_response", encode)
        for request in (fetched(50), fetched(3)):
            sent = write_request(ApiKey.FETCH, 12, 1, "t", request)
            client.writer.write(struct.pack(">i", len(sent)) + sent)
        for gate in (parse, encode):
            await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
            await probe(node)
            gate.open()
        sizes = []
        for _ in range(2):
            (length,) = struct.unpack(">i", await asyncio.wait_for(client.reader.readexactly(4), WAIT_SECONDS))
            sizes.append(len(await client.reader.readexactly(length)))
        assert sizes[0] > 50 * 20 > sizes[1], "the small one was answered behind the large one"
        assert (parse.elsewhere, parse.in_loop, encode.elsewhere, encode.in_loop) == (1, 1, 1, 1)
        assert not node.waiting_fetches


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_GROUPS, ApiKey.FETCH])
async def test_a_large_answer_that_cannot_be_written_becomes_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: ApiKey
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(fetch, "ENCODED_AT_ONCE_MAX", 20)
    coordinators = {"key": "", "key_type": 0, "coordinator_keys": tuple(f"group-{number}" for number in range(300))}
    version, request = {
        ApiKey.FIND_COORDINATOR: (4, coordinators),
        ApiKey.DESCRIBE_GROUPS: (5, groups(300)),
        ApiKey.FETCH: (12, fetched(50)),
    }[api]
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", 50)
        monkeypatch.setattr(dispatch, "_encode", fail)
        monkeypatch.setattr(fetch, "encode_response", fail)
        answer = await asyncio.wait_for(client.ask(api, request, version=version), WAIT_SECONDS)
        errors = {each.error_code for name in ("coordinators", "groups") for each in getattr(answer, name, ())}
        assert (errors or {answer.error_code}) == {ErrorCode.UNKNOWN_SERVER_ERROR}
        monkeypatch.undo()
        await probe(node)


async def test_a_client_that_goes_while_its_large_fetch_is_parsed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetch, "PARSED_AT_ONCE_BYTES", 400)
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", 50)
        gate = Gate(fetch.parse_request)
        monkeypatch.setattr(fetch, "parse_request", gate)
        async with client_of(node) as other:
            sent = write_request(ApiKey.FETCH, 12, 1, "t", fetched(50, max_wait=60_000))
            other.writer.write((struct.pack(">i", len(sent)) + sent) * 2)
            await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        (owner,) = node.waiting_fetches
        await eventually(lambda: owner.is_closed)
        gate.open()
        await eventually(lambda: not node.tasks and not node.waiting_fetches and not node.memory.held)
        await probe(node)
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_broken_fetch_of_very_many_partitions_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PARSED_AT_ONCE_BYTES", 400)
    async with running(tmp_path / "node") as (node, _), client_of(node) as other:
        sent = write_request(ApiKey.FETCH, 12, 1, "t", fetched(50))[:-40]
        other.writer.write(struct.pack(">i", len(sent)) + sent)
        assert await asyncio.wait_for(other.reader.read(), WAIT_SECONDS) == b""
        assert not node.waiting_fetches
        await probe(node)


async def test_a_produce_that_names_a_partition_twice_is_refused_whole(tmp_path: Path) -> None:
    batch = bytes(build_batch([(1, None, b"v", ())]))
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", 2)
        data = {"name": "t", "partition_data": tuple({"index": at, "records": batch} for at in (0, 1, 0))}
        request = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": (data,)}
        answer = await client.ask(ApiKey.PRODUCE, request, version=9)
        errors = [each.error_code for each in answer.responses[0].partition_responses]
        assert errors == [ErrorCode.INVALID_REQUEST] * 3
        assert [node.logs.get("t", at).log_end_offset for at in range(2)] == [0, 0]


async def test_a_record_of_more_headers_than_any_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        for count, error in ((HEADERS_MAX, ErrorCode.NONE), (HEADERS_MAX + 1, ErrorCode.INVALID_RECORD)):
            batch = bytes(build_batch([(1, None, b"v", (("", None),) * count)]))
            assert (await client.produce("t", batch)).error_code == error


async def test_decisions_of_one_turn_are_made_in_turns_of_their_own() -> None:
    turns, made = OneATurn(), []
    loop = asyncio.get_running_loop()
    turn = 0

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(made) < 20:
            loop.call_soon(count)

    async def decide() -> None:
        await turns.begin()
        made.append(turn)

    count()
    await asyncio.gather(*(decide() for _ in range(20)))
    assert len(set(made)) == 20


@pytest.mark.parametrize(
    ("at", "api", "version", "asked"),
    [
        ((OneATurn, "begin"), ApiKey.WRITE_TXN_MARKERS, 1, {"markers": ()}),
        ((dispatch, "room_for_answer"), ApiKey.DESCRIBE_GROUPS, 5, groups(600)),
    ],
)
async def test_a_request_that_waits_for_its_turn_when_the_node_stops_has_not_begun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: tuple[Any, str],
    api: ApiKey,
    version: int,
    asked: dict[str, Any],
) -> None:
    """A coroutine made for it and never awaited would be a warning, which fails the tests."""
    waiting = asyncio.Event()

    async def never(*_: object) -> None:
        waiting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(*at, never)
    async with running(tmp_path / "node") as (node, client):
        asking = asyncio.create_task(client.ask(api, asked, version=version))
        await asyncio.wait_for(waiting.wait(), WAIT_SECONDS)
        await node.stop()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(asking, WAIT_SECONDS)
    gc.collect()
