"""
Schemas whose cost is out of proportion to their text, searched for in all three kinds: 10,000 of them by

    python tests/fuzz/fuzz_schemas.py --schemas 10000 --seed 1

A case is a graph of named types (a chain, a tree, a graph without or with rings, a star) that a kind writes down in its
own words, and the same graph with something changed. Both are parsed, compared in both directions, and data are checked
under them. What takes more CPU time, memory or text than the bounds is a finding, as is any error that is not one of
the kind's own. It knows nothing of how any of that is done.
"""

import argparse
import json
import random
import resource
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from fluvial.registry.formats.kinds import KINDS
from fluvial.registry.formats.schema_kind import (
    Parsed,
    SchemaSyntaxError,
    SkippableKind,
    TooComplexError,
    UndecodableError,
)

CPU_SECONDS_MAX = 2.0
"""Of one case: two schemas parsed, compared both ways and used."""
MEMORY_BYTES_MAX = 64 << 20
MESSAGES_MAX = 110
MESSAGES_CHARACTERS_MAX = 1 << 20
TEXT_CHARACTERS_MAX = 60_000
MEMORY_EVERY = 20  # tracemalloc makes everything slower

SHAPES = ("chain", "tree", "diamonds", "ladder", "ring", "star", "dense", "random")
WRAPPERS = ("plain", "plain", "optional", "list", "map", "choice", "nested")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A field `name` of a type, of the type `to`, wrapped in something; None for a leaf of the graph's own type."""

    name: str
    to: int | None
    wrapper: str
    default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Named types by number and what each holds; `leaf` chooses among the kind's simple types."""

    types: tuple[tuple[Edge, ...], ...]
    leaf: int
    depth: int
    names: str
    word: str = "anyOf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Two schemas of one kind with the texts that they refer to, and data to check under the second."""

    kind: str
    shape: str
    old: str
    new: str
    references: dict[str, str] = field(default_factory=dict)
    data: bytes = b""

    def __str__(self) -> str:
        return f"{self.kind} {self.shape}, {len(self.old)} characters: {self.old[:300]}"


@dataclass(slots=True)
class Report:
    """What a search came to."""

    cases: int = 0
    parsed: int = 0
    compared: int = 0
    findings: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def __str__(self) -> str:
        return (
            f"{self.cases} cases, {2 * self.cases} schemas, {self.parsed} parsed, {self.compared} compared, "
            f"{len(self.findings)} findings; "
            f"the slowest took {self.slowest[0]:.2f} s of CPU ({self.slowest[1][:120]}), "
            f"the largest {self.largest[0] / 2**20:.1f} MiB ({self.largest[1][:120]})"
        )


