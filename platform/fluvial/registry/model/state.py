"""
What the registry knows: the replay of `_schemas`.

`RegistryState.replay` is the only thing that changes it. Everything else reads.
"""

import uuid
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from fluvial.registry.formats.schema_kind import Steps
from fluvial.registry.model import annotations, names
from fluvial.registry.model.names import DEFAULT_CONTEXT
from fluvial.registry.model.ownership import Owned, Ownership, Producer, Registration
from fluvial.registry.model.records import (
    Body,
    ConfigRecord,
    ContextRecord,
    HighestId,
    ModeRecord,
    Record,
    Reference,
    SchemaGone,
    SchemaRecord,
    SubjectDeleted,
)
from fluvial.registry.model.scoped_settings import ScopedSettings

# References, of references too, that are looked at for one schema; each of them once for every schema that has it.
REFERENCES_MAX = 20_000


@dataclass(slots=True, kw_only=True)
class ContextIds:
    """The ids of one context; `listed` while it is in use."""

    listed: bool = False
    highest: int = 0
    # Every place an id is registered at, soft-deleted ones included; an id without places is gone for readers.
    places: dict[int, dict[tuple[str, int], Body]] = field(default_factory=dict)
    ids: dict[Body, int] = field(default_factory=dict)


class RegistryState:
    """All subjects, ids and settings. `changes` counts the records replayed, so that caches know when to look again."""

    def __init__(self) -> None:
        self.changes = 0
        self.ownership = Ownership()
        self.settings = ScopedSettings()
        self._subjects: dict[str, dict[int, SchemaRecord]] = {}
        # The subjects of each context in order, from when they are listed first.
        self._ordered: dict[str, list[str]] | None = None
        self._contexts: dict[str, ContextIds] = {DEFAULT_CONTEXT: ContextIds(listed=True)}
        # Made when the first client asks by GUID; most never do.
        self._guids: dict[bytes, Body] | None = None
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
            case ConfigRecord() | ModeRecord():
                self.settings.replay(record)
            case ContextRecord():
                # What was given in a context stays given when it is deleted and used again.
                self._ids_of(record.context).listed = not record.gone
            case HighestId():
                for context, highest in {**record.contexts, DEFAULT_CONTEXT: record.id}.items():
                    ids = self._ids_of(context)
                    ids.highest = max(ids.highest, highest)
            case Producer() | Owned() | Registration():
                self.ownership.replay(record)
            case _:
                assert_never(record)

    def _ids_of(self, context: str) -> ContextIds:
        return self._contexts.setdefault(context, ContextIds())

    def _keep(self, record: SchemaRecord) -> None:
        place = (record.subject, record.version)
        versions = self._subjects.get(record.subject)
        if versions is None:
            versions = self._subjects[record.subject] = {}
            if self._ordered is not None:
                insort(self._ordered.setdefault(names.context_of(record.subject), []), record.subject)
        versions[record.version] = record
        if record.version != max(versions):
            self._subjects[record.subject] = dict(sorted(versions.items()))
        ids = self._ids_of(names.context_of(record.subject))
        ids.listed = True
        ids.places.setdefault(record.id, {})[place] = record.body
        # Two ids can have one body after an import; the first keeps answering for it.
        ids.ids.setdefault(record.body, record.id)
        if self._guids is not None:
            self._guids.setdefault(annotations.guid_bytes(record.body), record.body)
        ids.highest = max(ids.highest, record.id)
        for each in record.body.references:
            target = (names.qualified(each.subject, record.subject), each.version)
            self._referrers.setdefault(target, set()).add(place)

    def _forget(self, subject: str, version: int) -> None:
        versions = self._subjects.get(subject, {})
        record = versions.pop(version, None)
        if record is None:
            return
        if not versions:
            del self._subjects[subject]
            if self._ordered is not None:
                ordered = self._ordered[names.context_of(subject)]
                del ordered[bisect_left(ordered, subject)]
        ids = self._ids_of(names.context_of(subject))
        places = ids.places[record.id]
        del places[(subject, version)]
        if not places:
            del ids.places[record.id]
            if ids.ids.get(record.body) == record.id:
                del ids.ids[record.body]
        for each in record.body.references:
            self._referrers[(names.qualified(each.subject, subject), each.version)].discard((subject, version))

    @property
    def highest_id(self) -> int:
        """The highest id ever given in the default context."""
        return self.highest_id_of(DEFAULT_CONTEXT)

    def highest_id_of(self, context: str) -> int:
        """The highest id ever given in a context."""
        found = self._contexts.get(context)
        return found.highest if found is not None else 0

    def highest_ids(self) -> HighestId:
        """The record that keeps ids from being given again, whatever is deleted."""
        others = {name: ids.highest for name, ids in self._contexts.items() if name != DEFAULT_CONTEXT}
        return HighestId(id=self.highest_id, contexts=others)

    def contexts(self) -> list[str]:
        """The contexts in use, the default one first."""
        return [DEFAULT_CONTEXT, *sorted(name for name, ids in self._contexts.items() if ids.listed and name != ".")]

    def subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """
        The subjects with a live version; also, or only, those with soft-deleted ones.

        `prefix` is of one context, the default one unless it says another, or of all with `:*:` before it.
        """
        return [name for name in self.named(prefix) if self.is_listed(name, deleted=deleted, deleted_only=deleted_only)]

    def is_listed(self, subject: str, *, deleted: bool, deleted_only: bool) -> bool:
        """Whether `subjects` has this one."""
        versions = self._subjects.get(subject, {}).values()
        return any(each.deleted if deleted_only else deleted or not each.deleted for each in versions)

    def named(self, prefix: str) -> list[str]:
        """The subjects whose names begin with `prefix`, in the order of their contexts and names."""
        if self._ordered is None:
            self._ordered = {}
            for subject in sorted(self._subjects):
                self._ordered.setdefault(names.context_of(subject), []).append(subject)
        everywhere = prefix.startswith(names.ALL_CONTEXTS)
        wanted, start = names.split(prefix.removeprefix(names.ALL_CONTEXTS))
        found: list[str] = []
        for context in sorted(self._ordered) if everywhere else [wanted]:
            found += _beginning_with(names.joined(context, start), self._ordered.get(context, []))
        return found

    def subjects_in(self, scope: str | None) -> list[str]:
        """Every subject of which `scope` (itself, its context, or None for all) is said, deleted ones included."""
        return sorted(each for each in self._subjects if names.in_scope(each, scope))

    def has_subject(self, subject: str, *, deleted: bool) -> bool:
        """Whether anything live, or anything at all when `deleted`, is registered under `subject`."""
        return any(deleted or not each.deleted for each in self._subjects.get(subject, {}).values())

    def in_any_context(self, subject: str) -> list[str]:
        """`subject` and, when it does not say its context, its namesakes in the others."""
        context, name = names.split(subject)
        if context != DEFAULT_CONTEXT or not name:
            return [subject]
        return [names.joined(each, name) for each in self.contexts()]

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

    def body(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> Body | None:
        """What is registered under an id, also when all its places are soft-deleted."""
        found = self.first_place(schema_id, context)
        return found.body if found is not None else None

    def first_place(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> SchemaRecord | None:
        """Where an id was first registered, also when that is soft-deleted."""
        ids = self._contexts.get(context)
        places = ids.places.get(schema_id) if ids is not None else None
        if not places:
            return None
        subject, version = next(iter(places))
        return self._subjects[subject][version]

    def id_of(self, body: Body, context: str = DEFAULT_CONTEXT) -> int | None:
        """The id of an equal body, under whatever subject of the context."""
        ids = self._contexts.get(context)
        return ids.ids.get(body) if ids is not None else None

    @property
    def knows_guids(self) -> bool:
        """Whether `ids_of_guid` need not look at every schema first."""
        return self._guids is not None

    def ids_of_guid(self, guid: str) -> list[tuple[str, int]]:
        """The contexts and ids of the schema that has this GUID. The first call looks at every schema."""
        if self._guids is None:
            self._guids = {}
            for context in self._contexts.values():
                for body in context.ids:
                    self._guids.setdefault(annotations.guid_bytes(body), body)
        try:
            found_body = self._guids.get(uuid.UUID(guid).bytes)
        except ValueError:
            return []
        if found_body is None:
            return []
        found = ((context, self.id_of(found_body, context)) for context in self.contexts())
        return [(context, schema_id) for context, schema_id in found if schema_id is not None]

    def is_registered(self, schema_id: int, subject: str | None = None) -> bool:
        """Whether a live version of `subject`, or of any subject of the default context, has an id."""
        ids = self._contexts[DEFAULT_CONTEXT].places.get(schema_id, ())
        return any(
            not self._subjects[name][version].deleted for name, version in ids if subject is None or name == subject
        )

    def places(
        self, schema_id: int, *, deleted: bool = False, context: str = DEFAULT_CONTEXT
    ) -> list[SchemaRecord] | None:
        """Where an id is registered; None when the id is not known."""
        ids = self._contexts.get(context)
        places = ids.places.get(schema_id) if ids is not None else None
        if places is None:
            return None
        found = (self._subjects[subject][version] for subject, version in sorted(places))
        return [each for each in found if deleted or not each.deleted]

    def all_versions(self, *, prefix: str = "", deleted: bool = False, latest_only: bool = False) -> list[SchemaRecord]:
        """Every version of every subject whose name starts with `prefix`; see `subjects` for that."""
        found = []
        for name in sorted(self.named(prefix)):
            versions = self.versions(name, deleted=deleted)
            found.extend(versions[-1:] if latest_only else versions)
        return found

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[SchemaRecord]:
        """The versions whose schema refers to this one."""
        places = sorted(self._referrers.get((subject, version), ()))
        found = (self._subjects[name][number] for name, number in places)
        return [each for each in found if deleted or not each.deleted]

    def resolve(self, references: Iterable[Reference], context: str = DEFAULT_CONTEXT) -> dict[str, str]:
        """
        The texts that `references` made in `context` stand for under their names, each after those it needs itself.

        Raises LookupError naming the first that is not registered, and TooComplexError for more than are looked at.
        """
        steps = Steps(REFERENCES_MAX, "find their references")
        texts: dict[str, str] = {}
        visited: set[str] = set()
        # Depth first without recursion: a reference stays on the stack until everything below it is resolved.
        stack = [(each, names.joined(context, ""), False) for each in reversed(list(references))]
        while stack:
            steps.spend()
            reference, parent, below_is_done = stack.pop()
            subject = names.qualified(reference.subject, parent)
            found = self.version(subject, reference.version, deleted=True)
            if found is None:
                raise LookupError(f'No schema reference found for subject "{subject}" and version {reference.version}')
            if below_is_done:
                texts.setdefault(reference.name, found.body.schema)
            elif reference.name not in visited:
                visited.add(reference.name)
                stack.append((reference, parent, True))
                stack.extend((each, subject, False) for each in reversed(found.body.references))
        return texts


def _beginning_with(start: str, ordered: list[str]) -> list[str]:
    begin = bisect_left(ordered, start)
    return ordered[begin : bisect_right(ordered, start, lo=begin, key=lambda each: each[: len(start)])]
