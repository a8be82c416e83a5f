"""What a schema costs is bounded by its text: work is counted in calls, answers in characters."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fluvial.registry.errors import RefusedError
from fluvial.registry.formats.kinds import KINDS
from fluvial.registry.formats.schema_kind import FINDINGS_MAX, Parsed, SchemaSyntaxError, TooComplexError
from fluvial.registry.model.commands import Draft, Register, SetConfig
from fluvial.registry.model.compatibility import MESSAGE_CHARACTERS_MAX
from fluvial.registry.model.records import Body, Reference, SchemaRecord
from fluvial.registry.model.registering import find
from fluvial.registry.model.registry import Registry
from fluvial.registry.model.state import RegistryState
from fluvial.registry.service.bodies import BoundedBodies

DEPTHS = (8, 12)
"""In what doubles with each level, the second costs sixteen times the first."""


def calls(work: Callable[[], object]) -> int:
    """How many functions written in Python `work` calls."""
    count = 0

    def called(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    except (SchemaSyntaxError, TooComplexError):
        pass
    finally:
        sys.setprofile(before)
    return count


def grows_no_faster_than_its_depth(work: Callable[[int], Callable[[], object]]) -> None:
    low, high = (calls(work(depth)) for depth in DEPTHS)
    assert high < 2.5 * max(low, 50), (low, high)


def avro_diamonds(depth: int, leaf: Any) -> str:
    """Records with two fields of the next one."""
    schema: Any = {"type": "record", "name": f"R{depth}", "fields": [{"name": "v", "type": leaf}]}
    for level in range(depth - 1, -1, -1):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{level + 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return json.dumps(schema)


def json_diamonds(depth: int, leaf: str) -> str:
    definitions: dict[str, Any] = {
        f"R{level}": {"properties": {name: {"$ref": f"#/definitions/R{level + 1}"} for name in "ab"}}
        for level in range(depth)
    }
    definitions[f"R{depth}"] = {"properties": {"v": {"type": leaf}}}
    return json.dumps({"$ref": "#/definitions/R0", "definitions": definitions})


def protobuf_diamonds(depth: int, leaf: str) -> str:
    messages = [f"message R{level} {{ R{level + 1} a = 1; R{level + 1} b = 2; }}" for level in range(depth)]
    return f'syntax = "proto3"; {" ".join(messages)} message R{depth} {{ {leaf} v = 1; }}'


DIAMONDS = {
    "AVRO": (avro_diamonds, "string", "int"),
    "JSON": (json_diamonds, "string", "integer"),
    "PROTOBUF": (protobuf_diamonds, "string", "int32"),
}


def parsed(kind: str, text: str) -> Parsed:
    return KINDS[kind].parse(text, references={}, normalize=False)


@pytest.mark.parametrize("kind", DIAMONDS)
def test_differences_of_two_types_are_found_once_however_many_paths_lead_there(kind: str) -> None:
    make, before, after = DIAMONDS[kind]

    def compare(depth: int) -> Callable[[], list[str]]:
        old, new = parsed(kind, make(depth, before)), parsed(kind, make(depth, after))
        return lambda: KINDS[kind].faults(reader=new, writer=old, reader_word="new", writer_word="old")

    grows_no_faster_than_its_depth(compare)
    assert 1 <= len(compare(DEPTHS[1])()) <= DEPTHS[1] + 1


@pytest.mark.parametrize("kind", DIAMONDS)
def test_the_answer_to_a_client_stays_short(shared_server: Any, kind: str) -> None:
    make, before, after = DIAMONDS[kind]
    http, path = shared_server.http, f"/subjects/diamonds-{kind}/versions"
    first = http.post(path, json={"schema": make(12, before), "schemaType": kind})
    assert first.status_code == 200
    answer = http.post(path, json={"schema": make(12, after), "schemaType": kind})
    assert answer.status_code == 409
    assert len(answer.content) < 40_000


def wide(names: str, leaf: str) -> dict[str, str]:
    many = range(FINDINGS_MAX * 3)
    return {
        "AVRO": json.dumps(
            {"type": "record", "name": "R", "fields": [{"name": f"{names}{n}", "type": leaf} for n in many]}
        ),
        "JSON": json.dumps({"type": "object", "properties": {f"{names}{n}": {"type": leaf} for n in many}}),
        "PROTOBUF": 'syntax = "proto3"; message R {' + "".join(f"{leaf} {names}{n} = {n + 1};" for n in many) + "}",
    }


@pytest.mark.parametrize("kind", DIAMONDS)
def test_an_answer_names_so_many_differences_and_says_that_there_are_more(shared_server: Any, kind: str) -> None:
    http, leaf = shared_server.http, {"JSON": "integer", "PROTOBUF": "int32"}.get(kind, "int")
    subject = f"/subjects/wide-{kind}/versions"
    assert http.post(subject, json={"schema": wide("f", "string")[kind], "schemaType": kind}).status_code == 200
    check = f"/compatibility/subjects/wide-{kind}/versions/latest?verbose=true"
    found = http.post(check, json={"schema": wide("f", leaf)[kind], "schemaType": kind}).json()
    assert not found["is_compatible"]
    differences = [each for each in found["messages"] if "errorType" in each]
    assert len(differences) == FINDINGS_MAX
    assert found["messages"][FINDINGS_MAX] == "... and more"


def test_a_message_is_cut_where_a_client_would_be_told_its_own_names_back(shared_server: Any) -> None:
    http = shared_server.http
    schemas = [
        json.dumps({"type": "enum", "name": "E", "symbols": [f"{word}{n}" for n in range(20_000)]}) for word in "ab"
    ]
    assert http.post("/subjects/symbols/versions", json={"schema": schemas[0]}).status_code == 200
    check = "/compatibility/subjects/symbols/versions/latest?verbose=true"
    found = http.post(check, json={"schema": schemas[1]}).json()
    assert max(len(each) for each in found["messages"] if "errorType" in each) <= MESSAGE_CHARACTERS_MAX + 1


def test_a_default_is_held_against_each_branch_once() -> None:
    """Each level of the value may be of two records, and what is wrong is at its end."""

    def schema(depth: int) -> Callable[[], Parsed]:
        value: Any = {"a": 0}
        for _ in range(depth):
            value = {"a": value}
        other = {"type": "record", "name": "B", "fields": [{"name": "a", "type": ["string", "A", "B"]}]}
        first = {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["string", "A", other]}]}
        fields = [{"name": "x", "type": first}, {"name": "y", "type": ["A", "B"], "default": value}]
        text = json.dumps({"type": "record", "name": "T", "fields": fields})
        return lambda: parsed("AVRO", text)

    grows_no_faster_than_its_depth(schema)


def test_many_values_of_many_branches_are_too_many() -> None:
    branches = [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(600)]
    items = {"type": "array", "items": branches}
    text = json.dumps({"type": "record", "name": "T", "fields": [{"name": "e", "type": items, "default": [0] * 600}]})
    with pytest.raises((SchemaSyntaxError, TooComplexError)) as refused:
        parsed("AVRO", text)
    many = json.dumps(
        {"type": "record", "name": "T", "fields": [{"name": "e", "type": items, "default": ["x"] * 2_000}]}
    )
    assert parsed("AVRO", many).text, "each value is of the first branch"
    refused.match("Invalid default|steps")
    last = [*branches, "int"]
    fields = [{"name": "e", "type": {"type": "array", "items": last}, "default": [0] * 600}]
    with pytest.raises(TooComplexError, match="steps"):
        parsed("AVRO", json.dumps({"type": "record", "name": "T", "fields": fields}))


def test_a_long_name_is_not_joined_to_every_reference() -> None:
    text = json.dumps({"$id": "http://h/" + "x" * 5_000, "properties": {"a": {"$ref": "#"}}})
    with pytest.raises(SchemaSyntaxError, match="more than 2000 characters"):
        parsed("JSON", text)
    with pytest.raises(SchemaSyntaxError, match="too large"):
        parsed("JSON", json.dumps({"multipleOf": int("7" * 400)}))


def test_the_place_of_an_error_is_cut() -> None:
    schema: Any = {"type": 5}
    for _ in range(20):
        schema = {"properties": {"k" * 5_000: schema}}
    with pytest.raises(SchemaSyntaxError) as refused:
        parsed("JSON", json.dumps(schema))
    assert len(str(refused.value)) < 5_000


def test_names_of_protobuf_are_looked_up_so_often() -> None:
    syntax = 'syntax = "proto3";'
    with pytest.raises(SchemaSyntaxError, match="more than 1000 characters"):
        parsed("PROTOBUF", f"{syntax} package {'a' * 1_100}; message M {{ M m = 1; }}")
    theirs = ".".join(f"q{level}" for level in range(60))
    imported = f"{syntax} package {theirs};" + "".join(f"message B{n} {{}}" for n in range(600))
    uses = "".join(f"{theirs}.B{n} f{n} = {n + 1};" for n in range(600))
    ours = ".".join(f"r{level}" for level in range(60))
    with pytest.raises(TooComplexError, match="steps"):
        KINDS["PROTOBUF"].parse(
            f'{syntax} package {ours}; import "b"; message M {{ {uses} }}', references={"b": imported}, normalize=False
        )


def test_a_file_that_many_import_is_read_once() -> None:
    syntax = 'syntax = "proto3";'

    def schema(importers: int) -> Callable[[], Parsed]:
        references = {"big": syntax + "".join(f"message B{n} {{}}" for n in range(500))}
        for number in range(importers):
            references[f"f{number}"] = f'{syntax} import "big"; message F{number} {{ B1 x = 1; }}'
        text = syntax + "".join(f'import "f{number}";' for number in range(importers))
        return lambda: KINDS["PROTOBUF"].parse(text, references=references, normalize=False)

    few, many = calls(schema(5)), calls(schema(50))
    assert many < 3 * few, (few, many)


async def register(registry: Registry, subject: str, text: str, *references: Reference, kind: str = "AVRO") -> int:
    draft = Draft(schema=text, schema_type=kind, references=references)
    return int((await registry.apply(Register(subject=subject, draft=draft), action="register")).id)


async def test_references_of_references_are_counted(registry: Registry) -> None:
    await register(registry, "leaf", '"string"')
    own = tuple(Reference(name=f"x{number}", subject="leaf", version=1) for number in range(900))

    async def chain(levels: int) -> None:
        last = Reference(name="leaf", subject="leaf", version=1)
        for level in range(levels):
            await register(registry, f"level-{level}", '"string"', last, *own)
            last = Reference(name=f"level-{level}", subject=f"level-{level}", version=1)

    await chain(10)
    with pytest.raises(RefusedError, match="steps to find their references"):
        await chain(25)


async def test_the_versions_of_a_subject_are_compared_up_to_a_bound(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SetConfig(subject="many", settings={"compatibilityLevel": "BACKWARD_TRANSITIVE"})
    await registry.apply(settings, action="configure")

    def record(fields: int) -> str:
        named = [{"name": f"f{n}", "type": "int", "default": 0} for n in range(fields)]
        return json.dumps({"type": "record", "name": "R", "fields": named})

    for fields in range(1, 12):
        await register(registry, "many", record(fields))
    monkeypatch.setattr("fluvial.registry.model.compatibility.STEPS_MAX", 200)
    with pytest.raises(RefusedError, match="steps to compare with the versions") as refused:
        await register(registry, "many", record(12))
    assert refused.value.code == 409
    monkeypatch.undo()
    monkeypatch.setattr("fluvial.registry.model.registering.EARLIER_CHARACTERS_MAX", 200)
    with pytest.raises(RefusedError, match="versions before, in characters"):
        await register(registry, "many", record(12))


async def test_a_schema_is_parsed_and_compared_beside_the_event_loop(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients of the node have their turns meanwhile."""
    threads: set[int] = set()
    parse = KINDS["AVRO"].parse

    def watched(text: str, **named: Any) -> Parsed:
        threads.add(threading.get_ident())
        return parse(text, **named)

    monkeypatch.setattr(KINDS["AVRO"], "parse", watched)
    draft = Draft(schema='"string"')
    await register(registry, "small", '"string"')
    await registry.look_up("small", replace(draft, schema='"int"'), normalize=False, deleted=False)
    await registry.judge("small", replace(draft, schema='"long"'), registry.state.versions("small"), normalize=False)
    assert threads
    assert threading.get_ident() not in threads


