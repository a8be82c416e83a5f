"""What the registry remembers: across restarts, compaction, deletions and writes that fail."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_log import MemoryLog

from fluvial.registry.errors import RefusedError
from fluvial.registry.model import records
from fluvial.registry.model.commands import (
    DeleteSubject,
    DeleteVersion,
    Draft,
    Register,
    SetConfig,
    SetMode,
)
from fluvial.registry.model.registry import Registry


def record_schema(*fields: str) -> str:
    shape = [{"name": each, "type": ["null", "int"], "default": None} for each in fields]
    return json.dumps({"type": "record", "name": "R", "fields": shape})


async def register(registry: Registry, subject: str, schema: str, **more: object) -> records.SchemaRecord:
    draft = Draft(schema=schema, **more)
    found = await registry.apply(Register(subject=subject, draft=draft), action="register")
    assert isinstance(found, records.SchemaRecord)
    return found


async def reopened(log) -> Registry:
    registry = Registry(log)
    await registry.open()
    return registry


def picture(registry: Registry) -> object:
    """Everything a reader can see."""
    state = registry.state
    return (
        state.all_versions(deleted=True),
        state.highest_id,
        {each: state.settings.config(each) for each in [None, *state.subjects(deleted=True)]},
        {each: state.settings.mode(each) for each in [None, *state.subjects(deleted=True)]},
    )


async def test_records_are_written_as_confluent_keeps_them(registry, memory_log) -> None:
    await register(registry, "s", '{"type": "string"}')
    await registry.apply(SetConfig(subject="s", settings={"compatibilityLevel": "FULL"}), action="configure")
    await registry.apply(SetMode(subject=None, mode="READWRITE"), action="set_mode")
    await registry.apply(DeleteSubject(subject="s"), action="delete")
    written = [(each.key.decode(), each.value.decode()) for each in memory_log.records]
    assert written == [
        (
            '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
            '{"subject":"s","version":1,"id":1,"schema":"\\"string\\"","deleted":false}',
        ),
        ('{"keytype":"CONFIG","subject":"s","magic":0}', '{"subject":"s","compatibilityLevel":"FULL"}'),
        ('{"keytype":"MODE","magic":0}', '{"mode":"READWRITE"}'),
        ('{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', '{"subject":"s","version":1}'),
    ]


async def test_the_same_schema_has_one_id_under_every_subject(registry) -> None:
    first = await register(registry, "a", '{"type": "string"}')
    second = await register(registry, "b", '"string"')
    again = await register(registry, "a", ' "string" ')
    assert (first.id, second.id, again.id) == (1, 1, 1)
    assert (first.version, second.version, again.version) == (1, 1, 1)


async def test_ids_are_given_once_under_concurrent_registration(registry) -> None:
    schemas = [record_schema("a", f"f{number}") for number in range(20)]
    found = await asyncio.gather(
        *(register(registry, f"s{number}", schema) for number, schema in enumerate(schemas * 2))
    )
    assert sorted({each.id for each in found}) == list(range(1, 21))
    assert [each.id for each in found[:20]] == [each.id for each in found[20:]]


async def test_an_id_is_not_given_again_after_hard_deletion_compaction_and_restart(registry, memory_log) -> None:
    await register(registry, "a", record_schema("a"))
    last = await register(registry, "b", record_schema("b"))
    await registry.apply(DeleteSubject(subject="b"), action="delete")
    await registry.apply(DeleteSubject(subject="b", permanent=True), action="delete")
    assert registry.state.body(last.id) is None
    memory_log.compact()
    restarted = await reopened(memory_log)
    assert restarted.state.subjects(deleted=True) == ["a"]
    assert (await register(restarted, "c", record_schema("c"))).id == last.id + 1


async def test_a_soft_deleted_schema_keeps_its_id_and_comes_back(registry, memory_log) -> None:
    first = await register(registry, "s", record_schema("a"))
    await registry.apply(DeleteVersion(subject="s", version=1), action="delete")
    assert registry.state.body(first.id) is not None
    back = await register(await reopened(memory_log), "s", record_schema("a"))
    assert (back.id, back.version) == (first.id, 2)


async def test_a_write_that_failed_is_not_answered_and_not_half_done(registry, memory_log) -> None:
    memory_log.fail_next = "before writing"
    with pytest.raises(RefusedError) as refused:
        await register(registry, "s", record_schema("a"))
    assert refused.value.code == 50001
    assert registry.state.subjects() == []
    assert (await register(registry, "s", record_schema("a"))).id == 1


async def test_a_write_whose_answer_was_lost_is_seen_before_the_next_one(registry, memory_log) -> None:
    memory_log.fail_next = "after writing"
    with pytest.raises(RefusedError):
        await register(registry, "s", record_schema("a"))
    assert (await register(registry, "t", record_schema("b"))).id == 2
    assert registry.state.subjects() == ["s", "t"]
    assert picture(await reopened(memory_log)) == picture(registry)


async def test_records_that_others_wrote_in_between_are_taken_in(registry, memory_log) -> None:
    await register(registry, "s", record_schema("a"))
    foreign = records.SchemaRecord(subject="t", version=1, id=9, body=records.Body(schema='"string"'))
    await memory_log.append([records.encode(foreign)])
    await register(registry, "u", record_schema("b"))
    assert registry.state.subjects() == ["s", "t", "u"]
    assert (await register(registry, "v", record_schema("c"))).id == 10


async def test_a_cancelled_caller_leaves_nothing_half_done(registry, memory_log) -> None:
    task = asyncio.create_task(register(registry, "s", record_schema("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await register(registry, "t", record_schema("b"))
    assert picture(await reopened(memory_log)) == picture(registry)


async def test_records_that_are_not_ours_are_passed_over(memory_log) -> None:
    await memory_log.append(
        [
            (b"not json", b"{}"),
            (None, b"{}"),
            (b'{"keytype":"NOOP","magic":0}', None),
            (b'{"keytype":"CONTEXT","tenant":"default","magic":0}', b"{}"),
            (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":"?"}'),
            (b"[1]", b"{}"),
        ]
    )
    registry = await reopened(memory_log)
    assert (await register(registry, "s", record_schema("a"))).id == 1


def drafts() -> st.SearchStrategy[object]:
    subjects = st.sampled_from(["a", "b"])
    schemas = st.sampled_from([record_schema(*fields) for fields in ((), ("x",), ("x", "y"), ("z",))])
    return st.one_of(
        st.builds(Register, subject=subjects, draft=st.builds(Draft, schema=schemas)),
        st.builds(DeleteVersion, subject=subjects, version=st.sampled_from([-1, 1, 2]), permanent=st.booleans()),
        st.builds(DeleteSubject, subject=subjects, permanent=st.booleans()),
        st.builds(
            SetConfig,
            subject=st.sampled_from([None, "a"]),
            settings=st.sampled_from([{"compatibilityLevel": "NONE"}, {"compatibilityLevel": "FULL_TRANSITIVE"}]),
        ),
        st.builds(SetMode, subject=st.sampled_from([None, "a"]), mode=st.sampled_from(["READWRITE", "READONLY"])),
    )


@settings(max_examples=150, deadline=None)
@given(commands=st.lists(st.tuples(drafts(), st.booleans()), max_size=25))
def test_any_history_is_what_a_restart_finds(commands) -> None:
    async def story() -> None:
        log = MemoryLog()
        registry = await reopened(log)
        bodies: dict[int, str] = {}
        for command, compact in commands:
            try:
                reply = await registry.apply(command, action="register")
            except RefusedError:
                continue
            if isinstance(reply, records.SchemaRecord):
                assert bodies.setdefault(reply.id, reply.body.schema) == reply.body.schema, "an id means one schema"
            if compact:
                log.compact()
            restarted = await reopened(log)
            assert picture(restarted) == picture(registry)
            registry = restarted if compact else registry

    asyncio.run(story())
