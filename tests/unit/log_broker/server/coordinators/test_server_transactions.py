"""A node's transactions on the wire: what a restart finishes, who is refused, and what is forgotten."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from log_broker.core.partition.transactions import PartitionTransactions
from log_broker.core.transactions.records import TransactionState, encode_transaction, encode_transaction_key
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.records.batch import TRANSACTIONAL
from log_broker.server.coordinators import transactional_produce
from log_broker.server.coordinators.internal_topics import (
    ensure_offsets_topic,
    ensure_transactions_topic,
    group_partition,
    transaction_partition,
)
from log_broker.server.coordinators.topic_patterns import PATTERN_CHARACTERS_MAX
from log_broker.server.coordinators.transactional_produce import ProducedBatch, append_in_transaction
from log_broker.server.node import Node
from log_broker.server.partitions.readers import READ_COMMITTED
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

NONE = ErrorCode.NONE


class Wire:
    """One connection to a node, and a transactional producer on it."""

    def __init__(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.node = node
        self._reader = reader
        self._writer = writer
        self.producer = (-1, -1)
        self.sequence = 0

    async def ask(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        request = write_request(api, version, 1, "test", values)
        self._writer.write(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        return read_response(api, version, memoryview(await self._reader.readexactly(length))[4:])

    async def init(self, version: int = 4, **values: Any) -> ErrorCode:
        fields = {"transactional_id": "x", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, version, fields | values)
        if answer.error_code == NONE:
            self.producer = (answer.producer_id, answer.producer_epoch)
            self.sequence = 0
        return ErrorCode(answer.error_code)

    async def add(self, *partitions: int, version: int = 3) -> list[ErrorCode]:
        values = {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": self.producer[0],
            "v3_and_below_producer_epoch": self.producer[1],
            "v3_and_below_topics": [{"name": "t", "partitions": partitions}],
        }
        answer = await self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, values)
        (topic,) = answer.results_by_topic_v3_and_below
        return [ErrorCode(found.partition_error_code) for found in topic.results_by_partition]

    async def end(self, committed: bool, version: int = 4, **values: Any) -> Any:
        fields = {
            "transactional_id": "x",
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
            "committed": committed,
        }
        return await self.ask(ApiKey.END_TXN, version, fields | values)

    async def produce(self, partition: int, version: int = 9) -> ErrorCode:
        batch = build_batch(
            [(1, b"k", b"v", ())],
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=self.sequence,
            attributes=TRANSACTIONAL,
        )
        answer: asyncio.Future[ErrorCode] = self.node.loop.create_future()
        runtime = self.node.logs.get("t", partition)
        assert runtime is not None
        produced = ProducedBatch(runtime, memoryview(batch), -1, lambda result: answer.set_result(result.error))
        append_in_transaction(self.node, "x", version, [produced])
        return await answer

    async def commit_offsets(self, version: int, offset: int) -> ErrorCode:
        values = {
            "transactional_id": "x",
            "group_id": "g",
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
            "topics": [
                {
                    "name": "t",
                    "partitions": [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}],
                }
            ],
        }
        answer = await self.ask(ApiKey.TXN_OFFSET_COMMIT, version, values)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def committed(self, *, stable: bool = False) -> tuple[int, ErrorCode]:
        topics = [{"name": "t", "partition_indexes": [0]}]
        values = {"groups": [{"group_id": "g", "topics": topics}], "require_stable": stable}
        found = (await self.ask(ApiKey.OFFSET_FETCH, 8, values)).groups[0].topics[0].partitions[0]
        return found.committed_offset, ErrorCode(found.error_code)


@asynccontextmanager
async def running(data_dir: Path, **settings: str) -> AsyncIterator[Wire]:
    config = BrokerConfig(data_dir=data_dir, port=0).with_settings(
        {name.replace("_", "."): text for name, text in settings.items()}
    )
    node = Node(config)
    await node.start()
    try:
        await node.ensure_topic(CreateTopic(name="t", topic_id="ab" * 16, partitions=2, replication_factor=1))
        await ensure_offsets_topic(node)
        await ensure_transactions_topic(node)
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        yield Wire(node, reader, writer)
        writer.close()
    finally:
        await node.stop()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


def stable(node: Node, topic: str, partition: int) -> bool:
    runtime = node.logs.get(topic, partition)
    assert runtime is not None
    return runtime.last_stable_offset == runtime.high_watermark


def readable(node: Node, partition: int) -> list[int]:
    runtime = node.logs.get("t", partition)
    assert runtime is not None
    result = runtime.read(0, 1 << 20, isolation_level=READ_COMMITTED)
    return [first for _, first in result.aborted] if result.size else [-1]


@pytest.mark.parametrize("commits", [True, False])
async def test_what_was_decided_before_a_restart_is_finished_after_it(tmp_path, commits) -> None:
    async with running(tmp_path) as wire:
        assert await wire.init() is NONE
        assert await wire.add(0, 1) == [NONE, NONE]
        assert await wire.produce(0) is NONE
        assert await wire.produce(1) is NONE
        assert await wire.commit_offsets(5, 7) is NONE
        assert await wire.committed() == (-1, NONE)
        assert await wire.committed(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        node = wire.node
        transaction = node.transactions.find("x")
        assert transaction is not None
        state = TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT
        partition = transaction_partition(node.cluster, "x")
        assert partition is not None
        runtime = node.logs.get(TRANSACTIONS_TOPIC, partition)
        assert runtime is not None
        # As far as a broker comes that is killed before the first marker.
        prepared = encode_transaction(replace(transaction.current, state=state))
        await runtime.own_appends.records([(encode_transaction_key("x"), prepared)])
        assert readable(node, 0) == [-1]
    async with running(tmp_path) as wire:
        offsets = group_partition(wire.node.cluster, "g")
        assert offsets is not None
        await until(lambda: stable(wire.node, "t", 0) and stable(wire.node, "t", 1))
        await until(lambda: stable(wire.node, OFFSETS_TOPIC, offsets))
        assert readable(wire.node, 0) == ([] if commits else [0])
        assert await wire.committed(stable=True) == (7 if commits else -1, NONE)
        transaction = wire.node.transactions.find("x")
        assert transaction is not None
        await until(lambda: not transaction.is_busy)
        done = TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
        assert transaction.state is done


async def test_offsets_that_wait_for_their_marker_survive_a_restart(tmp_path) -> None:
    async with running(tmp_path) as wire:
        await wire.init()
        assert await wire.commit_offsets(5, 7) is NONE
        producer = wire.producer
    async with running(tmp_path) as wire:
        assert await wire.committed(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        wire.producer = producer
        assert (await wire.end(True)).error_code == NONE
        await until(lambda: wire.node.groups.find("g").offsets.get(("t", 0)) is not None)
        assert await wire.committed(stable=True) == (7, NONE)


async def test_a_partition_that_was_never_announced_is_refused(tmp_path) -> None:
    async with running(tmp_path) as wire:
        await wire.init()
        assert await wire.add(0) == [NONE]
        assert await wire.produce(1, version=9) is ErrorCode.INVALID_TXN_STATE
        assert await wire.produce(1, version=11) is ErrorCode.TRANSACTION_ABORTABLE
        assert await wire.commit_offsets(3, 1) is ErrorCode.INVALID_TXN_STATE
        assert await wire.commit_offsets(4, 1) is ErrorCode.TRANSACTION_ABORTABLE
        assert await wire.produce(0, version=9) is NONE
        assert stable(wire.node, "t", 1)
        assert await wire.produce(1, version=12) is NONE, "from here on the broker announces it"


async def test_the_epoch_is_raised_for_those_who_know_of_it(tmp_path) -> None:
    async with running(tmp_path) as wire:
        await wire.init()
        assert await wire.produce(0, version=12) is NONE
        answer = await wire.end(True, version=5)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, wire.producer[0], 1)
        assert await wire.produce(0, version=12) is ErrorCode.INVALID_PRODUCER_EPOCH, "a late batch"
        wire.producer = (wire.producer[0], 1)
        assert await wire.produce(0, version=12) is NONE, "waits for the markers"
        assert (await wire.end(False, version=5)).producer_epoch == 2


@pytest.mark.parametrize(("version", "code"), [(0, "INVALID_PRODUCER_EPOCH"), (2, "PRODUCER_FENCED")])
async def test_a_fenced_producer_is_told_so_in_words_it_knows(tmp_path, version, code) -> None:
    async with running(tmp_path) as wire:
        await wire.init()
        old = wire.producer
        await wire.init()
        wire.producer = old
        assert await wire.add(0, version=version) == [ErrorCode[code]]
        assert (await wire.end(True, version=version)).error_code == ErrorCode[code]
        code = "PRODUCER_FENCED" if version else "INVALID_PRODUCER_EPOCH"
        init = {"producer_id": old[0], "producer_epoch": old[1]}
        assert await wire.init(version=4 if version else 3, **init) is ErrorCode[code]


async def test_what_makes_no_sense_is_refused(tmp_path) -> None:
    async with running(tmp_path, transaction_max_timeout_ms="1000") as wire:
        assert await wire.init() is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert await wire.init(transactional_id="", transaction_timeout=1000) is ErrorCode.INVALID_REQUEST
        assert (await wire.end(True, producer_id=1)).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await wire.init(transaction_timeout=1000) is NONE
        assert await wire.add(0, 5) == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        described = await wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["nobody"]})
        assert described.transaction_states[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        listed = await wire.ask(ApiKey.LIST_TRANSACTIONS, 1, {"state_filters": ["Empty", "Odd"]})
        assert listed.unknown_state_filters == ("Odd",)
        assert [found.transactional_id for found in listed.transaction_states] == ["x"]


@pytest.mark.parametrize(
    ("pattern", "error", "found"),
    [("x+", NONE, ["x" * 40]), ("y", NONE, []), ("(x+)+y", NONE, []), ("(", ErrorCode.INVALID_REGULAR_EXPRESSION, [])],
)
async def test_transactions_are_listed_by_a_pattern_of_the_whole_id(tmp_path, pattern, error, found) -> None:
    """`(x+)+y` takes Python's `re` longer than anybody waits."""
    async with running(tmp_path) as wire:
        assert await wire.init(transactional_id="x" * 40) is NONE
        listed = await wire.ask(ApiKey.LIST_TRANSACTIONS, 2, {"transactional_id_pattern": pattern})
        assert listed.error_code == error
        assert [each.transactional_id for each in listed.transaction_states] == found


