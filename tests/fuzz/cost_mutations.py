"""
What a hostile or unlucky client makes of a good request so that it costs more: each is a rule for any field of a kind.

A mutation names a place in the request, what is done there and how much of it; the search turns up how much.
"""

import functools
import struct
from collections.abc import Iterator
from dataclasses import fields
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import cramjam
from cost_corpus import PRODUCED_TO, VARIANTS, Values, World, values_of
from cost_node import REQUEST_BYTES_MAX as FRAME_BYTES_MAX
from fuzz_node import framed

from log_broker.records import Codec
from log_broker.records.batch import HEADER, HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC, seal
from log_broker.records.compression import compress
from log_broker.records.varint import write_uvarint, write_varint
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import description_of, write_request
from log_broker.wire.messages import shape_of

Path = tuple[str, ...]
BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "timedelta_i32": 32}
BITS |= {"timedelta_i64": 64, "datetime_i64": 64, "error_code": 16}
CLIENT_ID = "cost"
GROWTH = (10, 100, 1_000, 10_000, 20_000)
BOMB_GROWTH = (100, 1_000, 10_000, 100_000, 1_000_000)
PIPELINED = (10, 100, 500, 5_000)
CONNECTIONS = (4, 16, 64)
NO_REQUEST = (struct.error, KeyError, ValueError, OverflowError, TypeError, AttributeError, MemoryError)
REQUEST_BYTES_MAX = 4 << 20  # larger ones pay for their cost


class Place(NamedTuple):
    """A field of a request: the names that lead to it, and its type as the protocol's description says it."""

    path: Path
    kind: str  # array, string, bytes, records, uuid, bool, float64 or a number's type
    tagged: bool = False


class Mutation(NamedTuple):
    """`size` counts what is grown; `word` says more, for one which bomb."""

    what: str
    path: Path
    size: int
    word: str = ""

    def __str__(self) -> str:
        word = f" {self.word}" if self.word else ""
        return f"{self.what}{word} {'.'.join(self.path)} x {self.size}"


class Case(NamedTuple):
    """One request, or the same on some connections, or some times behind another on each."""

    key: ApiKey
    version: int
    mutations: tuple[Mutation, ...] = ()
    pipelined: int = 1
    connections: int = 1
    bytes_sent: int = -1  # of each frame, all when negative
    topic: str = "plain"
    variant: str = ""  # another way to use the api, see `cost_corpus.VARIANTS`

    @property
    def tagged(self) -> bool:
        """Whether fields with a tag are sent."""
        if self.variant in ("quorum", "replica"):
            return True
        paths = {place.path for place in places_of(self.key, self.version) if place.tagged}
        return any(mutation.path in paths for mutation in self.mutations)

    def __str__(self) -> str:
        parts = [f"{self.key.name} v{self.version}", self.variant, *map(str, self.mutations)]
        parts = [part for part in parts if part]
        if self.topic != "plain":
            parts.append(f"topic {self.topic}")
        if self.pipelined > 1:
            parts.append(f"{self.pipelined} in a row")
        if self.connections > 1:
            parts.append(f"{self.connections} connections")
        if self.bytes_sent >= 0:
            parts.append(f"only {self.bytes_sent} bytes of the frame")
        return ", ".join(parts)


@functools.cache
def places_of(key: ApiKey, version: int) -> tuple[Place, ...]:
    """Return every field of a request, those in arrays by their first element."""
    return tuple(_places(description_of(key, version, "request"), ()))


def _places(description: type[Any], before: Path, tagged_before: bool = False) -> Iterator[Place]:
    for field in fields(description):
        shape = shape_of(field.type)
        path = (*before, field.name)
        tagged = tagged_before or "tag" in field.metadata
        if shape.is_array:
            yield Place(path, "array", tagged)
        if shape.description is not None:
            yield from _places(shape.description, path, tagged)
        elif not shape.is_array:
            yield Place(path, field.metadata["kafka_type"], tagged)


def versions_of(key: ApiKey) -> range:
    api = APIS[key]
    return range(max(api.version_min, 3 if key is ApiKey.PRODUCE else 0), api.version_max + 1)


