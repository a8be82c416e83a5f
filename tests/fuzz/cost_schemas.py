"""
Schemas whose comparison, reading or writing costs more than their bytes: shapes that are grown, for all three kinds.

Each is registered twice over HTTP, the second time with another leaf, so that it is parsed, resolved and compared.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from cost_search import Cost, Finding, Search

Make = Callable[[int, str], tuple[str, str]]  # of a size and a leaf: kind, text
PATIENCE_SECONDS = 20.0
SCHEMA_BYTES_MAX = 1 << 20
DEPTHS = (1, 4, 8, 12, 16, 20, 24, 32, 64, 128, 512, 2_000, 10_000)
WIDTHS = (1, 10, 100, 1_000, 5_000, 20_000)


class Shape(NamedTuple):
    """A way to nest or repeat parts of a schema; `sizes` are tried one after the other."""

    make: Make
    sizes: tuple[int, ...]


def _avro(schema: Any) -> tuple[str, str]:
    return "AVRO", json.dumps(schema)


def _json_schema(schema: Any) -> tuple[str, str]:
    return "JSON", json.dumps(schema)


def _avro_leaf(leaf: str) -> str:
    return {"a": "string", "b": "int"}[leaf]


def _json_leaf(leaf: str) -> dict[str, str]:
    return {"type": {"a": "string", "b": "integer"}[leaf]}


def _avro_dag(branches: int) -> Make:
    """Records whose fields are all of the next record: few names, `branches` to the power of the size ways through."""

    def make(size: int, leaf: str) -> tuple[str, str]:
        inner: Any = {"type": "record", "name": "R0", "fields": [{"name": "leaf", "type": _avro_leaf(leaf)}]}
        for at in range(1, size + 1):
            fields = [{"name": "f0", "type": inner}]
            fields += [{"name": f"f{branch}", "type": f"R{at - 1}"} for branch in range(1, branches)]
            inner = {"type": "record", "name": f"R{at}", "fields": fields}
        return _avro(inner)

    return make


def _avro_chain(size: int, leaf: str) -> tuple[str, str]:
    inner: Any = _avro_leaf(leaf)
    for _ in range(size):
        inner = {"type": "array", "items": inner}
    return "AVRO", "".join(
        _nested_text('{"type":"array","items":', size, json.dumps(inner if size < 1 else _avro_leaf(leaf)), "}")
    )


def _nested_text(before: str, size: int, inner: str, after: str) -> str:
    """Nest by text: json.dumps would end in a RecursionError of its own."""
    return before * size + inner + after * size


def _avro_fields(size: int, leaf: str) -> tuple[str, str]:
    fields = [{"name": f"f{at}", "type": _avro_leaf(leaf)} for at in range(size)]
    return _avro({"type": "record", "name": "R", "fields": fields})


def _avro_union(size: int, leaf: str) -> tuple[str, str]:
    branches = [{"type": "fixed", "name": f"F{at}", "size": at + 1} for at in range(size)]
    return _avro({"type": "record", "name": "R", "fields": [{"name": "u", "type": [*branches, _avro_leaf(leaf)]}]})


def _avro_union_of_records(size: int, leaf: str) -> tuple[str, str]:
    """Each branch is compared with each of the other side."""
    branches = [
        {"type": "record", "name": f"U{leaf}{at}", "fields": [{"name": "x", "type": _avro_leaf(leaf)}]}
        for at in range(size)
    ]
    return _avro({"type": "record", "name": "R", "fields": [{"name": "u", "type": branches}]})


def _avro_enum(size: int, leaf: str) -> tuple[str, str]:
    return _avro({"type": "enum", "name": "E", "symbols": [f"S{leaf}{at}" for at in range(size)]})


def _avro_recursive(size: int, leaf: str) -> tuple[str, str]:
    """Records that all name each other."""
    fields = [{"name": "leaf", "type": _avro_leaf(leaf)}]
    inner = {
        "type": "record",
        "name": "R",
        "fields": [*fields, *({"name": f"f{at}", "type": "R"} for at in range(size))],
    }
    return _avro(inner)


def _avro_default(size: int, leaf: str) -> tuple[str, str]:
    value: Any = 1
    kind: Any = "int"
    for _ in range(min(size, 400)):
        value, kind = [value], {"type": "array", "items": kind}
    return _avro({"type": "record", "name": "R", "fields": [{"name": leaf, "type": kind, "default": value}]})


def _avro_names(size: int, leaf: str) -> tuple[str, str]:
    return _avro({"type": "record", "name": "n" * size, "fields": [{"name": leaf * size, "type": _avro_leaf(leaf)}]})


def _json_dag(branches: int) -> Make:
    def make(size: int, leaf: str) -> tuple[str, str]:
        definitions: dict[str, Any] = {"d0": _json_leaf(leaf)}
        for at in range(1, size + 1):
            properties = {f"f{branch}": {"$ref": f"#/definitions/d{at - 1}"} for branch in range(branches)}
            definitions[f"d{at}"] = {"type": "object", "properties": properties}
        return _json_schema({"definitions": definitions, "$ref": f"#/definitions/d{size}"})

    return make


def _json_combined(word: str, branches: int) -> Make:
    """`allOf`, `anyOf` or `oneOf` whose members are all the next one."""

    def make(size: int, leaf: str) -> tuple[str, str]:
        definitions: dict[str, Any] = {"d0": _json_leaf(leaf)}
        for at in range(1, size + 1):
            definitions[f"d{at}"] = {word: [{"$ref": f"#/definitions/d{at - 1}"} for _ in range(branches)]}
        return _json_schema({"definitions": definitions, "$ref": f"#/definitions/d{size}"})

    return make


def _json_chain(size: int, leaf: str) -> tuple[str, str]:
    return "JSON", _nested_text('{"type":"array","items":', size, json.dumps(_json_leaf(leaf)), "}")


def _json_wide(word: str) -> Make:
    def make(size: int, leaf: str) -> tuple[str, str]:
        branches = [{"type": "object", "properties": {f"{leaf}{at}": _json_leaf(leaf)}} for at in range(size)]
        return _json_schema({word: branches})

    return make


def _json_properties(size: int, leaf: str) -> tuple[str, str]:
    return _json_schema({"type": "object", "properties": {f"f{at}": _json_leaf(leaf) for at in range(size)}})


def _json_enum(size: int, leaf: str) -> tuple[str, str]:
    return _json_schema({"enum": [f"{leaf}{at}" for at in range(size)]})


def _json_pattern(size: int, leaf: str) -> tuple[str, str]:
    return _json_schema({"type": "string", "pattern": "(a+)+" * min(size, 100) + leaf, "default": "a" * size})


def _json_cycle(size: int, leaf: str) -> tuple[str, str]:
    definitions: dict[str, Any] = {
        f"d{at}": {
            "type": "object",
            "properties": {"x": {"$ref": f"#/definitions/d{(at + 1) % size}"}, "leaf": _json_leaf(leaf)},
        }
        for at in range(size)
    }
    return _json_schema({"definitions": definitions, "$ref": "#/definitions/d0"})


def _proto(*lines: str) -> tuple[str, str]:
    return "PROTOBUF", "\n".join(('syntax = "proto3";', *lines))


def _proto_dag(branches: int) -> Make:
    def make(size: int, leaf: str) -> tuple[str, str]:
        kind = {"a": "string", "b": "double"}[leaf]
        messages = [f"message M0 {{ {kind} leaf = 1; }}"]
        for at in range(1, size + 1):
            fields = " ".join(f"M{at - 1} f{branch} = {branch};" for branch in range(1, branches + 1))
            messages.append(f"message M{at} {{ {fields} }}")
        return _proto(*reversed(messages))

    return make


def _proto_nested(size: int, leaf: str) -> tuple[str, str]:
    kind = {"a": "string", "b": "double"}[leaf]
    return _proto(_nested_text("message M { ", size, f"message L {{ {kind} leaf = 1; }}", " }"))


def _proto_fields(size: int, leaf: str) -> tuple[str, str]:
    kind = {"a": "string", "b": "double"}[leaf]
    return _proto("message M {", *(f"{kind} f{at} = {at + 1};" for at in range(size)), "}")


def _proto_enum(size: int, leaf: str) -> tuple[str, str]:
    return _proto("enum E {", *(f"{leaf.upper()}{at} = {at};" for at in range(size)), "}", "message M { E e = 1; }")


def _proto_messages(size: int, leaf: str) -> tuple[str, str]:
    return _proto(*(f"message M{leaf}{at} {{ string x = 1; }}" for at in range(size)))


def _proto_options(size: int, leaf: str) -> tuple[str, str]:
    return _proto("message M { string x = 1 [" + ", ".join(f'(o{at}) = "{leaf}"' for at in range(size)) + "]; }")


SHAPES: Mapping[str, Shape] = {
    **{f"avro records to the power of {n}": Shape(_avro_dag(n), DEPTHS) for n in (2, 3, 8)},
    "avro arrays nested": Shape(_avro_chain, DEPTHS),
    "avro fields": Shape(_avro_fields, WIDTHS),
    "avro union": Shape(_avro_union, WIDTHS),
    "avro union of records": Shape(_avro_union_of_records, WIDTHS),
    "avro enum": Shape(_avro_enum, WIDTHS),
    "avro recursion": Shape(_avro_recursive, WIDTHS),
    "avro default nested": Shape(_avro_default, DEPTHS),
    "avro names": Shape(_avro_names, (100, 10_000, 400_000)),
    **{f"json references to the power of {n}": Shape(_json_dag(n), DEPTHS) for n in (2, 3, 8)},
    **{
        f"json {word} to the power of {n}": Shape(_json_combined(word, n), DEPTHS)
        for word in ("allOf", "anyOf", "oneOf")
        for n in (2, 4)
    },
    "json arrays nested": Shape(_json_chain, DEPTHS),
    **{f"json {word} of many": Shape(_json_wide(word), WIDTHS) for word in ("allOf", "anyOf", "oneOf")},
    "json properties": Shape(_json_properties, WIDTHS),
    "json enum": Shape(_json_enum, WIDTHS),
    "json pattern": Shape(_json_pattern, (1, 10, 100)),
    "json cycle": Shape(_json_cycle, WIDTHS),
    **{f"protobuf messages to the power of {n}": Shape(_proto_dag(n), DEPTHS) for n in (2, 3, 8)},
    "protobuf messages nested": Shape(_proto_nested, DEPTHS),
    "protobuf fields": Shape(_proto_fields, WIDTHS),
    "protobuf enum": Shape(_proto_enum, WIDTHS),
    "protobuf messages": Shape(_proto_messages, WIDTHS),
    "protobuf options": Shape(_proto_options, WIDTHS),
}


async def call(port: int, method: str, path: str, body: Any) -> tuple[int, bytes]:
    """Return status and body of one HTTP request, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        payload = json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        answer = await reader.read()
    finally:
        writer.transport.abort()
    return int(answer.split(b" ", 2)[1]) if answer else 0, answer


