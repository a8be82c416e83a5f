"""Contexts: subjects, ids and settings that are a context's own, by name and by path."""

import pytest

from fluvial.registry.model.ownership import Ownership
from fluvial.registry.service.policy import ANYONE, OwnersPolicy, Rules
from log_broker.core.security.principal import Principal

A = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
B = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int","default":0}]}'
STRING = '"string"'


@pytest.fixture
def http(registry_server):
    return registry_server.http


def register(http, subject: str, schema: str, prefix: str = "", **more: object) -> int:
    answer = http.post(f"{prefix}/subjects/{subject}/versions", json={"schema": schema, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def test_ids_are_a_contexts_own(http) -> None:
    assert register(http, "s", A) == 1
    assert register(http, "s", B) == 2
    assert register(http, ":.east:s", B) == 1
    assert register(http, ":.west:s", STRING) == 1
    assert http.get("/contexts").json() == [".", ".east", ".west"]
    assert http.get("/contexts?contextPrefix=.e").json() == [".east"]
    assert http.get("/schemas/ids/1").json()["schema"] == A
    assert http.get("/schemas/ids/1?subject=:.east:").json()["schema"] == B
    assert http.get("/schemas/ids/1?subject=:.west:s").json()["schema"] == STRING
    assert http.get("/schemas/ids/1/versions?subject=:.west:").json() == [{"subject": ":.west:s", "version": 1}]
    assert http.get("/schemas/ids/2?subject=:.east:").json()["error_code"] == 40403


def test_a_path_below_a_context_is_the_same_path_in_it(http) -> None:
    register(http, "s", A)
    assert register(http, "s", B, prefix="/contexts/.east") == 1
    assert register(http, "t", STRING, prefix="/contexts/:.east:") == 2
    assert http.get("/contexts/.east/subjects").json() == [":.east:s", ":.east:t"]
    assert http.get("/contexts/east/subjects?subjectPrefix=t").json() == [":.east:t"]
    assert http.get("/contexts/.east/subjects/s/versions/latest").json()["subject"] == ":.east:s"
    assert http.get("/contexts/.east/schemas/ids/1").json()["schema"] == B
    assert [each["subject"] for each in http.get("/contexts/.east/schemas").json()] == [":.east:s", ":.east:t"]
    assert http.get("/contexts/:.:/schemas/ids/1").json()["schema"] == A
    tested = http.post("/contexts/.east/compatibility/subjects/s/versions/latest", json={"schema": A})
    assert tested.json() == {"is_compatible": True}
    looked_up = http.post("/contexts/.east/subjects/s", json={"schema": B}).json()
    assert (looked_up["subject"], looked_up["id"]) == (":.east:s", 1)
    assert http.get("/contexts/a%3Ab/subjects").status_code == 404


def test_settings_of_a_context_hold_for_its_subjects(http) -> None:
    register(http, ":.east:s", A)
    assert http.put("/contexts/.east/config", json={"compatibility": "NONE"}).status_code == 200
    assert http.get("/config/:.east:").json() == {"compatibilityLevel": "NONE"}
    assert http.get("/config/:.east:s?defaultToGlobal=true").json() == {"compatibilityLevel": "NONE"}
    assert http.get("/config").json() == {"compatibilityLevel": "BACKWARD"}
    assert register(http, ":.east:s", STRING) == 2
    assert http.put("/contexts/.east/mode", json={"mode": "READONLY"}).json() == {"mode": "READONLY"}
    refused = http.post("/subjects/:.east:s/versions", json={"schema": A})
    assert (refused.status_code, refused.json()["error_code"]) == (422, 42205)
    assert register(http, "s", A) == 1
    http.put("/mode/:.east:s", json={"mode": "READWRITE"})
    assert http.delete("/contexts/.east/mode?recursive=true").json() == {"mode": "READONLY"}
    assert http.get("/mode/:.east:s").json()["error_code"] == 40409
    assert http.put("/config/:.__GLOBAL:", json={"compatibility": "FULL"}).status_code == 200
    assert http.get("/config/:.west:x?defaultToGlobal=true").json() == {"compatibilityLevel": "FULL"}


def test_a_subject_that_does_not_say_its_context_is_found_in_the_others(http) -> None:
    register(http, ":.east:only-there", A)
    assert http.get("/subjects/only-there/versions/1").json()["subject"] == ":.east:only-there"
    assert http.post("/subjects/only-there", json={"schema": A}).json()["subject"] == ":.east:only-there"
    assert http.get("/schemas/ids/1?subject=only-there").json()["schema"] == A
    assert http.get("/subjects/:.west:only-there/versions/1").json()["error_code"] == 40401
    assert http.get("/subjects").json() == [":.east:only-there"]
    assert http.get("/subjects?subjectPrefix=").json() == []
    assert http.get("/subjects?subjectPrefix=:*:only").json() == [":.east:only-there"]


def test_references_stay_within_their_context(http) -> None:
    register(http, ":.east:b", '{"type":"record","name":"B","fields":[]}')
    uses = '{"type":"record","name":"A","fields":[{"name":"b","type":"B"}]}'
    reference = {"name": "B", "subject": "b", "version": 1}
    refused = http.post("/subjects/a/versions", json={"schema": uses, "references": [reference]})
    assert refused.json()["error_code"] == 42201
    schema_id = register(http, ":.east:a", uses, references=[reference])
    assert http.get("/subjects/:.east:b/versions/1/referencedby").json() == [schema_id]
    assert http.get(f"/schemas/ids/{schema_id}?subject=:.east:").json()["references"] == [reference]
    qualified = http.get(f"/schemas/ids/{schema_id}?subject=:.east:&referenceFormat=qualified").json()
    assert qualified["references"] == [reference | {"subject": ":.east:b"}]
    assert http.delete("/subjects/:.east:b").json()["error_code"] == 42206


def test_a_context_is_forgotten_when_nothing_is_left_in_it_but_its_ids_are_not(http) -> None:
    register(http, ":.east:s", A)
    refused = http.delete("/contexts/.east")
    assert (refused.status_code, refused.json()["error_code"]) == (422, 42211)
    http.delete("/subjects/:.east:s")
    http.delete("/subjects/:.east:s?permanent=true")
    assert http.get("/contexts").json() == [".", ".east"]
    assert http.delete("/contexts/.east").status_code == 204
    assert http.get("/contexts").json() == ["."]
    assert register(http, ":.east:s", B) == 2


async def test_what_is_in_contexts_comes_back_from_a_compacted_log(memory_log, registry) -> None:
    from fluvial.registry.model.commands import DeleteContext, DeleteSubject, Draft, Register
    from fluvial.registry.model.registry import Registry

    async def add(which: Registry, subject: str, schema: str) -> int:
        found = await which.apply(Register(subject=subject, draft=Draft(schema=schema)), action="register")
        return found.id

    for number in range(3):
        await add(registry, f":.east:s{number}", f'{{"type":"fixed","name":"F","size":{number}}}')
    for permanent in (False, True):
        for number in range(3):
            await registry.apply(DeleteSubject(subject=f":.east:s{number}", permanent=permanent), action="delete")
    await registry.apply(DeleteContext(subject=":.east:"), action="delete")
    await add(registry, ":.west:s", A)
    memory_log.compact()
    again = Registry(memory_log)
    await again.open()
    assert again.state.contexts() == [".", ".west"]
    assert await add(again, ":.east:s", A) == 4
    assert await add(again, ":.west:t", A) == 1


@pytest.mark.parametrize("scope", [None, ":.__GLOBAL:", ":.east:"])
def test_where_there_are_administrators_settings_of_a_context_are_theirs(scope: str | None) -> None:
    policy = OwnersPolicy(Ownership(), lambda: Rules(admins=frozenset({"ops"})))
    assert policy.authorize(ANYONE, scope, "set_mode") is not None
    assert policy.authorize(Principal(name="ops"), scope, "set_mode") is None
    assert policy.authorize(ANYONE, ":.east:users-value", "set_mode") is None
