"""Every request decoder on requests that are broken in every way that the fuzzer knows, within this process."""

import struct
import tracemalloc
from collections import Counter
from random import Random

import pytest
from fuzz_decoding import decode
from fuzz_requests import RequestFuzzer, valid_requests

from log_broker.records.varint import write_uvarint
from log_broker.wire.apis import APIS, ApiKey

REQUESTS = 30_000
SEED = 20_260


def test_valid_requests_of_every_api_and_version_are_read() -> None:
    requests = valid_requests(Random(SEED))

    read = {tuple(request[:4]) for request in requests if decode(request) == "read"}

    assert len(read) == sum(api.version_max - api.version_min + 1 for api in APIS.values())
    assert {decode(request) for request in requests} == {"read"}


def test_no_request_ends_a_decoder_in_anything_but_its_error() -> None:
    fuzzer = RequestFuzzer(SEED)
    outcomes: Counter[str] = Counter()
    for index in range(REQUESTS):
        request = fuzzer.request(index)
        try:
            outcomes[decode(request)] += 1
        except Exception as error:
            pytest.fail(f"request {index} of seed {SEED}, {request.hex()}: {error!r}")

    assert min(outcomes[kind] for kind in ("read", "malformed", "not served")) > REQUESTS // 50, outcomes


def header(key: ApiKey, version: int) -> bytes:
    no_tags = b"\0" if APIS[key].flexible_from <= version else b""
    return struct.pack(">hhih", key, version, 1, -1) + no_tags


def compact(count: int) -> bytes:
    out = bytearray()
    write_uvarint(out, count + 1)
    return bytes(out)


MANY = 300_000
EMPTY_TOPIC = b"\1\0\0"  # no name, no partitions, no tagged fields
FETCH_LIMITS = struct.pack(">iiiibii", -1, 0, 0, 1, 0, 0, -1)
TAGS = compact(MANY - 1) + b"\5\0" * MANY


@pytest.mark.parametrize(
    "request_bytes",
    [
        header(ApiKey.FETCH, 12) + FETCH_LIMITS + compact(MANY) + EMPTY_TOPIC * MANY + b"\1\1\0",
        header(ApiKey.FETCH, 12) + FETCH_LIMITS + compact(0) + compact(MANY) + EMPTY_TOPIC * MANY + b"\1\0",
        header(ApiKey.FETCH, 12) + FETCH_LIMITS + compact(0) * 2 + b"\1" + TAGS,
        header(ApiKey.PRODUCE, 9) + struct.pack(">bhi", 0, 1, 0) + compact(MANY) + EMPTY_TOPIC * MANY + b"\0",
        header(ApiKey.LIST_OFFSETS, 7) + struct.pack(">ib", -1, 0) + compact(MANY) + EMPTY_TOPIC * MANY + b"\0",
        header(ApiKey.OFFSET_FETCH, 8) + compact(MANY) + EMPTY_TOPIC * MANY + b"\0\0",
        header(ApiKey.METADATA, 12) + compact(-1) + b"\0\0" + TAGS,
        header(ApiKey.METADATA, 12)[:-1] + TAGS + compact(-1) + b"\0\0\0",
    ],
    ids=["fetch", "forgotten", "fetch tags", "produce", "list offsets", "offset fetch", "tags", "header tags"],
)
def test_what_one_request_can_make_of_its_bytes_is_bounded(request_bytes: bytes) -> None:
    # Of three bytes on the wire each becomes objects of hundreds, and holds up everyone else while it does.
    assert len(request_bytes) > MANY
    decode(header(ApiKey.FETCH, 12))
    tracemalloc.start()
    try:
        assert decode(request_bytes) == "malformed"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(request_bytes) + (1 << 20)
