"""What the broker is told about keys and values at the levels `id` and `payload`."""

import asyncio
import io
import json
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import fastavro
import pytest

from fluvial.registry.errors import RefusedError
from fluvial.registry.formats.kinds import KINDS
from fluvial.registry.formats.schema_kind import Parsed
from fluvial.registry.model.commands import DeleteVersion, Draft, Register
from fluvial.registry.model.library import Library
from fluvial.registry.model.records import Reference
from fluvial.registry.model.registry import Registry
from fluvial.registry.validator import RegistryValidator
from log_broker.interfaces import Cause, Contract, RecordValidator, Violation
from log_broker.records.contracts import Asked, SideChecks, all_pass
from log_broker.records.record import build_batch, records_section

USER = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}


async def register(registry: Registry, subject: str, schema: object) -> int:
    command = Register(subject=subject, draft=Draft(schema=json.dumps(schema)))
    return (await registry.apply(command, action="register")).id


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def reason_of(
    validator: RegistryValidator, payload: bytes | None, *, topic: str = "users", is_key: bool = False, **contract: Any
) -> str | None:
    """Why a datum may not enter; the quick look must say the same."""
    check = validator.check_of(Contract(topic=topic, is_key=is_key, **contract))
    violation = check.violation(payload)
    batch = build_batch([(1, payload, None, ()) if is_key else (1, b"k", payload, ())] * 2)
    section = bytes(records_section(batch))
    checks = SideChecks(check, None) if is_key else SideChecks(None, check)
    passes = all_pass(section, 2, checks, Asked())
    assert passes is (violation is None and payload is not None)
    return None if violation is None else violation.reason


def user(**values: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, USER, values)
    return out.getvalue()


@pytest.fixture
async def validator(registry):
    await register(registry, "users-value", USER)
    await register(registry, "users-key", "string")
    await register(registry, "other-value", "int")
    return RegistryValidator(registry)


def test_it_is_what_the_broker_asks_for(validator) -> None:
    asked: RecordValidator = validator
    assert asked.check_of(Contract(topic="users", is_key=False, level="id")).violation(framed(1, b"")) is None


@pytest.mark.parametrize("level", ["id", "payload"])
async def test_null_is_no_way_around_the_contract(validator, registry, level) -> None:
    assert "not compacted" in reason_of(validator, None, level=level)
    assert "the key is null" in reason_of(validator, None, is_key=True, level=level)
    assert reason_of(validator, None, level=level, takes_null=True) is None
    assert "null" in reason_of(validator, None, topic="without-a-subject", level=level)
    await register(registry, "maybe-value", ["null", "string"])
    await register(registry, "maybe-key", "null")
    assert reason_of(validator, None, topic="maybe", level=level) is None
    assert reason_of(validator, None, topic="maybe", is_key=True, level=level) is None
    await registry.apply(DeleteVersion(subject="maybe-value", version=1), action="delete")
    assert reason_of(validator, None, topic="maybe", level=level) is not None


async def test_subjects_by_the_name_of_the_record(validator, registry) -> None:
    event = {"type": "record", "name": "Event", "namespace": "org.example", "fields": []}
    schema_id = await register(registry, "org.example.Event", event)
    by_record = {"level": "payload", "strategy": "RecordNameStrategy"}
    assert reason_of(validator, framed(schema_id, b""), **by_record) is None
    assert reason_of(validator, framed(schema_id, b""), is_key=True, **by_record) is None
    assert "not under User" in reason_of(validator, framed(1, b""), **by_record)
    assert reason_of(validator, framed(2, b"\2k"), **by_record) is not None, "a string is no record"
    by_both = {"level": "id", "strategy": "TopicRecordNameStrategy"}
    assert "not under users-org.example.Event" in reason_of(validator, framed(schema_id, b""), **by_both)
    assert await register(registry, "users-org.example.Event", event) == schema_id
    assert reason_of(validator, framed(schema_id, b""), **by_both) is None
    assert reason_of(validator, None, **by_both) is not None


@pytest.mark.parametrize("level", ["id", "payload"])
def test_a_good_record(validator, level) -> None:
    payload = framed(1, user(id=1, name="Ada"))
    assert reason_of(validator, payload, level=level) is None
    assert reason_of(validator, framed(2, b"\x02k"), topic="users", is_key=True, level=level) is None


