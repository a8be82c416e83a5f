"""
What a command comes to: the records to write and the reply to give once they are written.

Everything here only reads the state. Raises `RefusedError` for what is turned down; then nothing is written.
"""

from dataclasses import dataclass, replace
from typing import Any, assert_never

from fluvial.registry import errors
from fluvial.registry.commands import (
    Command,
    DeleteConfig,
    DeleteMode,
    DeleteSubject,
    DeleteVersion,
    Draft,
    Register,
    SetConfig,
    SetMode,
)
from fluvial.registry.compatibility import LEVELS, Earlier, judge
from fluvial.registry.library import Library
from fluvial.registry.records import (
    Body,
    ConfigRecord,
    HighestId,
    ModeRecord,
    Record,
    SchemaGone,
    SchemaRecord,
    SubjectDeleted,
)
from fluvial.registry.state import RegistryState

MODES = frozenset({"READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"})
READ_ONLY = frozenset({"READONLY", "READONLY_OVERRIDE"})
ID_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`reply` holds once `records` are in the log, all of them."""

    records: tuple[Record, ...]
    reply: Any


def decide(state: RegistryState, library: Library, command: Command) -> Decision:  # noqa: PLR0911 (one return a case)
    """Work out what `command` does to `state`."""
    match command:
        case Register():
            return _register(state, library, command)
        case DeleteVersion():
            return _delete_version(state, command)
        case DeleteSubject():
            return _delete_subject(state, command)
        case SetConfig():
            return _set_config(state, command)
        case DeleteConfig():
            return _delete_config(state, command)
        case SetMode():
            return _set_mode(state, command)
        case DeleteMode():
            return _delete_mode(state, command)
        case _:
            assert_never(command)


def body_of(state: RegistryState, library: Library, subject: str, draft: Draft, *, normalize: bool) -> Body:
    """
    The body that a draft has once its schema is in its stored form.

    An empty schema repeats the subject's latest, which is how only metadata is changed.
    """
    if draft.schema_type != "AVRO":
        raise errors.unsupported_type(draft.schema_type)
    latest = state.version(subject, -1)
    if not draft.schema.strip():
        if latest is None:
            raise errors.empty_schema()
        draft = replace(draft, schema=latest.body.schema, references=latest.body.references)
    references = tuple(
        replace(each, version=found.version)
        if each.version == -1 and (found := state.version(each.subject, -1)) is not None
        else each
        for each in draft.references
    )
    if normalize or state.config_in_scope(subject).get("normalize") is True:
        normalize = True
        references = tuple(sorted(set(references), key=lambda each: (each.subject, each.version, each.name)))
    parsed = library.parse(state, draft.schema, references, normalize=normalize)
    return Body(
        schema=parsed.text,
        references=references,
        metadata=draft.metadata,
        rule_set=draft.rule_set,
    )


def incompatibilities(
    state: RegistryState, library: Library, subject: str, body: Body, earlier: list[SchemaRecord]
) -> list[str]:
    """Why `body` may not follow `earlier` (ascending) under the subject's compatibility level; empty when it may."""
    config = state.config_in_scope(subject)
    group = config.get("compatibilityGroup")
    if isinstance(group, str):
        wanted = _group_value(body, group)
        earlier = [each for each in earlier if _group_value(each.body, group) == wanted]
    level = str(config["compatibilityLevel"])
    if level == "NONE" or not earlier:
        return []
    if not level.endswith("_TRANSITIVE"):
        earlier = earlier[-1:]
    new = library.parsed(state, body)
    return judge(
        level, new, [Earlier(version=each.version, parsed=library.parsed(state, each.body)) for each in earlier]
    )


def _group_value(body: Body, group: str) -> Any:
    metadata = body.as_json().get("metadata") or {}
    properties = metadata.get("properties") if isinstance(metadata, dict) else None
    return properties.get(group) if isinstance(properties, dict) else None


