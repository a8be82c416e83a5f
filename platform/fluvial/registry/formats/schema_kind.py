"""
What the registry needs of a kind of schema: Avro and whatever else it keeps, each behind `SchemaKind`.

A kind knows its schemas' texts, when one reads what another wrote, and how bytes are checked; nothing of subjects, ids
or HTTP. `kinds` has the list of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

Found = TypeVar("Found")


class SchemaSyntaxError(ValueError):
    """The text is not a schema of its kind, or one that is not kept; `str()` says where it goes wrong."""


class TooComplexError(ValueError):
    """The schemas have more to look at or to compare, or deeper, than is done here."""


FINDINGS_MAX = 100
"""Differences that are shown of one comparison; of each pair of types in it, one more is kept."""


def distinct(found: list[Found]) -> list[Found]:
    """The differences of a pair of types, each once, so many that it is known whether there are too many to show."""
    return found if len(found) <= 1 else list(dict.fromkeys(found))[: FINDINGS_MAX + 1]


class Steps:
    """
    Counts the work on one schema or comparison up to a bound.

    With `whole` it is counted there as well, where a step of this kind of work stands for `weight`.
    """

    def __init__(self, most: int, doing: str, *, whole: "Steps | None" = None, weight: int = 1) -> None:
        self._left = self._most = most
        self._doing = doing
        self._whole = whole
        self._weight = weight

    def spend(self, steps: int = 1) -> None:
        """Count work that is about to be done. Raises `TooComplexError` beyond the bound."""
        self._left -= steps
        if self._left < 0:
            raise TooComplexError(f"the schemas take more than {self._most} steps to {self._doing}")
        if self._whole is not None:
            self._whole.spend(steps * self._weight)


class UndecodableError(ValueError):
    """The bytes are not a value of the schema; `str()` says in which field and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: tuple[str, ...] = ()

    def within(self, *names: str) -> "UndecodableError":
        """The same error, seen from the fields around it, the outermost first."""
        self.path = (*names, *self.path)
        return self

    def __str__(self) -> str:
        if not self.path:
            return self.reason
        shown = self.path if len(self.path) <= 10 else (*self.path[:10], "…")
        return f"field {'.'.join(shown)}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Parsed:
    """
    A schema and the text it is stored under; `schema` is for its own kind alone to look into.

    `types` is how many there are in it and in what it refers to.
    """

    schema: Any
    text: str
    types: int = 1

    @property
    def bytes_held(self) -> int:
        """About how much memory it takes."""
        return 4 * len(self.text) + 400 * self.types


class SchemaKind(Protocol):
    """One value per kind. Its functions are pure, may be called from several threads and take bounded time."""

    @property
    def name(self) -> str:
        """The `schemaType` of the REST API, such as `AVRO`."""
        ...

    def parse(self, text: str, *, references: Mapping[str, str], normalize: bool) -> Parsed:
        """
        Parse a schema; `references` are the texts it may use by name, each after the ones that it uses itself.

        Raises `SchemaSyntaxError`, also for text that is nested too deeply or describes too much.
        """
        ...

    def formatted(self, parsed: Parsed, form: str) -> str | None:
        """The text in one of the forms that `?format=` names; None for a form that is only the stored one."""
        ...

    def faults(
        self, *, reader: Parsed, writer: Parsed, reader_word: str, writer_word: str, steps: Steps | None = None
    ) -> list[str]:
        """
        Say what keeps `reader` from reading what was written under `writer`, a message each; empty when it can.

        The words (`new` and `old`) name the two in messages, of which there are at most `FINDINGS_MAX` and one more.
        `steps` counts the work of several comparisons. Raises `TooComplexError`.
        """
        ...

    def compile_check(self, parsed: Parsed) -> Callable[[bytes, int], None]:
        """
        A function of a record's bytes and where its payload begins, behind the schema's id.

        It raises `UndecodableError` unless exactly one value of the schema reaches from there to the end.
        """
        ...


@runtime_checkable
class SkippableKind(Protocol):
    """A `SchemaKind` of which the broker can ask more than whether bytes decode."""

    def compile_skip(self, parsed: Parsed) -> Callable[[bytes, int], int]:
        """
        A function of a buffer and where a datum begins, which returns where it ends.

        It may only say that something is wrong, by a ValueError, LookupError or RecursionError, or by an end that lies
        behind that of the record; the function of `compile_check` then knows what.
        """
        ...

    def takes_null(self, parsed: Parsed) -> bool:
        """Whether null is a value of the schema; serializers send it as no bytes at all."""
        ...

    def key_field(self, parsed: Parsed) -> str | None:
        """The field that the schema names as the record's key, by `"fluvial.key"`."""
        ...

    def record_name(self, parsed: Parsed) -> str | None:
        """The full name that the strategies by record name make a subject of; None for what is no record."""
        ...
