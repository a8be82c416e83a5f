"""Which records `fluvial topic consume --filter` prints: those whose decoded fields have the given values."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from fluvial.cli.topic.record_text import Decoded

_ABSENT = object()


@dataclass(slots=True, kw_only=True)
class FieldFilter:
    """
    Fields and the values that all of them must have.

    A field inside another is `outer.inner`. A value equals a string as it is written, and anything else as JSON: 5,
    true, null. A record without the field, or with a value that is no object, does not match.
    """

    wanted: dict[str, str]
    absent: set[str] = field(init=False)
    """Fields that no record had so far."""

    def __post_init__(self) -> None:
        self.absent = set(self.wanted)

    @classmethod
    def of(cls, words: list[str] | None) -> "FieldFilter":
        """Read `FIELD=VALUE` words; raises a usage error."""
        wanted: dict[str, str] = {}
        for word in words or ():
            name, equals, value = word.partition("=")
            if not name or not equals:
                raise typer.BadParameter(f"--filter {word!r}: write FIELD=VALUE")
            if wanted.setdefault(name, value) != value:
                raise typer.BadParameter(f"--filter {word!r}: {name} cannot have two values; all filters must hold")
        return cls(wanted=wanted)

    def matches(self, record: "Decoded") -> bool:
        """Whether a record has all the values; notes which fields it has."""
        if not self.wanted:
            return True
        value = _json(record.message.value()) if record.value is None else record.value[1]
        found = {name: _at(value, name) for name in self.wanted}
        self.absent -= {name for name, each in found.items() if each is not _ABSENT}
        return all(_equal(found[name], text) for name, text in self.wanted.items())


def _json(value: bytes | None) -> Any:
    try:
        return json.loads(value or b"null")
    except ValueError:
        return None


def _at(value: Any, path: str) -> Any:
    if isinstance(value, dict) and path in value:
        return value[path]
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
        value = value[name]
    return value


def _equal(value: Any, text: str) -> bool:
    if value is _ABSENT or isinstance(value, str):
        return bool(value == text)
    try:
        wanted = json.loads(text)
    except ValueError:
        return False
    # 1 equals True in Python, and not in JSON.
    return bool(wanted == value) and isinstance(wanted, bool) == isinstance(value, bool)