def find(state: RegistryState, subject: str, body: Body, *, deleted: bool = False) -> SchemaRecord | None:
    """The latest version of `subject` that says the same as `body`; metadata not given matches any."""
    for each in reversed(state.versions(subject, deleted=deleted)):
        same = (each.body.schema, each.body.references) == (body.schema, body.references)
        metadata_fits = body.metadata is None or body.metadata == each.body.metadata
        rules_fit = body.rule_set is None or body.rule_set == each.body.rule_set
        if same and metadata_fits and rules_fit:
            return each
    return None


def _register(state: RegistryState, library: Library, command: Register) -> Decision:
    subject, draft = command.subject, command.draft
    mode = state.mode_in_scope(subject)
    _check_register_mode(subject, draft, mode)
    importing = mode == "IMPORT"
    body = body_of(state, library, subject, draft, normalize=command.normalize and not importing)
    wanted_id = draft.id if importing else None
    known = find(state, subject, body)
    if known is not None and wanted_id in {None, known.id} and draft.version in {None, known.version}:
        return Decision(records=(), reply=known)
    live = state.versions(subject)
    if live and not importing:
        # A new version keeps the metadata and rules of the one before unless it brings its own.
        previous = live[-1].body
        body = replace(body, metadata=body.metadata or previous.metadata, rule_set=body.rule_set or previous.rule_set)
    if not importing and (messages := incompatibilities(state, library, subject, body, live)):
        raise errors.incompatible(subject, messages)
    every = state.versions(subject, deleted=True)
    next_version = every[-1].version + 1 if every else 1
    version = draft.version if draft.version is not None else next_version
    if version != next_version and not importing:
        raise errors.invalid_schema("Version is not one more than previous version")
    schema_id = _choose_id(state, body, wanted_id)
    record = SchemaRecord(subject=subject, version=version, id=schema_id, body=body)
    # A soft-deleted version of the same schema gives way to the new one.
    buried = tuple(
        SchemaGone(subject=subject, version=each.version)
        for each in every
        if each.deleted
        and each.id == schema_id
        and each.version < version
        and not state.referrers(subject, each.version, deleted=True)
    )
    return Decision(records=(*buried, record), reply=record)


def _check_register_mode(subject: str, draft: Draft, mode: str) -> None:
    if mode in READ_ONLY:
        raise errors.not_permitted(f"Subject {subject} is in read-only mode")
    if draft.id is not None and mode != "IMPORT":
        raise errors.not_permitted(f"Subject {subject} is not in import mode")
    if draft.id is None and mode != "READWRITE":
        raise errors.not_permitted(f"Subject {subject} is not in read-write mode")


def _choose_id(state: RegistryState, body: Body, wanted: int | None) -> int:
    if wanted is not None:
        taken = state.body(wanted)
        if taken is not None and taken != body:
            raise errors.not_permitted(f"Overwrite new schema with id {wanted} is not permitted.")
        return wanted
    found = state.id_of(body)
    if found is not None:
        return found
    if state.highest_id >= ID_MAX:
        raise errors.store_failed("Every schema id has been given out")
    return state.highest_id + 1


def _delete_version(state: RegistryState, command: DeleteVersion) -> Decision:
    subject = command.subject
    found = state.version(subject, command.version, deleted=True)
    if found is None:
        if not state.has_subject(subject, deleted=True):
            raise errors.subject_not_found(subject)
        raise errors.version_not_found(command.version)
    if found.deleted and not command.permanent:
        raise errors.version_soft_deleted(subject, found.version)
    _check_writable(state, subject)
    if state.referrers(subject, found.version, deleted=command.permanent):
        raise errors.reference_exists(subject, found.version)
    if not command.permanent:
        return Decision(records=(replace(found, deleted=True),), reply=found.version)
    if not found.deleted:
        raise errors.version_not_soft_deleted(subject, found.version)
    records: list[Record] = [
        HighestId(id=state.highest_id),
        SchemaGone(subject=subject, version=found.version),
    ]
    if len(state.versions(subject, deleted=True)) == 1:
        records += _without_settings(state, subject)
    return Decision(records=tuple(records), reply=found.version)


