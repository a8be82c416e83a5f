"""ListOffsets: where a partition starts, where it ends, and which record is the first of a given time."""

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Protocol

from log_broker.core.security.acls import Operation, ResourceType
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.dispatch import READ_AT_ONCE_BYTES, failures_answered
from log_broker.server.net.rights import HasAuthorizer, rights_of
from log_broker.server.partitions.ports import Partitions
from log_broker.server.partitions.readers import READ_COMMITTED
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Process
from log_broker.server.process.turns import in_turns
from log_broker.wire.framing import RequestHeader
from log_broker.wire.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    SINCE,
    AskedPartition,
    FoundPartition,
    ListOffsetsRequest,
    encode_response,
    parse_request,
)
from log_broker.wire.reading import MalformedRequestError

NEVER = 1 << 15
AT_ONCE_MAX = 1_000  # partitions that are answered before others have their turn

if TYPE_CHECKING:
    from log_broker.server.net.slots import Slot

OFFSET_NOT_AVAILABLE_FROM = 5


class _Host(HasAuthorizer, Partitions, Process, Protocol):
    """What is asked of the node here."""


def handle(node: _Host, header: RequestHeader, body: memoryview, slot: "Slot") -> None:
    """Answer one ListOffsets request."""
    node.run(_answer_all(node, header, body, slot))


async def _answer_all(node: _Host, header: RequestHeader, body: memoryview, slot: "Slot") -> None:
    parse = partial(parse_request, body, header.api_version)
    with failures_answered(node, header, slot, body):
        try:
            request = parse() if len(body) <= READ_AT_ONCE_BYTES else await node.logs.aside(parse)
        except MalformedRequestError as error:
            slot.fail_connection(str(error))
            return
        topics = await _find_all(node, header, request, slot)
        if not slot.closed:
            slot.complete(encode_response(header.correlation_id, header.api_version, topics))


async def _find_all(
    node: _Host, header: RequestHeader, request: ListOffsetsRequest, slot: "Slot"
) -> list[tuple[bytes, list[FoundPartition]]]:
    """Go from partition to partition; others have their turn after many of them, and after each search by time."""
    times_named = Counter((name, each.partition) for name, partitions in request.topics for each in partitions)
    topics: list[tuple[bytes, list[FoundPartition]]] = []
    rights = rights_of(node, slot)
    for number, (name, partitions) in enumerate(request.topics, 1):
        if number % AT_ONCE_MAX == 0:
            await asyncio.sleep(0)
        topic = name.decode(errors="replace")
        answers: list[FoundPartition] = []
        topics.append((name, answers))
        if rights is not None and not rights.may(Operation.DESCRIBE, ResourceType.TOPIC, topic):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answers += [FoundPartition(each.partition, code) for each in partitions]
            continue
        async for some in in_turns(partitions, AT_ONCE_MAX):
            for each in some:
                if times_named[name, each.partition] > 1:
                    answers.append(FoundPartition(each.partition, ErrorCode.INVALID_REQUEST))
                    continue
                answers.append(await _answer(node, topic, each, request.isolation_level, header.api_version))
                if each.timestamp not in SINCE or each.timestamp == MAX_TIMESTAMP:
                    await asyncio.sleep(0)
            if slot.closed:
                return topics
    return topics


async def _answer(node: _Host, topic: str, asked: AskedPartition, isolation_level: int, version: int) -> FoundPartition:
    if asked.timestamp < 0 and version < SINCE.get(asked.timestamp, NEVER):
        return FoundPartition(asked.partition, ErrorCode.UNSUPPORTED_VERSION)
    runtime = node.logs.led(topic, asked.partition)
    if runtime is None:
        return FoundPartition(asked.partition, node.absence_of(topic, asked.partition))
    error = runtime.check_leader_epoch(asked.leader_epoch)
    if error is not ErrorCode.NONE:
        return FoundPartition(asked.partition, error)
    try:
        timestamp, offset = await _find(runtime, asked.timestamp, isolation_level, version)
    except BrokerError as failure:
        return FoundPartition(asked.partition, failure.code)
    except OSError:
        return FoundPartition(asked.partition, ErrorCode.KAFKA_STORAGE_ERROR)
    epoch = -1
    if offset >= 0:
        epoch = runtime.leader_epoch if asked.timestamp == LATEST else runtime.epoch_at(offset)
    return FoundPartition(asked.partition, ErrorCode.NONE, timestamp, offset, epoch)


async def _find(runtime: PartitionRuntime, timestamp: int, isolation_level: int, version: int) -> tuple[int, int]:
    """
    Return (timestamp, offset) as the response has them: -1 for none.

    Raises BrokerError(OFFSET_NOT_AVAILABLE) where a new leader does not know yet how far its predecessor got (KIP-207).
    """
    if timestamp == LATEST:
        if runtime.leading.awaits_watermark:
            code = (
                ErrorCode.OFFSET_NOT_AVAILABLE
                if version >= OFFSET_NOT_AVAILABLE_FROM
                else ErrorCode.LEADER_NOT_AVAILABLE
            )
            raise BrokerError(code)
        return -1, runtime.last_stable_offset if isolation_level == READ_COMMITTED else runtime.high_watermark
    if timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return -1, runtime.log_start_offset
    if timestamp == LATEST_TIERED:
        found = None  # nothing lies in remote storage
    elif timestamp == MAX_TIMESTAMP:
        found = await runtime.times.offset_of_max_timestamp()
    else:
        found = await runtime.times.offset_for_timestamp(timestamp)
    if found is None and timestamp not in {LATEST_TIERED, MAX_TIMESTAMP} and runtime.leading.awaits_watermark:
        raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return (-1, -1) if found is None else (found[1], found[0])
