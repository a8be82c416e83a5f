"""
Who answers for which subject: producers with their passwords, and the subjects that they own.

Kept in `_schemas` beside the schemas, so that every node knows it and it survives what they survive. Its records are
keyed as NOOP with a name of our own, which other registries pass over: Confluent's stops at a key type that it does not
know, and skips a NOOP whose key has more in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from fluvial.registry import errors

HISTORY_MAX = 100
"""Changes of hands that are remembered of a subject."""

OWN = "fluvial"
"""The field of a key that says which of our records it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """Someone who may own subjects. `password` is a salted hash, see `auth`."""

    name: str
    contact: str
    password: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOfHands:
    """`by` gave a subject `to` a new owner at `at_ms`; None stands for nobody."""

    at_ms: int
    by: str
    before: str | None
    to: str | None

    def as_json(self) -> dict[str, Any]:
        """As it stands in replies and the log."""
        return {"at": self.at_ms, "by": self.by, "from": self.before, "to": self.to}


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A subject and who owns it now, None when it was given up; `history` has the oldest change first."""

    subject: str
    owner: str | None
    history: tuple[ChangeOfHands, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Who registered a version; None for who did not say, and for a version that is gone."""

    subject: str
    version: int
    by: str | None


OwnershipRecord = Producer | Owned | Registration


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduce:
    """
    Make a producer known, or change its contact or its password, a hash. The reply is the `Producer`.

    `before` is the hash that whoever allows it has seen, None for a producer that was not known.
    """

    name: str
    contact: str
    password: str
    before: str | None

    @property
    def subject(self) -> None:
        """Commands are asked for the subject that they change: it is none."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveTo:
    """Give a subject to `owner`, or to nobody when that is None. The reply is what is `Owned` then."""

    subject: str
    owner: str | None
    by: str
    at_ms: int


OwnershipCommand = Introduce | GiveTo


class Ownership:
    """The replay of the records above. `replay` is the only thing that changes it."""

    def __init__(self) -> None:
        self._producers: dict[str, Producer] = {}
        self._owned: dict[str, Owned] = {}
        self._registered_by: dict[tuple[str, int], str] = {}

    def replay(self, record: OwnershipRecord) -> None:
        """Take in one record of the log."""
        match record:
            case Producer():
                self._producers[record.name] = record
            case Owned():
                self._owned[record.subject] = record
            case Registration(by=str(by)):
                self._registered_by[record.subject, record.version] = by
            case Registration():
                self._registered_by.pop((record.subject, record.version), None)
            case _:
                assert_never(record)

    def producer(self, name: str) -> Producer | None:
        """A producer by its name."""
        return self._producers.get(name)

    def producers(self) -> list[Producer]:
        """All producers in the order of their names."""
        return [self._producers[name] for name in sorted(self._producers)]

    def owned(self, subject: str) -> Owned | None:
        """What is known of a subject's owners, the former ones too; None when it never had any."""
        return self._owned.get(subject)

    def owner(self, subject: str) -> Producer | None:
        """Who owns a subject now."""
        owned = self._owned.get(subject)
        return self._producers.get(owned.owner) if owned is not None and owned.owner is not None else None

    def all_owned(self) -> list[Owned]:
        """Every subject that has an owner, in the order of their names."""
        return [each for _, each in sorted(self._owned.items()) if each.owner is not None]

    def registered_by(self, subject: str, version: int) -> str | None:
        """Who registered a version; None for who did not say."""
        return self._registered_by.get((subject, version))


def decide(ownership: Ownership, command: OwnershipCommand) -> tuple[tuple[OwnershipRecord, ...], Any]:
    """The records that a command comes to, and its reply; who may give it is the policy's question."""
    match command:
        case Introduce():
            producer = Producer(name=command.name, contact=command.contact, password=command.password)
            known = ownership.producer(command.name)
            if command.before != (None if known is None else known.password):
                raise errors.changed_meanwhile(command.name)
            return () if producer == known else (producer,), producer
        case GiveTo():
            return _give(ownership, command)
        case _:
            assert_never(command)


def _give(ownership: Ownership, command: GiveTo) -> tuple[tuple[OwnershipRecord, ...], Owned]:
    if command.owner is not None and ownership.producer(command.owner) is None:
        raise errors.producer_not_found(command.owner)
    known = ownership.owned(command.subject) or Owned(subject=command.subject, owner=None, history=())
    if known.owner == command.owner:
        return (), known
    change = ChangeOfHands(at_ms=command.at_ms, by=command.by, before=known.owner, to=command.owner)
    changed = replace(known, owner=command.owner, history=(*known.history, change)[-HISTORY_MAX:])
    return (changed,), changed


def encode(record: OwnershipRecord) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The key and value, as JSON, under which a record enters the log."""
    value: dict[str, Any] | None
    match record:
        case Producer():
            key: dict[str, Any] = {OWN: "producer", "name": record.name}
            value = {"contact": record.contact, "password": record.password}
        case Owned():
            key = {OWN: "owner", "subject": record.subject}
            value = {"owner": record.owner, "history": [each.as_json() for each in record.history]}
        case Registration():
            key = {OWN: "registration", "subject": record.subject, "version": record.version}
            value = None if record.by is None else {"by": record.by}
        case _:
            assert_never(record)
    return {"keytype": "NOOP", "magic": 0, **key}, value


def decode(key: Mapping[str, Any], content: Mapping[str, Any] | None) -> OwnershipRecord | None:
    """The record of a key with our field in it; None for one that a later version of us wrote."""
    match key[OWN]:
        case "producer" if content is not None:
            return Producer(name=key["name"], contact=content["contact"], password=content["password"])
        case "owner" if content is not None:
            history = tuple(
                ChangeOfHands(at_ms=each["at"], by=each["by"], before=each["from"], to=each["to"])
                for each in content["history"]
            )
            return Owned(subject=key["subject"], owner=content["owner"], history=history)
        case "registration":
            by = None if content is None else content["by"]
            return Registration(subject=key["subject"], version=key["version"], by=by)
        case _:
            return None
