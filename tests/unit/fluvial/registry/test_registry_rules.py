"""The registry's rules, decided and replayed without a log or HTTP: levels, deletion, references, ids and modes."""

import json
from typing import Any

import pytest

from fluvial.registry.errors import RefusedError
from fluvial.registry.model.commands import (
    Command,
    DeleteContext,
    DeleteSubject,
    DeleteVersion,
    Draft,
    Register,
    SetConfig,
    SetMode,
)
from fluvial.registry.model.decide import decide
from fluvial.registry.model.library import Library
from fluvial.registry.model.ownership import HISTORY_MAX, GiveTo, Introduce, Owned
from fluvial.registry.model.records import HighestId, Reference, SchemaRecord
from fluvial.registry.model.state import RegistryState

INCOMPATIBLE, NOT_PERMITTED, REFERENCE_EXISTS, INVALID = 409, 42205, 42206, 42201
VERSION_SOFT_DELETED, VERSION_NOT_SOFT_DELETED = 40406, 40407
CHANGED_MEANWHILE, PRODUCER_NOT_FOUND = 40920, 40420
SUBJECT_SOFT_DELETED, SUBJECT_NOT_SOFT_DELETED = 40404, 40405


def fields(**types: str) -> str:
    """A record of optional fields, so that each follows the other."""
    made = [{"name": name, "type": ["null", kind], "default": None} for name, kind in types.items()]
    return json.dumps({"type": "record", "name": "R", "fields": made})


A, A_B, B, C = fields(a="int"), fields(a="int", b="int"), fields(b="int"), fields(c="int")
A_TEXT = fields(a="string")


class Rules:
    """A registry's state with the commands that a test gives it."""

    def __init__(self) -> None:
        self.state = RegistryState()
        self._library = Library()

    def do(self, command: Command) -> Any:
        decision = decide(self.state, self._library, command)
        for record in decision.records:
            self.state.replay(record)
        return decision.reply

    def refusal(self, command: Command) -> int:
        with pytest.raises(RefusedError) as refused:
            decide(self.state, self._library, command)
        return refused.value.code

    def register(self, subject: str, schema: str, **more: Any) -> tuple[int, int]:
        """Return the version and the id."""
        found: SchemaRecord = self.do(registering(subject, schema, **more))
        return found.version, found.id

    def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> Any:
        return self.do(deleting(subject, version, permanent=permanent))

    def level(self, subject: str, level: str, **more: str) -> None:
        self.do(SetConfig(subject=subject, settings={"compatibilityLevel": level, **more}))

    def mode(self, subject: str | None, mode: str, *, force: bool = False) -> None:
        self.do(SetMode(subject=subject, mode=mode, force=force))

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        return [each.version for each in self.state.versions(subject, deleted=deleted)]


def registering(subject: str, schema: str, **more: Any) -> Register:
    return Register(subject=subject, draft=Draft(schema=schema, **more))


def deleting(subject: str, version: int | None = None, *, permanent: bool = False) -> Command:
    if version is None:
        return DeleteSubject(subject=subject, permanent=permanent)
    return DeleteVersion(subject=subject, version=version, permanent=permanent)


def grouped(group: str) -> str:
    return json.dumps({"properties": {"major": group}})


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
def referred(rules: Rules) -> Rules:
    """`b` 1 is referred to by `a` 1."""
    rules.register("b", '{"type":"record","name":"B","fields":[]}')
    rules.register("a", '{"type":"record","name":"A","fields":[{"name":"b","type":"B"}]}', references=(REFERENCE,))
    return rules


REFERENCE = Reference(name="B", subject="b", version=1)


# Levels.


@pytest.mark.parametrize("level", ["BACKWARD", "FORWARD", "FULL", "FULL_TRANSITIVE"])
def test_another_type_of_schema_may_not_follow(rules: Rules, level: str) -> None:
    rules.register("s", A)
    rules.level("s", level)
    other = registering("s", '{"type": "string"}', schema_type="JSON")
    assert rules.refusal(other) == INCOMPATIBLE
    rules.level("s", "NONE")
    assert rules.do(other).version == 2


def test_none_takes_anything(rules: Rules) -> None:
    rules.register("s", A)
    assert rules.refusal(registering("s", A_TEXT)) == INCOMPATIBLE
    rules.level("s", "NONE")
    assert rules.register("s", A_TEXT) == (2, 2)