@pytest.mark.parametrize("level", ["id", "payload"])
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "is not in the registry's wire format"),
        (b"plain text", "is not in the registry's wire format"),
        (b"\0\0\0\1", "is not in the registry's wire format"),
        (framed(99, b""), "schema id 99 of the value is not registered (subject users-value)"),
        (framed(3, b"\2"), "schema id 3 of the value is registered under other-value, not under users-value"),
        (framed(2, b"\2k"), "schema id 2 of the value is registered under users-key, not under users-value"),
        (framed(2**32 - 1, b""), "schema id 4294967295 of the value is not registered (subject users-value)"),
    ],
)
def test_the_wrong_id(validator, level, payload, reason) -> None:
    assert reason in reason_of(validator, payload, topic="users", is_key=False, level=level)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (user(id=1, name="Ada")[:-1], "under schema id 1: field name: the bytes end early"),
        (user(id=1, name="Ada") + b"\0", "under schema id 1: 1 bytes are left over"),
        (b"\2\2\xff", "under schema id 1: field name: a string that is not UTF-8: invalid start byte"),
    ],
)
def test_a_payload_that_does_not_decode(validator, data, reason) -> None:
    payload = framed(1, data)
    assert reason_of(validator, payload, topic="users", is_key=False, level="id") is None
    assert reason_of(validator, payload, topic="users", is_key=False, level="payload").endswith(reason)


async def test_it_follows_the_registry(validator, registry) -> None:
    payload = framed(4, b"\0\0\0")
    assert reason_of(validator, payload, topic="users", is_key=False, level="id") is not None
    more = USER | {"fields": [*USER["fields"], {"name": "age", "type": ["null", "int"], "default": None}]}
    assert await register(registry, "users-value", more) == 4
    assert reason_of(validator, payload, topic="users", is_key=False, level="payload") is None
    await registry.apply(DeleteVersion(subject="users-value", version=2), action="delete")
    assert reason_of(validator, payload, topic="users", is_key=False, level="id") is not None