class SchemaFuzzer:
    """Case `index` of a seed is the same each time."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def case(self, index: int) -> Case:
        """Make a case."""
        chance = random.Random(f"{self._seed}/{index}")
        shape = chance.choice(SHAPES)
        graph = _graph(chance, shape)
        changed = _changed(chance, graph)
        kind = chance.choice(("AVRO", "AVRO", "JSON", "JSON", "PROTOBUF"))
        write: Callable[[Graph, random.Random], str] = {"AVRO": _avro, "JSON": _json, "PROTOBUF": _protobuf}[kind]
        words = f"{self._seed}/{index}/words"
        old, new = write(graph, random.Random(words)), write(changed, random.Random(words))
        references: dict[str, str] = {}
        if chance.random() < 0.1 and len(old) < TEXT_CHARACTERS_MAX:
            references, old, new = _apart(chance, kind, old, new)
        data = bytes(chance.choice((0, 0, 0, 2, 2, 4, 128, 255)) for _ in range(chance.choice((0, 10, 100, 5_000))))
        cut = TEXT_CHARACTERS_MAX
        return Case(kind=kind, shape=shape, old=old[:cut], new=new[:cut], references=references, data=data)


def _graph(chance: random.Random, shape: str) -> Graph:
    count = chance.choice((1, 2, 3, 5, 8, 12, 16, 20, 24, 32, 48, 64, 100))
    if chance.random() < 0.05:
        count = chance.choice((200, 400))
    wrapper = chance.choice(WRAPPERS)
    width = chance.choice((1, 1, 2, 2, 3, 4))
    types = []
    for number in range(count):
        targets = list(_targets(chance, shape, number, count, width))
        edges = [
            Edge(
                name=f"f{place}",
                to=to,
                wrapper=wrapper if chance.random() < 0.8 else chance.choice(WRAPPERS),
                default=chance.random() < 0.2,
            )
            for place, to in enumerate(targets)
        ]
        if not targets or chance.random() < 0.3:
            leaves = chance.choice((1, 1, 2, 10))
            edges += [Edge(name=f"v{place}", to=None, wrapper="plain") for place in range(leaves)]
        types.append(tuple(edges))
    return Graph(
        types=tuple(types),
        leaf=chance.randrange(6),
        depth=chance.choice((0, 1, 4, 16)),
        names="n" * chance.choice((1, 1, 1, 30, 300)),
        word=chance.choice(("anyOf", "oneOf", "allOf", "properties", "properties", "properties")),
    )


def _targets(chance: random.Random, shape: str, number: int, count: int, width: int) -> Iterator[int]:
    """The types that a type holds."""
    last = count - 1
    match shape:
        case "chain":
            yield from [number + 1] if number < last else []
        case "tree":
            yield from (each for each in range(width * number + 1, width * number + 1 + width) if each <= last)
        case "diamonds":
            yield from [number + 1] * max(2, width) if number < last else []
        case "ladder":
            yield from (each for each in (number + 1, number + 2) if each <= last)
        case "ring":
            yield from ((number + 1 + each * 7) % count for each in range(width))
        case "star":
            yield from range(1, count) if number == 0 else []
        case "dense":
            yield from range(number + 1, min(count, number + 1 + 4 * width))
        case _:
            yield from (chance.randrange(count) for _ in range(width))


def _changed(chance: random.Random, graph: Graph) -> Graph:
    """The graph with another leaf, or with something more or less in one type."""
    how = chance.choice(("leaf", "leaf", "more", "less", "nothing", "reversed"))
    types = list(graph.types)
    place = chance.choice((len(types) - 1, chance.randrange(len(types))))
    match how:
        case "leaf":
            return replace(graph, leaf=graph.leaf + 1 + chance.randrange(4))
        case "more":
            types[place] = (*types[place], Edge(name="more", to=None, wrapper="plain"))
        case "less":
            types[place] = types[place][1:]
        case "reversed":
            types[place] = types[place][::-1]
        case _:
            pass
    return replace(graph, types=tuple(types))


def _apart(chance: random.Random, kind: str, old: str, new: str) -> tuple[dict[str, str], str, str]:
    """The same with what is used in a text of its own."""
    if kind == "AVRO":
        user = json.dumps({"type": "record", "name": "User", "fields": [{"name": "u", "type": "nT0"}]})
        return {"nT0": old}, user, new if chance.random() < 0.5 else user
    if kind == "JSON":
        return {"other.json": old}, json.dumps({"properties": {"u": {"$ref": "other.json"}}}), new
    user = 'syntax = "proto3"; import "o.proto"; message User { nT0 u = 1; }'
    return {"o.proto": old}, user, user


AVRO_LEAVES: tuple[Any, ...] = (
    "string",
    "int",
    "null",
    {"type": "fixed", "name": "Fx", "size": 0},
    {"type": "enum", "name": "En", "symbols": ["A", "B"]},
    ["null", "long"],
)


def _avro(graph: Graph, chance: random.Random) -> str:
    """Records; each is spelled out where it comes first, and named from there on."""
    named: set[str] = set()

    def leaf() -> Any:
        kind = AVRO_LEAVES[graph.leaf % len(AVRO_LEAVES)]
        if isinstance(kind, dict):
            name = kind["name"]
            if name in named:
                return name
            named.add(name)
        return kind

    def record(number: int, depth: int) -> Any:
        name = f"{graph.names}T{number}"
        if name in named or depth > 60:
            return name if name in named else "int"
        named.add(name)
        fields = []
        for edge in graph.types[number]:
            inner = leaf() if edge.to is None else record(edge.to, depth + 1)
            described: dict[str, Any] = {"name": edge.name, "type": _avro_wrapped(inner, edge.wrapper)}
            if edge.default:
                described["default"] = _avro_default(chance, edge.wrapper, graph.depth)
            fields.append(described)
        return {"type": "record", "name": name, "fields": fields}

    return json.dumps(record(0, 0))


def _avro_wrapped(inner: Any, wrapper: str) -> Any:
    match wrapper:
        case "optional":
            return inner if isinstance(inner, list) else ["null", inner] if inner != "null" else "null"
        case "list":
            return {"type": "array", "items": inner}
        case "map":
            return {"type": "map", "values": inner}
        case "choice":
            return inner if isinstance(inner, list) else [inner, "boolean", {"type": "array", "items": "bytes"}]
        case "nested":
            return {"type": "array", "items": {"type": "map", "values": inner}}
        case _:
            return inner


def _avro_default(chance: random.Random, wrapper: str, depth: int) -> Any:
    value: Any = {}
    for level in range(depth):
        names = chance.choice((("f0",), ("f0", "f1"), ("f0", "v0"))) if level < 4 else ("f0",)  # not 2^16 of them
        value = dict.fromkeys(names, value)
    match wrapper:
        case "list" | "nested":
            return [] if chance.random() < 0.7 else [value] * chance.choice((1, 50))
        case "optional":
            return None
        case "map":
            return {} if chance.random() < 0.5 else {"k": value}
        case _:
            return value


JSON_LEAVES: tuple[Any, ...] = (
    {"type": "string", "maxLength": 10, "pattern": "^(a+)+$"},
    {"type": "integer", "multipleOf": 7},
    {"type": ["string", "null"]},
    {"enum": [1, 2.5, "x", None]},
    {"type": "array", "items": {"type": "number"}},
    {"not": {"type": "string"}},
)


def _json(graph: Graph, chance: random.Random) -> str:
    """Schemas in `definitions` that refer to each other by properties, items or combining words."""
    leaf = JSON_LEAVES[graph.leaf % len(JSON_LEAVES)]
    closed = chance.random() < 0.4
    required = chance.random() < 0.4
    definitions = {}
    for number, edges in enumerate(graph.types):
        parts = {
            edge.name: leaf
            if edge.to is None
            else _json_wrapped({"$ref": f"#/definitions/{graph.names}T{edge.to}"}, edge.wrapper)
            for edge in edges
        }
        if graph.word == "properties" or not parts:
            schema: dict[str, Any] = {"type": "object", "properties": parts}
            if closed:
                schema["additionalProperties"] = False
            if required:
                schema["required"] = list(parts)
        else:
            schema = {
                graph.word: [each if chance.random() < 0.7 else {"properties": {"p": each}} for each in parts.values()]
            }
        definitions[f"{graph.names}T{number}"] = schema
    root = {"$ref": f"#/definitions/{graph.names}T0", "definitions": definitions}
    if chance.random() < 0.2:
        root = {"$schema": "https://json-schema.org/draft/2020-12/schema", **root}
    return json.dumps(root)


def _json_wrapped(inner: Any, wrapper: str) -> Any:
    match wrapper:
        case "optional":
            return {"anyOf": [{"type": "null"}, inner]}
        case "list":
            return {"type": "array", "items": inner}
        case "map":
            return {"type": "object", "additionalProperties": inner}
        case "choice":
            return {"oneOf": [inner, {"type": "boolean"}], "allOf": [inner]}
        case "nested":
            return {"type": "object", "patternProperties": {"^a.*": inner, "b[0-9]+$": inner}, "not": {"not": inner}}
        case _:
            return inner


PROTOBUF_LEAVES = ("string", "int32", "double", "sint64", "bytes", "bool")


def _protobuf(graph: Graph, chance: random.Random) -> str:
    """Messages; now and then one within the other."""
    leaf = PROTOBUF_LEAVES[graph.leaf % len(PROTOBUF_LEAVES)]
    package = chance.choice(("", "", "package a.b.c;", f"package {'.'.join('p' * 40)};"))
    lines = ['syntax = "proto3";', package]
    for number, edges in enumerate(graph.types):
        members = []
        for place, edge in enumerate(edges, 1):
            kind = leaf if edge.to is None else f"{graph.names}T{edge.to}"
            members.append(_protobuf_field(edge, kind, place))
        lines.append(f"message {graph.names}T{number} {{ {' '.join(members)} }}")
    for level in range(graph.depth):
        lines.append(f"message D{level} {{ enum E{level} {{ A{level} = 0; }} reserved 1 to 5, 9; }}")
    return "\n".join(lines)


def _protobuf_field(edge: Edge, kind: str, number: int) -> str:
    match edge.wrapper:
        case "optional":
            return f"optional {kind} {edge.name} = {number};"
        case "list" | "nested":
            return f"repeated {kind} {edge.name} = {number};"
        case "map":
            return f"map<string, {kind}> {edge.name} = {number};"
        case "choice":
            return f"oneof o{number} {{ {kind} {edge.name} = {number}; }}"
        case _:
            return f"{kind} {edge.name} = {number};"


class TookTooLongError(Exception):
    """A case was ended."""


@contextmanager
def _within(cpu_seconds: float) -> Iterator[None]:
    """Raise `TookTooLongError` in the block once it has used so much CPU time; of the main thread only."""
    until = time.thread_time() + cpu_seconds

    def ended(signum: int, frame: FrameType | None) -> None:
        left = until - time.thread_time()
        if left <= 0:
            raise TookTooLongError
        signal.setitimer(signal.ITIMER_VIRTUAL, left)  # the timer counts the other threads' time too

    before = signal.signal(signal.SIGVTALRM, ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def search(
    seed: int,
    count: int,
    *,
    first: int = 0,
    cpu_seconds_max: float = CPU_SECONDS_MAX,
    at_each: Callable[[], None] = lambda: None,
    findings_max: int = 100,
) -> Report:
    """Try `count` cases of a seed, from `first` on; stops at so many findings. Call it on the main thread."""
    fuzzer, report = SchemaFuzzer(seed), Report()
    for index in range(first, first + count):
        case = fuzzer.case(index)
        measured = index % MEMORY_EVERY == 0
        if measured:
            tracemalloc.start()
        began = time.thread_time()
        try:
            # Measuring memory makes everything some three times slower.
            with _within(cpu_seconds_max * (4 if measured else 1)):
                faults = _tried(case, report)
        except TookTooLongError:
            faults = [f"more than {cpu_seconds_max} s of CPU"]
        except MemoryError:
            faults = ["more memory than there is"]
        except Exception as error:
            faults = [f"{type(error).__name__}: {error}"]
        spent = time.thread_time() - began
        if measured:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            report.largest = max(report.largest, (peak, str(case)))
            if peak > MEMORY_BYTES_MAX:
                faults.append(f"{peak / 2**20:.0f} MiB of memory")
        elif spent > report.slowest[0]:
            report.slowest = (spent, f"case {index}: {case}")
        report.cases += 1
        report.findings += [f"case {index} of seed {seed}: {fault}: {case}" for fault in faults]
        at_each()
        if len(report.findings) >= findings_max:
            break
    return report


def _tried(case: Case, report: Report) -> list[str]:
    """What is wrong with how a case is treated."""
    kind = KINDS[case.kind]
    parsed: list[Parsed] = []
    for text in (case.old, case.new):
        try:
            found = kind.parse(text, references=case.references, normalize=False)
            kind.parse(text, references=case.references, normalize=True)
            again = kind.parse(found.text, references=case.references, normalize=False)
        except (SchemaSyntaxError, TooComplexError) as error:
            if len(str(error)) > MESSAGES_CHARACTERS_MAX:
                return [f"an error of {len(str(error))} characters"]
            return []
        if again.text != found.text:
            return ["the stored text is stored as another"]
        parsed.append(found)
    report.parsed += 1
    old, new = parsed
    for reader, writer in ((new, old), (old, new), (new, new)):
        try:
            messages = kind.faults(reader=reader, writer=writer, reader_word="new", writer_word="old")
        except TooComplexError:
            continue
        report.compared += 1
        if reader is writer and messages:
            return [f"incompatible with itself: {messages[0]}"]
        if len(messages) > MESSAGES_MAX:
            return [f"{len(messages)} differences"]
        if sum(map(len, messages)) > MESSAGES_CHARACTERS_MAX:
            return [f"{sum(map(len, messages))} characters of differences"]
    _formatted_and_checked(case, new)
    return []


def _formatted_and_checked(case: Case, parsed: Parsed) -> None:
    kind = KINDS[case.kind]
    for form in ("resolved", "serialized"):
        try:
            kind.formatted(parsed, form)
        except TooComplexError:
            continue
    try:
        check = kind.compile_check(parsed)
        skip = kind.compile_skip(parsed) if isinstance(kind, SkippableKind) else None
    except RecursionError:
        return  # who compiles says so
    with suppress(UndecodableError):
        check(b"\0\0\0\0\1" + case.data, 5)
    if skip is not None:
        with suppress(ValueError, LookupError, RecursionError):
            skip(case.data, 0)


def main() -> int:
    """Return 1 when anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--schemas", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=0, help="index of the first case")
    parser.add_argument("--findings", type=int, default=10, help="stop at so many")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    report = search(options.seed, options.schemas // 2, first=options.first, findings_max=options.findings)
    for finding in report.findings:
        print(finding)
    print(report)
    return bool(report.findings)


if __name__ == "__main__":
    sys.exit(main())
