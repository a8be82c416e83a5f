"""
What a schema that a request brings comes to: its stored form, whether it is there already, and the record it gets.

Everything here only reads the state. Raises `RefusedError` for what is turned down.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fluvial.registry import errors
from fluvial.registry.formats.kinds import kind_of
from fluvial.registry.formats.schema_kind import Steps, TooComplexError
from fluvial.registry.model import annotations, names
from fluvial.registry.model.commands import Draft, Register
from fluvial.registry.model.compatibility import Candidate, Earlier, judge
from fluvial.registry.model.decision import Decision
from fluvial.registry.model.library import Library
from fluvial.registry.model.records import Body, ContextRecord, Record, SchemaGone, SchemaRecord
from fluvial.registry.model.state import RegistryState

READ_ONLY = frozenset({"READONLY", "READONLY_OVERRIDE"})
ID_MAX = 2**31 - 1
# How many versions are read to see whether they say, with references, what a schema says without.
SPELLED_OUT_MAX = 100
# How much text of earlier versions is read to compare one schema with them.
EARLIER_CHARACTERS_MAX = 16 * 1024 * 1024


def register(state: RegistryState, library: Library, command: Register) -> Decision:
    """Work out the version and id under which a schema is, or will be, registered."""
    subject, draft = command.subject, command.draft
    mode = state.settings.mode_in_scope(subject)
    _check_mode(subject, draft, mode)
    importing = mode == "IMPORT"
    every, live = state.versions(subject, deleted=True), state.versions(subject)
    next_version = every[-1].version + 1 if every else 1
    if not importing:
        latest = live[-1].body if live else None
        draft = _filled_up(state, subject, draft, latest, next_version)
    body = body_of(state, library, subject, draft, normalize=command.normalize, importing=importing)
    wanted_id = draft.id if importing else None
    if draft.version is None:
        known = find(state, library, subject, body)
        if known is not None and wanted_id in {None, known.id}:
            return Decision(records=(), reply=known)
    if not importing and (messages := incompatibilities(state, library, subject, body, live)):
        raise errors.incompatible(subject, messages)
    version = draft.version if draft.version is not None and draft.version > 0 else next_version
    if version != next_version and not importing:
        raise errors.invalid_schema("Version is not one more than previous version", schema_type=body.schema_type)
    context = names.context_of(subject)
    record = SchemaRecord(subject=subject, version=version, id=_choose_id(state, body, wanted_id, context), body=body)
    if state.version(subject, version) == record:
        return Decision(records=(), reply=record)
    first: list[Record] = [] if context in state.contexts() else [ContextRecord(context=context)]
    return Decision(records=(*first, *_given_way(state, every, record), record), reply=record)


def look_up(
    state: RegistryState, library: Library, subject: str, draft: Draft, *, normalize: bool, deleted: bool
) -> SchemaRecord | None:
    """The version under which a schema is registered; a subject of no context is looked for in all of them."""
    if not draft.schema.strip():
        return None
    for each in state.in_any_context(subject):
        body = body_of(state, library, each, draft, normalize=normalize)
        found = find(state, library, each, body, deleted=deleted)
        latest = state.version(each, -1)
        if found is None and latest is not None:
            # Registering it would bring in what the version before has; so it is found as that, too.
            filled = _filled_up(state, each, replace(draft, version=None), latest.body, None)
            if (filled.metadata, filled.rule_set) != (draft.metadata, draft.rule_set):
                body = replace(body, metadata=filled.metadata, rule_set=filled.rule_set)
                found = find(state, library, each, body, deleted=deleted)
        if found is not None:
            return found
    return None


def body_of(
    state: RegistryState, library: Library, subject: str, draft: Draft, *, normalize: bool, importing: bool = False
) -> Body:
    """The body that a draft has once its schema is in its stored form; what is imported is not normalized."""
    kind_of(draft.schema_type)
    if not draft.schema.strip():
        raise errors.empty_schema()
    context = names.context_of(subject)
    references = tuple(
        replace(each, version=found.version)
        if each.version == -1 and (found := state.version(names.qualified(each.subject, subject), -1)) is not None
        else each
        for each in draft.references
    )
    normalize = not importing and (normalize or state.settings.config_in_scope(subject).get("normalize") is True)
    if normalize:
        references = tuple(sorted(set(references), key=lambda each: (each.subject, each.version, each.name)))
    parsed = library.parse(
        state, draft.schema, references, schema_type=draft.schema_type, context=context, normalize=normalize
    )
    return Body(
        schema=parsed.text,
        schema_type=draft.schema_type,
        references=references,
        metadata=draft.metadata,
        rule_set=draft.rule_set,
    )


def _filled_up(
    state: RegistryState, subject: str, draft: Draft, previous: Body | None, next_version: int | None
) -> Draft:
    """
    What a draft leaves out: an empty schema repeats the version before, as do metadata and rules that are not given.

    The subject's defaults are laid under them and its overrides over them.
    """
    if not draft.schema.strip() and previous is not None:
        draft = replace(draft, schema=previous.schema, schema_type=previous.schema_type, references=previous.references)
    config = state.settings.config_in_scope(subject)
    given = draft.as_json()
    before: Mapping[str, Any] = previous.as_json() if previous is not None else {}
    metadata = annotations.merged_metadata(
        config.get("defaultMetadata"), given.get("metadata", before.get("metadata")), config.get("overrideMetadata")
    )
    rules = annotations.merged_rules(
        config.get("defaultRuleSet"), given.get("ruleSet", before.get("ruleSet")), config.get("overrideRuleSet")
    )
    if next_version is not None and (
        draft.version is not None or annotations.VERSION_PROPERTY in (metadata or {}).get("properties", {})
    ):
        metadata = annotations.with_version(metadata, next_version)
    return replace(draft, metadata=annotations.text(metadata), rule_set=annotations.text(rules))


def find(
    state: RegistryState, library: Library, subject: str, body: Body, *, deleted: bool = False
) -> SchemaRecord | None:
    """The latest version of `subject` that is `body`, or else one that says the same."""
    latest_first = state.versions(subject, deleted=deleted)[::-1]
    exact = next((each for each in latest_first if each.body == body), None)
    if exact is not None:
        return exact
    wanted = _Same(body)
    spelled_out = 0
    for each in latest_first:
        if wanted.may_be(each.body):
            if wanted.same_annotations(each):
                return each
        elif not body.references and each.body.references and spelled_out < SPELLED_OUT_MAX:
            spelled_out += 1
            if wanted.same_annotations(each) and _is_spelled_out(state, library, body, each):
                return each
    return None


class _Same:
    """A body and its metadata, which is read once: whether others differ from it in no more than their version."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._metadata = body.as_json().get("metadata")
        self._without_version = annotations.without_version(self._metadata)

    def may_be(self, other: Body) -> bool:
        body = self._body
        return (body.schema, body.references) == (other.schema, other.references)

    def same_annotations(self, other: SchemaRecord) -> bool:
        if (self._body.schema_type, self._body.rule_set) != (other.body.schema_type, other.body.rule_set):
            return False
        theirs = other.body.as_json().get("metadata")
        if self._without_version != annotations.without_version(theirs):
            return False
        named, theirs_named = annotations.named_version(self._metadata), annotations.named_version(theirs)
        return named is None or named == (other.version if theirs_named is None else theirs_named)


