"""
A statement of Spark SQL cut into words, as far as it takes to find its tables, its parameters and its end.

The words are those of Spark's grammar (docs: "Literals", "Identifiers", "Comments"): strings in ' or " with backslash
escapes, raw strings r'…', quoted names in backquotes, comments after -- and, nested, in /* */.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fluvial.errors import FluvialError


class StatementError(FluvialError):
    """
    A statement, or what is given with it, cannot be read.
    """


class Kind(Enum):
    """
    What a word is.
    """

    NAME = "name"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    MARK = "mark"


@dataclass(frozen=True, slots=True)
class Word:
    """
    One word of a statement, at [start, end) of its text; spaces and comments are none.
    """

    kind: Kind
    text: str
    start: int
    end: int

    def is_keyword(self, *names: str) -> bool:
        """
        Whether the word is one of these keywords, given in upper case.
        """
        return self.kind is Kind.NAME and self.text.upper() in names

    @property
    def is_name(self) -> bool:
        """
        Whether the word can be a part of a name.
        """
        return self.kind in (Kind.NAME, Kind.QUOTED)

    @property
    def name(self) -> str:
        """
        The name that the word stands for, without its quotes.
        """
        return self.text[1:-1].replace("``", "`") if self.kind is Kind.QUOTED else self.text


_WORD = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*)
    | (?P<comment>/\*)
    | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<name>[^\W\d]\w*)
    | (?P<number>\d\w*(?:\.\d\w*)?|\.\d\w*)
    | (?P<mark>[^\s])
    """,
    re.VERBOSE | re.DOTALL,
)
_KINDS = {
    "raw": Kind.STRING,
    "string": Kind.STRING,
    "quoted": Kind.QUOTED,
    "name": Kind.NAME,
    "number": Kind.NUMBER,
    "mark": Kind.MARK,
}
_UNENDED = {"'": "a string", '"': "a string", "`": "a quoted name"}


def words_of(text: str) -> list[Word]:
    """
    The words of a text. Raises :class:`StatementError` for a string, name or comment without an end.
    """
    return list(_words(text))


def _words(text: str) -> Iterator[Word]:
    at = 0
    while at < len(text):
        match = _WORD.match(text, at)
        assert match is not None, "every character is of some group"
        group = match.lastgroup
        if group == "comment":
            at = _after_comment(text, at)
            continue
        if group == "mark" and match[0] in _UNENDED:
            raise StatementError(f"{_UNENDED[match[0]]} that begins at {text[at : at + 20]!r} has no end")
        if group != "space":
            assert group is not None
            yield Word(_KINDS[group], match[0], at, match.end())
        at = match.end()


def _after_comment(text: str, start: int) -> int:
    depth, at = 0, start
    for match in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
        if depth == 0:
            return at
    raise StatementError(f"a comment that begins at {text[start : start + 20]!r} has no end")


def statements_of(text: str) -> list[str]:
    """
    The statements of a text, which `;` ends; those without a word are left out.
    """
    found, start, words = [], 0, 0
    for word in _words(text):
        if word.text == ";":
            if words:
                found.append(text[start : word.start].strip())
            start, words = word.end, 0
        else:
            words += 1
    if words:
        found.append(text[start:].strip())
    return found


_PARAMETER = re.compile(r"(?P<name>[a-z_]\w*)(?::(?P<type>[a-z]+(?:\(\d+(?:,\s*\d+)?\))?))?", re.IGNORECASE | re.ASCII)
_WHOLE = {"TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "LONG"}
_NEEDS_NO_ESCAPE = re.compile(r"[^'\\\x00-\x1f]*")


def parameters_of(pairs: Mapping[str, str]) -> dict[str, str]:
    """
    The SQL literals of parameters, by name; a key is `name` or `name:type`, without a type the value is a string.

    Raises :class:`StatementError` for a name or a value that does not fit.
    """
    found = {}
    for key, value in pairs.items():
        match = _PARAMETER.fullmatch(key)
        if match is None:
            raise StatementError(f"{key!r} is no name of a parameter: write NAME=VALUE or NAME:TYPE=VALUE")
        found[match["name"].lower()] = literal(value, (match["type"] or "").upper(), name=match["name"])
    return found


def literal(value: str, kind: str, *, name: str) -> str:
    """
    The SQL literal of a parameter's value, of a type by its name in upper case or, without one, a string.

    Raises :class:`StatementError` for a value that is not of a whole number's type.
    """
    if kind in _WHOLE:
        if re.fullmatch(r"[+-]?\d{1,19}", value, re.ASCII) is None:
            raise StatementError(f"parameter {name} is {value!r}, which is no whole number")
        # A bare number is taken where an expression is not, as after LIMIT.
        return value if kind in ("INT", "INTEGER") else f"cast({value} as {kind})"
    # In hexadecimal nothing of the value can end the string, whatever the session takes for an escape.
    text = f"'{value}'" if _NEEDS_NO_ESCAPE.fullmatch(value) else f"cast(X'{value.encode().hex()}' as string)"
    return f"cast({text} as {kind})" if kind else text


def bound(statement: str, parameters: Mapping[str, str], *, characters_max: int | None = None) -> str:
    """
    A statement with its parameters `:name` replaced by their literals; it has at most `characters_max` then.

    Raises :class:`StatementError` for one that has no value. Without parameters the statement stays as it is.
    """
    if not parameters:
        return statement
    words = words_of(statement)
    text, at, size = [], 0, len(statement)
    for before, colon, word in zip((None, *words), words, words[1:], strict=False):
        if not _is_parameter(before, colon, word):
            continue
        literal = parameters.get(word.text.lower())
        if literal is None:
            raise StatementError(f"parameter :{word.text} has no value: --param {word.text}=VALUE")
        size += len(literal)
        if characters_max is not None and size > characters_max:
            raise StatementError(f"with its parameters the statement has more than {characters_max:,} characters")
        text += [statement[at : colon.start], literal]
        at = word.end
    return "".join([*text, statement[at:]])


def used_parameters(statement: str) -> set[str]:
    """
    The names of a statement's parameters, in lower case.
    """
    return set(parameters_in_order(statement))


def parameters_in_order(statement: str) -> list[str]:
    """
    The names of a statement's parameters, in lower case, each where it first stands.
    """
    words = words_of(statement)
    triples: Sequence[tuple[Word | None, Word, Word]] = list(zip((None, *words), words, words[1:], strict=False))
    found = (word.text.lower() for before, colon, word in triples if _is_parameter(before, colon, word))
    return list(dict.fromkeys(found))


def _is_parameter(before: Word | None, colon: Word, word: Word) -> bool:
    if colon.text != ":" or word.kind is not Kind.NAME or colon.end != word.start:
        return False
    # `a::int` is a cast and `a:b` a path.
    return before is None or before.end != colon.start or (before.kind is Kind.MARK and before.text not in ":])")