def test_a_deleted_version_is_not_compared_with(rules: Rules) -> None:
    rules.register("s", A)
    rules.delete("s", 1)
    assert rules.register("s", A_TEXT) == (2, 2)


def test_versions_of_another_group_are_not_compared_with(rules: Rules) -> None:
    rules.level("s", "BACKWARD_TRANSITIVE", compatibilityGroup="major")
    rules.register("s", A, metadata=grouped("1"))
    assert rules.refusal(registering("s", A_TEXT, metadata=grouped("1"))) == INCOMPATIBLE
    assert rules.register("s", A_TEXT, metadata=grouped("2"))[0] == 2
    assert rules.refusal(registering("s", fields(a="boolean"), metadata=grouped("2"))) == INCOMPATIBLE


def test_a_level_that_is_none_of_the_seven_is_refused(rules: Rules) -> None:
    assert rules.refusal(SetConfig(subject="s", settings={"compatibilityLevel": "SIDEWAYS"})) == 42203


# Versions and ids.


def test_a_version_follows_the_last_deleted_or_not(rules: Rules) -> None:
    rules.register("s", A)
    rules.register("s", A_B)
    rules.delete("s", 2)
    assert rules.register("s", C)[0] == 3


def test_a_version_may_be_named_only_if_it_is_the_next(rules: Rules) -> None:
    rules.register("s", A)
    assert rules.refusal(registering("s", A_B, version=3)) == INVALID
    assert rules.register("s", A_B, version=2)[0] == 2


def test_one_schema_has_one_id_in_every_subject(rules: Rules) -> None:
    assert rules.register("s", A) == (1, 1)
    assert rules.register("t", A) == (1, 1)
    assert rules.register("t", A_B) == (2, 2)


def test_an_id_is_not_given_again_after_a_version_was_deleted_for_good(rules: Rules) -> None:
    rules.register("s", A)
    rules.register("s", A_B)
    rules.delete("s", 2)
    decision = decide(rules.state, Library(), deleting("s", 2, permanent=True))
    # Compaction leaves this record of the two, and nothing of the version.
    assert [each.id for each in decision.records if isinstance(each, HighestId)] == [2]
    rules.delete("s", 2, permanent=True)
    assert rules.register("s", C) == (2, 3)


def test_an_id_is_not_given_again_after_a_subject_was_deleted_for_good(rules: Rules) -> None:
    rules.register("s", A)
    rules.delete("s")
    decision = decide(rules.state, Library(), deleting("s", permanent=True))
    assert [each.id for each in decision.records if isinstance(each, HighestId)] == [1]


def test_the_highest_id_never_falls(rules: Rules) -> None:
    rules.state.replay(HighestId(id=9, contexts={}))
    rules.state.replay(HighestId(id=4, contexts={}))
    assert rules.register("s", A) == (1, 10)


def test_a_schema_that_is_gone_gets_a_new_id(rules: Rules) -> None:
    rules.register("s", A)
    rules.delete("s")
    rules.delete("s", permanent=True)
    assert rules.register("t", A) == (1, 2)


# Soft and hard deletion.


def test_a_version_is_soft_deleted_once_and_hard_deleted_after_that(rules: Rules) -> None:
    rules.register("s", A)
    rules.register("s", A_B)
    assert rules.refusal(deleting("s", 1, permanent=True)) == VERSION_NOT_SOFT_DELETED
    assert rules.delete("s", 1) == 1
    assert rules.refusal(deleting("s", 1)) == VERSION_SOFT_DELETED
    assert (rules.versions("s"), rules.versions("s", deleted=True)) == ([2], [1, 2])
    assert rules.delete("s", 1, permanent=True) == 1
    assert rules.versions("s", deleted=True) == [2]


def test_a_subject_is_soft_deleted_once_and_hard_deleted_after_that(rules: Rules) -> None:
    rules.register("s", A)
    rules.register("s", A_B)
    rules.delete("s", 1)
    assert rules.refusal(deleting("s", permanent=True)) == SUBJECT_NOT_SOFT_DELETED
    assert rules.delete("s") == [2]
    assert rules.refusal(deleting("s")) == SUBJECT_SOFT_DELETED
    assert rules.delete("s", permanent=True) == [1, 2]
    assert not rules.state.has_subject("s", deleted=True)