def growths_of(key: ApiKey, place: Place) -> Iterator[tuple[Mutation, ...]]:
    """Yield each mutation that this field may take, as the sizes in which it is tried one after the other."""
    path = place.path
    match place.kind:
        case "array":
            yield tuple(Mutation("repeat", path, size) for size in GROWTH)
            yield tuple(Mutation("distinct", path, size) for size in GROWTH)
        case "string":
            yield tuple(Mutation("long", path, size) for size in (1_000, 30_000, 1_000_000))
            yield tuple(Mutation("pattern", path, size) for size in (1, 10, 100))
        case "bytes":
            yield tuple(Mutation("long", path, size) for size in (1_000, 100_000, 1_000_000))
            yield tuple(Mutation("nested", path, size) for size in (10, 1_000, 100_000))
        case "records":
            for codec in Codec:
                for variant in BOMBS:
                    yield tuple(Mutation("bomb", path, size, f"{codec.name} {variant}") for size in BOMB_GROWTH)
        case kind if kind in BITS:
            for edge in edges_of(kind):
                yield (Mutation("edge", path, edge),)


def edges_of(kind: str) -> tuple[int, ...]:
    bits = BITS[kind]
    if kind.startswith("uint"):
        return ((1 << bits) - 1,)
    top = 1 << (bits - 1)
    return tuple(
        dict.fromkeys((top - 1, top - 2, -top, -1, 0, 1, *(size for size in (1_000, 10_000, 100_000) if size < top)))
    )


# What is asked for is made, up to 10,000 at a time; the search of single fields has that, here it would drown the rest.
COUNTS_OF_PARTITIONS = (("topics", "num_partitions"), ("topics", "count"))


def random_case(rng: Random) -> Case:
    """Draw a request with one to four things wrong with it, of sizes up to the largest, small ones mostly."""
    key = rng.choice([api.key for api in APIS.values()])
    version = rng.choice(versions_of(key))
    places = places_of(key, version)
    mutations = []
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        if not places:
            break
        growths = list(growths_of(key, rng.choice(places)))
        if growths:
            chosen = rng.choice(growths)
            mutation = chosen[min(int(rng.expovariate(1.2)), len(chosen) - 1)]
            if not (mutation.path in COUNTS_OF_PARTITIONS and 1_000 < mutation.size <= 10_000):
                mutations.append(mutation)
    return Case(
        key,
        version,
        tuple(mutations),
        pipelined=rng.choice((1,) * 12 + (2, 10)),
        connections=rng.choice((1,) * 12 + (2, 4)),
        bytes_sent=rng.randrange(4, 60) if rng.random() < 0.02 else -1,
        topic=rng.choice(PRODUCED_TO) if rng.random() < 0.5 else "plain",
        variant=rng.choice(["", *VARIANTS.get(key, {})]),
    )


# Making the bytes.


def frames_of(world: World, case: Case) -> list[bytes]:
    """Return what each connection sends; raises one of NO_REQUEST where the wire cannot say it."""
    world.topic = case.topic
    try:
        values = values_of(world, case.key, case.version, variant=case.variant, tagged=case.tagged)
        frame = framed(request_of(world, case, values))
    finally:
        world.topic = "plain"
    if case.bytes_sent >= 0:
        frame = struct.pack(">i", FRAME_BYTES_MAX) + frame[4 : 4 + case.bytes_sent]
    return [frame * case.pipelined] * case.connections


def request_of(world: World, case: Case, values: Values) -> bytes:
    """Return the request behind a frame's length; raises struct.error where the wire cannot say it."""
    for mutation in case.mutations:
        _apply(world, values, case.key, case.version, mutation)
    request = bytes(write_request(case.key, case.version, 7, CLIENT_ID, values))
    for mutation in case.mutations:
        if mutation.what == "tags" and APIS[case.key].flexible_from <= case.version:
            request = _with_tags(request, mutation.size)
    return request


