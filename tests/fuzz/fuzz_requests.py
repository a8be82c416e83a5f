"""
Requests for fuzzing: valid ones of every api and version, and what a broken or hostile client makes of them.

Everything follows from two numbers, the seed and the request's index, so a finding is named by them and a long run
goes on where it stopped.
"""

import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import fields
from random import Random
from typing import Any
from uuid import UUID

import cramjam

from log_broker.records import Codec, build_batch
from log_broker.records.batch import HEADER_BYTES, seal
from log_broker.records.varint import write_uvarint
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import description_of, write_request
from log_broker.wire.messages import shape_of

TOPICS = ("fuzz", "fuzz-compact", "fuzz-zstd", "fuzz-times", "absent")
ODD_NAMES = ("", "x" * 300, "../../etc", "__consumer_offsets", "\0", "é" * 20, "fuzz.", "a b")
CLIENT_ID = "fuzz"
HEADER_END = 10 + len(CLIENT_ID)  # where the body of an inflexible version begins
PRODUCE_DESCRIBED_FROM = 3
BLOCK = 2_000  # requests that share one pool of valid ones
VARIANTS = 2  # of each api and version in a pool

# Requests that are not Kafka's: a TLS handshake, HTTP, and what port scanners send.
FOREIGN = (
    bytes.fromhex("16030100c8010000c403035f") + bytes(range(190)),
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nContent-Length: 4294967295\r\n\r\n{}",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x00" * 64,
    b"\xff" * 64,
    b"*1\r\n$4\r\nPING\r\n",
)
BAD_FRAMES = (
    struct.pack(">i", 0),
    struct.pack(">i", -1),
    struct.pack(">i", -(2**31)),
    struct.pack(">i", 2**31 - 1) + b"abc",
    struct.pack(">i", 101 << 20),
    struct.pack(">i", 1) + b"\0",
    struct.pack(">i", 9) + bytes(9),
    b"\0\0",
)
NUMBERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
LENGTHS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\xff\xff\xff", b"\x7f\xff", b"\xff\xff")
VARINTS = (b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80" * 9, b"\x81" * 40, b"\x80\x80\x04")


class RequestFuzzer:
    """`request(index)` returns the bytes behind a frame's length; what stands there is settled by seed and index."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._pools: dict[int, list[bytes]] = {}

    def request(self, index: int) -> bytes:
        block = index // BLOCK
        pool = self._pools.get(block)
        if pool is None:
            self._pools.pop(block - 2, None)
            pool = self._pools[block] = valid_requests(Random((self.seed << 64) | block))
        rng = Random((self.seed << 64) | (1 << 60) | index)
        base = pool[index % len(pool)]
        return base if rng.random() < 0.05 else mutated(base, rng, pool)


def valid_requests(rng: Random) -> list[bytes]:
    """Return some requests of every api and version, in the order of the apis' table."""
    made = []
    for api in APIS.values():
        for version in range(api.version_min, api.version_max + 1):
            for _ in range(VARIANTS):
                made.append(valid_request(rng, api.key, version))
    return made


def valid_request(rng: Random, key: ApiKey, version: int) -> bytes:
    described = max(version, PRODUCE_DESCRIBED_FROM) if key == ApiKey.PRODUCE else version
    values = _values(rng, description_of(key, described, "request"), depth=0)
    if described == version:
        return bytes(write_request(key, version, rng.randrange(1 << 31), CLIENT_ID, values))
    # The old versions are the first described one without the transactional id in front.
    request = write_request(key, described, rng.randrange(1 << 31), CLIENT_ID, {**values, "transactional_id": None})
    struct.pack_into(">h", request, 2, version)
    return bytes(request[:HEADER_END] + request[HEADER_END + 2 :])


def _values(rng: Random, description: type[Any], depth: int) -> dict[str, Any]:
    return {
        field.name: _value(rng, field, depth)
        for field in fields(description)
        if "tag" not in field.metadata or rng.random() < 0.3
    }


def _value(rng: Random, field: Any, depth: int) -> Any:
    shape = shape_of(field.type)
    if shape.nullable and rng.random() < 0.2:
        return None
    if shape.is_array:
        return tuple(_single(rng, field, shape, depth + 1) for _ in range(rng.choice((0, 1, 1, 2, 3)[: 5 - depth])))
    return _single(rng, field, shape, depth)


def _single(rng: Random, field: Any, shape: Any, depth: int) -> Any:
    if shape.description is not None:
        return _values(rng, shape.description, depth)
    kind = field.metadata["kafka_type"]
    if kind == "string":
        return rng.choice(ODD_NAMES) if rng.random() < 0.15 else rng.choice(TOPICS)
    if kind == "records":
        return broken_batch(rng)
    if kind == "bytes":
        return rng.randbytes(rng.choice((0, 1, 10, 100)))
    if kind == "uuid":
        return UUID(int=rng.choice((1, rng.getrandbits(128))))
    if kind == "bool":
        return rng.random() < 0.5
    if kind.startswith(("timedelta", "datetime")):
        return rng.choice((0, 1, 10, 50))
    if kind == "float64":
        return rng.random()
    if field.name == "acks":
        return rng.choice((-1, 0, 1, 1, 7))
    bits = NUMBERS.get(kind, 16)
    small = rng.choice((0, 0, 0, 1, 1, 2, 3, -1, -2))
    if kind.startswith("uint"):
        return abs(small)
    top = 1 << (bits - 1)
    return small if rng.random() < 0.9 else rng.choice((top - 1, -top, rng.randrange(-top, top)))


# Record batches.


def good_batch(rng: Random, **more: Any) -> bytearray:
    count = rng.choice((1, 1, 2, 5))
    records = [(1_700_000_000_000 + at, b"k%d" % at, rng.randbytes(20), ()) for at in range(count)]
    return build_batch(records, codec=rng.choice(list(Codec)), **more)


def broken_batch(rng: Random) -> bytes:
    """Return a batch that is good, or wrong in one of the ways that clients have been seen or feared to make it."""
    return bytes(rng.choice(BATCHES)(rng))


def _idempotent(rng: Random) -> bytearray:
    return good_batch(
        rng, producer_id=rng.choice((0, 1, 5)), producer_epoch=0, base_sequence=rng.choice((0, 1, 2**31 - 1))
    )


def _flagged(rng: Random) -> bytearray:
    return good_batch(rng, attributes=rng.choice((0x10, 0x20, 0x30, 0x08, 0x07)))


def _resealed(rng: Random) -> bytearray:
    """Any bytes changed behind the checksum, which is made right again."""
    batch = good_batch(rng)
    for _ in range(rng.choice((1, 1, 3))):
        batch[rng.randrange(21, len(batch))] = rng.randrange(256)
    seal(batch)
    return batch


def _wrong_checksum(rng: Random) -> bytearray:
    batch = good_batch(rng)
    batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
    return batch


def _wrong_count(rng: Random) -> bytearray:
    batch = good_batch(rng)
    count = rng.choice((0, -1, 7, 2**31 - 1))
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">i", batch, 23, rng.choice((count - 1, 2**31 - 1, -5)) & 0x7FFFFFFF)
    seal(batch)
    return batch


