"""Large answers of Fetch, of which a socket takes what it can from the file itself: they are what the log has."""

import random
import struct
from pathlib import Path
from typing import Any

import pytest
from node_client import NodeClient, running

from log_broker.records import batches_in, build_batch
from log_broker.storage.file_part import FilePart
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

MIB = 1 << 20
BATCHES = 24
BATCH_BYTES = 300_000
PARTITIONS = 2


@pytest.fixture
def sent_unread(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes sockets took of each part of a file."""
    counts: list[int] = []
    send = FilePart.send

    def counted(part: FilePart, descriptor: int) -> int:
        counts.append(send(part, descriptor))
        return counts[-1]

    monkeypatch.setattr(FilePart, "send", counted)
    return counts


async def filled(client: NodeClient) -> list[list[bytes]]:
    """Write batches to a topic of several segments; return them as they are in the log, of each partition."""
    await client.create("t", PARTITIONS, segment_bytes=str(4 * MIB), fluvial_durability="memory")
    dice = random.Random(11)
    written: list[list[bytes]] = []
    for partition in range(PARTITIONS):
        written.append([])
        for at in range(BATCHES):
            batch = bytearray(build_batch([(1, b"k", dice.randbytes(BATCH_BYTES), ())]))
            answer = await client.produce("t", bytes(batch), partition=partition)
            assert (answer.error_code, answer.base_offset) == (0, at)
            struct.pack_into(">q", batch, 0, at)
            written[-1].append(bytes(batch))
    return written


def fetched(offset: int, bytes_max: int = 50 * MIB) -> dict[str, Any]:
    partitions = [
        {"partition": at, "fetch_offset": offset, "partition_max_bytes": bytes_max} for at in range(PARTITIONS)
    ]
    return {
        "replica_id": -1,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 50 * MIB,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": partitions}],
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def same(records: bytes | memoryview, written: list[bytes], offset: int) -> int:
    """Hold an answer's records against what was written from `offset` on; return how many batches they are."""
    count = sum(1 for _ in batches_in(records))
    expected = b"".join(written[offset : offset + count])
    # The leader's epoch is the broker's to write.
    found = bytearray(records)
    at = 0
    for batch in written[offset : offset + count]:
        found[at + 12 : at + 16] = batch[12:16]
        at += len(batch)
    assert found == expected
    return count


@pytest.mark.parametrize("bytes_max", [400_000, MIB, 50 * MIB])
async def test_everything_is_read_as_it_was_written(tmp_path: Path, sent_unread: list[int], bytes_max: int) -> None:
    async with running(tmp_path) as (_, client):
        written = await filled(client)
        for partition in range(PARTITIONS):
            offset = 0
            while offset < BATCHES:
                answer = await client.ask(ApiKey.FETCH, fetched(offset, bytes_max), version=11)
                for data in answer.responses[0].partitions:
                    count = same(data.records, written[data.partition_index], offset)
                    if data.partition_index == partition:
                        ahead = count
                assert ahead
                offset += ahead
    assert sum(sent_unread) > 0, "a socket takes something at once"


async def test_answers_keep_their_order_among_others(tmp_path: Path, sent_unread: list[int]) -> None:
    async with running(tmp_path) as (_, client):
        written = await filled(client)
        asked: list[tuple[ApiKey, int, int]] = []
        for offset in range(BATCHES):
            asked += [(ApiKey.API_VERSIONS, 0, -1), (ApiKey.FETCH, 11, offset), (ApiKey.METADATA, 1, -1)]
        for number, (api, version, offset) in enumerate(asked):
            values = fetched(offset) if offset >= 0 else {"topics": None} if api is ApiKey.METADATA else {}
            request = write_request(api, version, number, "t", values)
            client.writer.write(struct.pack(">i", len(request)) + request)
        for number, (api, version, offset) in enumerate(asked):
            (length,) = struct.unpack(">i", await client.reader.readexactly(4))
            frame = await client.reader.readexactly(length)
            assert struct.unpack_from(">i", frame) == (number,)
            answer = read_response(api, version, memoryview(frame)[4:])
            if offset >= 0:
                for data in answer.responses[0].partitions:
                    assert same(data.records, written[data.partition_index], offset)
