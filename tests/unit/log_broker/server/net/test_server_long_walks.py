"""What one request makes a broker walk over: bounded, and where it takes long not in the event loop."""

import asyncio
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node_client import NodeClient, client_of, running
from node_cluster import eventually
from quarantine_node import stored
from test_server_topics_and_reads import list_offset

from log_broker.core.partition import admission
from log_broker.core.partition.admission import CHECKED_AT_ONCE_BYTES_MAX, CHECKED_AT_ONCE_MAX
from log_broker.errors import ErrorCode
from log_broker.records import Codec, build_batch, read_header
from log_broker.records import record as records_module
from log_broker.records.batch import HEADER, HEADER_BYTES, seal
from log_broker.records.compression import compress
from log_broker.records.readable import HEADERS_AT_ONCE_MAX
from log_broker.records.validation import READ_AT_ONCE_MAX, RECORDS_MAX
from log_broker.server.handlers.admin import create_topics, describe_configs, incremental_alter_configs
from log_broker.server.handlers.data import list_offsets
from log_broker.server.net import dispatch
from log_broker.server.ops import quarantine as quarantine_module
from log_broker.server.partitions import time_search
from log_broker.server.partitions.time_search import OPENED_FOR_TIME_MAX, TimeSearch
from log_broker.server.replication.manager import MADE_AT_ONCE_MAX
from log_broker.wire import messages
from log_broker.wire.apis import REQUEST_ELEMENTS_MAX, ApiKey
from log_broker.wire.control import read_response, write_request
from log_broker.wire.reading import STRING_BYTES_MAX

MINUTE_MS = 60_000
WAIT_SECONDS = 30.0


def bomb(count: int, *, base_ms: int = 0, latest_ms: int | None = None) -> bytes:
    """Return a batch of many tiny records that are a few bytes under zstd."""
    section = build_batch([(0, b"k", None, ())] * count)[HEADER_BYTES:]
    payload = compress(Codec.ZSTD, bytes(section))
    batch = bytearray(HEADER_BYTES + len(payload))
    size = len(batch) - 12
    latest = base_ms if latest_ms is None else latest_ms
    HEADER.pack_into(batch, 0, 0, size, 0, 2, 0, Codec.ZSTD, count - 1, base_ms, latest, -1, -1, -1, count)
    batch[HEADER_BYTES:] = payload
    seal(batch)
    return bytes(batch)