async def run_schemas(
    search: Search,
    names: Iterator[str] | list[str] | None = None,
    at_each: Callable[[int], object] = lambda count: None,
) -> None:
    """Grow each shape."""
    for name in names or SHAPES:
        shape = SHAPES[name]
        for size in shape.sizes:
            try:
                first, second = shape.make(size, "a"), shape.make(size, "b")
            except RecursionError:
                break
            if len(first[1]) > SCHEMA_BYTES_MAX or await _tried(search, f"schema {name} x {size}", first, second):
                break
        at_each(1)


async def run_small_schemas(search: Search, seed: int, indexes: range, at_each: Callable[[int], object]) -> None:
    """Pairs of schemas of any two shapes and small sizes, as many as wanted."""
    names = sorted(SHAPES)
    for index in indexes:
        rng = Random(seed << 40 | index)
        kind = rng.choice(("avro", "json", "protobuf"))
        shapes = [SHAPES[name] for name in names if name.startswith(kind)]
        one, other = rng.choice(shapes), rng.choice(shapes)
        sizes = [rng.choice([size for size in shape.sizes if size <= 32] or shape.sizes[:1]) for shape in (one, other)]
        first, second = one.make(sizes[0], rng.choice("ab")), other.make(sizes[1], rng.choice("ab"))
        await _tried(search, f"schemas {seed}:{index}", first, second)
        at_each(1)