def _delete_subject(state: RegistryState, command: DeleteSubject) -> Decision:
    subject = command.subject
    if not state.has_subject(subject, deleted=True):
        raise errors.subject_not_found(subject)
    if not command.permanent and not state.has_subject(subject, deleted=False):
        raise errors.subject_soft_deleted(subject)
    _check_writable(state, subject)
    versions = state.versions(subject, deleted=command.permanent)
    numbers = [each.version for each in versions]
    for each in versions:
        others = (referrer.subject for referrer in state.referrers(subject, each.version, deleted=command.permanent))
        if any(other != subject for other in others):
            raise errors.reference_exists(subject, each.version)
        if command.permanent and not each.deleted:
            raise errors.subject_not_soft_deleted(subject)
    records: list[Record]
    if command.permanent:
        records = [HighestId(id=state.highest_id)]
        # Last first, so that no record of the log ever refers to one that is gone.
        records += [SchemaGone(subject=subject, version=number) for number in reversed(numbers)]
        records += _without_settings(state, subject)
    else:
        records = [replace(each, deleted=True) for each in versions]
        records.append(SubjectDeleted(subject=subject, version=numbers[-1]))
    return Decision(records=tuple(records), reply=numbers)


def _check_writable(state: RegistryState, subject: str | None) -> None:
    if state.mode_in_scope(subject) in READ_ONLY:
        raise errors.not_permitted(f"Subject {subject} is in read-only mode")


def _without_settings(state: RegistryState, subject: str) -> list[Record]:
    """The records that take a subject's own mode and settings away, where it has any."""
    records: list[Record] = []
    if state.mode(subject) is not None:
        records.append(ModeRecord(subject=subject, mode=None))
    if state.config(subject) is not None:
        records.append(ConfigRecord(subject=subject, settings=None))
    return records


def _set_config(state: RegistryState, command: SetConfig) -> Decision:
    level = command.settings.get("compatibilityLevel")
    if level is not None and level not in LEVELS:
        raise errors.invalid_compatibility()
    _check_writable(state, command.subject)
    settings = {**(state.config(command.subject) or {}), **command.settings}
    return Decision(records=(ConfigRecord(subject=command.subject, settings=settings),), reply=settings)


def _delete_config(state: RegistryState, command: DeleteConfig) -> Decision:
    settings = state.config(command.subject)
    if settings is None:
        raise errors.subject_not_found(str(command.subject))
    _check_writable(state, command.subject)
    return Decision(records=(ConfigRecord(subject=command.subject, settings=None),), reply=settings)


def _set_mode(state: RegistryState, command: SetMode) -> Decision:
    if command.mode not in MODES:
        raise errors.invalid_mode()
    records: list[Record] = []
    if command.mode == "IMPORT" and state.mode_in_scope(command.subject) != "IMPORT" and not command.force:
        affected = [each for each in state.all_versions(deleted=True) if command.subject in {None, each.subject}]
        if any(not each.deleted for each in affected):
            raise errors.not_permitted("Cannot import since found existing subjects")
        for each in affected:
            if state.referrers(each.subject, each.version, deleted=True):
                raise errors.reference_exists(each.subject, each.version)
        if affected:
            # Imported schemas bring their own ids, so what is soft-deleted must not hold on to them.
            records = [HighestId(id=state.highest_id)]
            records += [SchemaGone(subject=each.subject, version=each.version) for each in affected]
    records.append(ModeRecord(subject=command.subject, mode=command.mode))
    return Decision(records=tuple(records), reply=command.mode)


def _delete_mode(state: RegistryState, command: DeleteMode) -> Decision:
    mode = state.mode(command.subject)
    if mode is None:
        raise errors.subject_not_found(str(command.subject))
    return Decision(records=(ModeRecord(subject=command.subject, mode=None),), reply=mode)