def test_the_latest_version_is_the_last_that_lives(rules: Rules) -> None:
    rules.register("s", A)
    rules.register("s", A_B)
    rules.delete("s", 2)
    latest = rules.state.version("s", -1)
    assert latest is not None
    assert latest.version == 1
    assert rules.delete("s", -1) == 1
    assert rules.state.version("s", -1) is None


def test_a_schema_that_comes_back_takes_the_place_of_its_soft_deleted_version(rules: Rules) -> None:
    assert rules.register("s", A) == (1, 1)
    rules.delete("s", 1)
    assert rules.register("s", A) == (2, 1)
    assert rules.versions("s", deleted=True) == [2]


@pytest.mark.parametrize("whole", [True, False])
def test_settings_go_with_the_last_of_a_subject(rules: Rules, whole: bool) -> None:
    rules.register("s", A)
    rules.level("s", "NONE")
    rules.mode("s", "READWRITE")
    for permanent in (False, True):
        rules.delete("s", None if whole else 1, permanent=permanent)
        assert (rules.state.settings.config("s") is None, rules.state.settings.mode("s") is None) == (
            permanent,
            permanent,
        )


def test_a_context_goes_only_when_nothing_is_in_it(rules: Rules) -> None:
    rules.register(":.c:s", A)
    assert rules.state.contexts() == [".", ".c"]
    assert rules.refusal(DeleteContext(subject=":.c:")) == 42211
    rules.delete(":.c:s")
    rules.delete(":.c:s", permanent=True)
    rules.do(DeleteContext(subject=":.c:"))
    assert rules.state.contexts() == ["."]


# References.


@pytest.mark.parametrize("version", [1, None])
def test_what_is_referred_to_is_not_deleted(referred: Rules, version: int | None) -> None:
    assert referred.refusal(deleting("b", version)) == REFERENCE_EXISTS
    referred.delete("a")
    referred.delete("b", version)
    # A soft-deleted version can come back, and would miss what it refers to.
    assert referred.refusal(deleting("b", version, permanent=True)) == REFERENCE_EXISTS
    referred.delete("a", permanent=True)
    referred.delete("b", version, permanent=True)
    assert not referred.state.has_subject("b", deleted=True)


def test_a_subject_that_refers_to_itself_can_be_deleted(rules: Rules) -> None:
    rules.level("s", "NONE")
    rules.register("s", '{"type":"record","name":"B","fields":[]}')
    itself = Reference(name="B", subject="s", version=1)
    rules.register("s", '{"type":"record","name":"A","fields":[{"name":"b","type":"B"}]}', references=(itself,))
    assert rules.delete("s") == [1, 2]
    assert rules.delete("s", permanent=True) == [1, 2]


def test_a_soft_deleted_version_can_be_read_by_who_refers_to_it(referred: Rules) -> None:
    referred.delete("a")
    referred.delete("b")
    assert list(referred.state.resolve((REFERENCE,))) == ["B"]
    with pytest.raises(LookupError, match='"b" and version 2'):
        referred.state.resolve((Reference(name="B", subject="b", version=2),))


def test_a_version_that_is_referred_to_stays_beside_what_takes_its_place(referred: Rules) -> None:
    schema = '{"type":"record","name":"B","fields":[]}'
    referred.delete("a")
    referred.delete("b")
    assert referred.register("b", schema)[0] == 2
    assert referred.versions("b", deleted=True) == [1, 2]


# Modes.


def test_nothing_changes_where_it_is_read_only(rules: Rules) -> None:
    rules.register("s", A)
    rules.mode("s", "READONLY")
    for command in (
        registering("s", A_B),
        deleting("s"),
        deleting("s", 1),
        SetConfig(subject="s", settings={"compatibilityLevel": "NONE"}),
    ):
        assert rules.refusal(command) == NOT_PERMITTED
    assert rules.register("t", A) == (1, 1)


def test_readonly_override_is_lifted_by_no_subject(rules: Rules) -> None:
    rules.mode("s", "READWRITE")
    rules.mode(None, "READONLY")
    assert rules.register("s", A) == (1, 1)
    rules.mode(None, "READONLY_OVERRIDE")
    assert rules.refusal(registering("s", A_B)) == NOT_PERMITTED