async def test_a_pattern_is_bounded_in_length(tmp_path) -> None:
    async with running(tmp_path) as wire:
        listed = await wire.ask(
            ApiKey.LIST_TRANSACTIONS, 2, {"transactional_id_pattern": "x" * (PATTERN_CHARACTERS_MAX + 1)}
        )
        assert listed.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_an_id_that_nobody_uses_is_forgotten_for_good(tmp_path) -> None:
    settings = {
        "transactional_id_expiration_ms": "1",
        "transaction_remove_expired_transaction_cleanup_interval_ms": "20",
    }
    async with running(tmp_path, **settings) as wire:
        await wire.init()
        first_id = wire.producer[0]
        await until(lambda: wire.node.transactions.find("x") is None)
    async with running(tmp_path) as wire:
        assert wire.node.transactions.find("x") is None
        await wire.init()
        assert wire.producer[0] != first_id


async def test_a_truncation_during_a_coordinator_request_leaves_no_request_unanswered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(*_: Any, **__: Any) -> dict[tuple[str, int], ErrorCode]:
        core = runtime.replica.core
        core.state.transactions = PartitionTransactions(core.state.producers)
        return {("t", 0): ErrorCode.NOT_COORDINATOR}

    async with running(tmp_path) as wire:
        assert await wire.init() == NONE
        runtime = wire.node.logs.get("t", 0)
        assert runtime is not None
        monkeypatch.setattr(transactional_produce, "join_transaction", cut)
        assert await wire.produce(0) is ErrorCode.NOT_ENOUGH_REPLICAS
