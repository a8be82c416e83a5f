"""What the broker is told about keys and values at the levels `id` and `payload`."""

import io
import json

import fastavro
import pytest

from fluvial.registry.commands import DeleteVersion, Draft, Register
from fluvial.registry.registry import Registry
from fluvial.registry.validator import RegistryValidator
from log_broker.interfaces import RecordValidator

USER = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}


async def register(registry: Registry, subject: str, schema: object) -> int:
    command = Register(subject=subject, draft=Draft(schema=json.dumps(schema)))
    return (await registry.apply(command, action="register")).id


def framed(schema_id: int, data: bytes) -> memoryview:
    return memoryview(b"\0" + schema_id.to_bytes(4, "big") + data)


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
    assert asked.refuse_reason("users", is_key=False, level="id", payload=framed(1, b"")) is None


@pytest.mark.parametrize("level", ["id", "payload"])
def test_null_is_let_through(validator, level) -> None:
    assert validator.refuse_reason("users", is_key=False, level=level, payload=None) is None
    assert validator.refuse_reason("users", is_key=True, level=level, payload=None) is None


@pytest.mark.parametrize("level", ["id", "payload"])
def test_a_good_record(validator, level) -> None:
    payload = framed(1, user(id=1, name="Ada"))
    for each in (payload, bytes(payload)):
        assert validator.refuse_reason("users", is_key=False, level=level, payload=each) is None
    assert validator.refuse_reason("users", is_key=True, level=level, payload=framed(2, b"\x02k")) is None


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
    assert reason in validator.refuse_reason("users", is_key=False, level=level, payload=payload)


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
    assert validator.refuse_reason("users", is_key=False, level="id", payload=payload) is None
    assert validator.refuse_reason("users", is_key=False, level="payload", payload=payload).endswith(reason)


async def test_it_follows_the_registry(validator, registry) -> None:
    payload = framed(4, b"\0\0\0")
    assert validator.refuse_reason("users", is_key=False, level="id", payload=payload) is not None
    more = USER | {"fields": [*USER["fields"], {"name": "age", "type": ["null", "int"], "default": None}]}
    assert await register(registry, "users-value", more) == 4
    assert validator.refuse_reason("users", is_key=False, level="payload", payload=payload) is None
    await registry.apply(DeleteVersion(subject="users-value", version=2), action="delete")
    assert validator.refuse_reason("users", is_key=False, level="id", payload=payload) is not None


async def test_a_schema_with_references_is_decoded(registry) -> None:
    from fluvial.registry.records import Reference

    await register(registry, "b", {"type": "record", "name": "B", "fields": [{"name": "x", "type": "int"}]})
    schema = {"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]}
    draft = Draft(schema=json.dumps(schema), references=(Reference(name="B", subject="b", version=1),))
    found = await registry.apply(Register(subject="a-value", draft=draft), action="register")
    validator = RegistryValidator(registry)
    assert validator.refuse_reason("a", is_key=False, level="payload", payload=framed(found.id, b"\2")) is None
    assert validator.refuse_reason("a", is_key=False, level="payload", payload=framed(found.id, b"")) is not None
