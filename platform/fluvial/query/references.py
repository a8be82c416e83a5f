"""
The tables that a query names, where they stand in its text, and the query with each read at one version.

A table is named after FROM or JOIN, as `state.customers`, with `VERSION AS OF` or `TIMESTAMP AS OF` behind it. What
cannot be told apart with certainty makes the whole query unclear; it is then left to Spark as it stands.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fluvial.errors import FluvialError
from fluvial.query.words import Kind, Word, words_of

INTERNAL_COLUMNS = ("_fold", "_parts")
"""Columns in which a table keeps what its next batch needs; they are no answer to `select *`."""

_AFTER_A_TABLE = frozenset(
    {
        "ANTI",
        "CLUSTER",
        "CROSS",
        "DISTRIBUTE",
        "EXCEPT",
        "FULL",
        "GROUP",
        "HAVING",
        "INNER",
        "INTERSECT",
        "JOIN",
        "LATERAL",
        "LEFT",
        "LIMIT",
        "MINUS",
        "NATURAL",
        "OFFSET",
        "ON",
        "ORDER",
        "RIGHT",
        "SEMI",
        "SORT",
        "UNION",
        "USING",
        "WHERE",
        "WINDOW",
    }
)
# Of a subquery these are not, or are something else.
_NOT_OF_A_SUBQUERY = frozenset({"TABLESAMPLE", "PIVOT", "UNPIVOT", "MATCH_RECOGNIZE"})
_ENDS_FROM = frozenset(
    {
        "WHERE",
        "GROUP",
        "HAVING",
        "ORDER",
        "SORT",
        "CLUSTER",
        "DISTRIBUTE",
        "LIMIT",
        "OFFSET",
        "WINDOW",
        "UNION",
        "EXCEPT",
        "MINUS",
        "INTERSECT",
        "SELECT",
        "ON",
        "USING",
        "VALUES",
    }
)


class UnclearError(FluvialError):
    """
    Which tables a query names cannot be told from its words alone.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """
    A table named in FROM, at [start, end) of the text, with its time travel, of which one at most is given.

    `alias` is the name to give to what takes the table's place; None where the query gives one.
    """

    table: str
    start: int
    end: int
    version: int | None = None
    timestamp: str | None = None
    alias: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """
    A query and its references; `qualifiers` are the parts `state.` of `state.customers.orders`, to be left out.
    """

    text: str
    references: Sequence[Reference]
    qualifiers: Sequence[tuple[int, int]]
    names: frozenset[str]

    @property
    def tables(self) -> list[str]:
        """
        The tables that are read, each once, in their order.
        """
        return list(dict.fromkeys(reference.table for reference in self.references))

    def names_internal(self) -> bool:
        """
        Whether an internal column is asked for by its name.
        """
        return any(column in self.names for column in INTERNAL_COLUMNS)

    def rewritten(self, source: Callable[[Reference], str]) -> str:
        """
        The text with `source(reference)`, a subquery without its parentheses, in the place of each reference.
        """
        edits = [(start, end, "") for start, end in self.qualifiers]
        for each in self.references:
            alias = "" if each.alias is None else f" AS {quoted(each.alias)}"
            edits.append((each.start, each.end, f"({source(each)}){alias}"))
        parts, at = [], 0
        for start, end, text in sorted(edits):
            parts += [self.text[at:start], text]
            at = end
        return "".join([*parts, self.text[at:]])


def quoted(name: str) -> str:
    """
    A name in backquotes.
    """
    return f"`{name.replace('`', '``')}`"


def read_query(text: str, databases: Sequence[str], known: Sequence[str]) -> Query:
    """
    Find the references of a query to tables of `databases`; `known` are those there are, whose spelling is taken.

    Raises :class:`UnclearError`. An unknown table is a reference too, under the name that the query gives it.
    """
    return _Reader(text, databases, known).read()


