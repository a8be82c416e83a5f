"""
What is set of subjects, of contexts and of all subjects: compatibility and the like, and modes.

A scope is a subject, a context (`:.name:`) or None for all subjects.
"""

from collections.abc import Mapping
from typing import Any

from fluvial.registry.model import names
from fluvial.registry.model.records import ConfigRecord, ModeRecord

DEFAULT_CONFIG: Mapping[str, Any] = {"compatibilityLevel": "BACKWARD"}
DEFAULT_MODE = "READWRITE"
# What a subject that has settings of its own still takes from those for all.
INHERITED = (
    "compatibilityLevel",
    "normalize",
    "validateFields",
    "validateNewSchemas",
    "validateRules",
    "compatibilityPolicy",
    "compatibilityGroup",
)


class ScopedSettings:
    """The settings and the mode of each scope that has its own, and what follows for those that have none."""

    def __init__(self) -> None:
        self._configs: dict[str | None, Mapping[str, Any]] = {}
        self._modes: dict[str | None, str] = {}

    def replay(self, record: ConfigRecord | ModeRecord) -> None:
        """Take in one record of the log."""
        if isinstance(record, ConfigRecord):
            _set_or_drop(self._configs, record.subject, record.settings)
        else:
            _set_or_drop(self._modes, record.subject, record.mode)

    def config(self, subject: str | None) -> Mapping[str, Any] | None:
        """The settings of exactly this subject or context; those for all, default included, when it is None."""
        found = self._configs.get(subject)
        if found is None:
            return DEFAULT_CONFIG if subject in {None, names.GLOBAL_SETTINGS} else None
        level = self.config_in_scope(subject)["compatibilityLevel"]
        return {"compatibilityLevel": level, **found}

    def stored_config(self, subject: str | None) -> Mapping[str, Any]:
        """What was set of exactly this subject, context or None for all, and nothing else."""
        return self._configs.get(subject, {})

    def config_in_scope(self, subject: str | None) -> Mapping[str, Any]:
        """The settings that hold for a subject: its own, and where it has none its context's or those for all."""
        above = self._settings_above(subject)
        own = self._configs.get(subject)
        if own is None:
            return above
        return {**{name: above[name] for name in INHERITED if name in above}, **own}

    def _settings_above(self, subject: str | None) -> Mapping[str, Any]:
        for scope in names.scopes(subject):
            if scope != subject and scope in self._configs:
                return {**DEFAULT_CONFIG, **self._configs[scope]}
        return DEFAULT_CONFIG

    def mode(self, subject: str | None) -> str | None:
        """The mode of exactly this subject or context; that for all, default included, when it is None."""
        default = DEFAULT_MODE if subject in {None, names.GLOBAL_SETTINGS} else None
        return self._modes.get(subject, default)

    def modes_in(self, context: str) -> list[str]:
        """The subjects of a context that have a mode of their own."""
        return sorted(each for each in self._modes if each is not None and names.context_of(each) == context)

    def mode_in_scope(self, subject: str | None) -> str:
        """The mode that holds for a subject. READONLY_OVERRIDE for all cannot be lifted by one subject."""
        if "READONLY_OVERRIDE" in {self._modes.get(None), self._modes.get(names.GLOBAL_SETTINGS)}:
            return "READONLY_OVERRIDE"
        for scope in names.scopes(subject):
            if scope in self._modes:
                return self._modes[scope]
        return DEFAULT_MODE


def _set_or_drop(table: dict[str | None, Any], key: str | None, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