async def test_large_bodies_share_what_may_be_held(registry: Registry) -> None:
    """Usual ones come in all the same, and what was held is given back."""
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def holds(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        size = len(await request.body())
        if size > 100_000:
            inside.set()
            await go_on.wait()
        await Response(str(size))(scope, receive, send)

    bounded = BoundedBodies(holds, shared_bytes_max=lambda: 150_000)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bounded), base_url="http://test") as http:
        first = asyncio.create_task(http.post("/", content=b"x" * 200_000))
        await inside.wait()
        with pytest.raises(RefusedError) as refused:
            await http.post("/", content=b"x" * 200_000)
        assert refused.value.status == 503
        assert (await http.post("/", content=b"x" * 50_000)).text == "50000"
        go_on.set()
        assert (await first).text == "200000"
        assert bounded.held == 0
        assert (await http.post("/", content=b"x" * 200_000)).text == "200000"


@pytest.mark.parametrize(
    "content",
    [
        {"ruleSet": {"domainRules": [{}] * 1_001}},
        {"metadata": {"properties": {f"p{n}": "" for n in range(10_001)}}},
        {"metadata": {"sensitive": [f"p{n}" for n in range(10_001)]}},
    ],
    ids=["rules", "properties", "sensitive"],
)
def test_what_comes_beside_a_schema_is_counted(shared_server: Any, content: dict[str, Any]) -> None:
    answer = shared_server.http.post("/subjects/beside/versions", json={"schema": '"string"', **content})
    assert answer.status_code == 400
    assert "entries" in answer.json()["message"]


def test_a_long_list_of_schemas_is_sent_in_parts(shared_server: Any) -> None:
    http = shared_server.http
    for number in range(5):
        doc = "x" * 100_000
        schema = json.dumps({"type": "record", "name": f"Long{number}", "doc": doc, "fields": []})
        assert http.post(f"/subjects/long-{number}/versions", json={"schema": schema}).status_code == 200
    answer = http.get("/schemas?subjectPrefix=long-")
    assert answer.headers.get("transfer-encoding") == "chunked"
    assert [each["subject"] for each in answer.json()] == [f"long-{number}" for number in range(5)]
    assert http.get("/schemas?subjectPrefix=long-0").headers.get("transfer-encoding") is None


def test_a_metadata_is_read_once_however_many_versions_it_is_held_against(registry: Registry) -> None:
    state = RegistryState()
    for version in range(1, 200):
        body = Body(schema=json.dumps({"type": "string", "v": version}), metadata='{"properties":{"a":"b"}}')
        state.replay(SchemaRecord(subject="s", version=version, id=version, body=body))
    wanted = Body(schema='"string"', metadata='{"properties":{"a":"b"}}')
    assert calls(lambda: find(state, registry.library, "s", wanted)) < 3 * 200