def _is_spelled_out(state: RegistryState, library: Library, body: Body, other: SchemaRecord) -> bool:
    """Whether a body spells out what another refers to."""
    kind, context = kind_of(body.schema_type), names.context_of(other.subject)
    try:
        spelled_out = kind.formatted(library.parsed(state, other.body, context), "resolved")
    except TooComplexError:
        return False
    return spelled_out is not None and spelled_out == body.schema


def incompatibilities(
    state: RegistryState, library: Library, subject: str, body: Body, earlier: list[SchemaRecord]
) -> list[str]:
    """Why `body` may not follow `earlier` (ascending) under the subject's compatibility level; empty when it may."""
    config = state.settings.config_in_scope(subject)
    group = config.get("compatibilityGroup")
    if isinstance(group, str):
        wanted = _group_value(body, group)
        earlier = [each for each in earlier if _group_value(each.body, group) == wanted]
    level = str(config["compatibilityLevel"])
    if level == "NONE" or not earlier:
        return []
    context = names.context_of(subject)
    new = Candidate(kind=kind_of(body.schema_type), parsed=library.parsed(state, body, context))
    try:
        return judge(level, new, _latest_first(state, library, earlier))
    except TooComplexError as error:
        return [f"Unexpected exception during compatibility check: {error}"]


def _latest_first(state: RegistryState, library: Library, earlier: list[SchemaRecord]) -> Iterator[Earlier]:
    characters = Steps(EARLIER_CHARACTERS_MAX, "read of the versions before, in characters")
    for record in reversed(earlier):
        characters.spend(len(record.body.schema))
        parsed = library.parsed(state, record.body, names.context_of(record.subject))
        yield Earlier(kind=kind_of(record.body.schema_type), parsed=parsed, version=record.version)


def _group_value(body: Body, group: str) -> Any:
    metadata = body.as_json().get("metadata") or {}
    properties = metadata.get("properties") if isinstance(metadata, dict) else None
    return properties.get(group) if isinstance(properties, dict) else None


def _check_mode(subject: str, draft: Draft, mode: str) -> None:
    if mode in READ_ONLY:
        raise errors.not_permitted(f"Subject {subject} is in read-only mode")
    if draft.id is not None and mode != "IMPORT":
        raise errors.not_permitted(f"Subject {subject} is not in import mode")
    if draft.id is None and mode != "READWRITE":
        raise errors.not_permitted(f"Subject {subject} is not in read-write mode")


def _choose_id(state: RegistryState, body: Body, wanted: int | None, context: str) -> int:
    if wanted is not None:
        taken = state.body(wanted, context)
        if taken is not None and taken != body:
            raise errors.not_permitted(f"Overwrite new schema with id {wanted} is not permitted.")
        return wanted
    found = state.id_of(body, context)
    if found is not None:
        return found
    if state.highest_id_of(context) >= ID_MAX:
        raise errors.store_failed("Every schema id has been given out")
    return state.highest_id_of(context) + 1


def _given_way(state: RegistryState, every: list[SchemaRecord], record: SchemaRecord) -> list[SchemaGone]:
    """The soft-deleted versions of the same schema, which give way to the new one."""
    return [
        SchemaGone(subject=each.subject, version=each.version)
        for each in every
        if each.deleted
        and each.id == record.id
        and each.version < record.version
        and not state.referrers(each.subject, each.version, deleted=True)
    ]