def _apply(world: World, values: Values, key: ApiKey, version: int, mutation: Mutation) -> None:
    if mutation.what == "tags":
        return
    *before, last = mutation.path
    holder: Any = values
    for name in before:
        inner = holder.get(name)
        if isinstance(inner, (list, tuple)):
            if not inner:
                return  # another mutation, or the request as it is, has nothing there
            holder[name] = inner = [dict(inner[0]), *inner[1:]]
            holder = inner[0]
        elif isinstance(inner, dict):
            holder[name] = holder = dict(inner)
        else:
            return
    if mutation.what == "edge":
        holder[last] = mutation.size
        return
    old = holder.get(last)
    match mutation.what:
        case "repeat":
            holder[last] = [old[0]] * mutation.size if old else old
        case "distinct":
            if mutation.size * len(repr(old)) > REQUEST_BYTES_MAX:
                raise ValueError("another mutation has made it too long to be said so often")
            holder[last] = [_another(old[0], at) for at in range(mutation.size)] if old else old
        case "long":
            holder[last] = b"\1" * mutation.size if isinstance(old, bytes) else "x" * mutation.size
        case "pattern":
            holder[last] = "(x+)+" * mutation.size + "y"
        case "nested":
            holder[last] = struct.pack(">i", mutation.size) * (mutation.size // 4)
        case "bomb":
            codec, variant = mutation.word.split()
            holder[last] = bomb_of(Codec[codec], variant, mutation.size, world.now_ms // 3_600_000 * 3_600_000)


def _another(value: Any, at: int) -> Any:
    """Return what stands for `value` in the `at`th element, so that no two are the same."""
    if isinstance(value, dict):
        return {name: _another(each, at) for name, each in value.items()}
    if isinstance(value, str):
        return f"{value}{at}" if at else value
    if isinstance(value, UUID):
        return UUID(int=(value.int + at) % (1 << 128))
    return at % 127 if isinstance(value, int) and not isinstance(value, bool) else value


def _with_tags(request: bytes, count: int) -> bytes:
    """Put tagged fields that nobody knows at the end, as a newer client may."""
    tags = bytearray()
    write_uvarint(tags, count)
    for tag in range(count):
        write_uvarint(tags, 100 + tag)
        tags.append(0)
    return request[:-1] + bytes(tags)


# Batches of many records in few bytes.

BOMBS = ("same", "counted", "late", "odd", "keyed", "framed", "empty", "headers")


@functools.lru_cache(maxsize=64)
def bomb_of(codec: Codec, variant: str, count: int, now_ms: int) -> bytes:
    """
    Return a batch of `count` of the smallest records.

    `same`: one record, repeated; `counted`: its offsets right; `late`: the header's time is out of bounds; `odd`: times
    that go up and down; `keyed`: with a key, as compacted topics want; `framed`: with a schema's id; `empty`: a count
    without records; `headers`: one record of so many headers.
    """
    section = _section(variant, count)
    payload = b"" if variant == "empty" else _compressed(codec, section)
    records = 1 if variant == "headers" else count
    late = {"late": 2**62, "odd": now_ms + 50, "same": now_ms + 50}.get(variant, now_ms)
    batch = bytearray(HEADER_BYTES + len(payload))
    length = len(batch) - LENGTH_OVERHEAD_BYTES
    HEADER.pack_into(batch, 0, 0, length, 0, MAGIC, 0, codec, records - 1, now_ms, late, -1, -1, -1, records)
    batch[HEADER_BYTES:] = payload
    seal(batch)
    return bytes(batch)


def _compressed(codec: Codec, section: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(section)) if codec is Codec.ZSTD else compress(codec, section)


@functools.lru_cache(maxsize=8)
def _section(variant: str, count: int) -> bytes:
    match variant:
        case "keyed":
            one = bytes((14, 0, 0, 0, 2, 107, 1, 0))
        case "framed":
            one = bytes((24, 0, 0, 0, 1, 12, 0, 0, 0, 0, 1, 0, 0))
        case "headers":
            body = bytearray((0, 0, 0, 1, 1))
            write_varint(body, count)
            body += bytes((0, 1)) * count
            out = bytearray()
            write_varint(out, len(body))
            return bytes(out + body)
        case "counted" | "odd":
            out = bytearray()
            for at in range(count):
                body = bytearray((0, at % 100 if variant == "odd" else 0))
                write_varint(body, at)
                body += b"\1\1\0"
                out.append(len(body) << 1)
                out += body
            return bytes(out)
        case _:
            one = bytes((12, 0, 0, 0, 1, 1, 0))
    return one * count