async def _tried(search: Search, place: str, first: tuple[str, str], second: tuple[str, str]) -> bool:
    costs: list[Cost] = []
    for fresh in (False, True):
        await search.bench.ready(fresh=fresh)
        cost = await _registered(search, first, second)
        if not costs:
            search.note(place, cost)
        costs.append(cost)
        if not cost.broken():
            break
    else:
        kinds = {kind: said for kind, said in costs[1].broken().items() if kind in costs[0].broken()}
        await search.keep(Finding(place, kinds or costs[0].broken(), costs[1], place))
        return True
    if len(costs) > 1:
        search.counts["out of bounds once"] += 1
        search.once.append(f"{place}: {costs[0].broken()}")
    return False


async def _registered(search: Search, first: tuple[str, str], second: tuple[str, str]) -> Cost:
    bench = search.bench
    bodies = [{"schemaType": kind, "schema": text} for kind, text in (first, second)]
    async with bench.measured(sum(len(text) for _, text in (first, second))) as cost:
        node = bench.node
        assert node is not None
        for path in (f"/subjects/s{bench.steps}/versions", f"/subjects/s{bench.steps}?normalize=true"):
            for body in bodies:
                try:
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        status, _ = await call(node.registry_port, "POST", path, body)
                    search.counts[f"registry answered {status}"] += 1
                except (TimeoutError, OSError):
                    search.counts["registry did not answer"] += 1
    return cost