def _wrong_length(rng: Random) -> bytearray:
    batch = good_batch(rng)
    struct.pack_into(">i", batch, 8, rng.choice((0, -1, 2**31 - 1, len(batch), len(batch) - 13, 49)))
    return batch


def _cut(rng: Random) -> bytearray:
    batch = good_batch(rng)
    return batch[: rng.randrange(len(batch))]


def _two(rng: Random) -> bytearray:
    return good_batch(rng) + good_batch(rng)


def _old_format(rng: Random) -> bytearray:
    batch = good_batch(rng)
    batch[16] = rng.choice((0, 1, 3, 255))
    return batch


def bomb(codec: Codec, size: int) -> bytearray:
    """Return a batch of one codec whose few bytes grow to `size`, and whose header counts 2^31 - 1 records."""
    zeros = bytes(size)
    payload: bytes
    if codec is Codec.GZIP:
        payload = zlib.compress(zeros, level=9, wbits=31)
    elif codec is Codec.SNAPPY:
        payload = bytes(cramjam.snappy.compress_raw(zeros))
    elif codec is Codec.LZ4:
        payload = bytes(cramjam.lz4.compress(zeros))
    else:
        payload = bytes(cramjam.zstd.compress(zeros))
    batch = build_batch([(0, b"k", b"v", ())])
    batch = batch[:HEADER_BYTES] + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    seal(batch)
    return batch