class Gate:
    """A function that notes the threads it runs in, and outside the event loop's waits until it is let go on."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self._loops_thread = threading.current_thread()
        self._open = threading.Event()
        self.entered = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.in_loop = 0
        self.elsewhere = 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        if threading.current_thread() is self._loops_thread:
            self.in_loop += 1
        else:
            self.elsewhere += 1
            self._loop.call_soon_threadsafe(self.entered.set)
            assert self._open.wait(WAIT_SECONDS)
        return self._real(*given, **named)

    def open(self) -> None:
        self._open.set()


async def probe(node: Any) -> None:
    async with client_of(node) as other:
        await other.ask(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False, "endpoint_type": 1})


async def test_a_client_is_answered_while_the_records_of_another_are_looked_at(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(admission.check_records)
    monkeypatch.setattr(admission, "check_records", gate)
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", cleanup_policy="compact")
        producing = asyncio.create_task(client.produce("t", bomb(200_000)))
        await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        await probe(node)
        assert not producing.done()
        gate.open()
        assert (await producing).error_code == ErrorCode.NONE
    assert (gate.in_loop, gate.elsewhere) == (0, 1)


async def test_what_comes_behind_a_long_batch_is_appended_behind_it(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(admission.check_records)
    monkeypatch.setattr(admission, "check_records", gate)
    sent = (bomb(5_000), bytes(build_batch([(1, b"k", b"small", ())])), bomb(3_000))
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", cleanup_policy="compact")
        async with client_of(node) as second, client_of(node) as third:
            clients = (client, second, third)
            answers = []
            for each, batch in zip(clients, sent, strict=True):
                answers.append(asyncio.create_task(each.produce("t", batch)))
                await probe(node)
            assert not any(answer.done() for answer in answers)
            gate.open()
            found = [await asyncio.wait_for(answer, WAIT_SECONDS) for answer in answers]
    assert [answer.base_offset for answer in found] == [0, 5_000, 5_001]


async def test_a_partition_that_closes_meanwhile_refuses_the_batch_and_those_behind(
    tmp_path: Path, monkeypatch
) -> None:
    gate = Gate(admission.check_records)
    monkeypatch.setattr(admission, "check_records", gate)
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", cleanup_policy="compact")
        async with client_of(node) as second, client_of(node) as third:
            long = asyncio.create_task(client.produce("t", bomb(5_000)))
            await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
            behind = asyncio.create_task(second.produce("t", bytes(build_batch([(1, b"k", b"v", ())]))))
            await probe(node)
            await third.delete("t")
            gate.open()
            for answer in await asyncio.wait_for(asyncio.gather(long, behind), WAIT_SECONDS):
                assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_small_batch_that_decompresses_into_a_large_one_is_looked_at_elsewhere_too(
    tmp_path: Path, monkeypatch
) -> None:
    gate = Gate(admission.check_records)
    gate.open()
    monkeypatch.setattr(admission, "check_records", gate)
    large = build_batch([(1, b"k", bytes(2 * CHECKED_AT_ONCE_BYTES_MAX), ())], codec=Codec.ZSTD)
    async with running(tmp_path / "node") as (_, client):
        await client.create("t", cleanup_policy="compact")
        assert (await client.produce("t", bytes(large))).error_code == ErrorCode.NONE
        assert gate.elsewhere == 1
        small = build_batch([(1, b"k", b"v", ())] * CHECKED_AT_ONCE_MAX, codec=Codec.ZSTD)
        assert (await client.produce("t", bytes(small))).error_code == ErrorCode.NONE
        assert gate.elsewhere == 1


@pytest.mark.parametrize(
    ("what", "batch", "overrides"),
    [
        ("many records", build_batch([(1, None, b"v", ())] * (READ_AT_ONCE_MAX + 1)), {}),
        ("many headers", build_batch([(1, None, b"v", (("", None),) * (HEADERS_AT_ONCE_MAX + 1))]), {}),
        ("another codec", build_batch([(1, None, bytes(50_000), ())]), {"compression_type": "gzip"}),
    ],
)
async def test_other_long_work_on_a_batch_is_done_elsewhere(
    tmp_path: Path, monkeypatch, what, batch, overrides
) -> None:
    gate = Gate(admission.check_section)
    monkeypatch.setattr(admission, "check_section", gate)
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", **overrides)
        producing = asyncio.create_task(client.produce("t", bytes(batch)))
        await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        await probe(node)
        gate.open()
        assert (await producing).error_code == ErrorCode.NONE, what
        assert len(stored(node, "t")) == read_header(batch).record_count
    assert (gate.in_loop, gate.elsewhere) == (0, 1)


async def test_a_header_of_a_time_to_come_is_refused_without_reading_the_records(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(admission.check_records)
    gate.open()
    monkeypatch.setattr(admission, "check_records", gate)
    async with running(tmp_path / "node") as (node, client):
        await client.create("t")
        late_ms = node.clock_ms() + 120 * MINUTE_MS
        answer = await client.produce("t", bomb(200_000, latest_ms=late_ms))
        assert (answer.error_code, answer.record_errors) == (ErrorCode.INVALID_TIMESTAMP, ())
        assert gate.in_loop + gate.elsewhere == 0
        few = build_batch([(time, None, b"v", ()) for time in (1, late_ms, 2)])
        answer = await client.produce("t", bytes(few))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in answer.record_errors] == [1]


async def test_no_batch_of_more_than_a_million_records_is_opened(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(admission, "check_records", None)
    many = bytearray(bomb(10))
    struct.pack_into(">i", many, 23, RECORDS_MAX)
    struct.pack_into(">i", many, 57, RECORDS_MAX + 1)
    seal(many)
    async with running(tmp_path / "node") as (_, client):
        await client.create("t", cleanup_policy="compact")
        answer = await client.produce("t", bytes(many))
        assert answer.error_code in {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD}


async def test_a_client_is_answered_while_another_searches_a_stored_batch_by_time(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(records_module.first_of_time)
    monkeypatch.setattr(time_search, "first_of_time", gate)
    async with running(tmp_path / "node") as (node, client):
        await client.create("t")
        assert (await client.produce("t", bomb(100_000, base_ms=1_000, latest_ms=2_000))).error_code == ErrorCode.NONE
        searching = asyncio.create_task(list_offset(client, 1_500))
        await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
        await probe(node)
        gate.open()
        assert (await searching).error_code == ErrorCode.NONE
    assert gate.in_loop == 0


async def test_headers_that_lie_make_a_search_look_into_few_batches(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(records_module.first_of_time)
    gate.open()
    monkeypatch.setattr(time_search, "first_of_time", gate)
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        assert (await client.produce("t", bomb(3, base_ms=10))).error_code == ErrorCode.NONE
        for _ in range(3 * OPENED_FOR_TIME_MAX):
            await client.produce("t", bomb(2, base_ms=1_000, latest_ms=2_000))
        found = await list_offset(client, 1_500)
        assert (found.error_code, found.offset) == (ErrorCode.NONE, 3), "before all that may be so late"
        assert gate.in_loop + gate.elsewhere == OPENED_FOR_TIME_MAX


async def offsets_of(client: NodeClient, *asked: tuple[int, int]) -> list[tuple[int, int]]:
    partitions = tuple({"partition_index": at, "current_leader_epoch": -1, "timestamp": when} for at, when in asked)
    request = {"replica_id": -1, "isolation_level": 0, "topics": ({"name": "t", "partitions": partitions},)}
    answer = await client.ask(ApiKey.LIST_OFFSETS, {**request, "timeout": 1000})
    return [(each.partition_index, each.error_code) for each in answer.topics[0].partitions]


async def test_a_partition_that_is_named_twice_is_refused_and_the_others_are_answered(
    tmp_path: Path, monkeypatch
) -> None:
    looked: list[int] = []
    real = TimeSearch.offset_for_timestamp
    monkeypatch.setattr(
        TimeSearch,
        "offset_for_timestamp",
        lambda search, time: looked.append(search._replica.partition) or real(search, time),
    )
    async with running(tmp_path / "node") as (_, client):
        await client.create("t", 3)
        twice = await offsets_of(client, (0, 5), (1, 5), (0, 6), (2, -1))
        assert [code for _, code in twice] == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST, 0]
        assert looked == [1]
        many = await offsets_of(client, *[(0, 5)] * 15_000)
        assert {code for _, code in many} == {ErrorCode.INVALID_REQUEST}
        assert looked == [1]


async def test_others_have_their_turn_between_the_partitions_of_a_request(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(list_offsets, "AT_ONCE_MAX", 2)
    turns: list[str] = []
    real = list_offsets._find

    async def noted(runtime: Any, *asked: Any) -> Any:
        turns.append("found")
        asyncio.get_running_loop().call_soon(turns.append, "turn")
        return await real(runtime, *asked)

    monkeypatch.setattr(list_offsets, "_find", noted)
    async with running(tmp_path / "node") as (_, client):
        await client.create("t", 6)
        await offsets_of(client, *[(at, -1) for at in range(6)])
    most = max(map(len, "".join(turn[0] for turn in turns).split("t")))
    assert most == 2, turns


async def test_what_is_left_out_of_a_batch_is_gathered_elsewhere(tmp_path: Path, monkeypatch) -> None:
    from quarantine_node import NoBad, batch_of

    from log_broker.config.broker import BrokerConfig
    from log_broker.server.node import Node

    gate = Gate(quarantine_module.quarantined)
    monkeypatch.setattr(quarantine_module, "quarantined", gate)
    node = Node(BrokerConfig(data_dir=tmp_path / "node", port=0), validator=NoBad())
    await node.start()
    try:
        async with client_of(node) as client:
            await client.create("t", fluvial_value_schema_validation="id", fluvial_schema_violation="quarantine")
            producing = asyncio.create_task(client.produce("t", batch_of(b"good", b"bad", b"good")))
            await asyncio.wait_for(gate.entered.wait(), WAIT_SECONDS)
            await probe(node)
            gate.open()
            assert (await producing).error_code == ErrorCode.NONE
    finally:
        await node.stop()
    assert gate.in_loop == 0


async def test_unreadable_batches_are_refused_by_a_topic_of_default_settings(tmp_path: Path) -> None:
    empty = bytearray(build_batch([(1, None, b"v", ())])[:HEADER_BYTES])
    struct.pack_into(">i", empty, 8, HEADER_BYTES - 12)
    for offset, value in ((23, 999_999_999), (57, 1_000_000_000)):
        struct.pack_into(">i", empty, offset, value)
    seal(empty)
    garbage = bytearray(build_batch([(1, None, bytes(30), ())]))
    garbage[HEADER_BYTES:] = b"\xff" * (len(garbage) - HEADER_BYTES)
    seal(garbage)
    far = bytearray(build_batch([(1, None, b"v", ())]))
    far[HEADER_BYTES + 3] = 0x60
    seal(far)
    async with running(tmp_path / "node") as (node, client):
        await client.create("t")
        for at, batch in enumerate((empty, garbage, far)):
            good = await client.produce("t", bytes(build_batch([(1, None, b"good", ())])))
            assert (good.error_code, good.base_offset) == (ErrorCode.NONE, at)
            assert (await client.produce("t", bytes(batch))).error_code == ErrorCode.INVALID_RECORD
        assert [record.offset for record in stored(node, "t")] == [0, 1, 2]


async def test_a_topic_of_many_partitions_is_made_in_turns(tmp_path: Path, monkeypatch) -> None:
    turns: list[str] = []
    async with running(tmp_path / "node") as (node, client):
        real = node.logs.create
        makes: list[str] = []

        def noted(topic: str, partition: int, *rest: Any) -> Any:
            if node.logs.get(topic, partition) is None:
                makes.append("m")
                turns.append("made")
                asyncio.get_running_loop().call_soon(turns.append, "turn")
            return real(topic, partition, *rest)

        monkeypatch.setattr(node.logs, "create", noted)
        answer = await client.create("t", 150)
        assert answer.error_code == ErrorCode.NONE
        assert len(makes) == 150
        assert all(node.logs.get("t", at) is not None for at in range(150)), "all are there when it is answered"
        most = max(map(len, "".join(turn[0] if turn == "made" else "t" for turn in turns).split("t")))
        assert 1 < most <= MADE_AT_ONCE_MAX
        for at in (0, 149):
            produced = await client.produce("t", bytes(build_batch([(1, None, b"v", ())])), partition=at)
            assert produced.error_code == ErrorCode.NONE


async def test_a_topic_that_is_deleted_while_it_is_made_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client), client_of(node) as other:
        creating = asyncio.create_task(client.create("t", 400))
        await eventually(lambda: "t" in node.cluster.topics)
        assert (await other.delete("t")).error_code == ErrorCode.NONE
        await creating
        assert not [each for each in node.logs.partitions() if each.topic == "t"]
        assert not node.replicas.is_due("t", 399)


async def test_a_request_of_too_many_elements_ends_its_connection_unread(tmp_path: Path) -> None:
    groups = tuple(f"g{at}" for at in range(REQUEST_ELEMENTS_MAX))
    async with running(tmp_path / "node") as (node, client):
        request = {"groups": groups, "include_authorized_operations": False}
        assert len((await client.ask(ApiKey.DESCRIBE_GROUPS, request, version=4)).groups) == REQUEST_ELEMENTS_MAX
        async with client_of(node) as other:
            with pytest.raises(asyncio.IncompleteReadError):
                await other.ask(ApiKey.DESCRIBE_GROUPS, {**request, "groups": (*groups, "one more")}, version=4)
        await probe(node)


async def test_a_name_longer_than_any_ends_its_connection_unread(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(messages, "STRING_BYTES_MAX", 2 * STRING_BYTES_MAX)  # what writes would shorten it
    async with running(tmp_path / "node") as (node, _):
        for length, is_read in ((STRING_BYTES_MAX, True), (STRING_BYTES_MAX + 1, False)):
            request = {"groups": ("g" * length,), "include_authorized_operations": False}
            async with client_of(node) as other:
                if is_read:
                    assert (await other.ask(ApiKey.DESCRIBE_GROUPS, request, version=5)).groups
                else:
                    with pytest.raises(asyncio.IncompleteReadError):
                        await other.ask(ApiKey.DESCRIBE_GROUPS, request, version=5)
        await probe(node)


@pytest.mark.parametrize(
    ("api", "module", "request_of"),
    [
        (ApiKey.DESCRIBE_CONFIGS, describe_configs, lambda names: {"resources": [_resource(name) for name in names]}),
        (
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            incremental_alter_configs,
            lambda names: {"resources": [_resource(name) for name in names], "validate_only": False},
        ),
    ],
)
async def test_long_lists_are_answered_in_turns(tmp_path: Path, monkeypatch, api, module, request_of) -> None:
    monkeypatch.setattr(module, "RESOURCES_AT_ONCE_MAX", 2)
    turns: list[str] = []
    name = "_entries" if module is describe_configs else "_decide_one"
    real = getattr(module, name)

    def noted(*asked: Any) -> Any:
        turns.append("a")
        asyncio.get_running_loop().call_soon(turns.append, "t")
        return real(*asked)

    monkeypatch.setattr(module, name, noted)
    async with running(tmp_path / "node") as (_, client):
        names = [f"t{number}" for number in range(7)]
        for each in names:
            await client.create(each)
        await client.ask(api, {**request_of(names), "include_synonyms": False, "include_documentation": False})
    assert turns.count("a") == 7
    assert max(map(len, "".join(turns).split("t"))) == 2


def _resource(name: str) -> dict[str, Any]:
    config = {"name": "retention.ms", "config_operation": 0, "value": "5"}
    return {"resource_type": 2, "resource_name": name, "configuration_keys": None, "configs": (config,)}


async def test_many_topics_are_made_in_turns_and_a_long_answer_is_written_elsewhere(
    tmp_path: Path, monkeypatch
) -> None:
    gate = Gate(dispatch._encode)
    gate.open()
    monkeypatch.setattr(dispatch, "_encode", gate)
    monkeypatch.setattr(create_topics, "TOPICS_AT_ONCE_MAX", 10)
    wanted = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    topics = [{**wanted, "name": f"t.{at}"} for at in range(dispatch.WRITTEN_AT_ONCE_MAX + 5)]
    async with running(tmp_path / "node") as (node, client):
        submitted: list[int] = []
        real = node.authority.submit

        async def noted(decide: Any) -> None:
            submitted.append(1)
            await real(decide)

        monkeypatch.setattr(node.authority, "submit", noted)
        answer = await client.ask(ApiKey.CREATE_TOPICS, {"topics": topics, "timeout": 1000, "validate_only": False})
        assert {each.error_code for each in answer.topics} == {ErrorCode.NONE}
        assert len(answer.topics) == len(submitted) * 10 - 5
        assert all(node.logs.get(topic["name"], 0) is not None for topic in topics)
    assert gate.elsewhere == 1


async def test_a_partition_named_again_has_its_producers_listed_once(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (_, client):
        await client.create("t", 2)
        request = {"topics": ({"name": "t", "partition_indexes": (0, 1, 0, 0)},)}
        answer = await client.ask(ApiKey.DESCRIBE_PRODUCERS, request, version=0)
        assert [each.partition_index for each in answer.topics[0].partitions] == [0, 1]


async def test_a_topic_grows_by_ten_thousand_partitions_at_once_at_the_most(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        for count, expected in ((20_000, ErrorCode.POLICY_VIOLATION), (3, ErrorCode.NONE), (3, 37)):
            wanted = {"name": "t", "count": count, "assignments": None}
            request = {"topics": (wanted,), "timeout": 1000, "validate_only": False}
            answer = await client.ask(ApiKey.CREATE_PARTITIONS, request, version=3)
            assert answer.results[0].error_code == expected


async def test_large_answers_that_are_asked_for_in_a_row_are_made_in_a_turn_each(tmp_path: Path, monkeypatch) -> None:
    turns: list[str] = []
    real = describe_configs._entries

    def noted(*asked: Any) -> Any:
        turns.append("a")
        asyncio.get_running_loop().call_soon(turns.append, "t")
        return real(*asked)

    monkeypatch.setattr(describe_configs, "_entries", noted)
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        asked = {"resources": [_resource("t")], "include_synonyms": False, "include_documentation": False}
        request = write_request(ApiKey.DESCRIBE_CONFIGS, 4, 1, "t", asked)
        client.writer.write((struct.pack(">i", len(request)) + request) * 20)
        for _ in range(20):
            (length,) = struct.unpack(">i", await client.reader.readexactly(4))
            answer = read_response(ApiKey.DESCRIBE_CONFIGS, 4, memoryview(await client.reader.readexactly(length))[4:])
            assert answer.results[0].error_code == ErrorCode.NONE
    assert turns.count("a") == 20
    assert "aa" not in "".join(turns)
