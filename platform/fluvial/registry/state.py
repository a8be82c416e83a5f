"""
What the registry knows: the replay of `_schemas`.

`RegistryState.replay` is the only thing that changes it. Everything else reads.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, assert_never

from fluvial.registry.records import (
    Body,
    ConfigRecord,
    HighestId,
    ModeRecord,
    Record,
    Reference,
    SchemaGone,
    SchemaRecord,
    SubjectDeleted,
)

DEFAULT_CONFIG: Mapping[str, Any] = {"compatibilityLevel": "BACKWARD"}
DEFAULT_MODE = "READWRITE"


class RegistryState:
    """All subjects, ids and settings. `changes` counts the records replayed, so that caches know when to look again."""

    def __init__(self) -> None:
        self.highest_id = 0
        self.changes = 0
        self._subjects: dict[str, dict[int, SchemaRecord]] = {}
        # Every place an id is registered at, soft-deleted ones included; an id without places is gone for readers.
        self._places: dict[int, dict[tuple[str, int], Body]] = {}
        self._ids: dict[Body, int] = {}
        self._configs: dict[str | None, Mapping[str, Any]] = {}
        self._modes: dict[str | None, str] = {}
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}

    def replay(self, record: Record) -> None:
        """Take in one record of the log. The same records in the same order always give the same state."""
        self.changes += 1
        match record:
            case SchemaRecord():
                self._forget(record.subject, record.version)
                self._keep(record)
            case SchemaGone():
                self._forget(record.subject, record.version)
            case SubjectDeleted():
                for version, each in list(self._subjects.get(record.subject, {}).items()):
                    if version <= record.version and not each.deleted:
                        self._subjects[record.subject][version] = replace(each, deleted=True)
            case ConfigRecord():
                _set_or_drop(self._configs, record.subject, record.settings)
            case ModeRecord():
                _set_or_drop(self._modes, record.subject, record.mode)
            case HighestId():
                self.highest_id = max(self.highest_id, record.id)
            case _:
                assert_never(record)

    def _keep(self, record: SchemaRecord) -> None:
        place = (record.subject, record.version)
        versions = self._subjects.setdefault(record.subject, {})
        versions[record.version] = record
        if record.version != max(versions):
            self._subjects[record.subject] = dict(sorted(versions.items()))
        self._places.setdefault(record.id, {})[place] = record.body
        # Two ids can have one body after an import; the first keeps answering for it.
        self._ids.setdefault(record.body, record.id)
        self.highest_id = max(self.highest_id, record.id)
        for each in record.body.references:
            self._referrers.setdefault((each.subject, each.version), set()).add(place)

    def _forget(self, subject: str, version: int) -> None:
        versions = self._subjects.get(subject, {})
        record = versions.pop(version, None)
        if record is None:
            return
        if not versions:
            del self._subjects[subject]
        places = self._places[record.id]
        del places[(subject, version)]
        if not places:
            del self._places[record.id]
            if self._ids.get(record.body) == record.id:
                del self._ids[record.body]
        for each in record.body.references:
            self._referrers[(each.subject, each.version)].discard((subject, version))

    def subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """The subjects with a live version; also, or only, those whose versions are all soft-deleted."""
        found = []
        for name in sorted(self._subjects):
            live = any(not each.deleted for each in self._subjects[name].values())
            if name.startswith(prefix) and ((not live) if deleted_only else (live or deleted)):
                found.append(name)
        return found

    def has_subject(self, subject: str, *, deleted: bool) -> bool:
        """Whether anything live, or anything at all when `deleted`, is registered under `subject`."""
        return any(deleted or not each.deleted for each in self._subjects.get(subject, {}).values())

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaRecord]:
        """The versions of a subject in ascending order."""
        return [each for each in self._subjects.get(subject, {}).values() if deleted or not each.deleted]

    def version(self, subject: str, version: int, *, deleted: bool = False) -> SchemaRecord | None:
        """One version of a subject; -1 stands for the latest live one."""
        if version == -1:
            live = self.versions(subject)
            return live[-1] if live else None
        found = self._subjects.get(subject, {}).get(version)
        return found if found is not None and (deleted or not found.deleted) else None

    def body(self, schema_id: int) -> Body | None:
        """What is registered under an id, also when all its places are soft-deleted."""
        places = self._places.get(schema_id)
        return next(iter(places.values())) if places else None

    def id_of(self, body: Body) -> int | None:
        """The id of an equal body, under whatever subject."""
        return self._ids.get(body)

    def places(self, schema_id: int, *, deleted: bool = False) -> list[SchemaRecord] | None:
        """Where an id is registered; None when the id is not known."""
        places = self._places.get(schema_id)
        if places is None:
            return None
        found = (self._subjects[subject][version] for subject, version in sorted(places))
        return [each for each in found if deleted or not each.deleted]

    def all_versions(self, *, prefix: str = "", deleted: bool = False, latest_only: bool = False) -> list[SchemaRecord]:
        """Every version of every subject whose name starts with `prefix`."""
        found = []
        for name in sorted(self._subjects):
            if name.startswith(prefix):
                versions = self.versions(name, deleted=deleted)
                found.extend(versions[-1:] if latest_only else versions)
        return found

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[SchemaRecord]:
        """The versions whose schema refers to this one."""
        places = sorted(self._referrers.get((subject, version), ()))
        found = (self._subjects[name][number] for name, number in places)
        return [each for each in found if deleted or not each.deleted]

    def resolve(self, references: Iterable[Reference]) -> list[str]:
        """
        The texts that `references` stand for, each after those it needs itself.

        Raises LookupError naming the first that is not registered.
        """
        texts: dict[str, str] = {}
        visited: set[str] = set()
        # Depth first without recursion: a reference stays on the stack until everything below it is resolved.
        stack = [(each, False) for each in reversed(list(references))]
        while stack:
            reference, below_is_done = stack.pop()
            found = self.version(reference.subject, reference.version, deleted=True)
            if found is None:
                raise LookupError(
                    f'No schema reference found for subject "{reference.subject}" and version {reference.version}'
                )
            if below_is_done:
                texts.setdefault(reference.name, found.body.schema)
            elif reference.name not in visited:
                visited.add(reference.name)
                stack.append((reference, True))
                stack.extend((each, False) for each in reversed(found.body.references))
        return list(texts.values())

    def config(self, subject: str | None) -> Mapping[str, Any] | None:
        """The settings of exactly this subject; those for all, default included, when it is None."""
        return self._configs.get(None, DEFAULT_CONFIG) if subject is None else self._configs.get(subject)

    def config_in_scope(self, subject: str | None) -> Mapping[str, Any]:
        """The settings that hold for a subject: its own over those for all."""
        return {**DEFAULT_CONFIG, **(self.config(None) or {}), **(self._configs.get(subject) or {})}

    def mode(self, subject: str | None) -> str | None:
        """The mode of exactly this subject; that for all, default included, when it is None."""
        return self._modes.get(None, DEFAULT_MODE) if subject is None else self._modes.get(subject)

    def mode_in_scope(self, subject: str | None) -> str:
        """The mode that holds for a subject. READONLY for all cannot be lifted by one subject."""
        top = self._modes.get(None, DEFAULT_MODE)
        return top if top == "READONLY_OVERRIDE" else self._modes.get(subject, top)


def _set_or_drop(table: dict[str | None, Any], key: str | None, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