def test_an_id_is_brought_in_import_mode_and_only_there(rules: Rules) -> None:
    assert rules.refusal(registering("s", A, id=77, version=5)) == NOT_PERMITTED
    rules.mode("s", "IMPORT")
    assert rules.refusal(registering("s", A)) == NOT_PERMITTED
    assert rules.register("s", A, id=77, version=5) == (5, 77)
    # Neither compatible nor the next version: it was so elsewhere.
    assert rules.register("s", A_TEXT, id=78, version=3) == (3, 78)
    assert rules.versions("s") == [3, 5]
    rules.mode("s", "READWRITE")
    assert rules.register("s", A_B) == (6, 79)


def test_an_import_puts_nothing_else_under_an_id(rules: Rules) -> None:
    rules.mode(None, "IMPORT")
    rules.register("s", A, id=7, version=1)
    assert rules.refusal(registering("s", B, id=7, version=2)) == NOT_PERMITTED
    assert rules.refusal(registering("t", B, id=7)) == NOT_PERMITTED
    assert rules.register("t", A, id=7) == (1, 7)


def test_an_import_of_a_schema_under_another_id_is_not_answered_with_the_first(rules: Rules) -> None:
    rules.mode(None, "IMPORT")
    assert rules.register("s", A, id=7) == (1, 7)
    assert rules.register("s", A, id=7) == (1, 7)
    assert rules.register("s", A, id=8) == (2, 8)


def test_import_is_not_set_over_what_lives_unless_it_is_forced(rules: Rules) -> None:
    rules.register("s", A)
    importing = SetMode(subject="s", mode="IMPORT")
    assert rules.refusal(importing) == NOT_PERMITTED
    rules.mode("s", "IMPORT", force=True)
    assert rules.versions("s") == [1]


def test_import_takes_away_what_was_soft_deleted_and_not_its_ids(rules: Rules) -> None:
    rules.register("s", A)
    rules.register("t", A_B)
    rules.delete("s")
    rules.mode("s", "IMPORT")
    assert rules.versions("s", deleted=True) == []
    rules.register("s", A_TEXT, id=1)
    assert rules.register("u", C) == (1, 3)


def test_import_is_not_set_over_what_is_referred_to(referred: Rules) -> None:
    referred.delete("a")
    referred.delete("b")
    assert referred.refusal(SetMode(subject="b", mode="IMPORT")) == REFERENCE_EXISTS


# Owners.


def introducing(name: str, password: str = "hash", before: str | None = None) -> Introduce:
    return Introduce(name=name, contact=f"{name}@example.com", password=password, before=before)


def given(rules: Rules, owner: str | None, at_ms: int = 0) -> Owned:
    found: Owned = rules.do(GiveTo(subject="s", owner=owner, by="admin", at_ms=at_ms))
    return found


def test_of_two_who_change_a_producer_the_second_is_told(rules: Rules) -> None:
    rules.do(introducing("shop", "first"))
    assert rules.refusal(introducing("shop", "unseen")) == CHANGED_MEANWHILE
    rules.do(introducing("shop", "second", before="first"))
    assert rules.refusal(introducing("shop", "third", before="first")) == CHANGED_MEANWHILE
    known = rules.state.ownership.producer("shop")
    assert known is not None
    assert known.password == "second"


def test_a_subject_is_given_only_to_a_producer_that_is_known(rules: Rules) -> None:
    assert rules.refusal(GiveTo(subject="s", owner="shop", by="admin", at_ms=0)) == PRODUCER_NOT_FOUND
    rules.do(introducing("shop"))
    assert given(rules, "shop").owner == "shop"
    assert given(rules, None).owner is None


def test_the_last_changes_of_hands_are_kept_the_oldest_first(rules: Rules) -> None:
    for name in ("shop", "desk"):
        rules.do(introducing(name))
    for number in range(HISTORY_MAX + 5):
        given(rules, "shop" if number % 2 == 0 else "desk", at_ms=number)
    owned = rules.state.ownership.owned("s")
    assert owned is not None
    assert [each.at_ms for each in owned.history] == list(range(5, HISTORY_MAX + 5))
    assert (owned.history[0].before, owned.history[0].to, owned.history[0].by) == ("shop", "desk", "admin")
    # It has it already: that changes no hands.
    assert given(rules, owned.owner, at_ms=999) == owned