def _small_bomb(rng: Random) -> bytearray:
    return _SMALL_BOMBS[rng.randrange(len(_SMALL_BOMBS))]


_SMALL_BOMBS = [bomb(codec, 1 << 20) for codec in Codec if codec]

BATCHES: tuple[Callable[[Random], bytes | bytearray], ...] = (
    good_batch,
    good_batch,
    _idempotent,
    _flagged,
    _resealed,
    _wrong_checksum,
    _wrong_count,
    _wrong_length,
    _cut,
    _two,
    _old_format,
    _small_bomb,
    lambda rng: rng.randbytes(rng.randrange(200)),
)


# Mutations of a whole request.


def mutated(base: bytes, rng: Random, pool: list[bytes]) -> bytes:
    """Return the request with one to four things wrong with it."""
    data = bytearray(base)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(MUTATIONS)(data, rng, pool)
        if len(data) < 4:
            break
    return bytes(data)


def _position(data: bytearray, rng: Random) -> int:
    """Somewhere behind the client's name, mostly: before it, most changes make it another api."""
    return rng.randrange(len(data)) if rng.random() < 0.1 else rng.randrange(min(14, len(data) - 1), len(data))


def _flip(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    data[_position(data, rng)] ^= 1 << rng.randrange(8)
    return data


def _set(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    data[_position(data, rng)] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return data


def _truncate(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    return data[: rng.randrange(len(data))]


def _extend(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    return data + rng.randbytes(rng.choice((1, 4, 100, 5_000)))


def _length(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    at = _position(data, rng)
    length = rng.choice(LENGTHS)
    data[at : at + len(length)] = length
    return data


def _varint(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    at = _position(data, rng)
    data[at : at + rng.choice((0, 1, 1, 4))] = rng.choice(VARINTS)
    return data


def _repeat(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    at = _position(data, rng)
    size = rng.choice((1, 2, 7, 30))
    return data[:at] + data[at : at + size] * rng.choice((2, 20, 300)) + data[at:]


def _remove(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    at = _position(data, rng)
    del data[at : at + rng.choice((1, 2, 4, 20))]
    return data


def _splice(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    other = rng.choice(pool)
    return data[: _position(data, rng)] + other[rng.randrange(len(other)) :]


def _version(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    struct.pack_into(">h", data, 2, rng.choice((-1, 0, 1, 2, 5, 9, 12, 13, 99, 2**15 - 1, -(2**15))))
    return data


def _api(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    struct.pack_into(
        ">h", data, 0, rng.choice((-1, 4, 5, 6, 7, 17, 24, 25, 26, 61, 68, 80, 999, rng.randrange(-9, 90)))
    )
    return data


def _tags(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    """Tagged fields nobody knows at the end, as a newer client may send, or a lie about how many there are."""
    tags = bytearray()
    write_uvarint(tags, rng.choice((1, 3, 2**31 - 1)))
    for tag in range(3):
        write_uvarint(tags, 100 + tag)
        write_uvarint(tags, rng.choice((0, 3, 2**31 - 1)))
        tags += b"abc"
    return data[:-1] + tags


def _garbage(data: bytearray, rng: Random, pool: list[bytes]) -> bytearray:
    return data[: rng.choice((0, 4, 10, 14))] + rng.randbytes(rng.choice((4, 20, 200)))


MUTATIONS: tuple[Callable[[bytearray, random.Random, list[bytes]], bytearray], ...] = (
    _flip,
    _flip,
    _set,
    _set,
    _truncate,
    _extend,
    _length,
    _length,
    _varint,
    _varint,
    _repeat,
    _remove,
    _splice,
    _version,
    _api,
    _tags,
    _garbage,
)
