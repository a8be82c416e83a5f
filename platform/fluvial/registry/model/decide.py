"""
What a command comes to: the records to write and the reply to give once they are written.

Everything here only reads the state. Raises `RefusedError` for what is turned down; then nothing is written.
"""

from dataclasses import replace
from typing import assert_never

from fluvial.registry import errors
from fluvial.registry.model import names, ownership
from fluvial.registry.model.commands import (
    Command,
    DeleteConfig,
    DeleteContext,
    DeleteMode,
    DeleteSubject,
    DeleteVersion,
    Register,
    SetConfig,
    SetMode,
)
from fluvial.registry.model.compatibility import LEVELS
from fluvial.registry.model.decision import Decision
from fluvial.registry.model.library import Library
from fluvial.registry.model.records import (
    ConfigRecord,
    ContextRecord,
    ModeRecord,
    Record,
    SchemaGone,
    SubjectDeleted,
)
from fluvial.registry.model.registering import READ_ONLY, register
from fluvial.registry.model.state import RegistryState

MODES = frozenset({"READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"})


def decide(state: RegistryState, library: Library, command: Command) -> Decision:  # noqa: PLR0911 (one return a case)
    """Work out what `command` does to `state`."""
    match command:
        case Register():
            return register(state, library, command)
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
        case DeleteContext():
            return _delete_context(state, command)
        case ownership.Introduce() | ownership.GiveTo():
            records, reply = ownership.decide(state.ownership, command)
            return Decision(records=records, reply=reply)
        case _:
            assert_never(command)


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
        state.highest_ids(),
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
        records = [state.highest_ids()]
        # Last first, so that no record of the log ever refers to one that is gone.
        records += [SchemaGone(subject=subject, version=number) for number in reversed(numbers)]
        records += _without_settings(state, subject)
    else:
        records = [SubjectDeleted(subject=subject, version=numbers[-1])]
    return Decision(records=tuple(records), reply=numbers)


def _check_writable(state: RegistryState, subject: str | None) -> None:
    if state.settings.mode_in_scope(subject) in READ_ONLY:
        raise errors.not_permitted(f"Subject {subject} is in read-only mode")


def _without_settings(state: RegistryState, subject: str) -> list[Record]:
    """The records that take a subject's own mode and settings away, where it has any."""
    records: list[Record] = []
    if state.settings.mode(subject) is not None:
        records.append(ModeRecord(subject=subject, mode=None))
    if state.settings.config(subject) is not None:
        records.append(ConfigRecord(subject=subject, settings=None))
    return records


def _set_config(state: RegistryState, command: SetConfig) -> Decision:
    level = command.settings.get("compatibilityLevel")
    if level is not None and level not in LEVELS:
        raise errors.invalid_compatibility()
    _check_writable(state, command.subject)
    changed = {**state.settings.stored_config(command.subject), **command.settings}
    settings = {name: value for name, value in changed.items() if value is not None}
    return Decision(records=(ConfigRecord(subject=command.subject, settings=settings),), reply=settings)


def _delete_config(state: RegistryState, command: DeleteConfig) -> Decision:
    settings = state.settings.config(command.subject)
    if settings is None:
        raise errors.subject_not_found(str(command.subject))
    _check_writable(state, command.subject)
    return Decision(records=(ConfigRecord(subject=command.subject, settings=None),), reply=settings)


def _set_mode(state: RegistryState, command: SetMode) -> Decision:
    if command.mode not in MODES:
        raise errors.invalid_mode()
    records: list[Record] = []
    if command.mode == "IMPORT" and state.settings.mode_in_scope(command.subject) != "IMPORT" and not command.force:
        affected = [
            each for subject in state.subjects_in(command.subject) for each in state.versions(subject, deleted=True)
        ]
        if any(not each.deleted for each in affected):
            raise errors.not_permitted("Cannot import since found existing subjects")
        for each in affected:
            if state.referrers(each.subject, each.version, deleted=True):
                raise errors.reference_exists(each.subject, each.version)
        if affected:
            # Imported schemas bring their own ids, so what is soft-deleted must not hold on to them.
            records = [state.highest_ids()]
            records += [SchemaGone(subject=each.subject, version=each.version) for each in affected]
    records.append(ModeRecord(subject=command.subject, mode=command.mode))
    return Decision(records=tuple(records), reply=command.mode)


def _delete_mode(state: RegistryState, command: DeleteMode) -> Decision:
    mode = state.settings.mode(command.subject)
    if mode is None and not command.recursive:
        raise errors.subject_not_found(str(command.subject))
    gone = [command.subject]
    context, name = names.split(command.subject or "")
    if command.recursive and not name:
        gone += [each for each in state.settings.modes_in(context) if each != command.subject]
    return Decision(records=tuple(ModeRecord(subject=each, mode=None) for each in gone), reply=mode)


def _delete_context(state: RegistryState, command: DeleteContext) -> Decision:
    if state.subjects_in(command.subject):
        raise errors.context_not_empty(command.subject)
    records: list[Record] = [state.highest_ids()]
    if names.context_of(command.subject) != names.DEFAULT_CONTEXT:
        records.append(ContextRecord(context=names.context_of(command.subject), gone=True))
    return Decision(records=tuple(records), reply=None)