async def test_a_schema_with_references_is_decoded(registry) -> None:
    await register(registry, "b", {"type": "record", "name": "B", "fields": [{"name": "x", "type": "int"}]})
    schema = {"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]}
    draft = Draft(schema=json.dumps(schema), references=(Reference(name="B", subject="b", version=1),))
    found = await registry.apply(Register(subject="a-value", draft=draft), action="register")
    validator = RegistryValidator(registry)
    assert reason_of(validator, framed(found.id, b"\2"), topic="a", is_key=False, level="payload") is None
    assert reason_of(validator, framed(found.id, b""), topic="a", is_key=False, level="payload") is not None


async def test_payloads_of_other_formats_are_refused_with_what_to_do(registry) -> None:
    draft = Draft(schema='{"type": "object"}', schema_type="JSON")
    found = await registry.apply(Register(subject="events-value", draft=draft), action="register")
    validator = RegistryValidator(registry)
    payload = framed(found.id, b"{}")
    assert reason_of(validator, payload, topic="events", level="id") is None
    reason = reason_of(validator, payload, topic="events", level="payload")
    assert reason == (
        "the value does not decode under schema id 1: payloads are checked for AVRO only and this schema is JSON; "
        "set the topic's schema.validation to id"
    )


def diamonds(depth: int, leaf: Any) -> Any:
    """Records with two fields of the next one."""
    schema: Any = {"type": "record", "name": f"R{depth}", "fields": [{"name": "v", "type": leaf}]}
    for level in range(depth - 1, -1, -1):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{level + 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


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
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("leaf", ["null", {"type": "fixed", "name": "F", "size": 0}], ids=str)
async def test_a_record_that_takes_no_bytes_takes_no_time(registry: Registry, leaf: Any) -> None:
    """Of 2^12 of them, and of 2^60 as well."""
    schema_id = await register(registry, "empty-value", diamonds(12, leaf))
    check = RegistryValidator(registry).check_of(Contract(topic="empty", is_key=False, level="payload"))
    assert check.violation(framed(schema_id, b"")) is None
    assert calls(lambda: check.violation(framed(schema_id, b""))) < 50
    skip = check.accepted[framed(schema_id, b"")]
    assert skip is not None
    assert calls(lambda: skip(framed(schema_id, b""), 5)) < 50


async def test_records_in_records_cost_no_more_than_their_bytes(registry: Registry) -> None:
    records = [{"type": "record", "name": "R0", "fields": [{"name": "v", "type": "int"}]}]
    records += [
        {
            "type": "record",
            "name": f"R{n}",
            "fields": [{"name": "v", "type": f"R{n - 1}"}, {"name": "n", "type": "null"}],
        }
        for n in range(1, 200)
    ]
    fields = [{"name": "all", "type": records}, {"name": "x", "type": {"type": "array", "items": "R199"}}]
    schema_id = await register(registry, "deep-value", {"type": "record", "name": "T", "fields": fields})
    check = RegistryValidator(registry).check_of(Contract(topic="deep", is_key=False, level="payload"))
    datum = framed(schema_id, b"\0\2" + b"\xd0\x0f" + b"\2" * 1_000 + b"\0")
    assert check.violation(datum) is None
    skip = check.accepted[framed(schema_id, b"")]
    assert skip is not None
    assert calls(lambda: check.violation(datum)) < 5 * len(datum)
    assert calls(lambda: skip(datum, 5)) < 5 * len(datum)
    wrong = check.violation(datum[:-3])
    assert wrong is not None
    assert wrong.field.startswith("x.v.v.v"), wrong


@pytest.mark.parametrize(
    "schema",
    [
        [{"type": "enum", "name": f"E{n}", "symbols": ["A"]} for n in range(3_000)],
        [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(3_000)],
        {"type": "record", "name": "W", "fields": [{"name": f"f{n}", "type": ["null", "int"]} for n in range(3_000)]},
    ],
    ids=["enums", "fixed", "fields"],
)
async def test_a_schema_that_is_too_much_to_make_code_of_is_checked(registry: Registry, schema: Any) -> None:
    schema_id = await register(registry, "wide-value", schema)
    validator = RegistryValidator(registry)
    contract = Contract(topic="wide", is_key=False, level="payload")
    data = b"\0" * (3_000 if isinstance(schema, dict) else 2)
    violation = validator.check_of(contract).violation(framed(schema_id, data))
    if violation is not None:  # it is read beside the event loop
        assert await learned(validator)
        violation = validator.check_of(contract).violation(framed(schema_id, data))
    assert violation is None
    assert validator.check_of(contract).violation(framed(schema_id, data[:-1])) is not None


async def learned(validator: RegistryValidator) -> bool:
    told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    validator.learn(told.set_result)
    return await told


async def test_types_that_are_nested_too_deeply_by_name_are_said_to_be(registry: Registry) -> None:
    """The text of each is flat; what refers to the last of them begins with that."""
    records = [{"type": "record", "name": "R0", "fields": [{"name": "v", "type": "int"}, {"name": "w", "type": "int"}]}]
    records += [
        {
            "type": "record",
            "name": f"R{n}",
            "fields": [{"name": "v", "type": f"R{n - 1}"}, {"name": "w", "type": "int"}],
        }
        for n in range(1, 600)
    ]
    await register(registry, "chain", records)
    last = {"type": "record", "name": "U", "fields": [{"name": "u", "type": "R599"}]}
    draft = Draft(schema=json.dumps(last), references=(Reference(name="R599", subject="chain", version=1),))
    found = await registry.apply(Register(subject="chained-value", draft=draft), action="register")
    validator = RegistryValidator(registry)
    check = validator.check_of(Contract(topic="chained", is_key=False, level="payload"))
    violation = check.violation(framed(found.id, b"\2" * 601))
    assert violation is not None
    assert "nested too deeply" in violation.reason
    with pytest.raises(RefusedError, match="nested too deeply"):
        await registry.formatted(found.body, ".", "resolved")
    assert found == await registry.look_up("chained-value", draft, normalize=False, deleted=False)


async def test_a_large_schema_is_read_beside_the_event_loop(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [{"name": f"f{n}", "type": "int", "doc": "x" * 100} for n in range(600)]
    schema_id = await register(registry, "large-value", {"type": "record", "name": "L", "fields": fields})
    registry.library = Library()  # as after a restart
    validator = RegistryValidator(registry)
    threads: set[int] = set()
    parse = KINDS["AVRO"].parse

    def watched(text: str, **named: Any) -> Parsed:
        threads.add(threading.get_ident())
        return parse(text, **named)

    monkeypatch.setattr(KINDS["AVRO"], "parse", watched)
    contract = Contract(topic="large", is_key=False, level="payload")
    assert validator.check_of(contract).violation(framed(schema_id, b"\0" * 600)) is not None
    assert not threads
    assert await learned(validator)
    assert validator.check_of(contract).violation(framed(schema_id, b"\0" * 600)) is None
    assert threads
    assert threading.get_ident() not in threads


async def test_what_is_made_of_a_schema_is_kept_when_another_is_registered(
    validator: RegistryValidator, registry: Registry
) -> None:
    payload = user(id=1, name="x")
    contract = Contract(topic="users", is_key=False, level="payload")
    check = validator.check_of(contract)
    assert check.violation(framed(1, payload)) is None
    before = check.accepted[framed(1, b"")]
    await register(registry, "elsewhere", "int")
    again = validator.check_of(contract)
    assert again is not check
    assert again.violation(framed(1, payload)) is None
    assert again.accepted[framed(1, b"")] is before


KEYED = {**USER, "fluvial.key": "id"}


async def test_a_record_without_a_key_is_refused_by_the_newest_contract_that_names_it(validator, registry) -> None:
    def keyless(**contract: Any) -> Violation | None:
        return validator.check_of(Contract(topic="users", is_key=False, **contract)).keyless

    assert keyless(level="payload") is None
    await register(registry, "users-value", KEYED)
    violation = keyless(level="payload")
    assert violation is not None
    assert (violation.cause, violation.field) == (Cause.NO_KEY, "id")
    assert "subject users-value" in violation.reason
    assert keyless(level="id") is None
    assert keyless(level="payload", strategy="RecordNameStrategy") is None
    without_name = {**USER, "doc": "the key is free"}
    await register(registry, "users-value", without_name)
    assert keyless(level="payload") is None, "the newest contract names none"