class _Reader:
    def __init__(self, text: str, databases: Sequence[str], known: Sequence[str]) -> None:
        self._text = text
        self._words = words_of(text)
        self._databases = {name.lower() for name in databases}
        self._known: Mapping[str, str] = {name.lower(): name for name in known}
        self._references: list[Reference] = []
        self._qualifiers: list[tuple[int, int]] = []

    def read(self) -> Query:
        in_from = [False]
        for at, word in enumerate(self._words):
            if word.text == "(":
                in_from.append(in_from[-1])
            elif word.text == ")":
                if len(in_from) > 1:
                    in_from.pop()
            elif word.is_keyword("FROM", "JOIN"):
                in_from[-1] = True
            elif word.kind is Kind.NAME and word.text.upper() in _ENDS_FROM:
                in_from[-1] = False
            elif self._begins_a_name(at):
                self._take(at, in_from[-1])
        names = frozenset(word.name.lower() for word in self._words if word.is_name)
        return Query(text=self._text, references=self._references, qualifiers=self._qualifiers, names=names)

    def _begins_a_name(self, at: int) -> bool:
        """Whether `database.` begins here, of one of the warehouse's databases."""
        word = self._words[at]
        return (
            word.is_name
            and word.name.lower() in self._databases
            and self._mark(at + 1) == "."
            and self._word(at + 2) is not None
        )

    def _take(self, at: int, in_from: bool) -> None:
        first, name = self._words[at], self._words[at + 2]
        shown = f"{first.name}.{name.name}"
        if not name.is_name or self._mark(at - 1) == ".":
            raise UnclearError(f"{self._text[first.start : name.end]} is no table's name of two parts")
        if self._mark(at + 3) == ".":
            if self._known.get(shown.lower()) is None:
                raise UnclearError(f"{shown} is no table")
            self._qualifiers.append((first.start, name.start))
            return
        before = self._word(at - 1)
        if not in_from or before is None or not (before.text in ",(" or before.is_keyword("FROM", "JOIN")):
            raise UnclearError(f"{shown} does not stand where a table does")
        if self._mark(at + 3) == "(":
            raise UnclearError(f"{shown} is a function")
        table = self._known.get(shown.lower(), shown.lower())
        end, version, timestamp = self._time_travel(at + 3)
        after = self._word(end)
        if after is not None and after.kind is Kind.NAME and after.text.upper() in _NOT_OF_A_SUBQUERY:
            raise UnclearError(f"{after.text} is of a table only")
        has_alias = (
            after is not None
            and after.is_name
            and not (after.kind is Kind.NAME and after.text.upper() in _AFTER_A_TABLE)
        )
        self._references.append(
            Reference(
                table=table,
                start=first.start,
                end=self._words[end - 1].end,
                version=version,
                timestamp=timestamp,
                alias=None if has_alias else name.name,
            )
        )

    def _time_travel(self, at: int) -> tuple[int, int | None, str | None]:
        """Where what follows a table's name at word `at` goes on, and the version or the time it names."""
        start = at
        if self._is(at, "FOR"):
            at += 1
            if self._is(at, "SYSTEM_VERSION", "SYSTEM_TIME"):
                raise UnclearError("a time travel in other words")
        kind = self._word(at)
        if kind is None or not (
            self._is(at, "VERSION", "TIMESTAMP") and self._is(at + 1, "AS") and self._is(at + 2, "OF")
        ):
            if self._is(start, "SYSTEM_VERSION", "SYSTEM_TIME", "FOR") or self._mark(start) == "@":
                raise UnclearError("a time travel in other words")
            return start, None, None
        value = self._word(at + 3)
        if value is None:
            raise UnclearError("a time travel without its end")
        if kind.is_keyword("VERSION"):
            digits = value.text.strip("'\"") if value.kind in (Kind.NUMBER, Kind.STRING) else ""
            if re.fullmatch(r"\d{1,18}", digits, re.ASCII) is None:
                raise UnclearError("a version that is no number")
            return at + 4, int(digits), None
        if value.is_keyword("TIMESTAMP", "DATE"):
            at, value = at + 1, self._word(at + 4)
        following = self._word(at + 4)
        if value is None or value.kind is not Kind.STRING or value.text[0] in "rR" or "\\" in value.text:
            raise UnclearError("a time that is no plain string")
        if following is not None and following.text in tuple("+-*/|:"):
            raise UnclearError("a time that is an expression")
        return at + 4, None, value.text[1:-1]

    def _word(self, at: int) -> Word | None:
        return self._words[at] if 0 <= at < len(self._words) else None

    def _mark(self, at: int) -> str | None:
        word = self._word(at)
        return word.text if word is not None and word.kind is Kind.MARK else None

    def _is(self, at: int, *names: str) -> bool:
        word = self._word(at)
        return word is not None and word.is_keyword(*names)
