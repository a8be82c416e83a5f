"""Subjects and their owners: who may change what, who is told whom to ask, and what is kept of it."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from memory_log import MemoryLog
from test_registry_state import record_schema

from fluvial.http_doors import rules_of
from fluvial.registry.client import RegistryClient
from fluvial.registry.errors import RegistryError
from fluvial.registry.model.ownership import Ownership
from fluvial.registry.model.registry import Registry
from fluvial.registry.service.auth import hash_password, verify_password
from fluvial.registry.service.policy import ANYONE, Action, OwnersPolicy, Rules
from log_broker.config.broker import BrokerConfig
from log_broker.core.security.principal import Principal

OPERATIONS = ("operations", "correct horse battery")
CONTACT = "Operations <operations@airline.example>"
WEATHER = ("weather", "staple staple staple")
SUBJECT = "flights-value"


@pytest.fixture
def anyone(registry_server) -> Iterator[RegistryClient]:
    with RegistryClient(registry_server.url) as client:
        yield client


@pytest.fixture
def owner(anyone: RegistryClient) -> RegistryClient:
    """The owner of SUBJECT, which has one version."""
    client = anyone.acting_as(*OPERATIONS)
    assert client.introduce(OPERATIONS[0], CONTACT)
    client.give(SUBJECT, OPERATIONS[0])
    client.register(SUBJECT, record_schema("a"))
    return client


@pytest.fixture
def neighbour(anyone: RegistryClient) -> RegistryClient:
    client = anyone.acting_as(*WEATHER)
    client.introduce(WEATHER[0], "desk@weather.example")
    return client


WRITES = [
    ("POST", f"/subjects/{SUBJECT}/versions", {"schema": record_schema("a", "b")}),
    ("DELETE", f"/subjects/{SUBJECT}", None),
    ("DELETE", f"/subjects/{SUBJECT}/versions/1", None),
    ("PUT", f"/config/{SUBJECT}", {"compatibility": "NONE"}),
    ("DELETE", f"/config/{SUBJECT}", None),
    ("PUT", f"/mode/{SUBJECT}", {"mode": "IMPORT"}),
    ("DELETE", f"/mode/{SUBJECT}", None),
    ("PUT", f"/fluvial/owners/{SUBJECT}", {"owner": "weather"}),
    ("PUT", f"/fluvial/producers/{OPERATIONS[0]}", {"contact": "mine@now.example"}),
]


def test_nobody_else_changes_what_is_owned(registry_server, memory_log: MemoryLog, owner, neighbour) -> None:
    written = len(memory_log.records)
    for method, path, content in WRITES:
        for auth, told in ((None, "came without credentials"), (WEATHER, "came from weather")):
            answer = registry_server.http.request(method, path, json=content, auth=auth)
            assert (answer.status_code, answer.json()["error_code"]) == (403, 40301), path
            assert CONTACT in answer.json()["message"]
            assert told in answer.json()["message"] or "producers" in path
    assert len(memory_log.records) == written


def test_the_owner_may_do_all_of_it(owner: RegistryClient) -> None:
    assert owner.register(SUBJECT, record_schema()) == 2
    owner.set_config("NONE", SUBJECT)
    assert owner.delete_subject(SUBJECT) == [1, 2]
    assert owner.delete_subject(SUBJECT, permanent=True) == [1, 2]
    # What is gone is still its name's owner's.
    assert owner.owner(SUBJECT)["owner"] == OPERATIONS[0]


def test_everyone_reads_and_registers_what_is_there_already(anyone, owner, neighbour) -> None:
    for client in (anyone, neighbour):
        assert client.register(SUBJECT, record_schema("a")) == 1
        assert client.latest(SUBJECT).id == 1
        assert client.check(SUBJECT, record_schema()) == []
        # What would be refused for its form is refused for its sender first.
        with pytest.raises(RegistryError, match="is owned by operations"):
            client.register(SUBJECT, '{"type": "no such"}')


def test_what_nobody_owns_is_open(anyone, owner, neighbour) -> None:
    assert anyone.register("open-value", '"string"') == 2
    assert neighbour.register("open-value", '["null","string"]') == 3
    anyone.set_config("NONE", "open-value")
    assert anyone.delete_subject("open-value") == [1, 2]


def test_a_wrong_name_or_password_is_401(registry_server, owner) -> None:
    for auth in ((OPERATIONS[0], "another password"), ("nobody", OPERATIONS[1])):
        answer = registry_server.http.delete(f"/subjects/{SUBJECT}", auth=auth)
        assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
        assert answer.headers["www-authenticate"].startswith("Basic")
    for header in ("Bearer abc", "Basic ???", "Basic bm9jb2xvbg=="):
        answer = registry_server.http.delete(f"/subjects/{SUBJECT}", headers={"authorization": header})
        assert answer.status_code == 401
    assert registry_server.http.get("/subjects", auth=("nobody", "x")).json() == [SUBJECT]


def test_a_producer_introduces_itself_once(registry_server, anyone, owner, memory_log: MemoryLog) -> None:
    written = len(memory_log.records)
    assert owner.introduce(OPERATIONS[0], CONTACT)
    owner.give(SUBJECT, OPERATIONS[0])
    assert len(memory_log.records) == written
    with pytest.raises(RegistryError, match="The password of 'operations' is another one"):
        anyone.acting_as(OPERATIONS[0], "a stranger's password").introduce(OPERATIONS[0], CONTACT)
    with pytest.raises(RegistryError, match="has 12 characters or more"):
        anyone.acting_as("short", "too short").introduce("short", CONTACT)
    with pytest.raises(RegistryError, match="sends its name and password by HTTP Basic"):
        anyone.introduce("silent", CONTACT, password="long enough it is")
    with pytest.raises(RegistryError, match="holds no e-mail address"):
        anyone.acting_as(*WEATHER).introduce(WEATHER[0], "no address")
    listed = registry_server.http.get("/fluvial/producers").json()
    assert listed == [{"producer": "operations", "contact": CONTACT, "subjects": [SUBJECT]}]


def test_a_password_is_changed_by_its_owner_and_kept_as_a_hash(registry_server, owner, memory_log: MemoryLog) -> None:
    fresh = "an altogether different one"
    assert owner.introduce(OPERATIONS[0], password=fresh)
    with pytest.raises(RegistryError) as refused:
        owner.register(SUBJECT, record_schema())
    assert refused.value.status == 401
    assert owner.acting_as(OPERATIONS[0], fresh).register(SUBJECT, record_schema()) == 2
    log = b"".join(each.value or b"" for each in memory_log.records)
    answers = (
        registry_server.http.get("/fluvial/producers").content + registry_server.http.get("/fluvial/owners").content
    )
    for password in (OPERATIONS[1], fresh):
        assert password.encode() not in log + answers
    assert b"scrypt$" in log
    assert b"scrypt$" not in answers


def test_a_transfer_is_kept_with_who_and_when(anyone, owner, neighbour) -> None:
    with pytest.raises(RegistryError, match="Producer 'ghost' not found"):
        owner.give(SUBJECT, "ghost")
    owner.give(SUBJECT, WEATHER[0])
    assert neighbour.register(SUBJECT, record_schema()) == 2
    with pytest.raises(RegistryError, match=r"is owned by weather \(desk@weather.example\)"):
        owner.register(SUBJECT, record_schema("z"))
    neighbour.give(SUBJECT, None)
    assert anyone.delete_subject(SUBJECT) == [1, 2]
    owned = anyone.owner(SUBJECT)
    assert (owned["owner"], owned["contact"]) == (None, None)
    assert [(each["by"], each["from"], each["to"]) for each in owned["history"]] == [
        ("operations", None, "operations"),
        ("operations", "operations", "weather"),
        ("weather", "weather", None),
    ]
    times = [each["at"] for each in owned["history"]]
    assert times == sorted(times)
    assert anyone.owner("never-owned") is None


def test_claiming_takes_a_name(anyone, owner) -> None:
    with pytest.raises(RegistryError, match="Who claims a subject says who it is"):
        anyone.give("free-value", OPERATIONS[0])


def test_settings_for_all_take_a_name_once_something_is_owned(anyone, registry_server, neighbour) -> None:
    anyone.set_config("FULL")
    neighbour.give("w-value", WEATHER[0])
    with pytest.raises(RegistryError, match="what holds for all is changed by a producer"):
        anyone.set_config("NONE")
    assert registry_server.http.put("/mode", json={"mode": "IMPORT"}).status_code == 403
    neighbour.set_config("NONE")
    assert anyone.get_config() == "NONE"


def test_versions_know_when_and_by_whom_they_were_registered(registry_server, anyone, owner) -> None:
    owner.register(SUBJECT, record_schema())
    anyone.register("open-value", '"string"')
    registered = registry_server.http.get(f"/fluvial/registrations/{SUBJECT}").json()
    assert [(each["version"], each["id"], each["by"]) for each in registered] == [
        (1, 1, "operations"),
        (2, 2, "operations"),
    ]
    assert all(each["at"] > 1_700_000_000_000 for each in registered)
    [other] = registry_server.http.get("/fluvial/registrations/open-value").json()
    assert other["by"] is None
    assert registry_server.http.get("/fluvial/registrations/none").status_code == 404


async def test_it_is_all_there_after_a_restart_and_a_compaction(
    memory_log: MemoryLog, registry_server, owner, neighbour
) -> None:
    owner.give(SUBJECT, WEATHER[0])
    # A version number that is used again is not its former author's.
    owner.register("again-value", '"string"')
    for permanent in (False, True):
        owner.delete_subject("again-value", permanent=permanent)
    with RegistryClient(registry_server.url) as anyone:
        anyone.register("again-value", '"long"')
    memory_log.compact()
    restarted = Registry(memory_log)
    await restarted.open()
    before, after = registry_server.registry.state.ownership, restarted.state.ownership
    assert after.all_owned() == before.all_owned()
    assert after.owned(SUBJECT) == before.owned(SUBJECT)
    assert after.producers() == before.producers()
    assert after.registered_by(SUBJECT, 1) == "operations"
    assert after.registered_by("again-value", 1) is None


def test_our_records_are_noops_to_other_registries(memory_log: MemoryLog, owner) -> None:
    known = {"SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "NOOP"}
    keys = [json.loads(each.key) for each in memory_log.records]
    assert {each["keytype"] for each in keys} <= known
    assert {each.get("fluvial") for each in keys if each["keytype"] == "NOOP"} == {"producer", "owner", "registration"}


ACTIONS: tuple[Action, ...] = ("register", "delete", "configure", "set_mode")


@pytest.mark.parametrize("action", ACTIONS)
def test_closed_to_what_nobody_owns(action: Action) -> None:
    rules = Rules(unowned="deny", admins=frozenset({"chief"}))
    policy = OwnersPolicy(Ownership(), lambda: rules)
    for principal in (ANYONE, Principal(name="weather")):
        refusal = policy.authorize(principal, "new-value", action)
        assert refusal is not None
        assert "fluvial.registry.unowned=deny" in refusal
        for everything in (None, ":.staging:"):
            assert policy.authorize(principal, everything, action) == "What holds for all subjects is changed by chief"
    assert policy.authorize(Principal(name="chief"), "new-value", action) is None
    assert policy.authorize(Principal(name="chief"), None, action) is None
    # It is opened by claiming it.
    assert policy.authorize(Principal(name="weather"), "new-value", "give") is None
    assert policy.may_introduce(ANYONE, None) == "New producers are introduced by chief"
    assert policy.may_introduce(Principal(name="chief"), None) is None


def test_the_rules_are_settings_of_the_broker(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path)
    assert rules_of(config) == Rules()
    given = {"fluvial.registry.unowned": "deny", "fluvial.registry.admins": "chief, deputy"}
    rules = rules_of(config.with_settings(given))
    assert rules == Rules(unowned="deny", admins=frozenset({"chief", "deputy"}))


def test_passwords() -> None:
    hashed = hash_password("a")
    assert hashed != hash_password("a")
    assert verify_password("a", hashed)
    assert not verify_password("b", hashed)
    assert not verify_password("a", hashed.replace("scrypt", "plain"))


def test_confluents_client_signs_in(registry_server, owner) -> None:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    schema = Schema(record_schema(), "AVRO")
    url = registry_server.url
    by_setting = {"url": url, "basic.auth.user.info": ":".join(OPERATIONS)}
    user = f"{OPERATIONS[0]}:{OPERATIONS[1].replace(' ', '%20')}"
    with SchemaRegistryClient({"url": url}) as client, pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(SUBJECT, schema)
    assert (refused.value.http_status_code, refused.value.error_code) == (403, 40301)
    assert CONTACT in refused.value.error_message
    with SchemaRegistryClient(by_setting) as client:
        assert client.register_schema(SUBJECT, schema) == 2
    with RegistryClient(url.replace("://", f"://{user}@")) as client:
        assert client.url == url, "a URL that is shown holds no password"
        client.set_config("NONE", SUBJECT)
    with httpx.Client(base_url=url.replace("://", f"://{user}@"), verify=False) as http:
        assert http.delete(f"/config/{SUBJECT}").status_code == 200
